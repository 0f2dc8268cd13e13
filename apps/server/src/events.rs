//! The events of a server, for the program of `on-event` and the webhook of `[events]`.
//!
//! A program gets a JSON object in the variable `ADIT_EVENT`. Events wait in a bounded queue for a task of their own, so that a
//! slow receiver delays neither clients nor the control thread. Events beyond the queue are dropped, and the next object counts
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;
use adit_runtime::log;
use adit_runtime::metrics::{Samples, table};
use adit_runtime::paths::Paths;
use adit_runtime::programs::{self, Call, Program, Setup, Variables};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::pam;
use super::settings::Settings;
use super::webhook::Webhook;

/// The maximum number of events that wait for each receiver.
pub(super) const QUEUE_LIMIT: usize = 256;

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

/// The object that a receiver gets.
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

/// An event in a queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The time of the event, in seconds since 1970.
    pub(super) time: u64,
    /// The number of events that were dropped before it.
    pub(super) dropped: u64,
    pub(super) event: Event,
}

impl Waiting {
    /// Returns the object, with another number of dropped events.
    pub(super) fn object(&self, server: &str, dropped: u64) -> String {
        let object = Object { time: self.time, server, event: &self.event, dropped };
        serde_json::to_string(&object).unwrap_or_default()
    }
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

/// What became of a receiver's events.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) delivered: AtomicU64,
    /// The receiver failed.
    pub(super) failed: AtomicU64,
    /// The queue was full.
    dropped: AtomicU64,
}

/// The queue and the task of a receiver.
#[derive(Debug)]
struct Receiver {
    /// The name in metrics and the log.
    name: &'static str,
    queue: Option<mpsc::Sender<Waiting>>,
    task: JoinHandle<()>,
    counts: Arc<Counts>,
    /// The number of events that were dropped since the last one in the queue.
    dropped: u64,
}

impl Receiver {
    /// Starts the task that `deliver` returns.
    fn start<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        deliver: impl FnOnce(mpsc::Receiver<Waiting>, Arc<Counts>) -> F,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_LIMIT);
        let counts = Arc::new(Counts::default());
        let task = tokio::spawn(deliver(waiting, Arc::clone(&counts)));
        Self { name, queue: Some(queue), task, counts, dropped: 0 }
    }

    fn send(&mut self, event: &Event) {
        let Some(queue) = &self.queue else { return };
        let (time, dropped) = (unix_time().0, self.dropped);
        if queue.try_send(Waiting { time, dropped, event: event.clone() }).is_ok() {
            self.dropped = 0;
            return;
        }
        if self.dropped == 0 {
            tracing::warn!("events: the {} is too slow: events are dropped", self.name);
        }
        self.dropped = self.dropped.saturating_add(1);
        self.counts.dropped.fetch_add(1, Relaxed);
    }
}

/// The events of a running server.
#[derive(Debug, Default)]
pub(super) struct Events(Vec<Receiver>);

impl Events {
    /// Starts the tasks of the receivers. Call it inside a tokio runtime.
    pub(super) fn start(paths: &Paths, settings: &Settings, webhook: Option<Webhook>) -> Self {
        let mut receivers = Vec::new();
        let server = &settings.host;
        if let Some(program) = program(paths, settings) {
            receivers.push(Receiver::start("program", |waiting, counts| {
                run(program, server.clone(), waiting, counts)
            }));
        }
        if let Some(webhook) = webhook {
            receivers.push(Receiver::start("webhook", |waiting, counts| {
                webhook.deliver(server.clone(), waiting, counts)
            }));
        }
        Self(receivers)
    }

    /// Adds an event to the queues.
    pub(super) fn send(&mut self, event: &Event) {
        self.0.iter_mut().for_each(|receiver| receiver.send(event));
    }

    /// Adds the counters to the samples.
    pub(super) fn measure(&self, samples: &mut Samples) {
        for Receiver { name, counts, .. } in &self.0 {
            for (result, count) in [
                ("delivered", &counts.delivered),
                ("failed", &counts.failed),
                ("dropped", &counts.dropped),
            ] {
                samples.count(&table::EVENTS, [name, result], count.load(Relaxed));
            }
        }
    }

    /// Waits for the events in the queues, but not for long.
    pub(super) async fn finish(&mut self) {
        self.0.iter_mut().for_each(|receiver| receiver.queue = None);
        let tasks = async {
            for receiver in &mut self.0 {
                // A task that panicked has nothing left to do.
                let _ = (&mut receiver.task).await;
            }
        };
        let _ = timeout(FAREWELL, tasks).await;
        self.0.iter().for_each(|receiver| receiver.task.abort());
    }
}

/// Runs the program for each event, one after another.
async fn run(
    program: Program,
    server: String,
    mut queue: mpsc::Receiver<Waiting>,
    counts: Arc<Counts>,
) {
    let mut failed = false;
    while let Some(waiting) = queue.recv().await {
        let object = waiting.object(&server, waiting.dropped);
        let call = Call {
            program: program.clone(),
            args: vec![waiting.event.name().to_owned()],
            env: vec![("PATH".into(), PATH.into()), (VARIABLE.into(), object)],
            files: Vec::new(),
            timeout: Some(LIMIT),
        };
        let status = programs::run(call).await.status;
        let count = if status.is_success() { &counts.delivered } else { &counts.failed };
        count.fetch_add(1, Relaxed);
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
        let waiting = Waiting { time: 7, dropped: 0, event: refused() };
        assert_eq!(
            waiting.object("vpn", 0),
            r#"{"time":7,"server":"vpn","event":"client-refused","name":"a","from":"h","reason":"r"}"#
        );
        assert!(waiting.object("vpn", 2).ends_with(r#""dropped":2}"#));
        let value = serde_json::to_value(refused()).unwrap();
        assert_eq!(value["event"], refused().name());
    }

    #[tokio::test]
    async fn events_beyond_the_queue_are_dropped_and_counted() {
        let (queue, mut waiting) = mpsc::channel(1);
        let task = tokio::spawn(async {});
        let receiver = Receiver {
            name: "program",
            queue: Some(queue),
            task,
            counts: Arc::default(),
            dropped: 0,
        };
        let mut events = Events(vec![receiver]);
        for _ in 0..3 {
            events.send(&refused());
        }
        let mut dropped = || waiting.try_recv().unwrap().dropped;
        assert_eq!(dropped(), 0);
        events.send(&refused());
        assert_eq!(dropped(), 2);
        events.send(&refused());
        assert_eq!(dropped(), 0, "they are counted once");
        let mut samples = Samples::default();
        events.measure(&mut samples);
        let text = samples.text();
        assert!(
            text.contains("adit_events_total{receiver=\"program\",result=\"dropped\"} 2\n"),
            "{text}"
        );
        // Without a receiver, nothing is kept.
        Events::default().send(&refused());
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
