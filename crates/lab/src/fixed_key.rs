//! The data path alone: a tunnel with fixed keys between two namespaces, and the same work without
//! any I/O.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_crypto::{Cipher, KeyHalf};
use adit_engine::verbs::{DataKey, Framing, InnerMtu, Keepalive, KeyLimits, KeySlot, PeerSpec};
use adit_engine::{Link, Op, PeerId, SocketId};
use adit_interop::failure::{Context, Failure, Result};
use adit_linux::net::{Address, Net};
use adit_linux::tun::{TunDevice, TunOffloads, TunOptions};
use adit_linux::udp::{UdpOptions, UdpSocket};
use adit_plane::framing::PING;
use adit_plane::{Histogram, Offloads, Plane, PlaneConfig, Relay, Totals};

/// A tunnel whose keys are known to everybody: for measuring only.
///
/// Example: adit-lab fixed-key --tun lab0 --listen 10.1.1.1:5000 --peer 10.1.1.2:5000 --address 10.9.0.1/24
#[derive(clap::Args)]
pub struct Arguments {
    /// Name of the TUN device.
    #[arg(long)]
    tun: String,
    /// Local address and port.
    #[arg(long)]
    listen: SocketAddr,
    /// The other end's address and port.
    #[arg(long)]
    peer: SocketAddr,
    /// The data channel's cipher.
    #[arg(long, default_value = "AES-256-GCM")]
    cipher: String,
    /// Address inside the tunnel, with its prefix.
    #[arg(long)]
    address: ipnet::IpNet,
    /// Offloads to leave off: udp-gso, udp-gro, tun-tso, tun-uso; repeatable.
    #[arg(long = "without")]
    without: Vec<String>,
    /// Largest TCP segment for IPv4; IPv6 gets 20 less.
    #[arg(long, default_value_t = 1400)]
    mss: u16,
    /// In-band messages per second that control sends meanwhile, to see what they cost.
    #[arg(long, default_value_t = 0)]
    messages: u32,
    /// Stop after so many seconds and print what was counted.
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
}

/// One peer at each end, so any number will do.
const PEER: PeerId = PeerId(1);

/// Runs one end.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let cipher = cipher_of(&arguments.cipher)?;
    let gates = gates(&arguments.without)?;
    let offloads = TunOffloads {
        csum: gates.tun_tso || gates.tun_uso,
        tso: gates.tun_tso,
        uso: gates.tun_uso,
    };
    let options =
        TunOptions { name: Some(arguments.tun.clone()), offloads, ..TunOptions::default() };
    let tun = TunDevice::open(&options).context("the TUN device")?;
    configure(tun.ifindex, arguments.address)?;
    let socket = UdpOptions { gro: gates.udp_gro, ..UdpOptions::new(arguments.listen) };
    let socket = Arc::new(UdpSocket::bind(&socket).context(arguments.listen)?);
    let config = PlaneConfig {
        tun: Some(tun),
        sockets: vec![(SocketId(0), socket)],
        relay: Relay::Kernel,
        gates,
        client: true,
    };
    let (plane, _upcalls) = Plane::start(config, now).context("starting the plane")?;
    let link = Link::datagram(SocketId(0), None, arguments.peer);
    let first = arguments.listen < arguments.peer;
    introduce(&plane, link, cipher, first, arguments.mss);
    let time = Duration::from_secs(arguments.seconds);
    match Duration::from_secs(1).checked_div(arguments.messages) {
        None => std::thread::sleep(time),
        Some(pause) => {
            let end = Instant::now() + time;
            while Instant::now() < end {
                plane.apply(Op::SendData(PEER, PING.to_vec()));
                std::thread::sleep(pause);
            }
        }
    }
    print_totals(&plane.totals());
    Ok(ExitCode::SUCCESS)
}

fn now() -> adit_engine::Instant {
    adit_engine::Instant::from_nanos(adit_linux::clock::boottime())
}

fn cipher_of(name: &str) -> Result<Cipher> {
    Cipher::from_name(name).ok_or_else(|| {
        let names = Cipher::ALL.map(Cipher::name).join(", ");
        Failure(format!("{name}: no such cipher; write one of {names}"))
    })
}

fn gates(without: &[String]) -> Result<Offloads> {
    let mut gates = Offloads::ALL;
    for name in without {
        match name.as_str() {
            "udp-gso" => gates.udp_gso = false,
            "udp-gro" => gates.udp_gro = false,
            "tun-tso" => gates.tun_tso = false,
            "tun-uso" => gates.tun_uso = false,
            _ => {
                let text = "no such offload; write udp-gso, udp-gro, tun-tso or tun-uso";
                return Err(Failure(format!("{name}: {text}")));
            }
        }
    }
    Ok(gates)
}

fn configure(ifindex: u32, address: ipnet::IpNet) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let net = Net::open()?;
        net.add_address(&Address::new(ifindex, address)).await.context("adding the address")?;
        net.set_txqueuelen(ifindex, 1000).await.context("setting the queue length")?;
        net.set_up(ifindex).await.context("switching the device on")
    })
}

/// Both ends derive the same two keys and use them the other way round.
fn introduce(plane: &Plane, link: Link, cipher: Cipher, first: bool, mss: u16) {
    let half = |byte: u8| KeyHalf { cipher: [byte; 64], hmac: [byte ^ 0xff; 64] };
    let (seal, open) = if first { (half(1), half(2)) } else { (half(2), half(1)) };
    let spec = PeerSpec {
        link,
        wire_id: Some(PEER.0),
        float: false,
        framing: Framing::None,
        keepalive: Keepalive::default(),
        mtu: InnerMtu { mss4: mss, mss6: mss.saturating_sub(20) },
        replay_window: 64,
    };
    let key = DataKey { key_id: 0, cipher, seal, open, limits: KeyLimits::default() };
    plane.apply(Op::AddPeer(PEER, spec));
    plane.apply(Op::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
    let everywhere = ["0.0.0.0/0", "::/0"].iter().filter_map(|net| net.parse().ok()).collect();
    plane.apply(Op::SetRoutes(PEER, everywhere));
}

fn print_totals(totals: &Totals) {
    let histograms = [
        ("packets per TUN read", &totals.tun_read),
        ("datagrams per send", &totals.sent),
        ("datagrams per receive", &totals.received),
        ("packets per TUN write", &totals.tun_written),
    ];
    for (name, histogram) in histograms {
        print!("{name:22} mean {:5.1}", histogram.mean());
        for (label, count) in Histogram::LABELS.iter().zip(histogram.buckets) {
            print!("  {label}: {count}");
        }
        println!();
    }
    for (reason, count) in totals.drops.iter().filter(|(_, count)| *count > 0) {
        println!("dropped {reason}: {count}");
    }
    println!("offloads {:?}", totals.offloads);
}
