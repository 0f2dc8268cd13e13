//! Tests a TCP client that stops reading while packets for it keep coming.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Scenario, ping_until};
use crate::case::{Configs, InnerAddrs, READY, SETUP_LIMIT, inner_addrs};
use crate::failure::{Context, Result, ensure};
use crate::matrix::Wrapping;
use crate::net::{Namespace, Star};
use crate::pki::PkiTool;
use crate::process::Daemon;
use crate::traffic::{ping, tcp};

/// One of three clients stalls, and the connection to it fills up. The others' traffic continues. When it resumes, its
/// tunnel is still up, although packets to it were dropped. openvpn takes a gap in the packet ids for an attack, so no
/// packet with an id may be missing.
pub(super) fn stalled_stream(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = Configs::new(&scenario.env.pki, PkiTool::OpenSslEc, false);
    configs.wrap(&scenario.env.pki, Wrapping::TlsCrypt);
    configs.server = configs.server.replace("proto udp4", "proto tcp4-server");
    configs.client = configs.client.replace("proto udp4", "proto tcp4-client");
    configs.server("duplicate-cn");
    if scenario.client.may_offload() {
        configs.client("disable-dco");
    }
    let star = Star::new(3)?;
    let path = |name: &str| scenario.folder.join(name);
    fs::create_dir_all(&scenario.folder)?;
    fs::write(path("server.conf"), &configs.server)?;
    fs::write(path("client.conf"), &configs.client)?;
    let mut server =
        Daemon::spawn("server", scenario.server.command(&star.server, &path("server.conf")))?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut clients = Vec::new();
    let mut inner: Vec<InnerAddrs> = Vec::new();
    for namespace in &star.clients {
        let command = scenario.client.command(namespace, &path("client.conf"));
        let mut client = Daemon::spawn("client", command)?;
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("then")))?;
        inner.push(inner_addrs(namespace)?);
        clients.push(client);
    }
    let [first, second, still] = inner.as_slice() else {
        return Err("three were asked for".into());
    };
    let last = clients.last().context("three were asked for")?;
    last.signal(Signal::SIGSTOP)?;
    let flood = Flood::start(&star.server, still.v4)?;
    let others = star.clients.iter().zip([first, second]).try_for_each(|(namespace, at)| {
        for _ in 0..5 {
            let got = ping(&star.server, at.v4, 1200, 4)?;
            ensure(got == 4, || format!("{got} of 4 pings while another client is stalled"))?;
            tcp(&star.server, namespace, at.v4, 1_000_000)?;
        }
        Ok(())
    });
    let sent = flood.stop()?;
    last.signal(Signal::SIGCONT)?;
    others.map_err(|e: crate::failure::Failure| server.failure(&e.0))?;
    ping_until(&star.server, still.v4, Duration::from_secs(20))?;
    tcp(&star.server, &star.clients[2], still.v4, 1_000_000)?;
    ensure(last.count(READY) == 1, || last.failure("it had to connect anew").0)?;
    let came = refused(&star.clients[2])?;
    ensure(came < sent, || format!("all of {sent} datagrams came: the connection was never full"))?;
    Ok(format!("of {sent} datagrams for the one that stood still {came} came"))
}

/// Returns the number of datagrams that arrived for a port without a listener.
fn refused(namespace: &Namespace) -> Result<u32> {
    let counters = namespace.run("cat", &["/proc/net/snmp"])?;
    let values = counters.lines().filter(|line| line.starts_with("Udp:")).nth(1);
    let no_ports = values.and_then(|values| values.split_whitespace().nth(2)?.parse().ok());
    no_ports.context("/proc/net/snmp has no Udp: NoPorts")
}

/// Sends datagrams to one address, far more than the connection to it can hold, but too few to fill the device's queue,
/// which all clients share.
struct Flood {
    stop: Arc<AtomicBool>,
    sender: thread::JoinHandle<Result<u32>>,
}

impl Flood {
    fn start(from: &Namespace, to: IpAddr) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let sender = from.thread(move || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..20 {
                    // The device may be full.
                    sent += u32::from(socket.send_to(&[7; 1300], SocketAddr::new(to, 9)).is_ok());
                }
                thread::sleep(Duration::from_millis(10));
            }
            Ok(sent)
        });
        Ok(Self { stop, sender: sender? })
    }

    fn stop(self) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().map_err(|_| "the sender panicked")?
    }
}
