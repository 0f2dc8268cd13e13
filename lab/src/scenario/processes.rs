//! Real `openvpn` processes as clients, all started at once, to measure the rate that a server sustains with clients
//! other than adit's engines.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_testbed::file;
use adit_testbed::peer::Program;
use adit_testbed::process::Daemon;
use adit_testbed::tunnel::READY;

use crate::handshake_load::arrivals::{Arrival, count, latency};
use crate::handshake_load::load_generator::{program, put_findings};
use crate::handshake_load::pushed::{AppliedConfig, check};
use crate::handshake_load::{Server, config, hosts};
use crate::measure::Meter;
use crate::record::Measurement;
use crate::subject::{Subject, Toolchain};
use crate::testbed::Testbed;

/// The time limit for the last client.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often the clients' logs are read, which is the resolution of their times.
const LOOK: Duration = Duration::from_millis(5);

/// Starts `sessions` processes of `openvpn` on each host of `testbed`. Measures `handshakes_per_s` until all were
/// connected, `p50_ms` and `p99_ms` from each process's start until it was ready (which includes starting up and
/// configuring the device and routes), `cpu_ms_per_handshake` and `kib_per_client` of the server, `stuck`,
/// `misconfigured`.
///
/// # Errors
/// The subject has no server for these clients, it did not become ready, or `openvpn` is not installed.
pub fn processes(
    toolchain: &Toolchain,
    testbed: &Testbed,
    subject: &Subject,
    sessions: usize,
) -> Result<Measurement> {
    toolchain.available(&Subject::OPENVPN).map_err(Failure)?;
    let folder = toolchain.scratch()?;
    let server = program(toolchain, subject)?;
    let server = Server::start(&server, &testbed.server, folder.path(), toolchain.keys().folder())?;
    let script = tell_dns(folder.path())?;
    let mut paths = Vec::new();
    for number in 0..sessions * testbed.clients.len() {
        paths.push(client_file(toolchain, testbed, folder.path(), &script, number)?);
    }
    let mut paths = paths.iter();
    let meter = Meter::start(&[("server", vec![server.daemon().pid()])], testbed)?;
    let (cpu, pss) = (server.cpu()?, server.memory_kib()?);
    let started = Instant::now();
    let mut clients = Vec::new();
    for session in 0..sessions {
        for (index, host) in testbed.clients.iter().enumerate() {
            let name = format!("openvpn {index}/{session}");
            let path = paths.next().context("fewer configurations than clients")?;
            let begun = started.elapsed();
            let daemon = Daemon::spawn(&name, Program::OpenVpn.command(host, path))?;
            clients.push((daemon, Arrival { intended: begun, latency: None }));
        }
    }
    wait(started, &mut clients);
    let took = started.elapsed().as_secs_f64();
    let up = clients.iter().filter(|(_, arrival)| arrival.latency.is_some()).count();
    ensure(up > 0, || match clients.first() {
        Some((client, _)) => {
            format!("{}\n{}", client.failure("is not up"), server.daemon().failure("meanwhile"))
        }
        None => "a testbed without a client".to_owned(),
    })?;
    let mut measurement = Measurement::default();
    let (spent, grown) = (server.cpu()? - cpu, server.memory_kib()?.saturating_sub(pss));
    measurement.set("cpu_ms_per_handshake", spent * 1e3 / count(up));
    measurement.set("kib_per_client", grown as f64 / count(up));
    measurement.set("handshakes_per_s", count(up) / took);
    measurement.set("stuck", count(clients.len() - up));
    let distribution = latency(clients.iter().map(|(_, arrival)| arrival));
    for (name, share) in [("p50_ms", 0.5), ("p99_ms", 0.99)] {
        measurement.set(name, distribution.at(share).unwrap_or_default());
    }
    measurement.latencies.insert("handshake".to_owned(), distribution);
    let applied = applied(testbed, &clients)?;
    let findings = check(&config::expected()?, &applied, &applied);
    put_findings(&findings, &mut measurement);
    ensure(findings.looked_at >= up, || {
        format!("{up} clients are up and {} devices are there", findings.looked_at)
    })?;
    meter.stop()?.put(&mut measurement, 0.0);
    leave(clients);
    Ok(measurement)
}

/// Writes a script with which clients log the DNS options that they received.
fn tell_dns(folder: &Path) -> Result<PathBuf> {
    let script = folder.join("tell-dns");
    file::write(&script, "#!/bin/sh\nenv | grep ^foreign_option_\nexit 0\n", 0o755)?;
    Ok(script)
}

/// Returns a client's config file, with a separate certificate.
fn client_file(
    toolchain: &Toolchain,
    testbed: &Testbed,
    folder: &Path,
    script: &Path,
    number: usize,
) -> Result<PathBuf> {
    let own = toolchain.keys().issue_into(folder, &format!("client-{number}"))?;
    let mut text =
        config::client_file(toolchain.keys().folder(), &own, testbed.server_outer(false));
    text.push_str(&format!("script-security 2\nup {}\n", script.display()));
    let path = folder.join(format!("client-{number}.conf"));
    fs::write(&path, text).context(path.display())?;
    Ok(path)
}

/// Records when each client is ready, until all are ready or the time limit has passed.
fn wait(started: Instant, clients: &mut [(Daemon, Arrival)]) {
    while started.elapsed() < TIMEOUT {
        let mut missing = false;
        for (daemon, arrival) in clients.iter_mut().filter(|(_, a)| a.latency.is_none()) {
            if daemon.count(READY) > 0 {
                arrival.latency = Some(started.elapsed().saturating_sub(arrival.intended));
            } else {
                missing = true;
            }
        }
        if !missing {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns the configuration of the tunnels on the hosts. If a host has several tunnels, it is not known which process
/// has which device, and this is not needed.
fn applied(testbed: &Testbed, clients: &[(Daemon, Arrival)]) -> Result<Vec<AppliedConfig>> {
    let expected = config::expected()?;
    let mut all = Vec::new();
    for (index, host) in testbed.clients.iter().enumerate() {
        let logs = clients.iter().skip(index).step_by(testbed.clients.len().max(1));
        for (applied, (daemon, _)) in hosts::applied(host)?.into_iter().zip(logs) {
            // The kernel's IPv6 routes name the device and no gateway.
            let gateway6 = Some(expected.server6.addr());
            all.push(AppliedConfig { gateway6, dns: dns(&daemon.log()), ..applied });
        }
    }
    Ok(all)
}

/// Returns the values of `foreign_option_1` and up in a log.
fn dns(log: &str) -> Vec<String> {
    let options = log.lines().filter_map(|line| {
        let (_, option) = line.split_once("foreign_option_")?;
        Some(option.split_once('=')?.1.to_owned())
    });
    options.collect()
}

/// Disconnects all clients at once, because one after another would take a second each.
fn leave(mut clients: Vec<(Daemon, Arrival)>) {
    for (client, _) in &clients {
        // This fails only if the process has already ended.
        let _ = client.signal(nix::sys::signal::Signal::SIGTERM);
    }
    let end = Instant::now() + Duration::from_secs(2);
    for (client, _) in &mut clients {
        let _ = client.wait_exit(end.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn finds_the_dns_options_in_a_log() {
        let log = "a line\nforeign_option_1=dhcp-option DNS 10.88.0.1\nforeign_option_2=dhcp-option DOMAIN x\n";
        assert_eq!(super::dns(log), ["dhcp-option DNS 10.88.0.1", "dhcp-option DOMAIN x"]);
        assert!(super::dns("nothing").is_empty());
    }
}
