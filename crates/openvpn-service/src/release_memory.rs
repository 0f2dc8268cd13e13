//! Decides when a server releases memory after clients have disconnected.

/// How many seconds after the last client disconnected memory is released again. By then, in this order, the workers have gone idle, the
/// rate limiters have expired, and log deduplication has expired.
const AGAIN: [u32; 3] = [2, 15, 75];

/// The peak of sessions and handshakes since memory was last released.
#[derive(Debug)]
pub(super) struct MemoryRelease {
    most: usize,
    /// Seconds since the last client disconnected or, if none has connected, since the start.
    alone: Option<u32>,
}

impl Default for MemoryRelease {
    /// Returns a state in which the memory used at the start is released, too.
    fn default() -> Self {
        Self { most: 0, alone: Some(0) }
    }
}

impl MemoryRelease {
    /// Returns whether enough clients have disconnected to release memory, given `busy` sessions and handshakes. That
    /// is the case if half of the peak have left, or if the last client left some time ago. A single client among many
    /// others never triggers it. Call it once a second.
    pub(super) fn is_due(&mut self, busy: usize) -> bool {
        self.most = self.most.max(busy);
        let due = self.most > 0 && busy <= self.most / 2;
        if due {
            self.most = busy;
        }
        self.alone = match self.alone {
            _ if busy > 0 => None,
            _ if due => Some(0),
            Some(looks) => Some(looks.saturating_add(1)),
            None => None,
        };
        due || self.alone.is_some_and(|looks| AGAIN.contains(&looks))
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryRelease;

    #[test]
    fn the_end_of_half_of_them_or_of_the_last_brings_rest_and_no_end_does_not() {
        let mut rest = MemoryRelease { most: 0, alone: None };
        let due: Vec<bool> =
            [0, 0, 1, 0, 0, 10, 9, 6, 5, 5, 4, 3, 2, 1, 0, 0].map(|busy| rest.is_due(busy)).into();
        let at: Vec<usize> = (0..due.len()).filter(|&i| due[i]).collect();
        // 1 -> 0; 10 -> 5; 5 -> 2; 2 -> 1; 1 -> 0.
        assert_eq!(at, [3, 8, 12, 13, 14]);
    }

    #[test]
    fn after_the_last_has_gone_it_is_done_some_times_more_unless_a_client_comes() {
        let mut rest = MemoryRelease::default();
        let mut ask = |busy: &[usize]| -> Vec<usize> {
            let due: Vec<bool> = busy.iter().map(|&busy| rest.is_due(busy)).collect();
            (0..due.len()).filter(|&i| due[i]).collect()
        };
        assert_eq!(ask(&[0; 200]), [1, 14, 74], "after the start");
        ask(&[1]);
        assert_eq!(ask(&[0; 200]), [0, 2, 15, 75]);
        ask(&[1]);
        assert_eq!(ask(&[0, 0, 0, 0, 3, 3, 3]), [0, 2]);
        assert!(ask(&[3; 100]).is_empty());
    }
}
