//! Where packets go: to the device, to a node, to many nodes, or back to their sender with an error.
//!
//! ```text
//!                  ┌──────────── Router ────────────┐
//!  device ──read──►│ from_device ─► Node, Fragments ├──► the node's engine: send_packet(node, packet)
//!                  │                Many            │
//!  device ◄─write──┤ Device, Many ◄─ from_node      │◄── the node's engine: a packet of a node
//!                  │        Reply: to the sender    │
//!                  └────────────────────────────────┘
//! ```
//!
//! The engine's packets are IP packets in router mode and Ethernet frames in the others. The device's packets are the same, with one
//! exception: a TAP device in router mode has frames. Then the first [`Router::device_prefix`] bytes of its packets are no part of what nodes get,
//! and [`Router::device_header`] precedes what the device gets.
//!
//! A decision about one packet for one receiver allocates no memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use adit_engine::{Instant, Rate, TokenBucket};
use adit_wire::ethernet::{self, Ethernet, Mac};
use adit_wire::icmp_error;

use crate::config::{Broadcast, DeviceType, Forwarding, Mode, ServerConfig};
use crate::name::NodeName;
use crate::subnet::Subnet;

mod broadcast;
mod clamp;
mod fragment;
mod frame;
mod icmp;
mod ip;
mod neighbour;
mod stations;
#[cfg(test)]
mod tests;
mod view;

pub use fragment::{FragmentPlan, Fragments};
use icmp::IcmpError;
use stations::Stations;
pub use stations::{EXPIRY_INTERVAL, MAX_STATIONS};
pub use view::{Path, Topology, View, tree_neighbours};

/// Length of the longest frame, bytes, and the path MTU of a node until it is known. Both count an Ethernet header.
pub const MAX_MTU: u16 = 1518;

/// The number of ICMP errors in a second.
const ERRORS: Rate = Rate::per_second(3);

/// Length of the longest reply, bytes.
const MAX_REPLY: usize = ethernet::MAX_HEADER_LEN + icmp_error::MAX_V6;

/// The sender of frames that are written to a TAP device in router mode, and the answer to its ARP requests: a locally administered address.
const ROUTER_MAC: Mac = Mac([0x0a, b't', b'i', b'n', b'c', 0]);

/// The part of a node's configuration that concerns packets.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How packets find their destination.
    pub mode: Mode,
    /// Which packets of other nodes are forwarded.
    pub forwarding: Forwarding,
    /// How packets to many nodes are sent.
    pub broadcast: Broadcast,
    /// The addresses of packets to many nodes, in addition to the standard ones.
    pub broadcast_subnets: Vec<Subnet>,
    /// Packets that another node would have to relay are refused.
    pub direct_only: bool,
    /// The TTL of other nodes' packets is decremented.
    pub decrement_ttl: bool,
    /// Packets to many nodes are not forwarded.
    pub tunnel_server: bool,
    /// The time after which a station that sent nothing is forgotten, in switch mode.
    pub mac_expire: Duration,
    /// The stations among the own node's configured subnets, which are neither learnt nor forgotten.
    pub own_stations: Vec<Subnet>,
    /// The device is a TAP device, whose packets are frames also in router mode.
    pub is_tap: bool,
}

impl From<&ServerConfig> for Settings {
    fn from(config: &ServerConfig) -> Self {
        Self {
            mode: config.mode,
            forwarding: config.forwarding,
            broadcast: config.broadcast,
            broadcast_subnets: config.broadcast_subnets.clone(),
            direct_only: config.direct_only,
            decrement_ttl: config.decrement_ttl,
            tunnel_server: config.tunnel_server,
            mac_expire: config.mac_expire,
            own_stations: stations::of(&config.own.subnets),
            is_tap: match config.device_type {
                Some(kind) => kind == DeviceType::Tap,
                None => config.mode != Mode::Router,
            },
        }
    }
}

/// The decision about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// Write the packet to the device.
    Device,
    /// Send the packet to a node.
    Node {
        /// The node, which is reachable and not the sender.
        to: &'a NodeName,
    },
    /// Send the packet to a node in fragments: the path is too narrow for it.
    Fragments {
        /// The node, which is reachable and not the sender.
        to: &'a NodeName,
        /// How to split the packet; see [`Fragments::new`].
        plan: FragmentPlan,
    },
    /// Send the packet to each of several nodes.
    Many {
        /// The nodes, at least one. Each gets an ordinary packet.
        nodes: Vec<&'a NodeName>,
        /// Write the packet to the device as well.
        device: bool,
    },
    /// Drop the packet, and send this one to where it came from. For the device, it is complete.
    Reply(&'a [u8]),
    /// Drop the packet.
    Drop(DropReason),
}

/// The reason why a packet is not forwarded.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DropReason {
    /// The bytes are not what the mode has: an IP packet or a frame.
    #[error("the packet is damaged, or of another kind than the mode of this net")]
    Malformed,
    /// No subnet contains the destination.
    #[error("no subnet contains the destination")]
    Unknown,
    /// The destination is behind the node that sent the packet.
    #[error("the destination is behind the sender")]
    Own,
    /// The owner of the subnet is not reachable.
    #[error("the node with the destination is not reachable")]
    Unreachable,
    /// The packet is between two other nodes, and forwarding is off.
    #[error("this node does not forward packets")]
    NotForwarded,
    /// Another node would have to relay the packet, and only direct ones are allowed.
    #[error("the node with the destination is not reachable directly")]
    Indirect,
    /// The packet would go back to the node that it came from.
    #[error("the packet would return to the node that it came from")]
    Loop,
    /// The packet has passed as many nodes as it may.
    #[error("the TTL of the packet is used up")]
    TtlExceeded,
    /// The path is too narrow, and the packet must not be fragmented.
    #[error("the packet is longer than the path allows")]
    TooBig,
    /// The packet is to many nodes, and no other one may get it.
    #[error("no other node gets packets to many nodes")]
    NoReceiver,
    /// The packet resolves an address of the device's network, and needs no answer.
    #[error("the question about an address needs no answer")]
    Neighbour,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 11] = [
        Self::Malformed,
        Self::Unknown,
        Self::Own,
        Self::Unreachable,
        Self::NotForwarded,
        Self::Indirect,
        Self::Loop,
        Self::TtlExceeded,
        Self::TooBig,
        Self::NoReceiver,
        Self::Neighbour,
    ];
}

/// The reason why a packet is refused, and the error that its sender may get.
#[derive(Copy, Clone, Debug)]
struct Refusal {
    reason: DropReason,
    error: Option<IcmpError>,
}

impl Refusal {
    const fn silent(reason: DropReason) -> Self {
        Self { reason, error: None }
    }

    const fn with(reason: DropReason, error: IcmpError) -> Self {
        Self { reason, error: Some(error) }
    }
}

/// The router of a node.
#[derive(Debug)]
pub struct Router {
    settings: Settings,
    stations: Stations,
    /// The address of the device, as far as it is known.
    device_mac: Option<Mac>,
    own_v4: Option<Ipv4Addr>,
    own_v6: Option<Ipv6Addr>,
    error_budget: TokenBucket,
    reply: Box<[u8; MAX_REPLY]>,
    drops: [u64; DropReason::ALL.len()],
    errors_suppressed: u64,
}

impl Router {
    /// Creates a router.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            stations: Stations::default(),
            device_mac: None,
            own_v4: None,
            own_v6: None,
            error_budget: TokenBucket::new(),
            reply: Box::new([0; MAX_REPLY]),
            drops: [0; DropReason::ALL.len()],
            errors_suppressed: 0,
        }
    }

    /// Replaces the settings. Learnt stations remain.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Sets the addresses of the device: its IP addresses are the sources of errors about other nodes' packets, and a TAP device in router
    /// mode accepts only frames to its MAC address. The MAC address is also learnt from the device's frames.
    pub fn set_device(&mut self, mac: Option<Mac>, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) {
        self.device_mac = mac.or(self.device_mac);
        self.own_v4 = v4;
        self.own_v6 = v6;
    }

    /// Returns how many packets were dropped for each reason, in the order of [`DropReason::ALL`].
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().zip(self.drops)
    }

    /// Returns the number of ICMP errors that were not sent because there were too many.
    pub fn errors_suppressed(&self) -> u64 {
        self.errors_suppressed
    }

    /// Returns the number of bytes at the start of the device's packets that nodes do not get.
    pub fn device_prefix(&self) -> usize {
        if self.routes_frames() { ethernet::HEADER_LEN } else { 0 }
    }

    /// Returns the header that precedes a packet of a node on its way to the device, if the device needs one.
    pub fn device_header(&self, packet: &[u8]) -> Option<[u8; ethernet::HEADER_LEN]> {
        if !self.routes_frames() {
            return None;
        }
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let kind = if is_v6 { ethernet::IPV6 } else { ethernet::IPV4 };
        // As long as its address is unknown, the device gets frames to all.
        let to = self.device_mac.unwrap_or(Mac([0xff; 6]));
        Some(neighbour::header(to, kind))
    }

    /// Returns whether the device has frames although nodes get IP packets.
    fn routes_frames(&self) -> bool {
        self.settings.mode == Mode::Router && self.settings.is_tap
    }

    /// Decides about a packet that was read from the device. It may lower the MSS in the packet. In switch mode, call
    /// [`Router::take_learnt`] afterwards.
    pub fn from_device<'a, V: View>(
        &'a mut self,
        packet: &mut [u8],
        view: &'a V,
        now: Instant,
    ) -> Decision<'a> {
        if self.routes_frames() {
            return self.route_tap_frame(packet, view, now);
        }
        if self.settings.mode == Mode::Switch {
            self.learn(packet, now);
        }
        self.route(view.own(), packet, view, now)
    }

    /// Decides about a packet that a node sent, or forwarded: `from` is the node whose session it came in, or the neighbour that
    /// sent it over TCP. It may change the TTL and the MSS in the packet.
    pub fn from_node<'a, V: View>(
        &'a mut self,
        from: &NodeName,
        packet: &mut [u8],
        view: &'a V,
        now: Instant,
    ) -> Decision<'a> {
        debug_assert_ne!(from, view.own());
        if self.settings.forwarding == Forwarding::Kernel {
            return Decision::Device;
        }
        self.route(from, packet, view, now)
    }

    /// Decides about a packet of the kind that nodes get. Packets of the device are the own node's.
    fn route<'a, V: View>(
        &'a mut self,
        from: &NodeName,
        packet: &mut [u8],
        view: &'a V,
        now: Instant,
    ) -> Decision<'a> {
        let (outcome, ip_at) = match self.settings.mode {
            Mode::Router => (self.route_ip(from, packet, view), 0),
            Mode::Switch | Mode::Hub => match Ethernet::parse(packet) {
                None => (Err(Refusal::silent(DropReason::Malformed)), 0),
                Some(header) => (self.route_frame(from, packet, &header, view), header.header_len),
            },
        };
        match outcome {
            Ok(decision) => decision,
            Err(refusal) => self.refuse(refusal, packet, ip_at, from == view.own(), now),
        }
    }

    /// Decides about a frame of a TAP device in router mode.
    fn route_tap_frame<'a, V: View>(
        &'a mut self,
        frame: &mut [u8],
        view: &'a V,
        now: Instant,
    ) -> Decision<'a> {
        let malformed = Refusal::silent(DropReason::Malformed);
        let Some(header) = Ethernet::parse(frame) else {
            return self.refuse(malformed, frame, 0, true, now);
        };
        if header.source.is_station() {
            self.device_mac = Some(header.source);
        }
        if neighbour::is_question(&header, frame) {
            let is_elsewhere = |address: IpAddr| is_elsewhere(address, view);
            let out = self.reply.as_mut_slice();
            let length = neighbour::answer(&header, frame, is_elsewhere, out);
            return match length.and_then(|length| self.reply.get(..length)) {
                Some(reply) => Decision::Reply(reply),
                None => {
                    Self::count(&mut self.drops, DropReason::Neighbour);
                    Decision::Drop(DropReason::Neighbour)
                }
            };
        }
        let is_ip = header.ip(frame) == Some(ethernet::HEADER_LEN);
        let outcome = match frame.get_mut(ethernet::HEADER_LEN..).filter(|_| is_ip) {
            Some(packet) => self.route_ip(view.own(), packet, view),
            None => Err(malformed),
        };
        match outcome {
            Ok(decision) => decision,
            Err(refusal) => self.refuse(refusal, frame, ethernet::HEADER_LEN, true, now),
        }
    }

    /// Counts a refused packet, and writes the error to its sender if there is one. The IP packet begins at `ip_at`.
    fn refuse(
        &mut self,
        refusal: Refusal,
        packet: &[u8],
        ip_at: usize,
        from_device: bool,
        now: Instant,
    ) -> Decision<'_> {
        Self::count(&mut self.drops, refusal.reason);
        let Some(error) = refusal.error else { return Decision::Drop(refusal.reason) };
        // A host drops errors that claim to come from itself.
        let (v4, v6) = if from_device { (None, None) } else { (self.own_v4, self.own_v6) };
        let length = icmp::write(packet, ip_at, error, (v4, v6), self.reply.as_mut_slice());
        let Some(length) = length else { return Decision::Drop(refusal.reason) };
        if self.error_budget.take_whole(now, ERRORS).is_err() {
            self.errors_suppressed = self.errors_suppressed.saturating_add(1);
            return Decision::Drop(refusal.reason);
        }
        self.reply.get(..length).map_or(Decision::Drop(refusal.reason), Decision::Reply)
    }

    fn count(drops: &mut [u64; DropReason::ALL.len()], reason: DropReason) {
        for (counted, drops) in DropReason::ALL.iter().zip(drops) {
            if *counted == reason {
                *drops = drops.saturating_add(1);
            }
        }
    }
}

/// Returns whether an address is behind another node that is reachable.
fn is_elsewhere<V: View>(address: IpAddr, view: &V) -> bool {
    let owner = view.owner(address.into()).map(|(owner, _)| owner);
    owner.is_some_and(|owner| owner != view.own() && view.path(owner).is_some())
}
