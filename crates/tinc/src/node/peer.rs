//! The state of a reachable node: its session for packets, and the path of datagrams to it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Instant, SocketId};

use super::carried::Deferred;
use super::mtu::PathMtu;
use super::sessions::DataSession;
use crate::name::{NodeId, NodeName};

/// The number of packets for one node that wait while a rekey must not be overtaken, and for all nodes. Later ones are dropped.
pub(super) const MAX_HELD: usize = 1024;
pub(super) const MAX_HELD_BY_ALL: usize = 8192;

/// A reachable node.
pub(super) struct Peer {
    pub(super) id: NodeId,
    pub(super) session: Option<DataSession>,
    /// The session that the node asked for while another one was established, or while this node waited for an answer to its own request. It
    /// replaces the other one when its handshake proves that the node itself asked, because any node of the net can ask in its name.
    pub(super) replacement: Option<DataSession>,
    /// When this node last asked for a session or a key.
    pub(super) asked: Option<Instant>,
    /// When the failure of a handshake with it was last reported.
    pub(super) reported: Option<Instant>,
    pub(super) udp: UdpPath,
    pub(super) mtu: PathMtu,
    /// The packets that wait for the end of a rekey.
    pub(super) held: VecDeque<Vec<u8>>,
    /// When this node last sent a UDP_INFO and an MTU_INFO to it.
    pub(super) udp_info_sent: Option<Instant>,
    pub(super) mtu_info_sent: Option<Instant>,
    pub(super) traffic: Traffic,
    /// When the latest authentic record of it came.
    pub(super) heard: Option<Instant>,
    /// Another layer carries the packets of the session.
    pub(super) carried: bool,
    /// The handshake records that wait until it has stopped.
    pub(super) deferred: Vec<Deferred>,
}

/// The packets and bytes of both directions, as `tinc dump traffic` and `tinc top` show them.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets from the node.
    pub packets_in: u64,
    /// Bytes in them.
    pub bytes_in: u64,
    /// Packets to the node.
    pub packets_out: u64,
    /// Bytes in them.
    pub bytes_out: u64,
}

/// An address of a node, and the socket of this node that the address is used with.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct UdpEndpoint {
    /// The address.
    pub address: SocketAddr,
    /// The socket on which datagrams from the address arrive; `None` if none has arrived. A firewall or NAT in front of the node accepts only
    /// those that come from the address of this socket.
    pub socket: Option<SocketId>,
}

/// The path of datagrams to a node.
#[derive(Debug)]
pub(super) struct UdpPath {
    pub(super) address: Option<SocketAddr>,
    /// The socket on which the node was last heard from the address.
    pub(super) socket: Option<SocketId>,
    /// The node answered a probe from this address.
    pub(super) confirmed: bool,
    /// The number of datagrams to an unconfirmed address.
    pub(super) attempts: u32,
    /// When the next probe is due.
    pub(super) probe_at: Instant,
    /// When a probe was sent whose answer has not come.
    pub(super) probed: Option<Instant>,
    /// When the last answer came.
    pub(super) answered: Instant,
    pub(super) round_trip: Option<Duration>,
    /// The length of the largest record since the last report.
    pub(super) largest: u16,
    /// When to report it.
    pub(super) report_at: Instant,
}

impl Peer {
    pub(super) fn new(
        name: &NodeName,
        address: Option<SocketAddr>,
        bound: Option<u16>,
        now: Instant,
    ) -> Self {
        let udp = UdpPath {
            address,
            socket: None,
            confirmed: false,
            attempts: 0,
            probe_at: now,
            probed: None,
            answered: now,
            round_trip: None,
            largest: 0,
            report_at: now,
        };
        Self {
            id: name.id(),
            session: None,
            replacement: None,
            asked: None,
            reported: None,
            udp,
            mtu: PathMtu::new(bound, now),
            held: VecDeque::new(),
            udp_info_sent: None,
            mtu_info_sent: None,
            traffic: Traffic::default(),
            heard: None,
            carried: false,
            deferred: Vec::new(),
        }
    }

    /// Begins another session. What waits belongs to the former one.
    pub(super) fn set_session(&mut self, session: Option<DataSession>) {
        self.session = session;
        self.replacement = None;
        self.held.clear();
        self.deferred.clear();
    }

    /// Returns whether the node can decrypt a record that is sealed now.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.session.as_ref().is_some_and(|it| it.sptps.is_established() && !it.must_hold(now))
    }

    pub(super) fn is_established(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.sptps.is_established())
    }
}

impl UdpPath {
    pub(super) fn endpoint(&self) -> Option<UdpEndpoint> {
        self.address.map(|address| UdpEndpoint { address, socket: self.socket })
    }

    /// Takes over an address that other nodes have named.
    pub(super) fn set_address(&mut self, address: SocketAddr) {
        if self.address.replace(address) != Some(address) {
            self.socket = None;
        }
    }
}

impl Traffic {
    pub(super) fn received(&mut self, len: usize) {
        self.packets_in = self.packets_in.saturating_add(1);
        self.bytes_in = self.bytes_in.saturating_add(len as u64);
    }

    pub(super) fn add(&mut self, more: Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.packets_in, more.packets_in);
        add(&mut self.bytes_in, more.bytes_in);
        add(&mut self.packets_out, more.packets_out);
        add(&mut self.bytes_out, more.bytes_out);
    }

    pub(super) fn sent(&mut self, len: usize) {
        self.packets_out = self.packets_out.saturating_add(1);
        self.bytes_out = self.bytes_out.saturating_add(len as u64);
    }
}
