//! Tests of VLANs with `dev tap`: which frames the server's device carries, with which tags, and which clients get them.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use adit_linux::packet::PacketSocket;

use super::Scenario;
use super::bridge::{experiments_within, tap_into};
use super::server_hooks::{read, script};
use super::tap::{DEVICE, bridged, configs, everything_passes};
use crate::case::{InnerAddrs, READY, SETUP_LIMIT};
use crate::failure::{Context, Result, ensure};
use crate::net::{Star, ip};
use crate::peer::Program;
use crate::process::Daemon;
use crate::wait::until;

/// The time in which frames arrive.
const LIMIT: Duration = Duration::from_secs(20);
/// How long the ends listen for further frames.
const QUIET: Duration = Duration::from_millis(50);
/// Marks the frames of these tests.
const MARK: &[u8] = b"adit-interop-vlan";
/// A tag's priority.
const PRIORITY: u16 = 0xa000;

/// The places of the ends among the sockets: the server's host, and the clients of VLANs 10, 10 and 5.
const HOST: usize = 0;
const A: usize = 1;
const B: usize = 2;
const C: usize = 3;

/// The station to which a frame is sent; `None` for all.
type To = Option<usize>;

/// A frame, and the ends that it must reach with their tags.
#[derive(Copy, Clone)]
struct Probe {
    from: usize,
    to: To,
    tag: Option<u16>,
    reaches: &'static [(usize, Option<u16>)],
}

const fn probe(
    from: usize,
    to: To,
    tag: Option<u16>,
    reaches: &'static [(usize, Option<u16>)],
) -> Probe {
    Probe { from, to, tag, reaches }
}

/// With `vlan-accept all` and `client-to-client`.
const ALL: &[Probe] = &[
    probe(B, None, None, &[(HOST, Some(10)), (A, None)]),
    probe(C, None, None, &[(HOST, None)]),
    probe(HOST, None, None, &[(C, None)]),
    probe(HOST, None, Some(PRIORITY), &[(C, Some(PRIORITY))]),
    probe(HOST, None, Some(10), &[(A, None), (B, None)]),
    probe(HOST, None, Some(PRIORITY | 10), &[(A, None), (B, None)]),
    probe(HOST, None, Some(5), &[(C, None)]),
    probe(HOST, None, Some(20), &[]),
    probe(HOST, Some(B), Some(10), &[(B, None)]),
    probe(A, None, None, &[(HOST, Some(10)), (B, None)]),
    probe(A, None, Some(PRIORITY), &[(HOST, Some(PRIORITY | 10)), (B, Some(PRIORITY))]),
    probe(A, None, Some(10), &[]),
    probe(A, None, Some(5), &[]),
    probe(A, Some(B), None, &[(B, None)]),
    probe(A, Some(C), None, &[(HOST, Some(10))]),
];

/// With `vlan-accept tagged`, and without `client-to-client`.
const TAGGED: &[Probe] = &[
    probe(B, None, None, &[(HOST, Some(10))]),
    probe(C, None, None, &[(HOST, Some(5))]),
    probe(HOST, None, None, &[]),
    probe(HOST, None, Some(10), &[(A, None), (B, None)]),
    probe(HOST, None, Some(PRIORITY | 10), &[(A, None), (B, None)]),
    probe(HOST, None, Some(5), &[(C, None)]),
    probe(A, None, None, &[(HOST, Some(10))]),
    probe(A, None, Some(PRIORITY), &[(HOST, Some(PRIORITY | 10))]),
    probe(A, Some(B), None, &[(HOST, Some(10))]),
    probe(A, Some(C), None, &[(HOST, Some(10))]),
];

/// With `vlan-accept tagged`, openvpn accepts a priority tag, which its manual denies. adit does as the manual says.
const PRIORITY_AMONG_TAGGED: [Probe; 2] = [
    probe(HOST, None, Some(PRIORITY), &[(C, Some(PRIORITY))]),
    probe(HOST, None, Some(PRIORITY), &[]),
];

/// With `vlan-accept untagged` and `client-to-client`.
const UNTAGGED: &[Probe] = &[
    probe(B, None, None, &[(A, None)]),
    probe(C, None, None, &[(HOST, None)]),
    probe(HOST, None, None, &[(C, None)]),
    probe(HOST, None, Some(PRIORITY), &[(C, Some(PRIORITY))]),
    probe(HOST, None, Some(10), &[]),
    probe(HOST, None, Some(5), &[]),
    probe(A, None, None, &[(B, None)]),
    probe(A, None, Some(PRIORITY), &[(B, Some(PRIORITY))]),
    probe(A, Some(B), None, &[(B, None)]),
    probe(A, Some(C), None, &[]),
];

/// Each setting of `vlan-accept`, with openvpn as the server and with adit, and clients of both.
pub(super) fn accept_modes(scenario: &Scenario<'_>) -> Result<String> {
    let mut learned = Vec::new();
    for (program, priority) in
        [scenario.client, scenario.server].into_iter().zip(PRIORITY_AMONG_TAGGED)
    {
        let tagged = [TAGGED, &[priority]].concat();
        for (accept, client_to_client, probes) in
            [("all", true, ALL), ("tagged", false, &tagged), ("untagged", true, UNTAGGED)]
        {
            let _ = fs::remove_file(scenario.folder().join("learned"));
            mode(scenario, program, accept, client_to_client, probes)
                .map_err(|failure| format!("{program:?}: vlan-accept {accept}: {failure}"))?;
            if accept == "all" {
                let lines = read(scenario, "learned");
                let ours = lines.lines().filter(|line| line.starts_with("add 02:00:00:00:0a:"));
                learned.push(ours.map(str::to_owned).collect::<BTreeSet<_>>());
            }
        }
    }
    let [theirs, ours] = learned.as_slice() else { return Err("two servers".into()) };
    ensure(theirs == ours && theirs.len() == 3, || format!("openvpn: {theirs:?}, adit: {ours:?}"))?;
    let frames = ALL.len() + TAGGED.len() + UNTAGGED.len();
    Ok(format!(
        "{frames} kinds of frames; learned {}",
        ours.iter().cloned().collect::<Vec<_>>().join(", ")
    ))
}

fn mode(
    scenario: &Scenario<'_>,
    program: &Program,
    accept: &str,
    client_to_client: bool,
    probes: &[Probe],
) -> Result<()> {
    let mut configs = configs(scenario);
    let path = |name: &str| scenario.folder().join(name);
    configs.server(&format!(
        "duplicate-cn\nscript-security 2\nvlan-tagging\nvlan-accept {accept}\nvlan-pvid 5"
    ));
    if client_to_client {
        configs.server("client-to-client");
    }
    // A client's VLAN comes from its file, or from a program, which has the last word.
    let own = "case $trusted_ip in 192.0.2.13) echo vlan-pvid 5 > \"$1\";; esac";
    let others = "case $trusted_ip in 192.0.2.1[12]) echo vlan-pvid 10 > \"$1\";; esac";
    if accept == "all" {
        fs::create_dir_all(path("ccd"))?;
        fs::write(path("ccd/client"), "vlan-pvid 10\n")?;
        configs.server(&format!("client-config-dir {}", path("ccd").display()));
        configs.server(&format!("client-connect {}", script(scenario, "connect", own)?));
        let learn = script(scenario, "learn", "echo \"$1 $2\" >> $OUT/learned")?;
        configs.server(&format!("learn-address {learn}"));
    } else {
        configs.server(&format!("client-connect {}", script(scenario, "connect", others)?));
    }
    let star = Star::new(3)?;
    fs::write(path("server.conf"), &configs.server)?;
    fs::write(path("client.conf"), &configs.client)?;
    let mut command = program.command(&star.server, &path("server.conf"));
    // One worker keeps the order of frames.
    command.env("ADIT_WORKERS", "1");
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut clients = Vec::new();
    for (namespace, program) in
        star.clients.iter().zip([scenario.client, scenario.server, scenario.client])
    {
        let command = program.command(namespace, &path("client.conf"));
        clients.push(Daemon::spawn("client", command)?);
    }
    for client in &mut clients {
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    }
    let namespaces = std::iter::once(&star.server).chain(&star.clients);
    let sockets = namespaces.map(|namespace| tap_into(namespace, DEVICE));
    let sockets = sockets.collect::<Result<Vec<_>>>()?;
    observe(&sockets, probes).map_err(|e| format!("{e}\n{}", server.failure("")).into())
}

/// Sends the frames until each has reached all that it must reach. None may reach another end.
fn observe(sockets: &[PacketSocket], probes: &[Probe]) -> Result<()> {
    let mut wanted: BTreeSet<(usize, usize, Option<u16>)> = BTreeSet::new();
    for (number, probe) in probes.iter().enumerate() {
        wanted.extend(probe.reaches.iter().map(|(end, tag)| (number, *end, *tag)));
    }
    let mut seen = BTreeSet::new();
    // The first two frames make the stations known to which later frames are sent.
    for known in [2, probes.len()] {
        let wanted = || wanted.iter().filter(|(number, ..)| *number < known);
        let arrived = until("all frames arrive", LIMIT, || {
            for (number, probe) in probes.iter().enumerate().take(known) {
                sockets[probe.from].send(&[0; 10], &frame(number, probe))?;
            }
            for (end, socket) in sockets.iter().enumerate() {
                for frame in experiments_within(socket, usize::MAX, MARK, QUIET)? {
                    let (number, tag) = number_and_tag(&frame)?;
                    seen.insert((number, end, tag));
                }
            }
            Ok(wanted().all(|one| seen.contains(one)))
        });
        let expected: BTreeSet<_> = wanted().copied().collect();
        let missing: Vec<_> = expected.difference(&seen).collect();
        let wrong: Vec<_> = seen.difference(&expected).collect();
        ensure(arrived.is_ok() && wrong.is_empty(), || {
            format!("missing (frame, end, tag): {missing:?}, wrong: {wrong:?}")
        })?;
    }
    Ok(())
}

/// Builds a frame from the station of its sender.
fn frame(number: usize, probe: &Probe) -> Vec<u8> {
    let station = |end: usize| [2, 0, 0, 0, 10, end as u8];
    let to = probe.to.map_or([0xff; 6], station);
    let tag = probe.tag.map(|control| [[0x81, 0], control.to_be_bytes()].concat());
    let parts = [&to[..], &station(probe.from), &tag.unwrap_or_default(), &[0x88, 0xb5]];
    let mut bytes = [&parts.concat(), MARK, &[number as u8]].concat();
    bytes.resize(64, 0);
    bytes
}

fn number_and_tag(frame: &[u8]) -> Result<(usize, Option<u16>)> {
    let at = frame.windows(MARK.len()).position(|window| window == MARK);
    let number = at.and_then(|at| frame.get(at + MARK.len())).context("a frame of this test")?;
    let tag = match frame.get(12..16) {
        Some(&[0x81, 0, high, low]) => Some(u16::from_be_bytes([high, low])),
        _ => None,
    };
    Ok((usize::from(*number), tag))
}

/// Two servers have their devices in one bridge. Clients of both are in one VLAN, whose frames cross the bridge with
/// tags: small and large packets, and streams.
pub(super) fn clients_of_vlans(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = bridged(scenario, "server-bridge nogw");
    let path = |name: &str| scenario.folder().join(name);
    fs::create_dir_all(path("ccd"))?;
    fs::write(path("ccd/client"), "vlan-pvid 10\n")?;
    configs.server(&format!("vlan-tagging\nclient-config-dir {}", path("ccd").display()));
    let star = Star::new(2)?;
    let lines =
        ["link add br0 up type bridge stp_state 0 forward_delay 0 mcast_snooping 0".to_owned()];
    ip(Some(&star.server), lines.into_iter())?;
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for (at, program) in [scenario.server, scenario.client].into_iter().enumerate() {
        let (device, port) = (format!("tap{at}"), format!("{}", 1194 + at));
        let own = |text: &str| text.replace(" 1194", &format!(" {port}"));
        let file = path(&format!("server{at}.conf"));
        fs::write(&file, own(&configs.server).replace("dev tap\n", &format!("dev {device}\n")))?;
        let mut server = Daemon::spawn("server", program.command(&star.server, &file))?;
        server.wait_for(READY, SETUP_LIMIT)?;
        ip(Some(&star.server), std::iter::once(format!("link set {device} up master br0")))?;
        servers.push(server);
        let namespace = &star.clients[at];
        let file = path(&format!("client{at}.conf"));
        fs::write(&file, own(&configs.client))?;
        let mut client = Daemon::spawn("client", scenario.client.command(namespace, &file))?;
        client.wait_for(READY, SETUP_LIMIT)?;
        let lines = [
            format!("link set {DEVICE} up"),
            format!("address add 10.99.0.{}/24 dev {DEVICE}", at + 1),
            format!("address add fd99::{}/64 dev {DEVICE} nodad", at + 1),
        ];
        ip(Some(namespace), lines.into_iter())?;
        clients.push(client);
    }
    let at = |n: u8| -> Result<InnerAddrs> {
        let [v4, v6] = [format!("10.99.0.{n}"), format!("fd99::{n}")];
        Ok(InnerAddrs { v4: v4.parse().context(&v4)?, v6: Some(v6.parse().context(&v6)?) })
    };
    let bridge = tap_into(&star.server, "br0")?;
    everything_passes([(&star.clients[0], at(1)?), (&star.clients[1], at(2)?)]).map_err(|e| {
        let logs: Vec<_> = servers.iter().map(|server| server.failure("").to_string()).collect();
        format!("{e}\n{}", logs.join("\n"))
    })?;
    // The bridge itself received the broadcasts.
    let tags = experiments_within(&bridge, usize::MAX, &[0x81, 0, 0, 10, 8, 6], QUIET)?.len();
    ensure(tags > 0, || "no frame had a tag".to_owned())?;
    Ok(format!("{tags} broadcasts with tags"))
}
