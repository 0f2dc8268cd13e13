//! Path MTU discovery (RFC 8899), which decides when to probe which sizes, and evaluates the answers.
//!
//! A probe is a message in an IP packet with DF set, which the peer answers if it arrives. The result depends only on
//! answers. ICMP only suggests which size to try next, so an attacker who forges it costs us a few probes. An attacker
//! who drops our probes reduces the size to [`FLOOR4`] or [`FLOOR6`] until the next search.
//!
//! ```text
//! Resting ──> the ceiling? ──answered──> Resting (found: the ceiling)
//!                  └─no─> the ICMP value? the floor? ──no──> Resting (mute: nothing is known)
//!                               └─answered─> between the largest that was answered and the smallest
//!                                            that was not, until they are neighbours ──> Resting
//! ```

use std::time::Duration;

use adit_engine::command::ProbeResult;
use adit_engine::{Instant, Link};

/// The size of the largest probed IP packet: the MTU of Ethernet. With a `tun-mtu` of 1500, larger packets have no advantage.
pub(crate) const CEILING: u16 = 1500;
/// The minimum path MTU over IPv4, even if probes of this size are lost, because every IPv4 host must accept such
/// packets.
pub(crate) const FLOOR4: u16 = 576;
/// The minimum path MTU over IPv6, because every IPv6 link must carry such packets.
pub(crate) const FLOOR6: u16 = 1280;

/// The delay before the first search, during which the peer gets its keys.
const START: Duration = Duration::from_secs(2);
/// Searches begin at multiples of this interval, so that one timer serves peers that connected at about the same time.
const TOGETHER: Duration = Duration::from_millis(250);
/// The maximum time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The number of times that probes of the ceiling, of the floor and of a previously found size are sent, so that packet
/// loss is not mistaken for a small MTU.
const MANY_TRIES: u8 = 4;
/// The number of times that other probes are sent.
const FEW_TRIES: u8 = 2;
/// How often the size that was found is probed again.
const CONFIRM: Duration = Duration::from_secs(120);
/// How often larger sizes are probed after a search that did not reach the ceiling, and at which a peer that does not answer is probed.
const RAISE: Duration = Duration::from_secs(600);

/// The common link MTUs, tried before other sizes.
const USUAL: [u16; 16] =
    [576, 1006, 1280, 1300, 1350, 1380, 1400, 1420, 1428, 1440, 1452, 1454, 1460, 1472, 1480, 1492];

/// The path MTU search for one peer.
#[derive(Clone, Debug)]
pub(crate) struct PathMtu {
    floor: u16,
    found: Option<u16>,
    /// Whether the last search got no answer.
    mute: bool,
    /// The time when the ceiling is tried again.
    raise: Instant,
    /// The packets in the tunnel so far, if they are counted.
    packets: Option<u64>,
    /// Whether packets have passed since the last search began. A size that nothing uses is not confirmed.
    used: bool,
    /// Whether the size is to be confirmed as soon as packets pass.
    postponed: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Resting { until: Instant },
    Searching(Search),
}

#[derive(Clone, Debug)]
struct Search {
    /// The largest size that was answered; 0 if there is none yet.
    low: u16,
    /// The smallest size that was not answered.
    high: u16,
    /// The size that ICMP or the device reported, until it has been tried.
    hint: u16,
    /// The size that is being probed.
    size: u16,
    tries: u8,
    /// The time when the answer is overdue.
    due: Instant,
}

impl PathMtu {
    /// Creates the search for a peer behind `link` that has just received its keys.
    pub(crate) fn new(now: Instant, link: Link) -> Self {
        let v4 = link.remote().ip().to_canonical().is_ipv4();
        Self {
            floor: if v4 { FLOOR4 } else { FLOOR6 },
            found: None,
            mute: false,
            raise: now,
            packets: None,
            used: true,
            postponed: false,
            state: State::Resting { until: rounded_up(now + START) },
        }
    }

    /// Returns the largest IP packet that the path was found to carry, at most [`CEILING`]; `None` while the size is
    /// unknown, because the peer does not answer or has not been probed yet.
    pub(crate) fn found(&self) -> Option<u16> {
        self.found
    }

    /// Returns whether answers are pending or the first search has not begun.
    pub(crate) fn is_searching(&self) -> bool {
        self.found.is_none() && !self.mute || matches!(self.state, State::Searching(_))
    }

    /// Returns when to call [`PathMtu::tick`].
    pub(crate) fn deadline(&self) -> Instant {
        match &self.state {
            State::Resting { until } => *until,
            State::Searching(search) => search.due,
        }
    }

    /// Advances the time and returns the size of a probe to send now, if any. After each call
    /// [`PathMtu::found`] may have changed.
    pub(crate) fn tick(&mut self, now: Instant) -> Option<u16> {
        if now < self.deadline() {
            return None;
        }
        let search = match &mut self.state {
            State::Searching(search) => search,
            State::Resting { .. }
                if self.packets.is_some() && !self.used && self.found.is_some() =>
            {
                self.postponed = true;
                self.state = State::Resting { until: now + RAISE };
                return None;
            }
            State::Resting { .. } => {
                self.used = false;
                // A size below the ceiling is confirmed until it is time to search for a larger
                // one.
                let size = self.found.filter(|_| now < self.raise).unwrap_or(CEILING);
                let search = Search {
                    low: 0,
                    high: CEILING.saturating_add(1),
                    hint: 0,
                    size,
                    tries: 1,
                    due: now + PATIENCE,
                };
                self.state = State::Searching(search);
                return Some(size);
            }
        };
        let important =
            search.size == CEILING || search.size == self.floor || self.found == Some(search.size);
        if search.tries < if important { MANY_TRIES } else { FEW_TRIES } {
            search.tries = search.tries.saturating_add(1);
            search.due = now + PATIENCE;
            return Some(search.size);
        }
        self.failed(now)
    }

    /// Processes the result of sending the requested probe, and returns the size of another one to
    /// send now, if any.
    pub(crate) fn probed(&mut self, now: Instant, probed: ProbeResult) -> Option<u16> {
        let State::Searching(search) = &mut self.state else { return None };
        if probed.kernel >= self.floor && probed.kernel < search.high {
            search.hint = probed.kernel;
        }
        // The probe is too large for the first link, so there will be no answer.
        if probed.size == 0 && probed.kernel != 0 && probed.kernel < search.size {
            return self.failed(now);
        }
        None
    }

    /// Processes the peer's answer to a probe. `received` is the length of the longest datagram that the peer received
    /// from us, with its headers. A value below that of the current probe answers an earlier, smaller one.
    pub(crate) fn answered(&mut self, now: Instant, received: u16) -> Option<u16> {
        let State::Searching(search) = &mut self.state else { return None };
        if received < search.size {
            return None;
        }
        if self.found == Some(search.size) && now < self.raise {
            self.state = State::Resting { until: (now + CONFIRM).min(self.raise.max(now)) };
            return None;
        }
        search.low = search.size;
        self.next(now)
    }

    /// Processes the number of packets in the tunnel so far.
    pub(crate) fn traffic(&mut self, now: Instant, packets: u64) {
        if self.packets.replace(packets).is_none_or(|former| former == packets) {
            return;
        }
        self.used = true;
        if std::mem::take(&mut self.postponed) && matches!(self.state, State::Resting { .. }) {
            self.state = State::Resting { until: now };
        }
    }

    /// Restarts the search because packets to the peer take another path.
    pub(crate) fn moved(&mut self, now: Instant, link: Link) {
        let (found, packets) = (self.found, self.packets);
        *self = Self { found, packets, ..Self::new(now, link) };
    }

    fn failed(&mut self, now: Instant) -> Option<u16> {
        let State::Searching(search) = &mut self.state else { return None };
        let confirming = self.found == Some(search.size) && now < self.raise;
        if confirming {
            // The path MTU has become smaller, or the peer is gone.
            self.raise = now;
        }
        search.high = search.size;
        self.next(now)
    }

    /// Returns the next size, or ends the search.
    fn next(&mut self, now: Instant) -> Option<u16> {
        let State::Searching(search) = &mut self.state else { return None };
        match search.candidate(self.floor) {
            Some(size) => {
                search.size = size;
                search.tries = 1;
                search.due = now + PATIENCE;
                Some(size)
            }
            None => {
                self.found = Some(search.low).filter(|low| *low != 0);
                self.mute = self.found.is_none();
                self.raise = now + RAISE;
                let wait = if self.found.is_some() { CONFIRM } else { RAISE };
                self.state = State::Resting { until: now + wait };
                None
            }
        }
    }
}

fn rounded_up(at: Instant) -> Instant {
    let nanos = at.as_nanos();
    let whole = u64::try_from(TOGETHER.as_nanos())
        .ok()
        .and_then(|step| nanos.checked_next_multiple_of(step));
    Instant::from_nanos(whole.unwrap_or(nanos))
}

impl Search {
    fn candidate(&mut self, floor: u16) -> Option<u16> {
        let Self { low, high, .. } = *self;
        let between = |size: &u16| (low.saturating_add(1)..high).contains(size);
        let hint = std::mem::take(&mut self.hint);
        if Some(hint).filter(between).is_some_and(|hint| hint >= floor) {
            return Some(hint);
        }
        if low == 0 {
            return Some(floor).filter(between);
        }
        let above = low.saturating_add(1);
        if above >= high {
            return None;
        }
        // If the size is a common link MTU, it is usually the path MTU.
        if self.size == low && (USUAL.contains(&low) || low == hint) {
            return Some(above);
        }
        let usual: Vec<u16> = USUAL.into_iter().filter(between).collect();
        usual.get(usual.len() / 2).copied().or(Some(low.midpoint(high)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A path and the peer behind it, in virtual time.
    struct World {
        path: PathMtu,
        now: Instant,
        /// The MTU of the path.
        mtu: u16,
        /// The MTU of the first link.
        first: u16,
        /// The size that routers report in ICMP, or that a forger reports instead.
        icmp: Option<u16>,
        answers: bool,
        /// The period of lost probes; 0 for no loss.
        loss: usize,
        sent: Vec<u16>,
    }

    impl World {
        fn new(mtu: u16) -> Self {
            let link = Link::datagram(Default::default(), None, "192.0.2.1:1194".parse().unwrap());
            let now = Instant::from_nanos(1);
            Self {
                path: PathMtu::new(now, link),
                now,
                mtu,
                first: 1500,
                icmp: Some(mtu),
                answers: true,
                loss: 0,
                sent: Vec::new(),
            }
        }

        fn run(&mut self, time: Duration) -> Option<u16> {
            let end = self.now + time;
            while self.path.deadline() <= end {
                self.now = self.now.max(self.path.deadline());
                let mut next = self.path.tick(self.now);
                while let Some(size) = next.take() {
                    assert!(self.sent.len() < 10_000, "no end: {:?}", self.path);
                    next = self.send(size);
                }
            }
            self.now = end;
            self.path.found()
        }

        fn send(&mut self, size: u16) -> Option<u16> {
            assert!((FLOOR4..=CEILING).contains(&size), "{size}");
            let kernel = self.icmp.unwrap_or(self.first).min(self.first);
            if size > self.first {
                return self.path.probed(self.now, ProbeResult { size: 0, kernel });
            }
            self.sent.push(size);
            let next = self.path.probed(self.now, ProbeResult { size, kernel });
            assert_eq!(next, None, "it was sent: an answer may come");
            let lost = self.loss != 0 && self.sent.len().is_multiple_of(self.loss);
            if self.answers && size <= self.mtu && !lost {
                return self.path.answered(self.now, size);
            }
            None
        }
    }

    #[test]
    fn a_healthy_path_costs_one_probe() {
        let mut world = World::new(1500);
        assert_eq!(world.run(Duration::from_secs(60)), Some(1500));
        assert_eq!(world.sent, [1500]);
        world.run(Duration::from_secs(3600));
        assert!(world.sent.len() <= 32, "one in two minutes: {}", world.sent.len());
    }

    #[test]
    fn the_size_of_a_path_without_packets_is_confirmed_when_they_pass_again() {
        let mut world = World::new(1500);
        world.path.traffic(world.now, 7);
        world.run(CONFIRM * 2);
        let before = world.sent.len();
        world.path.traffic(world.now, 7);
        world.run(Duration::from_secs(3600));
        assert_eq!(world.sent.len(), before, "nothing passes");
        world.path.traffic(world.now, 8);
        world.mtu = 1400;
        assert_eq!(
            world.run(Duration::from_secs(40)),
            Some(1400),
            "the path has changed meanwhile"
        );
        let before = world.sent.len();
        for packets in 9..19 {
            world.path.traffic(world.now, packets);
            world.run(CONFIRM);
        }
        assert!(world.sent.len() >= before + 9, "{} {before}", world.sent.len());
    }

    #[test]
    fn a_narrow_path_is_found_to_the_byte_with_icmp_and_without() {
        for mtu in [576, 1006, 1280, 1281, 1337, 1400, 1420, 1431, 1491, 1492, 1499] {
            for icmp in [Some(mtu), None] {
                let mut world = World { icmp, ..World::new(mtu) };
                assert_eq!(world.run(Duration::from_secs(40)), Some(mtu), "{icmp:?}");
                assert!(world.sent.len() < 40, "{mtu}: {:?}", world.sent);
            }
        }
    }

    #[test]
    fn the_first_links_own_limit_costs_no_waiting() {
        let mut world = World { first: 1420, icmp: None, ..World::new(1420) };
        assert_eq!(world.run(START + TOGETHER), Some(1420));
        assert_eq!(world.sent, [1420]);
    }

    #[test]
    fn a_peer_that_does_not_answer_is_left_alone() {
        let mut world = World { answers: false, ..World::new(1500) };
        assert_eq!(world.run(Duration::from_secs(60)), None);
        assert!(!world.path.is_searching());
        let sent = world.sent.len();
        assert!(sent <= 10, "{sent}");
        world.run(RAISE - Duration::from_secs(70));
        assert_eq!(world.sent.len(), sent);
    }

    #[test]
    fn a_path_that_changes_is_noticed_both_ways() {
        let mut world = World::new(1500);
        world.run(Duration::from_secs(60));
        (world.mtu, world.icmp) = (1380, None);
        assert_eq!(world.run(CONFIRM + Duration::from_secs(40)), Some(1380), "a black hole");
        (world.mtu, world.icmp) = (1500, None);
        assert_eq!(world.run(RAISE + CONFIRM), Some(1500), "wide again");
        world.mtu = 1300;
        let link = Link::datagram(Default::default(), None, "192.0.2.9:1".parse().unwrap());
        world.path.moved(world.now, link);
        assert_eq!(world.run(Duration::from_secs(40)), Some(1300), "after a move, at once");
    }

    #[test]
    fn forged_icmp_shrinks_nothing() {
        for forged in [0, 68, 552, 576, 1000, 1279, 1499, u16::MAX] {
            let mut world = World { icmp: Some(forged), ..World::new(1500) };
            world.run(Duration::from_secs(3600));
            assert_eq!(world.path.found(), Some(1500), "{forged}");
            let mut narrow = World { icmp: Some(forged), ..World::new(1400) };
            assert_eq!(narrow.run(Duration::from_secs(60)), Some(1400), "{forged}");
        }
    }

    #[test]
    fn who_drops_probes_gets_no_further_than_the_floor_and_not_for_ever() {
        let mut world = World { icmp: None, ..World::new(FLOOR4) };
        assert_eq!(world.run(Duration::from_secs(60)), Some(FLOOR4));
        world.mtu = 1500;
        assert_eq!(world.run(RAISE + CONFIRM), Some(1500));
        let v6 = Link::datagram(Default::default(), None, "[2001:db8::1]:1".parse().unwrap());
        assert_eq!(PathMtu::new(world.now, v6).floor, FLOOR6);
    }

    #[test]
    fn an_answer_to_a_smaller_probe_is_none_to_this_one() {
        let mut world = World::new(1500);
        let now = world.path.deadline();
        let size = world.path.tick(now).unwrap();
        assert_eq!(world.path.answered(now, size - 1), None);
        assert_eq!(world.path.found(), None);
        assert_eq!(world.path.answered(now, size), None);
        assert_eq!(world.path.found(), Some(size));
        // An unsolicited answer changes nothing.
        assert_eq!(world.path.answered(now, 576), None);
        assert_eq!(world.path.found(), Some(size));
    }

    #[test]
    fn who_comes_at_about_the_same_time_is_probed_at_one_time() {
        let link = Link::datagram(Default::default(), None, "192.0.2.1:1194".parse().unwrap());
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let begins = |millis| PathMtu::new(at(millis), link).deadline();
        assert_eq!([1, 100, 250].map(begins), [at(2250); 3]);
        assert_eq!(begins(251), at(2500));
    }

    proptest! {
        #[test]
        fn some_loss_costs_time_and_not_size(mtu in FLOOR4..=CEILING, loss in 3usize..9) {
            let mut world = World { icmp: None, loss, ..World::new(mtu) };
            prop_assert_eq!(world.run(Duration::from_secs(90)), Some(mtu));
        }

        #[test]
        fn nothing_that_happens_breaks_it(
            events in proptest::collection::vec((0u8..4, any::<u16>(), any::<u16>()), 0..300),
        ) {
            let mut path = World::new(1500).path;
            let mut now = Instant::from_nanos(1);
            for (kind, a, b) in events {
                let asked = match kind {
                    0 => { now = now.max(path.deadline()); path.tick(now) }
                    1 => path.probed(now, ProbeResult { size: a, kernel: b }),
                    2 => path.probed(now, ProbeResult { size: 0, kernel: b }),
                    _ => path.answered(now, a),
                };
                prop_assert!(asked.is_none_or(|size| (FLOOR4..=CEILING).contains(&size)));
                prop_assert!(path.found().is_none_or(|size| (FLOOR4..=CEILING).contains(&size)));
            }
        }
    }
}
