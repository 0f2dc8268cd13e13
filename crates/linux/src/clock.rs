//! The two clocks: one for timers that goes on in suspend, one for certificates.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot, time asleep included (`CLOCK_BOOTTIME`). Never goes back.
pub fn boottime() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // The kernel's boot clock is never negative.
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Seconds since 1970 UTC (`CLOCK_REALTIME`); 0 for a clock set before that.
pub fn unix_time() -> u64 {
    u64::try_from(clock_gettime(ClockId::Realtime).tv_sec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn boottime_advances_and_agrees_with_proc_uptime() {
        let before = super::boottime();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let after = super::boottime();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        assert!(after >= before);
        // /proc/uptime truncates to hundredths.
        assert!(seconds >= before as f64 / 1e9 - 0.02 && seconds <= after as f64 / 1e9 + 0.02);
    }

    #[test]
    fn unix_time_is_the_standard_librarys() {
        let std =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(super::unix_time().abs_diff(std) <= 1);
    }
}
