//! Tests of per-client files and lease files as other programs write them, and of addresses without a pool.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::{Scenario, ping_until};
use crate::case::{Configs, READY, SETUP_LIMIT, Tunnel, dial, inner_addrs, serve};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::{Namespace, Pair};
use crate::peer::Program;
use crate::process::{Daemon, output};
use crate::traffic::ping;
use crate::wait::until;

const SOON: Duration = Duration::from_secs(10);

/// The server drops its privileges before a client connects.
const UNPRIVILEGED: &str = "user nobody\ngroup nogroup";

/// A file contains lines without effect, and pushed options that the server overrides. Both programs accept the client
/// with the remaining lines, and adit names each ineffective line once.
pub(super) fn lines_without_effect(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder().join("ccd");
    fs::create_dir(&folder)?;
    let mut configs = scenario.configs();
    configs.server(&format!("client-config-dir {}\n{UNPRIVILEGED}", folder.display()));
    let by_adit = matches!(scenario.server, Program::Adit(_));
    // openvpn pushes it, and adit's client requires `fragment` in its own file.
    let fragment = if by_adit { "push \"fragment 1300\"" } else { "# no fragments" };
    // Lines are named by their numbers.
    let lines = [
        "ifconfig-push 10.88.0.77 255.255.255.0",
        "fast-io",
        fragment,
        "push \"topology subnet\"",
        "push \"ifconfig 10.88.0.99 255.255.255.0\"",
        "push \"cipher AES-128-CBC\"",
        "setenv opt filter-group staff",
        "push \"route 10.60.0.0 255.255.0.0\"",
    ];
    fs::write(folder.join("client"), lines.join("\n") + "\n")?;
    let tunnel = scenario.tunnel(&configs)?;
    has_address(&tunnel.pair.client, "10.88.0.77")?;
    let known = tunnel.pair.client.run("ip", &["route"])?;
    ensure(known.contains("10.60.0.0/16"), || format!("the file's route is missing: {known}"))?;
    tunnel.ping_all(4)?;
    if by_adit {
        for (line, text) in [(2, "fast-io"), (3, "fragment"), (5, "ifconfig"), (6, "cipher")] {
            let place = format!("ccd/client:{line}: ");
            let named = tunnel.server.log();
            let named: Vec<&str> = named.lines().filter(|said| said.contains(&place)).collect();
            ensure(named.len() == 1 && named.iter().all(|said| said.contains(text)), || {
                tunnel.server.failure(&format!("line {line} of the file: {named:?}")).0
            })?;
        }
    }
    Ok(String::new())
}

/// Changes files while the server runs without its privileges. A client's file and the list of revoked certificates
/// take effect for the next connection, and leases are written.
pub(super) fn files_after_the_drop(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let (files, leases, list) =
        (folder.join("ccd"), folder.join("ipp.txt"), folder.join("crl.pem"));
    fs::create_dir(&files)?;
    fs::write(files.join("revoked"), "ifconfig-push 10.88.0.77 255.255.255.0\n")?;
    empty_revocation_list(scenario, &list)?;
    let mut configs = scenario.configs();
    configs.client = configs.client.replace("/client.", "/revoked.");
    configs.server(&format!(
        "client-config-dir {}\nifconfig-pool-persist {} 1\ncrl-verify {}\n{UNPRIVILEGED}",
        files.display(),
        leases.display(),
        list.display()
    ));
    let mut tunnel = scenario.tunnel(&configs)?;
    has_address(&tunnel.pair.client, "10.88.0.77")?;
    tunnel.ping_all(4)?;
    let again = |tunnel: &mut Tunnel| -> Result<()> {
        tunnel.client.stop()?;
        tunnel.client = dial(&tunnel.pair, folder, &configs, scenario.client)?;
        Ok(())
    };
    // Without a fixed address it has one from the pool, which is recorded in the file of leases.
    fs::remove_file(files.join("revoked"))?;
    again(&mut tunnel)?;
    tunnel.client.wait_for(READY, SETUP_LIMIT).map_err(|f| with_server(&f.0, &tunnel.server))?;
    let given = inner_addrs(&tunnel.pair.client)?.v4.to_string();
    ensure(given != "10.88.0.77", || format!("it has {given} of its former file"))?;
    let line = format!("revoked,{given},");
    until("the lease is in the file", SOON, || {
        Ok(fs::read_to_string(&leases)?.lines().any(|known| known.starts_with(&line)))
    })
    .map_err(|f| format!("{f}: {}", fs::read_to_string(&leases).unwrap_or_default()))?;
    fs::write(files.join("revoked"), "ifconfig-push 10.88.0.78 255.255.255.0\n")?;
    again(&mut tunnel)?;
    tunnel.client.wait_for(READY, SETUP_LIMIT).map_err(|f| with_server(&f.0, &tunnel.server))?;
    has_address(&tunnel.pair.client, "10.88.0.78")?;
    // Tools write it in this way, by replacing the old file with a new one.
    let new = folder.join("crl.new");
    fs::copy(scenario.pki("crl.pem"), &new)?;
    file::set_mode(&new, 0o644)?;
    fs::rename(&new, &list)?;
    if matches!(scenario.server, Program::Adit(_)) {
        // openvpn reads the list for each connection, adit once a second.
        tunnel.server.wait_for("CRL: loaded", SOON)?;
    }
    again(&mut tunnel)?;
    let refused = tunnel.server.wait_for_any(&["certificate revoked"], SETUP_LIMIT);
    refused.map_err(|f| with_server(&f.0, &tunnel.client))?;
    ensure(tunnel.client.count(READY) == 0, || tunnel.client.failure("it was let in").0)?;
    Ok(String::new())
}

fn with_server(failure: &str, other: &Daemon) -> String {
    format!("{failure}\n{}", other.failure("meanwhile"))
}

/// Creates a list of the same authority that names no certificate.
fn empty_revocation_list(scenario: &Scenario<'_>, list: &Path) -> Result<()> {
    let folder = scenario.folder();
    fs::write(folder.join("index.txt"), "")?;
    fs::write(folder.join("crlnumber"), "01\n")?;
    let config = "[ca]\ndefault_ca=here\n[here]\ndatabase=index.txt\ndefault_md=sha256\ncrlnumber=crlnumber\n";
    fs::write(folder.join("ca.cnf"), config)?;
    let mut openssl = std::process::Command::new("openssl");
    openssl.current_dir(folder).args(["ca", "-batch", "-config", "ca.cnf", "-gencrl"]);
    openssl.args(["-crldays", "365", "-cert", &scenario.pki("ca.crt")]);
    openssl.args(["-keyfile", &scenario.pki("ca.key"), "-out"]).arg(list);
    output(openssl)?;
    file::set_mode(list, 0o644)?;
    Ok(())
}

fn has_address(namespace: &Namespace, address: &str) -> Result<()> {
    let inner = inner_addrs(namespace)?;
    ensure(inner.v4.to_string() == address, || format!("{address} was expected: {inner:?}"))
}

/// Creates configurations of a server with `nopool`, with which openvpn has no `server-ipv6`.
fn no_pool(scenario: &Scenario<'_>) -> Configs {
    let mut configs = scenario.configs();
    let lines = "server 10.88.0.0 255.255.255.0\nserver-ipv6 fd88::/64";
    configs.server = configs.server.replace(lines, "server 10.88.0.0 255.255.255.0 nopool");
    configs
}

/// `server ... nopool`: a client has the address of its file, or none.
pub(super) fn without_a_pool(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder().join("ccd");
    fs::create_dir(&folder)?;
    let file = folder.join("client");
    fs::write(&file, "ifconfig-push 10.88.0.77 255.255.255.0\n")?;
    let mut configs = no_pool(scenario);
    configs.server(&format!("client-config-dir {}", folder.display()));
    let tunnel = scenario.tunnel(&configs)?;
    has_address(&tunnel.pair.client, "10.88.0.77")?;
    tunnel.ping_all(4)?;
    let Tunnel { mut server, mut client, pair, .. } = tunnel;
    client.stop()?;
    fs::remove_file(&file)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|f| with_server(&f.0, &server))?;
    let shown = pair.client.run("ip", &["-o", "address", "show", "dev", "tun0"])?;
    ensure(!shown.contains(" inet "), || format!("it has an IPv4 address: {shown}"))?;
    if matches!(scenario.server, Program::Adit(_)) {
        server.wait_for("there is no pool, and no ifconfig-push for it", SOON)?;
    }
    // The file takes effect for the next connection.
    client.stop()?;
    fs::write(&file, "ifconfig-push 10.88.0.78 255.255.255.0\n")?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|f| with_server(&f.0, &server))?;
    has_address(&pair.client, "10.88.0.78")?;
    ping_until(&pair.client, "10.88.0.1".parse().context("an address")?, SOON)
        .map_err(|f| with_server(&f.0, &server))?;
    Ok(String::new())
}

/// `server ... nopool` together with a smaller separate pool.
pub(super) fn with_a_pool_of_its_own(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = no_pool(scenario);
    configs.server("ifconfig-pool 10.88.0.50 10.88.0.60 255.255.255.0");
    let tunnel = scenario.tunnel(&configs)?;
    let given = inner_addrs(&tunnel.pair.client)?.v4;
    let IpAddr::V4(v4) = given else { return Err(format!("it has {given}").into()) };
    ensure((50..=60).contains(&v4.octets()[3]), || format!("{given} is not in the pool"))?;
    tunnel.ping_all(4)?;
    Ok(String::new())
}

/// With the file of leases that one program has written, the other one gives a client the same address.
pub(super) fn leases_of_another_program(scenario: &Scenario<'_>) -> Result<String> {
    let leases = scenario.folder().join("ipp.txt");
    let mut configs = scenario.configs();
    configs.server(&format!("ifconfig-pool-persist {} 1\n{UNPRIVILEGED}", leases.display()));
    // The first server is the other program.
    let other = match scenario.server {
        Program::Adit(_) => &Program::OpenVpn,
        _ => scenario.client,
    };
    fs::write(&leases, "alice,10.88.0.2,\nbob,10.88.0.3,\n")?;
    let first = given_by(scenario, &configs, other)?;
    until("the lease is in the file", Duration::ZERO, || {
        let line = format!("client,{first},");
        Ok(fs::read_to_string(&leases)?.lines().any(|known| known.starts_with(&line)))
    })
    .map_err(|f| format!("{f}: {}", fs::read_to_string(&leases).unwrap_or_default()))?;
    let second = given_by(scenario, &configs, scenario.server)?;
    ensure(first == second, || format!("{first} became {second}"))?;
    Ok(format!("{first} from both"))
}

/// Returns the address that a client receives from a server of this program, after both have ended.
fn given_by(scenario: &Scenario<'_>, configs: &Configs, program: &Program) -> Result<IpAddr> {
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), configs, program)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|f| with_server(&f.0, &server))?;
    let given = inner_addrs(&pair.client)?.v4;
    let answers = ping(&pair.server, given, 56, 4)?;
    ensure(answers > 0, || server.failure("no ping came back").0)?;
    client.stop()?;
    server.stop()?;
    Ok(given)
}
