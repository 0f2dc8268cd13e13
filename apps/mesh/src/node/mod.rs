//! The running node.

mod addresses;
mod admin;
mod apps;
mod channels;
mod directory;
mod ethernet;
mod events;
mod guest;
mod helper_duty;
mod host_plan;
mod memory_release;
mod metrics;
mod names;
mod policy;
mod rates;
mod report;
mod requests;
mod start;
mod store;
mod streams;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use adit_engine::Instant;
use adit_mesh::node::{Node, NodeEvent};
use adit_mesh::session::KeyHash;
use adit_openvpn_data::OpenVpnFormat;
use adit_openvpn_service::server_drops;
use adit_runtime::clock::{WallClock, now};
use adit_runtime::control::{Request, Response, StatusReport};
use adit_runtime::driver::{Driver, Event};
use adit_runtime::fault::Fault;
use adit_runtime::host::{ApplyOutcome, HostEvent, HostHandle};
use adit_runtime::instance::{EndReason, Instance};
use adit_runtime::log::LogLimiter;
use adit_runtime::metrics::{PeerSample, Samples};
use adit_runtime::plane_backend::{PlaneBackend, fill_totals};
use adit_runtime::{log, say};

use self::addresses::OwnAddresses;
pub(crate) use self::addresses::usable_addresses;
use self::apps::AppServer;
use self::directory::{DirectoryEvent, NodeDirectory, next_event};
use self::events::host_event;
use self::guest::{TincGuest, next_state};
pub use self::helper_duty::MESH;
use self::host_plan::Conflict;
use self::memory_release::MemoryRelease;
use self::metrics::NodeStats;
use self::names::Names;
use self::policy::NodePolicy;
use self::rates::Rates;
pub use self::start::{OnUp, UpOptions, UpReport, up};
use self::store::Store;
use super::admin_keys::AdminKeys;
use super::guest::GuestState;
use super::port_mapping::PortMapping;
use super::{Settings, short};

/// The time after which changes are tried again that the kernel refused.
const RETRY: Duration = Duration::from_secs(15);

/// A running node.
struct Running {
    driver: Driver<Node, PlaneBackend<OpenVpnFormat>>,
    host: HostHandle,
    addresses: OwnAddresses,
    directory: Option<NodeDirectory>,
    /// The tinc net in which this node is a guest.
    tinc: Option<TincGuest>,
    port_mapping: Option<PortMapping>,
    /// The port mapping's addresses, as last passed to the node.
    mapped: Vec<SocketAddr>,
    store: Store,
    settings: Settings,
    /// The mark of the node's sockets.
    mark: Option<u32>,
    mesh: String,
    names: Option<Names>,
    policy: NodePolicy,
    /// The reason why there is no gateway although the settings name one.
    exit_problem: Option<String>,
    /// The server for OpenVPN apps.
    apps: AppServer,
    /// The last plan's changes that the kernel refused, as logged.
    refused: Vec<String>,
    /// The time when these are tried again.
    retry_at: Option<Instant>,
    /// The logged problems with comparisons.
    trust_problems: Vec<String>,
    admin_keys: AdminKeys,
    /// The reason why this machine has no IPv4 address in the mesh.
    conflict: Option<Conflict>,
    packets: log::Traffic,
    log_limiter: LogLimiter,
    memory_release: MemoryRelease,
    rates: Rates,
    stats: NodeStats,
    wall: WallClock,
    removed: bool,
    /// The TCP port at which this node accepts connections.
    tcp_port: Option<NonZeroU16>,
    /// The reason why it does not accept connections although it should.
    tcp_problem: Option<String>,
}

/// An event that wakes the node.
enum Wake {
    Host(HostEvent),
    Directory(DirectoryEvent),
    Tinc(GuestState),
    Driver(Event<NodeEvent>),
}
impl Instance for Running {
    type Event = Wake;
    type Reason = Infallible;

    fn role(&self) -> &'static str {
        "mesh"
    }

    async fn next(&mut self) -> Result<Self::Event, Fault> {
        tokio::select! {
            biased;
            event = self.host.event() => event.map(Wake::Host),
            event = next_event(&mut self.directory) => Ok(Wake::Directory(event)),
            state = next_state(&mut self.tinc) => Ok(Wake::Tinc(state)),
            event = self.driver.next() => event.map(Wake::Driver),
        }
    }

    async fn handle(&mut self, wake: Wake) -> Result<Option<EndReason<Infallible>>, Fault> {
        let mut next = match wake {
            Wake::Driver(event) => Some(event),
            Wake::Host(event) => {
                host_event(&event);
                self.driver.perform()
            }
            Wake::Directory(event) => {
                self.directory_event(event);
                self.driver.perform()
            }
            Wake::Tinc(state) => {
                self.tinc_changed(state).await;
                self.driver.perform()
            }
        };
        while let Some(event) = next {
            match event {
                Event::Engine(event) => self.event(event).await?,
                Event::StreamOpened(to, opened) => self.stream_opened(to, opened),
                Event::Dialling(_) | Event::Dialled(_) | Event::DialFailed(_) => {}
            }
            next = self.driver.perform();
        }
        self.store.write_due(self.driver.engine());
        if self.removed {
            return Err(Fault::operator(format!(
                "this node was removed from the mesh {}; to join it again, remove {} and ask for an invitation",
                self.mesh,
                self.store.state().display()
            )));
        }
        Ok(None)
    }

    async fn tick(&mut self) -> Result<Option<EndReason<Infallible>>, Fault> {
        if let Some(unix) = self.wall.wall_clock_jump() {
            self.driver.act(|node, now, _| node.set_unix_time(now, unix));
        }
        if self.retry_at.is_some_and(|at| at <= now()) {
            self.roster_changed().await;
        }
        self.watch_addresses();
        self.packets.tick(now(), self.driver.backend().plane());
        self.log_suppressed();
        self.sample_rates();
        self.store.write_due(self.driver.engine());
        self.policy.tick();
        self.tick_apps();
        self.directory_tick();
        self.release_memory();
        Ok(None)
    }

    fn reload(&mut self) -> bool {
        say!(1, "only a restart reads files again");
        false
    }

    fn request(&mut self, request: Request) -> Response {
        self.answer(request)
    }

    fn sessions(&self) -> usize {
        self.driver.engine().connections()
    }

    fn report(&mut self, report: &mut StatusReport) {
        fill_totals(report, self.driver.backend().plane());
        self.policy.report(report);
        let node = self.driver.engine();
        let apps = node.app_counters().map(|counters| server_drops(&counters));
        let drops = node.counters().drops().into_iter().chain(apps.into_iter().flatten());
        for (name, count) in drops.filter(|(_, count)| *count > 0) {
            *report.drops.entry(name.to_owned()).or_default() += count;
        }
    }

    fn report_peers(&mut self, report: &mut StatusReport) {
        report.mesh = Some(self.mesh_report());
    }

    fn measure(&mut self, samples: &mut Samples) {
        self.stats.measure(samples);
        self.driver.measure(samples);
        self.driver.backend().measure(samples);
        self.policy.measure(samples);
    }

    fn sample_peers(&mut self, after: Option<u64>) -> Vec<PeerSample> {
        self.members_after(after)
    }
}
impl Running {
    /// Samples the traffic between this node and each peer.
    fn sample_rates(&mut self) {
        let (node, plane) = (self.driver.engine(), self.driver.backend().plane());
        let connected = node.peers().filter(|key| !node.channels(key).is_empty());
        let counters = connected.map(|key| {
            let channels = node.channels(&key).iter();
            (key, channels.filter_map(|channel| plane.counters(*channel)).collect())
        });
        self.rates.sample(now(), counters);
    }
    /// Sets this machine's addresses and routes again.
    async fn roster_changed(&mut self) {
        self.announce_to_tinc();
        let none = BTreeSet::new();
        let node = self.driver.engine();
        let mut plan = host_plan::plan(
            &self.settings,
            node.roster(),
            &node.key_hash(),
            node.changes(),
            self.conflict.as_ref(),
            self.tinc.as_ref().map_or(&none, TincGuest::reached),
        );
        if let Some(names) = &self.names {
            let has_ipv4 = self.conflict.is_none();
            names.set_zone(names::zone(node.roster(), node.changes(), has_ipv4));
            plan.dns = host_plan::dns(&plan, node.changes());
        }
        self.policy.members_changed(self.driver.engine());
        self.set_exit();
        self.update_apps();
        self.accept_streams();
        let refused = match self.host.change(&plan).await {
            // The kernel refused no part of this plan before; otherwise it would be tried again.
            Ok(ApplyOutcome::Same) => Vec::new(),
            Ok(ApplyOutcome::Changed(notes)) => notes,
            Err(fault) => vec![fault.to_string()],
        };
        for note in refused.iter().filter(|note| !self.refused.contains(note)) {
            tracing::warn!("{note}");
        }
        self.retry_at = (!refused.is_empty()).then(|| now() + RETRY);
        self.refused = refused;
    }

    /// Sets the node's exit gateway from the settings. If the gateway is gone, no packets leave the machine, inside or outside the mesh.
    fn set_exit(&mut self) {
        let exit = host_plan::exit(&self.settings, self.driver.engine().roster());
        let (exit, problem) = match exit {
            Ok(exit) => (exit, None),
            Err(fault) => (None, Some(format!("the internet is not reachable: {fault}"))),
        };
        if let Some(problem) = &problem
            && self.exit_problem.as_ref() != Some(problem)
        {
            tracing::warn!("{problem}");
        }
        self.exit_problem = problem;
        self.driver.act(|node, _, out| node.set_exit(exit, out));
    }

    /// Passes the addresses of this machine's interfaces and port mappings to the node, if they have changed.
    fn watch_addresses(&mut self) {
        let node = self.driver.engine();
        let own = node.roster().member(&node.key_hash());
        let inside: Vec<IpAddr> = own
            .into_iter()
            .flat_map(|own| own.ipv4.map(IpAddr::from).into_iter().chain([own.ipv6.into()]))
            .collect();
        let own = self.addresses.changed(&inside);
        self.keep_out_own_packets();
        let mapped = self.port_mapping.as_ref().map(PortMapping::external_addresses);
        let mapped = mapped.unwrap_or_default();
        if own.is_some() || mapped != self.mapped {
            self.mapped.clone_from(&mapped);
            let own = self.addresses.current().to_vec();
            self.driver.act(|node, now, out| node.set_addresses(now, own, mapped, out));
        }
    }

    /// Releases the memory that the last packets, handshakes and changes needed, while few packets pass.
    fn release_memory(&mut self) {
        let totals = self.driver.backend().plane().totals();
        let packets = totals.tun_read.packets.saturating_add(totals.tun_written.packets);
        if self.memory_release.is_due(packets) {
            self.driver.backend().plane().release_memory();
            self.driver.act(|node, now, _| node.release_memory(now));
            self.driver.release_memory();
            adit_linux::memory::trim();
        }
    }

    /// Returns the name of a member, or the beginning of its key's hash.
    fn name(&self, key: &KeyHash) -> String {
        let member = self.driver.engine().roster().member(key);
        let name = member.and_then(|member| member.name.as_ref());
        name.map_or_else(|| short(key), ToString::to_string)
    }

    /// Ends the sessions, and undoes everything that the node did to this machine.
    async fn end(mut self) {
        self.driver.act(Node::close);
        while self.driver.perform().is_some() {}
        // Let the data plane's threads send the last packets.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(self.driver);
        if let Some(tinc) = self.tinc {
            tinc.end();
        }
        if let Some(port_mapping) = self.port_mapping {
            port_mapping.release().await;
        }
        self.host.close().await;
    }
}
