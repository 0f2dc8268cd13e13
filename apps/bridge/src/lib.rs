//! `adit bridge`: opens two ports and evaluates the frames that pass between them, until it is stopped.

#![forbid(unsafe_code)]

mod helper_duty;
mod links;
mod open_ports;
mod ports;
mod report;
mod routed;
mod rules;
mod settings;

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

pub use adit_bridge::PortSpec;
use adit_bridge::{Bridge, Drop, MAX_WORKERS, Policy, Side, StartError};
use adit_filter::Nanos;
use adit_linux::clock;
use adit_linux::net::{NetChange, NetErrorKind, NetWatch};
use adit_linux::privileges::{Capability, confine_worker};
pub use routed::{NeighbourArg, PortAddress, RouteArg, RoutedOptions};
use serde::{Deserialize, Serialize};
pub use settings::BRIDGE_KEYS;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Interval, MissedTickBehavior, interval};

use adit_runtime::control::{Request, Response, StatusReport};
use adit_runtime::driver::watch;
use adit_runtime::fault::Fault;
use adit_runtime::filter;
use adit_runtime::helper::{self, Watcher};
use adit_runtime::instance::{self, Controls, EndReason, Instance};
use adit_runtime::metrics::{Config as MetricsConfig, Samples};
use adit_runtime::paths::Paths;
use adit_runtime::privileges;
use adit_runtime::{log, say, worker_count};
pub use helper_duty::BRIDGE;
use helper_duty::BridgeDuty;
use links::{LinkStateMirror, Links};
use open_ports::Ports;
use routed::Routed;
use rules::Rules;

/// How often the bridge searches for a port that has disappeared.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The options of `adit bridge`.
#[derive(Clone, Debug)]
pub struct BridgeOptions {
    /// The two ports.
    pub ports: [PortSpec; 2],
    /// The rule file, or `None` if all frames pass.
    pub rules: Option<PathBuf>,
    /// The options for forwarding packets between two networks, or `None` to forward frames.
    pub routed: Option<RoutedOptions>,
    /// The number of threads that move frames; `None`: depends on the number of cores.
    pub workers: Option<u16>,
    /// The MTU of new TAPs, or `None` for the other port's MTU.
    pub mtu: Option<u32>,
    /// Whether the host's stack receives and answers the ports' frames.
    pub share_with_host: bool,
    /// The reaction of a port when the other one loses its link.
    pub link_state: LinkState,
    /// The name in `adit status` and of the control socket; `None`: made from the ports' names.
    pub name: Option<String>,
    /// A directory for the control socket instead of /run/adit.
    pub dir: Option<PathBuf>,
    /// The user to run as, or `None` for `adit`, or `nobody` if that user does not exist.
    pub user: Option<String>,
    /// Where metrics are served.
    pub metrics: Option<MetricsConfig>,
    /// The number of additional log levels.
    pub verbose: u8,
}

/// The reaction of a port when the other one loses its link.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// The port stays enabled.
    #[default]
    Ignore,
    /// The port is disabled until the link is back.
    Carry,
}

impl BridgeOptions {
    /// Returns the name of this bridge.
    fn instance(&self) -> Result<String, Fault> {
        let [a, b] = &self.ports;
        let name = self.name.clone().unwrap_or_else(|| format!("{}-{}", a.name(), b.name()));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(Fault::operator(format!(
                "--name {name:?}: a control socket cannot have this name; use 1 to 64 letters, digits, '-', '_' and '.'"
            )));
        }
        Ok(name)
    }

    /// Returns the parameters of the helper process.
    fn duty(&self, instance: &str, workers: u16) -> Result<BridgeDuty, Fault> {
        let paths = Paths::new(self.dir.as_deref())?;
        Ok(BridgeDuty {
            ports: self.ports.each_ref().map(ToString::to_string),
            rules: self.rules.clone(),
            workers,
            mtu: self.mtu,
            share_with_host: self.share_with_host,
            carry_link: self.link_state == LinkState::Carry,
            control: paths.run.join(format!("{instance}.sock")),
            metrics: self.metrics.clone(),
        })
    }
}

/// Disables the ports of a bridge that does not run, so that the host's own stack sees neither network. Ports shared
/// with the host stay enabled, and TAPs no longer exist.
pub fn switch_off(options: &BridgeOptions) -> ExitCode {
    logged(options, switch_ports_off)
}

/// Runs a bridge until it is stopped.
pub fn run(options: &BridgeOptions) -> ExitCode {
    logged(options, start)
}

/// Sets up the log, runs a function, and logs the function's fault.
fn logged(
    options: &BridgeOptions,
    act: impl FnOnce(&BridgeOptions) -> Result<(), Fault>,
) -> ExitCode {
    let started = log::start(log::Settings::friendly(options.verbose.saturating_add(1)))
        .map_err(|error| Fault::environment(format!("cannot log: {error}")));
    match started.and_then(|()| act(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            log::error(&fault.to_string());
            fault.exit_code()
        }
    }
}

fn switch_ports_off(options: &BridgeOptions) -> Result<(), Fault> {
    if options.share_with_host {
        return Ok(());
    }
    adit_runtime::async_runtime()?.block_on(async {
        let net = ports::open_net()?;
        for spec in &options.ports {
            let PortSpec::Existing(name) = spec else { continue };
            match net.link(name).await {
                Err(error) if error.kind() == NetErrorKind::NotFound => continue,
                _ => ports::switch(&net, name, false).await?,
            }
            say!(1, "{name}: switched off: no bridge runs");
        }
        Ok(())
    })
}

fn start(options: &BridgeOptions) -> Result<(), Fault> {
    let instance = options.instance()?;
    let workers = worker_count::of_server(options.workers, None)?.min(MAX_WORKERS as u16);
    let workers = workers.max(1);
    let duty = options.duty(&instance, workers)?;
    let open = |file: PathBuf| Rules::open(file, usize::from(workers));
    let rules = options.rules.clone().map(open).transpose()?;
    // The helper must end last, after all changes have been undone.
    let helper = helper::start(&BRIDGE, &duty, &[])?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start: {error}")))?;
    runtime.block_on(serve(options, &duty, rules, helper.is_some()))
}

async fn serve(
    options: &BridgeOptions,
    duty: &BridgeDuty,
    rules: Option<Rules>,
    helped: bool,
) -> Result<(), Fault> {
    let _watcher = helper::current().map(Watcher::start).transpose()?;
    let mut opener = Ports::new(duty)?;
    let ports = opener.open_both().await?;
    let routed = match &options.routed {
        Some(options) => Some(Routed::open(options, &ports, &opener).await?),
        None => None,
    };
    // Otherwise changes of interfaces are detected a moment later.
    let watch = NetWatch::open().ok();
    let mut controls = Controls::open(&duty.control, duty.metrics.as_ref())?;
    // Without a helper, keep the privileges that are needed to open a port again.
    let needed = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];
    privileges::become_user("bridge", options.user.as_ref(), helped, &needed)?;
    if let Some(rules) = &rules {
        rules.warn_if_unreadable();
    }
    let policy = match (&rules, &routed) {
        (None, None) => Policy::Relay,
        (Some(rules), None) => rules.policy(),
        (rules, Some(routed)) => {
            let firewall = rules.as_ref().map(|rules| Arc::clone(rules.firewall()));
            Policy::Routed(firewall, routed.router())
        }
    };
    let bridge = Bridge::start(ports, &policy, usize::from(duty.workers), confine_worker)
        .map_err(refused)?;
    let passes = rules.as_ref().map_or_else(|| "everything passes".into(), Rules::summary);
    let carry = duty.carry_link.then(|| LinkStateMirror::new(Nanos(clock::boottime())));
    let mut running = Running { routed, carry, watch, ..Running::new(bridge, opener, rules)? };
    let [a, b] = &options.ports;
    say!(1, "the bridge is up: {a} and {b}, {passes}");
    running.warn_of_unseen();
    running.look_at_links().await;
    controls.ready(&format!("bridging {a} and {b}"));
    let ended = instance::run(&mut running, &mut controls).await;
    running.let_go().await;
    controls.stopping();
    ended.map(drop)
}

fn refused(error: StartError) -> Fault {
    match error {
        StartError::Queues { .. } => Fault::operator(error.to_string()),
        StartError::Os(_) => Fault::environment(error.to_string()),
    }
}

/// Makes the helper update its list of rule files.
fn ask_to_reload() -> Result<(), Fault> {
    match helper::current() {
        Some(helper) => Ok(helper.call(helper::Request::Reload, &[]).map(drop)?),
        None => Ok(()),
    }
}

/// A running bridge.
struct Running {
    bridge: Bridge,
    opener: Ports,
    rules: Option<Rules>,
    routed: Option<Routed>,
    /// A descriptor that becomes readable when the bridge loses a port or a worker.
    bell: AsyncFd<OwnedFd>,
    /// The ports that are missing.
    missing: [bool; 2],
    /// When to search for a lost port.
    again: Interval,
    links: Links,
    /// The link state mirror, only in a bridge that carries the state of links.
    carry: Option<LinkStateMirror>,
    /// Whether the warning about tagged frames that are too long has been given.
    told_of_tags: bool,
    watch: Option<NetWatch>,
}

/// Waits for the next change of the host's interfaces.
async fn change(watch: &mut Option<NetWatch>) -> NetChange {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

/// An event that wakes a bridge.
enum Event {
    /// A port or a worker may be lost.
    Bell,
    /// The bridge should search for a missing port.
    LookAgain,
    /// An interface of the host has changed.
    Changed(NetChange),
}

impl Instance for Running {
    type Event = Event;
    type Reason = Infallible;

    fn role(&self) -> &'static str {
        "bridge"
    }

    async fn next(&mut self) -> Result<Event, Fault> {
        tokio::select! {
            ready = self.bell.readable() => {
                if let Ok(mut ready) = ready {
                    ready.clear_ready();
                }
                Ok(Event::Bell)
            }
            fault = self.opener.lost() => Err(fault),
            _ = self.again.tick(), if self.missing.contains(&true) => Ok(Event::LookAgain),
            changed = change(&mut self.watch) => Ok(Event::Changed(changed)),
        }
    }

    async fn handle(&mut self, event: Event) -> Result<Option<EndReason<Infallible>>, Fault> {
        match event {
            Event::Bell => {
                self.notice_losses()?;
                self.look_at_links().await;
            }
            Event::LookAgain => self.look_again().await,
            Event::Changed(changed) => self.changed(changed).await,
        }
        Ok(None)
    }

    async fn tick(&mut self) -> Result<Option<EndReason<Infallible>>, Fault> {
        self.check_workers()?;
        self.look_at_links().await;
        self.warn_of_tags();
        self.sweep().await;
        Ok(None)
    }

    fn log_state(&mut self) {
        self.log_report();
    }

    fn reload(&mut self) -> bool {
        let reloaded = self.reload_rules();
        if let Err(fault) = &reloaded {
            log::warning(&format!("nothing has changed: {fault}"));
        }
        reloaded.is_ok()
    }

    fn request(&mut self, request: Request) -> Response {
        match request {
            Request::Reload => match self.reload_rules() {
                Ok(count) => Response::Done { count },
                Err(fault) => Response::Error { message: fault.to_string() },
            },
            Request::Kick { .. } | Request::ReloadClients => {
                Response::Error { message: "a bridge has no sessions and no certificates".into() }
            }
            request => self.ask_filter(&request),
        }
    }

    fn report(&mut self, report: &mut StatusReport) {
        self.complete(report);
    }

    fn measure(&mut self, samples: &mut Samples) {
        if let Some(rules) = &self.rules {
            rules.measure(samples);
        }
    }
}

impl Running {
    fn new(bridge: Bridge, opener: Ports, rules: Option<Rules>) -> Result<Self, Fault> {
        let bell = bridge.wakeup().try_clone_to_owned();
        let bell = bell.and_then(|bell| watch(bell, Interest::READABLE));
        let bell = bell.map_err(|e| Fault::environment(format!("cannot watch the ports: {e}")))?;
        let mut again = interval(LOOK_AGAIN);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            bridge,
            opener,
            rules,
            routed: None,
            bell,
            missing: [false; 2],
            again,
            links: Links::default(),
            carry: None,
            told_of_tags: false,
            watch: None,
        })
    }

    fn ask_filter(&mut self, request: &Request) -> Response {
        if let Request::FilterReload { files: None } = request
            && let Err(fault) = ask_to_reload()
        {
            return Response::Error { message: fault.to_string() };
        }
        let answer = self.rules.as_mut().and_then(|rules| rules.answer(request));
        answer.unwrap_or_else(filter::none)
    }

    /// Reads the rules again. If that fails, the current rules stay in force.
    fn reload_rules(&mut self) -> Result<usize, Fault> {
        let Some(rules) = &mut self.rules else {
            return Err(Fault::operator("there are no rules to read again: all frames pass"));
        };
        ask_to_reload()?;
        let count = rules.reload()?;
        say!(1, "{}", rules.summary());
        self.warn_of_unseen();
        Ok(count)
    }

    /// Checks that all workers run. The flows of a worker that has ended are no longer processed, so the process then ends, and the service
    /// manager restarts it.
    fn check_workers(&self) -> Result<(), Fault> {
        match self.bridge.failed() {
            Some(worker) => Err(Fault::ours(format!("worker {worker}: ended unexpectedly"))),
            None => Ok(()),
        }
    }

    /// Warns about packets that no rule can filter. A router forwards only IP and needs no warning.
    fn warn_of_unseen(&self) {
        let rules = self.rules.as_ref().filter(|_| self.routed.is_none());
        if let Some(unseen) = rules.and_then(Rules::unfiltered_traffic) {
            tracing::warn!("{unseen}");
        }
    }

    /// Warns once that frames with tags do not fit, with the remedy.
    fn warn_of_tags(&mut self) {
        if self.told_of_tags {
            return;
        }
        let totals = self.bridge.totals();
        for (side, totals) in Side::BOTH.into_iter().zip(&totals.sides) {
            if totals.drops.get(Drop::Tags as usize).is_some_and(|count| *count > 0) {
                self.told_of_tags = true;
                let (to, [a, b]) =
                    (self.opener.spec(side.other()), Side::BOTH.map(|side| self.opener.spec(side)));
                tracing::warn!(
                    "{}: frames with VLAN tags dropped: too long for its MTU; increase that of {} and {} by 8 bytes",
                    to.name(),
                    a.name(),
                    b.name()
                );
            }
        }
    }

    /// Immediately handles a change that may concern a port: the host must not use a port that has returned.
    async fn changed(&mut self, change: NetChange) {
        let missing = self.missing.contains(&true);
        let is_port = |index: u32| self.bridge.ports().iter().any(|port| port.index == index);
        match change {
            NetChange::Route(..) => return,
            NetChange::Link(index) if !missing && !is_port(index) => return,
            NetChange::Link(_) | NetChange::Unknown => {}
        }
        if missing {
            self.look_again().await;
        }
        self.look_at_links().await;
    }

    /// Follows the MTU and the link state of the interfaces.
    async fn look_at_links(&mut self) {
        let mut running = [None; 2];
        for (side, running) in Side::BOTH.into_iter().zip(&mut running) {
            if self.missing.get(side.index()).is_some_and(|missing| *missing) {
                self.links.forget(side);
                *running = Some(false);
                continue;
            }
            let Some(link) = self.opener.link(side).await else { continue };
            *running = Some(link.running);
            let news = self.links.see(side, &link);
            if news.mtu
                && let Some(routed) = &self.routed
            {
                routed.set_mtu(side, link.mtu);
            }
            for line in self.links.lines(side, &link, news, self.routed.is_some()) {
                tracing::warn!("{line}");
            }
        }
        self.carry(running).await;
    }

    /// Carries the state of links to the other port.
    async fn carry(&mut self, running: [Option<bool>; 2]) {
        let Some(carry) = &mut self.carry else { return };
        let now = Nanos(clock::boottime());
        let Some((side, on)) = carry.step(now, running) else { return };
        let (port, other) = (self.opener.spec(side), self.opener.spec(side.other()));
        match self.opener.switch(side, on).await {
            Ok(()) => {
                carry.switched(now, side, on);
                if on {
                    say!(1, "{port}: switched on: {other} has its link back");
                } else {
                    tracing::warn!("{port}: switched off: {other} has no link");
                }
            }
            // The interface may have just disappeared. There will be another attempt.
            Err(fault) => tracing::debug!("{fault}"),
        }
    }

    /// Enables all ports again before the process ends.
    async fn let_go(&mut self) {
        let off = self.carry.as_ref().and_then(LinkStateMirror::off);
        if let Some(side) = off.filter(|side| self.missing.get(side.index()) == Some(&false))
            && let Err(fault) = self.opener.switch(side, true).await
        {
            tracing::warn!("{fault}");
        }
    }

    /// Records which ports are missing, and reports it once.
    fn notice_losses(&mut self) -> Result<(), Fault> {
        self.check_workers()?;
        let lost = self.bridge.lost();
        for ((side, lost), missing) in Side::BOTH.into_iter().zip(lost).zip(&mut self.missing) {
            if lost && !*missing {
                *missing = true;
                tracing::warn!(
                    "{} is gone: frames for it are dropped until it is back",
                    self.opener.spec(side)
                );
            }
        }
        Ok(())
    }

    /// Removes expired connections while no packets arrive.
    async fn sweep(&mut self) {
        let Some(rules) = &mut self.rules else { return };
        rules.tick();
        while rules.sweep() {
            tokio::task::yield_now().await;
        }
    }

    async fn look_again(&mut self) {
        for side in Side::BOTH {
            if !self.missing.get(side.index()).is_some_and(|missing| *missing) {
                continue;
            }
            match self.opener.open_again(side).await {
                Ok(Some(port)) => {
                    if let Some(routed) = &self.routed
                        && let Err(fault) = routed.attach(side, &port, &self.opener).await
                    {
                        tracing::debug!("{fault}");
                        continue;
                    }
                    if let Err(error) = self.bridge.attach(side, port) {
                        tracing::warn!("{error}");
                        continue;
                    }
                    if let Some(missing) = self.missing.get_mut(side.index()) {
                        *missing = false;
                    }
                    if let Some(carry) = &mut self.carry
                        && carry.off() == Some(side)
                    {
                        // The port was enabled when it was opened.
                        carry.switched(Nanos(clock::boottime()), side, true);
                    }
                    say!(1, "{} is back", self.opener.spec(side));
                }
                Ok(None) => {}
                Err(fault) => tracing::debug!("{fault}"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
