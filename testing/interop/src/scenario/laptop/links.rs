//! Tests of failing links, changes of network, and sleep.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Control::{Fails, Passes};
use super::{BOTH, ConnectedLaptop, IMPATIENT, Laptop, Scenario, Setup, TIMEOUT};
use crate::failure::{Failure, Result, ensure};
use crate::laptop::{Access, Probe, Resolver, VPN_NAME6, WEB};
use crate::net::Namespace;

/// The scenarios of this module.
pub(super) const SCENARIOS: &[Scenario] = &[
    ("link-flap", BOTH, Fails(LINK), flap),
    ("link-flap-over-tcp", BOTH, Fails(LINK), flap_over_tcp),
    ("link-flap-over-ipv6", BOTH, Fails(LINK), flap_over_ipv6),
    ("carrier-lost", BOTH, Passes, carrier_lost),
    ("change-of-network", BOTH, Fails(OLD_NETWORK), change_of_network),
    ("change-of-network-over-tcp", BOTH, Fails(OLD_NETWORK), change_of_network_over_tcp),
    ("ipv6-lost", BOTH, Fails(OLD_NETWORK), ipv6_lost),
    ("new-address", BOTH, Fails("loses its host route with the old address"), new_address),
    ("suspend", BOTH, Passes, suspend),
    ("resume-on-another-network", BOTH, Fails(OLD_NETWORK), resume_on_another_network),
];

pub(super) const LINK: &str = "loses its host route with the link";
pub(super) const OLD_NETWORK: &str = "keeps a host route by the network that was left";

/// How long the link is down.
const FLAP: Duration = Duration::from_secs(3);
/// The share of one core that a client without a network may use; it should use next to none.
const IDLE: f64 = 0.2;

/// Programs on the laptop that keep sending while there is no network.
struct Chatter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Chatter {
    fn start(laptop: &Namespace) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = laptop.thread(move || {
            while !stopped.load(Ordering::Relaxed) {
                Probe::send_once(WEB);
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Chatter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Measurements between the loss of the network and the first answer through the tunnel.
pub(super) struct Recovery {
    /// The client's share of one core while there was no network.
    cpu: f64,
    pub(super) took: Duration,
}

impl ConnectedLaptop<'_> {
    /// Removes the network, restores it after `length`, and waits for an answer through the tunnel.
    pub(super) fn outage(
        &self,
        take: impl FnOnce() -> Result<()>,
        length: Duration,
        give: impl FnOnce() -> Result<()>,
    ) -> Result<Recovery> {
        take()?;
        let cpu = {
            let _chatter = Chatter::start(&self.internet.laptop)?;
            let before = self.cpu_seconds()?;
            std::thread::sleep(length);
            (self.cpu_seconds()? - before) / length.as_secs_f64()
        };
        give()?;
        let took = self.back(TIMEOUT).map_err(|failure| {
            let text = format!("{:.0} % of a core in the outage, then: ", cpu * 100.0);
            Failure(format!("{text}{failure}"))
        })?;
        ensure(cpu < IDLE, || {
            let text = format!("{:.0} % of a core without a network", cpu * 100.0);
            self.with_logs(Failure(text)).0
        })?;
        self.ensure_no_leak()?;
        Ok(Recovery { cpu, took })
    }

    /// The interface is down for three seconds.
    pub(super) fn flap(self, access: Access) -> Result<String> {
        let switch = |on| self.internet.switch(access, on);
        let recovery = self.outage(|| switch(false), FLAP, || switch(true))?;
        ensure(recovery.took <= BACK, || {
            self.with_logs(Failure(format!("too late: {recovery}"))).0
        })?;
        self.end()?;
        Ok(recovery.to_string())
    }

    /// The laptop moves from one network to another.
    pub(super) fn change(mut self, from: Access, to: Access) -> Result<String> {
        let leave = || self.internet.leave(from);
        let recovery = self.outage(leave, Duration::from_secs(1), || self.internet.join(to))?;
        self.client.stop()?;
        Ok(recovery.to_string())
    }

    /// DHCP gives another address on the link at home.
    pub(super) fn renumber(mut self) -> Result<String> {
        self.internet.lease(Access::Home, Ipv4Addr::new(192, 168, 1, 77))?;
        let took = self.back(TIMEOUT)?;
        self.ensure_no_leak()?;
        self.client.stop()?;
        let (seen, _) = self.internet.probe().until_answered(WEB, TIMEOUT)?;
        ensure(seen == IpAddr::V4(Access::Home.outside()), || format!("at the end it is {seen}"))?;
        Ok(format!("back after {} ms", took.as_millis()))
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, took } = self;
        write!(f, "back after {} ms, {:.0} % of a core meanwhile", took.as_millis(), cpu * 100.0)
    }
}

/// The time limit for a client to recover after its link does. Recovery takes at most two seconds on an idle machine.
const BACK: Duration = Duration::from_secs(3);

/// The interface is down for three seconds.
fn flap(laptop: &Laptop<'_>) -> Result<String> {
    flap_with(laptop, Setup::default())
}

/// The same with a tunnel over TCP.
fn flap_over_tcp(laptop: &Laptop<'_>) -> Result<String> {
    flap_with(laptop, Setup { listen: "tcp/1194", ..Setup::default() })
}

/// The same where IPv6 carries the tunnel; the interface loses its IPv6 addresses meanwhile.
fn flap_over_ipv6(laptop: &Laptop<'_>) -> Result<String> {
    flap_with(laptop, Setup { access: Access::Cafe, host: "2001:db8:7::7", ..Setup::default() })
}

fn flap_with(laptop: &Laptop<'_>, setup: Setup) -> Result<String> {
    laptop.connect(setup)?.flap(setup.access)
}

/// The carrier is lost for three seconds, as when Wi-Fi fails; the interface keeps its address and routes.
fn carrier_lost(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup::default())?;
    let switch = |on| laptop.internet.switch_carrier(Access::Home, on);
    let recovery = laptop.outage(|| switch(false), FLAP, || switch(true))?;
    laptop.end()?;
    Ok(recovery.to_string())
}

/// From home to the café: another interface, another gateway, other addresses; and back again, to a network that is
/// available before the other one is lost.
fn change_of_network(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup::default())?;
    let internet = &laptop.internet;
    let leave = || internet.leave(Access::Home);
    let recovery = laptop.outage(leave, Duration::from_secs(1), || internet.join(Access::Cafe))?;
    internet.join(Access::Home)?;
    internet.leave(Access::Cafe)?;
    let back = laptop.back(TIMEOUT)?;
    laptop.ensure_no_leak()?;
    laptop.end()?;
    Ok(format!("{recovery}; home again after {} ms", back.as_millis()))
}

/// From home to the café with a tunnel over TCP, whose connection does not survive the change of address.
fn change_of_network_over_tcp(laptop: &Laptop<'_>) -> Result<String> {
    let setup = Setup { listen: "tcp/1194", ..Setup::default() };
    laptop.connect(setup)?.change(Access::Home, Access::Cafe)
}

/// From the café, where IPv6 carries the tunnel, to home, which has IPv4 only. The server's name has both addresses.
fn ipv6_lost(laptop: &Laptop<'_>) -> Result<String> {
    let setup = Setup {
        access: Access::Cafe,
        host: VPN_NAME6,
        resolver: Resolver::Outside,
        ..Setup::default()
    };
    laptop.connect(setup)?.change(Access::Cafe, Access::Home)
}

/// DHCP gives another address on the same link.
fn new_address(laptop: &Laptop<'_>) -> Result<String> {
    laptop.connect(Setup::default())?.renumber()
}

/// The laptop sleeps for longer than the server may be silent.
fn suspend(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup { profile: IMPATIENT, ..Setup::default() })?;
    laptop.signal_all(Signal::SIGSTOP)?;
    std::thread::sleep(Duration::from_secs(6));
    laptop.signal_all(Signal::SIGCONT)?;
    let took = laptop.back(TIMEOUT)?;
    laptop.ensure_no_leak()?;
    laptop.end()?;
    Ok(format!("back after {} ms", took.as_millis()))
}

/// The laptop suspends at home and resumes at the café.
fn resume_on_another_network(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup { profile: IMPATIENT, ..Setup::default() })?;
    laptop.signal_all(Signal::SIGSTOP)?;
    laptop.internet.leave(Access::Home)?;
    std::thread::sleep(Duration::from_secs(6));
    laptop.internet.join(Access::Cafe)?;
    laptop.signal_all(Signal::SIGCONT)?;
    let took = laptop.back(TIMEOUT)?;
    laptop.ensure_no_leak()?;
    Ok(format!("back after {} ms", took.as_millis()))
}
