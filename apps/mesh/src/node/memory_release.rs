//! Decides when a node releases memory.

/// The number of seconds without tunnelled packets after which memory is released once.
const CALM: u32 = 30;

/// Measures the time since the last tunnelled packet.
#[derive(Debug, Default)]
pub(super) struct MemoryRelease {
    packets: u64,
    /// Seconds since the number of packets changed, or since the start.
    calm: u32,
}

impl MemoryRelease {
    /// Returns whether the node has been idle long enough to release memory, given the number of tunnelled packets so far. Call it once a
    /// second.
    pub(super) fn is_due(&mut self, packets: u64) -> bool {
        if std::mem::replace(&mut self.packets, packets) != packets {
            self.calm = 0;
        }
        self.calm = self.calm.saturating_add(1);
        self.calm == CALM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_released_once_in_each_time_without_packets() {
        let mut release = MemoryRelease::default();
        let mut due = |packets: u64, seconds: u32| -> Vec<u32> {
            (1..=seconds).filter(|_| release.is_due(packets)).collect()
        };
        assert_eq!(due(0, 100).len(), 1, "after the start");
        assert_eq!(due(1, 29).len(), 0);
        assert_eq!(due(2, 30), [30]);
        assert_eq!(due(2, 100).len(), 0);
    }
}
