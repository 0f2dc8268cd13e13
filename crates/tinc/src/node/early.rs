//! Records that overtake the handshake record which completes their key.
//!
//! The responder of a handshake seals under the new keys once it has queued its SIG on a connection. The SIG may still wait there, or on the way,
//! when the first datagram arrives. The initiator keeps such records, and opens them when it has the SIG.

use super::payload::Arrival;
use super::peer::Peer;
use super::{Node, count};
use crate::name::NodeName;

/// The number of records of one node that are kept, and the number of nodes of which records are kept. Anybody can send datagrams that look like
/// such records.
const MAX_RECORDS: usize = 128;
const MAX_NODES: usize = 64;

/// A record, and how it arrived.
pub(super) type EarlyRecord = (Vec<u8>, Arrival);

impl Peer {
    /// Returns whether a record that cannot be opened may be under a key that the current handshake has yet to give.
    pub(super) fn awaits_key(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.sptps.awaits_receive_key())
    }
}

impl Node {
    /// Keeps a record until its key may be known. Returns whether there was room for it.
    pub(super) fn keep_early(
        &mut self,
        from: &NodeName,
        record: Vec<u8>,
        arrival: Arrival,
    ) -> bool {
        let nodes = self.early.len();
        let kept = match self.early.get_mut(from) {
            Some(records) if records.len() < MAX_RECORDS => records,
            None if nodes < MAX_NODES => self.early.entry(from.clone()).or_default(),
            _ => return false,
        };
        kept.push((record, arrival));
        true
    }

    /// Opens the records that have waited for the key that a handshake has given.
    pub(super) fn open_early(&mut self, from: &NodeName) {
        if self.peers.get(from).is_some_and(Peer::awaits_key) {
            return;
        }
        for (mut record, arrival) in self.early.remove(from).unwrap_or_default() {
            // They may have been sent by anybody. The session is in order.
            self.open(from, &mut record, arrival, false);
        }
    }

    /// Drops the records of a node, whose session is a new one.
    pub(super) fn forget_early(&mut self, from: &NodeName) {
        for _ in self.early.remove(from).unwrap_or_default() {
            count(&mut self.counters.refused_records);
        }
    }

    /// Drops the records whose key no handshake will give any more.
    pub(super) fn drop_early(&mut self) {
        let awaits = |name: &NodeName| self.peers.get(name).is_some_and(Peer::awaits_key);
        let given_up: Vec<NodeName> =
            self.early.keys().filter(|name| !awaits(name)).cloned().collect();
        given_up.iter().for_each(|name| self.forget_early(name));
    }
}
