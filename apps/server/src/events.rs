//! `on-event`: a program that is run for each event of the server, with a JSON object in the variable `ADIT_EVENT`.
//!
//! Events wait in a bounded queue for a task of their own, so that a slow program delays neither clients nor the control thread. Events
//! beyond the queue are dropped, and the next object counts them.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;
use adit_runtime::log;
use adit_runtime::paths::Paths;
use adit_runtime::programs::{self, Call, Program, Setup, Variables};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::pam;
use super::settings::Settings;

/// The maximum number of events that wait.
const QUEUE_LIMIT: usize = 256;

/// How long a program may take for one event.
const LIMIT: Duration = Duration::from_secs(30);

/// How long the end of the server waits for the events before it.
const FAREWELL: Duration = Duration::from_secs(3);

/// The variable with the JSON object.
const VARIABLE: &str = "ADIT_EVENT";

/// The directories in which a program finds others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Event {
    /// A client is connected.
    ClientConnected {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        from: String,
        addresses: Vec<String>,
    },
    /// A client's session has ended.
    ClientDisconnected { name: String, reason: String, received: u64, sent: u64 },
    /// An authenticated client was refused.
    ClientRefused { name: String, from: String, reason: String },
    /// A certificate expires soon; once a day.
    CertificateExpires { whose: String, days_left: i64 },
    /// A client's sessions end because of a limit.
    LimitReached { name: String, reason: String },
    /// Files could not be read again.
    ReloadFailed { reason: String },
}

impl Event {
    fn name(&self) -> &'static str {
        match self {
            Self::ClientConnected { .. } => "client-connected",
            Self::ClientDisconnected { .. } => "client-disconnected",
            Self::ClientRefused { .. } => "client-refused",
            Self::CertificateExpires { .. } => "certificate-expires",
            Self::LimitReached { .. } => "limit-reached",
            Self::ReloadFailed { .. } => "reload-failed",
        }
    }
}

/// The object that a program gets.
#[derive(Debug, Serialize)]
struct Object<'a> {
    /// The time in seconds since 1970.
    time: u64,
    /// The name that clients dial.
    server: &'a str,
    #[serde(flatten)]
    event: &'a Event,
    /// The number of events that were dropped before this one.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Returns what the runner of programs may run: logins by PAM, and the program of `on-event`.
pub(super) fn setup(paths: &Paths, settings: &Settings) -> Result<Option<Setup>, Fault> {
    let pam = pam::setup(paths, settings)?;
    let Some(program) = program(paths, settings) else { return Ok(pam) };
    let mut setup =
        pam.unwrap_or_else(|| Setup { temporary: paths.run.clone(), ..Setup::default() });
    setup.programs.insert(program);
    setup.variables = Variables {
        names: [VARIABLE.to_owned()].into(),
        fixed: BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]),
        ..Variables::default()
    };
    Ok(Some(setup))
}

/// A relative path is relative to the settings file.
fn program(paths: &Paths, settings: &Settings) -> Option<Program> {
    let path = paths.config.join(settings.on_event.as_ref()?);
    Some(Program { path: path.to_string_lossy().into_owned(), args: Vec::new() })
}

/// The events of a running server.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: Option<mpsc::Sender<(u64, Event)>>,
    task: Option<JoinHandle<()>>,
    dropped: u64,
}

impl Events {
    /// Starts the task, if there is a program. Call it inside a tokio runtime.
    pub(super) fn start(paths: &Paths, settings: &Settings) -> Self {
        let Some(program) = program(paths, settings) else { return Self::default() };
        let (queue, waiting) = mpsc::channel(QUEUE_LIMIT);
        let task = tokio::spawn(deliver(program, settings.host.clone(), waiting));
        Self { queue: Some(queue), task: Some(task), dropped: 0 }
    }

    /// Adds an event to the queue.
    pub(super) fn send(&mut self, event: Event) {
        let Some(queue) = &self.queue else { return };
        match queue.try_send((self.dropped, event)) {
            Ok(()) => self.dropped = 0,
            Err(_) => {
                if self.dropped == 0 {
                    tracing::warn!("on-event: the program is too slow: events are dropped");
                }
                self.dropped = self.dropped.saturating_add(1);
            }
        }
    }

    /// Waits for the events in the queue, but not for long.
    pub(super) async fn finish(&mut self) {
        self.queue = None;
        if let Some(task) = self.task.take() {
            let abort = task.abort_handle();
            if timeout(FAREWELL, task).await.is_err() {
                abort.abort();
            }
        }
    }
}

/// Runs the program for each event, one after another.
async fn deliver(program: Program, server: String, mut waiting: mpsc::Receiver<(u64, Event)>) {
    let mut failed = false;
    while let Some((dropped, event)) = waiting.recv().await {
        let object = Object { time: unix_time().0, server: &server, event: &event, dropped };
        let object = serde_json::to_string(&object).unwrap_or_default();
        let call = Call {
            program: program.clone(),
            args: vec![event.name().to_owned()],
            env: vec![("PATH".into(), PATH.into()), (VARIABLE.into(), object)],
            files: Vec::new(),
            timeout: Some(LIMIT),
        };
        let status = programs::run(call).await.status;
        // A program that keeps failing is reported once.
        if !status.is_success() && !failed {
            let status = log::clean(&format!("{status:?}"));
            tracing::warn!("on-event: {} failed: {status}", program.path);
        }
        failed = !status.is_success();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Event {
        Event::ClientRefused { name: "a".into(), from: "h".into(), reason: "r".into() }
    }

    #[test]
    fn an_event_is_one_object_with_its_name() {
        let event = refused();
        let object = Object { time: 7, server: "vpn", event: &event, dropped: 0 };
        assert_eq!(
            serde_json::to_string(&object).unwrap(),
            r#"{"time":7,"server":"vpn","event":"client-refused","name":"a","from":"h","reason":"r"}"#
        );
        let object = Object { dropped: 2, ..object };
        assert!(serde_json::to_string(&object).unwrap().ends_with(r#""dropped":2}"#));
        let value = serde_json::to_value(&event).unwrap();
        assert_eq!(value["event"], event.name());
    }

    #[test]
    fn events_beyond_the_queue_are_dropped_and_counted() {
        let (queue, mut waiting) = mpsc::channel(1);
        let mut events = Events { queue: Some(queue), task: None, dropped: 0 };
        for _ in 0..3 {
            events.send(refused());
        }
        assert_eq!(events.dropped, 2);
        assert_eq!(waiting.try_recv().unwrap(), (0, refused()));
        events.send(refused());
        assert_eq!(waiting.try_recv().unwrap(), (2, refused()));
        // Without a program, nothing is kept.
        Events::default().send(refused());
    }

    #[test]
    fn the_runner_may_run_the_program_with_the_variable_only() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let text = "host = \"h\"\nnetwork = \"10.9.9.0/24\"\non-event = \"hook.sh\"\n";
        let settings = Settings::parse(text, std::path::Path::new("server.toml")).unwrap();
        let setup = setup(&paths, &settings).unwrap().unwrap();
        let path = paths.config.join("hook.sh").to_string_lossy().into_owned();
        assert!(setup.programs.contains(&Program { path, args: Vec::new() }));
        assert!(setup.variables.permit(VARIABLE, "{}"));
        assert!(!setup.variables.permit("LD_PRELOAD", "/tmp/x.so"));
    }
}
