//! The units under a real systemd: they start, reload, survive an upgrade, and end with the package.

use std::fs;

use super::super::frontends::processes;
use super::booted::{Booted, SOON};
use super::{Case, Machine, OLDER, VERSION};
use crate::failure::{Context, Failure, Result, ensure};
use crate::net::Pair;
use crate::pki::PkiTool;
use crate::postgres::{Cluster, Options};
use crate::wait::until;

/// The services of the test: one of each unit. A server is before its client.
const SERVICES: [&str; 9] = [
    "adit-server",
    "adit-connect@laptop",
    "adit-bridge@office",
    "adit-mesh@home",
    "adit-postgres@vpn",
    "adit-tinc@office",
    "adit-openvpn@plain",
    "adit-openvpn-server@old",
    "adit-openvpn-client@branch",
];

/// The log line of a tunnel of `adit openvpn`, and the number of tunnels.
const COMPLETED: &str = "Initialization Sequence Completed";
const TUNNELS: usize = 3;

/// The role that owns the database, and its password.
const ADMIN: &str = "admin";

/// A list of clients whose layout is newer than every version knows.
const NEWER: &str = "{\"version\":999,\"clients\":7}";

/// Writes the settings of a bridge, a mesh, and of servers and a client of `adit openvpn`.
fn configure(case: &Case<'_>, machine: &Machine) -> Result<()> {
    let write = |file: &str, content: &str| -> Result<()> {
        let path = machine.path(file);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        fs::write(path, content).context(file)
    };
    fs::create_dir_all(machine.path("etc/adit/connect"))?;
    let settings = "ports = [\"one0\", \"two0\"]\nrules = \"office.nft\"\n";
    write("etc/adit/bridge/office.toml", settings)?;
    let rules =
        "table bridge f { chain c { type filter hook forward priority 0; policy accept; } }\n";
    write("etc/adit/bridge/office.nft", rules)?;
    write("etc/adit/mesh/home/mesh.toml", "port = 1197\ntcp-port = 0\n")?;
    let keys = "dev tun\nca ca.crt\n";
    for (folder, name, port) in
        [("etc/openvpn", "plain", 1196), ("etc/openvpn/server", "old", 1195)]
    {
        let network = port - 1100;
        let server = format!(
            "{keys}cert server.crt\nkey server.key\ndh none\nport {port}\n\
             server 10.{network}.0.0 255.255.255.0\n"
        );
        write(&format!("{folder}/{name}.conf"), &server)?;
    }
    let client = format!("{keys}cert client.crt\nkey client.key\nclient\nremote 192.0.2.1 1195\n");
    write("etc/openvpn/client/branch.conf", &client)?;
    for (folder, end) in [
        ("etc/openvpn", "server"),
        ("etc/openvpn/server", "server"),
        ("etc/openvpn/client", "client"),
    ] {
        for name in ["ca.crt".to_owned(), format!("{end}.crt"), format!("{end}.key")] {
            let from = case.env.pki.file(PkiTool::OpenSslEc, &name);
            fs::copy(from, machine.path(folder).join(&name)).context(name)?;
        }
    }
    Ok(())
}

/// Starts a database in the namespace of the system, and makes the system the first node of a network in it.
fn with_database(case: &Case<'_>, system: &Booted<'_>) -> Result<Cluster> {
    let options = Options { namespace: Some(system.namespace), ..Options::default() };
    let cluster = Cluster::start(&case.folder.join("pg"), &options)?;
    cluster.create(ADMIN, ADMIN, "CREATEROLE")?;
    let url = format!("postgres://{ADMIN}:{ADMIN}@192.0.2.1/{ADMIN}?sslmode=disable");
    let words = ["--network", "10.9.0.0/24", "--name", "hub", "--network-name", "vpn", "--offline"];
    system.run(&[&["adit", "postgres", "init", &url][..], &words[..]].concat())?;
    Ok(cluster)
}

/// Services start with their restrictions, reload, run the new program after an upgrade, and end when the package goes. A version
/// that cannot read newer state says so, and changes nothing.
pub(super) fn services(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    machine.dpkg("--install", &[case.deb("adit", OLDER)?])?;
    configure(case, &machine)?;
    ensure(units(&machine)? == SERVICES.len(), || "the package has another unit".into())?;
    let pair = Pair::new()?;
    for (port, other) in [("one0", "one1"), ("two0", "two1")] {
        pair.server.run("ip", &["link", "add", port, "type", "veth", "peer", "name", other])?;
    }
    let Some(system) = Booted::start(case, &machine, &pair.server, &SERVICES)? else {
        return Ok("SKIPPED".into());
    };
    system.run(&["adit", "server", "init", "--host", "192.0.2.1"])?;
    let profile = "/etc/adit/connect/laptop.ovpn";
    system.run(&["adit", "server", "client", "add", "laptop", "-o", profile])?;
    let _database = with_database(case, &system)?;
    system.run(&["adit", "tinc", "-n", "office", "init", "hub"])?;
    for service in SERVICES {
        system.run(&["systemctl", "start", service]).map_err(|e| system.explain(&e.0))?;
    }
    wait_connected(&system, 1)?;
    for service in ["adit-server", "adit-bridge@office", "adit-tinc@office"] {
        system.run(&["systemctl", "reload", service]).map_err(|e| system.explain(&e.0))?;
    }
    // The paths are those of Debian's tinc@office.
    let pid = system.run(&["adit", "tinc", "-n", "office", "pid"])?;
    ensure(pid.trim() == system.property("adit-tinc@office", "MainPID")?, || {
        system.explain(&format!("another process answers: {pid}"))
    })?;
    let status = system.run(&["adit", "status"])?;
    let shown = status.contains("tinc office: running") && status.contains("node hub, mode router");
    ensure(shown, || format!("no node of the tinc net: {status}"))?;
    // The system has other findings.
    let findings = system.run(&["sh", "-c", "adit doctor || true"])?;
    let known = findings.contains("tinc-office: this node runs, and knows no other");
    ensure(known, || format!("no finding about the tinc net: {findings}"))?;
    let before = pids(&system)?;
    system.install(&case.deb("adit", VERSION)?)?;
    wait_connected(&system, 2)?;
    let after = pids(&system)?;
    for ((service, before), after) in SERVICES.iter().zip(&before).zip(&after) {
        ensure(before != after, || system.explain(&format!("{service} was not restarted")))?;
        let state = system.property(service, "ActiveState")?;
        ensure(state == "active", || system.explain(&format!("{service} is {state}")))?;
    }
    sessions_pass(&system)?;

    let clients = machine.path("var/lib/adit/pki/clients.json");
    fs::write(&clients, NEWER)?;
    let printed = system.install(&case.deb("adit", OLDER)?)?;
    let sentence = "adit: a service did not start again";
    ensure(printed.contains(sentence), || system.explain(&format!("no sentence: {printed}")))?;
    let reason = "clients.json: written by a newer version of adit";
    ensure(system.logged(reason)? > 0, || system.explain("no reason"))?;
    ensure(fs::read_to_string(&clients)? == NEWER, || "newer state was changed".into())?;

    system.run(&["dpkg", "--purge", "adit"]).map_err(|e| system.explain(&e.0))?;
    let left = processes(&pair.server, "/usr/bin/adit")?;
    ensure(left.is_empty(), || system.explain(&format!("processes are left: {left:?}")))?;
    Ok(String::new())
}

/// Waits until the client and the tunnels of `adit openvpn` were established this many times.
fn wait_connected(system: &Booted<'_>, times: usize) -> Result<()> {
    until("the tunnels", SOON, || {
        Ok(system.logged("laptop: connected")? >= times
            && system.logged(COMPLETED)? >= TUNNELS * times)
    })
    .map_err(|e| system.explain(&e.0).into())
}

/// Returns the main process of each service.
fn pids(system: &Booted<'_>) -> Result<Vec<String>> {
    SERVICES.iter().map(|service| system.property(service, "MainPID")).collect()
}

/// The sessions of servers pass to their next processes, and the clients do not notice.
fn sessions_pass(system: &Booted<'_>) -> Result<()> {
    let continued = "1 sessions of the former process continue";
    let connected =
        || Ok::<_, Failure>((system.logged("laptop: connected")?, system.logged(COMPLETED)?));
    let before = (connected()?, system.logged(continued)?);
    for (service, times) in [("adit-server", 1), ("adit-openvpn-server@old", 2)] {
        system.run(&["systemctl", "restart", service]).map_err(|e| system.explain(&e.0))?;
        ensure(system.logged(continued)? == before.1 + times, || {
            system.explain(&format!("the session of {service} has ended"))
        })?;
    }
    let ((laptops, tunnels), after) = (before.0, connected()?);
    // The server of `adit openvpn` says so itself.
    ensure(after == (laptops, tunnels + 1), || system.explain("a client came again"))
}

/// Returns the number of the package's units.
fn units(machine: &Machine) -> Result<usize> {
    let names = fs::read_dir(machine.path("usr/lib/systemd/system"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with("adit-")).count())
}
