//! A router between the two ports (`--routed`): ARP and neighbour discovery, time to live, ICMP errors. No I/O and
//! no clock: frames enter through [`Router::arrive`] and [`Router::leave`], and [`Router::take`] returns the router's
//! own frames.
//!
//! ```text
//!              for the router: ARP, discovery, echo ──► answered
//!   arrive ────┤
//!              to be forwarded ──► Step::Forward ──rules──► leave ──► neighbour known: Leave::Send
//!                                                             └─────► unknown: waits, is asked for
//! ```
//!
//! The router does not forward packets to groups or broadcast, packets with link-local or impossible addresses, packets
//! whose source address belongs to the other side (RFC 3704), packets with a source route, or tagged frames. It neither
//! sends nor follows redirects, and sends no router advertisements. It does not fragment, because both ports have the
//! same MTU.

mod hook;
mod message;
mod neighbour;
mod packet;
mod resolve;
mod settings;
mod stats;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use adit_engine::{Instant, Rate, TokenBucket};
use adit_filter::Nanos;
use adit_filter::packet::{Ip, Layer, Malformed, Network, Packet, Transport};
use adit_filter::rejection::{self, MAX_REJECTION};
use adit_filter::ruleset::{Icmpx, Reject};
use adit_wire::VnetHeader;
pub use adit_wire::ethernet::Mac;
use adit_wire::icmp_error::Message;
use adit_wire::ip;

pub use neighbour::MAX_FIXED;
pub use settings::{MAX_ADDRESSES, MAX_ROUTES, PortSettings, Prefix, Route, SettingsError};
pub use stats::{RouterDrop, RouterStats};

use crate::port::Side;
pub(crate) use hook::{RoutedBurst, RoutedHook};
use message::Discovery;
use neighbour::{QueuedPacket, Table};
use packet::{echo, has_garbled_options, longest, mac, write_link};
use settings::{Routes, is_link_local, is_martian};

/// The maximum number of router frames that have not been taken yet.
pub const MAX_OUT: usize = 512;
/// The largest burst of ICMP errors, and their rate of one per millisecond (RFC 1812 4.3.2.8, RFC 4443 2.4 (f)); as in Linux.
const ERRORS_AT_ONCE: u64 = 50;
const ERROR_RATE: Rate = Rate::new(ERRORS_AT_ONCE, Duration::from_millis(ERRORS_AT_ONCE));

/// A frame that the router itself sends, or one that was queued.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outgoing {
    /// The port.
    pub to: Side,
    /// The work that is left to the device.
    pub vnet: [u8; VnetHeader::LEN],
    /// The frame.
    pub frame: Vec<u8>,
}

/// The result for a frame that arrived.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum IngressResult {
    /// The rules must evaluate the frame; if they accept it, it is passed to [`Router::leave`].
    Forward(Hop),
    /// The frame was for the router, which has processed it.
    Consumed,
    /// The frame is dropped.
    Drop(RouterDrop),
}

/// The next hop of a frame.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Hop {
    /// The port. The frame may have arrived on the same one.
    pub to: Side,
    neighbour: IpAddr,
}

/// The result for a frame that is to be sent.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum EgressResult {
    /// The frame is ready to be sent on the port opposite the one on which it arrived.
    Send,
    /// The router holds the frame. [`Router::take`] returns it if its neighbour is found.
    Consumed,
    /// The frame is dropped.
    Drop(RouterDrop),
}

/// A router with two ports.
#[derive(Debug)]
pub struct Router {
    ports: [PortSettings; 2],
    routes: Routes,
    neighbours: Table,
    out: Vec<Outgoing>,
    errors: TokenBucket,
    stats: RouterStats,
    answer: Box<[u8; MAX_REJECTION]>,
}

impl Router {
    /// Creates a router without known neighbours.
    ///
    /// # Errors
    /// Addresses or routes contradict each other.
    pub fn new(ports: [PortSettings; 2], routes: &[Route]) -> Result<Self, SettingsError> {
        Ok(Self {
            routes: Routes::new(&ports, routes)?,
            ports,
            neighbours: Table::default(),
            out: Vec::new(),
            errors: TokenBucket::default(),
            stats: RouterStats::default(),
            answer: Box::new([0; MAX_REJECTION]),
        })
    }

    /// Adds a static neighbour. Its address is not resolved, and claims about it are ignored.
    ///
    /// # Errors
    /// No neighbour can have that address, or there are too many static neighbours.
    pub fn fix_neighbour(&mut self, address: IpAddr, mac: Mac) -> Result<(), SettingsError> {
        let on = |side: &Side| {
            let own = mac == self.port(*side).mac;
            self.routes.is_neighbour(*side, address) && mac.is_station() && !own
        };
        let side = Side::BOTH.into_iter().find(on);
        let side = side.ok_or(SettingsError::NoSuchNeighbour(address, mac))?;
        if self.neighbours.fix(side, address, mac) {
            Ok(())
        } else {
            Err(SettingsError::TooManyNeighbours)
        }
    }

    /// Changes the length of the longest packet of a port.
    pub fn set_mtu(&mut self, side: Side, mtu: u32) {
        if let Some(port) = self.ports.get_mut(side.index()) {
            port.mtu = mtu;
        }
    }

    /// Replaces a port. Its hardware address may differ, so all neighbours on it must be resolved again.
    pub fn attach(&mut self, side: Side, mac: Mac, mtu: u32) {
        if let Some(port) = self.ports.get_mut(side.index()) {
            (port.mac, port.mtu) = (mac, mtu);
        }
        self.neighbours.forget(side);
    }

    /// Processes a frame from a port. The hop limit of a frame to be forwarded is decremented.
    pub fn arrive(
        &mut self,
        frame: &mut [u8],
        vnet: &[u8; VnetHeader::LEN],
        from: Side,
        now: Nanos,
    ) -> IngressResult {
        let vnet = VnetHeader::decode(vnet);
        let packet = match Packet::parse(frame, Layer::Ethernet, None, &vnet) {
            Ok(packet) => packet,
            Err(Malformed::SourceRoute) => return self.dropped(RouterDrop::SourceRoute),
            Err(_) => return self.dropped(RouterDrop::Malformed),
        };
        let hop = match self.decide(&packet, from, now) {
            Ok(Some(hop)) => hop,
            Ok(None) => return IngressResult::Consumed,
            Err(why) => return self.dropped(why),
        };
        let at = packet.network_at();
        match frame.get_mut(at..).and_then(ip::decrement_ttl) {
            Some(true) => IngressResult::Forward(hop),
            // The checks before have looked at both.
            Some(false) | None => self.dropped(RouterDrop::Malformed),
        }
    }

    /// Processes an accepted frame for forwarding: adds its link header, or queues it until its neighbour is known.
    pub fn leave(
        &mut self,
        frame: &mut [u8],
        vnet: &[u8; VnetHeader::LEN],
        from: Side,
        hop: Hop,
        now: Nanos,
    ) -> EgressResult {
        let Some((mac, ask)) = self.neighbours.find(hop.to, hop.neighbour, now) else {
            let packet = QueuedPacket { from, vnet: *vnet, frame: frame.to_vec() };
            return match self.neighbours.wait(hop.to, hop.neighbour, packet, now) {
                Ok(ask) => {
                    self.ask(ask);
                    EgressResult::Consumed
                }
                Err(()) => EgressResult::Drop(self.count(RouterDrop::NoRoom)),
            };
        };
        self.ask(ask);
        write_link(frame, mac, self.port(hop.to).mac);
        self.stats.forwarded = self.stats.forwarded.saturating_add(1);
        if hop.to == from.other() {
            return EgressResult::Send;
        }
        self.send(Outgoing { to: hop.to, vnet: *vnet, frame: frame.to_vec() });
        EgressResult::Consumed
    }

    /// Processes a held fragment as [`Router::leave`] does; [`Router::take`] returns it.
    pub fn release(&mut self, piece: &[u8], from: Side, hop: Hop, now: Nanos) {
        let (mut frame, vnet) = (piece.to_vec(), VnetHeader::default().encode());
        if self.leave(&mut frame, &vnet, from, hop, now) == EgressResult::Send {
            self.send(Outgoing { to: hop.to, vnet, frame });
        }
    }

    /// Repeats requests, and gives up after the last. Call it at [`Router::wake`], and with every burst.
    pub fn tick(&mut self, now: Nanos) {
        let (mut asks, mut lost) = (Vec::new(), Vec::new());
        self.neighbours.tick(now, &mut asks, &mut lost);
        for ask in asks {
            self.ask(Some(ask));
        }
        for waiting in lost {
            self.count(RouterDrop::Unreachable);
            let vnet = VnetHeader::decode(&waiting.vnet);
            if let Ok(packet) = Packet::parse(&waiting.frame, Layer::Ethernet, None, &vnet) {
                // The codes for host unreachable and address unreachable.
                self.error(&packet, waiting.from, (3, 1), (1, 3), 0, now);
            }
        }
    }

    /// Returns when [`Router::tick`] has work.
    pub fn wake(&self) -> Option<Nanos> {
        self.neighbours.wake
    }

    /// Returns the frames to send now.
    pub fn take(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.out)
    }

    /// Returns the counters.
    pub fn stats(&self) -> RouterStats {
        let (neighbours, asked) = self.neighbours.len();
        let challenged = self.neighbours.challenged;
        let mut stats = RouterStats { neighbours, asked, challenged, ..self.stats.clone() };
        if let Some(count) = stats.dropped.get_mut(RouterDrop::NoRoom as usize) {
            *count = count.saturating_add(self.neighbours.evicted);
        }
        stats
    }

    fn port(&self, side: Side) -> &PortSettings {
        let [a, b] = &self.ports;
        match side {
            Side::A => a,
            Side::B => b,
        }
    }

    fn count(&mut self, why: RouterDrop) -> RouterDrop {
        if let Some(count) = self.stats.dropped.get_mut(why as usize) {
            *count = count.saturating_add(1);
        }
        why
    }

    fn dropped(&mut self, why: RouterDrop) -> IngressResult {
        IngressResult::Drop(self.count(why))
    }

    fn send(&mut self, outgoing: Outgoing) {
        if self.out.len() < MAX_OUT {
            self.out.push(outgoing);
        } else {
            self.stats.out_full = self.stats.out_full.saturating_add(1);
        }
    }

    fn say(&mut self, to: Side, frame: Vec<u8>) {
        self.send(Outgoing { to, vnet: VnetHeader::default().encode(), frame });
    }

    /// Decides where a packet is sent next; returns `None` if it was for the router.
    fn decide(
        &mut self,
        packet: &Packet<'_>,
        from: Side,
        now: Nanos,
    ) -> Result<Option<Hop>, RouterDrop> {
        let ether = packet.ether.ok_or(RouterDrop::Malformed)?;
        if ether.vlan.is_some() {
            return Err(RouterDrop::Tagged);
        }
        let destination = mac(ether.destination);
        let ours = destination == self.port(from).mac;
        if !ours && !destination.is_group() {
            return Err(RouterDrop::NotOurs);
        }
        let ip = match packet.network {
            Network::Ip(ip) => ip,
            Network::Arp(at) => return self.arp(packet, at, from, now),
            Network::Other(_) => return Err(RouterDrop::NotIp),
        };
        if Discovery::is_one(packet) {
            return self.discovery(packet, from, now);
        }
        let group = ip.destination.is_multicast() || self.routes.is_broadcast(ip.destination);
        if !ours || group || ip.destination == IpAddr::from([255; 4]) {
            return Err(RouterDrop::Group);
        }
        self.check_source(&ip, from)?;
        if self.is_own(ip.destination) {
            return self.local(packet, &ip, from, now);
        }
        if is_link_local(ip.source) || is_link_local(ip.destination) {
            return Err(RouterDrop::LinkLocal);
        }
        if is_martian(ip.destination) {
            return Err(RouterDrop::Martian);
        }
        if has_garbled_options(packet, &ip) {
            return Err(RouterDrop::SourceRoute);
        }
        self.route(packet, &ip, from, now).map(Some)
    }

    fn route(
        &mut self,
        packet: &Packet<'_>,
        ip: &Ip,
        from: Side,
        now: Nanos,
    ) -> Result<Hop, RouterDrop> {
        let life_at = ip.at.saturating_add(if ip.source.is_ipv4() { 8 } else { 7 });
        if packet.bytes.get(life_at).is_none_or(|life| *life <= 1) {
            self.error(packet, from, (11, 0), (3, 0), 0, now);
            return Err(RouterDrop::Expired);
        }
        let Some(way) = self.routes.find(ip.destination) else {
            self.error(packet, from, (3, 0), (1, 0), 0, now);
            return Err(RouterDrop::NoRoute);
        };
        let mtu = self.port(way.to).mtu;
        if longest(packet, ip) > usize::try_from(mtu).unwrap_or(usize::MAX) {
            self.error(packet, from, (3, 4), (2, 0), mtu, now);
            return Err(RouterDrop::TooBig);
        }
        Ok(Hop { to: way.to, neighbour: way.via.unwrap_or(ip.destination) })
    }

    /// Checks whether a packet can have come from its source address (RFC 1812 5.3.8, RFC 3704).
    fn check_source(&self, ip: &Ip, from: Side) -> Result<(), RouterDrop> {
        let source = ip.source;
        let impossible = is_martian(source) || source.is_multicast() || self.is_own(source);
        if impossible || source == IpAddr::from([255; 4]) || self.routes.is_broadcast(source) {
            return Err(RouterDrop::Martian);
        }
        let here =
            is_link_local(source) || self.routes.find(source).is_some_and(|way| way.to == from);
        if here { Ok(()) } else { Err(RouterDrop::Martian) }
    }

    fn is_own(&self, address: IpAddr) -> bool {
        Side::BOTH.into_iter().any(|side| self.is_own_on(side, address))
    }

    fn is_own_on(&self, side: Side, address: IpAddr) -> bool {
        self.routes.is_own(side, address) || address == self.port(side).link_local()
    }

    /// Processes a packet for the router itself. The answer is sent back by the same path.
    fn local(
        &mut self,
        packet: &Packet<'_>,
        ip: &Ip,
        from: Side,
        now: Nanos,
    ) -> Result<Option<Hop>, RouterDrop> {
        let v4 = ip.source.is_ipv4();
        // A link-local address is not valid on the other link.
        if is_link_local(ip.destination) && !self.is_own_on(from, ip.destination) {
            return Err(RouterDrop::LinkLocal);
        }
        let how = match packet.transport {
            Transport::Icmp(icmp) if icmp.kind == if v4 { 8 } else { 128 } => {
                let whole = ip.fragment.is_none() && packet.cut.size == 0 && packet.checksum_ok();
                let echo = if whole { echo(packet, ip) } else { None };
                let echo = echo.ok_or(RouterDrop::Local)?;
                self.say(from, echo);
                return Ok(None);
            }
            Transport::Tcp(_) => Reject::TcpReset,
            Transport::Udp(_) => Reject::Icmpx(Icmpx::PortUnreachable),
            _ => return Err(RouterDrop::Local),
        };
        if !self.may_tell(now) {
            return Err(RouterDrop::Local);
        }
        if let Some(len) = rejection::reject(packet, how, &mut self.answer) {
            let frame = self.answer.get(..len).unwrap_or_default().to_vec();
            self.say(from, frame);
        }
        Err(RouterDrop::Local)
    }

    /// Sends an error to a packet's sender, through the port on which the packet arrived. `rest` is an MTU or 0.
    fn error(
        &mut self,
        packet: &Packet<'_>,
        from: Side,
        v4: (u8, u8),
        v6: (u8, u8),
        rest: u32,
        now: Nanos,
    ) {
        let Some(ip) = packet.ip() else { return };
        let (kind, code) = if ip.source.is_ipv4() { v4 } else { v6 };
        // Only a router with an address of the family can send errors (RFC 1812 4.3.2.4).
        let Some(own) = self.routes.own(from, ip.source) else { return };
        if !self.may_tell(now) {
            return;
        }
        let message = Message { kind, code, rest };
        let Some(len) = rejection::error(packet, message, Some(own), &mut self.answer) else {
            return;
        };
        self.stats.errors = self.stats.errors.saturating_add(1);
        let frame = self.answer.get(..len).unwrap_or_default().to_vec();
        self.say(from, frame);
    }

    fn may_tell(&mut self, now: Nanos) -> bool {
        let may = self.errors.take(Instant::from_nanos(now.0), 1, ERROR_RATE);
        if !may {
            self.stats.errors_suppressed = self.stats.errors_suppressed.saturating_add(1);
        }
        may
    }
}
