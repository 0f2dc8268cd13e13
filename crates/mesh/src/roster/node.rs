//! The description of a node, as announced by its signer.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;

use adit_engine::UnixTime;
use ipnet::IpNet;

use super::object::{
    ObjectError, bits, flag, net, option, put_bits, put_count, put_net, put_option, sorted,
};
use crate::session::KeyHash;
use crate::wire::Decoder;

/// The length of the longest name, in bytes.
pub const MAX_LABEL: usize = 63;

/// The maximum number of groups of a node, and of allowed groups of an inviter.
pub const MAX_GROUPS: usize = 16;

/// The maximum number of networks behind a node, and of allowed networks of an inviter.
pub const MAX_SUBNETS: usize = 32;

/// A name: a DNS label in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Box<str>);

impl Label {
    /// Returns the name if it is 1 to [`MAX_LABEL`] lower-case letters, digits and inner hyphens.
    pub fn new(name: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let valid = (1..=MAX_LABEL).contains(&name.len())
            && name.bytes().all(plain)
            && !name.starts_with('-')
            && !name.ends_with('-');
        valid.then(|| Self(name.into()))
    }

    /// Returns the text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        out.extend(self.0.bytes());
    }

    pub(crate) fn read(from: &mut Decoder<'_>) -> Result<Self, ObjectError> {
        let len = usize::from(from.u8()?);
        let bytes = from.take(len)?;
        std::str::from_utf8(bytes).ok().and_then(Self::new).ok_or(ObjectError::Label)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name, addresses and roles of a node. Its IPv6 address is derived from its first key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The name of the node.
    pub name: Label,
    /// The IPv4 address of the node.
    pub ipv4: Option<Ipv4Addr>,
    /// The networks behind the node, at most [`MAX_SUBNETS`].
    pub subnets: BTreeSet<IpNet>,
    /// The groups of the node, at most [`MAX_GROUPS`].
    pub groups: BTreeSet<Label>,
    /// Whether the node is a relay for other members.
    pub relay: bool,
    /// Whether other members may send all their traffic through the node.
    pub gateway: bool,
    /// Whether OpenVPN apps may be leaves of the node, which then runs a server for them.
    pub openvpn: bool,
    /// The node whose leaf this is. A leaf is an OpenVPN app, which has no sessions with members. A leaf has no
    /// networks and no roles.
    pub leaf_of: Option<KeyHash>,
    /// The time until which the node is a member.
    pub not_after: Option<UnixTime>,
}

impl NodeInfo {
    /// Returns a node with a name and nothing else.
    pub fn named(name: Label) -> Self {
        Self {
            name,
            ipv4: None,
            subnets: BTreeSet::new(),
            groups: BTreeSet::new(),
            relay: false,
            gateway: false,
            openvpn: false,
            leaf_of: None,
            not_after: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), ObjectError> {
        check_groups(&self.groups)?;
        check_subnets(&self.subnets)?;
        let has_role = self.relay || self.gateway || self.openvpn;
        match self.leaf_of {
            Some(_) if has_role || !self.subnets.is_empty() => Err(ObjectError::Leaf),
            _ => Ok(()),
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        put_option(self.ipv4, out, |address, out| out.extend(address.octets()));
        put_subnets(&self.subnets, out);
        put_groups(&self.groups, out);
        out.push(self.relay.into());
        put_bits([self.gateway, self.openvpn, self.leaf_of.is_some()], out);
        out.extend(self.leaf_of.iter().flatten());
        put_option(self.not_after, out, |time, out| out.extend(time.0.to_be_bytes()));
    }

    pub(super) fn read(from: &mut Decoder<'_>) -> Result<Self, ObjectError> {
        let name = Label::read(from)?;
        let ipv4 = option(from, |from| Ok(Ipv4Addr::from(from.array::<4>()?)))?;
        let subnets = read_subnets(from)?;
        let groups = read_groups(from)?;
        let relay = flag(from)?;
        let [gateway, openvpn, is_leaf] = bits(from)?;
        let leaf_of = if is_leaf { Some(from.array()?) } else { None };
        let not_after = option(from, read_time)?;
        Ok(Self { name, ipv4, subnets, groups, relay, gateway, openvpn, leaf_of, not_after })
    }
}

pub(super) fn read_time(from: &mut Decoder<'_>) -> Result<UnixTime, ObjectError> {
    Ok(UnixTime(from.u64()?))
}

pub(super) fn put_groups(groups: &BTreeSet<Label>, out: &mut Vec<u8>) {
    put_count(groups.len(), out);
    groups.iter().for_each(|group| group.put(out));
}

pub(super) fn read_groups(from: &mut Decoder<'_>) -> Result<BTreeSet<Label>, ObjectError> {
    sorted(from, MAX_GROUPS, "groups", Label::read)
}

pub(super) fn check_groups(groups: &BTreeSet<Label>) -> Result<(), ObjectError> {
    match groups.len() {
        ..=MAX_GROUPS => Ok(()),
        more => Err(ObjectError::TooMany(more, "groups")),
    }
}

pub(super) fn put_subnets(subnets: &BTreeSet<IpNet>, out: &mut Vec<u8>) {
    put_count(subnets.len(), out);
    subnets.iter().for_each(|subnet| put_net(*subnet, out));
}

pub(super) fn read_subnets(from: &mut Decoder<'_>) -> Result<BTreeSet<IpNet>, ObjectError> {
    sorted(from, MAX_SUBNETS, "subnets", net)
}

pub(super) fn check_subnets(subnets: &BTreeSet<IpNet>) -> Result<(), ObjectError> {
    if subnets.len() > MAX_SUBNETS {
        return Err(ObjectError::TooMany(subnets.len(), "subnets"));
    }
    let canonical = subnets.iter().all(|subnet| subnet.trunc() == *subnet);
    if canonical { Ok(()) } else { Err(ObjectError::Network) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_dns_labels() {
        let long = "a".repeat(MAX_LABEL);
        for good in ["a", "web1", "a-b", "0", &long] {
            assert_eq!(Label::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "\u{e9}", &format!("{long}a")] {
            assert_eq!(Label::new(bad), None, "{bad}");
        }
    }
}
