//! When a server gives memory back: what clients leave behind when they go.

/// How many looks after the last has gone memory is given back once more: when the workers have rested, when nothing is
/// held against strangers any longer, and when no failure waits for being repeated.
const AGAIN: [u32; 3] = [2, 15, 75];

/// How many there were at most since memory was last given back.
#[derive(Debug)]
pub(super) struct MemoryRelease {
    most: usize,
    /// Looks since the last client has gone, or since the start, if no client has come since.
    alone: Option<u32>,
}

impl Default for MemoryRelease {
    /// What the start needed is given back, too.
    fn default() -> Self {
        Self { most: 0, alone: Some(0) }
    }
}

impl MemoryRelease {
    /// Whether so many have gone that memory is worth giving back, now that there are `busy` sessions and handshakes:
    /// half of them, or the last, and some time after that one. A single client that comes and goes among many others causes nothing.
    /// To be asked each second.
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
