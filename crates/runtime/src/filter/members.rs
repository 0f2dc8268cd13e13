//! The peers for the names `@client:NAME`, `@node:NAME` and `@group:NAME` in a rule file.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use adit_engine::{PeerAddresses, PeerId};
use adit_filter::IpRange;
use adit_filter::ruleset::Members as Who;
use ipnet::IpNet;

/// The connected clients, or the nodes of a mesh, with their groups and addresses.
#[derive(Debug)]
pub struct Members {
    /// Creates the name of one peer.
    name: fn(String) -> Who,
    peers: BTreeMap<PeerId, PeerAddresses>,
    /// The peers for each name, because a change needs only the peers of one name.
    by_name: HashMap<Who, BTreeSet<PeerId>>,
}

impl Default for Members {
    fn default() -> Self {
        Self { name: Who::Client, peers: BTreeMap::new(), by_name: HashMap::new() }
    }
}

impl Members {
    /// Creates the members of a mesh, which rules call `@node:NAME`.
    pub fn of_nodes() -> Self {
        Self { name: Who::Node, ..Self::default() }
    }

    /// Records that a client has these addresses from now on. Returns the clients and groups whose
    /// addresses changed.
    #[must_use]
    pub fn put(&mut self, addresses: PeerAddresses) -> Vec<Who> {
        let mut changed = self.remove(addresses.peer);
        let names = self.names(&addresses);
        self.enter(addresses.peer, &names);
        changed.extend(names);
        self.peers.insert(addresses.peer, addresses);
        distinct(changed)
    }

    /// Removes a client that has disconnected. Returns the clients and groups whose addresses
    /// changed.
    #[must_use]
    pub fn remove(&mut self, peer: PeerId) -> Vec<Who> {
        let names = self.peers.remove(&peer).map(|client| self.names(&client)).unwrap_or_default();
        self.leave(peer, &names);
        names
    }

    /// Updates the groups of each client; `None` leaves them unchanged. Returns the clients and groups whose addresses
    /// changed.
    #[must_use]
    pub fn regroup(&mut self, groups: impl Fn(&str) -> Option<Vec<String>>) -> Vec<Who> {
        let mut moved = Vec::new();
        for (peer, client) in &mut self.peers {
            let Some(fresh) = groups(&client.name) else { continue };
            if fresh != client.groups {
                let before = names(self.name, client);
                client.groups = fresh;
                moved.push((*peer, before, names(self.name, client)));
            }
        }
        let mut changed = Vec::new();
        for (peer, before, after) in moved {
            self.leave(peer, &before);
            self.enter(peer, &after);
            changed.extend(before);
            changed.extend(after);
        }
        distinct(changed)
    }

    /// Returns the current addresses of a client or group.
    pub fn of(&self, who: &Who) -> Vec<IpNet> {
        let peers = self.by_name.get(who).into_iter().flatten();
        let clients = peers.filter_map(|peer| self.peers.get(peer));
        clients.flat_map(|client| client.prefixes.iter().copied()).collect()
    }

    /// Returns the addresses of a peer that no other session of its client has.
    pub fn alone(&self, peer: PeerId) -> Vec<IpNet> {
        let Some(client) = self.peers.get(&peer) else { return Vec::new() };
        let sessions = self.by_name.get(&(self.name)(client.name.clone())).into_iter().flatten();
        let others: Vec<&PeerAddresses> = sessions
            .filter(|other| **other != peer)
            .filter_map(|other| self.peers.get(other))
            .collect();
        let shared = |net: &&IpNet| others.iter().any(|other| other.prefixes.contains(net));
        client.prefixes.iter().filter(|net| !shared(net)).copied().collect()
    }

    /// Returns all clients or nodes.
    pub fn peers(&self) -> impl Iterator<Item = &PeerAddresses> {
        self.peers.values()
    }

    /// Returns the client or node with this number.
    pub fn peer(&self, peer: PeerId) -> Option<&PeerAddresses> {
        self.peers.get(&peer)
    }

    fn names(&self, client: &PeerAddresses) -> Vec<Who> {
        names(self.name, client)
    }

    fn enter(&mut self, peer: PeerId, names: &[Who]) {
        for who in names {
            self.by_name.entry(who.clone()).or_default().insert(peer);
        }
    }

    fn leave(&mut self, peer: PeerId, names: &[Who]) {
        for who in names {
            if let Some(peers) = self.by_name.get_mut(who) {
                peers.remove(&peer);
                if peers.is_empty() {
                    self.by_name.remove(who);
                }
            }
        }
    }
}

/// Returns the addresses in the filter's form.
pub(super) fn ranges(nets: &[IpNet]) -> Vec<IpRange> {
    nets.iter().map(|net| IpRange::prefix(net.addr(), net.prefix_len())).collect()
}

fn names(name: fn(String) -> Who, client: &PeerAddresses) -> Vec<Who> {
    let groups = client.groups.iter().map(|group| Who::Group(group.clone()));
    std::iter::once(name(client.name.clone())).chain(groups).collect()
}

fn distinct(all: Vec<Who>) -> Vec<Who> {
    let mut seen = BTreeSet::new();
    all.into_iter().filter(|who| seen.insert(who.label())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: u32, name: &str, groups: &[&str], nets: &[&str]) -> PeerAddresses {
        PeerAddresses {
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
        changed.iter().filter_map(Who::label).collect()
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
        // Alice loses a network, so she is recorded again with fewer addresses.
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
    fn what_is_asked_by_name_is_what_all_peers_say() {
        let mut members = Members::default();
        let groups = [&["a"][..], &["a", "b"], &[]];
        for step in 0..400u32 {
            let (peer, name) = (step * 7 % 23, format!("c{}", step * 5 % 11));
            match step % 4 {
                0 => drop(members.remove(PeerId(peer))),
                3 => {
                    let pick = |name: &str| (name.len() + step as usize) % 3;
                    let of = |name: &str| groups[pick(name)].iter().map(ToString::to_string);
                    drop(members.regroup(|name| Some(of(name).collect())));
                }
                at => {
                    let net = format!("10.0.0.{}/32", step % 250);
                    drop(members.put(client(peer, &name, groups[at as usize], &[&net])));
                }
            }
            let naive = |who: &Who| -> Vec<IpNet> {
                let is = |client: &&PeerAddresses| names(Who::Client, client).contains(who);
                let clients = members.peers.values().filter(is);
                clients.flat_map(|client| client.prefixes.iter().copied()).collect()
            };
            let clients = (0..11).map(|at| Who::Client(format!("c{at}")));
            for who in clients.chain(["a", "b"].map(|group| Who::Group(group.into()))) {
                assert_eq!(members.of(&who), naive(&who), "{step} {who:?}");
            }
        }
        let known: Vec<PeerId> = members.peers.keys().copied().collect();
        known.into_iter().for_each(|peer| drop(members.remove(peer)));
        assert!(members.by_name.is_empty());
    }

    #[test]
    fn a_session_leaves_what_another_of_its_client_has() {
        let mut members = Members::default();
        drop(members.put(client(1, "alice", &[], &["10.0.0.1/32", "10.9.0.0/16"])));
        drop(members.put(client(2, "alice", &[], &["10.0.0.1/32"])));
        assert_eq!(members.alone(PeerId(1)), ["10.9.0.0/16".parse().unwrap()]);
        assert_eq!(members.alone(PeerId(2)), []);
        drop(members.remove(PeerId(1)));
        assert_eq!(members.alone(PeerId(2)).len(), 1);
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
