//! How much the peer may have waiting in our kernel.
//!
//! Where packets come faster than they are opened, the kernel's receive buffer fills, and the kernel
//! adapts by growing it: at several Gb/s every inner ping then waits behind megabytes. So while a queue
//! stands there, and the path itself holds little, the buffer is bounded. A longer path needs the
//! kernel's window, and there the wait is small beside the path's own.

use std::time::Duration;

use adit_engine::Instant;

/// The bound: what one turn of the worker takes. Twice that counts with the kernel, its overhead
/// included; no system refuses so much (`net.core.rmem_max` is 208 KiB by default).
pub(super) const BOUND: u32 = 208 << 10;
/// How long is watched before anything is judged.
const SPELL: Duration = Duration::from_millis(20);
/// Spells without a queue after which the kernel has its way again: the path may be another now.
const CALM: u32 = 500;

/// Watches what is received.
#[derive(Debug, Default)]
pub(crate) struct Window {
    since: Instant,
    bytes: u64,
    /// Turns of this spell, and those that brought so much that more must have waited.
    turns: u32,
    full: u32,
    bound: bool,
    /// The operator has chosen (`rcvbuf`).
    chosen: bool,
    /// Spells without a queue since.
    calm: u32,
}

/// What the worker has seen in one spell.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct Spell {
    bytes: u64,
    lasted: Duration,
    /// A queue stood in the kernel most of the time.
    queued: bool,
}

/// What is to be done with the kernel's receive buffer.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Buffer {
    Bound,
    Free,
}

impl Window {
    /// `chosen`: the operator has set the buffer's size, which stays.
    pub fn new(chosen: bool) -> Self {
        Self { chosen, ..Self::default() }
    }

    /// After each turn. Now and then it is time to judge.
    pub fn received(&mut self, now: Instant, bytes: usize) -> Option<Spell> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.turns = self.turns.saturating_add(1);
        self.full = self.full.saturating_add((bytes >= BOUND as usize / 2).into());
        let lasted = now.since(self.since);
        if lasted < SPELL {
            return None;
        }
        let queued = self.full > self.turns / 2;
        let spell = Spell { bytes: self.bytes, lasted, queued };
        (self.since, self.bytes, self.turns, self.full) = (now, 0, 0, 0);
        // Nothing can be said of the rate if the stream was idle meanwhile.
        (!self.chosen && (queued || self.bound) && lasted < 4 * SPELL).then_some(spell)
    }

    /// What is to change; `round_trip` is the path's shortest.
    pub fn judge(&mut self, spell: Spell, round_trip: Duration) -> Option<Buffer> {
        let (nanos, spent) = (round_trip.as_nanos(), spell.lasted.as_nanos().max(1));
        let holds = u128::from(spell.bytes).saturating_mul(nanos).checked_div(spent).unwrap_or(0);
        self.calm = if spell.queued { 0 } else { self.calm.saturating_add(1) };
        // With half of the bound the path would hold, it may be the bound that keeps it from more.
        let short = holds.saturating_mul(2) <= u128::from(BOUND);
        let bound = short && (spell.queued || self.bound && self.calm < CALM);
        let before = std::mem::replace(&mut self.bound, bound);
        (before != bound).then_some(if bound { Buffer::Bound } else { Buffer::Free })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Duration = Duration::from_micros(50);
    const FAR: Duration = Duration::from_millis(10);
    const FULL: usize = BOUND as usize;

    /// Tells of turns a millisecond apart; what was done with the buffer last.
    fn turns(
        window: &mut Window,
        ms: std::ops::Range<u64>,
        bytes: usize,
        path: Duration,
    ) -> Option<Buffer> {
        let mut last = None;
        for ms in ms {
            if let Some(spell) = window.received(Instant::from_nanos(ms * 1_000_000), bytes) {
                last = window.judge(spell, path).or(last);
            }
        }
        last
    }

    #[test]
    fn without_a_queue_nothing_is_done() {
        assert_eq!(turns(&mut Window::default(), 1000..1500, FULL / 4, NEAR), None);
    }

    #[test]
    fn what_the_operator_chose_stays() {
        assert_eq!(turns(&mut Window::new(true), 1000..1100, FULL, NEAR), None);
    }

    #[test]
    fn a_queue_on_a_short_path_is_bounded_until_it_has_long_been_gone() {
        let mut window = Window::default();
        assert_eq!(turns(&mut window, 1000..1100, FULL, NEAR), Some(Buffer::Bound));
        assert_eq!(turns(&mut window, 1100..9000, FULL / 4, NEAR), None, "not at once");
        assert_eq!(turns(&mut window, 9000..9100, FULL, NEAR), None, "and anew");
        assert_eq!(turns(&mut window, 9100..18_000, FULL / 4, NEAR), None);
        assert_eq!(turns(&mut window, 18_000..20_000, FULL / 4, NEAR), Some(Buffer::Free));
    }

    #[test]
    fn a_path_that_holds_much_needs_the_kernels_window() {
        let mut window = Window::default();
        assert_eq!(turns(&mut window, 1000..1100, FULL, FAR), None);
        assert_eq!(turns(&mut window, 1100..1200, FULL, NEAR), Some(Buffer::Bound));
        assert_eq!(turns(&mut window, 1200..1300, FULL, FAR), Some(Buffer::Free));
    }
}
