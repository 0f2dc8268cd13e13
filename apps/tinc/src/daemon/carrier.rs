//! The data plane of a daemon in router or switch mode.
//!
//! The plane carries the packets of the nodes that are reached by UDP, directly or through a relay, and relays datagrams between others.
//! Everything else comes up: datagrams without a session, packets without a route or longer than their path, and records that are no packets; in
//! switch mode also frames to many nodes, and those of stations that the router has not learnt yet. They go the way that they also have without a
//! plane.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use adit_dataplane::{HandedUp, PlaneConfig, Relay, StreamOptions};
use adit_engine::command::{Counters, Float, InnerMtu, KeySlot, ProbeResult};
use adit_engine::{Instant, Link, Notice, PeerId, SocketId};
use adit_linux::tun::TunDevice;
use adit_linux::udp::UdpSocket;
use adit_runtime::clock::now;
use adit_runtime::control::StatusReport;
use adit_runtime::driver::{Backend, Upcall, watch};
use adit_runtime::fault::Fault;
use adit_runtime::metrics::Samples;
use adit_runtime::plane_backend::{PlaneBackend, fill_totals, gates};
use adit_runtime::worker_count;
use adit_tinc::config::{Forwarding, Mode, ServerConfig};
use adit_tinc::name::NodeName;
use adit_tinc::node::{DirectPath, Node, Traffic, UdpEndpoint};
use adit_tinc_data::packet::{OVERHEAD, Packets};
use adit_tinc_data::{Command, DataKey, PeerSpec, Plane, Tinc, TincFormat};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::data::{choose_socket, longest_datagram, socket_id};
use super::plane_routes::PlaneRoutes;
use super::transits::Transits;

/// The headers before the MSS's data in IPv4 and IPv6 packets, that of a frame, and the longest packet of a frame.
const TCP4: u16 = 20 + 20;
const TCP6: u16 = 40 + 20;
const ETHERNET: u16 = 14;
const MAX_PACKET: u16 = 1518 - ETHERNET;

/// The number of bytes by which a datagram is longer than a record with its type.
const MESSAGE_OVERHEAD: u64 = OVERHEAD as u64 - 1;

/// The data plane, and the nodes that it knows.
pub(super) struct Carrier {
    backend: PlaneBackend<TincFormat>,
    packets: Packets,
    wakeup: AsyncFd<OwnedFd>,
    /// More may have come up although the descriptor will not be reported again.
    more: bool,
    /// The sockets' local addresses, by their ids.
    sockets: Vec<SocketAddr>,
    peers: BTreeMap<NodeName, Carried>,
    names: HashMap<PeerId, NodeName>,
    next_id: u32,
    changed: BTreeSet<NodeName>,
    routes: PlaneRoutes,
    transits: Transits,
    /// All packets come up.
    paused: bool,
}

/// A node that datagrams reach, directly or through a relay.
struct Carried {
    id: PeerId,
    destination: Destination,
    /// The session that the plane has, if it carries the node's packets.
    path: Option<DirectPath>,
    /// The traffic that the node has counted.
    counted: Traffic,
    /// The records that were sent besides packets, and their bytes on the wire.
    records: (u64, u64),
}

/// Where the datagrams to a node go.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Destination {
    /// The link to the confirmed address of the node, or of its relay.
    link: Link,
    relay: Option<PeerId>,
}

/// Something that the plane could not carry, or noticed.
pub(super) enum CarrierEvent {
    /// A datagram: the socket on which it arrived, and where it came from.
    Datagram(SocketId, SocketAddr, Vec<u8>),
    /// A record of a node: its type, and its data.
    Record(NodeName, Vec<u8>),
    /// A packet of the device.
    FromDevice(Vec<u8>),
    /// A packet of a node that is not for this host.
    FromNode(NodeName, Vec<u8>),
    /// A datagram from a node's address that is not authentic.
    Forgery(NodeName),
    /// A datagram of this length is too long for the path to an address.
    TooBig(SocketAddr, usize),
}

impl Carrier {
    /// Starts the data plane.
    pub(super) fn start(
        server: &ServerConfig,
        tun: TunDevice,
        groups: &[Vec<Arc<UdpSocket>>],
    ) -> Result<Self, Fault> {
        let sockets = groups.iter().enumerate().flat_map(|(number, group)| {
            group.iter().map(move |socket| (socket_id(number), Arc::clone(socket)))
        });
        let packets = match server.mode {
            Mode::Router | Mode::Hub => Packets::Ip,
            Mode::Switch => Packets::Frames,
        };
        let config = PlaneConfig {
            tun: Some(tun),
            sockets: sockets.collect(),
            relay: Relay::Kernel,
            gates: gates(),
            client: false,
            ethernet: packets == Packets::Frames,
        };
        let (plane, upcalls) = adit_tinc_data::start(config, now)
            .map_err(|error| worker_count::not_started(&error))?;
        plane.hand_up(server.forwarding == Forwarding::Kernel);
        if server.priority_inheritance {
            plane.copy_tos();
        }
        let backend = PlaneBackend::new(plane, upcalls, StreamOptions::default());
        let broken = |error: io::Error| Fault::environment(format!("the data plane: {error}"));
        let wakeup = backend.wakeup().map_err(broken)?;
        let addresses = groups.iter().filter_map(|group| group.first());
        Ok(Self {
            wakeup: watch(wakeup, Interest::READABLE).map_err(broken)?,
            backend,
            packets,
            more: true,
            sockets: addresses.map(|socket| socket.local_addr()).collect(),
            peers: BTreeMap::new(),
            names: HashMap::new(),
            next_id: 0,
            changed: BTreeSet::new(),
            routes: PlaneRoutes::new(&server.broadcast_subnets, packets, now()),
            transits: Transits::default(),
            paused: false,
        })
    }

    fn plane(&self) -> &Plane {
        self.backend.plane()
    }

    /// Waits until something may have come up. Cancel-safe.
    pub(super) async fn ready(&self) {
        let routes = async {
            match self.routes.due() {
                Some(due) => tokio::time::sleep(due.since(now())).await,
                None => std::future::pending().await,
            }
        };
        if self.more {
            return;
        }
        tokio::select! {
            ready = self.wakeup.readable() => {
                if let Ok(mut ready) = ready {
                    ready.clear_ready();
                }
            }
            () = routes => {}
        }
    }

    /// Takes what came up.
    ///
    /// # Errors
    /// The plane moves no more packets.
    pub(super) fn take(&mut self) -> Result<Vec<CarrierEvent>, Fault> {
        self.more = false;
        if let Some(fault) = self.backend.failure() {
            return Err(fault);
        }
        let (mut upcalls, mut handed_up) = (Vec::new(), Vec::new());
        self.backend.drain(&mut |upcall| upcalls.push(upcall));
        self.plane().take_handed_up(|one| handed_up.push(one));
        let mut taken: Vec<CarrierEvent> =
            upcalls.into_iter().filter_map(|upcall| self.upcall(upcall)).collect();
        let name = |id: &PeerId| self.names.get(id).cloned();
        taken.extend(handed_up.into_iter().filter_map(|one| match one {
            HandedUp::FromDevice(packet) => Some(CarrierEvent::FromDevice(packet)),
            HandedUp::FromPeer(id, packet) => Some(CarrierEvent::FromNode(name(&id)?, packet)),
            HandedUp::Unreadable(id) => Some(CarrierEvent::Forgery(name(&id)?)),
        }));
        Ok(taken)
    }

    fn upcall(&self, upcall: Upcall<Tinc>) -> Option<CarrierEvent> {
        match upcall {
            Upcall::ControlPacket(link, bytes) => {
                Some(CarrierEvent::Datagram(link.socket()?, link.remote(), bytes))
            }
            Upcall::Notice(Notice::InBand(id, record)) => {
                Some(CarrierEvent::Record(self.names.get(&id)?.clone(), record))
            }
            Upcall::Notice(Notice::ProbeResult(id, result)) => {
                let carried = self.peers.get(self.names.get(&id)?)?;
                let mtu = carried.path.as_ref().map(|path| path.mtu).or(self.transits.mtu(id))?;
                let to = carried.destination.link.remote();
                Some(CarrierEvent::TooBig(to, too_big(mtu, to, result)?))
            }
            _ => None,
        }
    }

    /// Sends a record of a node. Returns `false` if the plane does not carry it.
    pub(super) fn send(&mut self, to: &NodeName, record: &[u8]) -> bool {
        let Some(carried) = self.peers.get_mut(to).filter(|carried| carried.path.is_some()) else {
            return false;
        };
        // Packets are counted by the plane like those of the device.
        let is_packet = record.first() == Some(&self.packets.record_type());
        if !is_packet {
            let (packets, bytes) = &mut carried.records;
            *packets = packets.saturating_add(1);
            *bytes = bytes.saturating_add(MESSAGE_OVERHEAD).saturating_add(record.len() as u64);
        }
        let id = carried.id;
        self.plane().apply(Command::SendData(id, record.to_vec()));
        true
    }

    /// Brings the plane in line with the node. While it is paused, it carries no packets. Returns `true` if the node may have outputs.
    pub(super) fn reconcile(&mut self, node: &mut Node, at: Instant, paused: bool) -> bool {
        if std::mem::replace(&mut self.paused, paused) != paused {
            self.changed.extend(self.peers.keys().cloned());
        }
        let changes = node.take_changed_paths();
        if changes.all {
            self.changed.extend(node.reachable().cloned());
            self.changed.extend(self.peers.keys().cloned());
            self.routes.set_outdated();
        }
        self.changed.extend(changes.nodes);
        let mut changed = std::mem::take(&mut self.changed);
        if !changed.is_empty() {
            // A splice that ends takes its counter with it.
            self.transits.count(node, self.backend.plane(), at);
        }
        for name in &changed {
            self.update(name, node, at);
        }
        for name in self.behind(&changed) {
            self.update(&name, node, at);
            changed.insert(name);
        }
        let (plane, peers) = (self.backend.plane(), &self.peers);
        let known = |name: &NodeName| peers.get(name).map(|carried| carried.id);
        self.routes.update(node, plane, now, known);
        self.transits.update(&changed, changes.transits, node, plane, known);
        !changed.is_empty()
    }

    /// Returns the nodes that are reached through these relays.
    fn behind(&self, relays: &BTreeSet<NodeName>) -> Vec<NodeName> {
        let is_behind = |carried: &Carried| {
            let relay = carried.path.as_ref().and_then(|path| path.relay.as_ref());
            relay.is_some_and(|relay| relays.contains(relay))
        };
        let behind = self.peers.iter().filter(|(_, carried)| is_behind(carried));
        behind.map(|(name, _)| name.clone()).collect()
    }

    /// Returns where the datagrams to a node go, if the plane can send there.
    fn destination(
        &self,
        name: &NodeName,
        path: Option<&DirectPath>,
        node: &Node,
    ) -> Option<Destination> {
        if let Some(relay) = path.and_then(|path| path.relay.as_ref()) {
            let relay = self.peers.get(relay).filter(|relay| relay.destination.relay.is_none())?;
            return Some(Destination { relay: Some(relay.id), ..relay.destination });
        }
        let link = node.confirmed_address(name).and_then(|address| self.link(address))?;
        Some(Destination { link, relay: None })
    }

    fn update(&mut self, name: &NodeName, node: &mut Node, at: Instant) {
        let path = node.direct_path(at, name).filter(|_| !self.paused);
        let destination = self.destination(name, path.as_ref(), node);
        let path = path.filter(|_| destination.is_some());
        let stays = |carried: &Carried| match (&carried.path, &path) {
            (Some(old), Some(new)) => {
                old.is_continued_by(new) && Some(carried.destination) == destination
            }
            (old, _) => old.is_none(),
        };
        if self.peers.get(name).is_some_and(|carried| !stays(carried)) {
            self.stop(name, node, at);
        }
        let Some(destination) = destination else { return self.remove(name) };
        match self.peers.get_mut(name) {
            Some(carried) if carried.destination == destination => {}
            Some(carried) => {
                carried.destination = destination;
                let id = carried.id;
                self.set_destination(id, destination);
            }
            None => self.add(name, destination),
        }
        let (Some(carried), Some(path)) = (self.peers.get_mut(name), path) else { return };
        if carried.path.as_ref().is_some_and(|old| old.is_same(&path)) {
            return;
        }
        let DirectPath { session, own, peer, .. } = path.clone();
        let relayed = path.relay.is_some();
        let (id, mtu) = (carried.id, inner_mtu(&path, self.packets));
        carried.path = Some(path);
        let key = Box::new(DataKey { session, own, peer, relayed, packets: self.packets });
        self.plane().apply(Command::SetMtu(id, mtu));
        self.plane().apply(Command::InstallKey(id, KeySlot::Primary, key));
        node.set_carried(at, name, true);
    }

    /// Returns the link to an address; `None` if no socket has its family.
    fn link(&self, UdpEndpoint { address, socket }: UdpEndpoint) -> Option<Link> {
        let socket = choose_socket(self.sockets.iter().copied(), address, socket)?;
        Some(Link::datagram(socket, None, address))
    }

    fn set_destination(&self, id: PeerId, destination: Destination) {
        self.plane().apply(match destination.relay {
            Some(relay) => Command::SetRelay(id, relay),
            None => Command::SetLink(id, destination.link),
        });
    }

    fn add(&mut self, name: &NodeName, destination: Destination) {
        // Far fewer peers are in use than there are ids.
        let id = loop {
            let id = PeerId(self.next_id);
            self.next_id = self.next_id.wrapping_add(1) & 0xff_ffff;
            if !self.names.contains_key(&id) {
                break id;
            }
        };
        // Only the relay itself is recognised by its address.
        let unspecified = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let spec = PeerSpec {
            float: Float::Refuse,
            ..PeerSpec::plain(Link::datagram(SocketId(0), None, unspecified))
        };
        self.plane().apply(Command::AddPeer(id, spec));
        self.set_destination(id, destination);
        self.routes.set_outdated();
        self.names.insert(id, name.clone());
        let (counted, records) = (Traffic::default(), (0, 0));
        self.peers.insert(name.clone(), Carried { id, destination, path: None, counted, records });
    }

    /// Stops to carry a node's packets. When this returns, nothing more is sealed.
    fn stop(&mut self, name: &NodeName, node: &mut Node, at: Instant) {
        let Some(carried) = self.peers.get_mut(name) else { return };
        carried.path = None;
        let id = carried.id;
        self.plane().apply(Command::DelKey(id, KeySlot::Primary));
        self.count(name, node, at);
        node.set_carried(at, name, false);
    }

    fn remove(&mut self, name: &NodeName) {
        if let Some(carried) = self.peers.remove(name) {
            self.names.remove(&carried.id);
            self.routes.release(carried.id, self.backend.plane());
            self.plane().apply(Command::DelPeer(carried.id));
        }
    }

    /// Reports the traffic of all nodes that the plane carries, and what it relays. Returns the peers of which it was.
    pub(super) fn count_all(&mut self, node: &mut Node, at: Instant) -> BTreeSet<PeerId> {
        let carried = self.peers.iter().filter(|(_, carried)| carried.path.is_some());
        let names: Vec<NodeName> = carried.map(|(name, _)| name.clone()).collect();
        let relayed_to = self.transits.count(node, self.backend.plane(), at);
        let counted = names.iter().filter_map(|name| self.count(name, node, at));
        counted.chain(relayed_to).collect()
    }

    fn count(&mut self, name: &NodeName, node: &mut Node, at: Instant) -> Option<PeerId> {
        let plane = self.backend.plane();
        let carried = self.peers.get_mut(name)?;
        let counters = plane.counters(carried.id)?;
        let in_band = plane.in_band_received(carried.id)?;
        let total = traffic(counters, in_band, carried.records);
        let longest = plane.longest_received(carried.id)?.saturating_sub(OVERHEAD as u16);
        // What comes through a relay proves nothing about the direct path.
        let largest = if carried.destination.relay.is_some() { 0 } else { longest };
        let more = since(total, carried.counted);
        if more == Traffic::default() {
            return None;
        }
        carried.counted = total;
        let id = carried.id;
        node.carried_traffic(at, name, more, largest);
        Some(id)
    }

    /// Does what is due once a second: keeps the paths alive that packets use, and looks whether they have become narrower.
    pub(super) fn tick(&mut self, node: &mut Node, at: Instant) {
        for id in self.count_all(node, at) {
            self.plane().apply(Command::ProbePath(id, 0));
        }
        self.transits.expire(self.backend.plane());
    }

    /// Returns when a station behind the device last sent a frame that the plane has carried.
    pub(super) fn station_heard(&self, mac: [u8; 6]) -> Option<Instant> {
        self.plane().station_heard(mac)
    }

    /// Adds the plane's metrics that a status report does not have.
    pub(super) fn measure(&self, samples: &mut Samples) {
        self.backend.measure(samples);
    }

    /// Adds the plane's counters to a report.
    pub(super) fn report(&self, report: &mut StatusReport) {
        fill_totals(report, self.plane());
    }
}

/// Returns the limits inside of packets to a node. The MTU of a path of frames counts the Ethernet header.
fn inner_mtu(path: &DirectPath, packets: Packets) -> InnerMtu {
    let room = match packets {
        Packets::Ip => path.mtu,
        Packets::Frames => path.mtu.saturating_sub(ETHERNET),
    };
    let room = room.min(MAX_PACKET);
    let mss = |headers: u16| if path.clamp_mss { room.saturating_sub(headers).max(1) } else { 0 };
    InnerMtu { mss4: mss(TCP4), mss6: mss(TCP6), largest: path.mtu }
}

/// Returns the length of a datagram that is too long for the path, if the largest packet no longer fits into what the kernel knows of it.
fn too_big(mtu: u16, to: SocketAddr, result: ProbeResult) -> Option<usize> {
    let room = longest_datagram(result.kernel, to)?;
    (usize::from(mtu) + OVERHEAD > room).then_some(room + 1)
}

/// Returns the packets and bytes in a peer's datagrams, without records that are no packets.
fn traffic(counters: Counters, in_band: (u64, u64), records: (u64, u64)) -> Traffic {
    let each = OVERHEAD as u64;
    let (rx_messages, rx_message_bytes) = in_band;
    let rx_message_bytes = rx_message_bytes + MESSAGE_OVERHEAD * rx_messages;
    let packets_in = counters.rx_packets.saturating_sub(rx_messages);
    let packets_out = counters.tx_packets.saturating_sub(records.0);
    let inside = |bytes: u64, messages: u64, packets: u64| {
        bytes.saturating_sub(messages).saturating_sub(each.saturating_mul(packets))
    };
    Traffic {
        packets_in,
        bytes_in: inside(counters.rx_bytes, rx_message_bytes, packets_in),
        packets_out,
        bytes_out: inside(counters.tx_bytes, records.1, packets_out),
    }
}

fn since(total: Traffic, counted: Traffic) -> Traffic {
    Traffic {
        packets_in: total.packets_in.saturating_sub(counted.packets_in),
        bytes_in: total.bytes_in.saturating_sub(counted.bytes_in),
        packets_out: total.packets_out.saturating_sub(counted.packets_out),
        bytes_out: total.bytes_out.saturating_sub(counted.bytes_out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_that_of_the_packets_inside() {
        let counters = Counters {
            rx_packets: 11,
            rx_bytes: 10 * (100 + OVERHEAD as u64) + (18 + 1 + MESSAGE_OVERHEAD),
            tx_packets: 7,
            tx_bytes: 5 * (200 + OVERHEAD as u64) + 2 * (18 + OVERHEAD as u64),
        };
        let records = (2, 2 * (18 + OVERHEAD as u64));
        let total = traffic(counters, (1, 19), records);
        let expected = Traffic { packets_in: 10, bytes_in: 1000, packets_out: 5, bytes_out: 1000 };
        assert_eq!(total, expected);
        assert_eq!(since(expected, expected), Traffic::default());
    }

    #[test]
    fn a_path_that_became_narrower_is_noticed() {
        let to = "192.0.2.1:655".parse().unwrap();
        let kernel = |kernel| ProbeResult { size: 0, kernel };
        let fits = 1400 + 33 + 28;
        assert_eq!(too_big(1400, to, kernel(fits)), None);
        assert_eq!(too_big(1400, to, kernel(fits - 1)), Some(1433));
        assert_eq!(too_big(1400, to, kernel(0)), None, "unknown");
        let v6 = "[2001:db8::1]:655".parse().unwrap();
        assert_eq!(too_big(1400, v6, kernel(fits)), Some(fits as usize - 48 + 1));
    }
}
