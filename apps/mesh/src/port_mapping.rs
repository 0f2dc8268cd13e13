//! Maps the node's UDP port on its routers, with PCP (RFC 6887) or NAT-PMP (RFC 6886).
//!
//! ```text
//! routes ──► PortMapping's task ──► one task per default gateway ──► request, renew at half the lifetime, delete
//!                                                │
//!                                                └──► external addresses, as a watch channel
//! ```
//!
//! Only IPv4: a router's IPv6 address is link-local, and a request from a link-local address maps nothing that other
//! nodes can reach.

mod gateways;
mod lease;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use adit_runtime::say;
use crab_nat::TimeoutConfig;
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use gateways::{DefaultGateways, Gateway};
use lease::Lease;

/// The time that [`PortMapping::release`] waits for the gateways.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// The external addresses, by the gateway that has them.
type ExternalAddresses = BTreeMap<Gateway, SocketAddr>;

/// The intervals of requests.
#[derive(Clone, Copy)]
struct Timing {
    /// The requested lifetime, in seconds.
    lifetime: u32,
    /// The minimum time between renewals, however short the granted lifetime is.
    shortest_renewal: Duration,
    /// The time from the first failure to the next attempt. It doubles with each further failure.
    first_retry: Duration,
    /// The maximum time between attempts.
    longest_retry: Duration,
    /// The retransmissions of one request.
    request: TimeoutConfig,
    /// The retransmissions of a request that deletes a mapping.
    deletion: TimeoutConfig,
}

impl Default for Timing {
    fn default() -> Self {
        let transmissions = |retries| TimeoutConfig {
            initial_timeout: Duration::from_millis(250),
            max_retries: retries,
            max_retry_timeout: None,
        };
        Self {
            lifetime: 1200,
            // RFC 6887, section 11.2.1.
            shortest_renewal: Duration::from_secs(4),
            first_retry: Duration::from_secs(30),
            longest_retry: Duration::from_secs(3600),
            request: transmissions(3),
            deletion: transmissions(1),
        }
    }
}

impl Timing {
    /// Returns the time to wait after a failed attempt that followed a wait of `pause`.
    fn next_retry(&self, pause: Duration) -> Duration {
        pause.saturating_mul(2).min(self.longest_retry)
    }
}

/// Keeps a UDP port of this machine mapped at every IPv4 default gateway that supports it. Dropping it deletes the
/// mappings in the background.
#[derive(Debug)]
pub(crate) struct PortMapping {
    external: watch::Receiver<ExternalAddresses>,
    /// Ends the task when dropped.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl PortMapping {
    /// Starts a task that maps the port, renews the mappings, and follows changes of the default route. Call it inside a
    /// tokio runtime.
    pub(crate) fn start(port: NonZeroU16) -> Self {
        let gateways = stream::unfold(DefaultGateways::open(), async |mut gateways| {
            Some((gateways.next().await, gateways))
        });
        Self::start_at(gateways.boxed(), port, Timing::default())
    }

    /// Starts a task that maps the port at the gateways that a stream last yielded.
    fn start_at(
        mut gateways: impl Stream<Item = BTreeSet<Gateway>> + Unpin + Send + 'static,
        port: NonZeroU16,
        timing: Timing,
    ) -> Self {
        let (external, receiver) = watch::channel(ExternalAddresses::new());
        let (stop, mut stopped) = oneshot::channel();
        let mut mappings = Mappings::new(port, timing, external);
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    Some(now) = gateways.next() => mappings.set_gateways(&now),
                    _ = &mut stopped => break,
                }
            }
            mappings.release().await;
        });
        Self { external: receiver, stop, task }
    }

    /// Returns the addresses at which others currently reach the port.
    pub(crate) fn external_addresses(&self) -> Vec<SocketAddr> {
        self.external.borrow().values().copied().collect()
    }

    /// Deletes the mappings, and waits a moment for the gateways to confirm it.
    pub(crate) async fn release(self) {
        let Self { stop, task, .. } = self;
        drop(stop);
        if timeout(RELEASE_LIMIT, task).await.is_err() {
            tracing::debug!("port mapping: a gateway did not confirm the deletion in time");
        }
    }
}

/// The gateways at which the port is mapped, or should be.
struct Mappings {
    port: NonZeroU16,
    timing: Timing,
    external: watch::Sender<ExternalAddresses>,
    /// A sender for each gateway in use; its task ends when the sender is dropped.
    active: BTreeMap<Gateway, oneshot::Sender<()>>,
    tasks: JoinSet<()>,
}

impl Mappings {
    fn new(port: NonZeroU16, timing: Timing, external: watch::Sender<ExternalAddresses>) -> Self {
        Self { port, timing, external, active: BTreeMap::new(), tasks: JoinSet::new() }
    }

    /// Starts to map the port at new gateways, and deletes the mappings at previous ones.
    fn set_gateways(&mut self, wanted: &BTreeSet<Gateway>) {
        self.active.retain(|gateway, _| wanted.contains(gateway));
        while self.tasks.try_join_next().is_some() {}
        for gateway in wanted {
            if self.active.contains_key(gateway) {
                continue;
            }
            let (stop, stopped) = oneshot::channel();
            self.active.insert(*gateway, stop);
            let mapping = Mapping {
                gateway: *gateway,
                port: self.port,
                timing: self.timing,
                external: self.external.clone(),
                lease: None,
            };
            self.tasks.spawn(mapping.run(stopped));
        }
    }

    /// Deletes all mappings.
    async fn release(mut self) {
        self.active.clear();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The mapping at one gateway.
struct Mapping {
    gateway: Gateway,
    port: NonZeroU16,
    timing: Timing,
    external: watch::Sender<ExternalAddresses>,
    lease: Option<Lease>,
}

impl Mapping {
    /// Keeps the port mapped until `stopped`, then deletes the mapping.
    async fn run(mut self, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            () = self.keep() => {}
            _ = stopped => {}
        }
        self.report(None);
        if let Some(lease) = self.lease
            && let Err(failure) = lease.delete(self.timing.deletion).await
        {
            tracing::debug!("port mapping: {}: not deleted: {failure}", self.gateway);
        }
    }

    /// Obtains a lease and renews it forever.
    async fn keep(&mut self) {
        let mut retry = self.timing.first_retry;
        let mut reported = false;
        loop {
            let lease = self.lease.as_ref();
            let pause = match Lease::obtain(self.gateway, self.port, &self.timing, lease).await {
                Ok(lease) => {
                    self.report(Some(&lease));
                    (retry, reported) = (self.timing.first_retry, false);
                    let pause = lease.renewal(&self.timing);
                    self.lease = Some(lease);
                    pause
                }
                Err(failure) => {
                    // Most routers support neither protocol, so one line is enough.
                    if !reported {
                        say!(3, "port mapping: {}: not available: {failure}", self.gateway);
                    }
                    reported = true;
                    let pause = retry;
                    retry = self.timing.next_retry(retry);
                    self.check_expiry(pause)
                }
            };
            sleep(pause).await;
        }
    }

    /// Drops an expired lease. Returns the time to wait: `pause`, or less if the lease expires sooner.
    fn check_expiry(&mut self, pause: Duration) -> Duration {
        let Some(lease) = &self.lease else { return pause };
        let left = lease.expires.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.lease = None;
            self.report(None);
            return pause;
        }
        pause.min(left)
    }

    /// Publishes the external address if it differs from the last one.
    fn report(&self, lease: Option<&Lease>) {
        let external = lease.map(|lease| lease.external);
        let differs = self.external.send_if_modified(|addresses| {
            let former = match external {
                Some(address) => addresses.insert(self.gateway, address),
                None => addresses.remove(&self.gateway),
            };
            former != external
        });
        match lease {
            Some(lease) if differs => say!(1, "port mapping: {}: {lease}", self.gateway),
            None if differs => say!(1, "port mapping: {}: ended", self.gateway),
            _ => {}
        }
    }
}
