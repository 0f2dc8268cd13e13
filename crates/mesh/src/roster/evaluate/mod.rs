//! The roster as a function of the set of changes.
//!
//! ```text
//!   Changes ─► Order: lanes and clocks, so that "a depends on b" is one comparison
//!           ─► Authority: each signer's right in its own view ─► view of all changes: rights, ended keys, ends of chains
//!           ─► members: admissions that count, names, addresses, subnets
//! ```
//!
//! All steps read the changes in one order, which depends only on the set. So does the result.
//!
//! # Cost
//!
//! Each evaluation reads all changes, not only the new one. A node evaluates once for each batch of changes that arrives. The cost is about
//! that of sorting the changes, plus the number of changes of rights times the number of different views of them (see [`authority`]).
//! Measured once in an unoptimized build, each change naming the head of another chain:
//!
//! | nodes | chains | time |
//! |---|---|---|
//! | 1,000 | 1 | 16 ms |
//! | 1,000 | 100 | 51 ms |
//! | 10,000 | 1 | 0.4 s |
//! | 10,000 | 100 | 0.5 s |
//! | 10,000 | 1,000 | 4 s |
//!
//! # Deviations
//!
//! - A revocation in a branch of a fork counts: see [`revocations`].
//! - Only a more senior admin can choose a branch of a fork, and no admin is senior to the first one of the genesis. If that admin's chain
//!   forks, its changes before the fork count, and another admin must continue.
//! - An inviter can revoke only its own key. Otherwise it could admit another node's key, which costs nothing, and revoke it for good.
//! - If there are fewer admins than the threshold, all of them together reach it.
//! - A revocation by a revoked signer is void if it is after the last change that counts and the revoker had not seen it.
//!   The key that it revoked is then a member again. A revocation that the revoker had seen remains.
//! - A node's `inviter` flag is not announced: it follows from the grants.

mod authority;
mod authorize;
mod members;
mod order;
mod revocations;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_engine::UnixTime;
use ipnet::{IpNet, Ipv4Net};

pub use authorize::{Limit, Refusal};

use self::authority::Authority;
use self::order::Order;
use super::addresses;
use super::chains::Changes;
use super::change::{Action, ChangeHash, Inviter, Right};
use super::node::Label;
use crate::session::{KeyHash, MeshId};

/// The members of a mesh, their rights, and its policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    mesh: MeshId,
    members: BTreeMap<KeyHash, Member>,
    by_name: BTreeMap<Label, KeyHash>,
    by_address: BTreeMap<IpAddr, KeyHash>,
    revoked: BTreeSet<KeyHash>,
    admins: BTreeSet<KeyHash>,
    inviters: BTreeMap<KeyHash, Inviter>,
    threshold: u8,
    policy: Option<[u8; 32]>,
    warnings: Vec<Warning>,
}

/// A node that belongs to the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The hash of the node's key.
    pub key: KeyHash,
    /// The hash of the key that it was admitted with.
    pub first_key: KeyHash,
    /// The signer that admitted it.
    pub admitted_by: KeyHash,
    /// Its name, unless another member has it.
    pub name: Option<Label>,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Its IPv4 address, unless another member has it.
    pub ipv4: Option<Ipv4Addr>,
    /// The networks behind it.
    pub subnets: BTreeSet<IpNet>,
    /// Its groups.
    pub groups: BTreeSet<Label>,
    /// Whether it is a relay for other members.
    pub relay: bool,
    /// Whether other members may send all their traffic through it.
    pub gateway: bool,
    /// Whether OpenVPN apps may be its leaves.
    pub openvpn: bool,
    /// If it is an OpenVPN app, the member through which it is reached.
    pub leaf_of: Option<KeyHash>,
    /// The time until which it is a member.
    pub not_after: Option<UnixTime>,
}

/// A warning about the roster for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// A key is in use in two places.
    #[error("a signer's key is in use twice: revoke it")]
    Fork {
        /// The hash of the signer's key.
        signer: KeyHash,
    },
    /// A change does not count.
    #[error("a change does not count: {reason}")]
    Ignored {
        /// The hash of the change.
        change: ChangeHash,
        /// The reason.
        reason: Refusal,
    },
    /// Two members have the same name, and one of them lost it.
    #[error("the name {name} belongs to another member: rename the node")]
    Name {
        /// The member that lost it.
        member: KeyHash,
        /// The name.
        name: Label,
    },
    /// Two members have the same IPv4 address, and one of them lost it.
    #[error("the address {address} belongs to another member: give the node another one")]
    Address {
        /// The member that lost it.
        member: KeyHash,
        /// The address.
        address: Ipv4Addr,
    },
    /// Two members have overlapping subnets without an admin's consent, and one of them lost its own.
    #[error("the subnet {subnet} overlaps that of another member, which needs an admin")]
    Subnet {
        /// The member that lost the subnet.
        member: KeyHash,
        /// The subnet.
        subnet: IpNet,
    },
    /// An OpenVPN app has no gateway, so it is not a member.
    #[error(
        "the gateway of an OpenVPN app was removed, or serves no apps: remove the app, or make the node a gateway again"
    )]
    Leaf {
        /// The hash of the app's key.
        key: KeyHash,
    },
    /// A node has the same IPv6 address as another one, so it is not a member.
    #[error("a node's key has the same beginning as that of another member: give it a new key")]
    Collision {
        /// The hash of the node's key.
        key: KeyHash,
    },
}

/// How long before a member's `not_after` [`Roster::expiring`] reports it, in seconds.
pub const EXPIRY_WARNING: u64 = 30 * 24 * 3600;

impl Roster {
    /// Evaluates a set of changes.
    pub fn evaluate(changes: &Changes) -> Self {
        let order = Order::new(changes);
        let (authority, view) = Authority::new(&order, changes);
        let mut roster = Self {
            mesh: *changes.mesh(),
            revoked: view.ended.clone(),
            threshold: view.threshold,
            ..Self::default()
        };
        for (key, held) in &view.rights {
            if held.admin.is_some() {
                roster.admins.insert(*key);
            }
            let grant = held.inviter.map(|(grant, _)| order.action(grant));
            if let Some(Action::Grant { right: Right::Inviter(limits), .. }) = grant {
                roster.inviters.insert(*key, limits.clone());
            }
        }
        let forks: BTreeSet<_> = changes.forks().map(|fork| fork.signer).collect();
        roster.warnings.extend(forks.into_iter().map(|signer| Warning::Fork { signer }));
        members::add(&authority, &view, &mut roster);
        roster
    }

    /// Returns all members, by the hashes of their keys.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Returns the member with this key.
    pub fn member(&self, key: &KeyHash) -> Option<&Member> {
        self.members.get(key)
    }

    /// Returns the member with this name.
    pub fn by_name(&self, name: &Label) -> Option<&Member> {
        self.by_name.get(name).and_then(|key| self.member(key))
    }

    /// Returns the member with this address.
    pub fn by_address(&self, address: IpAddr) -> Option<&Member> {
        self.by_address.get(&address).and_then(|key| self.member(key))
    }

    /// Returns the OpenVPN apps reached through this member.
    pub fn leaves_of(&self, gateway: &KeyHash) -> impl Iterator<Item = &Member> {
        self.members.values().filter(move |member| member.leaf_of.as_ref() == Some(gateway))
    }

    /// Returns the keys that were revoked or replaced. They never become valid again.
    pub fn revoked(&self) -> &BTreeSet<KeyHash> {
        &self.revoked
    }

    /// Returns the keys of admins.
    pub fn admins(&self) -> &BTreeSet<KeyHash> {
        &self.admins
    }

    /// Returns the keys of inviters, with their limits.
    pub fn inviters(&self) -> &BTreeMap<KeyHash, Inviter> {
        &self.inviters
    }

    /// Returns the number of admins that must approve important changes.
    pub fn threshold(&self) -> u8 {
        self.threshold
    }

    /// Returns the SHA-256 of the policy.
    pub fn policy(&self) -> Option<[u8; 32]> {
        self.policy
    }

    /// Returns the warnings for an operator.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Returns the members whose membership has ended at this time, or ends within [`EXPIRY_WARNING`].
    pub fn expiring(&self, now: UnixTime) -> impl Iterator<Item = &Member> {
        let soon = now.0.saturating_add(EXPIRY_WARNING);
        self.members().filter(move |member| member.not_after.is_some_and(|end| end.0 <= soon))
    }

    /// Returns a free IPv4 address of a range for a new node.
    pub fn free_ipv4(&self, range: Ipv4Net, key: &KeyHash) -> Option<Ipv4Addr> {
        addresses::free_ipv4(range, key, |at| !self.by_address.contains_key(&at.into()))
    }
}

impl Member {
    /// Returns whether the membership has ended at this time.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        self.not_after.is_some_and(|end| end < now)
    }
}

#[cfg(test)]
mod tests;
