//! The data path: packets between the device, the router, the node and the UDP sockets.
//!
//! In router mode with a TUN device, and in switch mode, a data plane carries the packets, and what it cannot carry comes up from it. Otherwise one
//! packet is one datagram, and all run through the node on the control thread.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use adit_engine::{Instant, SocketId};
use adit_linux::udp::{RecvBatch, Train, UdpSocket};
use adit_runtime::control::StatusReport;
use adit_runtime::driver::watch;
use adit_runtime::fault::Fault;
use adit_runtime::metrics::Samples;
use adit_tinc::config::ServerConfig;
use adit_tinc::name::NodeName;
use adit_tinc::node::Node;
use adit_tinc::route::{Decision, FragmentPlan, Fragments, Router};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::carrier::{Carrier, CarrierEvent};
use super::device::{Device, MAX_PACKET};
use super::followers::PacketFollowers;

/// The number of datagrams that one call receives.
const BURST: usize = 64;

/// The number of packets that are read from the device before anything else gets its turn.
const MAX_READ: usize = 64;

/// The counters of the data path.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct DataCounters {
    /// Packets that the device did not take.
    pub(super) not_written: u64,
    /// Datagrams that the kernel did not take.
    pub(super) not_sent: u64,
}

/// A source of packets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// The device.
    Device,
    /// The socket with this number.
    Socket(usize),
    /// The data plane.
    Plane,
}

struct Socket {
    socket: Arc<UdpSocket>,
    /// `None` if the data plane receives.
    watched: Option<AsyncFd<OwnedFd>>,
    /// More may wait although the socket will not be reported again.
    more: bool,
}

/// The device, the sockets and the router.
pub(super) struct Data {
    pub(super) device: Device,
    pub(super) router: Router,
    sockets: Vec<Socket>,
    carrier: Option<Carrier>,
    batch: RecvBatch,
    packet: Box<[u8]>,
    device_has_more: bool,
    counters: DataCounters,
    copies: Arc<PacketFollowers>,
}

/// A decision without references into the node, which the next step changes.
enum Step {
    Device,
    Node(NodeName),
    Fragments(NodeName, FragmentPlan),
    Many(Vec<NodeName>, bool),
    Reply(Vec<u8>),
    Drop,
}

impl Step {
    fn of(decision: Decision<'_>) -> Self {
        match decision {
            Decision::Device => Self::Device,
            Decision::Node { to, .. } => Self::Node(to.clone()),
            Decision::Fragments { to, plan, .. } => Self::Fragments(to.clone(), plan),
            Decision::Many { nodes, device } => {
                Self::Many(nodes.into_iter().cloned().collect(), device)
            }
            Decision::Reply(packet) => Self::Reply(packet.to_vec()),
            Decision::Drop(_) => Self::Drop,
        }
    }
}

impl Data {
    /// Starts to move packets. `groups`: the sockets of each address, one for each worker of a data plane.
    pub(super) fn new(
        server: &ServerConfig,
        mut device: Device,
        router: Router,
        groups: Vec<Vec<UdpSocket>>,
        copies: Arc<PacketFollowers>,
    ) -> Result<Self, Fault> {
        let groups = groups.into_iter().map(|group| group.into_iter().map(Arc::new).collect());
        let groups: Vec<Vec<Arc<UdpSocket>>> = groups.collect();
        let tun = device.take_tun();
        let carrier = tun.map(|tun| Carrier::start(server, tun, &groups)).transpose()?;
        let broken = |error: std::io::Error| Fault::environment(format!("the sockets: {error}"));
        let watched = |socket: Arc<UdpSocket>| {
            if carrier.is_some() {
                return Ok(Socket { socket, watched: None, more: false });
            }
            let fd = socket.as_fd().try_clone_to_owned().map_err(broken)?;
            let watched = Some(watch(fd, Interest::READABLE).map_err(broken)?);
            Ok(Socket { socket, watched, more: false })
        };
        let firsts = groups.into_iter().filter_map(|group| group.into_iter().next());
        Ok(Self {
            device,
            router,
            sockets: firsts.map(watched).collect::<Result<_, Fault>>()?,
            carrier,
            batch: RecvBatch::new(BURST),
            packet: vec![0; MAX_PACKET].into_boxed_slice(),
            device_has_more: false,
            counters: DataCounters::default(),
            copies,
        })
    }

    pub(super) fn counters(&self) -> DataCounters {
        self.counters
    }

    /// Waits until there may be packets. Cancel-safe.
    pub(super) async fn ready(&mut self) -> Ready {
        if let Some(carrier) = &self.carrier {
            carrier.ready().await;
            return Ready::Plane;
        }
        if let Some(number) = self.sockets.iter().position(|socket| socket.more) {
            return Ready::Socket(number);
        }
        if self.device_has_more {
            return Ready::Device;
        }
        let (device, sockets) = (&self.device, &self.sockets);
        let socket = poll_fn(|context| {
            for (number, socket) in sockets.iter().enumerate() {
                let Some(watched) = &socket.watched else { continue };
                if let Poll::Ready(Ok(mut ready)) = watched.poll_read_ready(context) {
                    ready.clear_ready();
                    return Poll::Ready(number);
                }
            }
            Poll::Pending
        });
        tokio::select! {
            number = socket => Ready::Socket(number),
            () = device.readable() => Ready::Device,
        }
    }

    /// Moves the packets of a source into the node, whose outputs are to be performed afterwards.
    ///
    /// # Errors
    /// The data plane has failed.
    pub(super) fn read(
        &mut self,
        ready: Ready,
        node: &mut Node,
        now: Instant,
    ) -> Result<(), Fault> {
        match ready {
            Ready::Device => self.read_device(node, now),
            Ready::Plane => self.read_plane(node, now)?,
            Ready::Socket(number) => {
                let Some(socket) = self.sockets.get_mut(number) else { return Ok(()) };
                let received = socket.socket.recv_burst(&mut self.batch);
                // Another error is that of one datagram; the next call has the others.
                let is_empty =
                    |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
                socket.more = !received.as_ref().is_err_and(is_empty);
                for received in self.batch.datagrams_mut().take(received.unwrap_or(0)) {
                    node.datagram(now, socket_id(number), received.remote, received.data);
                }
            }
        }
        Ok(())
    }

    fn read_plane(&mut self, node: &mut Node, now: Instant) -> Result<(), Fault> {
        let Some(carrier) = &mut self.carrier else { return Ok(()) };
        for one in carrier.take()? {
            match one {
                CarrierEvent::Datagram(socket, from, mut bytes) => {
                    node.datagram(now, socket, from, &mut bytes);
                }
                CarrierEvent::Record(from, record) => node.carried_record(now, &from, &record),
                CarrierEvent::FromDevice(mut packet) => {
                    self.route_from_device(&mut packet, node, now);
                }
                CarrierEvent::FromNode(from, mut packet) => {
                    self.route_from_node(&from, &mut packet, node, now);
                }
                CarrierEvent::Forgery(from) => node.carried_forgery(now, &from),
                CarrierEvent::TooBig(to, len) => node.too_big(now, to, len),
            }
        }
        Ok(())
    }

    /// Brings the data plane in line with the node. Returns `true` if the node may have outputs.
    pub(super) fn reconcile(&mut self, node: &mut Node, now: Instant) -> bool {
        match &mut self.carrier {
            // The plane makes no copies.
            Some(carrier) => carrier.reconcile(node, now, self.copies.is_followed()),
            None => {
                node.take_changed_paths();
                false
            }
        }
    }

    /// Sends a record of a node that the data plane carries.
    pub(super) fn send_record(
        &mut self,
        to: &NodeName,
        record: &[u8],
        node: &mut Node,
        now: Instant,
    ) {
        if !self.carrier.as_mut().is_some_and(|carrier| carrier.send(to, record)) {
            node.send_record(now, to, record);
        }
    }

    /// Lets the node know the traffic that the data plane has carried.
    pub(super) fn count(&mut self, node: &mut Node, now: Instant) {
        if let Some(carrier) = &mut self.carrier {
            carrier.count_all(node, now);
        }
    }

    /// Does what is due once a second.
    pub(super) fn tick(&mut self, node: &mut Node, now: Instant) {
        if let Some(carrier) = &mut self.carrier {
            carrier.tick(node, now);
        }
    }

    /// Lets the router know which stations behind the device have sent frames that the data plane has carried.
    pub(super) fn refresh_stations(&mut self) {
        if let Some(carrier) = &self.carrier {
            self.router.refresh(|mac| carrier.station_heard(mac));
        }
    }

    /// Adds the data plane's metrics that a status report does not have.
    pub(super) fn measure(&self, samples: &mut Samples) {
        if let Some(carrier) = &self.carrier {
            carrier.measure(samples);
        }
    }

    /// Adds the data plane's counters to a report.
    pub(super) fn report(&self, report: &mut StatusReport) {
        if let Some(carrier) = &self.carrier {
            carrier.report(report);
        }
    }

    fn read_device(&mut self, node: &mut Node, now: Instant) {
        let mut packet = std::mem::take(&mut self.packet);
        self.device_has_more = true;
        for _ in 0..MAX_READ {
            let Some(len) = self.device.read(&mut packet) else {
                self.device_has_more = false;
                break;
            };
            let Some(bytes) = packet.get_mut(..len) else { break };
            self.route_from_device(bytes, node, now);
        }
        self.packet = packet;
    }

    /// Routes a packet of the device.
    fn route_from_device(&mut self, packet: &mut [u8], node: &mut Node, now: Instant) {
        let prefix = self.router.device_prefix();
        self.copies.copy(packet.get(prefix..).unwrap_or_default());
        let step = {
            let view = node.topology();
            Step::of(self.router.from_device(packet, &view, now))
        };
        if let Some(subnet) = self.router.take_learnt() {
            node.add_subnet(now, subnet);
        }
        let payload = packet.get(prefix..).unwrap_or_default();
        match step {
            Step::Reply(reply) => self.write(&[], &reply),
            step => self.forward(step, None, payload, node, now),
        }
    }

    /// Routes a packet that a node sent.
    pub(super) fn route_from_node(
        &mut self,
        from: &NodeName,
        packet: &mut [u8],
        node: &mut Node,
        now: Instant,
    ) {
        self.copies.copy(packet);
        let step = {
            let view = node.topology();
            Step::of(self.router.from_node(from, packet, &view, now))
        };
        self.forward(step, Some(from), packet, node, now);
    }

    fn forward(
        &mut self,
        step: Step,
        from: Option<&NodeName>,
        packet: &[u8],
        node: &mut Node,
        now: Instant,
    ) {
        match step {
            Step::Device => self.deliver(packet),
            Step::Node(to) => node.send_packet(now, &to, packet),
            Step::Fragments(to, plan) => {
                if let Some(mut fragments) = Fragments::new(packet, plan) {
                    while let Some(fragment) = fragments.next_fragment() {
                        node.send_packet(now, &to, fragment);
                    }
                }
            }
            Step::Many(nodes, device) => {
                if device {
                    self.deliver(packet);
                }
                for to in nodes {
                    node.send_packet(now, &to, packet);
                }
            }
            Step::Reply(reply) => {
                if let Some(from) = from {
                    node.send_packet(now, from, &reply);
                }
            }
            Step::Drop => {}
        }
    }

    /// Writes a packet of a node to the device.
    fn deliver(&mut self, packet: &[u8]) {
        match self.router.device_header(packet) {
            Some(header) => self.write(&header, packet),
            None => self.write(&[], packet),
        }
    }

    fn write(&mut self, header: &[u8], packet: &[u8]) {
        if !self.device.write(header, packet) {
            self.counters.not_written = self.counters.not_written.saturating_add(1);
        }
    }

    /// Sends a datagram, on a certain socket and with a type of service of its own if there is one. Returns whether it was too long for the network.
    pub(super) fn send(
        &mut self,
        to: SocketAddr,
        socket: Option<SocketId>,
        payload: &[u8],
        tos: Option<u8>,
    ) -> bool {
        let locals = self.sockets.iter().map(|socket| socket.socket.local_addr());
        let number = choose_socket(locals, to, socket).map(|SocketId(number)| number);
        let Some(socket) = number.and_then(|number| self.sockets.get(usize::from(number))) else {
            self.counters.not_sent = self.counters.not_sent.saturating_add(1);
            return false;
        };
        match socket.socket.send(&Train { to, from: None, segment: 0, tos, payload }) {
            Ok(()) => false,
            Err(error) => {
                self.counters.not_sent = self.counters.not_sent.saturating_add(1);
                error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error())
            }
        }
    }

    /// Returns the length of the longest datagram to an address that the kernel would send unfragmented.
    pub(super) fn sendable(&self, to: SocketAddr) -> Option<usize> {
        let locals = self.sockets.iter().map(|socket| socket.socket.local_addr());
        let SocketId(number) = choose_socket(locals, to, None)?;
        let Socket { socket, .. } = self.sockets.get(usize::from(number))?;
        let from = Some(socket.local_addr().ip()).filter(|ip| !ip.is_unspecified());
        longest_datagram(socket.path_mtu(to, from).ok()?, to)
    }
}

/// Returns the length of the longest datagram in an IP packet of this length.
pub(super) fn longest_datagram(packet: u16, to: SocketAddr) -> Option<usize> {
    let headers = if to.is_ipv4() { 20 + 8 } else { 40 + 8 };
    usize::from(packet).checked_sub(headers)
}

/// Returns the number of a socket by its place in the configuration.
pub(super) fn socket_id(number: usize) -> SocketId {
    // They are far fewer.
    SocketId(u16::try_from(number).unwrap_or(u16::MAX))
}

/// Returns the socket for datagrams to an address: the one where its node was heard, and otherwise the first one of its family. `locals`: the
/// addresses of all sockets.
pub(super) fn choose_socket(
    mut locals: impl Iterator<Item = SocketAddr>,
    to: SocketAddr,
    heard_on: Option<SocketId>,
) -> Option<SocketId> {
    let mut of_family = || locals.position(|local| local.is_ipv4() == to.is_ipv4());
    heard_on.or_else(|| of_family().map(socket_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first socket of the right family, unless the node was heard on another one.
    #[test]
    fn datagrams_leave_from_the_socket_where_the_node_is_heard() {
        let locals = ["[2001:db8::1]:655", "192.0.2.1:655", "192.0.2.2:655"];
        let choose = |to: &str, heard_on| {
            let locals = locals.iter().map(|local| local.parse().unwrap());
            choose_socket(locals, to.parse().unwrap(), heard_on)
        };
        let (first, second, third) = (socket_id(0), socket_id(1), socket_id(2));
        assert_eq!(choose("192.0.2.9:655", None), Some(second));
        assert_eq!(choose("192.0.2.9:655", Some(third)), Some(third));
        assert_eq!(choose("[2001:db8::9]:655", None), Some(first));
        assert_eq!(choose_socket(std::iter::empty(), "192.0.2.9:655".parse().unwrap(), None), None);
    }
}
