//! The choice of the path that carries data.

use std::cmp::Reverse;
use std::time::Duration;

use adit_engine::Instant;

use super::mtu::SAFE_MTU;
use super::path_state::{CHECK_INTERVAL, PathState};
use super::{Output, PathFinder, Route};

/// How long a path must be better without interruption before it takes over.
const HYSTERESIS: Duration = Duration::from_secs(30);

/// The time after the first direct path in which a better one takes over at once. The path that answers first has the shortest round trip,
/// but is not always the best.
const SETTLE: Duration = Duration::from_secs(1);

/// A path is faster than another if its round trip is shorter by this much,
const FASTER_BY: Duration = Duration::from_millis(10);

/// or by one part in this many, and at least [`FASTER_AT_LEAST`].
const FASTER_BY_PART: u32 = 5;

/// A smaller difference of round trips is noise.
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

    /// Ranks a path by kind: datagrams before streams, and direct before relayed within each.
    pub(super) fn class(&self, path: &PathState) -> u8 {
        match path.route {
            Route::Direct { .. } => 3,
            Route::Relay(relay) if self.leg(relay).is_some_and(|leg| !leg.stream) => 2,
            Route::Stream { .. } => 1,
            Route::Relay(_) => 0,
        }
    }

    /// Returns a sort key that puts the best path first.
    fn rank(&self, path: &PathState) -> (Reverse<u8>, Duration) {
        (Reverse(self.class(path)), cost(path))
    }

    /// Returns whether a path may replace the current one while that still works.
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

    /// Records since when each path has been better than the current one.
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
        (self.current, self.current_since) = (Some(route), now);
        self.counters.switches += 1;
        let mtu = match route {
            Route::Relay(relay) => self.leg(relay).map(|leg| leg.mtu),
            Route::Direct { .. } | Route::Stream { .. } => {
                self.path(route).and_then(|path| path.mtu)
            }
        };
        if let Some(path) = self.path_mut(route) {
            path.probe_at = path.probe_at.min(now + CHECK_INTERVAL);
            path.mtu_search.next = path.mtu_search.next.min(now);
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
            // Only the socket that found the path is still needed.
            self.close_search(Some(socket), out);
        }
    }
}

/// Returns the round trip, reduced for preferred addresses. The reduction is so small that any faster path still takes
/// over.
fn cost(path: &PathState) -> Duration {
    let Some(rtt) = path.rtt else { return Duration::MAX };
    rtt.saturating_sub(faster_by(rtt) * path.preference() / 4)
}

/// Returns by how much a round trip must be shorter than this one to count as faster.
fn faster_by(rtt: Duration) -> Duration {
    (rtt / FASTER_BY_PART).clamp(FASTER_AT_LEAST, FASTER_BY)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use adit_engine::Random;

    use super::super::path_state::Origin;
    use super::super::{Input, MAIN_SOCKET, PunchBudget, RelayLeg};
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const RELAY: Route = Route::Relay([9; 32]);
    const SECOND: Duration = Duration::from_secs(1);

    /// Returns a finder that uses a working relay.
    fn relayed() -> PathFinder {
        let budget = Arc::new(PunchBudget::default());
        let mut finder = PathFinder::new([1; 32], [2; 32], Random::new([1; 32]), budget);
        let leg = RelayLeg { relay: [9; 32], stream: false, rtt: Duration::ZERO, mtu: 1400 };
        finder.handle(NOW, Input::Relays(vec![leg]), &mut Vec::new());
        finder.handle(NOW, Input::DataSent, &mut Vec::new());
        finder
    }

    fn direct(to: &str) -> Route {
        Route::Direct { socket: MAIN_SOCKET, to: to.parse().unwrap() }
    }

    fn path(route: Route, micros: u64) -> PathState {
        let mut path = PathState::new(NOW, route, Origin::Relay);
        path.on_echo(Duration::from_micros(micros));
        path
    }

    fn select(finder: &mut PathFinder, at: Duration) -> Option<Route> {
        finder.select(NOW + at, &mut Vec::new());
        finder.current
    }

    const V4: &str = "192.0.2.2:1";
    const V6: &str = "[2001:db8::2]:1";
    const PRIVATE: &str = "10.0.0.2:1";
    const PRIVATE_V6: &str = "[fd00::2]:1";

    #[test]
    fn a_path_is_better_by_10_ms_or_20_percent_or_by_its_address() {
        let finder = relayed();
        let better = |a: (&str, u64), b: (&str, u64)| {
            let [a, b] = [a, b].map(|(to, micros)| path(direct(to), micros));
            finder.is_better(&a, &b)
        };
        // 10 ms are less than 20 % of 100 ms; 20 % are less than 10 ms of 20 ms.
        assert!(better((V4, 90_000), (V4, 100_000)));
        assert!(!better((V4, 90_001), (V4, 100_000)));
        assert!(better((V4, 16_000), (V4, 20_000)));
        assert!(!better((V4, 16_001), (V4, 20_000)));
        // In a LAN, less than a millisecond is noise.
        assert!(!better((V4, 100), (V4, 1_000)));
        assert!(better((V4, 1_000), (V4, 2_000)));
        for (preferred, other) in [(V6, V4), (PRIVATE, V4), (PRIVATE, V6), (PRIVATE_V6, PRIVATE)] {
            assert!(better((preferred, 20_000), (other, 20_000)), "{preferred} {other}");
            assert!(!better((other, 20_000), (preferred, 20_000)), "{preferred} {other}");
            assert!(better((other, 16_000), (preferred, 20_000)), "{preferred} {other}");
        }
        let [relay, slow] = [path(RELAY, 1_000), path(direct(V4), 500_000)];
        assert!(finder.is_better(&slow, &relay) && !finder.is_better(&relay, &slow));
    }

    #[test]
    fn better_paths_do_not_lead_in_a_circle() {
        let finder = relayed();
        // A rule that compares only pairs would move in a circle between 10.0, 8.5 and 7.2 ms.
        let rtts = (50..140).step_by(3).map(|tenths| tenths * 100);
        let paths: Vec<PathState> = rtts
            .flat_map(|micros| [V4, V6, PRIVATE, PRIVATE_V6].map(|to| path(direct(to), micros)))
            .collect();
        for a in &paths {
            for b in paths.iter().filter(|b| finder.is_better(b, a)) {
                for c in paths.iter().filter(|c| finder.is_better(c, b)) {
                    assert!(!finder.is_better(a, c), "{a:?} {b:?} {c:?}");
                }
            }
        }
    }

    #[test]
    fn a_direct_path_takes_over_from_a_relay_at_once() {
        let mut finder = relayed();
        assert_eq!(finder.current, Some(RELAY));
        finder.paths.push(path(direct(V4), 500_000));
        assert_eq!(select(&mut finder, SECOND), Some(direct(V4)));
    }

    #[test]
    fn a_better_path_takes_over_at_once_while_the_first_direct_path_settles_and_then_after_30_s() {
        for (arrives, switched) in [(999, 999), (1000, 31_000)] {
            let mut finder = relayed();
            finder.paths.push(path(direct(V4), 20_000));
            assert_eq!(select(&mut finder, Duration::ZERO), Some(direct(V4)));
            finder.paths.push(path(direct(V6), 20_000));
            let current = |finder: &mut PathFinder, ms| select(finder, Duration::from_millis(ms));
            if switched > arrives {
                assert_eq!(current(&mut finder, arrives), Some(direct(V4)));
                assert_eq!(current(&mut finder, switched - 1), Some(direct(V4)));
            }
            assert_eq!(current(&mut finder, switched), Some(direct(V6)));
        }
    }

    #[test]
    fn only_the_first_direct_path_settles() {
        let mut finder = relayed();
        finder.paths.push(path(direct(V4), 20_000));
        select(&mut finder, Duration::ZERO);
        finder.paths.push(path(direct("192.0.2.3:1"), 10_000));
        select(&mut finder, SECOND);
        assert_eq!(select(&mut finder, SECOND * 31), Some(direct("192.0.2.3:1")));
        finder.paths.push(path(direct(V6), 10_000));
        assert_eq!(select(&mut finder, SECOND * 31), Some(direct("192.0.2.3:1")));
    }

    #[test]
    fn the_30_s_begin_again_when_a_path_was_not_better_meanwhile() {
        let mut finder = relayed();
        finder.paths.push(path(direct(V4), 20_000));
        select(&mut finder, Duration::ZERO);
        finder.paths.push(path(direct("192.0.2.3:1"), 10_000));
        let set = |finder: &mut PathFinder, ms| {
            finder.paths[2].rtt = Some(Duration::from_millis(ms));
        };
        select(&mut finder, SECOND * 2);
        set(&mut finder, 19);
        select(&mut finder, SECOND * 20);
        set(&mut finder, 10);
        select(&mut finder, SECOND * 21);
        assert_eq!(select(&mut finder, SECOND * 50), Some(direct(V4)));
        assert_eq!(select(&mut finder, SECOND * 51), Some(direct("192.0.2.3:1")));
    }

    #[test]
    fn a_path_on_probation_carries_no_data_although_it_answers() {
        let mut finder = relayed();
        let mut held = path(direct(V4), 20_000);
        held.held_until = Some(NOW + SECOND * 30);
        finder.paths.push(held);
        assert_eq!(select(&mut finder, SECOND * 29), Some(RELAY));
        assert_eq!(select(&mut finder, SECOND * 30), Some(direct(V4)));
    }

    #[test]
    fn the_known_mtu_of_a_path_is_set_before_the_path_is_used() {
        let mut finder = relayed();
        let mut known = path(direct(V4), 20_000);
        known.mtu = Some(1492);
        finder.paths.push(known);
        let mut out = Vec::new();
        finder.select(NOW, &mut out);
        let route = direct(V4);
        assert_eq!(out, [Output::SetMtu { route, mtu: 1492 }, Output::UsePath(route)]);
        finder.path_mut(route).unwrap().alive = false;
        out.clear();
        finder.select(NOW, &mut out);
        assert_eq!(out, [Output::SetMtu { route: RELAY, mtu: 1400 }, Output::UsePath(RELAY)]);
    }

    #[test]
    fn of_several_paths_the_best_is_chosen_and_of_equal_relays_the_first() {
        let mut finder = relayed();
        let legs = [8, 7].map(|relay| RelayLeg {
            relay: [relay; 32],
            stream: false,
            rtt: Duration::ZERO,
            mtu: 1400,
        });
        finder.handle(NOW, Input::Relays(legs.to_vec()), &mut Vec::new());
        assert_eq!(finder.current, Some(Route::Relay([8; 32])), "the former relay is gone");
        for (to, micros) in [(V4, 30_000), (V6, 25_000), (PRIVATE, 26_000)] {
            finder.paths.push(path(direct(to), micros));
        }
        assert_eq!(select(&mut finder, Duration::ZERO), Some(direct(PRIVATE)));
    }
}
