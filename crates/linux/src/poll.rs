//! Waiting for several descriptors: epoll, and an eventfd to wake a waiting thread.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};

/// The events to report for a descriptor. Level-triggered; hang-up and error are always reported.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Report when a read would not block.
    pub read: bool,
    /// Report when a write would not block.
    pub write: bool,
}

impl Interest {
    /// Only reading.
    pub const READ: Self = Self { read: true, write: false };
    /// Only writing.
    pub const WRITE: Self = Self { read: false, write: true };
    /// Both.
    pub const BOTH: Self = Self { read: true, write: true };
    /// Neither: the descriptor stays in the set, and only errors are reported.
    pub const NONE: Self = Self { read: false, write: false };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags
    }
}

/// An event of one descriptor.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token given to [`Poller::add`].
    pub token: u64,
    /// A read will not block (it may report an error or the end).
    pub readable: bool,
    /// A write will not block.
    pub writable: bool,
    /// An error or hang-up is pending; the next read or write reports it.
    pub failed: bool,
}

/// The maximum number of events that one [`Poller::wait`] returns; the next call returns the rest.
pub const EVENTS_PER_WAIT: usize = 64;

/// Space for the events of one wait. It is allocated once and reused.
pub struct Events {
    raw: Box<[MaybeUninit<epoll::Event>; EVENTS_PER_WAIT]>,
    ready: Vec<Event>,
}

impl Events {
    /// Creates space without events.
    pub fn new() -> Self {
        Self {
            raw: Box::new([MaybeUninit::uninit(); EVENTS_PER_WAIT]),
            ready: Vec::with_capacity(EVENTS_PER_WAIT),
        }
    }

    /// Returns the events of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.ready.iter().copied()
    }

    /// Returns whether the last wait ended by a timeout (or a signal).
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

/// An epoll set that several threads may use.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// Creates an empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches a descriptor. It leaves the set on [`Poller::remove`] or when its last duplicate is closed.
    pub fn add(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Changes the token and interest of a watched descriptor.
    pub fn modify(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), interest.flags())?)
    }

    /// Stops watching a descriptor.
    pub fn remove(&self, fd: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits as [`Poller::wait`] does, with a timeout that is not rounded up to whole milliseconds. It costs one more
    /// system call.
    ///
    /// # Errors
    /// Fails as [`Poller::wait`] does.
    pub fn wait_precisely(&self, events: &mut Events, timeout: Duration) -> io::Result<usize> {
        let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
        match rustix::event::poll(&mut epoll, Some(&timespec(timeout))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => self.wait(events, Some(Duration::ZERO)),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits until a descriptor is ready or the timeout has passed. The timeout is rounded up to whole milliseconds;
    /// zero does not wait, and `None` waits forever. Returns the number of events; 0 after a timeout or a signal.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        events.ready.clear();
        let timeout = timeout.map(timespec);
        let found = match epoll::wait(&self.epoll, &mut events.raw[..], timeout.as_ref()) {
            Ok((found, _)) => found,
            Err(rustix::io::Errno::INTR) => return Ok(0),
            Err(e) => return Err(e.into()),
        };
        events.ready.extend(found.iter().map(event));
        Ok(events.ready.len())
    }

    /// Returns one descriptor that is ready now, if there is one. Repeated calls return all ready descriptors in turn.
    pub fn next(&self) -> io::Result<Option<Event>> {
        let mut raw = [MaybeUninit::uninit()];
        match epoll::wait(&self.epoll, &mut raw, Some(&timespec(Duration::ZERO))) {
            Ok((found, _)) => Ok(found.first().map(event)),
            Err(rustix::io::Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

fn event(event: &epoll::Event) -> Event {
    // The kernel's event is packed: copy the fields before reading them.
    let (flags, data) = (event.flags, event.data);
    let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
    Event {
        token: data.u64(),
        readable: failed || flags.contains(epoll::EventFlags::IN),
        writable: failed || flags.contains(epoll::EventFlags::OUT),
        failed,
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A flag that another thread can wait for: readable between [`EventFd::signal`] and [`EventFd::drain`].
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// Creates a flag that is not signalled.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self { fd: rustix::event::eventfd(0, flags)? })
    }

    /// Makes the flag readable; any number of signals before a drain count as one. Never blocks.
    pub fn signal(&self) {
        // The only possible error is EAGAIN at 2^64 - 2 signals, and then the flag is already readable.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Resets the flag; returns whether it was signalled. Drain the flag before checking the queue, or a signal may be
    /// lost.
    pub fn drain(&self) -> bool {
        let mut count = [0u8; 8];
        rustix::io::read(&self.fd, &mut count).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eventfd_wakes_a_poller_until_it_is_drained() {
        let (poller, event, mut events) =
            (Poller::new().unwrap(), EventFd::new().unwrap(), Events::new());
        poller.add(&event, 7, Interest::READ).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        event.signal();
        event.signal();
        assert_eq!(poller.wait(&mut events, None).unwrap(), 1);
        let seen = events.iter().next().unwrap();
        assert_eq!(seen, Event { token: 7, readable: true, writable: false, failed: false });
        assert!(event.drain());
        assert!(!event.drain());
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        assert!(events.is_empty());
    }

    #[test]
    fn interest_can_be_changed_and_removed() {
        let (poller, event, mut events) =
            (Poller::new().unwrap(), EventFd::new().unwrap(), Events::new());
        poller.add(&event, 1, Interest::BOTH).unwrap();
        assert_eq!(poller.wait(&mut events, None).unwrap(), 1);
        assert!(events.iter().all(|e| e.writable && !e.readable));
        poller.modify(&event, 2, Interest::NONE).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        poller.modify(&event, 3, Interest::WRITE).unwrap();
        assert_eq!(poller.wait(&mut events, None).unwrap(), 1);
        assert_eq!(events.iter().next().unwrap().token, 3);
        poller.remove(&event).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        assert!(poller.remove(&event).is_err());
    }

    #[test]
    fn a_timeout_is_not_cut_short() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::new());
        let (start, wait) = (crate::clock::boottime(), Duration::from_micros(1500));
        assert_eq!(poller.wait(&mut events, Some(wait)).unwrap(), 0);
        assert!(crate::clock::boottime() - start >= 1_500_000);
    }
}
