//! The steps of a change of state, between which the configuration's programs run.
//!
//! While a program runs, the engine goes on, but its events wait, so that programs and changes of the host happen in
//! order. Signals, the control socket and the host are served meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::CertificateFacts;
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientEvent, TunnelConfig};
use adit_openvpn_service::compat_log;
use adit_runtime::driver::Event;
use adit_runtime::fault::Fault;
use adit_runtime::host::{ApplyOutcome, Capture, HostHandle, HostPlan};
use adit_runtime::instance::EndReason;
use adit_runtime::programs::{self, Finished};
use adit_runtime::signals::{Signal, Signals};

use super::engines::DrivenEngine;
use super::{Running, notes};
use crate::openvpn::scripts::{Context, Script, Scripts};

/// The maximum number of steps that wait. Beyond it, the engine waits too.
pub(super) const MAX_STEPS: usize = 64;

/// How long the end waits for a program that was killed.
const KILLED: Duration = Duration::from_secs(2);

/// A step.
#[derive(Debug)]
pub(super) enum Step {
    /// Handle an event.
    Event(Box<Event<ClientEvent>>),
    /// Run a program.
    Run(Script),
    /// Tell programs about a tunnel.
    Variables(Box<TunnelConfig>),
    /// Tell programs about the configured tunnel, whose device was kept.
    KeptVariables,
    /// Forget what programs know about the session.
    Forget,
    /// Give the device its addresses.
    Addresses(Box<HostPlan>),
    /// Add the routes to the addresses.
    Routes(Box<HostPlan>),
    /// Remove addresses and routes.
    Close,
    /// Let programs run as the configured user from now on.
    DropPrivileges,
    /// Take these steps later (`route-delay`). Nothing else waits for them.
    Later(Duration, Vec<Self>),
    /// The tunnel is up.
    Complete(Box<TunnelConfig>),
    /// The session has ended.
    SessionEnded,
}

/// Steps that wait for the end of `route-delay`.
#[derive(Debug)]
pub(super) struct Delayed {
    at: tokio::time::Instant,
    steps: Vec<Step>,
}

impl Delayed {
    /// Waits until the steps are due. Cancel-safe.
    pub(super) async fn due(delayed: Option<&Self>) {
        super::until(delayed.map(|delayed| delayed.at)).await;
    }

    /// Puts another tunnel and its plan in the place of those that wait.
    pub(super) fn replace(&mut self, tunnel: &TunnelConfig, plan: &HostPlan) {
        for step in &mut self.steps {
            match step {
                Step::Routes(waiting) => (**waiting).clone_from(plan),
                Step::Complete(waiting) => (**waiting).clone_from(tunnel),
                _ => {}
            }
        }
    }
}

/// The programs of a client, and the one that runs.
pub(super) struct Hooked {
    pub(super) scripts: Scripts,
    running: Option<(Script, programs::Running)>,
    /// Whether the device is open, as programs see it: `up` has run, and `down` has not.
    open: bool,
    /// The plan with which the device is opened again at once after it was closed.
    early: Option<HostPlan>,
    /// Whether the device has its routes, and `route-up` has run.
    routed: bool,
    /// Whether the programs run as the configured user.
    dropped: bool,
    /// Whether a session has ended before.
    reconnected: bool,
    /// The effect of the current plan.
    applied: ApplyOutcome,
}

impl Hooked {
    /// Opens the device of an end whose addresses are configured, before the other end is known.
    ///
    /// # Errors
    /// The device cannot be set up, or a program failed.
    pub(super) async fn open(
        mut scripts: Scripts,
        early: Option<&HostPlan>,
        host: &mut HostHandle,
    ) -> Result<Self, Fault> {
        let open = early.is_some();
        if let Some(plan) = early {
            notes(host.apply(&plan.before_routes()).await?);
            scripts.tunnel(host.device(), &TunnelConfig::default(), false);
            scripts.run(Script::DnsUp).await?;
            scripts.run(Script::Up(Context::Init)).await?;
            if scripts.route_delay().is_none() {
                notes(host.change(plan).await?);
                scripts.run(Script::RouteUp).await?;
            }
            scripts.drop_privileges().await?;
        }
        let routed = open && scripts.route_delay().is_none();
        Ok(Self {
            scripts,
            running: None,
            open,
            early: early.cloned(),
            routed,
            dropped: open,
            reconnected: false,
            applied: ApplyOutcome::Same,
        })
    }

    /// Waits for the end of the running program. Cancel-safe.
    pub(super) async fn ended(hooked: &mut Option<Self>) -> Finished {
        match hooked.as_mut().and_then(|hooked| hooked.running.as_mut()) {
            Some((_, running)) => running.await,
            None => std::future::pending().await,
        }
    }

    /// Returns the steps that close the device after the end of a session, and open it again if its addresses are
    /// configured.
    fn closing(&self) -> Vec<Step> {
        if !self.open {
            return vec![Step::Close, Step::Forget];
        }
        if self.scripts.keeps_device() {
            let mut steps = vec![Step::Run(Script::DnsDown)];
            if self.scripts.up_restart() {
                steps.push(Step::Run(Script::Down(Context::Restart)));
            }
            steps.push(Step::Forget);
            if self.scripts.up_restart() && self.early.is_some() {
                steps.push(Step::KeptVariables);
                steps.push(Step::Run(Script::Up(Context::Restart)));
            }
            if self.early.is_some() {
                steps.push(Step::Run(Script::DnsUp));
            }
            return steps;
        }
        let mut steps = self.closing_for_good();
        steps.push(Step::Forget);
        if let Some(plan) = &self.early {
            steps.push(Step::Variables(Box::default()));
            steps.extend(addressing(plan));
            if self.scripts.route_delay().is_none() {
                steps.extend(routing(plan));
            }
        }
        steps
    }

    fn closing_for_good(&self) -> Vec<Step> {
        let down = || Step::Run(Script::Down(Context::Init));
        let mut steps = vec![Step::Run(Script::DnsDown), Step::Run(Script::RoutePreDown)];
        if self.scripts.down_pre() {
            steps.extend([down(), Step::Close]);
        } else {
            steps.extend([Step::Close, down()]);
        }
        steps
    }
}

/// Returns the steps that set up the device without its routes.
fn addressing(plan: &HostPlan) -> [Step; 3] {
    [
        Step::Addresses(Box::new(plan.before_routes())),
        Step::Run(Script::DnsUp),
        Step::Run(Script::Up(Context::Init)),
    ]
}

/// Returns the steps that add the routes.
fn routing(plan: &HostPlan) -> [Step; 2] {
    [Step::Routes(Box::new(plan.clone())), Step::Run(Script::RouteUp)]
}

impl<E: DrivenEngine> Running<'_, E> {
    /// Takes steps until one has to wait for a program. Returns the reason if the client ends.
    pub(super) async fn advance(&mut self) -> Result<Option<Reason>, Fault> {
        while self.hooked.as_ref().is_none_or(|hooked| hooked.running.is_none()) {
            let Some(step) = self.steps.pop_front() else { return Ok(None) };
            match step {
                Step::Event(event) => {
                    if let Some(stop) = self.handle_event(*event).await? {
                        return Ok(Some(stop));
                    }
                }
                Step::Run(script) => {
                    if let Some(hooked) = &mut self.hooked {
                        hooked.running =
                            hooked.scripts.start(script).map(|running| (script, running));
                    }
                }
                Step::Variables(tunnel) => {
                    if let Some(hooked) = &mut self.hooked {
                        hooked.scripts.tunnel(self.host.device(), &tunnel, false);
                    }
                }
                Step::KeptVariables => {
                    if let Some(hooked) = &mut self.hooked {
                        let tunnel = TunnelConfig::default();
                        hooked.scripts.tunnel(self.host.device(), &tunnel, true);
                    }
                }
                Step::Forget => {
                    if let Some(hooked) = &mut self.hooked {
                        hooked.scripts.forget();
                    }
                }
                Step::Addresses(plan) => {
                    notes(self.host.apply(&plan).await?);
                    self.set_open(true);
                }
                Step::Routes(plan) => {
                    let applied = self.apply_plan(&plan).await?;
                    if let Some(hooked) = &mut self.hooked {
                        hooked.applied = applied;
                        hooked.routed = true;
                    }
                }
                Step::Later(delay, steps) => {
                    let at = tokio::time::Instant::now() + delay;
                    self.delayed = Some(Delayed { at, steps });
                }
                Step::Close => {
                    self.set_open(false);
                    self.host.undo().await;
                    self.closed().await;
                }
                Step::DropPrivileges => {
                    if let Some(hooked) = &self.hooked {
                        hooked.scripts.drop_privileges().await?;
                    }
                }
                Step::Complete(tunnel) => {
                    let applied = match &mut self.hooked {
                        Some(hooked) => std::mem::replace(&mut hooked.applied, ApplyOutcome::Same),
                        None => ApplyOutcome::Same,
                    };
                    self.completed(*tunnel, &applied).await;
                }
                Step::SessionEnded => self.session_ended(),
            }
        }
        Ok(None)
    }

    /// Puts steps before those that wait.
    pub(super) fn schedule(&mut self, steps: Vec<Step>) {
        for step in steps.into_iter().rev() {
            self.steps.push_front(step);
        }
    }

    /// Handles the end of a program.
    ///
    /// # Errors
    /// The process cannot continue without the program.
    pub(super) fn program_ended(&mut self, finished: &Finished) -> Result<(), Fault> {
        let running = self.hooked.as_mut().and_then(|hooked| hooked.running.take());
        match running {
            Some((script, _)) => script.judge(finished),
            None => Ok(()),
        }
    }

    fn set_open(&mut self, open: bool) {
        if let Some(hooked) = &mut self.hooked {
            hooked.open = open;
            hooked.routed &= open;
        }
    }

    /// Takes the steps that were waiting for the end of `route-delay`.
    pub(super) fn delay_is_over(&mut self) {
        if let Some(delayed) = self.delayed.take() {
            self.schedule(delayed.steps);
        }
    }

    /// Takes over the address of a server that has answered.
    pub(super) fn server_answered(&mut self, remote: SocketAddr) {
        let remote = self.relay.unwrap_or(remote);
        self.answered = Some(remote);
        if let Some(hooked) = &mut self.hooked {
            hooked.scripts.environment().untrusted(remote);
        }
    }

    /// Takes over the other end's address once it is authenticated.
    pub(super) fn authenticated(&mut self, name: &str, certificates: &[CertificateFacts]) {
        let Some((hooked, remote)) = self.hooked.as_mut().zip(self.answered) else { return };
        hooked.scripts.certified(certificates);
        hooked.scripts.environment().untrusted(remote);
        hooked.scripts.authenticated(remote);
        hooked.scripts.environment().set_international("common_name", name);
        self.schedule(vec![Step::Run(Script::IpChange)]);
    }

    /// Runs `ipchange` for a server that has moved.
    pub(super) fn moved(&mut self, remote: SocketAddr) {
        if let Some(hooked) = &mut self.hooked {
            // With a static key, no address is known before it is authenticated.
            if !self.tls.is_empty() {
                hooked.scripts.environment().untrusted(remote);
            }
            hooked.scripts.authenticated(remote);
            // A program that still waits gets the newest address.
            if !self.steps.iter().any(|step| matches!(step, Step::Run(Script::IpChange))) {
                self.steps.push_back(Step::Run(Script::IpChange));
            }
        }
    }

    /// Sets up a tunnel with programs.
    pub(super) fn schedule_up(&mut self, tunnel: TunnelConfig, plan: HostPlan) {
        // A former session's routes need not be added any more.
        self.delayed = None;
        let device = self.host.device().map(str::to_owned);
        let Some(hooked) = &mut self.hooked else { return };
        let in_force = if hooked.routed { plan.clone() } else { plan.before_routes() };
        // The address of the server does not concern the device.
        let unchanged = self
            .host
            .plan()
            .is_some_and(|former| HostPlan { remote: plan.remote, ..former.clone() } == in_force);
        let mut routes = Vec::new();
        let mut steps = Vec::new();
        // With a static key, the tunnel's first packet authenticates the other end.
        if let (Some(remote), true) = (tunnel.remote, self.tls.is_empty()) {
            hooked.scripts.authenticated(remote);
            steps.push(Step::Run(Script::IpChange));
        }
        if !hooked.open {
            hooked.scripts.tunnel(device.as_deref(), &tunnel, false);
            steps.extend(addressing(&plan));
            routes.extend(routing(&plan));
        } else if unchanged || hooked.early.is_some() {
            // The device was kept, or opened before the other end was known.
            if hooked.early.is_none() && hooked.reconnected {
                hooked.scripts.tunnel(device.as_deref(), &tunnel, true);
            }
            steps.push(Step::Run(Script::DnsUp));
            if hooked.early.is_none() && hooked.scripts.up_restart() {
                steps.push(Step::Run(Script::Up(Context::Restart)));
            }
            if hooked.routed {
                steps.push(Step::Routes(Box::new(plan)));
            } else {
                routes.extend(routing(&plan));
            }
        } else {
            tracing::warn!(
                "NOTE: Pulled options changed on restart, will need to close and reopen TUN/TAP device."
            );
            steps.extend(hooked.closing_for_good());
            // `down` gets the addresses that were in use, so the new ones are set between the two.
            steps.push(Step::Variables(Box::new(tunnel.clone())));
            steps.extend(addressing(&plan));
            routes.extend(routing(&plan));
        }
        let drops = !std::mem::replace(&mut hooked.dropped, true);
        let delay = hooked.scripts.route_delay().filter(|_| !routes.is_empty());
        routes.extend(drops.then_some(Step::DropPrivileges));
        routes.push(Step::Complete(Box::new(tunnel)));
        match delay {
            Some(delay) => steps.push(Step::Later(delay, routes)),
            None => steps.extend(routes),
        }
        self.schedule(steps);
    }

    /// Handles the end of a session with programs.
    pub(super) fn schedule_down(&mut self, reason: &Reason) {
        self.delayed = None;
        let Some(hooked) = &mut self.hooked else { return };
        let signal = match reason {
            Reason::RestartRequested => "sigusr1",
            reason => compat_log::restart_cause(reason),
        };
        hooked.scripts.environment().set("signal", signal);
        hooked.reconnected = true;
        let mut steps = hooked.closing();
        steps.push(Step::SessionEnded);
        self.schedule(steps);
    }

    /// Records that addresses and routes are gone.
    pub(super) async fn closed(&mut self) {
        // Kill-switch rules stay in force, and keep unmarked queries in as well.
        self.driver.resolver().redirected = self.host.capture().await != Capture::default();
    }

    /// Ends the client: runs the last programs and undoes the changes to the machine.
    ///
    /// # Errors
    /// The client failed, or a program did.
    pub(super) async fn close(
        self,
        ended: Result<EndReason<Reason>, Fault>,
        signals: &mut Signals,
    ) -> Result<EndReason<Reason>, Fault> {
        let Self { driver, host, mut hooked, .. } = self;
        let mut outcome = Ok(());
        if let Some((_, running)) = hooked.as_mut().and_then(|hooked| hooked.running.take()) {
            running.kill();
            let _ = tokio::time::timeout(KILLED, running).await;
        }
        // As with openvpn, a fatal error ends the process without further programs.
        let mut hooked = hooked.filter(|hooked| hooked.open && ended.is_ok());
        let down = Script::Down(Context::Init);
        let down_pre = hooked.as_ref().is_some_and(|hooked| hooked.scripts.down_pre());
        if let (Some(hooked), Ok(reason)) = (&mut hooked, &ended) {
            let scripts = &mut hooked.scripts;
            let signal = end_signal(reason, scripts.notifies());
            scripts.environment().set("signal", signal);
            outcome = scripts.run_last(Script::DnsDown, signals).await;
            if outcome.is_ok() {
                outcome = scripts.run_last(Script::RoutePreDown, signals).await;
            }
            if down_pre && outcome.is_ok() {
                outcome = scripts.run_last(down, signals).await;
            }
        }
        host.close().await;
        drop(driver);
        if let Some(hooked) = &mut hooked
            && !down_pre
            && outcome.is_ok()
        {
            outcome = hooked.scripts.run_last(down, signals).await;
        }
        ended.and_then(|reason| outcome.map(|()| reason))
    }
}

/// Returns openvpn's name of the reason for the end. `notified` is true if the other end gets a notice of it.
fn end_signal(reason: &EndReason<Reason>, notified: bool) -> &'static str {
    match reason {
        EndReason::Signal(_) | EndReason::Asked if notified => "exit-with-notification",
        EndReason::Restart => "sighup",
        EndReason::Signal(Signal::Interrupt) => "sigint",
        EndReason::Signal(_) | EndReason::Asked => "sigterm",
        EndReason::Stopped(Reason::PingExit) => "ping-exit",
        EndReason::Stopped(Reason::Inactive) => "inactive",
        EndReason::Stopped(Reason::AuthFailed(_)) => "auth-failure",
        EndReason::Stopped(Reason::SessionTimeout) => "session-timeout",
        EndReason::Stopped(Reason::Halted(_)) => "server-pushed-halt",
        EndReason::Stopped(Reason::TlsExit(_)) => "tls-error",
        EndReason::Stopped(_) => "error",
    }
}
