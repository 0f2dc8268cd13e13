//! The choice of the path that carries data.

use std::cmp::Reverse;
use std::time::Duration;

use adit_engine::Instant;

use super::mtu::SAFE_MTU;
use super::path_state::{CHECK_INTERVAL, PathState};
use super::{Output, PathFinder, Route};

/// The time for which a path must have been better without interruption before it takes over.
const HYSTERESIS: Duration = Duration::from_secs(30);

/// The time after the first direct path in which a better one takes over at once: of several that work, not the best but
/// the nearest answers first.
const SETTLE: Duration = Duration::from_secs(1);

/// A path is faster than another if its round trip is shorter by this much,
const FASTER_BY: Duration = Duration::from_millis(10);

/// or by one part in this many, and at least [`FASTER_AT_LEAST`].
const FASTER_BY_PART: u32 = 5;

/// A shorter round trip within this is noise.
const FASTER_AT_LEAST: Duration = Duration::from_millis(1);

impl PathFinder {
    /// Chooses the path that carries data.
    pub(super) fn select(&mut self, now: Instant, out: &mut Vec<Output>) {
        for path in &mut self.paths {
            path.held_until = path.held_until.filter(|until| *until > now);
        }
        if self.data_sent_at.is_none() {
            return;
        }
        let former = self.current.and_then(|route| self.path(route));
        let usable = self.paths.iter().filter(|path| path.alive && path.held_until.is_none());
        let best = match former.filter(|path| path.alive) {
            Some(current) => usable
                .filter(|path| self.takes_over(now, path, current))
                .min_by_key(|path| self.rank(path)),
            // If no path answers, any path is as good as another.
            None => usable
                .min_by_key(|path| self.rank(path))
                .or_else(|| former.or_else(|| self.paths.first())),
        };
        if let Some(best) = best.map(|path| path.route) {
            if self.current != Some(best) {
                self.switch(now, best, out);
            }
        } else if former.is_none() {
            self.current = None;
        }
        self.note_better_paths(now);
    }

    /// Returns the rank of the kind of a path: datagrams before streams, and of each, direct before relayed.
    pub(super) fn class(&self, path: &PathState) -> u8 {
        match path.route {
            Route::Direct { .. } => 3,
            Route::Relay(relay) if self.leg(relay).is_some_and(|leg| !leg.stream) => 2,
            Route::Stream { .. } => 1,
            Route::Relay(_) => 0,
        }
    }

    /// Returns a key by which the best path is the first.
    fn rank(&self, path: &PathState) -> (Reverse<u8>, Duration) {
        (Reverse(self.class(path)), cost(path))
    }

    /// Returns whether a path may replace the current one, which works.
    fn takes_over(&self, now: Instant, path: &PathState, current: &PathState) -> bool {
        let settled = || path.better_since.is_some_and(|since| now.since(since) >= HYSTERESIS);
        self.is_better(path, current)
            && (self.class(path) > self.class(current) || now < self.settle_until || settled())
    }

    /// Returns whether a path is better than another.
    ///
    /// Every path that is better in this sense has a lower cost or, at the same cost, a higher preference. So no chain of
    /// better paths leads back to its beginning, and data does not move in a circle.
    fn is_better(&self, path: &PathState, than: &PathState) -> bool {
        let (class, than_class) = (self.class(path), self.class(than));
        if class != than_class {
            return class > than_class;
        }
        let (Some(rtt), Some(than_rtt)) = (path.rtt, than.rtt) else { return false };
        if path.preference() > than.preference() {
            cost(path) <= cost(than)
        } else {
            than_rtt.saturating_sub(rtt) >= faster_by(than_rtt)
        }
    }

    /// Remembers since when each path has been better than the current one.
    fn note_better_paths(&mut self, now: Instant) {
        let Some(current) = self.current.and_then(|route| self.path(route)) else { return };
        let is_better = |path: &PathState| path.alive && self.is_better(path, current);
        let better: Vec<bool> = self.paths.iter().map(is_better).collect();
        for (path, better) in self.paths.iter_mut().zip(better) {
            path.better_since = better.then(|| path.better_since.unwrap_or(now));
        }
    }

    fn switch(&mut self, now: Instant, route: Route, out: &mut Vec<Output>) {
        let was_direct = matches!(self.current, Some(Route::Direct { .. }));
        self.current = Some(route);
        self.counters.switches += 1;
        let mtu = match route {
            Route::Relay(relay) => self.leg(relay).map(|leg| leg.mtu),
            Route::Direct { .. } | Route::Stream { .. } => {
                self.path(route).and_then(|path| path.mtu)
            }
        };
        if let Some(path) = self.path_mut(route) {
            path.probe_at = path.probe_at.min(now + CHECK_INTERVAL);
        }
        for path in &mut self.paths {
            path.better_since = None;
        }
        out.push(Output::SetMtu { route, mtu: mtu.unwrap_or(SAFE_MTU) });
        out.push(Output::UsePath(route));
        if let Route::Direct { socket, .. } = route {
            self.lost = None;
            if !was_direct {
                self.settle_until = now + SETTLE;
            }
            // Of the sockets of a search, only the one that found the path is still of use.
            self.close_search(Some(socket), out);
        }
    }
}

/// Returns the round trip, reduced for addresses that are preferred. One step is worth so little that a path without it
/// takes over as soon as it is faster.
fn cost(path: &PathState) -> Duration {
    let Some(rtt) = path.rtt else { return Duration::MAX };
    rtt.saturating_sub(faster_by(rtt) * path.preference() / 4)
}

/// Returns by how much a round trip must be shorter than this one to count as faster.
fn faster_by(rtt: Duration) -> Duration {
    (rtt / FASTER_BY_PART).clamp(FASTER_AT_LEAST, FASTER_BY)
}
