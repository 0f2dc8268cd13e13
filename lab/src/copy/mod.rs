//! A tunnel that shows the ceiling: the throughput of a VPN with adit's design if cryptography and payload checksums cost nothing.
//!
//! One thread moves super-packets from a TUN device to trains of datagrams and back, with the same system calls as the
//! data plane and one pass over each packet on the way out. It authenticates no peer and is only for measuring.

mod frame;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;

use adit_linux::net::{Address, Net};
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::tun::{TunDevice, TunOptions, TunQueue};
use adit_linux::udp::{RecvBatch, SendScratch, Train, UdpOptions, UdpSocket};
use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_wire::VnetHeader;
use adit_wire::ip::Ip;

use frame::{Joiner, Trains};

/// The output when the tunnel is ready.
pub const READY: &str = "copy: ready";

/// One end of a tunnel without cryptography, for measuring only.
///
/// Example: adit-lab copy --tun lab0 --listen 10.1.1.1:5000 --peer 10.1.1.2:5000 --address 10.9.0.1/24
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Name of the TUN device.
    #[arg(long)]
    tun: String,
    /// Local address and port.
    #[arg(long)]
    listen: SocketAddr,
    /// The other end: OUTER:PORT and, if there are several, =INNER[,INNER] with its addresses inside.
    #[arg(long = "peer", required = true)]
    peers: Vec<Peer>,
    /// Address inside the tunnel, with its prefix; repeatable.
    #[arg(long = "address", required = true)]
    addresses: Vec<ipnet::IpNet>,
    /// Largest packet inside; with its 24 bytes it should fit into one outside.
    #[arg(long, default_value_t = 1428)]
    mtu: u32,
}

/// A peer and its addresses inside the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    outer: SocketAddr,
    inner: Vec<IpAddr>,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no peer: write 192.0.2.1:5000 or 192.0.2.1:5000=10.9.0.2,fd00::2")
        };
        let (outer, inner) = text.split_once('=').map_or((text, None), |(a, b)| (a, Some(b)));
        let addresses = inner.into_iter().flat_map(|inner| inner.split(','));
        let inner = addresses.map(|address| address.parse().map_err(|_| wrong()));
        Ok(Self {
            outer: outer.parse().map_err(|_| wrong())?,
            inner: inner.collect::<std::result::Result<_, _>>()?,
        })
    }
}

/// Runs one end until it is killed.
///
/// # Errors
/// The process is not permitted to create a TUN device, an address is in use, or peers cannot be distinguished.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let peers = Peers::new(&arguments.peers)?;
    let options = TunOptions { name: Some(arguments.tun.clone()), ..TunOptions::default() };
    let tun = TunDevice::open(&options).context("the TUN device")?;
    ensure(tun.offloads.tso, || {
        "this kernel's TUN devices have no TSO: nothing to measure".into()
    })?;
    let socket = UdpSocket::bind(&UdpOptions::new(arguments.listen)).context(arguments.listen)?;
    configure(tun.ifindex, &arguments.addresses, arguments.mtu)?;
    let queue = tun.queues.into_iter().next().context("a TUN device without a queue")?;
    println!("{READY} on {}", tun.name);
    End::new(queue, socket, peers)?.run()
}

fn configure(ifindex: u32, addresses: &[ipnet::IpNet], mtu: u32) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let net = Net::open()?;
        net.set_mtu(ifindex, mtu).await.context("setting the MTU")?;
        for address in addresses {
            net.add_address(&Address::new(ifindex, *address)).await.context("adding an address")?;
        }
        net.set_txqueuelen(ifindex, 1000).await.context("setting the queue length")?;
        net.set_up(ifindex).await.context("switching the device on")
    })
}

/// The owners of the addresses inside the tunnel.
#[derive(Debug)]
enum Peers {
    One(SocketAddr),
    Many(HashMap<IpAddr, SocketAddr>),
}

impl Peers {
    fn new(peers: &[Peer]) -> Result<Self> {
        if let [Peer { outer, inner }] = peers
            && inner.is_empty()
        {
            return Ok(Self::One(*outer));
        }
        let mut map = HashMap::new();
        for Peer { outer, inner } in peers {
            ensure(!inner.is_empty(), || {
                format!(
                    "--peer {outer}: of several peers, each needs its address inside: {outer}=10.9.0.2"
                )
            })?;
            for address in inner {
                let taken = map.insert(*address, *outer);
                ensure(taken.is_none(), || format!("--peer {outer}: {address} is another peer's"))?;
            }
        }
        Ok(Self::Many(map))
    }

    fn of(&self, packet: &[u8]) -> Option<SocketAddr> {
        match self {
            Self::One(outer) => Some(*outer),
            Self::Many(map) => map.get(&Ip::parse(packet)?.destination).copied(),
        }
    }
}

const TUN: u64 = 0;
const SOCKET: u64 = 1;
/// The number of bytes that are split before they are sent: as much as fits in a core's cache.
const ARENA: usize = 256 << 10;
/// The number of reads of the TUN device before the socket has its turn.
const READS: usize = 64;
const SLOTS: usize = 64;
const LARGEST: usize = 65_536;
/// The maximum number of trains in one system call.
const TRAINS: usize = 64;

struct End {
    tun: TunQueue,
    sender: Sender,
    peers: Peers,
    poller: Poller,
    packet: Box<[u8]>,
    trains: Trains,
}

impl End {
    fn new(tun: TunQueue, socket: UdpSocket, peers: Peers) -> Result<Self> {
        let (poller, room) = (Poller::new()?, Poller::new()?);
        poller.add(&tun, TUN, Interest::READ)?;
        poller.add(&socket, SOCKET, Interest::READ)?;
        room.add(&socket, SOCKET, Interest::WRITE)?;
        let packet = vec![0; LARGEST].into();
        let scratch = SendScratch::new(TRAINS);
        let sender = Sender { socket, room, scratch, oversize: usize::MAX };
        Ok(Self { tun, sender, peers, poller, packet, trains: Trains::default() })
    }

    fn run(mut self) -> Result<ExitCode> {
        let (mut events, mut batch) = (Events::new(), RecvBatch::new(SLOTS));
        loop {
            self.poller.wait(&mut events, None)?;
            for event in events.iter() {
                match event.token {
                    TUN => self.out()?,
                    _ => self.back(&mut batch),
                }
            }
        }
    }

    /// Copies from the device to the socket.
    fn out(&mut self) -> Result<()> {
        let mut to = None;
        for _ in 0..READS {
            let mut vnet = [0; VnetHeader::LEN];
            let len = match self.tun.read(&mut vnet, &mut self.packet) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Failure(format!("reading the TUN device: {error}"))),
            };
            let packet = self.packet.get(..len).unwrap_or(&[]);
            let Some(peer) = self.peers.of(packet) else { continue };
            if let Some(before) = to
                && (self.trains.len() + LARGEST > ARENA || before != peer)
            {
                self.sender.all(&self.trains, before)?;
                self.trains.clear();
            }
            to = Some(peer);
            // Malformed packets are dropped, as in the data plane.
            let _ = self.trains.split(&VnetHeader::decode(&vnet), packet);
        }
        if let Some(to) = to {
            self.sender.all(&self.trains, to)?;
        }
        self.trains.clear();
        Ok(())
    }

    /// Copies from the socket to the device. Read errors belong to earlier sends, and reading clears them.
    fn back(&self, batch: &mut RecvBatch) {
        if self.sender.socket.recv_burst(batch).is_err() {
            return;
        }
        // If the device's queue is full, the packet is dropped, as by a network card.
        let mut write = |slices: &[io::IoSlice<'_>]| drop(self.tun.write(slices));
        let mut joiner = Joiner::default();
        for received in batch.datagrams_mut() {
            let data: &[u8] = received.data;
            for datagram in data.chunks(received.segment.max(1)) {
                joiner.push(datagram, &mut write);
            }
        }
        joiner.flush(&mut write);
    }
}

/// Sends trains, and waits when the socket's buffer is full.
struct Sender {
    socket: UdpSocket,
    /// Reports only whether the socket has buffer space.
    room: Poller,
    scratch: SendScratch,
    /// Trains of datagrams of at least this length are refused, because the path carries these only as fragments.
    oversize: usize,
}

impl Sender {
    fn all(&mut self, trains: &Trains, to: SocketAddr) -> Result<()> {
        let mut list: Vec<Train<'_>> = Vec::with_capacity(TRAINS);
        for (span, payload) in trains.iter() {
            let segment = u16::try_from(span.segment).unwrap_or(0);
            if span.count > 1 && span.segment >= self.oversize {
                list.extend(singly(&Train { to, from: None, segment, tos: None, payload }));
            } else {
                list.push(Train { to, from: None, segment, tos: None, payload });
            }
        }
        self.list(&list)
    }

    fn list(&mut self, mut rest: &[Train<'_>]) -> Result<()> {
        while let Err(stop) = self.socket.send_trains(rest, &mut self.scratch) {
            rest = rest.get(stop.sent..).unwrap_or(&[]);
            if stop.error.kind() == io::ErrorKind::WouldBlock {
                self.room.wait(&mut Events::new(), None)?;
                continue;
            }
            let Some((failed, after)) = rest.split_first() else { return Ok(()) };
            rest = after;
            let size = usize::from(failed.segment);
            if size < failed.payload.len() && stop.error.raw_os_error() == Some(EMSGSIZE) {
                self.oversize = self.oversize.min(size);
                self.list(&singly(failed).collect::<Vec<_>>())?;
            }
            // Packets that cannot be sent (for example without a neighbour entry) are lost, as on any link.
        }
        Ok(())
    }
}

/// Returns the datagrams of a train one by one.
fn singly<'a>(train: &Train<'a>) -> impl Iterator<Item = Train<'a>> + use<'a> {
    let Train { to, from, segment, tos, payload } = *train;
    payload.chunks(usize::from(segment).max(1)).map(move |payload| Train {
        to,
        from,
        segment: 0,
        tos,
        payload,
    })
}

/// The error for datagrams that are larger than the path carries unfragmented.
const EMSGSIZE: i32 = 90;

#[cfg(test)]
mod tests {
    use super::*;
    use adit_icount::packets;

    fn peers(texts: &[&str]) -> Result<Peers> {
        let peers: std::result::Result<Vec<Peer>, String> =
            texts.iter().map(|text| text.parse()).collect();
        Peers::new(&peers?)
    }

    #[test]
    fn one_peer_takes_everything_and_several_what_is_theirs() {
        let packet = packets::plain(100);
        let to = |texts: &[&str]| peers(texts).unwrap().of(&packet).map(|to| to.to_string());
        assert_eq!(to(&["192.0.2.1:5000"]).as_deref(), Some("192.0.2.1:5000"));
        let two = ["192.0.2.1:5000=10.9.0.3,fd00::3", "192.0.2.2:5000=10.9.0.2"];
        assert_eq!(to(&two).as_deref(), Some("192.0.2.2:5000"));
        assert_eq!(to(&two[..1]), None);
    }

    #[test]
    fn a_train_falls_into_its_datagrams() {
        let payload = [7; 2500];
        let to = "192.0.2.1:5000".parse().unwrap();
        let train = Train { to, from: None, segment: 1000, tos: None, payload: &payload };
        let lengths: Vec<usize> = singly(&train).map(|one| one.payload.len()).collect();
        assert_eq!(lengths, [1000, 1000, 500]);
    }

    #[test]
    fn peers_that_cannot_be_told_apart_are_refused() {
        let wrong = |texts: &[&str]| peers(texts).unwrap_err().0;
        assert!(wrong(&["192.0.2.1:5000", "192.0.2.2:5000"]).contains("192.0.2.1:5000=10.9.0.2"));
        assert!(
            wrong(&["192.0.2.1:1=10.9.0.2", "192.0.2.2:1=10.9.0.2"]).contains("another peer's")
        );
        assert!(wrong(&["192.0.2.1"]).contains("write 192.0.2.1:5000"));
    }
}
