//! Decides when a node releases memory.

/// After this many seconds with few packets in the tunnel, memory is released, and released again at this interval: handshakes and changes
/// of the roster need memory even without packets.
const CALM: u32 = 30;

/// The maximum number of packets in a second that count as few. Processing them costs more than releasing memory.
const FEW: u64 = 100;

/// The time with few packets in the tunnel.
#[derive(Debug, Default)]
pub(super) struct MemoryRelease {
    packets: u64,
    /// The number of seconds with few packets, counted from the last busy second or the last release of memory.
    calm: u32,
}

impl MemoryRelease {
    /// Returns whether it is time to release memory, given the packets in the tunnel so far. Call it once a second.
    pub(super) fn is_due(&mut self, packets: u64) -> bool {
        let before = std::mem::replace(&mut self.packets, packets);
        let is_calm = packets.saturating_sub(before) <= FEW;
        self.calm = if is_calm { self.calm.saturating_add(1) } else { 0 };
        let is_due = self.calm >= CALM;
        if is_due {
            self.calm = 0;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_released_again_and_again_while_few_packets_pass() {
        let mut release = MemoryRelease::default();
        let mut packets = 0;
        let mut due = |in_a_second: u64, seconds: u32| -> Vec<u32> {
            let mut is_due = || {
                packets += in_a_second;
                release.is_due(packets)
            };
            (1..=seconds).filter(|_| is_due()).collect()
        };
        assert_eq!(due(0, 100), [30, 60, 90]);
        assert_eq!(due(FEW, 25), [20]);
        assert!(due(FEW + 1, 100).is_empty());
        assert!(due(0, 29).is_empty(), "the time begins again");
        assert_eq!(due(1, 1), [1]);
    }
}
