//! Handles changes of a bridge's interfaces at run time, such as a changed MTU, or the loss or return of a link.

use std::time::Duration;

use adit_bridge::Side;
use adit_filter::Nanos;
use adit_linux::net::Link;

/// How long an interface that was enabled may take to find its link.
const SETTLE: Duration = Duration::from_secs(10);

/// The last observed state of the links.
#[derive(Debug, Default)]
pub(super) struct Links {
    seen: [Option<(u32, bool)>; 2],
}

/// The properties that have changed.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct LinkChanges {
    pub mtu: bool,
    pub link: bool,
}

impl Links {
    /// Handles the removal of an interface.
    pub(crate) fn forget(&mut self, side: Side) {
        if let Some(seen) = self.seen.get_mut(side.index()) {
            *seen = None;
        }
    }

    /// Records the current state of an interface. The first state is not a change, unless the link is down.
    pub(crate) fn see(&mut self, side: Side, link: &Link) -> LinkChanges {
        let now = (link.mtu, link.running);
        let before = self.seen.get_mut(side.index()).and_then(|seen| seen.replace(now));
        let (mtu, running) = before.unwrap_or((link.mtu, true));
        LinkChanges { mtu: mtu != link.mtu, link: running != link.running }
    }

    /// Returns the log lines for a change.
    pub(crate) fn lines(
        &self,
        side: Side,
        link: &Link,
        news: LinkChanges,
        routed: bool,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let Link { name, mtu, .. } = link;
        if news.link {
            let state = if link.running { "up" } else { "down" };
            lines.push(format!("{name}: link {state}"));
        }
        if news.mtu {
            let other = self.seen.get(side.other().index()).copied().flatten();
            let differs = other.filter(|(other, _)| other != mtu && !routed);
            lines.push(match differs {
                Some((other, _)) => format!(
                    "{name}: MTU changed to {mtu}, but the other port has {other}: longer frames are dropped (too-long)"
                ),
                None => format!("{name}: MTU changed to {mtu}"),
            });
        }
        lines
    }
}

/// Propagates a port's link state to the other port, like a cable. If one port has no link, the other is disabled, and enabled again when
/// the link is back.
#[derive(Debug)]
pub(super) struct LinkStateMirror {
    /// The port that is disabled because the other one has no link.
    off: Option<Side>,
    /// Until when each port that was enabled may be without a link.
    settles: [Option<Nanos>; 2],
}

impl LinkStateMirror {
    /// Creates the state for ports that may have just been enabled.
    pub(crate) fn new(now: Nanos) -> Self {
        Self { off: None, settles: [Some(now.after(SETTLE)); 2] }
    }

    /// Returns the next action: to enable or disable a port. `running` tells whether each port has a link, if known.
    pub(crate) fn step(&mut self, now: Nanos, running: [Option<bool>; 2]) -> Option<(Side, bool)> {
        for (settles, running) in self.settles.iter_mut().zip(running) {
            if running == Some(true) {
                *settles = None;
            }
        }
        let has_link = |side: Side| running.get(side.index()).copied().flatten();
        if let Some(off) = self.off {
            return (has_link(off.other()) == Some(true)).then_some((off, true));
        }
        Side::BOTH.into_iter().find_map(|side| {
            let settles = self.settles.get(side.index()).copied().flatten();
            let lost = has_link(side) == Some(false) && settles.is_none_or(|until| now >= until);
            lost.then_some((side.other(), false))
        })
    }

    /// Records that a port was enabled or disabled.
    pub(crate) fn switched(&mut self, now: Nanos, side: Side, on: bool) {
        self.off = (!on).then_some(side);
        if let Some(settles) = self.settles.get_mut(side.index()) {
            *settles = on.then(|| now.after(SETTLE));
        }
    }

    /// Returns the port that is disabled.
    pub(crate) fn off(&self) -> Option<Side> {
        self.off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mtu: u32, running: bool) -> Link {
        Link {
            index: 1,
            name: "eth1".into(),
            mtu,
            up: true,
            running,
            ethernet: true,
            ..Link::default()
        }
    }

    #[test]
    fn changes_are_told_once() {
        let mut links = Links::default();
        let mut told = |link: Link, routed| {
            let news = links.see(Side::A, &link);
            links.lines(Side::A, &link, news, routed)
        };
        assert!(told(link(1500, true), false).is_empty());
        assert!(told(link(1500, true), false).is_empty());
        assert_eq!(told(link(1500, false), false), ["eth1: link down"]);
        assert_eq!(told(link(1500, true), false), ["eth1: link up"]);
        assert_eq!(told(link(9000, true), false), ["eth1: MTU changed to 9000"]);
        links.see(Side::B, &link(9000, true));
        let news = links.see(Side::A, &link(1500, true));
        assert_eq!(news, LinkChanges { mtu: true, link: false });
        let said = links.lines(Side::A, &link(1500, true), news, false);
        assert!(said[0].contains("the other port has 9000"), "{said:?}");
        assert_eq!(
            links.lines(Side::A, &link(1500, true), news, true),
            ["eth1: MTU changed to 1500"]
        );
        links.forget(Side::A);
        let news = links.see(Side::A, &link(1400, false));
        assert_eq!(
            news,
            LinkChanges { mtu: false, link: true },
            "a link that is down from the start is said"
        );
    }

    /// Returns the actions at these seconds with these link states.
    fn steps(
        carry: &mut LinkStateMirror,
        looks: &[(u64, bool, bool)],
    ) -> Vec<Option<(Side, bool)>> {
        let step = |(second, a, b): &(u64, bool, bool)| {
            let now = Nanos(second * 1_000_000_000);
            let done = carry.step(now, [Some(*a), Some(*b)]);
            if let Some((side, on)) = done {
                carry.switched(now, side, on);
            }
            done
        };
        looks.iter().map(step).collect()
    }

    #[test]
    fn a_lost_link_is_carried_across_and_back() {
        for (lost, across) in [(Side::A, Side::B), (Side::B, Side::A)] {
            let mut carry = LinkStateMirror::new(Nanos(0));
            let mut seen = |second: u64, there: bool, back: bool| {
                let (a, b) = if lost == Side::A { (there, back) } else { (back, there) };
                steps(&mut carry, &[(second, a, b)])[0]
            };
            assert_eq!(seen(1, false, false), None, "both need a moment after a start");
            assert_eq!(seen(1, true, true), None);
            assert_eq!(seen(2, false, true), Some((across, false)));
            // The other port has no link because we disabled it.
            assert_eq!(seen(3, false, false), None);
            assert_eq!(seen(4, true, false), Some((across, true)));
            // The port needs a moment to find its link. This does not affect the other one.
            assert_eq!(seen(5, true, false), None);
            assert_eq!(seen(13, true, false), None);
            assert_eq!(seen(13, true, true), None);
            assert_eq!(seen(14, true, true), None);
            assert_eq!(seen(15, true, false), Some((lost, false)), "lost again, at the other side");
        }
    }

    #[test]
    fn a_link_that_does_not_come_back_is_carried_the_other_way() {
        let mut carry = LinkStateMirror::new(Nanos(0));
        let done = steps(&mut carry, &[(11, false, true), (12, false, false), (20, true, false)]);
        assert_eq!(done, [Some((Side::B, false)), None, Some((Side::B, true))]);
        // Port B has lost its own link in the meantime.
        let done = steps(&mut carry, &[(29, true, false), (30, true, false), (31, false, false)]);
        assert_eq!(done, [None, Some((Side::A, false)), None]);
        assert_eq!(carry.off(), Some(Side::A));
        assert_eq!(steps(&mut carry, &[(99, false, true)]), [Some((Side::A, true))]);
        assert_eq!(carry.off(), None);
    }

    #[test]
    fn of_a_port_of_which_nothing_is_known_nothing_is_carried() {
        let mut carry = LinkStateMirror::new(Nanos(0));
        let later = Nanos(60_000_000_000);
        assert_eq!(carry.step(later, [None, Some(true)]), None);
        assert_eq!(carry.step(later, [None, None]), None);
        carry.switched(later, Side::B, false);
        assert_eq!(carry.step(later, [None, Some(false)]), None);
    }
}
