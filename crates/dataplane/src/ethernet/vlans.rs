//! VLANs: which frames the device may carry, and with which tags.
//!
//! Inside the plane the VLAN of a frame is next to it, and the frame has no tag, or a priority tag. A peer's frames belong
//! to the VLAN of the peer.

use adit_engine::{VlanAccept, VlanId, Vlans};
use adit_wire::VnetHeader;
use adit_wire::vlan::{Tag, remove};

use crate::stats::DropReason;

/// How the device carries the frames of a VLAN.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum OnDevice {
    /// As they are. Without VLANs, all frames are carried like this.
    Plain,
    /// With the VLAN's tag.
    Tagged(VlanId),
    /// Not at all.
    Nowhere,
}

impl OnDevice {
    pub(crate) fn of(vlans: &Vlans, vlan: VlanId) -> Self {
        let native = vlan == vlans.native;
        match vlans.accept {
            VlanAccept::All | VlanAccept::Untagged if native => Self::Plain,
            VlanAccept::All | VlanAccept::Tagged => Self::Tagged(vlan),
            VlanAccept::Untagged => Self::Nowhere,
        }
    }

    /// Returns the VLAN of the tag.
    pub(crate) fn tag(self) -> Option<VlanId> {
        match self {
            Self::Tagged(vlan) => Some(vlan),
            Self::Plain | Self::Nowhere => None,
        }
    }
}

/// Returns the VLAN of a frame from the device and the length of the frame without it. `vnet` describes the frame, and is
/// adjusted.
pub(crate) fn take_vlan(
    vlans: &Vlans,
    vnet: &mut VnetHeader,
    frame: &mut [u8],
) -> Result<(VlanId, usize), DropReason> {
    let tag = Tag::of(frame).filter(|tag| tag.vlan() != 0);
    match (vlans.accept, tag) {
        (VlanAccept::All | VlanAccept::Tagged, Some(tag)) => {
            let vlan = VlanId::new(tag.vlan()).ok_or(DropReason::WrongVlan)?;
            Ok((vlan, remove(vnet, frame)))
        }
        (VlanAccept::All | VlanAccept::Untagged, None) => Ok((vlans.native, frame.len())),
        _ => Err(DropReason::WrongVlan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(number: u16) -> VlanId {
        VlanId::new(number).unwrap()
    }

    fn frame(control: Option<u16>) -> Vec<u8> {
        let tag = control.map(|control| [[0x81, 0], control.to_be_bytes()].concat());
        [&[2; 12][..], &tag.unwrap_or_default(), &[8, 0, 0x45]].concat()
    }

    #[test]
    fn the_device_carries_what_its_setting_accepts() {
        let none = Err(DropReason::WrongVlan);
        // Untagged, priority, native, another, reserved.
        let frames = [None, Some(0xa000), Some(7), Some(9), Some(4095)].map(frame);
        for (accept, expected) in [
            (VlanAccept::All, [Ok((7, 15)), Ok((7, 19)), Ok((7, 15)), Ok((9, 15)), none]),
            (VlanAccept::Tagged, [none, none, Ok((7, 15)), Ok((9, 15)), none]),
            (VlanAccept::Untagged, [Ok((7, 15)), Ok((7, 19)), none, none, none]),
        ] {
            let vlans = Vlans { accept, native: vlan(7) };
            let found = frames.clone().map(|mut frame| {
                let taken = take_vlan(&vlans, &mut VnetHeader::default(), &mut frame);
                taken.map(|(vlan, len)| (vlan.get(), len))
            });
            assert_eq!(found, expected, "{accept:?}");
        }
    }

    #[test]
    fn the_native_vlan_has_no_tag_unless_all_frames_have_one() {
        let of = |accept| {
            let vlans = Vlans { accept, native: vlan(7) };
            [7, 9].map(|number| OnDevice::of(&vlans, vlan(number)))
        };
        let tagged = |number| OnDevice::Tagged(vlan(number));
        assert_eq!(of(VlanAccept::All), [OnDevice::Plain, tagged(9)]);
        assert_eq!(of(VlanAccept::Tagged), [tagged(7), tagged(9)]);
        assert_eq!(of(VlanAccept::Untagged), [OnDevice::Plain, OnDevice::Nowhere]);
    }
}
