//! When a server gives memory back: what clients leave behind when they go.

/// How many there were at most since memory was last given back.
#[derive(Debug, Default)]
pub(super) struct Rest {
    most: usize,
}

impl Rest {
    /// Whether so many have gone that memory is worth giving back, now that there are `busy` sessions and handshakes:
    /// half of them, or the last. Whoever comes and goes beside many others causes nothing.
    pub(super) fn is_due(&mut self, busy: usize) -> bool {
        self.most = self.most.max(busy);
        let due = self.most > 0 && busy <= self.most / 2;
        if due {
            self.most = busy;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::Rest;

    #[test]
    fn half_of_them_or_the_last_bring_rest_and_nobody_does_not() {
        let mut rest = Rest::default();
        let due: Vec<bool> =
            [0, 0, 1, 0, 0, 10, 9, 6, 5, 5, 4, 3, 2, 1, 0, 0].map(|busy| rest.is_due(busy)).into();
        let at: Vec<usize> = (0..due.len()).filter(|&i| due[i]).collect();
        // 1 -> 0; 10 -> 5; 5 -> 2; 2 -> 1; 1 -> 0.
        assert_eq!(at, [3, 8, 12, 13, 14]);
    }
}
