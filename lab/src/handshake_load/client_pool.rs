//! The caller's handle for hundreds of clients on one thread.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use adit_openvpn::client::ClientConfig;
use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::net::Namespace;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::arrivals::{LoadOutcome, count};
use super::client_loop::{ClientLoop, PoolCommand};
use super::pushed::AppliedConfig;

/// The addresses of the clients' hosts and of the server.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// The addresses of the hosts, all in the clients' namespace. Servers limit each source address; with a single one,
    /// only that limit would be measured.
    pub sources: Vec<IpAddr>,
    /// The maximum number of simultaneous clients on each host.
    pub sessions: usize,
    /// The address of the server.
    pub server: SocketAddr,
}

/// A pool of clients on a separate thread. It ends when the pool is dropped.
#[derive(Debug)]
pub struct ClientPool {
    work: Option<Sender<PoolCommand>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl ClientPool {
    /// Starts the thread, without clients yet. `next` makes the configuration of each client that
    /// connects for the first time.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn open(
        namespace: &Namespace,
        next: impl FnMut() -> Result<ClientConfig> + Send + 'static,
        hosts: Hosts,
    ) -> Result<Self> {
        let (work, inbox) = mpsc::channel::<PoolCommand>();
        let thread = namespace.thread(move || {
            more_files()?;
            ClientLoop::new(next, hosts)?.live(&inbox)
        })?;
        Ok(Self { work: Some(work), thread: Some(thread) })
    }

    /// Starts clients by `schedule`, and waits until all are connected, for at most `timeout` after the last intended
    /// start. Clients that are not connected by then are dropped without an exit message. If all slots are taken, the
    /// client that has been connected longest leaves; if none is connected, new clients wait, and the wait counts
    /// towards their latency.
    ///
    /// # Errors
    /// Sockets cannot be made, or the pool's thread has ended.
    pub fn run(&self, schedule: Vec<Duration>, timeout: Duration) -> Result<LoadOutcome> {
        self.ask(move |clients| clients.run(&schedule, timeout, None))
    }

    /// Like [`ClientPool::run`], but ends as soon as more than `share` of all clients took longer than `late` to
    /// connect, or have been waiting for longer.
    ///
    /// # Errors
    /// As [`ClientPool::run`].
    pub fn run_until_late(
        &self,
        schedule: Vec<Duration>,
        timeout: Duration,
        late: Duration,
        share: f64,
    ) -> Result<LoadOutcome> {
        self.ask(move |clients| {
            let too_many = count(schedule.len()) * share;
            clients.run(&schedule, timeout, Some((late, too_many)))
        })
    }

    /// Makes the client that has been connected longest send this many control messages a second to the server until
    /// [`ControlTraffic::finish`].
    ///
    /// # Errors
    /// The pool's thread has ended.
    pub fn send_control(&self, rate: f64) -> Result<ControlTraffic> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let packets = self.begin(move |clients| clients.send_control(rate, &stopped))?;
        Ok(ControlTraffic { stop, packets })
    }

    /// Drops all clients without an exit message, as if their hosts had lost power. Returns their number.
    ///
    /// # Errors
    /// The pool's thread has ended.
    pub fn drop_all(&self) -> Result<usize> {
        self.ask(|clients| Ok(clients.drop_all()))
    }

    /// Drops all sessions at once without an exit message, and reconnects the same clients at one instant.
    ///
    /// # Errors
    /// As [`ClientPool::run`].
    pub fn reconnect_all(&self, timeout: Duration) -> Result<LoadOutcome> {
        self.ask(move |clients| clients.reconnect_all(timeout))
    }

    /// Disconnects all clients in order. Returns their number; takes as long as the server needs, at most about a
    /// second.
    ///
    /// # Errors
    /// The pool's thread has ended.
    pub fn disconnect_all(&self) -> Result<usize> {
        self.ask(ClientLoop::disconnect_all)
    }

    /// Returns the configurations that the connected clients received.
    ///
    /// # Errors
    /// The pool's thread has ended.
    pub fn applied(&self) -> Result<Vec<AppliedConfig>> {
        self.ask(|clients| Ok(clients.applied()))
    }

    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ClientLoop) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.begin(work)?.recv().map_err(|_| ended())?
    }

    fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ClientLoop) -> Result<T> + Send + 'static,
    ) -> Result<Receiver<Result<T>>> {
        let (answer, answered) = mpsc::channel();
        let work: PoolCommand = Box::new(move |clients| {
            // The receiver is gone only if the caller has panicked.
            let _ = answer.send(work(clients));
        });
        self.work.as_ref().ok_or_else(ended)?.send(work).map_err(|_| ended())?;
        Ok(answered)
    }
}

fn ended() -> Failure {
    Failure("the client pool's thread has ended".to_owned())
}

/// A client that sends control messages to the server.
#[derive(Debug)]
pub struct ControlTraffic {
    stop: Arc<AtomicBool>,
    packets: Receiver<Result<u64>>,
}

impl ControlTraffic {
    /// Stops the messages, and returns the number of control packets in both directions since the start.
    ///
    /// # Errors
    /// The client lost its session.
    pub fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.packets.recv().map_err(|_| ended())?
    }
}

impl Drop for ControlTraffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for ClientPool {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Raises the limit of open files, because each client has a socket and the usual limit of 1024 is too low.
fn more_files() -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(65_536).max(soft);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).context("more open files")
}
