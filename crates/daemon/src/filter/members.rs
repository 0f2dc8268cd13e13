//! Who is behind the names `@client:NAME` and `@group:NAME` of a rule file.

use std::collections::{BTreeMap, BTreeSet};

use adit_engine::PeerId;
use adit_filter::IpRange;
use adit_filter::ruleset::Members as Who;
use adit_openvpn::server::Addresses;
use ipnet::IpNet;

/// The connected clients with their groups and addresses.
#[derive(Debug, Default)]
pub struct Members {
    peers: BTreeMap<PeerId, Addresses>,
}

impl Members {
    /// A client has these addresses from now on. Returns whose addresses changed.
    #[must_use]
    pub fn put(&mut self, addresses: Addresses) -> Vec<Who> {
        let mut changed = self.remove(addresses.peer);
        changed.extend(names(&addresses));
        self.peers.insert(addresses.peer, addresses);
        distinct(changed)
    }

    /// A client is gone. Returns whose addresses changed.
    #[must_use]
    pub fn remove(&mut self, peer: PeerId) -> Vec<Who> {
        self.peers.remove(&peer).as_ref().map(names).unwrap_or_default()
    }

    /// Asks again which groups each client is in; `None`: as before. Returns whose addresses changed.
    #[must_use]
    pub fn regroup(&mut self, groups: impl Fn(&str) -> Option<Vec<String>>) -> Vec<Who> {
        let mut changed = Vec::new();
        for client in self.peers.values_mut() {
            let Some(fresh) = groups(&client.name) else { continue };
            if fresh != client.groups {
                changed.extend(names(client));
                client.groups = fresh;
                changed.extend(names(client));
            }
        }
        distinct(changed)
    }

    /// The addresses of a client or group now.
    pub fn of(&self, who: &Who) -> Vec<IpNet> {
        let of = |client: &&Addresses| match who {
            Who::Client(name) => client.name == *name,
            Who::Group(name) => client.groups.contains(name),
            Who::Fixed(_) => false,
        };
        self.peers.values().filter(of).flat_map(|client| client.prefixes.iter().copied()).collect()
    }
}

/// As the filter wants them.
pub(super) fn ranges(nets: &[IpNet]) -> Vec<IpRange> {
    nets.iter().map(|net| IpRange::prefix(net.addr(), net.prefix_len())).collect()
}

/// A name as rule files write it.
pub(super) fn label(who: &Who) -> Option<String> {
    match who {
        Who::Client(name) => Some(format!("@client:{name}")),
        Who::Group(name) => Some(format!("@group:{name}")),
        Who::Fixed(_) => None,
    }
}

fn names(client: &Addresses) -> Vec<Who> {
    let groups = client.groups.iter().map(|group| Who::Group(group.clone()));
    std::iter::once(Who::Client(client.name.clone())).chain(groups).collect()
}

fn distinct(all: Vec<Who>) -> Vec<Who> {
    let mut seen = BTreeSet::new();
    all.into_iter().filter(|who| seen.insert(label(who))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: u32, name: &str, groups: &[&str], nets: &[&str]) -> Addresses {
        Addresses {
            peer: PeerId(peer),
            name: name.into(),
            groups: groups.iter().map(ToString::to_string).collect(),
            prefixes: nets.iter().map(|net| net.parse().unwrap()).collect(),
        }
    }

    fn of(members: &Members, label: &str) -> Vec<String> {
        let (kind, name) = label.split_once(':').unwrap();
        let who = match kind {
            "@client" => Who::Client(name.into()),
            _ => Who::Group(name.into()),
        };
        members.of(&who).iter().map(ToString::to_string).collect()
    }

    fn labels(changed: &[Who]) -> Vec<String> {
        changed.iter().filter_map(label).collect()
    }

    #[test]
    fn names_follow_who_connects_changes_and_leaves() {
        let mut members = Members::default();
        let alice = client(1, "alice", &["staff"], &["10.8.0.2/32", "10.50.0.0/16"]);
        assert_eq!(labels(&members.put(alice)), ["@client:alice", "@group:staff"]);
        let bob = client(2, "bob", &["staff", "ops"], &["10.8.0.3/32", "fd00::3/128"]);
        let changed = members.put(bob);
        assert_eq!(labels(&changed), ["@client:bob", "@group:staff", "@group:ops"]);
        assert_eq!(of(&members, "@client:alice"), ["10.8.0.2/32", "10.50.0.0/16"]);
        assert_eq!(of(&members, "@group:staff").len(), 4);
        assert!(of(&members, "@group:nobody").is_empty());
        // A network moves: the same client again, with less.
        let changed = members.put(client(1, "alice", &["staff"], &["10.8.0.2/32"]));
        assert_eq!(labels(&changed), ["@client:alice", "@group:staff"]);
        assert_eq!(of(&members, "@client:alice"), ["10.8.0.2/32"]);
        assert_eq!(labels(&members.remove(PeerId(1))), ["@client:alice", "@group:staff"]);
        assert_eq!(of(&members, "@group:staff"), ["10.8.0.3/32", "fd00::3/128"]);
        assert!(of(&members, "@client:alice").is_empty() && members.remove(PeerId(1)).is_empty());
    }

    #[test]
    fn a_client_changes_groups_while_it_is_connected() {
        let mut members = Members::default();
        let _ = members.put(client(1, "alice", &["staff"], &["10.8.0.2/32"]));
        let _ = members.put(client(2, "bob", &["staff"], &["10.8.0.3/32"]));
        let now = |name: &str| match name {
            "alice" => Some(vec!["guests".to_owned()]),
            _ => None,
        };
        let changed = members.regroup(now);
        assert_eq!(labels(&changed), ["@client:alice", "@group:staff", "@group:guests"]);
        assert_eq!(of(&members, "@group:staff"), ["10.8.0.3/32"]);
        assert_eq!(of(&members, "@group:guests"), ["10.8.0.2/32"]);
        assert!(members.regroup(now).is_empty(), "nothing changed");
    }

    #[test]
    fn two_sessions_of_one_name_are_one_client() {
        let mut members = Members::default();
        let _ = members.put(client(1, "alice", &[], &["10.8.0.2/32"]));
        let _ = members.put(client(2, "alice", &[], &["10.8.0.3/32"]));
        assert_eq!(of(&members, "@client:alice"), ["10.8.0.2/32", "10.8.0.3/32"]);
        let _ = members.remove(PeerId(1));
        assert_eq!(of(&members, "@client:alice"), ["10.8.0.3/32"]);
    }

    #[test]
    fn prefixes_become_ranges() {
        let nets: Vec<IpNet> = ["10.50.3.0/16", "fd00::/127"].map(|n| n.parse().unwrap()).into();
        let [four, six] = &ranges(&nets)[..] else { panic!() };
        assert_eq!(
            four.first.to_string() + "-" + &four.last.to_string(),
            "10.50.0.0-10.50.255.255"
        );
        assert_eq!(six.first.to_string() + "-" + &six.last.to_string(), "fd00::-fd00::1");
    }
}
