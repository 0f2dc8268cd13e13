//! Tests of a server with several workers, and clients in separate processes.

use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::{Scenario, ping_until};
use crate::case::{InnerAddrs, READY, SETUP_LIMIT, inner_addrs, rekeys};
use crate::failure::{Result, ensure};
use crate::net::Star;
use crate::peer::Program;
use crate::process::Daemon;
use crate::traffic::{Delivery, Stream, ping, tcp};
use crate::wait::ScaledInstant;

/// The variable with the number of adit's workers.
const VARIABLE: &str = "ADIT_WORKERS";
const CLIENTS: u8 = 4;

pub(super) fn several_workers(scenario: &Scenario<'_>) -> Result<String> {
    talk(scenario, 3, false)
}

/// Far more workers than cores, and every second client connects over TCP.
pub(super) fn eight_workers_and_streams(scenario: &Scenario<'_>) -> Result<String> {
    talk(scenario, 8, true)
}

/// Streams run between clients in both directions and to the server, with rekeys meanwhile. A client moves, and a second server must not
/// share the port.
fn talk(scenario: &Scenario<'_>, workers: usize, over_tcp: bool) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("duplicate-cn\nclient-to-client\nreneg-sec 5\nhand-window 4");
    configs.client("reneg-sec 0");
    if over_tcp {
        configs.server = configs.server.replace("proto udp4\n", "").replace("port 1194\n", "");
        configs.server("local * 1194 udp4\nlocal * 1194 tcp4");
    }
    // If a client's process is not scheduled, packets that do not fit into its stream's queue are dropped.
    let share = if over_tcp { 80 } else { 99 };
    let star = Star::new(CLIENTS)?;
    let path = |name: &str| scenario.folder().join(name);
    fs::write(path("server.conf"), &configs.server)?;
    fs::write(path("client.conf"), &configs.client)?;
    fs::write(path("tcp.conf"), configs.client.replace("proto udp4\n", "proto tcp4-client\n"))?;
    let start = |program: &Program, namespace, file| -> Command {
        let mut command = program.command(namespace, &path(file));
        command.env(VARIABLE, workers.to_string());
        command
    };
    let mut server = Daemon::spawn("server", start(scenario.server, &star.server, "server.conf"))?;
    server.wait_for(READY, SETUP_LIMIT)?;
    // A thread gets its name when it first runs.
    let soon = ScaledInstant::now() + Duration::from_secs(5);
    while threads(&server)?.len() < workers && ScaledInstant::now() < soon {
        sleep(Duration::from_millis(10));
    }
    ensure(threads(&server)?.len() == workers, || format!("{:?}", threads(&server)))?;
    let mut clients = Vec::new();
    let mut inner: Vec<InnerAddrs> = Vec::new();
    for (n, namespace) in star.clients.iter().enumerate() {
        let file = if over_tcp && n % 2 == 1 { "tcp.conf" } else { "client.conf" };
        let mut client = Daemon::spawn("client", start(scenario.client, namespace, file))?;
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
        inner.push(inner_addrs(namespace)?);
        clients.push(client);
    }
    let at_server = inner_addrs(&star.server)?;
    under_rekeys(&star, &inner, at_server.v4, &server, share)?;
    let took = a_client_moves(&star, &inner, at_server.v4, &clients, share)?;
    second_server(scenario, &star, workers)?;
    let busy = threads(&server)?.into_iter().filter(|ticks| *ticks > 0).count();
    let log = server.log();
    ensure(!log.contains("died"), || server.failure("a worker died").0)?;
    for client in &mut clients {
        client.stop()?;
    }
    server.stop()?;
    Ok(format!(
        "{busy} of {workers} workers had work, {} rekeys, moved in {took:?}",
        rekeys(&server)
    ))
}

/// All pairs of neighbours send to each other, and one to the server, until each client has had two new keys.
fn under_rekeys(
    star: &Star,
    inner: &[InnerAddrs],
    at_server: IpAddr,
    server: &Daemon,
    share: u64,
) -> Result<()> {
    let mut streams = Vec::new();
    for (from, namespace) in star.clients.iter().enumerate() {
        let (Some(to), Some(address)) = (star.clients.get(from ^ 1), inner.get(from ^ 1)) else {
            return Err("clients come in pairs".into());
        };
        ping_until(namespace, address.v4, Duration::from_secs(5))?;
        streams.push(Stream::start(namespace, to, address.v4, 1300)?);
    }
    if let Some(first) = star.clients.first() {
        streams.push(Stream::start(first, &star.server, at_server, 1300)?);
    }
    let (before, end) = (rekeys(server), ScaledInstant::now() + Duration::from_secs(40));
    while rekeys(server) < before + 2 * usize::from(CLIENTS) {
        ensure(ScaledInstant::now() < end, || server.failure("too few rekeys").0)?;
        sleep(Duration::from_millis(100));
    }
    streams.into_iter().try_for_each(|stream| judge(&stream.finish()?, share))
}

/// Checks that no packet is duplicated or changed, and that this percentage arrived. A busy machine's kernel may drop
/// some; those that a replay window refuses come in trains.
fn judge(delivery: &Delivery, share: u64) -> Result<()> {
    let Delivery { sent, received, duplicated, corrupted } = *delivery;
    let enough = sent > 100 && u64::from(received) * 100 >= u64::from(sent) * share;
    ensure(duplicated == 0 && corrupted == 0 && enough, || format!("{delivery:?}"))
}

/// Moves the first client while others send; its session continues from the new address, and so do the others'.
fn a_client_moves(
    star: &Star,
    inner: &[InnerAddrs],
    at_server: IpAddr,
    clients: &[Daemon],
    share: u64,
) -> Result<Duration> {
    let ([first, second, third, fourth], [at_first, at_second, _, at_fourth]) =
        (star.clients.as_slice(), inner)
    else {
        return Err("four were asked for".into());
    };
    let others = Stream::start(third, fourth, at_fourth.v4, 1300)?;
    let device = first.run("ip", &["-o", "route", "get", "192.0.2.1"])?;
    let device = device.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap_or("");
    first.run("ip", &["address", "flush", "dev", device, "scope", "global"])?;
    first.run("ip", &["address", "add", "192.0.2.77/24", "dev", device])?;
    let took = ping_until(first, at_server, Duration::from_secs(10))?;
    let got = ping(second, at_first.v4, 3000, 4)?;
    ensure(got == 4, || format!("{got} of 4 pings find the client where it is now"))?;
    tcp(first, second, at_second.v4, 1_000_000)?;
    judge(&others.finish()?, share)?;
    for client in clients {
        ensure(client.count(READY) == 1, || client.failure("began anew").0)?;
    }
    Ok(took)
}

/// A second process on the port fails because the port is in use. SO_REUSEPORT would otherwise give it half of the
/// clients.
fn second_server(scenario: &Scenario<'_>, star: &Star, workers: usize) -> Result<()> {
    for workers in [1, workers] {
        let mut command =
            scenario.server.command(&star.server, &scenario.folder().join("server.conf"));
        command.env(VARIABLE, workers.to_string());
        let mut second = Daemon::spawn("second server", command)?;
        let status = second.wait_exit(Duration::from_secs(10))?;
        let told = second.log().contains("UDP port 1194") && second.log().contains("in use");
        ensure(!status.success() && told, || second.failure("shares the port").0)?;
    }
    Ok(())
}

/// Returns the workers' CPU time so far, in ticks.
fn threads(server: &Daemon) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", server.pid()))? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        if name.contains("(plane-") {
            let ticks = rest.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>());
            found.push(ticks.map(|ticks| ticks.unwrap_or(0)).sum());
        }
    }
    Ok(found)
}
