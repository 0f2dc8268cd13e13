//! The limits `inactive`, `session-timeout` and `ping-exit`, each of which ends a session.
//!
//! The data plane is asked for its traffic counters at intervals, so that packets incur no cost.

use std::time::Duration;

use adit_engine::auth::Inactive;
use adit_engine::command::{Keepalive, Traffic};
use adit_engine::{Instant, Link, PeerId};

use super::common::overhead;
use super::settings::{Limits, Settings};
use crate::data_format::{Command, Outbox, Protection};

/// The maximum delay in the detection of a silent session, as a fraction 1 / `GRAIN` of its time
/// limit.
const GRAIN: u32 = 16;
/// The bounds of the interval at which the data plane is queried.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The idle timer of one session.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    rule: Inactive,
    peer: PeerId,
    /// The number of bytes that encapsulation adds to a packet.
    overhead: u16,
    /// The number of tunnelled packets and their bytes when the timer last started.
    seen: (u64, u64),
    since: Instant,
    next: Instant,
}

impl Idle {
    /// Starts the timer now. Returns `None` if `inactive` is not configured.
    pub(crate) fn watch(
        now: Instant,
        rule: Option<Inactive>,
        peer: PeerId,
        to: (Link, Protection, &Settings),
    ) -> Option<Self> {
        let rule = rule.filter(|rule| !rule.after.is_zero())?;
        let (link, protection, settings) = to;
        let overhead = overhead(settings, link, protection);
        let mut idle = Self { rule, peer, overhead, seen: (0, 0), since: now, next: now };
        idle.plan(now);
        Some(idle)
    }

    /// Restarts the timer and ignores earlier traffic, for a peer of the data plane that outlives
    /// its sessions.
    pub(crate) fn begin_anew(&mut self, now: Instant) {
        self.since = now;
        self.plan(now);
    }

    fn plan(&mut self, now: Instant) {
        let grain = (self.rule.after / GRAIN).clamp(SHORTEST, LONGEST);
        self.next = (now + grain).min((self.since + self.rule.after).max(now + SHORTEST));
    }

    pub(crate) fn deadline(&self) -> (Instant, &'static str) {
        (self.next, "inactive")
    }

    pub(crate) fn tick<E>(&mut self, now: Instant, out: &mut Outbox<E>) {
        if self.next <= now {
            out.plane(Command::ReadTraffic(self.peer));
            self.plan(now);
        }
    }

    /// Processes the data plane's traffic counters. Returns true if the timer has expired.
    pub(crate) fn record_traffic(&mut self, now: Instant, traffic: Traffic) -> bool {
        let around = traffic.packets.saturating_mul(self.overhead.into());
        let bytes = traffic.bytes.saturating_sub(around).saturating_sub(traffic.in_band_bytes);
        let packets = traffic.packets.saturating_sub(traffic.in_band_packets);
        let (packets_then, bytes_then) = self.seen;
        if packets > packets_then && bytes.saturating_sub(bytes_then) >= self.rule.bytes {
            self.seen = (packets, bytes);
            self.begin_anew(now);
        }
        now >= self.since + self.rule.after
    }
}

/// Returns when `session-timeout` ends a session that begins now.
pub(crate) fn session_end(now: Instant, limit: Option<Duration>) -> Option<Instant> {
    limit.filter(|limit| !limit.is_zero()).map(|limit| now + limit)
}

/// Returns when `ping-exit` ends a program that has no session and so receives no pings, unless an earlier event intervenes.
pub(crate) fn silence_end(now: Instant, limits: &Limits, keepalive: Keepalive) -> Option<Instant> {
    let wanted = limits.exit_when_silent && !keepalive.timeout.is_zero();
    wanted.then(|| now + keepalive.timeout)
}

#[cfg(test)]
mod tests {
    use adit_crypto::Cipher;

    use super::*;

    const START: Instant = Instant::from_nanos(0);
    const OVERHEAD: u64 = 24;

    fn at(seconds: u64) -> Instant {
        START + Duration::from_secs(seconds)
    }

    fn idle(after: u64, bytes: u64) -> Idle {
        let rule = Inactive { after: Duration::from_secs(after), bytes };
        let link = Link::datagram(Default::default(), None, ([192, 0, 2, 1], 1194).into());
        let settings = Settings::default();
        let to = (link, Protection::Aead(Cipher::Aes256Gcm), &settings);
        Idle::watch(START, Some(rule), PeerId(7), to).expect("a rule")
    }

    /// Returns counters for this many packets with this many inner bytes each, and for additional
    /// pings.
    fn traffic(packets: u64, size: u64, pings: u64) -> Traffic {
        Traffic {
            packets: packets + pings,
            bytes: packets * (size + OVERHEAD) + pings * (16 + OVERHEAD),
            in_band_packets: pings,
            in_band_bytes: pings * 16,
        }
    }

    #[test]
    fn pings_are_no_traffic() {
        let mut idle = idle(60, 0);
        assert!(!idle.record_traffic(at(10), traffic(1, 84, 1)));
        assert!(!idle.record_traffic(at(69), traffic(1, 84, 9)));
        assert!(idle.record_traffic(at(70), traffic(1, 84, 10)));
    }

    #[test]
    fn too_few_bytes_add_up_but_do_not_count_alone() {
        let mut idle = idle(60, 1000);
        assert!(!idle.record_traffic(at(30), traffic(9, 100, 3)));
        assert!(!idle.record_traffic(at(50), traffic(10, 100, 5)), "a thousand in all");
        assert!(!idle.record_traffic(at(109), traffic(19, 100, 10)));
        assert!(idle.record_traffic(at(110), traffic(19, 100, 10)));
    }

    #[test]
    fn the_data_plane_is_asked_seldom_and_in_time() {
        let mut out: Outbox<()> = Outbox::new();
        for (after, first) in [(5, 1), (160, 10), (1_000_000, 60)] {
            let mut idle = idle(after, 0);
            assert_eq!(idle.deadline().0, at(first));
            idle.tick(at(first - 1), &mut out);
            assert!(out.pop().is_none());
            idle.tick(at(first), &mut out);
            let asked = out.pop();
            assert!(
                matches!(asked, Some(adit_engine::Output::Plane(Command::ReadTraffic(PeerId(7))))),
                "{asked:?}"
            );
            assert!(idle.deadline().0 > at(first));
        }
    }

    #[test]
    fn zero_is_no_rule() {
        let settings = Settings::default();
        let link = Link::datagram(Default::default(), None, ([192, 0, 2, 1], 1194).into());
        let to = (link, Protection::Aead(Cipher::Aes256Gcm), &settings);
        let zero = Inactive { after: Duration::ZERO, bytes: 5 };
        assert!(Idle::watch(START, Some(zero), PeerId(1), to).is_none());
        assert_eq!(session_end(START, Some(Duration::ZERO)), None);
    }
}
