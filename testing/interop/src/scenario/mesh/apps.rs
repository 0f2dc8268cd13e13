//! Tests of OpenVPN apps as leaves of a node.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_testbed::laptop::own_etc;

use super::super::{Scenario, ping_until};
use super::REMOVAL;
use super::gateway::until_seen;
use super::testbed::{LIMIT, MeshTestbed, Nat, add_to_internet};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::process::Daemon;
use crate::traffic::silent;
use crate::wait::until;

/// The ports of a service. The policy closes the first one to the phone, and does not name the other.
const CLOSED: u16 = 7000;
const OPEN: u16 = 7001;

const POLICY: &str = "table inet mesh {
    chain forward {
        type filter hook forward priority filter; policy accept;
        ip saddr @node:phone ip daddr @node:node3 tcp dport 7000 drop
    }
}
";

/// The time limit for a connection that can be established.
const CONNECT: Duration = Duration::from_secs(1);

/// The time limit for OpenVPN to reconnect after a while without an answer: it doubles its intervals.
const RECONNECTS: Duration = Duration::from_secs(90);

/// OpenVPN's log line when its tunnel is up.
const UP: &str = "Initialization Sequence Completed";

/// A phone with Debian's OpenVPN and two nodes reach each other by name. The policy applies to the phone, it reconnects after the gateway
/// has restarted, and its removal cuts it off.
pub(super) fn openvpn_app(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::PortRestricted])?;
    let resolv_conf = bed.machines[0].separate_etc()?.join("resolv.conf");
    std::fs::write(resolv_conf, "nameserver 192.0.2.53\n")?;
    bed.join_all()?;
    let refused = bed.machines[0].refused(&["invite", "--openvpn", "phone"])?;
    ensure(refused.contains("set hub --openvpn-gateway on"), || refused.clone())?;
    bed.machines[0].mesh(&["set", "hub", "--openvpn-gateway", "on"])?;
    bed.wait_for_line(0, "served at UDP port 1195")?;
    let profile = invite(&bed, scenario.folder(), "phone.ovpn")?;

    let mut phone = Namespace::new("phone")?;
    add_to_internet(&bed, &phone, 50)?;
    let etc = own_etc(&scenario.folder().join("phone-etc"))?;
    phone.separate_files(&etc)?;
    let mut openvpn = connect(&phone, &profile)?;
    openvpn.wait_for(UP, LIMIT)?;
    let hub = bed.ipv4(0)?;
    let log = openvpn.log();
    ensure(log.contains(&format!("dhcp-option DNS {hub}")), || format!("no DNS server: {log}"))?;
    // Checks the effect of the pushed options on an app.
    std::fs::write(etc.join("resolv.conf"), format!("nameserver {hub}\n"))?;
    let own = own_address(&bed, "phone")?;
    for at in 0..3 {
        let name = format!("{}.home.internal", bed.machines[at].name);
        let found = phone.run("getent", &["ahostsv4", &name])?;
        let address = bed.ipv4(at)?;
        ensure(found.starts_with(&address.to_string()), || format!("{name}: {found}"))?;
        for address in bed.addresses(at)? {
            ping_until(&phone, address, LIMIT)?;
        }
        ping_until(&bed.machines[at].space, own, LIMIT)?;
        let peers = bed.machines[at].mesh(&["peers"])?;
        ensure(peers.contains("leaf of hub"), || peers.clone())?;
    }
    let by_name = bed.machines[0].space.run("getent", &["ahostsv4", "phone.home.internal"])?;
    ensure(by_name.starts_with(&own.to_string()), || format!("the phone's name: {by_name}"))?;

    policy(&bed, scenario.folder(), &phone)?;
    restarted(&mut bed, &phone, own)?;

    bed.machines[0].mesh(&["remove", "phone"])?;
    let gone = || Ok(!bed.machines[2].mesh(&["peers"])?.contains("phone"));
    until("a node has forgotten the phone", REMOVAL, gone)?;
    let cut_off = || silent(&phone, bed.ipv4(1)?);
    until("the phone is cut off", REMOVAL, cut_off)?;
    ensure(silent(&bed.machines[1].space, own)?, || "the phone still answers".into())?;
    openvpn.wait_exit(LIMIT)?;
    let mut again = connect(&phone, &profile)?;
    again.wait_for("AUTH_FAILED", LIMIT)?;
    let _ = again.wait_exit(LIMIT);
    // The name is free for another certificate.
    let profile = invite(&bed, scenario.folder(), "second.ovpn")?;
    let mut second = connect(&phone, &profile)?;
    second.wait_for(UP, LIMIT)?;
    ping_until(&phone, bed.ipv4(2)?, LIMIT)?;
    Ok("reached, named by the policy, back after a restart, and removed".into())
}

/// A phone sends all its traffic through its gateway. The gateway serves it as soon as the port is free, and while the roster allows it.
pub(super) fn exit(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[])?;
    bed.found()?;
    let taken = bed.machines[0].space.thread(|| Ok(UdpSocket::bind("[::]:1195")?))?;
    let taken = taken.join().ok().context("a thread")??;
    let set = |bed: &MeshTestbed, role, value| bed.machines[0].mesh(&["set", "hub", role, value]);
    set(&bed, "--openvpn-gateway", "on")?;
    bed.wait_for_line(0, "UDP port 1195 cannot be opened")?;
    let refused = bed.machines[0].refused(&["invite", "--openvpn"])?;
    ensure(refused.contains("openvpn-port"), || refused.clone())?;
    drop(taken);
    bed.wait_for_line(0, "served at UDP port 1195")?;
    let full = ["invite", "--openvpn", "--full-tunnel", "--output", "-"];
    let refused = bed.machines[0].refused(&full)?;
    ensure(refused.contains("set hub --gateway on"), || refused.clone())?;
    set(&bed, "--gateway", "on")?;
    let profile = scenario.folder().join("full.ovpn");
    std::fs::write(&profile, bed.machines[0].mesh(&full)?)?;

    let (phone, web) = (Namespace::new("phone")?, Namespace::new("web")?);
    add_to_internet(&bed, &phone, 50)?;
    let address = add_to_internet(&bed, &web, 99)?;
    let before = until_seen(&phone, &web, address)?;
    ensure(before.to_string() == "11.0.0.50", || format!("outside at first: {before}"))?;
    // The gateway forwards to the web server for its leaves. The web server is on the phone's own link, so it needs a route.
    let mut openvpn = connect(&phone, &profile)?;
    openvpn.wait_for(UP, LIMIT)?;
    let route = format!("{address}/32");
    phone.run("ip", &["route", "add", &route, "dev", "tun0"])?;
    let through = || Ok(until_seen(&phone, &web, address)?.to_string() == "11.0.0.1");
    until("the web sees the gateway", LIMIT, through)?;

    set(&bed, "--openvpn-gateway", "off")?;
    let hub = bed.ipv4(0)?;
    until("the phone is not served", LIMIT, || silent(&phone, hub))?;
    let peers = bed.machines[0].mesh(&["peers"])?;
    ensure(!peers.contains("phone"), || peers.clone())?;
    set(&bed, "--openvpn-gateway", "on")?;
    until("the phone is served again", RECONNECTS, || Ok(!silent(&phone, hub)?))?;
    Ok("through the gateway, as long as it is one".into())
}

/// Creates a profile for the phone. Returns its file, which only its owner can read.
fn invite(bed: &MeshTestbed, folder: &Path, file: &str) -> Result<PathBuf> {
    let path = folder.join(file);
    let said = bed.machines[0].mesh(&[
        "invite",
        "--openvpn",
        "phone",
        "--output",
        &path.to_string_lossy(),
    ])?;
    ensure(said.contains("11.0.0.1 udp/1195"), || said.clone())?;
    let mode = std::fs::metadata(&path)?.permissions().mode() & 0o777;
    ensure(mode == 0o600, || format!("the profile has mode {mode:o}"))?;
    Ok(path)
}

fn connect(phone: &Namespace, profile: &Path) -> Result<Daemon> {
    let mut command = phone.command("openvpn");
    command.arg("--config").arg(profile).args(["--connect-retry", "1", "2"]);
    Daemon::spawn("phone", command)
}

/// Returns the IPv4 address of a member.
fn own_address(bed: &MeshTestbed, name: &str) -> Result<IpAddr> {
    let peers = bed.machines[0].json(&["peers"])?;
    let peers = peers.as_array().context("no peers")?;
    let peer = peers.iter().find(|peer| peer["name"] == name).context("no such peer")?;
    peer["addresses"][0].as_str().and_then(|text| text.parse().ok()).context("no address")
}

/// Checks that the mesh's policy closes one port of a node to the phone alone.
fn policy(bed: &MeshTestbed, folder: &Path, phone: &Namespace) -> Result<()> {
    let node3 = bed.ipv4(2)?;
    for port in [CLOSED, OPEN] {
        listen(&bed.machines[2].space, SocketAddr::new(node3, port))?;
        let reached = || reaches(phone, SocketAddr::new(node3, port));
        until("the phone reaches the service", LIMIT, reached)?;
    }
    let file = folder.join("policy.nft");
    std::fs::write(&file, POLICY)?;
    bed.machines[0].mesh(&["policy", "set", &file.to_string_lossy()])?;
    let closed = SocketAddr::new(node3, CLOSED);
    until("the policy is in force", LIMIT, || Ok(!reaches(phone, closed)?))?;
    ensure(reaches(phone, SocketAddr::new(node3, OPEN))?, || "another port is closed".into())?;
    let others = || reaches(&bed.machines[1].space, closed);
    until("another node reaches the port", LIMIT, others)
}

/// Restarts the gateway. Afterwards the phone is reachable at the same address.
fn restarted(bed: &mut MeshTestbed, phone: &Namespace, own: IpAddr) -> Result<()> {
    bed.stop(0)?;
    bed.up(0)?;
    ping_until(phone, bed.ipv4(1)?, LIMIT)?;
    ping_until(&bed.machines[2].space, own, LIMIT)?;
    Ok(())
}

/// Accepts connections until the test ends.
fn listen(space: &Namespace, address: SocketAddr) -> Result<()> {
    let bind = move || Ok(TcpListener::bind(address)?);
    let listener = space.thread(bind)?.join().ok().context("a thread")??;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    Ok(())
}

fn reaches(space: &Namespace, address: SocketAddr) -> Result<bool> {
    let dial = move || Ok(TcpStream::connect_timeout(&address, CONNECT).is_ok());
    space.thread(dial)?.join().ok().context("a thread")?
}
