//! The budget for work that one authenticated peer may cause on the control thread.
//!
//! A peer with a valid certificate can request work at line rate: TLS handshakes, push replies, moves to another
//! address, log lines. One thread does this work for all peers, so each peer has its own budget. Work beyond the budget
//! is delayed if the peer needs its result (renegotiations, push replies, moves), and otherwise only counted
//! (unexpected control messages). Exceeding the budget never ends a session.

use std::time::Duration;

use adit_engine::{Instant, Link, Rate, TokenBucket};

use crate::data_format::Outbox;

/// The rate of key renegotiations in one session, begun by either end. Each is a TLS handshake with one signature and
/// one check of the peer's certificate chain. `reneg-bytes` on a fast path may request more. In that case the old key
/// stays in use a little longer.
pub const RENEGOTIATIONS: Rate = Rate::one_in(Duration::from_secs(1), 2);
/// The rate at which repeated push requests are answered. OpenVPN's clients repeat theirs every 5 s.
pub const PUSH_REPLIES: Rate = Rate::one_in(Duration::from_secs(2), 2);
/// The rate at which the engine follows a peer to new addresses. If the peer moves several times within the interval,
/// the engine follows only the last move.
pub const MOVES: Rate = Rate::one_in(Duration::from_secs(1), 4);
/// The rate of events about the peer's messages, such as unknown or malformed control messages and findings about the
/// path.
pub const REPORTS: Rate = Rate::one_in(Duration::from_secs(2), 8);
/// The rate at which TLS records with control messages are read.
pub const RECORDS: Rate = Rate::one_in(Duration::from_millis(50), 32);
/// The rate at which responses to challenges are taken. A person types them.
pub const RESPONSES: Rate = Rate::one_in(Duration::from_secs(1), 4);
/// The maximum number of control messages that are read from one TLS record.
pub const MESSAGES_PER_RECORD: usize = 32;

/// The budget of one peer, and the work that is delayed until the budget allows it.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    records: TokenBucket,
    reports: TokenBucket,
    push_replies: TokenBucket,
    moves: TokenBucket,
    responses: TokenBucket,
    /// The number of reports omitted since the last one.
    unreported: u64,
    push_due: Option<Instant>,
    moved: Option<(Instant, Link)>,
}

impl Budget {
    /// Returns whether another record of control messages may be read.
    pub(crate) fn may_read(&mut self, now: Instant) -> bool {
        self.records.take_whole(now, RECORDS).is_ok()
    }

    /// Returns whether another response to a challenge is taken.
    pub(crate) fn may_respond(&mut self, now: Instant) -> bool {
        self.responses.take_whole(now, RESPONSES).is_ok()
    }

    /// Completes the text of a report, or returns `None` if it must be omitted. The next report
    /// gives the number of those omitted.
    pub(crate) fn report(&mut self, now: Instant, text: impl FnOnce() -> String) -> Option<String> {
        if self.reports.take_whole(now, REPORTS).is_err() {
            self.unreported = self.unreported.saturating_add(1);
            return None;
        }
        let text = text();
        Some(match std::mem::take(&mut self.unreported) {
            0 => text,
            more => format!("{text} ({more} more were not reported)"),
        })
    }

    /// Reports a message or an action of the peer if the budget allows it.
    pub(crate) fn report_event<E>(
        &mut self,
        now: Instant,
        out: &mut Outbox<E>,
        event: impl FnOnce(String) -> E,
        text: impl FnOnce() -> String,
    ) {
        if let Some(text) = self.report(now, text) {
            out.event(event(text));
        }
    }

    /// Returns whether the peer's options may be sent again now. Otherwise sending becomes due
    /// later; requests in the meantime have no further effect.
    pub(crate) fn may_push(&mut self, now: Instant) -> bool {
        match self.push_replies.take_whole(now, PUSH_REPLIES) {
            Ok(()) => {
                self.push_due = None;
                true
            }
            Err(at) => {
                self.push_due = Some(at);
                false
            }
        }
    }

    /// Returns whether a delayed push reply is due.
    pub(crate) fn push_is_due(&self, now: Instant) -> bool {
        self.push_due.is_some_and(|at| at <= now)
    }

    /// Returns whether the engine follows the peer to `link` now. Otherwise the move becomes due
    /// later and replaces an earlier one.
    pub(crate) fn may_move(&mut self, now: Instant, link: Link) -> bool {
        match self.moves.take_whole(now, MOVES) {
            Ok(()) => {
                self.moved = None;
                true
            }
            Err(at) => {
                self.moved = Some((at, link));
                false
            }
        }
    }

    /// Returns the delayed move that is due.
    pub(crate) fn due_move(&self, now: Instant) -> Option<Link> {
        self.moved.filter(|(at, _)| *at <= now).map(|(_, link)| link)
    }

    pub(crate) fn deadline(&self) -> Option<(Instant, &'static str)> {
        let push = self.push_due.map(|at| (at, "a delayed push reply"));
        let moved = self.moved.map(|(at, _)| (at, "a delayed move"));
        push.into_iter().chain(moved).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos((1000 + ms) * 1_000_000)
    }

    #[test]
    fn of_delayed_moves_the_last_one_counts() {
        let mut budget = Budget::default();
        let link = |port| Link::datagram(Default::default(), None, ([192, 0, 2, 1], port).into());
        assert!((0..4).all(|n| budget.may_move(at(0), link(n))));
        assert!(!budget.may_move(at(1), link(8)) && !budget.may_move(at(2), link(9)));
        assert_eq!(budget.deadline(), Some((at(1000), "a delayed move")));
        assert_eq!((budget.due_move(at(999)), budget.due_move(at(1000))), (None, Some(link(9))));
        assert!(budget.may_move(at(1000), link(9)));
        assert_eq!(budget.deadline(), None);
    }

    #[test]
    fn what_was_not_reported_is_counted_in_the_next_report() {
        let mut budget = Budget::default();
        let mut said = Vec::new();
        for ms in [vec![0; 100], vec![2000]].concat() {
            said.extend(budget.report(at(ms), || "x".into()));
        }
        assert_eq!(said.len(), 9);
        assert_eq!(said[8], "x (92 more were not reported)");
    }
}
