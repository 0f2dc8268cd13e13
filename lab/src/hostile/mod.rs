//! Adversaries that send a server everything that the protocol allows, at a fixed rate.
//!
//! ```text
//!  Adversary::start -> a separate thread: Attack::act, paced -> Adversary::finish -> Counts
//!                          |
//!                          +- Client    has a certificate and keeps no budget
//!                          +- Unauthenticated  has the shared wrapping key at most
//! ```
//!
//! The rate is the same for each server, so the generator's share of a small machine is the same too.

mod client;
mod forge;
mod unauthenticated;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_openvpn::client::ClientConfig;
use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::net::Namespace;

pub use client::Client;
pub use forge::local_port;
pub use unauthenticated::Unauthenticated;

/// The origin and target of an adversary.
#[derive(Debug, Clone)]
pub struct Target {
    /// The adversary's addresses, all in the namespace in which it runs.
    pub sources: Vec<IpAddr>,
    /// The honest client's outer address, from which an adversary forges packets.
    pub honest: SocketAddr,
    /// The server's address.
    pub server: SocketAddr,
}

/// The number of packets sent, by kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// The packets by kind.
    pub packets: BTreeMap<&'static str, u64>,
    /// The duration in seconds.
    pub seconds: f64,
}

impl Counts {
    /// Returns the number of packets a second, of all kinds.
    pub fn rate(&self) -> f64 {
        let all: u64 = self.packets.values().sum();
        if self.seconds > 0.0 { all as f64 / self.seconds } else { 0.0 }
    }

    fn add(&mut self, kind: &'static str) {
        *self.packets.entry(kind).or_default() += 1;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all: Vec<String> =
            self.packets.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        write!(f, "{} in {:.1} s", all.join(", "), self.seconds)
    }
}

/// The behaviour of an adversary.
pub trait Attack {
    /// Performs the next action; `number` counts from 0.
    ///
    /// # Errors
    /// The adversary cannot continue.
    fn act(&mut self, number: u64, counts: &mut Counts) -> Result<()>;

    /// Reads the server's packets, and waits for them for at most this long.
    ///
    /// # Errors
    /// A socket failed.
    fn listen(&mut self, wait: Duration, counts: &mut Counts) -> Result<()>;
}

/// A running adversary. It stops when this is dropped.
#[derive(Debug)]
pub struct Adversary {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Counts>>>,
}

/// The time limit for an adversary to be ready; a client has its session by then.
const READY: Duration = Duration::from_secs(30);

impl Adversary {
    /// Starts an authenticated client that performs `rate` actions a second, once it has its session.
    ///
    /// # Errors
    /// The client gets no session.
    pub fn client(
        host: &Namespace,
        config: ClientConfig,
        target: Target,
        rate: f64,
    ) -> Result<Self> {
        Self::start(host, rate, move || Client::connect(config, &target))
    }

    /// Starts an unauthenticated peer that sends `rate` packets a second. It uses only the wrapping key of `config`.
    ///
    /// # Errors
    /// A socket cannot be made.
    pub fn unauthenticated(
        host: &Namespace,
        config: ClientConfig,
        target: Target,
        rate: f64,
    ) -> Result<Self> {
        Self::start(host, rate, move || Unauthenticated::new(&config, &target))
    }

    fn start<A: Attack>(
        host: &Namespace,
        rate: f64,
        make: impl FnOnce() -> Result<A> + Send + 'static,
    ) -> Result<Self> {
        ensure(rate.is_finite() && rate > 0.0, || {
            format!("{rate} hostile packets a second cannot be sent: write a number above 0")
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (ready, wait) = mpsc::channel();
        let thread = host.thread(move || {
            let mut attack = make()?;
            // The receiver is gone only if it stopped waiting.
            let _ = ready.send(());
            run(&mut attack, rate, &stopped)
        })?;
        let mut adversary = Self { stop, thread: Some(thread) };
        match wait.recv_timeout(READY) {
            Ok(()) => Ok(adversary),
            // The sender is gone because the thread has ended. Its result contains the reason.
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(adversary.join().err().unwrap_or_else(|| "the adversary has ended".into()))
            }
            Err(why @ mpsc::RecvTimeoutError::Timeout) => Err(why).context("the adversary"),
        }
    }

    /// Stops the adversary, and returns the number of packets that it has sent.
    ///
    /// # Errors
    /// The adversary could not continue.
    pub fn finish(mut self) -> Result<Counts> {
        self.join()
    }

    fn join(&mut self) -> Result<Counts> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("the adversary was joined before")?;
        thread.join().unwrap_or_else(|_| Err("the adversary panicked".into()))
    }
}

impl Drop for Adversary {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // On drop, there is no caller to report the failure to.
            let _ = self.join();
        }
    }
}

/// The maximum backlog that is made up for after a pause, as a share of a second's work.
const BURST: f64 = 0.01;

fn run(attack: &mut impl Attack, rate: f64, stop: &AtomicBool) -> Result<Counts> {
    let mut counts = Counts::default();
    let begun = Instant::now();
    let mut pace = Pacer::default();
    while !stop.load(Ordering::Relaxed) {
        match pace.next(begun.elapsed(), rate) {
            Some(number) => {
                attack.act(number, &mut counts)?;
                attack.listen(Duration::ZERO, &mut counts)?;
            }
            None => attack.listen(Duration::from_micros(500), &mut counts)?,
        }
    }
    counts.seconds = begun.elapsed().as_secs_f64();
    Ok(counts)
}

/// Decides when the next action is due. After a pause it makes up for a short burst, and skips the rest.
#[derive(Debug, Default)]
struct Pacer {
    done: u64,
    behind: u64,
}

impl Pacer {
    fn next(&mut self, elapsed: Duration, rate: f64) -> Option<u64> {
        let due = (elapsed.as_nanos() as f64 * rate / 1e9) as u64;
        let burst = ((rate * BURST) as u64).max(1);
        let late = due.saturating_sub(self.done + self.behind).saturating_sub(burst);
        self.behind += late;
        if self.done + self.behind >= due {
            return None;
        }
        self.done += 1;
        Some(self.done - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_followed_by_a_short_burst_and_then_the_rate() {
        let mut pace = Pacer::default();
        let ms = Duration::from_millis;
        assert_eq!(pace.next(ms(0), 1000.0), None);
        assert_eq!((pace.next(ms(1), 1000.0), pace.next(ms(1), 1000.0)), (Some(0), None));
        // After a lost second, ten actions are made up for, and the numbers continue without a gap.
        let burst: Vec<u64> = std::iter::from_fn(|| pace.next(ms(1001), 1000.0)).collect();
        assert_eq!(burst, (1..=10).collect::<Vec<u64>>());
        assert_eq!((pace.next(ms(1002), 1000.0), pace.next(ms(1002), 1000.0)), (Some(11), None));
    }

    #[test]
    fn counts_add_up_to_a_rate() {
        let mut counts = Counts { seconds: 2.0, ..Counts::default() };
        ["resets", "resets", "data"].into_iter().for_each(|kind| counts.add(kind));
        assert!((counts.rate() - 1.5).abs() < 1e-9);
        assert_eq!(counts.to_string(), "1 data, 2 resets in 2.0 s");
        assert!(Counts::default().rate().abs() < 1e-9);
    }
}
