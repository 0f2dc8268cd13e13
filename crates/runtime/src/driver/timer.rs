use std::io;
use std::os::fd::OwnedFd;

use adit_engine::Instant;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timer on the boot clock. Tokio's own timers do not advance while the host is suspended.
#[derive(Debug)]
pub(super) struct BootTimer {
    fd: AsyncFd<OwnedFd>,
    armed: Option<Instant>,
}

impl BootTimer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self { fd: super::watch(fd, tokio::io::Interest::READABLE)?, armed: None })
    }

    /// Arms the timer for `deadline` (it fires at once if that has passed), or disarms it if there is none. It may also
    /// fire early, at a deadline that a later one replaced. Most deadlines are postponed again and again, and a system
    /// call for each would cost more than an occasional extra wake-up.
    pub(super) fn arm(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        if self.armed == deadline || self.armed.is_some_and(|armed| deadline > Some(armed)) {
            return Ok(());
        }
        // A zero value disarms the timer, so the earliest deadline is one nanosecond after boot.
        let nanos = deadline.map_or(0, |deadline| deadline.as_nanos().max(1));
        let value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            // The value is below 1e9.
            tv_nsec: (nanos % 1_000_000_000) as _,
        };
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: once, it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
        self.armed = deadline;
        Ok(())
    }

    /// Waits until the timer has fired. Cancel-safe.
    pub(super) async fn fired(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut count = [0_u8; 8];
            match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut count)?)) {
                Ok(Ok(_)) => {
                    self.armed = None;
                    return Ok(());
                }
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::now;

    #[tokio::test]
    async fn fires_not_before_its_deadline_and_at_once_for_a_past_one() {
        let mut timer = BootTimer::new().unwrap();
        let deadline = now() + Duration::from_millis(20);
        timer.arm(Some(deadline)).unwrap();
        timer.fired().await.unwrap();
        assert!(now() >= deadline);
        timer.arm(Some(Instant::from_nanos(0))).unwrap();
        timer.fired().await.unwrap();
    }

    #[tokio::test]
    async fn one_that_is_put_off_fires_at_its_time_and_one_that_is_brought_forward_too() {
        let mut timer = BootTimer::new().unwrap();
        let start = now();
        let [early, late] = [20, 60].map(|millis| start + Duration::from_millis(millis));
        timer.arm(Some(early)).unwrap();
        timer.arm(Some(late)).unwrap();
        assert_eq!(timer.armed, Some(early), "without a system call");
        while now() < late {
            timer.arm(Some(late)).unwrap();
            timer.fired().await.unwrap();
        }
        timer.arm(Some(start + Duration::from_secs(3600))).unwrap();
        timer.arm(Some(start)).unwrap();
        timer.fired().await.unwrap();
    }

    #[tokio::test]
    async fn disarmed_it_does_not_fire() {
        let mut timer = BootTimer::new().unwrap();
        timer.arm(Some(now() + Duration::from_millis(5))).unwrap();
        timer.arm(None).unwrap();
        let waited = tokio::time::timeout(Duration::from_millis(50), timer.fired()).await;
        assert!(waited.is_err());
    }
}
