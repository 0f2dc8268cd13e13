//! A server and its clients in memory.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::{DropReason, Relay, StreamEnd, Upcall, Upcalls};
use adit_engine::command::{KeySlot, PeerSpec};
use adit_engine::{Command, Instant, Link, Notice, PeerId, SocketId, VlanId};
use adit_wire::VnetHeader;
use adit_wire::merge::Write;
use adit_wire::vlan::Tagged;

use super::{Types, key, layout};
use crate::LoopbackPlane;

/// Returns a time that advances by 15 ms with each call: peers may then move with each packet. All tests of a program
/// advance it, so seconds may pass between two packets.
pub(crate) fn clock() -> Instant {
    static NOW: AtomicU64 = AtomicU64::new(1);
    Instant::from_nanos(NOW.fetch_add(15_000_000, Ordering::Relaxed))
}

/// Returns a clock that does not advance.
pub(crate) fn one_moment() -> Instant {
    Instant::from_nanos(1_000_000_000)
}

pub(crate) fn link(host: u8, port: u16) -> Link {
    Link::datagram(SocketId(0), None, ([192, 0, 2, host], port).into())
}

pub(crate) fn spec(link: Link) -> PeerSpec<Types> {
    PeerSpec { layout: layout(0), ..PeerSpec::plain(link) }
}

/// Packets for other peers.
pub(crate) type Relayed = Vec<(PeerId, Vec<u8>)>;

/// Sealed packets for a peer, of this length except the last.
pub(crate) type Train = (PeerId, usize, Vec<u8>);

/// One end and its upcalls.
pub(crate) struct End {
    pub memory: LoopbackPlane,
    pub upcalls: Upcalls<Types>,
}

impl End {
    pub(crate) fn new(relay: Relay, client: bool) -> Self {
        let (memory, upcalls) = LoopbackPlane::new(relay, client, true, clock).unwrap();
        Self { memory, upcalls }
    }

    /// Creates an end whose clock does not advance.
    pub(crate) fn frozen(relay: Relay, client: bool) -> Self {
        let (memory, upcalls) = LoopbackPlane::new(relay, client, true, one_moment).unwrap();
        Self { memory, upcalls }
    }

    /// Creates an end with a TAP device.
    pub(crate) fn ethernet(relay: Relay, client: bool) -> Self {
        let (memory, upcalls) = LoopbackPlane::ethernet(relay, client, clock).unwrap();
        Self { memory, upcalls }
    }

    pub(crate) fn apply(&self, op: Command<Types>) {
        self.memory.plane().apply(op);
    }

    /// Seals a plain packet and returns the resulting datagrams.
    pub(crate) fn seal(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        let mut copy = packet.to_vec();
        self.memory.seal(&VnetHeader::default(), &mut copy, |train, segment| {
            out.extend(train.chunks(segment).map(<[u8]>::to_vec));
        });
        out
    }

    pub(crate) fn seal_one(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut out = self.seal(packet);
        assert_eq!(out.len(), 1);
        out.remove(0)
    }

    /// Opens one datagram and returns the packets for the TUN device.
    pub(crate) fn open(&mut self, link: Link, datagram: &[u8]) -> Vec<Vec<u8>> {
        self.open_buffer(link, datagram.len(), datagram).0
    }

    /// Opens a received buffer; returns the packets for the TUN device and for other peers.
    pub(crate) fn open_buffer(
        &mut self,
        link: Link,
        segment: usize,
        data: &[u8],
    ) -> (Vec<Vec<u8>>, Relayed) {
        self.open_apart(link, (segment, segment), data)
    }

    /// Does the same as [`Self::open_buffer`] for datagrams of this length that begin this many bytes apart.
    pub(crate) fn open_apart(
        &mut self,
        link: Link,
        lengths: (usize, usize),
        data: &[u8],
    ) -> (Vec<Vec<u8>>, Relayed) {
        let (mut tun, mut peers) = (Vec::new(), Vec::new());
        self.memory.open_apart(&link, lengths, &mut data.to_vec(), |what| match what {
            LoopbackOutput::Tun(write) => tun.extend(write.packets().map(<[u8]>::to_vec)),
            LoopbackOutput::Tagged(vlan, write) => tun.extend(with_tag(vlan, write)),
            LoopbackOutput::Peer(id, packet) => peers.push((id, packet.to_vec())),
            LoopbackOutput::Sealed(to, segment, packets) => {
                peers.extend(packets.chunks(segment).map(|packet| (to, packet.to_vec())));
            }
        });
        (tun, peers)
    }

    /// Opens whole packets of a stream; returns the packets for the TUN device.
    pub(crate) fn open_stream(
        &mut self,
        link: Link,
        packets: &[&[u8]],
    ) -> Result<Vec<Vec<u8>>, StreamEnd> {
        let length = |packet: &[u8]| u16::try_from(packet.len()).unwrap().to_be_bytes();
        let mut framed: Vec<u8> =
            packets.iter().flat_map(|packet| [&length(packet), *packet].concat()).collect();
        let mut tun = Vec::new();
        let opened = self.memory.open_stream(&link, 9_600, &mut framed, |what| {
            if let LoopbackOutput::Tun(write) = what {
                tun.extend(write.packets().map(<[u8]>::to_vec));
            }
        });
        opened.map(|()| tun)
    }

    /// Passes a received buffer in. Returns the trains that are relayed unread.
    pub(crate) fn relay_buffer(&mut self, link: Link, segment: usize, data: &[u8]) -> Vec<Train> {
        let mut trains = Vec::new();
        self.memory.open(&link, segment, &mut data.to_vec(), |what| match what {
            LoopbackOutput::Sealed(to, segment, packets) => {
                trains.push((to, segment, packets.to_vec()));
            }
            other => panic!("{other:?}"),
        });
        trains
    }

    pub(crate) fn notices(&mut self) -> VecDeque<Notice<Types>> {
        let mut notices = VecDeque::new();
        self.upcalls.drain(|upcall| {
            if let Upcall::Notice(notice) = upcall {
                notices.push_back(notice);
            }
        });
        notices
    }

    /// Drops the queued upcalls and returns their number.
    pub(crate) fn upcalls_taken(&mut self) -> u64 {
        let mut count = 0;
        self.upcalls.drain(|_| count += 1);
        count
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.memory.plane().totals().dropped(reason)
    }

    pub(crate) fn all_drops(&self) -> u64 {
        self.memory.plane().totals().drops.iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn received(&self, id: u32) -> u64 {
        self.memory.plane().counters(PeerId(id)).unwrap().rx_packets
    }
}

/// Returns the frames that the device gets, with the tag of their VLAN.
fn with_tag(vlan: VlanId, write: &Write<'_, '_>) -> Vec<Vec<u8>> {
    let frames = write.packets().map(|frame| {
        let tagged = Tagged::new(&VnetHeader::default(), frame, vlan.get()).unwrap();
        [&tagged.start, &frame[tagged.rest..]].concat()
    });
    frames.collect()
}

/// Builds a packet from the address of client `n` in the tunnel: 10.8.0.n.
pub(crate) fn packet(from: u8, to: u8, fill: u8) -> Vec<u8> {
    let mut packet = vec![fill; 120];
    let header = [0x45, 0, 0, 120, 0, 0, 0, 0, 64, 253, 0, 0, 10, 8, 0, from, 10, 8, 0, to];
    packet[..20].copy_from_slice(&header);
    let sum = adit_wire::checksum::Sum::new().bytes(&header).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The last byte of the server's tunnel address. No client's address has it.
pub(crate) const SERVER: u8 = 1;

/// Creates a server with clients, client `n` with peer-id `n` and at 192.0.2.n:1000.
pub(crate) fn world<const N: usize>(relay: Relay, clients: [u8; N]) -> (End, [End; N]) {
    world_of(End::new, relay, clients)
}

/// Does the same as [`world`], with ends that `end` creates.
pub(crate) fn world_of<const N: usize>(
    end: fn(Relay, bool) -> End,
    relay: Relay,
    clients: [u8; N],
) -> (End, [End; N]) {
    let server = end(relay, false);
    let ends = connect(&server, end, clients.map(|n| (n, None)));
    (server, ends)
}

/// Connects clients to a server, each in its VLAN.
pub(crate) fn connect<const N: usize>(
    server: &End,
    end: fn(Relay, bool) -> End,
    clients: [(u8, Option<VlanId>); N],
) -> [End; N] {
    clients.map(|(n, vlan)| {
        let id = PeerId(u32::from(n));
        let at_server = PeerSpec { layout: layout(u32::from(n)), vlan, ..spec(link(n, 1000)) };
        server.apply(Command::AddPeer(id, at_server));
        server.apply(Command::SetRoutes(id, vec![format!("10.8.0.{n}/32").parse().unwrap()]));
        server.apply(Command::InstallKey(id, KeySlot::Primary, key(n, 0, true)));
        let client = end(Relay::Kernel, true);
        let at_client = PeerSpec { layout: layout(u32::from(n)), ..spec(link(200, 1194)) };
        client.apply(Command::AddPeer(PeerId(0), at_client));
        client.apply(Command::SetRoutes(PeerId(0), vec!["0.0.0.0/0".parse().unwrap()]));
        client.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(n, 0, false)));
        client
    })
}
