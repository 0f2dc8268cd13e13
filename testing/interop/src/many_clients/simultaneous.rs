//! Tests of simultaneous clients: all ping, all have the pushed options, and one that stops reading does not disturb the others.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{
    ClientPool, ConnectedClient, PUSHED_ROUTE, is_tcp, join_all, outer, wait_for_sessions,
};
use crate::case::TestEnv;
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, dropped};
use crate::peer::Program;
use crate::traffic::{Stream, echo_all};

/// The number of pings of each client in one measurement.
const PINGS: u32 = 60;
const PAUSE: Duration = Duration::from_millis(200);
/// The factor by which a stalled client may raise the others' 99th percentile, and the milliseconds that a shared
/// machine adds to any percentile. The undisturbed percentile is measured before and after, because other work on the
/// machine shows in one of the two.
const TWICE: f64 = 2.0;
const NOISE_MS: f64 = 5.0;

/// Connects `hosts` clients, every second one over TCP, and checks their addresses, options and round trips.
///
/// # Errors
/// A deviation, with logs.
pub fn simultaneous(
    env: &TestEnv,
    name: &str,
    server: &Program,
    client: &Program,
    hosts: usize,
) -> Result<String> {
    let folder = env.sandbox.folder(&name.replace('/', "_"))?;
    let mut pool = ClientPool::start(env, &folder, server, client, hosts, "")?;
    let mut members = join_all(&pool)?;
    let outcome = together(&pool, &members);
    let told = outcome.map_err(|failure| format!("{failure}\n{}", pool.daemon.failure("")))?;
    members.iter_mut().try_for_each(|member| member.daemon.stop())?;
    pool.daemon.stop()?;
    Ok(told)
}

fn together(pool: &ClientPool<'_>, members: &[ConnectedClient]) -> Result<String> {
    check_pushed(pool, members)?;
    let gateway: IpAddr = "10.88.0.1".parse().context("the gateway")?;
    let everyone: Vec<&Namespace> = pool.hosts.iter().collect();
    let before = echo(pool, &everyone, gateway)?;

    let stalled = (0..members.len()).find(|&host| is_tcp(host)).context("no client over TCP")?;
    let (victim, space) = (&members[stalled], &pool.hosts[stalled]);
    victim.daemon.signal(Signal::SIGSTOP)?;
    // This is far more than its sockets and the server's queue can hold, so the server must drop packets.
    let flood = Stream::start(&pool.server, space, victim.inner.v4, 1400)?;
    std::thread::sleep(Duration::from_secs(2));
    let others: Vec<&Namespace> = pool
        .hosts
        .iter()
        .enumerate()
        .filter(|(host, _)| *host != stalled)
        .map(|(_, h)| h)
        .collect();
    let disturbed = echo(pool, &others, gateway);
    victim.daemon.signal(Signal::SIGCONT)?;
    let delivery = flood.finish()?;
    ensure(delivery.received < delivery.sent, || {
        format!("the stopped client missed nothing, so nothing was tried: {delivery:?}")
    })?;
    let disturbed = disturbed.map_err(|failure| format!("with a stalled client: {failure}"))?;
    let after = echo(pool, &everyone, gateway)?;
    let quiet = before.max(after);
    ensure(disturbed <= quiet * TWICE + NOISE_MS, || {
        format!("p99 of the others: {disturbed:.1} ms; {before:.1} ms before, {after:.1} ms after")
    })?;
    Ok(format!(
        "{} clients, p99 {before:.2} ms, with one stalled {disturbed:.2} ms, after it {after:.2} ms",
        members.len(),
    ))
}

/// Makes all clients ping `to` at the same time; returns the 99th percentile of the round trips in milliseconds. No
/// packet may be lost except those that the kernel counts as dropped.
fn echo(pool: &ClientPool<'_>, from: &[&Namespace], to: IpAddr) -> Result<f64> {
    let hosts: Vec<&Namespace> = pool.hosts.iter().chain([&pool.server]).collect();
    let before = dropped(&hosts)?;
    let echoes = echo_all(from, to, PINGS, PAUSE)?;
    let dropped = dropped(&hosts)? - before;
    ensure(echoes.lost() <= dropped, || {
        let (lost, sent) = (echoes.lost(), echoes.sent);
        format!("{lost} of {sent} pings were lost, the kernel dropped {dropped} packets")
    })?;
    echoes.p99().context("no answer at all")
}

/// Checks at every client that its addresses are unique and those of the server's status file, and that it has the pushed route.
fn check_pushed(pool: &ClientPool<'_>, members: &[ConnectedClient]) -> Result<()> {
    let status = wait_for_sessions(pool, members.len(), Duration::from_secs(10))?;
    let mut seen = BTreeSet::new();
    for (host, member) in members.iter().enumerate() {
        let address = outer(host)?.addr();
        let told = status.sessions.get(&address).context(address)?;
        let has: Vec<IpAddr> = std::iter::once(member.inner.v4).chain(member.inner.v6).collect();
        ensure(*told == has, || format!("host {host} has {has:?}, the server says {told:?}"))?;
        ensure(has.iter().all(|address| seen.insert(*address)), || format!("{has:?} twice"))?;
        let routes = pool.hosts[host].run("ip", &["route", "show", PUSHED_ROUTE])?;
        ensure(routes.contains("10.88.0.1"), || format!("host {host} lacks {PUSHED_ROUTE}"))?;
    }
    Ok(())
}
