//! The two clocks: one for timers that includes the time in suspend, and one for certificates.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds since boot, including time in suspend (`CLOCK_BOOTTIME`). The value
/// never decreases.
pub fn boottime() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // The kernel's boot clock is never negative.
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Returns the seconds since 1970 UTC (`CLOCK_REALTIME`); 0 for a clock set before that.
pub fn unix_time() -> u64 {
    u64::try_from(clock_gettime(ClockId::Realtime).tv_sec).unwrap_or(0)
}

/// Returns the CPU time of this process.
pub fn process_cpu() -> Option<Duration> {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID).ok().map(Into::into)
}

/// Returns the id of the calling thread, for [`thread_cpu`].
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns the CPU time of a thread of this process, or `None` if there is no such thread.
pub fn thread_cpu(thread: i32) -> Option<Duration> {
    // For the kernel, 0 is the calling thread.
    if thread <= 0 {
        return None;
    }
    // The kernel's encoding of a thread's clock (clock_getres(2)): the inverted id, and the bits for a thread's CPU time.
    let clock = nix::time::ClockId::from_raw((!thread << 3) | 6);
    nix::time::clock_gettime(clock).ok().map(Into::into)
}

/// Returns the offset of local time (`TZ`, or /etc/localtime) from UTC at a given time, in seconds.
#[allow(unsafe_code)]
pub fn local_offset(unix: u64) -> i64 {
    let Ok(time) = unix.try_into() else { return 0 };
    // SAFETY: `tm` is plain data for which all zeroes is a valid value.
    let mut broken_down: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of the right types; localtime_r keeps neither.
    let filled = unsafe { libc::localtime_r(&raw const time, &raw mut broken_down) };
    // Null means that the year does not fit, which does not happen with these clocks.
    if filled.is_null() { 0 } else { broken_down.tm_gmtoff }
}

/// The flag of a clock that no time service has synchronised (`STA_UNSYNC` in adjtimex(2)).
const UNSYNCHRONISED: libc::c_int = 0x40;

/// Returns whether a time service has synchronised the wall clock, or `None` if the kernel does not say.
#[allow(unsafe_code)]
pub fn is_synchronised() -> Option<bool> {
    // SAFETY: `timex` is plain data for which all zeroes is a valid value; it makes the call a query.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live value of the right type, which the kernel does not keep.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    (result >= 0).then_some(state.status & UNSYNCHRONISED == 0)
}

#[cfg(test)]
mod tests {
    /// The call may be forbidden in a container, but it changes nothing.
    #[test]
    fn a_query_of_the_clocks_state_leaves_the_clock_alone() {
        let before = super::unix_time();
        let first = super::is_synchronised();
        assert!(super::unix_time().abs_diff(before) <= 5);
        assert_eq!(first.is_some(), super::is_synchronised().is_some());
    }

    #[test]
    fn a_threads_cpu_time_is_part_of_the_processs() {
        let own = super::thread_id();
        let before = super::thread_cpu(own).unwrap();
        while super::thread_cpu(own).unwrap() == before {
            std::hint::black_box((0..10_000).sum::<u64>());
        }
        assert!(super::process_cpu().unwrap() > before);
        assert_eq!((super::thread_cpu(200_000_000), super::thread_cpu(0)), (None, None));
    }

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
    fn the_local_offset_is_that_of_date() {
        let date = std::process::Command::new("date").args(["-d", "@1795166363", "+%z"]).output();
        let text = String::from_utf8(date.unwrap().stdout).unwrap();
        let (sign, digits) = text.trim().split_at(1);
        let minutes =
            digits[..2].parse::<i64>().unwrap() * 60 + digits[2..].parse::<i64>().unwrap();
        let expected = if sign == "-" { -minutes } else { minutes } * 60;
        assert_eq!(super::local_offset(1_795_166_363), expected);
    }

    #[test]
    fn unix_time_is_the_standard_librarys() {
        let std =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(super::unix_time().abs_diff(std) <= 1);
    }
}
