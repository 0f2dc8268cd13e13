//! The recent states, log lines and echo texts, which a management client can ask for at any time.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracing::Level;

/// The number of states, and of echo texts, that are kept.
pub(super) const HISTORY: usize = 100;

/// The number of log lines that may wait for a management client with `log on`, even if fewer are kept for `log all`.
const MAX_WAITING: usize = 1000;

/// A bounded list from which the oldest entry is dropped.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<String>);

impl History {
    pub(super) fn push(&mut self, line: String) {
        if self.0.len() >= HISTORY {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// Returns the last lines, oldest first.
    pub(super) fn last(&self, count: usize) -> Vec<String> {
        self.0.iter().skip(self.0.len().saturating_sub(count)).cloned().collect()
    }
}

/// The state of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub name: StateName,
    /// The reason, in openvpn's words.
    pub detail: String,
    /// The addresses in the tunnel.
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    /// The address of the other end.
    pub remote: Option<SocketAddr>,
    /// The local address of the transport.
    pub local: Option<SocketAddr>,
}

/// The name of a state.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum StateName {
    #[default]
    Connecting,
    Resolve,
    TcpConnect,
    Wait,
    Auth,
    GetConfig,
    AuthPending,
    AssignIp,
    AddRoutes,
    Connected,
    Reconnecting,
    Exiting,
}

impl StateName {
    fn text(self) -> &'static str {
        match self {
            Self::Connecting => "CONNECTING",
            Self::Resolve => "RESOLVE",
            Self::TcpConnect => "TCP_CONNECT",
            Self::Wait => "WAIT",
            Self::Auth => "AUTH",
            Self::GetConfig => "GET_CONFIG",
            Self::AuthPending => "AUTH_PENDING",
            Self::AssignIp => "ASSIGN_IP",
            Self::AddRoutes => "ADD_ROUTES",
            Self::Connected => "CONNECTED",
            Self::Reconnecting => "RECONNECTING",
            Self::Exiting => "EXITING",
        }
    }
}

impl From<StateName> for State {
    fn from(name: StateName) -> Self {
        Self { name, ..Self::default() }
    }
}

impl State {
    /// Formats the state as openvpn does: the time, the name and up to seven further fields.
    pub(super) fn line(&self, unix: u64) -> String {
        let mut line = format!("{unix},{},{},", self.name.text(), self.detail.replace(',', " "));
        let mut add = |value: Option<String>| line.push_str(&value.unwrap_or_default());
        add(self.ipv4.map(|ip| ip.to_string()));
        for address in [self.remote, self.local] {
            add(Some(",".into()));
            add(address.map(|address| address.ip().to_canonical().to_string()));
            add(Some(",".into()));
            add(address.map(|address| address.port().to_string()));
        }
        if let Some(ip) = self.ipv6 {
            // Writing to a String cannot fail.
            let _ = write!(line, ",{ip}");
        }
        line
    }
}

/// The recent log lines. Any thread adds lines; the task of the interface reads them.
#[derive(Debug, Default)]
pub(super) struct LogCache {
    lines: Mutex<Lines>,
    /// Whether a management client wants each line at once.
    live: AtomicBool,
    /// The number of lines that were dropped before a client with `log on` could get them.
    dropped: AtomicU64,
    pub(super) arrived: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    recent: VecDeque<String>,
    /// The number of `log all`.
    kept: usize,
    /// The number of lines so far.
    total: u64,
}

impl LogCache {
    pub(super) fn new(kept: usize) -> Self {
        Self { lines: Mutex::new(Lines { kept, ..Lines::default() }), ..Self::default() }
    }

    /// Adds a line. Runs while the log is locked, so it must not log.
    pub(super) fn push(&self, unix: u64, level: Level, verb: u64, text: &str) {
        let line = format!("{unix},{},{text}", flags(level, verb));
        let mut lines = self.lines();
        if lines.recent.len() >= lines.kept.max(MAX_WAITING) {
            lines.recent.pop_front();
        }
        lines.recent.push_back(line);
        lines.total = lines.total.saturating_add(1);
        drop(lines);
        if self.live.load(Ordering::Relaxed) {
            self.arrived.notify_one();
        }
    }

    /// Returns the last lines, oldest first, up to the number that is kept.
    pub(super) fn last(&self, count: usize) -> Vec<String> {
        let lines = self.lines();
        let count = count.min(lines.kept);
        lines.recent.iter().skip(lines.recent.len().saturating_sub(count)).cloned().collect()
    }

    /// Begins or ends waking the task for each line.
    pub(super) fn set_live(&self, live: bool) {
        self.live.store(live, Ordering::Relaxed);
    }

    /// Returns the number of lines so far.
    pub(super) fn total(&self) -> u64 {
        self.lines().total
    }

    /// Returns the lines after the first `seen` ones, as far as they are still there.
    pub(super) fn since(&self, seen: u64) -> Vec<String> {
        let lines = self.lines();
        let fresh = lines.total.saturating_sub(seen);
        let there = lines.recent.len().min(usize::try_from(fresh).unwrap_or(usize::MAX));
        let lost = fresh.saturating_sub(there as u64);
        self.dropped.fetch_add(lost, Ordering::Relaxed);
        lines.recent.iter().skip(lines.recent.len().saturating_sub(there)).cloned().collect()
    }

    /// Returns the number of lines that a client with `log on` did not get.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns openvpn's flag for a kind of message.
fn flags(level: Level, verb: u64) -> &'static str {
    match (level, verb) {
        (Level::ERROR, _) => "N",
        (Level::WARN, _) => "W",
        (_, 0..=2) => "I",
        (_, 3) => "",
        _ => "D",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_eight_fields_and_a_ninth_for_an_ipv6_address() {
        assert_eq!(State::from(StateName::Wait).line(7), "7,WAIT,,,,,,");
        let connected = State {
            name: StateName::Connected,
            detail: "SUCCESS".into(),
            ipv4: Some("10.8.0.2".parse().unwrap()),
            ipv6: None,
            remote: Some("192.0.2.1:1194".parse().unwrap()),
            local: None,
        };
        assert_eq!(connected.line(7), "7,CONNECTED,SUCCESS,10.8.0.2,192.0.2.1,1194,,");
        let both = State {
            ipv6: Some("fd00::2".parse().unwrap()),
            local: Some("[::ffff:198.51.100.2]:5000".parse().unwrap()),
            ..connected
        };
        assert_eq!(
            both.line(7),
            "7,CONNECTED,SUCCESS,10.8.0.2,192.0.2.1,1194,198.51.100.2,5000,fd00::2"
        );
    }

    #[test]
    fn a_reason_cannot_add_a_field() {
        let state = State { detail: "a,CONNECTED,b".into(), ..StateName::Exiting.into() };
        assert_eq!(state.line(1), "1,EXITING,a CONNECTED b,,,,,");
    }

    #[test]
    fn a_history_keeps_the_newest() {
        let mut history = History::default();
        (0..HISTORY + 5).for_each(|n| history.push(n.to_string()));
        assert_eq!(history.last(usize::MAX).len(), HISTORY);
        assert_eq!(history.last(2), ["103", "104"]);
    }

    #[test]
    fn log_lines_wait_for_a_reader_in_a_bounded_number() {
        let cache = LogCache::new(2);
        for n in 0..5 {
            cache.push(n, Level::INFO, 1, "line");
        }
        assert_eq!(cache.last(usize::MAX), ["3,I,line", "4,I,line"]);
        assert_eq!(cache.since(2), ["2,I,line", "3,I,line", "4,I,line"]);
        for n in 0..MAX_WAITING as u64 + 7 {
            cache.push(n, Level::WARN, 1, "");
        }
        assert_eq!((cache.since(5).len(), cache.dropped()), (MAX_WAITING, 7));
        assert!(cache.since(cache.total()).is_empty());
    }
}
