//! All at once: everyone pings, everyone has what was pushed, and one that stops reading disturbs no one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Crowd, Member, PUSHED_ROUTE, is_tcp, join_all, outer, wait_for_sessions};
use crate::cell::Bench;
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::peer::Program;
use crate::process::Daemon;
use crate::traffic::Stream;

/// Pings of each client in one measurement, and the pause between them in seconds.
const PINGS: u32 = 60;
const PAUSE: &str = "0.2";
/// The share of the quiet 99th percentile that a stalled client may cost the others, and what a shared machine adds to any
/// percentile, in milliseconds.
const TWICE: f64 = 2.0;
const NOISE_MS: f64 = 5.0;

/// Connects `hosts` clients, every second one over TCP, and checks all of it.
///
/// # Errors
/// What was not as it should be, with logs.
pub fn throng(
    bench: &Bench,
    name: &str,
    server: &Program,
    client: &Program,
    hosts: usize,
) -> Result<String> {
    let folder = bench.world.folder(&name.replace('/', "_"))?;
    let mut crowd = Crowd::start(bench, &folder, server, client, hosts, "")?;
    let mut members = join_all(&crowd)?;
    let outcome = together(&crowd, &members);
    let told = outcome.map_err(|failure| format!("{failure}\n{}", crowd.daemon.failure("")))?;
    members.iter_mut().try_for_each(|member| member.daemon.stop())?;
    crowd.daemon.stop()?;
    Ok(told)
}

fn together(crowd: &Crowd<'_>, members: &[Member]) -> Result<String> {
    check_pushed(crowd, members)?;
    let gateway: IpAddr = "10.88.0.1".parse().context("the gateway")?;
    let everyone: Vec<&Namespace> = crowd.hosts.iter().collect();
    let quiet = ping_at_once(&everyone, gateway)?;
    ensure(quiet.lost == 0, || format!("{} of {} pings were lost", quiet.lost, quiet.sent))?;

    let stalled = (0..members.len()).find(|&host| is_tcp(host)).context("no client over TCP")?;
    let (victim, space) = (&members[stalled], &crowd.hosts[stalled]);
    victim.daemon.signal(Signal::SIGSTOP)?;
    // Far more than its sockets and the server's queue for it hold, so that the server must drop.
    let flood = Stream::start(&crowd.server, space, victim.inner.v4, 1400)?;
    std::thread::sleep(Duration::from_secs(2));
    let others: Vec<&Namespace> = crowd
        .hosts
        .iter()
        .enumerate()
        .filter(|(host, _)| *host != stalled)
        .map(|(_, h)| h)
        .collect();
    let disturbed = ping_at_once(&others, gateway)?;
    victim.daemon.signal(Signal::SIGCONT)?;
    let delivery = flood.finish()?;
    ensure(delivery.received < delivery.sent, || {
        format!("the stopped client missed nothing, so nothing was tried: {delivery:?}")
    })?;
    ensure(disturbed.lost == 0, || {
        format!("a stalled client cost others {} pings", disturbed.lost)
    })?;
    ensure(disturbed.p99 <= quiet.p99 * TWICE + NOISE_MS, || {
        format!("p99 of the others: {:.1} ms, before {:.1} ms", disturbed.p99, quiet.p99)
    })?;
    Ok(format!(
        "{} clients, {} pings, p99 {:.2} ms, with one stalled {:.2} ms",
        members.len(),
        quiet.sent,
        quiet.p99,
        disturbed.p99
    ))
}

/// Addresses as the server's ledger has them, all different, and the pushed route, at every client.
fn check_pushed(crowd: &Crowd<'_>, members: &[Member]) -> Result<()> {
    let ledger = wait_for_sessions(crowd, members.len(), Duration::from_secs(10))?;
    let mut seen = BTreeSet::new();
    for (host, member) in members.iter().enumerate() {
        let address = outer(host)?.addr();
        let told = ledger.sessions.get(&address).context(address)?;
        let has: Vec<IpAddr> = std::iter::once(member.inner.v4).chain(member.inner.v6).collect();
        ensure(*told == has, || format!("host {host} has {has:?}, the server says {told:?}"))?;
        ensure(has.iter().all(|address| seen.insert(*address)), || format!("{has:?} twice"))?;
        let routes = crowd.hosts[host].run("ip", &["route", "show", PUSHED_ROUTE])?;
        ensure(routes.contains("10.88.0.1"), || format!("host {host} lacks {PUSHED_ROUTE}"))?;
    }
    Ok(())
}

struct Pings {
    sent: u64,
    lost: u64,
    /// Milliseconds.
    p99: f64,
}

/// All of them ping `to` at the same time.
fn ping_at_once(from: &[&Namespace], to: IpAddr) -> Result<Pings> {
    let mut daemons = Vec::new();
    for space in from {
        let mut command = space.command("ping");
        command.args(["-n", "-i", PAUSE, "-W", "2", "-c", &PINGS.to_string(), &to.to_string()]);
        daemons.push(Daemon::spawn("ping", command)?);
    }
    let mut times = Vec::new();
    for daemon in &mut daemons {
        daemon.wait_exit(Duration::from_secs(60))?;
        times.extend(
            daemon
                .log()
                .split_whitespace()
                .filter_map(|word| word.strip_prefix("time="))
                .flat_map(str::parse::<f64>),
        );
    }
    times.sort_by(f64::total_cmp);
    let sent = from.len() as u64 * u64::from(PINGS);
    let at = times.len() * 99 / 100;
    let p99 =
        times.get(at.min(times.len().saturating_sub(1))).copied().context("no answer at all")?;
    Ok(Pings { sent, lost: sent - times.len() as u64, p99 })
}
