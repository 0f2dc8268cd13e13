//! The members, and which of them gets a name, address or subnet that several claim.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::authority::{Authority, View};
use super::order::{Order, Rank};
use super::{Member, Refusal, Roster, Warning};
use crate::roster::addresses::ipv6_of;
use crate::roster::change::{Action, Revocation, Rotation};
use crate::roster::node::NodeInfo;
use crate::session::KeyHash;

/// A change with its signer's seniority.
type Claim = (usize, Rank);

/// An admitted node, before conflicts are settled.
struct Candidate<'a> {
    first_key: KeyHash,
    key: KeyHash,
    /// The key and its predecessors.
    keys: Vec<KeyHash>,
    admit: Claim,
    /// The change with its current description.
    info: Claim,
    node: &'a NodeInfo,
    by_admin: bool,
    /// The changes that gave it its name and its IPv4 address, which it has kept without interruption.
    named: Claim,
    addressed: Claim,
}

/// Adds the members, the policy and the warnings to a roster.
pub(super) fn add(authority: &Authority<'_, '_>, view: &View, roster: &mut Roster) {
    let order = authority.order;
    let all: Vec<_> = (0..order.len()).collect();
    let counting: BTreeSet<_> = view.pins.values().flatten().map(|pin| pin.by).collect();
    let mut policy = None;
    for at in all.iter().copied() {
        let result = match order.action(at) {
            Action::Revoke(_) | Action::Rotate(_) if counting.contains(&at) => continue,
            Action::Revoke(_) | Action::Rotate(_) => {
                authority.in_force(view, &all, at).and(Err(Refusal::Ended))
            }
            _ => authority.in_force(view, &all, at),
        };
        match (result, order.action(at), &authority.standings[at]) {
            (Err(reason), ..) => {
                let change = order.change(at).hash();
                roster.warnings.push(Warning::Ignored { change, reason });
            }
            (Ok(()), Action::SetPolicy(hash), Ok(standing)) => {
                let new = (at, standing.rank);
                if policy.is_none_or(|(old, _)| order.replaces(old, new)) {
                    policy = Some((new, *hash));
                }
            }
            _ => {}
        }
    }
    roster.policy = policy.map(|(_, hash)| hash);
    let mut candidates = candidates(authority, view, &all, &counting);
    refuse_collisions(order, &mut candidates, roster);
    refuse_orphans(&mut candidates, roster);
    settle(order, &candidates, roster);
}

/// Returns the admitted nodes that were not revoked.
fn candidates<'a>(
    authority: &Authority<'_, 'a>,
    view: &View,
    all: &[usize],
    counting: &BTreeSet<usize>,
) -> Vec<Candidate<'a>> {
    let order = authority.order;
    let uninvited: BTreeSet<_> = counting
        .iter()
        .filter_map(|at| match order.action(*at) {
            Action::Revoke(Revocation { key, with_invited: true, .. }) => Some(*key),
            _ => None,
        })
        .collect();
    let mut admits = BTreeMap::<KeyHash, Claim>::new();
    let mut described = BTreeMap::<KeyHash, Vec<usize>>::new();
    for at in all.iter().copied().filter(|at| authority.stands(view, *at).is_ok()) {
        let Ok(standing) = &authority.standings[at] else { continue };
        match order.action(at) {
            Action::Admit { key, .. } if !uninvited.contains(&order.signer(at)) => {
                hold(order, &mut admits, *key, (at, standing.rank));
            }
            Action::SetNames { key, .. } => described.entry(*key).or_default().push(at),
            _ => {}
        }
    }
    let successors = successors(authority, view, all, &admits);
    let candidate = |(first_key, admit): (&KeyHash, &Claim)| {
        let mut keys = vec![*first_key];
        while let Some(next) = keys.last().and_then(|key| successors.get(key)) {
            if keys.contains(next) {
                break;
            }
            keys.push(*next);
        }
        let key = *keys.last()?;
        if view.ended.contains(&key) {
            return None;
        }
        let changes = keys.iter().filter_map(|key| described.get(key)).flatten().copied();
        let changes = changes.collect();
        describe(authority, *first_key, keys, *admit, changes)
    };
    admits.iter().filter_map(candidate).collect()
}

/// Returns the key that follows each key that was replaced. No two keys have the same successor.
fn successors(
    authority: &Authority<'_, '_>,
    view: &View,
    all: &[usize],
    admits: &BTreeMap<KeyHash, Claim>,
) -> BTreeMap<KeyHash, KeyHash> {
    let order = authority.order;
    let mut new_keys = BTreeMap::new();
    for at in authority.transfers(all, view).into_values() {
        let Action::Rotate(Rotation { new, .. }) = order.action(at) else { continue };
        let Ok(standing) = &authority.standings[at] else { continue };
        if !admits.contains_key(new) {
            hold(order, &mut new_keys, *new, (at, standing.rank));
        }
    }
    let pair = |(new, (at, _)): (KeyHash, Claim)| match order.action(at) {
        Action::Rotate(Rotation { old, .. }) => Some((*old, new)),
        _ => None,
    };
    new_keys.into_iter().filter_map(pair).collect()
}

/// Returns a node with its current description, from an admin or from the inviter that admitted it.
fn describe<'a>(
    authority: &Authority<'_, 'a>,
    first_key: KeyHash,
    keys: Vec<KeyHash>,
    admit: Claim,
    mut changes: Vec<usize>,
) -> Option<Candidate<'a>> {
    let order = authority.order;
    let claim = |at: usize| Some((at, authority.standings[at].as_ref().ok()?.rank));
    let by_admin = |at: usize| authority.standings[at].as_ref().is_ok_and(|it| it.by_admin);
    changes.retain(|at| {
        by_admin(*at) || claim(*at).is_some_and(|(_, rank)| rank.origin == admit.1.origin)
    });
    changes.push(admit.0);
    changes.sort_unstable();
    let mut info = admit;
    for at in &changes {
        let new = claim(*at)?;
        if *at != admit.0 && order.replaces(info, new) {
            info = new;
        }
    }
    let node = |at: usize| match order.action(at) {
        Action::Admit { node, .. } | Action::SetNames { node, .. } => Some(node),
        _ => None,
    };
    let current = node(info.0)?;
    changes.retain(|at| *at == info.0 || order.is_before(*at, info.0));
    let since = |same: &dyn Fn(&NodeInfo) -> bool| {
        let unbroken = changes.iter().rev().take_while(|at| node(**at).is_some_and(same));
        unbroken.last().copied().and_then(claim)
    };
    Some(Candidate {
        first_key,
        key: *keys.last()?,
        keys,
        admit,
        info,
        node: current,
        by_admin: by_admin(info.0),
        named: since(&|node| node.name == current.name)?,
        addressed: since(&|node| node.ipv4 == current.ipv4)?,
    })
}

/// Grants the claim unless another node already holds it.
fn hold<T: Ord>(order: &Order<'_>, held: &mut BTreeMap<T, Claim>, what: T, claim: Claim) {
    let holder = held.entry(what).or_insert(claim);
    if !order.holds(*holder, claim) {
        *holder = claim;
    }
}

/// Removes nodes that have the IPv6 address of another one.
fn refuse_collisions(order: &Order<'_>, candidates: &mut Vec<Candidate<'_>>, roster: &mut Roster) {
    let address = |candidate: &Candidate<'_>| {
        let (bytes, _) = candidate.first_key.split_at(8);
        <[u8; 8]>::try_from(bytes).unwrap_or_default()
    };
    let mut held = BTreeMap::new();
    for candidate in candidates.iter() {
        hold(order, &mut held, address(candidate), candidate.admit);
    }
    candidates.retain(|candidate| {
        let holds = held.get(&address(candidate)) == Some(&candidate.admit);
        if !holds {
            roster.warnings.push(Warning::Collision { key: candidate.key });
        }
        holds
    });
}

/// Returns the members that may have leaves, by their current and former keys.
fn gateways_for_apps(candidates: &[Candidate<'_>]) -> BTreeMap<KeyHash, KeyHash> {
    let gateways = candidates.iter().filter(|candidate| candidate.node.openvpn);
    gateways.flat_map(|gateway| gateway.keys.iter().map(|key| (*key, gateway.key))).collect()
}

/// Removes the leaves of nodes that are not members, or have no leaves. They do not hold names or addresses either.
fn refuse_orphans(candidates: &mut Vec<Candidate<'_>>, roster: &mut Roster) {
    let gateways = gateways_for_apps(candidates);
    candidates.retain(|candidate| {
        let has_gateway = candidate.node.leaf_of.is_none_or(|node| gateways.contains_key(&node));
        if !has_gateway {
            roster.warnings.push(Warning::Leaf { key: candidate.key });
        }
        has_gateway
    });
}

/// Assigns names, addresses and subnets, and adds the members.
fn settle(order: &Order<'_>, candidates: &[Candidate<'_>], roster: &mut Roster) {
    let (mut names, mut addresses) = (BTreeMap::new(), BTreeMap::new());
    for candidate in candidates {
        hold(order, &mut names, &candidate.node.name, candidate.named);
        if let Some(address) = candidate.node.ipv4 {
            hold(order, &mut addresses, address, candidate.addressed);
        }
    }
    let lost = lost_subnets(order, candidates);
    let gateways = gateways_for_apps(candidates);
    for candidate in candidates {
        let (key, node) = (candidate.key, candidate.node);
        let name = Some(&node.name).filter(|name| names.get(name) == Some(&candidate.named));
        if name.is_none() {
            roster.warnings.push(Warning::Name { member: key, name: node.name.clone() });
        }
        let ipv4 = node.ipv4.filter(|at| addresses.get(at) == Some(&candidate.addressed));
        if let (Some(address), None) = (node.ipv4, ipv4) {
            roster.warnings.push(Warning::Address { member: key, address });
        }
        let mut subnets = node.subnets.clone();
        for subnet in lost.get(&key).into_iter().flatten() {
            subnets.remove(subnet);
            roster.warnings.push(Warning::Subnet { member: key, subnet: *subnet });
        }
        let ipv6 = ipv6_of(&roster.mesh, &candidate.first_key);
        roster.by_address.insert(ipv6.into(), key);
        roster.by_address.extend(ipv4.map(|address| (address.into(), key)));
        roster.by_name.extend(name.map(|name| (name.clone(), key)));
        let member = Member {
            key,
            first_key: candidate.first_key,
            admitted_by: order.signer(candidate.admit.0),
            name: name.cloned(),
            ipv6,
            ipv4,
            subnets,
            groups: node.groups.clone(),
            relay: node.relay,
            gateway: node.gateway,
            openvpn: node.openvpn,
            leaf_of: node.leaf_of.and_then(|key| gateways.get(&key).copied()),
            not_after: node.not_after,
        };
        roster.members.insert(key, member);
    }
}

/// Returns the subnets that members lose. A subnet announced by an inviter is lost if it overlaps one announced by an admin who had not
/// seen it, or one of an earlier or more senior inviter. Default routes may overlap.
fn lost_subnets(
    order: &Order<'_>,
    candidates: &[Candidate<'_>],
) -> BTreeMap<KeyHash, BTreeSet<IpNet>> {
    let mut lost = BTreeMap::<_, BTreeSet<_>>::new();
    let mut accepted = BTreeMap::<IpNet, Vec<&Candidate<'_>>>::new();
    let mut in_order: Vec<_> = candidates.iter().collect();
    in_order.sort_unstable_by_key(|candidate| (!candidate.by_admin, candidate.info.0));
    for candidate in in_order {
        for subnet in candidate.node.subnets.iter().filter(|subnet| subnet.prefix_len() > 0) {
            if !candidate.by_admin {
                let others = overlapping(&accepted, *subnet);
                let others = others.filter(|(_, other)| other.key != candidate.key);
                let (mut yields, mut beaten) = (false, Vec::new());
                for (net, other) in others {
                    if other.by_admin {
                        yields |= !order.is_before(candidate.info.0, other.info.0);
                    } else if order.holds(other.info, candidate.info) {
                        yields = true;
                    } else {
                        beaten.push((net, other.key));
                    }
                }
                if yields {
                    lost.entry(candidate.key).or_default().insert(*subnet);
                    continue;
                }
                for (net, key) in beaten {
                    lost.entry(key).or_default().insert(net);
                    if let Some(holders) = accepted.get_mut(&net) {
                        holders.retain(|holder| holder.key != key);
                    }
                }
            }
            accepted.entry(*subnet).or_default().push(candidate);
        }
    }
    lost
}

/// Returns the entries whose network contains this one or is in it. A network sorts before the networks that it contains.
fn overlapping<'m, 'c>(
    accepted: &'m BTreeMap<IpNet, Vec<&'c Candidate<'c>>>,
    subnet: IpNet,
) -> impl Iterator<Item = (IpNet, &'c Candidate<'c>)> + use<'m, 'c> {
    let wider = std::iter::successors(subnet.supernet(), IpNet::supernet);
    let wider = wider.filter_map(|net| Some((net, accepted.get(&net)?)));
    let inner = accepted.range(subnet..).take_while(move |(net, _)| subnet.contains(*net));
    let inner = inner.map(|(net, holders)| (*net, holders));
    wider.chain(inner).flat_map(|(net, holders)| holders.iter().map(move |holder| (net, *holder)))
}
