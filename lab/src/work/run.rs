//! The common part of all generators: a common start, two threads, and a callback at the window's edges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_linux::clock::boottime;
use adit_testbed::failure::Result;
use nix::sys::prctl;

use super::sockets::nanos;
use super::window::Frame;
use super::{Edge, Window};

/// The time from the announcement of the start to the start, enough to start two threads on a busy machine. A thread
/// that is late nevertheless has late time stamps, and the skew shows it.
const AHEAD: u64 = 20_000_000;

/// The maximum time that a thread sleeps before it checks whether to stop.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// The state that the threads of one trial share.
#[derive(Debug)]
pub(super) struct SharedTrial {
    /// The start of all flows, and the window that counts.
    pub frame: Frame,
    stop: AtomicBool,
}

impl SharedTrial {
    /// Returns whether the threads must end, because the window is over or the trial was abandoned.
    pub(super) fn over(&self, now: u64) -> bool {
        now >= self.frame.end || self.stopped()
    }

    /// Returns whether the trial was abandoned.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the maximum time to wait for messages, which lasts until the window's end but is limited.
    pub(super) fn timeout(&self, now: u64) -> Duration {
        Duration::from_nanos(self.frame.end.saturating_sub(now)).min(LOOK)
    }
}

/// Announces a start, runs the two ends on separate threads, and calls `edge` at the window's edges. All connections
/// must already be established.
///
/// # Errors
/// Either end or `edge` failed. Both ends have ended in that case.
pub(super) fn together<Near: Send, Far: Send>(
    window: &Window,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
    near: impl FnOnce(&SharedTrial) -> Result<Near> + Send,
    far: impl FnOnce(&SharedTrial) -> Result<Far> + Send,
) -> Result<(Frame, Near, Far)> {
    let frame = Frame::new(boottime() + AHEAD, window);
    let course = SharedTrial { frame, stop: AtomicBool::new(false) };
    let giving_up = |failed: bool| {
        if failed {
            course.stop.store(true, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let near = scope.spawn(|| near(&course).inspect_err(|_| giving_up(true)));
        let far = scope.spawn(|| far(&course).inspect_err(|_| giving_up(true)));
        let watched = watch(&course, edge);
        giving_up(watched.is_err());
        let near = near.join().unwrap_or_else(|_| Err("a traffic thread panicked".into()));
        let far = far.join().unwrap_or_else(|_| Err("a traffic thread panicked".into()));
        let ends = (frame, near?, far?);
        watched?;
        Ok(ends)
    })
}

fn watch(course: &SharedTrial, edge: &mut dyn FnMut(Edge) -> Result<()>) -> Result<()> {
    for (at, which) in [(course.frame.begin, Edge::Begin), (course.frame.end, Edge::End)] {
        while boottime() < at && !course.stopped() {
            sleep_until(at.min(boottime() + nanos(LOOK)));
        }
        if course.stopped() {
            return Ok(());
        }
        edge(which)?;
    }
    Ok(())
}

/// Sleeps until this time of the boot clock.
pub(super) fn sleep_until(at: u64) {
    let left = at.saturating_sub(boottime());
    if left > 0 {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Makes the calling thread's sleeps end on time; by default the kernel ends them up to 50 µs late.
pub(super) fn be_punctual() {
    // If it fails, the lateness of the generator reveals it.
    let _ = prctl::set_timerslack(1);
}
