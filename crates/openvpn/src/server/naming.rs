use std::time::Duration;

use adit_engine::Instant;

/// Strangers named in one [`WINDOW`].
const NAMED: u32 = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// How often a stranger whose packets are not authentic is named.
///
/// Anybody can send such packets from any address, at any rate: a log that names each would be a way to
/// fill a disk. The counters have all of them.
#[derive(Debug, Default)]
pub(super) struct Naming {
    window: Option<Instant>,
    named: u32,
}

impl Naming {
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        if self.window.is_none_or(|since| now.since(since) >= WINDOW) {
            (self.window, self.named) = (Some(now), 0);
        }
        self.named = self.named.saturating_add(1);
        self.named <= NAMED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_named_a_few_times_a_second() {
        let mut naming = Naming::default();
        let start = Instant::from_nanos(7);
        let allowed = |naming: &mut Naming, at| (0..1000).filter(|_| naming.allow(at)).count();
        assert_eq!(allowed(&mut naming, start), 5);
        assert_eq!(allowed(&mut naming, start + WINDOW / 2), 0);
        assert_eq!(allowed(&mut naming, start + WINDOW), 5);
    }
}
