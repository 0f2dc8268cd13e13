//! The search for the largest packet that a direct path carries.

use std::time::Duration;

use adit_engine::Instant;

use super::super::probe::{MIN_PROBE, ProbeKind};
use super::path_state::PathState;
use super::{ACTIVE, Output, PathFinder, Route};

/// The size of packets that every path is expected to carry, which is the minimum MTU of IPv6.
pub(super) const SAFE_MTU: u16 = 1280;

/// The sizes to try: that of Ethernet, and what the usual encapsulations leave of it.
const SIZES: [u16; 9] = [1500, 1492, 1480, 1460, 1440, 1420, 1400, 1360, 1320];

/// The number of times that each size is tried.
const TRIES: u8 = 3;

/// The time between two tries.
const TRY_INTERVAL: Duration = Duration::from_millis(250);

/// The time after which the size is measured again while data flows, because routes change: for the path that carries data, and for the
/// others.
const REPEAT: Duration = Duration::from_secs(60);
const REPEAT_UNUSED: Duration = Duration::from_secs(600);

/// The state of the search on one path.
#[derive(Debug, Default)]
pub(super) struct MtuSearch {
    tries: u8,
    /// The largest size that was echoed in this search.
    best: u16,
    pub(super) next: Instant,
}

impl PathFinder {
    /// Returns when the search on a path continues.
    pub(super) fn mtu_due(&self, path: &PathState) -> Option<Instant> {
        let next = path.mtu_search.next;
        let active = self.data_sent_at.is_some_and(|at| next < at + ACTIVE);
        (active && path.alive && path.is_direct()).then_some(next)
    }

    /// Continues the search on every direct path.
    pub(super) fn advance_mtu(&mut self, now: Instant, out: &mut Vec<Output>) {
        let due = |path: &&PathState| self.mtu_due(path).is_some_and(|at| at <= now);
        let due: Vec<Route> = self.paths.iter().filter(due).map(|path| path.route).collect();
        for route in due {
            self.try_sizes(now, route, out);
        }
    }

    fn try_sizes(&mut self, now: Instant, route: Route, out: &mut Vec<Output>) {
        let Route::Direct { to, .. } = route else { return };
        let current = self.current == Some(route);
        let Some(path) = self.path_mut(route) else { return };
        let search = &mut path.mtu_search;
        if search.tries == TRIES {
            let found = search.best.max(SAFE_MTU);
            let next = now + if current { REPEAT } else { REPEAT_UNUSED };
            *search = MtuSearch { next, ..MtuSearch::default() };
            if path.mtu.replace(found) != Some(found) && current {
                out.push(Output::SetMtu { route, mtu: found });
            }
            return;
        }
        search.tries += 1;
        search.next = now + TRY_INTERVAL;
        let best = search.best;
        let overhead = usize::from(headers(to.is_ipv6())) + MIN_PROBE;
        for size in SIZES.into_iter().filter(|size| *size > best) {
            let padding = usize::from(size).saturating_sub(overhead);
            self.send_probe(now, route, ProbeKind::MtuProbe { padding }, out);
        }
    }

    /// Records the size of an echoed probe. The peer names it, so only a size that is tried counts.
    pub(super) fn on_mtu_echo(&mut self, route: Route, payload: u16) {
        let Route::Direct { to, .. } = route else { return };
        let size = payload.saturating_add(headers(to.is_ipv6()));
        if let Some(path) = self.path_mut(route).filter(|_| SIZES.contains(&size)) {
            path.mtu_search.best = path.mtu_search.best.max(size);
        }
    }
}

/// Returns the length of the IP and UDP headers.
fn headers(ipv6: bool) -> u16 {
    if ipv6 { 48 } else { 28 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use adit_engine::Random;

    use super::super::path_state::Origin;
    use super::super::{MAIN_SOCKET, PunchBudget};
    use super::*;

    #[test]
    fn only_a_size_that_is_tried_counts() {
        let budget = Arc::new(PunchBudget::default());
        let mut finder = PathFinder::new([1; 32], [2; 32], Random::new([0; 32]), budget);
        for to in ["192.0.2.2:1194", "[2001:db8::2]:1194"] {
            let to: std::net::SocketAddr = to.parse().unwrap();
            let route = Route::Direct { socket: MAIN_SOCKET, to };
            finder.add_path(Instant::default(), route, Origin::Session);
            let best = |finder: &PathFinder| finder.path(route).unwrap().mtu_search.best;
            for payload in [u16::MAX, 9000, 1501 - headers(to.is_ipv6())] {
                finder.on_mtu_echo(route, payload);
                assert_eq!(best(&finder), 0, "{payload}");
            }
            finder.on_mtu_echo(route, 1500 - headers(to.is_ipv6()));
            assert_eq!(best(&finder), 1500);
        }
    }
}
