//! Checks whether a signer had the right to make a change, in its own view.

use adit_engine::UnixTime;
use ipnet::IpNet;

use super::authority::{Authority, View};
use super::order::{Order, Rank};
use crate::roster::addresses::ipv6_net;
use crate::roster::change::{Action, ChangeHash, Inviter, Revocation, Right, Rotation};
use crate::roster::node::NodeInfo;
use crate::session::KeyHash;

/// The right that a change was signed with.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    /// The signer's seniority.
    pub(super) rank: Rank,
    /// Whether the signer was an admin.
    pub(super) by_admin: bool,
    /// The number of admins that must approve the change, including an admin that signs it. 0 if the signer's own right is enough.
    pub(super) needs: u8,
    /// The threshold that the signer saw.
    pub(super) threshold: u8,
}

/// The part of its limits that a chain has used, up to one of its changes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Usage {
    /// The latest time in the chain.
    ///
    /// Times are those of the signer's own clock. An inviter that sets it back can admit nodes after its right has expired, until its key
    /// is revoked.
    time: UnixTime,
    /// The grant under which the last node was admitted, and the number of nodes admitted under it.
    admitted: Option<(usize, u32)>,
}

impl Usage {
    /// Returns the usage of a change's predecessors, with its own time.
    pub(super) fn after(order: &Order<'_>, usages: &[Self], at: usize) -> Self {
        let time = order.change(at).body().time;
        match order.previous(at).map(|previous| usages[previous]) {
            None => Self { time, admitted: None },
            Some(previous) => Self { time: time.max(previous.time), ..previous },
        }
    }
}

/// The reason why a change is not valid.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// The signer had no right to make such a change.
    #[error("its signer had no right to it")]
    NoRight,
    /// An inviter exceeded one of its limits.
    #[error("it is beyond the inviter's limit on {0}")]
    Limit(Limit),
    /// The IPv4 address is outside the ranges of the mesh.
    #[error("its address is outside the ranges of the mesh")]
    Address,
    /// A subnet overlaps a range of the mesh.
    #[error("its subnet overlaps the addresses of the mesh")]
    Subnet,
    /// The node has a default route but is not a gateway.
    #[error("it has a default route and is no gateway")]
    DefaultRoute,
    /// A revocation names a last change that its signer had not seen, or that another key signed.
    #[error("the last change that it names is not one of the key, or had not been seen")]
    Last,
    /// A threshold is higher than the number of admins.
    #[error("the threshold is higher than the number of admins")]
    Threshold,
    /// A rotation gives rights to a key that has rights of its own.
    #[error("the new key is in use")]
    KeyInUse,
    /// The signer's key was revoked or replaced, and the change is after its last valid one.
    #[error("its signer's key was revoked or replaced before it")]
    Ended,
    /// The signer's chain has a fork before the change.
    #[error("its signer's chain has two branches")]
    Forked,
    /// Not enough admins approve the change.
    #[error("not enough admins have approved it")]
    Unapproved,
}

/// A limit of an inviter.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The groups of its nodes.
    Groups,
    /// The range of their IPv4 addresses.
    Range,
    /// Their subnets.
    Subnets,
    /// Whether they may be relays.
    Relay,
    /// Whether they may be gateways.
    Gateway,
    /// Whether it may admit OpenVPN apps as leaves of its own node, and nodes that have leaves.
    OpenVpn,
    /// Their number.
    Count,
    /// The time until which it may admit nodes.
    Until,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Groups => "groups",
            Self::Range => "addresses",
            Self::Subnets => "subnets",
            Self::Relay => "relays",
            Self::Gateway => "gateways",
            Self::OpenVpn => "OpenVPN apps",
            Self::Count => "the number of nodes",
            Self::Until => "time",
        })
    }
}

/// Determines the right that a change was signed with.
pub(super) fn authorize(
    authority: &Authority<'_, '_>,
    view: &View,
    at: usize,
    usage: &mut Usage,
) -> Result<Standing, Refusal> {
    let order = authority.order;
    let signer = order.signer(at);
    let held = view.rights.get(&signer).ok_or(Refusal::NoRight)?;
    let by_inviter = held.inviter.map(|(_, rank)| rank);
    let standing = Standing {
        rank: held.admin.or(by_inviter).ok_or(Refusal::NoRight)?,
        by_admin: held.admin.is_some(),
        needs: 0,
        threshold: view.threshold,
    };
    let action = order.action(at);
    if let Action::Admit { node, .. } | Action::SetNames { node, .. } = action {
        check_node(authority, node)?;
    }
    if held.admin.is_none() {
        return match action {
            Action::Admit { .. } | Action::SetNames { .. } => {
                let (grant, _) = held.inviter.ok_or(Refusal::NoRight)?;
                as_inviter(order, at, grant, usage)?;
                Ok(standing)
            }
            Action::Revoke(Revocation { key, last, .. })
            | Action::Rotate(Rotation { old: key, last, .. })
                if *key == signer =>
            {
                as_end(authority, view, at, (*key, *last), standing)
            }
            _ => Err(Refusal::NoRight),
        };
    }
    match action {
        Action::Admit { .. } | Action::SetNames { .. } | Action::Approve(_) => Ok(standing),
        Action::Grant { right, .. } => {
            let outside = matches!(right, Right::Inviter(Inviter { range: Some(range), .. })
                if !authority.genesis.ranges.iter().any(|mesh| mesh.contains(range)));
            if outside {
                return Err(Refusal::Address);
            }
            Ok(Standing { needs: view.threshold, ..standing })
        }
        Action::SetPolicy(_) => Ok(Standing { needs: view.threshold, ..standing }),
        Action::SetThreshold(new) => {
            let admins = view.rights.values().filter(|held| held.admin.is_some()).count();
            if usize::from(*new) > admins {
                return Err(Refusal::Threshold);
            }
            Ok(Standing { needs: view.threshold.max(*new), ..standing })
        }
        Action::Revoke(Revocation { key, last, .. }) => {
            as_end(authority, view, at, (*key, *last), standing)
        }
        Action::Rotate(Rotation { old, new, last }) => {
            if view.rights.contains_key(new) || old == new {
                return Err(Refusal::KeyInUse);
            }
            as_end(authority, view, at, (*old, *last), standing)
        }
    }
}

/// Checks a change that ends a key: a revocation or a rotation.
///
/// Ending an admin's key needs as many approvals as the threshold, unless that admin resigns. So does ending a chain
/// before the last change that the signer has seen.
fn as_end(
    authority: &Authority<'_, '_>,
    view: &View,
    at: usize,
    (key, last): (KeyHash, Option<ChangeHash>),
    standing: Standing,
) -> Result<Standing, Refusal> {
    let order = authority.order;
    let number = match last {
        None => 0,
        Some(last) => {
            let last = order.find(&last).ok_or(Refusal::Last)?;
            if order.signer(last) != key || !order.is_before(last, at) {
                return Err(Refusal::Last);
            }
            order.number(last)
        }
    };
    let seen = order.seen_number(at, &key);
    let seen = view.prefixes.get(&key).map_or(seen, |prefix| seen.min(*prefix));
    let resigns = order.signer(at) == key && matches!(order.action(at), Action::Revoke(_));
    let is_admin = view.rights.get(&key).is_some_and(|held| held.admin.is_some());
    let important = number < seen || (is_admin && !resigns);
    Ok(Standing { needs: if important { view.threshold } else { 0 }, ..standing })
}

fn check_node(authority: &Authority<'_, '_>, node: &NodeInfo) -> Result<(), Refusal> {
    let genesis = authority.genesis;
    if node.ipv4.is_some_and(|address| !genesis.has_ipv4(address)) {
        return Err(Refusal::Address);
    }
    for subnet in &node.subnets {
        if subnet.prefix_len() == 0 {
            if !node.gateway {
                return Err(Refusal::DefaultRoute);
            }
            continue;
        }
        let own = IpNet::from(ipv6_net(&authority.mesh));
        if genesis.overlaps(*subnet) || own.contains(subnet) || subnet.contains(&own) {
            return Err(Refusal::Subnet);
        }
    }
    Ok(())
}

/// Checks an inviter's change against the limits of its grant.
fn as_inviter(
    order: &Order<'_>,
    at: usize,
    grant: usize,
    usage: &mut Usage,
) -> Result<(), Refusal> {
    let (Action::Admit { node, .. } | Action::SetNames { node, .. }) = order.action(at) else {
        return Err(Refusal::NoRight);
    };
    let Action::Grant { right: Right::Inviter(limits), .. } = order.action(grant) else {
        return Err(Refusal::NoRight);
    };
    let in_range = |address| limits.range.is_some_and(|range| range.contains(&address));
    let allowed = |subnet: &IpNet| limits.subnets.iter().any(|within| within.contains(subnet));
    let limit = |limit| Err(Refusal::Limit(limit));
    if !node.groups.is_subset(&limits.groups) {
        return limit(Limit::Groups);
    }
    if node.ipv4.is_some_and(|address| !in_range(address)) {
        return limit(Limit::Range);
    }
    if !node.subnets.iter().all(allowed) {
        return limit(Limit::Subnets);
    }
    if node.relay && !limits.relay {
        return limit(Limit::Relay);
    }
    if node.gateway && !limits.gateway {
        return limit(Limit::Gateway);
    }
    let is_own_leaf = |gateway: KeyHash| limits.leaves && gateway == order.signer(at);
    if node.openvpn || !node.leaf_of.is_none_or(is_own_leaf) {
        return limit(Limit::OpenVpn);
    }
    if limits.until.is_some_and(|until| usage.time > until) {
        return limit(Limit::Until);
    }
    if matches!(order.action(at), Action::Admit { .. }) {
        let admitted = usage.admitted.filter(|(under, _)| *under == grant);
        let count = admitted.map_or(0, |(_, count)| count);
        if count >= limits.count {
            return limit(Limit::Count);
        }
        usage.admitted = Some((grant, count.saturating_add(1)));
    }
    Ok(())
}
