//! Tests of `adit bridge`: every frame that enters through one port leaves through the other, no other frame does, and the host is not
//! involved.

mod links;
mod routed;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use adit_linux::net::Net;
use adit_linux::packet::{FrameBatch, PacketSocket};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::{Scenario, ScenarioFn};
use crate::failure::{Context, Failure, Result, ensure};
use crate::net::{Namespace, ip};
use crate::peer::Program;
use crate::process::Daemon;
use crate::traffic::tcp_to_port;
use crate::wait::{ScaledInstant, until};

const LIMIT: Duration = Duration::from_secs(15);

/// The scenarios of this module.
const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("taps", taps),
    ("veths", veths),
    ("veths-two-workers", veths_two_workers),
    ("vlan-tags", vlan_tags),
    ("removed-ports", removed_ports),
    ("removed-tap", removed_tap),
    ("killed", killed),
    ("rules", rules),
    ("reloads-under-load", reloads_under_load),
    ("refusals", refusals),
];

/// Returns all scenarios of this module.
pub(super) fn scenarios() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    SCENARIOS.iter().chain(links::SCENARIOS).chain(routed::SCENARIOS)
}

/// Two hosts, and a host between them that bridges.
struct BridgeSetup<'a> {
    scenario: &'a Scenario<'a>,
    left: Namespace,
    middle: Namespace,
    right: Namespace,
}

impl<'a> BridgeSetup<'a> {
    fn new(scenario: &'a Scenario<'a>) -> Result<Self> {
        let three = Namespace::several(&["left", "middle", "right"])?;
        let [left, middle, right] =
            three.try_into().map_err(|_| "three namespaces were asked for")?;
        Ok(Self { scenario, left, middle, right })
    }

    /// Adds veth pairs from the middle, where their ends are called `mid0` and `mid1`, to `port` at each side.
    fn with_cables(scenario: &'a Scenario<'a>) -> Result<Self> {
        let place = Self::new(scenario)?;
        place.veth_pair("mid0", &place.left)?;
        place.veth_pair("mid1", &place.right)?;
        // A bridge without an address has nothing to announce.
        place.middle.handle()?.set_sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
        place.address("port", "port")?;
        Ok(place)
    }

    fn veth_pair(&self, name: &str, to: &Namespace) -> Result<()> {
        let peer = to.name();
        ip(
            Some(&self.middle),
            [format!("link add {name} up type veth peer name port netns {peer}")].into_iter(),
        )
    }

    /// Adds addresses of 10.5.0.0/24 and fd05::/64 on both sides, 1 on the left and 2 on the right.
    fn address(&self, left: &str, right: &str) -> Result<()> {
        for (host, port, number) in [(&self.left, left, 1), (&self.right, right, 2)] {
            let lines = [
                format!("link set {port} up"),
                format!("addr add 10.5.0.{number}/24 dev {port}"),
                format!("addr add fd05::{number}/64 dev {port} nodad"),
            ];
            ip(Some(host), lines.into_iter())?;
        }
        Ok(())
    }

    /// Gives the host in the middle an address in another network, because Linux answers for it on any interface.
    fn answer_in_the_middle(&self) -> Result<()> {
        let lines = ["addr add 10.5.0.9/32 dev lo", "route replace 10.5.0.0/24 dev mid0"];
        ip(Some(&self.middle), lines.iter().map(|line| (*line).to_owned()))
    }

    fn adit(&self) -> Result<String> {
        match self.scenario.server {
            Program::Adit(path) => Ok(path.to_string_lossy().into_owned()),
            _ => Err(Failure::from("only adit bridges")),
        }
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.middle.command(&self.adit()?);
        command.arg("bridge").args(arguments).arg("--dir").arg(self.scenario.folder());
        Ok(command)
    }

    /// Starts a bridge and waits until it is up.
    fn start(&self, arguments: &[&str]) -> Result<Daemon> {
        let mut bridge = Daemon::spawn("bridge", self.command(arguments)?)?;
        bridge.wait_for("the bridge is up", LIMIT)?;
        Ok(bridge)
    }

    fn status(&self) -> Result<serde_json::Value> {
        let folder = self.scenario.folder().display().to_string();
        let text = self.middle.run(&self.adit()?, &["status", "--json", "--dir", &folder])?;
        let all: serde_json::Value = serde_json::from_str(&text).context("its status")?;
        all.get(0).cloned().context("no bridge in its status")
    }

    /// Pings over both families from both sides.
    fn pings(&self) -> Result<()> {
        for (from, number) in [(&self.left, 2), (&self.right, 1)] {
            for to in [format!("10.5.0.{number}"), format!("fd05::{number}")] {
                reach(from, &to)?;
            }
        }
        Ok(())
    }
}

/// Pings until an answer arrives.
fn reach(from: &Namespace, to: &str) -> Result<()> {
    let began = ScaledInstant::now();
    loop {
        match from.run("ping", &["-c", "1", "-W", "1", to]) {
            Ok(_) => return Ok(()),
            Err(failure) if began.elapsed() > LIMIT => return Err(failure),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn answers(from: &Namespace, to: &str) -> bool {
    from.run("ping", &["-c", "1", "-W", "1", to]).is_ok()
}

/// Returns a number in the report.
fn number(report: &serde_json::Value, pointer: &str) -> Result<u64> {
    report.pointer(pointer).and_then(serde_json::Value::as_u64).context(pointer)
}

/// The number of bytes that [`bulk`] moves.
const BULK: usize = 16 << 20;

/// Transfers [`BULK`] bytes from left to right over TCP port `port`; returns when every byte has been read.
fn bulk(place: &BridgeSetup<'_>, port: u16) -> Result<()> {
    bulk_to(place, "10.5.0.2", port)
}

fn bulk_to(place: &BridgeSetup<'_>, to: &str, port: u16) -> Result<()> {
    let target = SocketAddr::new(to.parse().context(to)?, port);
    tcp_to_port(&place.left, &place.right, target, BULK)?;
    Ok(())
}

/// Returns whether the right host listens at a TCP port of `to` and the left host cannot connect to it.
fn blocked(place: &BridgeSetup<'_>, to: &str, port: u16) -> Result<bool> {
    let target = SocketAddr::new(to.parse().context(to)?, port);
    let _listener =
        place.right.handle()?.run(move || TcpListener::bind(target))?.context(target)?;
    let three_seconds = Duration::from_secs(3);
    let connected =
        place.left.handle()?.run(move || TcpStream::connect_timeout(&target, three_seconds))?;
    Ok(connected.is_err())
}

/// Returns the number of frames that an interface of a host received, by the kernel's count; a super-packet counts as
/// one.
fn arrived_at(host: &Namespace, interface: &str) -> Result<u64> {
    let file = format!("/sys/class/net/{interface}/statistics/rx_packets");
    host.run("cat", &[&file])?.trim().parse().context(file)
}

/// Checks that super-packets pass whole, however busy the machine is. The first port receives them whole, and as many
/// frames leave through the other one. Segments would be tens of times as many.
fn passed_whole(place: &BridgeSetup<'_>, interface: &str) -> Result<String> {
    let out = arrived_at(&place.right, interface)?;
    let report = place.status()?;
    let port = |name| number(&report, &format!("/bridge/ports/0/{name}"));
    let (frames, large, bytes) = (port("frames")?, port("large")?, port("bytes")?);
    ensure(bytes > BULK as u64, || format!("{bytes} bytes came in, of {BULK}"))?;
    // The average frame is more than twice as long as the longest Ethernet frame, so it was not split.
    ensure(large > 0 && bytes / frames > 2 * 1514, || {
        format!("no super-packets came in: {large} in {frames} frames of {bytes} bytes")
    })?;
    ensure(out < 2 * frames, || {
        format!("super-packets did not pass whole: {frames} frames came in and {out} left")
    })?;
    Ok(format!("{} bytes a frame, {frames} in and {out} out", bytes / frames))
}

fn taps(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::new(scenario)?;
    let mut bridge = place.start(&["tap:private", "tap:public", "--relay"])?;
    let moves = [(&place.left, "private"), (&place.right, "public")]
        .map(|(to, tap)| format!("link set {tap} netns {}", to.name()));
    ip(Some(&place.middle), moves.into_iter())?;
    place.address("private", "public")?;
    place.pings()?;
    bulk(&place, 7070)?;
    let whole = passed_whole(&place, "public")?;
    bridge.stop()?;
    ensure(place.left.run("ip", &["link", "show", "private"]).is_err(), || {
        "the TAP outlives its bridge".into()
    })?;
    Ok(whole)
}

fn veths(scenario: &Scenario<'_>) -> Result<String> {
    between_cables(scenario, "1")
}

fn veths_two_workers(scenario: &Scenario<'_>) -> Result<String> {
    between_cables(scenario, "2")
}

fn between_cables(scenario: &Scenario<'_>, workers: &str) -> Result<String> {
    let place = BridgeSetup::with_cables(scenario)?;
    place.answer_in_the_middle()?;
    place.middle.handle()?.set_sysctl("net.ipv4.ip_forward", "1")?;
    reach(&place.left, "10.5.0.9").context("the host, without a bridge")?;
    ip(Some(&place.left), ["neigh flush all".to_owned()].into_iter())?;
    let mut bridge = place.start(&["mid0", "mid1", "--relay", "--workers", workers])?;
    place.pings()?;
    ensure(!answers(&place.left, "10.5.0.9"), || "the host answers for what only passes".into())?;
    // This holds even if its address is known and need not be resolved. A closed port sends no reset.
    let mac = place.middle.run("cat", &["/sys/class/net/mid0/address"])?;
    let neighbour = format!("neigh replace 10.5.0.9 lladdr {} dev port", mac.trim());
    ip(Some(&place.left), [neighbour].into_iter())?;
    let knock = ["2", "bash", "-c", "exec 3<>/dev/tcp/10.5.0.9/9"];
    let said =
        place.left.run("timeout", &knock).map_or_else(|failure| failure.0, |_| "open".into());
    ensure(!said.contains("refused") && said != "open", || {
        format!("the host answers connections: {said}")
    })?;
    bulk(&place, 7070)?;
    let whole = passed_whole(&place, "port")?;
    let before = number(&place.status()?, "/bridge/ports/0/frames")?;
    own_output(&place)?;
    let report = place.status()?;
    let after = number(&report, "/bridge/ports/0/frames")?;
    ensure(after - before < 10, || {
        format!("{} frames of the host's own were seen", after - before)
    })?;
    bridge.stop()?;
    ip(Some(&place.left), ["neigh flush all".to_owned()].into_iter())?;
    reach(&place.left, "10.5.0.9").context("the host, after the bridge's end")?;
    Ok(whole)
}

/// Opens a socket on an interface of a namespace.
pub(super) fn tap_into(host: &Namespace, interface: &str) -> Result<PacketSocket> {
    let interface = interface.to_owned();
    let index = host.handle()?.configure(async |net: &Net| net.link(&interface).await)?;
    let index = index.context(&interface)?.index;
    let sockets = host.handle()?.run(|| PacketSocket::open(index, 1))?;
    sockets.context(&interface)?.pop().context("no socket was opened")
}

/// Receives frames of the EtherType for experiments (after tags), until there are `wanted` or [`LIMIT`] is over.
fn experiments(socket: &PacketSocket, wanted: usize, mark: &[u8]) -> Result<Vec<Vec<u8>>> {
    experiments_within(socket, wanted, mark, LIMIT)
}

/// Receives like [`experiments`], with a limit of the caller's choice, because if no frames are expected, a long wait
/// shows nothing more.
pub(super) fn experiments_within(
    socket: &PacketSocket,
    wanted: usize,
    mark: &[u8],
    limit: Duration,
) -> Result<Vec<Vec<u8>>> {
    let (mut batch, mut seen) = (FrameBatch::new(16), Vec::new());
    let end = ScaledInstant::now() + limit;
    while seen.len() < wanted && ScaledInstant::now() < end {
        let mut ready = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::from(50u8))?;
        if socket.receive(&mut batch).is_err() {
            continue;
        }
        for at in 0..batch.len() {
            let frame = batch.frame(at).map(|frame| frame.bytes.to_vec()).unwrap_or_default();
            if frame.windows(mark.len()).any(|window| window == mark) {
                seen.push(frame);
            }
        }
    }
    Ok(seen)
}

pub(super) const MARK: &[u8] = b"adit-interop-bridge";

/// Builds a frame between fictitious stations with these tags before its type.
pub(super) fn frame(tags: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 9, 1, 2, 0, 0, 0, 9, 2];
    bytes.extend(tags);
    bytes.extend([0x88, 0xb5]);
    bytes.extend(MARK);
    bytes.resize(64, 0);
    bytes
}

/// The host's own output on a port does not reach the other port.
fn own_output(place: &BridgeSetup<'_>) -> Result<()> {
    let (own, left, right) = (
        tap_into(&place.middle, "mid0")?,
        tap_into(&place.left, "port")?,
        tap_into(&place.right, "port")?,
    );
    for _ in 0..50 {
        own.send(&[0; 10], &frame(&[]))?;
    }
    let arrived = experiments(&left, 50, MARK)?.len();
    ensure(arrived == 50, || format!("{arrived} of 50 frames arrived"))?;
    let seen = experiments_within(&right, 1, MARK, Duration::from_secs(1))?.len();
    ensure(seen == 0, || "the bridge passed on what the host itself sent".into())
}

fn vlan_tags(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::with_cables(scenario)?;
    let mut passed = 0;
    for workers in ["1", "2"] {
        let mut bridge = place.start(&["mid0", "mid1", "--relay", "--workers", workers])?;
        let (left, right) = (tap_into(&place.left, "port")?, tap_into(&place.right, "port")?);
        for (from, to) in [(&left, &right), (&right, &left)] {
            // No tag, 802.1Q with priority, a priority tag of VLAN 0, 802.1ad outside of 802.1Q.
            for tags in [
                &[][..],
                &[0x81, 0x00, 0xa0, 0x05],
                &[0x81, 0x00, 0xe0, 0x00],
                &[0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0x00, 0x07],
            ] {
                let sent = frame(tags);
                from.send(&[0; 10], &sent)?;
                let got = experiments(to, 1, MARK)?;
                ensure(got.len() == 1 && got.first() == Some(&sent), || {
                    format!("{sent:02x?} came out as {got:02x?}")
                })?;
                passed += 1;
            }
            let (vnet, sent) = tagged_super_packet();
            from.send(&vnet, &sent)?;
            let got = experiments(to, 1, MARK)?;
            ensure(got.first().map(Vec::len) == Some(sent.len()), || {
                let lengths: Vec<usize> = got.iter().map(Vec::len).collect();
                format!("a tagged super-packet of {} bytes came out as {lengths:?}", sent.len())
            })?;
            passed += 1;
        }
        bridge.stop()?;
    }
    Ok(format!("{passed} frames as they were"))
}

/// Builds TCP of 30,000 bytes in VLAN 5, to be split into segments of 1448 bytes, with its checksum left to the code
/// that splits it.
fn tagged_super_packet() -> ([u8; 10], Vec<u8>) {
    let payload: Vec<u8> = MARK.iter().copied().cycle().take(30_000).collect();
    let mut bytes = vec![2, 0, 0, 0, 9, 1, 2, 0, 0, 0, 9, 2, 0x81, 0, 0, 5, 8, 0];
    let total = u16::try_from(40 + payload.len()).unwrap_or_default().to_be_bytes();
    let mut header = vec![0x45, 0, total[0], total[1], 0, 1, 0x40, 0, 64, 6, 0, 0];
    header.extend([10, 5, 0, 1, 10, 5, 0, 2]);
    let sum =
        header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(header);
    // Ports 9 and 9, sequence 1, ACK; the checksum is arbitrary, because the segments are not checked.
    bytes.extend([0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend(payload);
    // NEEDS_CSUM, TCP over IPv4, 58 bytes of headers, segments of 1448, checksum from 38 on, at its 16th byte.
    ([1, 1, 58, 0, 0xa8, 5, 38, 0, 16, 0], bytes)
}

fn removed_ports(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::with_cables(scenario)?;
    let mut bridge = place.start(&["mid0", "mid1", "--relay"])?;
    place.pings()?;
    let lines = |lines: &[&str]| -> Result<()> {
        ip(Some(&place.middle), lines.iter().map(|line| (*line).to_owned()))
    };
    lines(&["link set mid1 down"])?;
    ensure(!answers(&place.left, "10.5.0.2"), || "it passes a port that is down".into())?;
    let before = bridge.cpu_seconds()?;
    std::thread::sleep(Duration::from_millis(500));
    let spent = bridge.cpu_seconds()? - before;
    ensure(spent < 0.1, || format!("{spent} s of CPU in half a second for a port that is down"))?;
    lines(&["link set mid1 up"])?;
    place.pings()?;
    lines(&["link del mid0"])?;
    bridge.wait_for("mid0 is gone", LIMIT)?;
    let before = bridge.cpu_seconds()?;
    std::thread::sleep(Duration::from_millis(700));
    let spent = bridge.cpu_seconds()? - before;
    ensure(spent < 0.1, || format!("{spent} s of CPU in 0.7 s for a port that is gone"))?;
    place.veth_pair("mid0", &place.left)?;
    let back =
        ["link set port up", "addr add 10.5.0.1/24 dev port", "addr add fd05::1/64 dev port nodad"];
    ip(Some(&place.left), back.iter().map(|line| (*line).to_owned()))?;
    bridge.wait_for("mid0 is back", LIMIT)?;
    place.pings()?;
    // The host is isolated again as well.
    place.answer_in_the_middle()?;
    ensure(!answers(&place.left, "10.5.0.9"), || {
        "the host answers at a port that came back".into()
    })?;
    bridge.stop()?;
    Ok("down and up, gone and back".into())
}

fn removed_tap(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::new(scenario)?;
    let mut bridge = place.start(&["tap:private", "tap:public", "--relay"])?;
    ip(Some(&place.middle), ["link del public".to_owned()].into_iter())?;
    bridge.wait_for("tap:public is gone", LIMIT)?;
    bridge.wait_for("tap:public is back", LIMIT)?;
    let moves = [(&place.left, "private"), (&place.right, "public")]
        .map(|(to, tap)| format!("link set {tap} netns {}", to.name()));
    ip(Some(&place.middle), moves.into_iter())?;
    place.address("private", "public")?;
    place.pings()?;
    bridge.stop()?;
    Ok("made again".into())
}

fn killed(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::with_cables(scenario)?;
    place.answer_in_the_middle()?;
    let mut bridge = place.start(&["mid0", "mid1", "--relay"])?;
    place.pings()?;
    let tables = place.middle.run("nft", &["list", "tables"])?;
    ensure(tables.contains("netdev adit_bridge_"), || format!("no table of its own: {tables}"))?;
    bridge.signal(Signal::SIGKILL)?;
    bridge.wait_exit(LIMIT)?;
    // The helper owns the table, and ends a moment after the killed process.
    until("no table of the bridge's", LIMIT, || {
        Ok(!place.middle.run("nft", &["list", "tables"])?.contains("adit"))
    })?;
    reach(&place.left, "10.5.0.9")?;
    let mut bridge = place.start(&["mid0", "mid1", "--relay"])?;
    place.pings()?;
    ensure(!answers(&place.left, "10.5.0.9"), || "the host answers".into())?;
    bridge.stop()?;
    Ok("nothing was left behind".into())
}

/// The rules of the small firewall.
const RULES: &str = include_str!("../../../../packaging/examples/simple-fw.nft");

/// Creates a bridge of two veth pairs under [`RULES`], and the file from which it reads them.
fn guarded<'a>(scenario: &'a Scenario<'a>) -> Result<(BridgeSetup<'a>, PathBuf, Daemon)> {
    let place = BridgeSetup::with_cables(scenario)?;
    let file = scenario.folder().join("fw.nft");
    std::fs::write(&file, RULES)?;
    let bridge = place.start(&["mid0", "mid1", "--rules", &file.display().to_string()])?;
    place.pings()?;
    Ok((place, file, bridge))
}

fn rules(scenario: &Scenario<'_>) -> Result<String> {
    let (place, file, mut bridge) = guarded(scenario)?;
    bulk(&place, 7070)?;
    ensure(blocked(&place, "10.5.0.2", 7071)?, || "TCP to port 7071 passes".into())?;
    std::fs::write(&file, RULES.replace("7070", "7071"))?;
    bridge.signal(Signal::SIGHUP)?;
    bridge.wait_for_nth("forwarding only what the", 2, LIMIT)?;
    bulk(&place, 7071)?;
    ensure(blocked(&place, "10.5.0.2", 7070)?, || "TCP to port 7070 still passes".into())?;
    // A file with a mistake changes nothing.
    std::fs::write(&file, "table inet fw { chain forward { nonsense } }\n")?;
    bridge.signal(Signal::SIGHUP)?;
    bridge.wait_for("nothing has changed", LIMIT)?;
    bulk(&place, 7071)?;
    let report = place.status()?;
    ensure(number(&report, "/drops/rules")? > 0, || format!("no drops by rules: {report}"))?;
    bridge.stop()?;
    Ok("by the rules of the moment".into())
}

/// No packet of a flow that both rule sets accept is lost, however often they replace each other.
fn reloads_under_load(scenario: &Scenario<'_>) -> Result<String> {
    let (place, _, mut bridge) = guarded(scenario)?;
    let (mut reloads, mut frames, begin) = (0, 0, ScaledInstant::now());
    // A busy machine needs more than one round for as much work.
    while (reloads < 5 || frames <= 1000) && begin.elapsed() < 2 * LIMIT {
        reload_during_a_flow(&place, &mut bridge, &mut reloads)?;
        frames = number(&place.status()?, "/bridge/ports/0/frames")?;
    }
    let report = place.status()?;
    let dropped = report.pointer("/drops/rules").and_then(serde_json::Value::as_u64).unwrap_or(0);
    ensure(dropped == 0 && reloads >= 5 && frames > 1000, || {
        format!("{dropped} of {frames} frames were dropped in {reloads} reloads")
    })?;
    bridge.stop()?;
    Ok(format!("{reloads} reloads, {frames} frames, none dropped"))
}

/// Sends two seconds of traffic in both directions, with as many reloads as fit into them.
fn reload_during_a_flow(
    place: &BridgeSetup<'_>,
    bridge: &mut Daemon,
    reloads: &mut usize,
) -> Result<()> {
    let mut command = place.right.command("iperf3");
    command.args(["--server", "--one-off", "--forceflush", "--port", "7070"]);
    let mut server = Daemon::spawn("iperf3's server", command)?;
    server.wait_for("listening", LIMIT)?;
    let mut command = place.left.command("iperf3");
    command.args(["--client", "10.5.0.2", "--port", "7070", "--time", "2", "--bidir"]);
    let mut client = Daemon::spawn("iperf3's client", command)?;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        bridge.signal(Signal::SIGHUP)?;
        *reloads += 1;
        bridge.wait_for_nth("forwarding only what the", *reloads + 1, LIMIT)?;
    }
    let status = client.wait_exit(LIMIT)?;
    ensure(status.success(), || client.failure(&format!("ended with {status}")).0)
}

fn refusals(scenario: &Scenario<'_>) -> Result<String> {
    let place = BridgeSetup::with_cables(scenario)?;
    let lines = [
        "link add loop0 type veth peer name loop1",
        "link add br0 type bridge",
        "link add enslaved up type veth peer name other",
        "link set enslaved master br0",
        "link add addressed up type veth peer name other1",
        "addr add 192.0.2.1/24 dev addressed",
        "link add narrow up type veth peer name other2",
        "link set narrow mtu 1400",
    ];
    ip(Some(&place.middle), lines.iter().map(|line| (*line).to_owned()))?;
    for (ports, words) in [
        (["mid0", "mid0"], "two different interfaces"),
        (["mid0", "nosuch"], "tap:nosuch"),
        (["loop0", "loop1"], "two ends of one cable"),
        (["mid0", "enslaved"], "ip link set enslaved nomaster"),
        (["mid0", "addressed"], "ip addr flush dev addressed"),
        (["mid0", "narrow"], "ip link set mid0 mtu 1400"),
        (["mid0", "lo"], "no Ethernet frames"),
        (["mid0", "tap:mid1"], "there is already an interface mid1"),
    ] {
        let command = place.command(&[ports[0], ports[1], "--relay"])?;
        let mut refused = Daemon::spawn("bridge", command)?;
        refused.wait_for(words, LIMIT)?;
        let status = refused.wait_exit(LIMIT)?;
        ensure(status.code() == Some(2), || refused.failure(&format!("ended with {status}")).0)?;
    }
    Ok("each with its remedy".into())
}
