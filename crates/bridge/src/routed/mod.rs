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
mod settings;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use adit_engine::{Instant, Rate, TokenBucket};
use adit_filter::Nanos;
use adit_filter::packet::{Ip, Layer, Malformed, Network, Packet, Transport};
use adit_filter::rejection::{self, MAX_REJECTION};
use adit_filter::ruleset::{Icmpx, Reject};
use adit_wire::VnetHeader;
use adit_wire::checksum::{self, Sum};
pub use adit_wire::ethernet::Mac;
use adit_wire::icmp_error::Message;
use adit_wire::transport::UDP_LEN;

pub use neighbour::MAX_FIXED;
pub use settings::{MAX_ADDRESSES, MAX_ROUTES, PortSettings, Prefix, Route, SettingsError};

use crate::port::Side;
pub(crate) use hook::{RoutedBurst, RoutedHook};
use message::{Arp, Discovery};
use neighbour::{LearnedFrom, QueuedPacket, Solicitation, Table};
use settings::{Routes, is_link_local, is_martian};

/// The maximum number of router frames that have not been taken yet.
pub const MAX_OUT: usize = 512;
/// The largest burst of ICMP errors, and their rate of one per millisecond (RFC 1812 4.3.2.8, RFC 4443 2.4 (f)); as in Linux.
const ERRORS_AT_ONCE: u64 = 50;
const ERROR_RATE: Rate = Rate::new(ERRORS_AT_ONCE, Duration::from_millis(ERRORS_AT_ONCE));

/// The broadcast address.
const BROADCAST: Mac = Mac([0xff; 6]);

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

/// The reason why a frame was dropped.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum RouterDrop {
    /// It cannot be parsed.
    Malformed,
    /// It has a VLAN tag.
    Tagged,
    /// It is for another station.
    NotOurs,
    /// It is neither IP nor ARP.
    NotIp,
    /// It has an impossible address, or a source that belongs elsewhere.
    Martian,
    /// It has an address that is valid on one link only.
    LinkLocal,
    /// It is for a group or broadcast.
    Group,
    /// It has a source route.
    SourceRoute,
    /// No route; its sender was notified.
    NoRoute,
    /// Its time to live has expired; its sender was notified.
    Expired,
    /// It exceeds the MTU; its sender was notified.
    TooBig,
    /// Its neighbour did not answer; its sender was notified.
    Unreachable,
    /// Too many packets are already queued for neighbours.
    NoRoom,
    /// It is for the router itself, which cannot use it; its sender may have been notified.
    Local,
    /// It is invalid ARP or neighbour discovery, or does not concern the router.
    Discovery,
}

/// The router's counters since its start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RouterStats {
    /// Frames that were forwarded.
    pub forwarded: u64,
    /// Frames dropped, by [`RouterDrop`].
    pub dropped: [u64; RouterDrop::ALL.len()],
    /// ICMP errors sent.
    pub errors: u64,
    /// ICMP errors that the rate limit suppressed.
    pub errors_suppressed: u64,
    /// The router's own frames that were not taken in time.
    pub out_full: u64,
    /// Known neighbours.
    pub neighbours: usize,
    /// Neighbours that are being resolved.
    pub asked: usize,
    /// Claims of a neighbour's address by another station.
    pub challenged: u64,
}

impl RouterDrop {
    /// All reasons, in the order of [`RouterStats::dropped`].
    pub const ALL: [Self; 15] = [
        Self::Malformed,
        Self::Tagged,
        Self::NotOurs,
        Self::NotIp,
        Self::Martian,
        Self::LinkLocal,
        Self::Group,
        Self::SourceRoute,
        Self::NoRoute,
        Self::Expired,
        Self::TooBig,
        Self::Unreachable,
        Self::NoRoom,
        Self::Local,
        Self::Discovery,
    ];
}

impl RouterDrop {
    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Tagged => "tagged",
            Self::NotOurs => "not-for-the-router",
            Self::NotIp => "not-ip",
            Self::Martian => "martian",
            Self::LinkLocal => "link-local",
            Self::Group => "multicast-or-broadcast",
            Self::SourceRoute => "source-route",
            Self::NoRoute => "no-route",
            Self::Expired => "hops-exhausted",
            Self::TooBig => "too-big",
            Self::Unreachable => "host-unreachable",
            Self::NoRoom => "neighbour-queue-full",
            Self::Local => "local",
            Self::Discovery => "bad-arp-or-discovery",
        }
    }
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
        match age(frame, at) {
            Some(()) => IngressResult::Forward(hop),
            None => self.dropped(RouterDrop::Malformed),
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
        address(frame, mac, self.port(hop.to).mac);
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
        let nobody = is_martian(source) || source.is_multicast() || self.is_own(source);
        if nobody || source == IpAddr::from([255; 4]) || self.routes.is_broadcast(source) {
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

    fn arp(
        &mut self,
        packet: &Packet<'_>,
        at: usize,
        from: Side,
        now: Nanos,
    ) -> Result<Option<Hop>, RouterDrop> {
        let arp = packet.bytes.get(at..).and_then(Arp::read).ok_or(RouterDrop::Discovery)?;
        let sender = IpAddr::V4(arp.sender);
        if !arp.sender_mac.is_station() || self.is_own(sender) {
            return Err(RouterDrop::Discovery);
        }
        let asks_us = !arp.reply && self.routes.is_own(from, arp.target.into());
        if self.routes.is_neighbour(from, sender) {
            let learned_from = if asks_us { LearnedFrom::Request } else { LearnedFrom::Reply };
            self.learn(from, sender, arp.sender_mac, learned_from, now);
        } else if !arp.sender.is_unspecified() {
            return Err(RouterDrop::Discovery);
        }
        if asks_us {
            let reply = Arp {
                reply: true,
                sender_mac: self.port(from).mac,
                sender: arp.target,
                target_mac: arp.sender_mac,
                target: arp.sender,
            };
            self.say(from, reply.frame(arp.sender_mac));
        }
        Ok(None)
    }

    fn discovery(
        &mut self,
        packet: &Packet<'_>,
        from: Side,
        now: Nanos,
    ) -> Result<Option<Hop>, RouterDrop> {
        let message = Discovery::read(packet).ok_or(RouterDrop::Discovery)?;
        let ip = packet.ip().ok_or(RouterDrop::Discovery)?;
        let near = |address| {
            is_link_local(address) && !self.is_own_on(from, address)
                || self.routes.is_neighbour(from, address)
        };
        match message {
            Discovery::Solicitation { target, link } => {
                let IpAddr::V6(source) = ip.source else { return Err(RouterDrop::Discovery) };
                if !self.is_own_on(from, target.into()) {
                    return Err(RouterDrop::Discovery);
                }
                let unnamed = source.is_unspecified();
                if !unnamed && !near(source.into()) {
                    return Err(RouterDrop::Discovery);
                }
                if let Some(link) = link {
                    self.learn(from, source.into(), link, LearnedFrom::Request, now);
                }
                let asker = packet.ether.map(|ether| mac(ether.source));
                let asker = link.or(asker).filter(|mac| !unnamed && mac.is_station());
                let to = asker.map(|mac| (mac, source));
                let reply = message::advertisement(self.port(from).mac, target, to);
                self.say(from, reply);
            }
            Discovery::Advertisement { target, link, insists } => {
                if !near(target.into()) {
                    return Err(RouterDrop::Discovery);
                }
                let learned_from =
                    if insists { LearnedFrom::Reply } else { LearnedFrom::WeakReply };
                let link = link.ok_or(RouterDrop::Discovery)?;
                self.learn(from, target.into(), link, learned_from, now);
            }
        }
        Ok(None)
    }

    fn learn(
        &mut self,
        side: Side,
        address: IpAddr,
        mac: Mac,
        learned_from: LearnedFrom,
        now: Nanos,
    ) {
        let own = self.port(side).mac;
        if mac == own {
            return;
        }
        let (waiting, ask) = self.neighbours.learn(side, address, mac, learned_from, now);
        self.ask(ask);
        for QueuedPacket { vnet, mut frame, .. } in waiting {
            self::address(&mut frame, mac, own);
            self.stats.forwarded = self.stats.forwarded.saturating_add(1);
            self.send(Outgoing { to: side, vnet, frame });
        }
    }

    fn ask(&mut self, ask: Option<Solicitation>) {
        let Some(Solicitation { side, address, to }) = ask else { return };
        let mac = self.port(side).mac;
        let frame = match address {
            IpAddr::V4(target) => {
                let Some(IpAddr::V4(sender)) = self.routes.own(side, address) else { return };
                let request = Arp {
                    reply: false,
                    sender_mac: mac,
                    sender,
                    target_mac: Mac::default(),
                    target,
                };
                request.frame(to.unwrap_or(BROADCAST))
            }
            IpAddr::V6(target) => {
                let own: Ipv6Addr = self.port(side).link_local();
                message::solicitation(mac, own, target, to)
            }
        };
        self.say(side, frame);
    }
}

fn mac(number: u64) -> Mac {
    let [_, _, rest @ ..] = number.to_be_bytes();
    Mac(rest)
}

/// Writes a link header's addresses.
fn address(frame: &mut [u8], to: Mac, from: Mac) {
    if let Some((first, rest)) = frame.split_first_chunk_mut::<6>() {
        *first = to.0;
        if let Some(second) = rest.first_chunk_mut::<6>() {
            *second = from.0;
        }
    }
}

/// Decrements a packet's hop limit, which is greater than one.
fn age(frame: &mut [u8], at: usize) -> Option<()> {
    let packet = frame.get_mut(at..)?;
    if packet.first()? >> 4 == 6 {
        let hops = packet.get_mut(7)?;
        *hops = hops.checked_sub(1)?;
        return Some(());
    }
    let header: &mut [u8; 20] = packet.first_chunk_mut()?;
    let [_, _, _, _, _, _, _, _, life, protocol, c0, c1, ..] = header;
    let before = u16::from_be_bytes([*life, *protocol]);
    *life = life.checked_sub(1)?;
    let after = u16::from_be_bytes([*life, *protocol]);
    let sum = checksum::update(u16::from_be_bytes([*c0, *c1]), before, after);
    [*c0, *c1] = sum.to_be_bytes();
    Some(())
}

/// Returns the length of the longest packet on the wire that `packet` is split into.
fn longest(packet: &Packet<'_>, ip: &Ip) -> usize {
    if packet.cut.size == 0 {
        return packet.length();
    }
    let header = match packet.transport {
        Transport::Tcp(tcp) => tcp.header_len,
        _ => UDP_LEN,
    };
    let headers = ip.payload.saturating_sub(ip.at).saturating_add(header);
    headers.saturating_add(packet.cut.size.into()).min(packet.length())
}

/// Returns whether an IPv4 packet has malformed options. They may hide a source route, which could bypass any filter (RFC 7126 4.3 and
/// 4.4). A well-formed source route was refused when the packet was parsed.
fn has_garbled_options(packet: &Packet<'_>, ip: &Ip) -> bool {
    if !ip.source.is_ipv4() {
        return false;
    }
    let start = ip.at.saturating_add(20);
    let end = packet.bytes.get(ip.at).map_or(0, |first| usize::from(first & 0xf).wrapping_mul(4));
    let mut options = packet.bytes.get(start..ip.at.saturating_add(end)).unwrap_or_default();
    loop {
        options = match *options {
            [] | [0, ..] => return false,
            [1, ref rest @ ..] => rest,
            [_, len, ..] if len >= 2 => options.get(usize::from(len)..).unwrap_or_default(),
            [_, ..] => return true,
        };
    }
}

/// Returns the answer to an echo request.
fn echo(packet: &Packet<'_>, ip: &Ip) -> Option<Vec<u8>> {
    let (source, destination) = (ip.source, ip.destination);
    let body = packet.transport_bytes();
    let v4 = source.is_ipv4();
    let header_len = if v4 { 20 } else { 40 };
    let mut reply = packet.bytes.get(..ip.at)?.to_vec();
    let (to, rest) = reply.split_first_chunk_mut::<6>()?;
    std::mem::swap(to, rest.first_chunk_mut()?);
    let at = reply.len();
    reply.resize(at.checked_add(header_len)?, 0);
    reply.extend_from_slice(body);
    let (header, message) = reply.get_mut(at..)?.split_at_mut_checked(header_len)?;
    let protocol = ip.protocol;
    let pseudo =
        adit_wire::icmp_error::ip_header(destination, source, protocol, body.len(), header)?;
    *message.first_mut()? = if v4 { 0 } else { 129 };
    message.get_mut(2..4)?.fill(0);
    let start = if v4 { Sum::new() } else { pseudo };
    let sum = start.bytes(message).finish().to_be_bytes();
    message.get_mut(2..4)?.copy_from_slice(&sum);
    Some(reply)
}
