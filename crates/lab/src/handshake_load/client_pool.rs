//! Hundreds of clients on one thread: the side of those who let them come.

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
use super::pushed::Applied;

/// Where clients come from and go to.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// The addresses of the hosts, all of the namespace that the crowd lives in. Servers limit what one address may
    /// cause, so a crowd from a single one would meet that limit and no other.
    pub sources: Vec<IpAddr>,
    /// How many clients each of them has at once at most.
    pub sessions: usize,
    /// The server.
    pub server: SocketAddr,
}

/// The crowd; its clients live on a thread of their own until this is dropped.
#[derive(Debug)]
pub struct ClientPool {
    work: Option<Sender<PoolCommand>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl ClientPool {
    /// Opens the room that clients will stand in. None comes yet. `next` makes the configuration of each client that
    /// comes for the first time.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn open(
        namespace: &Namespace,
        next: impl FnMut() -> Result<ClientConfig> + Send + 'static,
        hosts: Hosts,
    ) -> Result<ClientPool> {
        let (work, inbox) = mpsc::channel::<PoolCommand>();
        let thread = namespace.thread(move || {
            more_files()?;
            ClientLoop::new(next, hosts)?.live(&inbox)
        })?;
        Ok(ClientPool { work: Some(work), thread: Some(thread) })
    }

    /// Lets clients come as `schedule` says, and waits until all are up, at most for `timeout` after the last was to
    /// come. Those that are not up by then are dropped without a word. Where all places are taken, the client that
    /// has been up longest leaves for the next; where none is up, clients wait, and their time counts.
    ///
    /// # Errors
    /// Sockets cannot be made, or the crowd has ended.
    pub fn run(&self, schedule: Vec<Duration>, timeout: Duration) -> Result<LoadOutcome> {
        self.ask(move |clients| clients.run(&schedule, timeout, None))
    }

    /// As [`ClientPool::run`], but it ends as soon as more than `share` of all clients took longer than `late`, or are not up
    /// after so long.
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

    /// Lets the client that has been up longest say this many things a second to the server, until the talk is
    /// finished.
    ///
    /// # Errors
    /// The crowd has ended.
    pub fn talk(&self, rate: f64) -> Result<Talk> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let packets = self.begin(move |clients| clients.talk(rate, &stopped))?;
        Ok(Talk { stop, packets })
    }

    /// All clients vanish without a word, as when their hosts lose power, and do not come back. Returns how many.
    ///
    /// # Errors
    /// The crowd has ended.
    pub fn vanish(&self) -> Result<usize> {
        self.ask(|clients| Ok(clients.vanish()))
    }

    /// All clients lose their sessions at once, without a word, and the same clients come back at one instant.
    ///
    /// # Errors
    /// As [`ClientPool::run`].
    pub fn come_back(&self, timeout: Duration) -> Result<LoadOutcome> {
        self.ask(move |clients| clients.come_back(timeout))
    }

    /// All clients take their leave. Returns how many; it takes as long as the server needs, a second or so at most.
    ///
    /// # Errors
    /// The crowd has ended.
    pub fn leave(&self) -> Result<usize> {
        self.ask(ClientLoop::leave_all)
    }

    /// What the clients that are up now were told.
    ///
    /// # Errors
    /// The crowd has ended.
    pub fn applied(&self) -> Result<Vec<Applied>> {
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
            // Nobody listens any more if the caller has panicked.
            let _ = answer.send(work(clients));
        });
        self.work.as_ref().ok_or_else(ended)?.send(work).map_err(|_| ended())?;
        Ok(answered)
    }
}

fn ended() -> Failure {
    Failure("the crowd's thread has ended".to_owned())
}

/// A client that talks to the server.
#[derive(Debug)]
pub struct Talk {
    stop: Arc<AtomicBool>,
    packets: Receiver<Result<u64>>,
}

impl Talk {
    /// Ends it, and returns how many control packets went to and fro meanwhile.
    ///
    /// # Errors
    /// The client lost its session.
    pub fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.packets.recv().map_err(|_| ended())?
    }
}

impl Drop for Talk {
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

/// Each client has a socket; the usual 1024 files are too few.
fn more_files() -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(65_536).max(soft);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).context("more open files")
}
