//! The control thread's view of a running bridge.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::counters::{Counters, Drop, Totals};
use crate::hook::{Hook, Policy};
use crate::port::{Port, Queue, Side};
use crate::worker::{Command, CommandQueue, LinkState, Worker};

/// The maximum number of threads that move frames.
pub const MAX_WORKERS: usize = 64;

/// The reason why a bridge did not start.
#[derive(Debug)]
pub enum StartError {
    /// A port has fewer queues than there are workers.
    Queues {
        /// The port.
        port: String,
        /// The number of its queues.
        has: usize,
    },
    /// The system refused a thread or a descriptor.
    Os(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queues { port, has } => write!(
                f,
                "{port} has {has} queues, fewer than there are to be workers: start with \
                 --workers {has}"
            ),
            Self::Os(e) => write!(f, "cannot start a worker: {e}"),
        }
    }
}

impl std::error::Error for StartError {}

/// The control thread's handle of one worker.
#[derive(Debug)]
struct Handle {
    thread: JoinHandle<()>,
    commands: Arc<CommandQueue>,
    counters: Arc<Counters>,
    /// The thread has ended or is about to end.
    ended: Arc<AtomicBool>,
}

/// Lives as long as a worker, and notifies the control thread when the worker ends, even in a panic.
struct WorkerEndGuard {
    ended: Arc<AtomicBool>,
    link_state: Arc<LinkState>,
}

impl std::ops::Drop for WorkerEndGuard {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.link_state.wakeup().signal();
    }
}

/// A running bridge. Its threads end when it is dropped.
#[derive(Debug)]
pub struct Bridge {
    handles: Vec<Handle>,
    link_state: Arc<LinkState>,
    /// The present ports.
    ports: [Port; 2],
    /// Frames that packet sockets dropped, by side. They are summed here because reading the kernel's counter resets
    /// it.
    overruns: [u64; 2],
}

impl Bridge {
    /// Starts to move frames with `workers` threads (1 to [`MAX_WORKERS`]). Each calls `prepare` first.
    ///
    /// # Errors
    /// A port has too few queues, or the system refuses a thread.
    pub fn start(
        ports: [Port; 2],
        policy: &Policy,
        workers: usize,
        prepare: fn() -> io::Result<()>,
    ) -> Result<Self, StartError> {
        let workers = workers.clamp(1, MAX_WORKERS);
        let link_state = Arc::new(LinkState::new().map_err(StartError::Os)?);
        let mut this = Self { handles: Vec::new(), link_state, ports, overruns: [0; 2] };
        for at in 0..workers {
            let [a, b] = this.ports.each_ref().map(|port| {
                let lacking =
                    StartError::Queues { port: port.name.clone(), has: port.queues.len() };
                port.queues.get(at).cloned().ok_or(lacking)
            });
            let [name_a, name_b] = this.ports.each_ref().map(|port| port.name.as_str());
            let hook = policy.hook([name_a, name_b]);
            let handle = start_worker(at, [a?, b?], hook, &this.link_state, prepare);
            let handle = handle.map_err(StartError::Os)?;
            this.handles.push(handle);
        }
        Ok(this)
    }

    /// Returns the number of threads that move frames.
    pub fn workers(&self) -> usize {
        self.handles.len()
    }

    /// Returns the present ports.
    pub fn ports(&self) -> &[Port; 2] {
        &self.ports
    }

    /// Returns the totals of received frames so far, by port.
    pub fn totals(&mut self) -> Totals {
        let mut totals = Totals::default();
        for handle in &self.handles {
            handle.counters.add_to(&mut totals);
        }
        let sides = totals.sides.iter_mut().zip(&mut self.overruns).zip(&self.ports);
        for ((side, overrun), port) in sides {
            let more: u64 = port.queues.iter().map(|queue: &Arc<Queue>| queue.overrun()).sum();
            *overrun = overrun.wrapping_add(more);
            side.dropped(Drop::Overrun, *overrun);
        }
        totals
    }

    /// Returns a descriptor that is readable when a port was lost or a worker has ended; see [`Self::lost`] and
    /// [`Self::failed`].
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        self.link_state.wakeup().as_fd()
    }

    /// Returns the ports that were lost since the last call. Frames for them are dropped until [`Self::attach`]
    /// replaces them.
    pub fn lost(&self) -> [bool; 2] {
        self.link_state.take()
    }

    /// Replaces a lost port.
    ///
    /// # Errors
    /// The new port has fewer queues than there are workers.
    pub fn attach(&mut self, side: Side, port: Port) -> Result<(), StartError> {
        if port.queues.len() < self.handles.len() {
            return Err(StartError::Queues { has: port.queues.len(), port: port.name });
        }
        for (handle, queue) in self.handles.iter().zip(&port.queues) {
            handle.commands.push(Command::Attach(side, Arc::clone(queue)));
        }
        if let Some(place) = self.ports.get_mut(side.index()) {
            *place = port;
        }
        Ok(())
    }

    /// Returns the number of a worker that has ended, if any; workers never end on their own.
    pub fn failed(&self) -> Option<usize> {
        self.handles.iter().position(|handle| handle.ended.load(Ordering::Acquire))
    }
}

impl std::ops::Drop for Bridge {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.commands.push(Command::Stop);
        }
        for handle in self.handles.drain(..) {
            // A thread that panicked has already reported it.
            let _ = handle.thread.join();
        }
    }
}

fn start_worker(
    at: usize,
    queues: [Arc<Queue>; 2],
    hook: Hook,
    link_state: &Arc<LinkState>,
    prepare: fn() -> io::Result<()>,
) -> io::Result<Handle> {
    let commands = Arc::new(CommandQueue::new()?);
    let counters = Arc::new(Counters::default());
    let ended = Arc::new(AtomicBool::new(false));
    let alive = WorkerEndGuard { ended: Arc::clone(&ended), link_state: Arc::clone(link_state) };
    let link_state = Arc::clone(link_state);
    let worker =
        Worker::new(queues, hook, Arc::clone(&commands), link_state, Arc::clone(&counters))?;
    let (say, hear) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("bridge-{at}")).spawn(move || {
        let _alive = alive;
        let prepared = prepare();
        let go = prepared.is_ok();
        // The thread that started this one waits for the result.
        let _ = say.send(prepared);
        if go {
            worker.run();
        }
    })?;
    hear.recv().unwrap_or_else(|_| Err(io::Error::other("a worker ended at its start")))?;
    Ok(Handle { thread, commands, counters, ended })
}
