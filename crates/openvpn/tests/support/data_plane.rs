use std::collections::{HashMap, HashSet};

use adit_engine::command::{Counters, KeySlot, PeerRates, Traffic};
use adit_engine::{Link, PeerId, VlanId};
use adit_openvpn::data_format::{Command, DataKey, Notice};

/// A data packet, with its peer-id and the key that sealed it.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub wire_id: Option<u32>,
    pub key_id: u8,
    pub key: [u8; 64],
}

/// A data plane that manages keys like the real one, but moves no bytes.
#[derive(Default)]
pub(crate) struct PlaneModel {
    pub peers: HashMap<PeerId, Peer>,
    /// The number of received packets whose key was found.
    pub opened: u64,
    /// The number of received packets whose key was not found.
    pub failed: u64,
    /// The messages sent on the data channel.
    pub sent_data: Vec<Vec<u8>>,
    /// The traffic that this model reports for every peer.
    pub traffic: Traffic,
    /// The number of times that the traffic was read.
    pub traffic_read: u64,
    /// The addresses that have been proven.
    pub admitted: HashSet<Link>,
    /// The answers about stations.
    pub stations: Vec<(PeerId, [u8; 6], bool)>,
}

pub(crate) struct Peer {
    pub link: Link,
    pub wire_id: Option<u32>,
    pub primary: Option<Box<DataKey>>,
    pub secondary: Option<Box<DataKey>>,
    pub routes: Vec<ipnet::IpNet>,
    pub rates: PeerRates,
    pub vlan: Option<VlanId>,
    used: Option<u8>,
}

impl PlaneModel {
    pub(crate) fn apply(&mut self, op: Command) -> Option<Notice> {
        match op {
            Command::AddPeer(id, spec) => {
                let former = self.peers.insert(
                    id,
                    Peer {
                        link: spec.link,
                        wire_id: spec.layout.wire_id,
                        primary: None,
                        secondary: None,
                        routes: Vec::new(),
                        rates: PeerRates::default(),
                        vlan: spec.vlan,
                        used: None,
                    },
                );
                assert!(former.is_none(), "peer {id:?} was added twice");
            }
            Command::DelPeer(id) => {
                self.peers.remove(&id).expect("a peer that is deleted exists");
                return Some(Notice::PeerGone(id, Counters::default()));
            }
            Command::InstallKey(id, slot, key) => *self.peer(id).slot(slot) = Some(key),
            Command::DelKey(id, slot) => *self.peer(id).slot(slot) = None,
            Command::SwapKeys(id) => {
                let peer = self.peer(id);
                std::mem::swap(&mut peer.primary, &mut peer.secondary);
            }
            Command::SetRoutes(id, routes) => self.peer(id).routes = routes,
            Command::SetLink(id, link) => self.peer(id).link = link,
            Command::SendData(_, message) => self.sent_data.push(message),
            Command::AdmitLink(link) => drop(self.admitted.insert(link)),
            Command::DismissLink(link) => drop(self.admitted.remove(&link)),
            Command::ReadTraffic(id) => {
                self.traffic_read += 1;
                return Some(Notice::Traffic(id, self.traffic));
            }
            Command::SetRates(id, rates) => self.peer(id).rates = rates,
            Command::SetKeepalive(..) | Command::SetMtu(..) | Command::ProbePath(..) => {}
            Command::AllowStation(peer, mac, allowed) => self.stations.push((peer, mac, allowed)),
            Command::SetRelay(..)
            | Command::AddSplice(_)
            | Command::DelSplice(_)
            | Command::LimitSplices(_) => unreachable!("OpenVPN has no relays"),
        }
        None
    }

    fn peer(&mut self, id: PeerId) -> &mut Peer {
        self.peers.get_mut(&id).expect("verbs name peers that exist")
    }

    /// Returns one packet to each peer that has a key.
    pub(crate) fn send_to_all(&self) -> Vec<(Link, Datagram)> {
        let datagram = |peer: &Peer| {
            let key = peer.primary.as_ref()?;
            let datagram =
                Datagram { wire_id: peer.wire_id, key_id: key.key_id, key: key.seal.cipher };
            Some((peer.link, datagram))
        };
        self.peers.values().filter_map(datagram).collect()
    }

    pub(crate) fn receive(&mut self, from: Link, datagram: Datagram) -> Vec<Notice> {
        let by_id = datagram.wire_id.map(PeerId);
        let found = self.peers.iter_mut().find(|(id, peer)| match by_id {
            Some(wanted) => **id == wanted,
            None => peer.link.remote() == from.remote(),
        });
        let Some((&id, peer)) = found else {
            self.failed += 1;
            return Vec::new();
        };
        let opens =
            |key: &DataKey| key.key_id == datagram.key_id && key.open.cipher == datagram.key;
        if !peer.primary.iter().chain(&peer.secondary).any(|key| opens(key)) {
            self.failed += 1;
            return Vec::new();
        }
        self.opened += 1;
        let mut notices = Vec::new();
        if peer.used != Some(datagram.key_id) {
            peer.used = Some(datagram.key_id);
            notices.push(Notice::KeyFirstUse(id, datagram.key_id));
        }
        if peer.link.remote() != from.remote() {
            peer.link = from;
            notices.push(Notice::Floated(id, from));
        }
        notices
    }
}

impl Peer {
    fn slot(&mut self, slot: KeySlot) -> &mut Option<Box<DataKey>> {
        match slot {
            KeySlot::Primary => &mut self.primary,
            KeySlot::Secondary => &mut self.secondary,
        }
    }
}
