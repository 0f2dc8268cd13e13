//! The state of one path, and the checks that it still works.

use std::time::Duration;

use adit_engine::Instant;

use super::super::candidate::{CandidateKind, is_private};
use super::mtu::MtuSearch;
use super::{ACTIVE, Output, PathFinder, Route};

/// The number of probes in a row without an echo after which a path is lost.
pub(super) const LOST_PROBES: u32 = 3;

/// The interval of probes on the path that carries data. Three of them and the last echo fit into 3 s.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(700);

/// The interval of probes on all other paths: less than the 30 s after which some NATs drop a mapping.
const KEEP_INTERVAL: Duration = Duration::from_secs(25);

/// The interval of probes through a relay while no data flows. They keep no mapping open, because the session with the
/// relay does, and each probe takes four packets of sessions there and back. When data flows again, it is probed at once.
const KEEP_RELAY_INTERVAL: Duration = Duration::from_secs(60);

/// How long a lost direct path carries no data even if it answers again.
const PROBATION: Duration = Duration::from_secs(30);

/// One path to the peer.
#[derive(Debug)]
pub(super) struct PathState {
    pub(super) route: Route,
    pub(super) origin: Origin,
    /// Whether probes were echoed. A relay counts as working until a probe is lost.
    pub(super) alive: bool,
    /// Probes sent so far.
    pub(super) attempts: u32,
    /// The number of probes since the last echo, and the time of the first one.
    pub(super) unanswered: u32,
    pub(super) unanswered_since: Instant,
    /// The time of the first probe without an echo, if the path was abandoned for that reason.
    lost: Option<Instant>,
    /// The smoothed round trip.
    pub(super) rtt: Option<Duration>,
    /// The time of the next probe, while the path is being checked.
    pub(super) probe_at: Instant,
    pub(super) probed_at: Option<Instant>,
    /// The end of a lost path's probation, after which it may carry data again.
    pub(super) held_until: Option<Instant>,
    /// The time since which the path has been better than the current one without interruption.
    pub(super) better_since: Option<Instant>,
    /// The largest IP packet, once known.
    pub(super) mtu: Option<u16>,
    pub(super) mtu_search: MtuSearch,
}

/// The origin of a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A candidate of the peer's offer.
    Offered(CandidateKind),
    /// The source address of the peer's probes.
    Reflexive,
    /// A port search.
    PortSearch,
    /// The session with the peer that was established over it.
    Session,
    Relay,
}

impl PathState {
    pub(super) fn new(now: Instant, route: Route, origin: Origin) -> Self {
        Self {
            route,
            origin,
            alive: false,
            attempts: 0,
            unanswered: 0,
            unanswered_since: now,
            lost: None,
            rtt: None,
            probe_at: now + CHECK_INTERVAL,
            probed_at: None,
            held_until: None,
            better_since: None,
            mtu: None,
            mtu_search: MtuSearch::default(),
        }
    }

    pub(super) fn is_direct(&self) -> bool {
        matches!(self.route, Route::Direct { .. })
    }

    /// Returns the rank of the destination, from 0 to 3: private before public, then IPv6 before IPv4.
    pub(super) fn preference(&self) -> u32 {
        match self.route {
            Route::Direct { to, .. } => {
                2 * u32::from(is_private(to.ip())) + u32::from(to.is_ipv6())
            }
            Route::Stream { .. } | Route::Relay(_) => 0,
        }
    }

    pub(super) fn on_probe_sent(&mut self, now: Instant) {
        self.attempts = self.attempts.saturating_add(1);
        if self.unanswered == 0 {
            self.unanswered_since = now;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        self.probed_at = Some(now);
    }

    /// Returns the time since which the path has not answered, if it does not answer.
    pub(super) fn lost_since(&self) -> Option<Instant> {
        let unanswered = (self.unanswered > 0).then_some(self.unanswered_since);
        self.lost.or(unanswered).filter(|_| !self.alive)
    }

    /// Returns when the path is lost unless an echo arrives. A quick series of probes does not count as lost before the echoes have had
    /// time to arrive.
    fn lost_at(&self) -> Option<Instant> {
        let enough = self.alive && self.unanswered >= LOST_PROBES;
        enough.then(|| self.unanswered_since + CHECK_INTERVAL * LOST_PROBES)
    }

    /// Records that the peer answered on the path, so earlier probes no longer count as lost.
    pub(super) fn revive(&mut self) {
        self.alive = true;
        self.unanswered = 0;
        self.lost = None;
    }

    pub(super) fn on_echo(&mut self, sample: Duration) {
        self.revive();
        self.rtt = Some(self.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
    }
}

impl PathFinder {
    /// Returns when a path needs a probe or must be declared lost.
    pub(super) fn path_due(&self, path: &PathState) -> Option<Instant> {
        self.remote.as_ref()?;
        let checked = path.alive || !path.is_direct();
        let current = self.current == Some(path.route);
        let in_doubt = path.alive && path.unanswered > 0;
        // An idle node checks only the path that it would use.
        let active = self.data_sent_at.is_some_and(|at| path.probe_at < at + ACTIVE);
        let due = path.lost_at().map_or(path.probe_at, |at| at.min(path.probe_at));
        (checked && (current || in_doubt || active)).then_some(due)
    }

    /// Probes the paths that are due, and abandons those that no longer answer.
    pub(super) fn check_paths(&mut self, now: Instant, out: &mut Vec<Output>) {
        let due: Vec<Route> = self
            .paths
            .iter()
            .filter(|path| self.path_due(path).is_some_and(|at| at <= now))
            .map(|path| path.route)
            .collect();
        for route in due {
            let lost_at = self.path(route).and_then(PathState::lost_at);
            if lost_at.is_some_and(|at| at <= now) {
                self.on_path_lost(now, route, out);
            } else {
                self.probe(now, route, out);
            }
        }
    }

    /// Schedules a path's next probe after one was sent or answered.
    pub(super) fn schedule_probe(&mut self, now: Instant, route: Route) {
        let often = self.current == Some(route) && self.is_active(now);
        if let Some(path) = self.path_mut(route) {
            // Follow up the first loss quickly. Probe a lost relay only from time to time.
            let in_doubt = path.alive && path.unanswered > 0;
            let interval = match route {
                _ if often || in_doubt => CHECK_INTERVAL,
                Route::Relay(_) if path.alive => KEEP_RELAY_INTERVAL,
                _ => KEEP_INTERVAL,
            };
            path.probe_at = path.probed_at.unwrap_or(now) + interval;
        }
    }

    fn on_path_lost(&mut self, now: Instant, route: Route, out: &mut Vec<Output>) {
        let current = self.current == Some(route);
        let others = self.paths.iter().any(|path| path.alive && path.route != route);
        let Some(path) = self.path_mut(route) else { return };
        path.alive = false;
        path.unanswered = 0;
        path.lost = Some(path.unanswered_since);
        path.better_since = None;
        // While there is no other path, probe it as often as before.
        path.probe_at = now + if current && !others { CHECK_INTERVAL } else { KEEP_INTERVAL };
        let direct = path.is_direct();
        if direct {
            path.held_until = Some(now + PROBATION);
        }
        if !(current && direct) {
            return;
        }
        if let Route::Direct { to, .. } = route {
            self.lost = Some((to, now));
        }
        // Other direct paths may share the fault, so use only those that answer now.
        let mut doubtful = Vec::new();
        for path in self.paths.iter_mut().filter(|path| path.alive && path.is_direct()) {
            path.alive = false;
            doubtful.push(path.route);
        }
        for route in doubtful {
            self.probe(now, route, out);
        }
        self.ask_soon(now);
    }
}
