//! Resource usage of a process, from /proc.

use std::fs;
use std::time::Duration;

/// The clock ticks per second in /proc/PID/stat, fixed by the kernel's interface (`USER_HZ`).
const TICKS: u64 = 100;

/// Returns the user and system time of a process so far.
pub fn cpu(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    Duration::from_millis(parse_ticks(&text).saturating_mul(1000) / TICKS)
}

/// Parses fields 14 and 15 of `stat`. They are counted from the end of the name in field 2, because
/// the name may contain any characters.
fn parse_ticks(stat: &str) -> u64 {
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0 };
    rest.split_ascii_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum()
}

/// Returns the private memory in bytes, which no file backs and no other process shares.
pub fn memory(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    parse_private(&text)
}

fn parse_private(rollup: &str) -> u64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:"));
    let kilobytes = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!(parse_ticks(stat), 200);
        assert_eq!(parse_ticks(""), 0);
        assert_eq!(parse_private("Pss:    4096 kB\nPss_Anon:    2048 kB\n"), 2 << 20);
        let me = std::process::id();
        assert!(memory(me) > 0);
        let _ = cpu(me);
    }
}
