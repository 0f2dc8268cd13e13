//! VLANs of a server with a TAP device.

use std::fmt;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

/// The number of a VLAN: 1 to 4094.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct VlanId(NonZeroU16);

impl VlanId {
    /// The highest number. 4095 is reserved.
    pub const MAX: u16 = 4094;

    /// Returns the VLAN with a number, if it is one.
    pub const fn new(number: u16) -> Option<Self> {
        match NonZeroU16::new(number) {
            Some(id) if number <= Self::MAX => Some(Self(id)),
            _ => None,
        }
    }

    /// Returns the number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl TryFrom<u16> for VlanId {
    type Error = &'static str;

    fn try_from(number: u16) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("a VLAN has a number from 1 to 4094")
    }
}

impl From<VlanId> for u16 {
    fn from(id: VlanId) -> Self {
        id.get()
    }
}

impl Default for VlanId {
    /// Returns VLAN 1, which 802.1Q calls the default.
    fn default() -> Self {
        Self(NonZeroU16::MIN)
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a server sorts frames into VLANs (`vlan-tagging`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans {
    /// The frames that the device may carry (`vlan-accept`).
    pub accept: VlanAccept,
    /// The VLAN of untagged frames of the device, and of clients without a VLAN of their own (`vlan-pvid`).
    pub native: VlanId,
}

/// The frames that a server's TAP device may carry.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum VlanAccept {
    /// Frames of the native VLAN without a tag, and others with one.
    #[default]
    All,
    /// Frames with a tag.
    Tagged,
    /// Frames of the native VLAN, without a tag.
    Untagged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_0_nor_what_is_reserved_is_a_vlan() {
        let numbers = [0, 1, 4094, 4095, u16::MAX];
        let found = numbers.map(|number| VlanId::new(number).map(VlanId::get));
        assert_eq!(found, [None, Some(1), Some(4094), None, None]);
        assert_eq!(VlanId::default().to_string(), "1");
    }
}
