//! The datagrams that the data plane relays between other nodes, and those that others relay to this one.
//!
//! The node relays the first datagrams from an address between two nodes. Then the plane gets a splice for those that follow, as long as the
//! node would send them to a confirmed address by UDP. The plane relays whole trains; those with a datagram that the node would send in
//! another way, or not at all, come up.

use std::collections::{BTreeSet, HashMap};

use adit_engine::command::{Splice, SpliceId, SpliceLabel, SplicedLengths};
use adit_engine::{Instant, PeerId};
use adit_tinc::name::NodeName;
use adit_tinc::node::{Node, Transit, TransitPath};
use adit_tinc_data::packet::OVERHEAD;
use adit_tinc_data::{Command, Plane};

/// The number of splices. Datagrams without one are relayed by the node.
const MAX_SPLICES: usize = 4096;

/// The number of splices for datagrams from one node's address. Any node can put any two nodes into its datagrams.
const MAX_OF_HOP: usize = MAX_SPLICES / 4;

/// The time after which a splice without datagrams ends, seconds.
const MAX_IDLE: u8 = 30;

/// The splices of the plane.
#[derive(Default)]
pub(super) struct Transits {
    live: HashMap<SpliceId, Live>,
}

struct Live {
    transit: Transit,
    path: TransitPath,
    to: PeerId,
    /// For how many seconds there were no datagrams.
    idle: u8,
}

impl Transits {
    /// Brings the splices in line with the node. `changed`: the nodes whose path may have changed. `relayed`: what the node has relayed itself.
    /// `known` returns a node that the plane knows.
    pub(super) fn update(
        &mut self,
        changed: &BTreeSet<NodeName>,
        relayed: Vec<Transit>,
        node: &Node,
        plane: &Plane,
        known: impl Fn(&NodeName) -> Option<PeerId>,
    ) {
        let way = |transit: &Transit| {
            let path = node.transit_path(transit)?;
            Some((known(path.node())?, path))
        };
        let stays = |id: &SpliceId, live: &mut Live| {
            if !changed.contains(&live.transit.hop) && !changed.contains(live.path.node()) {
                return true;
            }
            let same_hop = known(&live.transit.hop) == Some(id.from);
            let Some((to, path)) = way(&live.transit).filter(|_| same_hop) else {
                plane.apply(Command::DelSplice(*id));
                return false;
            };
            if (to, &path) != (live.to, &live.path) {
                install(plane, *id, to, &path);
                (live.to, live.path) = (to, path);
            }
            true
        };
        if !changed.is_empty() {
            self.live.retain(stays);
        }
        for transit in relayed {
            let Some(from) = known(&transit.hop) else { continue };
            let id = SpliceId { from, label: SpliceLabel::Nodes(transit.ids) };
            if !self.live.contains_key(&id)
                && let Some((to, path)) = way(&transit)
                && self.has_room(from)
            {
                install(plane, id, to, &path);
                self.live.insert(id, Live { transit, path, to, idle: 0 });
            }
        }
    }

    fn has_room(&self, from: PeerId) -> bool {
        self.live.len() < MAX_SPLICES
            && self.live.keys().filter(|id| id.from == from).count() < MAX_OF_HOP
    }

    /// Lets the node know what the plane has relayed. Returns the peers to which that was sent.
    pub(super) fn count(&mut self, node: &mut Node, plane: &Plane, at: Instant) -> Vec<PeerId> {
        let mut counts = Vec::new();
        if !self.live.is_empty() {
            plane.take_spliced(|id, packets| counts.push((id, packets)));
        }
        let mut receivers = Vec::new();
        for (id, packets) in counts {
            let Some(live) = self.live.get_mut(&id) else { continue };
            live.idle = 0;
            receivers.push(live.to);
            node.relayed_traffic(at, &live.transit, packets);
        }
        receivers
    }

    /// Ends splices that are no longer used. Call this once a second, after [`Transits::count`].
    pub(super) fn expire(&mut self, plane: &Plane) {
        self.live.retain(|id, live| {
            live.idle = live.idle.saturating_add(1);
            if live.idle > MAX_IDLE {
                plane.apply(Command::DelSplice(*id));
            }
            live.idle <= MAX_IDLE
        });
    }

    /// Returns the length of the largest packet that the plane relays to a peer; `None` if it relays none.
    pub(super) fn mtu(&self, to: PeerId) -> Option<u16> {
        self.live.values().find_map(|live| match live.path {
            TransitPath::To { mtu, .. } if live.to == to => Some(mtu),
            _ => None,
        })
    }
}

fn install(plane: &Plane, id: SpliceId, to: PeerId, path: &TransitPath) {
    let shortest = OVERHEAD as u16;
    let (ends_here, longest) = match path {
        TransitPath::To { mtu, .. } => (false, mtu.saturating_add(shortest)),
        TransitPath::Here { .. } => (true, u16::MAX),
    };
    let lengths = SplicedLengths { shortest, longest };
    plane.apply(Command::AddSplice(Splice { ends_here, lengths, ..Splice::new(id, to) }));
}

#[cfg(test)]
mod tests;
