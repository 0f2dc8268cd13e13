//! The process of a guest: it runs the daemon of tinc, and passes networks between it and the node.
//!
//! It keeps root's privileges, because it starts the daemon again after a failure. It reads no packet from a network: its input is the node's
//! messages, and the answers of the daemon.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use adit_linux::channel::{Channel, Received};
use adit_linux::plugin::outlive_signals;
use adit_runtime::control::{self, Request, Response};
use ipnet::IpNet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::exchange::MAX_ANNOUNCED;
use super::protocol::{Begin, GuestState, MESSAGE_LIMIT, ToGuest};

/// How often the daemon is asked: the bound on the rate of changes in both directions.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long the daemon may take to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The delay before the first restart. It doubles with each failure.
const FIRST_DELAY: Duration = Duration::from_secs(2);

/// The longest delay before a restart.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// How long a service that has started the daemon may take to start it again.
const ATTACHED_DELAY: Duration = Duration::from_secs(15);

/// A daemon that has run for this long is restarted after the first delay again.
const STABLE: Duration = Duration::from_secs(60);

/// How long the daemon may take to end: its last scripts have 4 s.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How often the end of the daemon is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// The directories in which scripts look for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs the guest until the node ends.
pub(super) fn run() -> Result<(), String> {
    let channel = io::stdin().as_fd().try_clone_to_owned().and_then(Channel::from_fd);
    let channel = channel.map_err(|_| "this program is started by adit alone".to_owned())?;
    let failed = |error: io::Error| error.to_string();
    File::open("/dev/null").and_then(|null| Ok(nix::unistd::dup2_stdin(null)?)).map_err(failed)?;
    let _ = nix::sys::prctl::set_name(c"adit-tinc-guest");
    // The node decides when the guest ends.
    outlive_signals().map_err(failed)?;
    let begin = match receive(&channel)? {
        Some(ToGuest::Begin(begin)) => begin,
        Some(ToGuest::Announce(_)) => return Err("networks before the beginning".into()),
        None => return Ok(()),
    };
    let mut guest = Guest {
        channel,
        begin,
        networks: Vec::new(),
        daemon: None,
        restart: Restart::default(),
        last: None,
    };
    let served = guest.serve();
    guest.stop();
    served
}

/// Waits for a message. Returns `None` if the node has ended.
fn receive(channel: &Channel) -> Result<Option<ToGuest>, String> {
    loop {
        match channel.receive(MESSAGE_LIMIT) {
            Ok(Received::End) => return Ok(None),
            Ok(Received::Message(bytes, _)) => return parse(&bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = channel.wait(false, INTERVAL);
            }
            Err(error) => return Err(format!("message lost: {error}")),
        }
    }
}

/// Parses a message of the node, which faces the network.
fn parse(bytes: &[u8]) -> Result<ToGuest, String> {
    let message = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match &message {
        ToGuest::Announce(networks) if networks.len() > MAX_ANNOUNCED => {
            Err(format!("{} networks", networks.len()))
        }
        _ => Ok(message),
    }
}

struct Guest {
    channel: Channel,
    begin: Begin,
    networks: Vec<IpNet>,
    daemon: Option<Child>,
    restart: Restart,
    /// The last message to the node.
    last: Option<GuestState>,
}

impl Guest {
    /// Serves until the node ends.
    fn serve(&mut self) -> Result<(), String> {
        let mut next = Instant::now();
        loop {
            match self.channel.receive(MESSAGE_LIMIT) {
                Ok(Received::End) => return Ok(()),
                Ok(Received::Message(bytes, _)) => {
                    match parse(&bytes)? {
                        ToGuest::Announce(networks) => self.networks = networks,
                        ToGuest::Begin(_) => return Err("a second beginning".into()),
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("message lost: {error}")),
            }
            let now = Instant::now();
            if now < next {
                let _ = self.channel.wait(false, next.saturating_duration_since(now));
                continue;
            }
            let state = self.step(now);
            self.tell(state);
            next = Instant::now() + INTERVAL;
        }
    }

    /// Exchanges networks with the daemon, and starts it if none runs.
    fn step(&mut self, now: Instant) -> GuestState {
        if let Some(problem) = self.ended(now) {
            return GuestState::Failed(problem);
        }
        let request = Request::TincAnnounce { networks: self.networks.clone() };
        match control::request(&self.begin.control, &request) {
            Ok(Response::TincNet(net)) => {
                if self.daemon.is_none() {
                    self.restart.attached(now);
                }
                GuestState::Running(net)
            }
            Ok(Response::Error { message }) => GuestState::Failed(message),
            Ok(_) => GuestState::Failed("tincd gave an answer of another kind".into()),
            Err(_) if self.daemon.is_some() && !self.restart.is_late(now) => GuestState::Starting,
            Err(fault) if self.daemon.is_some() => GuestState::Failed(fault.to_string()),
            Err(fault) if !self.restart.is_due(now) => match &self.last {
                Some(failed @ GuestState::Failed(_)) => failed.clone(),
                _ => GuestState::Failed(fault.to_string()),
            },
            Err(_) => match self.start(now) {
                Ok(()) => GuestState::Starting,
                Err(error) => GuestState::Failed(format!("tincd cannot be started: {error}")),
            },
        }
    }

    fn start(&mut self, now: Instant) -> io::Result<()> {
        self.restart.started(now);
        let Begin { net, directory, debug, .. } = &self.begin;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tincd").args(["-D", "-d"]).arg(debug.to_string());
        command.arg("-n").arg(net).arg("-c").arg(directory);
        command.env_clear().env("PATH", PATH).stdin(Stdio::null()).stdout(Stdio::null());
        self.daemon = Some(command.spawn()?);
        Ok(())
    }

    /// Returns the reason if the daemon has just ended.
    fn ended(&mut self, now: Instant) -> Option<String> {
        let status = self.daemon.as_mut()?.try_wait().ok()??;
        self.daemon = None;
        let delay = self.restart.ended(now);
        Some(format!(
            "tincd has ended ({}): it is started again in {} s",
            code(status),
            delay.as_secs()
        ))
    }

    /// Reports a state to the node, if it is new.
    fn tell(&mut self, state: GuestState) {
        if self.last.as_ref() == Some(&state) {
            return;
        }
        let Ok(bytes) = serde_json::to_vec(&state) else { return };
        // A node that does not read gets the state when it does.
        if self.channel.send(&bytes, &[]).is_ok() {
            self.last = Some(state);
        }
    }

    /// Withdraws the networks, and ends the daemon that this process has started.
    fn stop(&mut self) {
        let _ =
            control::request(&self.begin.control, &Request::TincAnnounce { networks: Vec::new() });
        let Some(daemon) = &mut self.daemon else { return };
        if let Ok(pid) = i32::try_from(daemon.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let until = Instant::now() + END_LIMIT;
        while Instant::now() < until && matches!(daemon.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK);
        }
        let _ = daemon.kill();
        let _ = daemon.wait();
    }
}

fn code(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exit code {code}; the log has the reason"),
        None => "by a signal".to_owned(),
    }
}

/// When the daemon is started again.
#[derive(Debug)]
struct Restart {
    delay: Duration,
    started: Option<Instant>,
    due: Option<Instant>,
}

impl Default for Restart {
    fn default() -> Self {
        Self { delay: FIRST_DELAY, started: None, due: None }
    }
}

impl Restart {
    fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Leaves time for the program that has started the daemon to start it again.
    fn attached(&mut self, now: Instant) {
        self.due = Some(now + ATTACHED_DELAY);
    }

    /// Returns whether the daemon should have answered by now.
    fn is_late(&self, now: Instant) -> bool {
        self.started.is_some_and(|started| now.saturating_duration_since(started) > START_LIMIT)
    }

    fn started(&mut self, now: Instant) {
        self.started = Some(now);
        // In case the start itself fails.
        self.due = Some(now + self.delay);
    }

    /// Returns the delay after the daemon has ended.
    fn ended(&mut self, now: Instant) -> Duration {
        let ran = self.started.map(|started| now.saturating_duration_since(started));
        if ran.is_some_and(|ran| ran >= STABLE) {
            self.delay = FIRST_DELAY;
        }
        let delay = self.delay;
        self.due = Some(now + delay);
        self.delay = delay.saturating_mul(2).min(LONGEST_DELAY);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_ends_is_started_again_later_each_time() {
        let (mut restart, mut now) = (Restart::default(), Instant::now());
        assert!(restart.is_due(now));
        let mut delays = Vec::new();
        for _ in 0..7 {
            restart.started(now);
            assert!(!restart.is_late(now) && restart.is_late(now + START_LIMIT + INTERVAL));
            let delay = restart.ended(now);
            assert!(!restart.is_due(now) && restart.is_due(now + delay));
            delays.push(delay.as_secs());
            now += delay;
        }
        assert_eq!(delays, [2, 4, 8, 16, 32, 60, 60]);
        restart.started(now);
        assert_eq!(restart.ended(now + STABLE), FIRST_DELAY, "it had run for a while");
        restart.attached(now + STABLE);
        assert!(!restart.is_due(now + STABLE + FIRST_DELAY), "another program starts it");
    }

    #[test]
    fn a_node_that_was_taken_over_cannot_announce_without_bound() {
        let list = |count: usize| {
            let networks = vec!["10.0.0.0/8".parse().unwrap(); count];
            parse(&serde_json::to_vec(&ToGuest::Announce(networks)).unwrap())
        };
        assert!(list(MAX_ANNOUNCED).is_ok());
        assert_eq!(list(MAX_ANNOUNCED + 1).unwrap_err(), format!("{} networks", MAX_ANNOUNCED + 1));
        assert!(parse(b"{").is_err());
    }
}
