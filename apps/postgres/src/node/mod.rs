//! `adit postgres up`: runs a node.
//!
//! ```text
//!           drain (never waits)                     one connection each, opened again until it works
//!   device ───────────────────► Sender ──► write ──COPY, COMMIT, NOTIFY──► database
//!   device ◄─────────────────── Receivers ◄── read ◄──LISTEN, SELECT────── database
//!                                                 └─ nodes ─► routes of this machine
//! ```
//!
//! All tasks run on one thread. Whatever the database does, the device is drained and the queue stays limited.

mod admit;
mod connection;
mod db_error;
mod device;
pub(super) mod directory;
mod expire;
mod health;
mod helper_duty;
mod host_plan;
mod pins;
pub(super) mod positions;
mod reader;
mod report;
mod rx;
mod shared;
mod tuples;
mod tx;
mod writer;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use adit_engine::{Instant, Random};
use adit_linux::privileges::Capability;
use adit_postgres::{Durability, limits};
use adit_postgres_client::Backoff;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use self::device::Device;
use self::directory::Directory;
use self::health::{Health, Side};
pub use self::helper_duty::NODE;
use self::helper_duty::NodeDuty;
use self::pins::Pins;
use self::positions::Positions;
use self::shared::{Counters, Shared};
use super::change::in_words;
use super::{Paths, Secrets, Settings};
use adit_runtime::clock::now;
use adit_runtime::control::{Request, Response, StatusReport};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::helper;
use adit_runtime::host::{ApplyOutcome, HostHandle};
use adit_runtime::instance::{self, Controls, EndReason, Instance};
use adit_runtime::metrics::{Config as MetricsConfig, PeerSample, Samples};
use adit_runtime::{host, log, plane_backend, privileges, say};

/// A connection that lasted at least this long is opened again at once when it ends. Others are opened again after
/// growing pauses.
const LASTED: Duration = Duration::from_secs(5);

/// The maximum number of warnings about refused rows within an interval.
const MOST_WARNINGS: u32 = 8;
const WARNINGS_OF: Duration = Duration::from_secs(60);

/// The options of `adit postgres up` that are not in the node's files.
#[derive(Clone, Debug, Default)]
pub struct UpOptions {
    /// The name of the TUN device. Overrides the settings.
    pub device: Option<String>,
    /// The durability. Overrides the settings.
    pub durability: Option<Durability>,
    /// The maximum length of an IP packet in bytes. Overrides the settings.
    pub packet_size: Option<usize>,
    /// Whether to add no routes to other nodes' networks.
    pub no_routes: bool,
    /// The user to run as, or `None` for `adit` or `nobody`.
    pub user: Option<String>,
    /// Where metrics are served. Overrides the settings.
    pub metrics: Option<MetricsConfig>,
    /// The number of additional log levels.
    pub verbose: u8,
}

/// Runs a node until it is asked to stop.
pub fn up(paths: &Paths, options: &UpOptions) -> ExitCode {
    match start(paths, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            tracing::error!("{fault}");
            fault.exit_code()
        }
    }
}

fn start(paths: &Paths, options: &UpOptions) -> Result<(), Fault> {
    log::start(log::Settings::friendly(options.verbose.saturating_add(1)))
        .map_err(|error| Fault::environment(format!("cannot log: {error}")))?;
    // Keep keys out of core dumps. If that is impossible, the tunnel still works.
    let _ = adit_linux::privileges::protect_memory();
    let settings = settings(paths, options)?;
    let secrets = Secrets::load(paths)?;
    paths.create()?;
    let _lock = only_one(paths)?;
    let duty = NodeDuty {
        dir: paths.folders.dir().map(Path::to_owned),
        name: paths.name().to_owned(),
        device: options.device.clone(),
        packet_size: options.packet_size,
        routes: !options.no_routes,
        metrics: options.metrics.clone(),
    };
    // The helper must end last, after all changes have been undone.
    let helper = helper::start(&NODE, &duty, &[])?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start: {error}")))?;
    let local = LocalSet::new();
    local.block_on(&runtime, serve(paths, options, settings, secrets, helper.is_some()))
}

/// Returns the settings, overridden by the command line.
fn settings(paths: &Paths, options: &UpOptions) -> Result<Settings, Fault> {
    let mut settings = Settings::load(paths)?;
    if let Some(device) = &options.device {
        settings.device.clone_from(device);
    }
    if let Some(metrics) = &options.metrics {
        settings.metrics = Some(metrics.clone());
    }
    if let Some(durability) = options.durability {
        settings.durability = Some(durability);
    }
    if let Some(size) = options.packet_size {
        if !limits::PACKET_RANGE.contains(&size) {
            return Err(Fault::operator(format!(
                "--packet-size {size}: a packet has between {} and {} bytes, so that its row fits into one page",
                limits::PACKET_RANGE.start(),
                limits::PACKET_RANGE.end()
            )));
        }
        settings.packet_size = Some(size);
    }
    Ok(settings)
}

/// Locks the network on this host for the lifetime of the process.
fn only_one(paths: &Paths) -> Result<File, Fault> {
    let path = paths.lock_file();
    let open = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = open.map_err(|error| file_fault("cannot open", &path, &error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(Fault::environment(format!(
            "this node is already running: another process holds {}",
            path.display()
        ))),
    }
}

async fn serve(
    paths: &Paths,
    options: &UpOptions,
    settings: Settings,
    secrets: Secrets,
    helped: bool,
) -> Result<(), Fault> {
    let target = settings.target(&secrets)?;
    let pins = Pins::load(&paths.pins_file())?;
    let positions = Positions::open(&paths.positions_file())
        .map_err(|error| file_fault("cannot open", &paths.positions_file(), &error))?;
    let tun = host::Device::Tun(Some(settings.device.clone()));
    let (mut host, device) = HostHandle::open(&tun, plane_backend::tun_offloads(), 1)?;
    let mut device = device.ok_or_else(|| Fault::ours("there is no device"))?;
    let queue = device.queues.pop().ok_or_else(|| Fault::ours("the device has no queue"))?;
    host.apply(&host_plan::plan(&settings, None, !options.no_routes)).await?;
    let device = Device::new(queue, device.offloads)
        .map_err(|error| Fault::environment(format!("cannot watch the device: {error}")))?;
    let mut controls = Controls::open(&paths.control_socket(), settings.metrics.as_ref())?;
    // Without a helper, keep the privileges that are needed to change routes.
    let needed = [Capability::CAP_NET_ADMIN];
    privileges::become_user("node", options.user.as_ref(), helped, &needed)?;
    let instance: [u8; 4] = adit_runtime::random::bytes()?;
    let shared = Rc::new(Shared {
        target,
        keys: secrets.keys,
        generations: Cell::new((secrets.ring.generation(), secrets.ring.generation())),
        ring: RefCell::new(secrets.ring),
        ring_file: paths.ring_file(),
        key_trouble: RefCell::default(),
        instance: format!("{:08x}", u32::from_be_bytes(instance)),
        device,
        random: RefCell::new(Random::new(adit_runtime::random::seed()?)),
        pins: RefCell::new(pins),
        positions: RefCell::new(positions),
        directory: RefCell::default(),
        routes: RefCell::default(),
        sender: RefCell::default(),
        receivers: RefCell::default(),
        work: Notify::new(),
        changed: Notify::new(),
        rotated: Notify::new(),
        health: RefCell::new(Health::default()),
        counters: Counters::default(),
        forgeries: Cell::default(),
        numbers_warned: Cell::default(),
        own_sessions: tokio::sync::OnceCell::new(),
        settings,
    });
    let addresses: Vec<String> =
        shared.settings.addresses.iter().map(|a| a.addr().to_string()).collect();
    say!(
        1,
        "node {} of {}: {} on {}, packets of up to {} bytes",
        shared.settings.name,
        paths.name(),
        addresses.join(" "),
        shared.settings.device,
        shared.settings.packet_size(None)
    );
    controls.ready(&format!("node {}", shared.settings.name));
    let mut tasks = JoinSet::new();
    tasks.spawn_local(tx::drain(Rc::clone(&shared)));
    tasks.spawn_local(maintain_connection(Rc::clone(&shared), Side::Writer));
    tasks.spawn_local(maintain_connection(Rc::clone(&shared), Side::Reader));
    tasks.spawn_local(expire::run(Rc::clone(&shared)));
    let mut node = Node {
        shared,
        tasks,
        host,
        network: paths.name().to_owned(),
        routes: !options.no_routes,
        said: BTreeMap::new(),
        refused: BTreeMap::new(),
        settings: 0,
        unsettled: None,
        warnings: Warnings::default(),
    };
    let ended = instance::run(&mut node, &mut controls).await;
    node.tasks.abort_all();
    controls.stopping();
    node.host.close().await;
    ended.map(drop)
}

/// A running node.
struct Node {
    shared: Rc<Shared>,
    /// The tasks. They end with the node, and the node ends with the first of them.
    tasks: JoinSet<Result<Infallible, Fault>>,
    host: HostHandle,
    network: String,
    routes: bool,
    /// The nodes as they were last reported.
    said: BTreeMap<String, String>,
    /// The refused nodes, by name, with the reasons.
    refused: BTreeMap<String, String>,
    /// The number of the settings that were last reported.
    settings: i64,
    /// The last reported reason why the settings in the database are not trusted.
    unsettled: Option<String>,
    warnings: Warnings,
}

/// A signal that the directory may have changed.
struct DirectoryChanged;

impl Instance for Node {
    type Event = DirectoryChanged;
    type Reason = Infallible;

    fn role(&self) -> &'static str {
        "postgres"
    }

    async fn next(&mut self) -> Result<DirectoryChanged, Fault> {
        tokio::select! {
            fault = self.host.lost() => Err(fault),
            () = self.shared.changed.notified() => Ok(DirectoryChanged),
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(Err(fault)) => Err(fault),
                Ok(Ok(never)) => match never {},
                Err(_) => Err(Fault::ours("a task of the node has ended")),
            },
        }
    }

    async fn handle(
        &mut self,
        _: DirectoryChanged,
    ) -> Result<Option<EndReason<Infallible>>, Fault> {
        self.reconcile().await;
        Ok(None)
    }

    async fn tick(&mut self) -> Result<Option<EndReason<Infallible>>, Fault> {
        self.shared.health.borrow_mut().log_outage_end(now());
        Ok(None)
    }

    fn log_state(&mut self) {
        self.log_report();
    }

    fn reload(&mut self) -> bool {
        say!(1, "only a restart reads files again");
        false
    }

    fn request(&mut self, _: Request) -> Response {
        Response::Error {
            message: "a node of a network in a database supports only status and stop".into(),
        }
    }

    fn report(&mut self, report: &mut StatusReport) {
        self.complete(report);
    }

    fn measure(&mut self, samples: &mut Samples) {
        self.measure_database(samples);
    }

    fn sample_peers(&mut self, after: Option<u64>) -> Vec<PeerSample> {
        self.nodes_after(after)
    }
}

impl Node {
    /// Reports the current settings, and settings that are refused.
    fn tell_settings(&mut self, directory: &Directory) {
        let network = directory.settings.current();
        if self.settings != network.serial {
            self.settings = network.serial;
            say!(1, "network settings: serial {} in force: {}", network.serial, in_words(network));
        }
        if let Some(reason) = &directory.unsettled
            && self.unsettled.as_ref() != Some(reason)
            && self.warnings.may(now())
        {
            tracing::warn!("{reason}; serial {} stays in force", network.serial);
        }
        self.unsettled.clone_from(&directory.unsettled);
    }

    /// Logs nodes that have joined or left, and updates the routes.
    async fn reconcile(&mut self) {
        let Some(directory) = self.shared.directory.borrow().clone() else { return };
        let mut now_said = BTreeMap::new();
        for node in &directory.nodes {
            let nets = node.addresses().into_iter().map(|address| address.to_string());
            let nets: Vec<String> =
                nets.chain(node.record.subnets.iter().map(ToString::to_string)).collect();
            now_said.insert(node.record.name.clone(), nets.join(" "));
        }
        for (name, nets) in &now_said {
            if self.said.get(name) != Some(nets) {
                say!(1, "node {name} is in the network: {nets}");
            }
        }
        for name in self
            .said
            .keys()
            .filter(|name| !now_said.contains_key(*name) && !directory.refused.contains_key(*name))
        {
            say!(1, "node {name} has left the network");
        }
        for (name, reason) in &directory.refused {
            if self.refused.get(name) != Some(reason) && self.warnings.may(now()) {
                tracing::warn!("node {name} is not contacted: {reason}");
            }
        }
        self.refused.clone_from(&directory.refused);
        self.said = now_said;
        self.tell_settings(&directory);
        let plan = host_plan::plan(&self.shared.settings, Some(&directory), self.routes);
        match self.host.change(&plan).await {
            Ok(ApplyOutcome::Same) => {}
            Ok(ApplyOutcome::Changed(notes)) => {
                notes.iter().for_each(|note| tracing::warn!("{note}"));
            }
            Err(fault) => tracing::warn!("{fault}"),
        }
    }
}

/// Limits warnings about refused rows, because a database can change a row at any rate.
#[derive(Debug, Default)]
struct Warnings {
    since: Option<Instant>,
    count: u32,
}

impl Warnings {
    /// Counts a warning. Returns whether it may be logged: fewer than [`MOST_WARNINGS`] were logged within [`WARNINGS_OF`].
    fn may(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.since(since) >= WARNINGS_OF) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count = self.count.saturating_add(1);
        if self.count == MOST_WARNINGS {
            tracing::warn!("database: rows refused: further warnings are suppressed for a minute");
        }
        self.count < MOST_WARNINGS
    }
}

/// Keeps a connection open and working.
async fn maintain_connection(shared: Rc<Shared>, side: Side) -> Result<Infallible, Fault> {
    let mut backoff = Backoff::new(shared.pause_seed());
    loop {
        let began = now();
        let ended = match side {
            Side::Writer => tx::write(&shared).await,
            Side::Reader => rx::read(&shared).await,
        };
        let cause = match ended {
            Ok(never) => match never {},
            Err(cause) => cause,
        };
        lost(&shared, side);
        if now().since(began) > LASTED {
            backoff.reset();
        }
        shared.health.borrow_mut().down(now(), side, &cause.message);
        sleep(backoff.pause()).await;
    }
}

/// Treats work in flight on a lost connection as uncertain.
fn lost(shared: &Shared, side: Side) {
    match side {
        Side::Writer => {
            if let Some(sender) = &mut *shared.sender.borrow_mut() {
                sender.lost();
            }
        }
        Side::Reader => {
            shared.receivers.borrow_mut().values_mut().for_each(|receiver| receiver.lost());
        }
    }
}
