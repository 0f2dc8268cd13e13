//! Limits for log lines that unauthenticated senders and clients can cause.
//!
//! No peer can choose the key of a counter freely. Unauthenticated senders are counted by network ([`Network`]: an IPv4
//! address, a /64 and its /48), clients by certificate, and both by a fixed [`Kind`] of event. Suppressed events are
//! counted, and the count is logged once per [`PERIOD`].

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use adit_engine::{Instant, Network};

/// The period in which lines are counted. Each limit applies to one period.
pub const PERIOD: Duration = Duration::from_secs(60);

/// The maximum number of counters in one period, one for each pair of source and kind. Further pairs share a single
/// counter.
pub const SOURCE_LIMIT: usize = 1024;
/// The maximum number of counters for IPv6 networks, because a single sender can own any number of them.
pub const IPV6_SOURCE_LIMIT: usize = SOURCE_LIMIT / 2;
/// The maximum number of events from all unauthenticated senders that are logged in one period.
pub const UNAUTHENTICATED_EVENTS: u32 = 1000;
/// The maximum number of summary lines at the end of a period. One more line counts the rest.
pub const SUMMARY_LINES: usize = 16;

/// A kind of event that a peer can cause.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A connection was accepted.
    Accepted,
    /// A handshake began.
    HandshakeStarted,
    /// A handshake failed.
    HandshakeFailed,
    /// A client was refused after its handshake.
    Refused,
    /// Packets were not authentic.
    Unauthentic,
    /// A session began or ended.
    Session,
    /// A client moved, renegotiated or sent a message.
    Activity,
    /// A client did something worth a warning.
    Warning,
}

impl Kind {
    /// Returns the number of events of this kind that are logged for one source in one period.
    #[must_use]
    pub const fn limit(self) -> u32 {
        match self {
            Self::HandshakeFailed | Self::Refused | Self::Unauthentic | Self::Warning => 10,
            Self::Accepted | Self::HandshakeStarted | Self::Session | Self::Activity => 60,
        }
    }

    /// Returns whether an event with the same text as the previous one is suppressed at once.
    const fn repeats(self) -> bool {
        matches!(self, Self::HandshakeFailed | Self::Refused | Self::Unauthentic | Self::Warning)
    }

    /// Returns the level of a line about suppressed events of this kind.
    #[must_use]
    pub const fn verb(self) -> u64 {
        match self {
            Self::Accepted | Self::HandshakeStarted | Self::Activity => 3,
            _ => 1,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "TCP connections",
            Self::HandshakeStarted => "handshakes begun",
            Self::HandshakeFailed => "failed handshakes",
            Self::Refused => "refused clients",
            Self::Unauthentic => "packets that are not authentic",
            Self::Session => "sessions begun or ended",
            Self::Activity => "renegotiations, moves and messages",
            Self::Warning => "warnings",
        })
    }
}

/// The source of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An unauthenticated sender at this address.
    Unauthenticated(IpAddr),
    /// The client with this common name.
    Client(String),
    /// All clients without a session.
    Pending,
    /// The server itself, without a particular peer.
    Server,
}

/// The key of a counter. Its size is fixed, whatever a peer sends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Network(Network),
    /// The hash of a name.
    Client(u64),
    Pending,
    Server,
}

/// Decides which events are logged.
#[derive(Debug, Default)]
pub struct LogLimiter {
    counts: HashMap<(Key, Kind), Count>,
    /// The number of IPv6 networks among the counters.
    ipv6: usize,
    /// The period of the counts.
    period: u64,
    /// The number of events from unauthenticated senders that were logged in this period.
    unauthenticated: u32,
    /// The number of suppressed events without their own counter.
    unlisted: u64,
    names: RandomState,
}

#[derive(Debug)]
struct Count {
    /// The name for the line about omitted events.
    name: Option<String>,
    logged: u32,
    suppressed: u64,
    /// The hash of the text that was logged last.
    text: u64,
}

/// Whether an event is logged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LogDecision {
    /// Log it.
    Log,
    /// Only count it.
    Suppress,
}

/// Events that were suppressed in a past period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// The printable source of the events, or `None` for several sources.
    pub source: Option<String>,
    /// The kind of the events, or `None` for several kinds.
    pub kind: Option<Kind>,
    /// The number of events.
    pub count: u64,
}

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            write!(f, "{source}: ")?;
        }
        let count = self.count;
        match &self.kind {
            Some(kind) => write!(f, "{kind}: {count} more were not logged"),
            None => write!(f, "log limit: {count} more events of other peers were not logged"),
        }
    }
}

impl LogLimiter {
    /// Counts an event, and decides whether it is logged. `text` is its log line.
    pub fn count(&mut self, now: Instant, source: &Source, kind: Kind, text: &str) -> LogDecision {
        // `overdue` reports the events suppressed before the period changed.
        if Self::period_of(now) != self.period && self.counts.is_empty() {
            self.begin(now);
        }
        let text = self.names.hash_one(text);
        let admitted = match source {
            Source::Unauthenticated(address) => {
                self.admit_unauthenticated(Network::of(*address), kind, text)
            }
            Source::Client(name) => {
                let key = Key::Client(self.names.hash_one(name));
                self.admit((key, kind), kind.limit(), text, || Some(name.clone()))
            }
            Source::Pending => {
                self.admit((Key::Pending, kind), kind.limit(), text, || Some("handshakes".into()))
            }
            Source::Server => self.admit((Key::Server, kind), kind.limit(), text, || None),
        };
        if admitted { LogDecision::Log } else { LogDecision::Suppress }
    }

    fn admit_unauthenticated(&mut self, network: Network, kind: Kind, text: u64) -> bool {
        if self.unauthenticated >= UNAUTHENTICATED_EVENTS {
            self.unlisted = self.unlisted.saturating_add(1);
            return false;
        }
        let site = network.site();
        // Do not create more counters for a site than its limit allows.
        let of_site = self.counts.get(&(Key::Network(site), kind));
        let full = of_site.is_some_and(|count| count.logged >= 2 * kind.limit());
        if site != network && full {
            if let Some(count) = self.counts.get_mut(&(Key::Network(site), kind)) {
                count.suppressed = count.suppressed.saturating_add(1);
            }
            return false;
        }
        let name = || Some(network.to_string());
        if !self.admit((Key::Network(network), kind), kind.limit(), text, name) {
            return false;
        }
        if site != network {
            let key = (Key::Network(site), kind);
            let name = || Some(site.to_string());
            // Pass a different text each time, because for a site only the number of events matters.
            let differing = u64::from(self.unauthenticated).wrapping_add(1);
            if !self.admit(key, 2 * kind.limit(), differing, name) {
                return false;
            }
        }
        self.unauthenticated = self.unauthenticated.saturating_add(1);
        true
    }

    /// Counts an event of one key.
    fn admit(
        &mut self,
        key: (Key, Kind),
        limit: u32,
        text: u64,
        name: impl FnOnce() -> Option<String>,
    ) -> bool {
        let ipv6 = matches!(key.0, Key::Network(network) if network.is_ipv6());
        if !self.counts.contains_key(&key) {
            let full =
                self.counts.len() >= SOURCE_LIMIT || (ipv6 && self.ipv6 >= IPV6_SOURCE_LIMIT);
            if full {
                self.unlisted = self.unlisted.saturating_add(1);
                return false;
            }
            self.ipv6 = self.ipv6.saturating_add(usize::from(ipv6));
            self.counts.insert(key, Count { name: name(), logged: 1, suppressed: 0, text });
            return true;
        }
        let Some(count) = self.counts.get_mut(&key) else { return false };
        let repeated = key.1.repeats() && count.text == text;
        if repeated || count.logged >= limit {
            count.suppressed = count.suppressed.saturating_add(1);
            return false;
        }
        count.logged = count.logged.saturating_add(1);
        count.text = text;
        true
    }

    /// Takes the events that were suppressed in a past period. Returns none during the period. Call it about once a
    /// second.
    pub fn overdue(&mut self, now: Instant) -> Vec<Suppressed> {
        if Self::period_of(now) == self.period {
            return Vec::new();
        }
        let mut told: Vec<Suppressed> = self
            .counts
            .drain()
            .filter(|(_, count)| count.suppressed > 0)
            .map(|((_, kind), count)| Suppressed {
                source: count.name,
                kind: Some(kind),
                count: count.suppressed,
            })
            .collect();
        told.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.source.cmp(&b.source)));
        let others = told.split_off(told.len().min(SUMMARY_LINES));
        let more = others.iter().fold(self.unlisted, |sum, left| sum.saturating_add(left.count));
        if more > 0 {
            told.push(Suppressed { source: None, kind: None, count: more });
        }
        self.begin(now);
        told
    }

    fn period_of(now: Instant) -> u64 {
        now.since(Instant::default()).as_secs() / PERIOD.as_secs()
    }

    fn begin(&mut self, now: Instant) {
        // Use a new map, because nothing else shrinks the old one.
        self.counts = HashMap::new();
        (self.ipv6, self.unauthenticated, self.unlisted) = (0, 0, 0);
        self.period = Self::period_of(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn from(address: &str) -> Source {
        Source::Unauthenticated(address.parse().unwrap())
    }

    /// Returns how many of 5000 events are logged in one period.
    fn logged(kind: Kind, event: impl Fn(u16) -> (Source, String)) -> usize {
        let mut repeats = LogLimiter::default();
        let events = (0..5000).map(event);
        events
            .filter(|(source, text)| repeats.count(at(0), source, kind, text) == LogDecision::Log)
            .count()
    }

    const KINDS: [Kind; 3] = [Kind::HandshakeFailed, Kind::HandshakeStarted, Kind::Accepted];

    #[test]
    fn a_failure_is_logged_once_and_then_counted() {
        let mut repeats = LogLimiter::default();
        let peer = from("192.0.2.1");
        let mut count = |s, text| repeats.count(at(s), &peer, Kind::HandshakeFailed, text);
        assert_eq!(count(0, "bad key"), LogDecision::Log);
        assert_eq!(
            (count(1, "bad key"), count(2, "bad key")),
            (LogDecision::Suppress, LogDecision::Suppress)
        );
        assert_eq!(count(3, "expired"), LogDecision::Log);
        assert!(repeats.overdue(at(59)).is_empty());
        let told: Vec<String> = repeats.overdue(at(60)).iter().map(Suppressed::to_string).collect();
        assert_eq!(told, ["192.0.2.1: failed handshakes: 2 more were not logged"]);
        assert!(repeats.overdue(at(61)).is_empty());
        let again = repeats.count(at(62), &peer, Kind::HandshakeFailed, "bad key");
        assert_eq!(again, LogDecision::Log);
    }

    #[test]
    fn the_addresses_of_one_network_share_its_limit() {
        for kind in KINDS {
            let limit = kind.limit() as usize;
            let network = |n: u16| (from(&format!("2001:db8:1:2::{n:x}")), format!("{n}"));
            assert_eq!(logged(kind, network), limit, "{kind}");
            let site = |n: u16| (from(&format!("2001:db8:1:{n:x}::1")), format!("{n}"));
            assert_eq!(logged(kind, site), 2 * limit, "{kind}");
            let host = |n: u16| (from("192.0.2.1"), format!("{n}"));
            assert_eq!(logged(kind, host), limit, "{kind}");
        }
    }

    /// An unauthenticated sender can choose a certificate's subject.
    #[test]
    fn texts_that_a_stranger_chooses_make_no_lines() {
        let subject =
            |n: u16| (from("192.0.2.1"), format!("peer certificate \"CN={n}\" refused: expired"));
        assert_eq!(logged(Kind::HandshakeFailed, subject), Kind::HandshakeFailed.limit() as usize);
    }

    #[test]
    fn strangers_from_everywhere_are_logged_so_often_and_then_counted_in_one_line() {
        let mut repeats = LogLimiter::default();
        let mut lines = 0;
        for n in 0..50_000_u32 {
            let [a, b, c, d] = n.to_be_bytes();
            let peer = Source::Unauthenticated([10 + a, b, c, d].into());
            let seen = repeats.count(at(0), &peer, Kind::HandshakeFailed, &n.to_string());
            lines += u32::from(seen == LogDecision::Log);
            assert!(repeats.counts.len() <= SOURCE_LIMIT);
        }
        assert_eq!(lines, UNAUTHENTICATED_EVENTS);
        let told = repeats.overdue(at(60));
        let rest = 50_000 - u64::from(UNAUTHENTICATED_EVENTS);
        assert_eq!(told, [Suppressed { source: None, kind: None, count: rest }]);
        assert_eq!(
            told[0].to_string(),
            format!("log limit: {rest} more events of other peers were not logged")
        );
    }

    #[test]
    fn ipv6_leaves_room_for_the_failures_of_ipv4() {
        let mut repeats = LogLimiter::default();
        for n in 0..60_000_u16 {
            let peer = from(&format!("2001:{n:x}::1"));
            repeats.count(at(0), &peer, Kind::HandshakeFailed, "x");
        }
        assert!(repeats.counts.len() <= IPV6_SOURCE_LIMIT);
        let other = repeats.count(at(0), &from("192.0.2.1"), Kind::HandshakeFailed, "x");
        assert_eq!(other, LogDecision::Log);
    }

    #[test]
    fn a_client_has_one_limit_for_all_that_it_does_and_strangers_take_nothing_of_it() {
        let mut repeats = LogLimiter::default();
        let client = |name: &str| Source::Client(name.to_owned());
        for n in 0..5000_u16 {
            let [a, b] = n.to_be_bytes();
            repeats.count(
                at(0),
                &Source::Unauthenticated([10, a, b, 1].into()),
                Kind::HandshakeFailed,
                "x",
            );
        }
        let count = |repeats: &mut LogLimiter, name: &str| {
            let seen = |n: u32| repeats.count(at(1), &client(name), Kind::Activity, &n.to_string());
            (0..5000).map(seen).filter(|seen| *seen == LogDecision::Log).count()
        };
        assert_eq!(count(&mut repeats, "alice"), Kind::Activity.limit() as usize);
        assert_eq!(count(&mut repeats, "bob"), Kind::Activity.limit() as usize);
        let told = repeats.overdue(at(60));
        let line = "alice: renegotiations, moves and messages: 4940 more were not logged";
        assert!(told.iter().any(|left| left.to_string() == line), "{told:?}");
    }

    #[test]
    fn the_end_of_a_period_is_told_in_few_lines() {
        let mut repeats = LogLimiter::default();
        for n in 0..200_u8 {
            let peer = Source::Unauthenticated([10, 0, 0, n].into());
            for _ in 0..3 {
                repeats.count(at(0), &peer, Kind::HandshakeFailed, "x");
            }
        }
        let told = repeats.overdue(at(70));
        assert_eq!(told.len(), SUMMARY_LINES + 1);
        assert_eq!(told.iter().map(|left| left.count).sum::<u64>(), 400);
    }
}
