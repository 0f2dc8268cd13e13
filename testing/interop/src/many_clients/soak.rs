//! Looks for leaks in half an hour of connects and disconnects.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{ClientPool, is_tcp, wait_for_sessions};
use crate::case::TestEnv;
use crate::failure::{Context, Result, ensure};
use crate::peer::Program;
use crate::traffic::{ping, tcp};

/// The length of a soak test and its number of clients.
#[derive(Debug, Clone, Copy)]
pub struct Soak {
    /// The number of clients.
    pub clients: usize,
    /// The time from the first connect to the last disconnect.
    pub length: Duration,
}

/// Bytes of each transfer to a client, about every [`BEAT`] of its life.
const TRANSFER: usize = 1_000_000;
const BEAT: Duration = Duration::from_secs(3);
/// By this time every client has connected and left once, so that the process has made all its permanent allocations.
const WARM: Duration = Duration::from_secs(60);
/// How long a server is given to settle after the last client has left. In this period it releases memory for the last
/// time, except for the memory that its start needed, which it releases within another such period.
const SETTLE: Duration = Duration::from_secs(18);
/// The lives of clients in seconds, in rotation.
const LIVES: [u64; 5] = [5, 40, 15, 70, 25];
/// The memory that a server may use after the last client in excess of the memory before the first, in KiB beyond a
/// tenth: the signatures that it caches (32), deeper stacks of its two threads (up to 64), tables of the crypto library
/// that are created at their first use, and partially used pages.
const ONCE: u64 = 128;
/// The memory that it may use at the end in excess of that after the first minute, in KiB. One-time allocations were
/// made by then, and not even 50 bytes may remain of each of 2,800 further sessions.
const MORE: u64 = 128;

/// The resources of the server's process.
#[derive(Debug, Clone, Copy)]
struct Resources {
    fds: usize,
    threads: usize,
    /// Memory that it allocated itself (anonymous memory), in KiB.
    memory: u64,
}

/// Runs for `length`, while clients connect over both transports, transfer, rekey every 30 s, disconnect properly or
/// are killed, and return.
///
/// # Errors
/// A client could not connect, or the server's resources did not return to their initial values.
pub fn soak(env: &TestEnv, server: &Program, client: &Program, soak: Soak) -> Result<String> {
    let folder = env.sandbox.folder("soak")?;
    let pool = ClientPool::start(env, &folder, server, client, soak.clients, "reneg-sec 30")?;
    std::thread::sleep(SETTLE);
    let begin = resources(&pool)?;
    println!("at the beginning: {begin:?}");
    come_and_go(&pool, soak.clients, WARM)?;
    let warm = resources(&pool)?;
    println!("after everyone has come and gone for {} s: {warm:?}", WARM.as_secs());
    let lives = come_and_go(&pool, soak.clients, soak.length)?;
    let end = resources(&pool)?;
    let told = format!("{lives} lives; {begin:?}, warm {warm:?}, at the end {end:?}");
    let same = end.fds == begin.fds && end.threads == begin.threads;
    ensure(same, || told.clone())?;
    for (name, at) in [("after the first minute", warm), ("at the end", end)] {
        ensure(at.memory <= begin.memory + begin.memory / 10 + ONCE, || {
            format!(
                "{told}: memory does not return {name}, which may be a tenth and {ONCE} KiB more than at first"
            )
        })?;
    }
    ensure(end.memory <= warm.memory + MORE, || {
        format!("{told}: memory grows, by more than {MORE} KiB since the first minute")
    })?;
    ensure(pool.daemon.count("panicked") == 0, || pool.daemon.failure("a panic").0)?;
    Ok(told)
}

/// Runs clients for a while, waits until the server has removed them all, and returns how many connected.
fn come_and_go(pool: &ClientPool<'_>, clients: usize, length: Duration) -> Result<u64> {
    let (stop, lives) = (AtomicBool::new(false), AtomicU64::new(0));
    let end = Instant::now() + length;
    let outcome = std::thread::scope(|scope| {
        let (stop, lives) = (&stop, &lives);
        let running: Vec<_> = (0..clients)
            .map(|host| {
                scope.spawn(move || {
                    let done = live_again_and_again(pool, host, end, stop, lives);
                    // A failure ends the other clients' next lives.
                    stop.fetch_or(done.is_err(), Relaxed);
                    done
                })
            })
            .collect();
        while Instant::now() < end && !stop.load(Relaxed) {
            std::thread::sleep(
                Duration::from_secs(20).min(end.saturating_duration_since(Instant::now())),
            );
            if let (Ok(resources), Ok(status)) = (resources(pool), pool.status()) {
                let (lives, sessions) = (lives.load(Relaxed), status.sessions.len());
                println!("{lives} lives, {sessions} sessions, {resources:?}");
            }
        }
        let ended = running.into_iter().map(|thread| thread.join());
        ended
            .map(|done| done.unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect::<Result<Vec<_>>>()
    });
    outcome.map_err(|failure| format!("{failure}\n{}", pool.daemon.failure("meanwhile")))?;
    // The server notices the silence of killed clients.
    wait_for_sessions(pool, 0, Duration::from_secs(60))?;
    std::thread::sleep(SETTLE);
    Ok(lives.load(Relaxed))
}

fn live_again_and_again(
    pool: &ClientPool<'_>,
    host: usize,
    end: Instant,
    stop: &AtomicBool,
    lives: &AtomicU64,
) -> Result<()> {
    let space = pool.hosts.get(host).context("no such host")?;
    // Stagger the clients, so that they do not start at the same time.
    std::thread::sleep(Duration::from_millis(100 * host as u64));
    for life in host.. {
        if Instant::now() >= end || stop.load(Relaxed) {
            break;
        }
        // Alternate the transports, so that a host's next session uses the other one.
        let mut member = pool.join(host, is_tcp(life))?;
        lives.fetch_add(1, Relaxed);
        let death = Instant::now() + Duration::from_secs(LIVES[life % LIVES.len()]);
        while Instant::now() < death.min(end) && !stop.load(Relaxed) {
            let got = ping(space, "10.88.0.1".parse().context("the gateway")?, 900, 3)?;
            ensure(got > 0, || member.daemon.failure("no answer through the tunnel").0)?;
            tcp(&pool.server, space, member.inner.v4, TRANSFER)?;
            std::thread::sleep(BEAT);
        }
        let signal = if life % 3 == 0 { Signal::SIGKILL } else { Signal::SIGTERM };
        member.daemon.signal(signal)?;
        member.daemon.wait_exit(Duration::from_secs(10))?;
    }
    Ok(())
}

fn resources(pool: &ClientPool<'_>) -> Result<Resources> {
    let process = std::path::PathBuf::from(format!("/proc/{}", pool.daemon.pid()));
    let status = std::fs::read_to_string(process.join("status"))?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context(name)?;
        line.trim_start_matches(':').split_whitespace().next().context(name)?.parse().context(name)
    };
    Ok(Resources {
        fds: std::fs::read_dir(process.join("fd"))?.count(),
        threads: usize::try_from(field("Threads")?).context("threads")?,
        memory: field("RssAnon")?,
    })
}
