//! The main loop of all long-running programs. It handles signals, the control socket, the watchdog, ticks, and the program's own events.
//!
//! ```text
//!   signals         ──► signal  ─┐
//!   control socket  ──► request  │
//!   metrics thread  ──► query    │
//!   interval        ──► tick     ├──► Ended
//!   Instance::next  ──► handle  ─┘
//! ```
//!
//! Each program defines what to do before and after the loop. For example, a client notifies its server, and a bridge
//! enables its ports again.

use std::path::Path;
use std::time::Duration;

use adit_engine::Instant;
use adit_linux::notify::Notifier;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::{now, unix_time};
use crate::control::{ControlRequest, Request, Response, Server, StatusReport};
use crate::fault::Fault;
use crate::metrics::{self, Head, Listener, PeerSample, Query, Samples, table};
use crate::signals::{Signal, Signals};

/// The default interval of ticks.
const TICK: Duration = Duration::from_secs(1);

/// The shortest interval between notifications to the service manager.
const MIN_ALIVE: Duration = Duration::from_millis(100);

/// A long-running program: a server, a client, a bridge or a node.
///
/// Only [`Instance::next`] may be cancelled. The other methods run to completion.
#[expect(async_fn_in_trait, reason = "an instance stays on the thread that runs it")]
pub trait Instance {
    /// The instance's own events.
    type Event;
    /// The reason why the instance ends on its own.
    type Reason;

    /// Returns the role in the status report.
    fn role(&self) -> &'static str;

    /// Returns the interval of [`Instance::tick`].
    fn tick_interval(&self) -> Duration {
        TICK
    }

    /// Waits for the next event. Cancel-safe.
    ///
    /// # Errors
    /// The instance cannot continue.
    async fn next(&mut self) -> Result<Self::Event, Fault>;

    /// Handles an event. Returns the reason if the instance ends.
    ///
    /// # Errors
    /// The instance cannot continue.
    async fn handle(
        &mut self,
        event: Self::Event,
    ) -> Result<Option<EndReason<Self::Reason>>, Fault>;

    /// Performs the periodic work. Returns the reason if the instance ends.
    ///
    /// # Errors
    /// The instance cannot continue.
    async fn tick(&mut self) -> Result<Option<EndReason<Self::Reason>>, Fault>;

    /// Chooses the reaction to a signal.
    fn signal(&mut self, signal: Signal) -> Reaction {
        if matches!(signal, Signal::User1 | Signal::User2) {
            self.log_state();
        }
        signal.into()
    }

    /// Logs the state, after SIGUSR1 or SIGUSR2 from an operator.
    fn log_state(&mut self) {}

    /// Carries out [`Reaction::Reload`]. Returns whether everything could be read again.
    fn reload(&mut self) -> bool;

    /// Answers a request other than [`Request::Status`] and [`Request::Stop`].
    fn request(&mut self, request: Request) -> Response;

    /// Returns the number of sessions that end with the instance, for the response to [`Request::Stop`].
    fn sessions(&self) -> usize {
        1
    }

    /// Completes a status report, in which the fields common to all instances are already set, except for what
    /// [`Instance::report_peers`] adds.
    fn report(&mut self, report: &mut StatusReport);

    /// Adds the peers to a status report. There may be thousands, so metrics get them from [`Instance::sample_peers`].
    fn report_peers(&mut self, report: &mut StatusReport) {
        let _ = report;
    }

    /// Adds the metrics that do not follow from a status report.
    fn measure(&mut self, samples: &mut Samples) {
        let _ = samples;
    }

    /// Returns the first [`metrics::SLICE`] peers whose numbers are higher than `after`, in ascending order.
    fn sample_peers(&mut self, after: Option<u64>) -> Vec<PeerSample> {
        let _ = after;
        Vec::new()
    }
}

/// The reaction to a signal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Do nothing.
    Ignore,
    /// Read files again. A client also connects again.
    Reload,
    /// End, after a notice to the peers.
    Stop,
    /// End, because the process restarts and reads its configuration again.
    Restart,
}

/// The default reactions.
impl From<Signal> for Reaction {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Terminate | Signal::Interrupt => Self::Stop,
            Signal::Hangup => Self::Reload,
            Signal::User1 | Signal::User2 => Self::Ignore,
        }
    }
}

/// The reason why [`run`] returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason<R> {
    /// A signal whose reaction is [`Reaction::Stop`].
    Signal(Signal),
    /// A signal whose reaction is [`Reaction::Restart`].
    Restart,
    /// A request from the control socket, or from the owner of the instance.
    Asked,
    /// The instance ended on its own.
    Stopped(R),
}

/// The external inputs of an instance.
#[derive(Debug)]
pub struct Controls {
    /// The signals.
    pub signals: Signals,
    /// The control socket.
    pub socket: Option<Server>,
    /// The service manager, if it expects notifications.
    pub notifier: Option<Notifier>,
    /// The socket for metrics.
    pub metrics: Option<Listener>,
}

impl Controls {
    /// Opens the control socket, takes over the signals and connects to the service manager. Call it before privileges are
    /// dropped.
    ///
    /// # Errors
    /// Fails if the control socket or the socket for metrics cannot be opened. The error names the remedy.
    pub fn open(socket: &Path, metrics: Option<&metrics::Config>) -> Result<Self, Fault> {
        Ok(Self {
            socket: Some(Server::open(socket)?),
            metrics: metrics.map(Listener::open).transpose()?,
            signals: Signals::new()?,
            notifier: Notifier::from_env().ok().flatten(),
        })
    }

    /// Reports to the service manager that start-up is complete.
    pub fn ready(&self, status: &str) {
        // If this fails, only the service manager is affected.
        let _ = self.notifier.as_ref().map(|notifier| notifier.ready(status));
    }

    /// Reports to the service manager that the instance is stopping.
    pub fn stopping(&self) {
        let _ = self.notifier.as_ref().map(Notifier::stopping);
    }

    fn alive(&self) {
        let _ = self.notifier.as_ref().map(Notifier::alive);
    }
}

/// Runs an instance until it ends. Returns the reason.
///
/// # Errors
/// The instance cannot continue.
pub async fn run<I: Instance>(
    instance: &mut I,
    controls: &mut Controls,
) -> Result<EndReason<I::Reason>, Fault> {
    let started = now();
    // Only now have the privileges been dropped that a new thread would keep.
    let mut metrics = controls.metrics.take().map(Listener::serve).transpose()?;
    let mut reloads = Reloads { successful: true, time: unix_time().0 };
    let name = controls.socket.as_ref().map(Server::name).unwrap_or_default();
    let mut ticks = interval(instance.tick_interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Send notifications twice as often as the manager expects.
    let watchdog = controls.notifier.as_ref().and_then(Notifier::watchdog);
    let mut alive = interval(watchdog.map_or(TICK, |every| every / 2).max(MIN_ALIVE));
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let ended = tokio::select! {
            biased;
            signal = controls.signals.next() => match instance.signal(signal) {
                Reaction::Ignore => None,
                Reaction::Reload => {
                    reloads.record(instance.reload());
                    None
                }
                Reaction::Stop => Some(EndReason::Signal(signal)),
                Reaction::Restart => Some(EndReason::Restart),
            },
            (request, reply) = next_request(&mut controls.socket) => {
                let stop = request == Request::Stop;
                let hand_over = matches!(request, Request::HandOver { .. });
                let reload = matches!(request, Request::Reload | Request::ReloadClients);
                let response = respond(instance, request, &name, started);
                if reload {
                    reloads.record(!matches!(response, Response::Error { .. }));
                }
                let stop = stop || hand_over && matches!(response, Response::Done { .. });
                // The requesting program may be gone.
                let _ = reply.send(response);
                stop.then_some(EndReason::Asked)
            }
            query = next_query(&mut metrics) => {
                sample(instance, query, &name, started, &reloads);
                None
            }
            _ = alive.tick(), if watchdog.is_some() => {
                controls.alive();
                None
            }
            _ = ticks.tick() => instance.tick().await?,
            event = instance.next() => instance.handle(event?).await?,
        };
        if let Some(ended) = ended {
            return Ok(ended);
        }
    }
}

/// Waits for the next request from the control socket, or forever if there is no socket.
async fn next_request(socket: &mut Option<Server>) -> ControlRequest {
    match socket {
        Some(server) => server.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for the next query of the metrics thread, or forever if there is none.
async fn next_query(metrics: &mut Option<metrics::Server>) -> Query {
    match metrics {
        Some(server) => server.next().await,
        None => std::future::pending().await,
    }
}

/// The last attempt to read the configuration.
#[derive(Debug)]
struct Reloads {
    successful: bool,
    /// The time of the last successful one, in seconds since 1970.
    time: u64,
}

impl Reloads {
    fn record(&mut self, successful: bool) {
        self.successful = successful;
        if successful {
            self.time = unix_time().0;
        }
    }
}

/// Answers a query of the metrics thread, which may have given up.
fn sample(
    instance: &mut impl Instance,
    query: Query,
    name: &str,
    started: Instant,
    reloads: &Reloads,
) {
    match query {
        Query::Head(reply) => {
            let mut head = Head { report: new_report(instance, name, started), ..Head::default() };
            instance.report(&mut head.report);
            let samples = &mut head.samples;
            instance.measure(samples);
            samples.count(&table::RELOAD_SUCCESSFUL, [], reloads.successful.into());
            samples.count(&table::RELOAD_TIME, [], reloads.time);
            let _ = reply.send(head);
        }
        Query::Peers(after, reply) => {
            let _ = reply.send(instance.sample_peers(after));
        }
    }
}

/// Returns a report with the fields common to all instances.
fn new_report(instance: &impl Instance, name: &str, started: Instant) -> StatusReport {
    let uptime_s = now().since(started).as_secs();
    StatusReport {
        version: env!("CARGO_PKG_VERSION").into(),
        role: instance.role().into(),
        instance: name.into(),
        state: "running".into(),
        pid: std::process::id(),
        started: unix_time().0.saturating_sub(uptime_s),
        uptime_s,
        ..StatusReport::default()
    }
}

fn respond(
    instance: &mut impl Instance,
    request: Request,
    name: &str,
    started: Instant,
) -> Response {
    match request {
        Request::Status => {
            let mut report = new_report(instance, name, started);
            instance.report(&mut report);
            instance.report_peers(&mut report);
            Response::Status(Box::new(report))
        }
        Request::Stop => Response::Done { count: instance.sessions() },
        other => {
            let mut response = instance.request(other);
            if let Response::Filter(report) = &mut response {
                report.instance = name.into();
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{FilterReport, request};

    /// An instance that counts ticks and answers every request with a filter's report.
    #[derive(Default)]
    struct Counter {
        ticks: u64,
    }

    impl Instance for Counter {
        type Event = Fault;
        type Reason = u64;

        fn role(&self) -> &'static str {
            "counter"
        }

        fn tick_interval(&self) -> Duration {
            Duration::from_millis(1)
        }

        async fn next(&mut self) -> Result<Fault, Fault> {
            std::future::pending().await
        }

        async fn handle(&mut self, event: Fault) -> Result<Option<EndReason<u64>>, Fault> {
            Err(event)
        }

        async fn tick(&mut self) -> Result<Option<EndReason<u64>>, Fault> {
            self.ticks += 1;
            Ok((self.ticks == 100_000).then_some(EndReason::Stopped(self.ticks)))
        }

        fn reload(&mut self) -> bool {
            true
        }

        fn request(&mut self, _: Request) -> Response {
            Response::Filter(Box::default())
        }

        fn report(&mut self, report: &mut StatusReport) {
            report.state = "counting".into();
        }
    }

    #[tokio::test]
    async fn an_instance_that_is_asked_to_stop_answers_before_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one.sock");
        let mut controls = Controls {
            signals: Signals::none(),
            socket: Some(Server::open(&path).unwrap()),
            notifier: None,
            metrics: None,
        };
        let asked = tokio::task::spawn_blocking(move || {
            [Request::Status, Request::Reload, Request::Stop].map(|r| request(&path, &r).unwrap())
        });
        let mut counter = Counter::default();
        assert_eq!(run(&mut counter, &mut controls).await, Ok(EndReason::Asked));
        let [status, filter, stop] = asked.await.unwrap();
        let Response::Status(report) = status else { panic!("{status:?}") };
        assert_eq!(
            (report.role.as_str(), report.instance.as_str(), report.state.as_str(), report.pid),
            ("counter", "one", "counting", std::process::id())
        );
        let named = FilterReport { instance: "one".into(), ..FilterReport::default() };
        assert_eq!(filter, Response::Filter(Box::new(named)));
        assert_eq!(stop, Response::Done { count: 1 });
    }

    #[tokio::test]
    async fn an_instance_ends_by_itself() {
        let mut controls =
            Controls { signals: Signals::none(), socket: None, notifier: None, metrics: None };
        let ended = run(&mut Counter { ticks: 99_998 }, &mut controls).await;
        assert_eq!(ended, Ok(EndReason::Stopped(100_000)));
    }
}
