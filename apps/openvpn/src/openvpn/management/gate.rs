//! The questions before an attempt to connect: `management-hold`, `management-query-remote` and
//! `management-query-proxy`.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_engine::{Target, Transport};
use adit_openvpn::config::{Options, Role};
use adit_runtime::driver::{DialGate, Passage, PassageFuture};
use adit_runtime::proxy::{HttpProxy, Proxy, Scheme, SocksProxy};

use super::question::{Answer, ProxyChoice, Question, RemoteChoice};
use super::{Handle, StateName, protocol};

/// The gate of a client, or of a point-to-point end that dials.
pub(super) struct Gate {
    handle: Handle,
    targets: Arc<[Target]>,
    query_remote: bool,
    query_proxy: bool,
    /// Whether an attempt has begun. Before the first one, the program has already held.
    begun: AtomicBool,
}

impl Handle {
    /// Returns the gate for attempts to connect.
    pub(crate) fn gate(&self, options: &Options) -> Arc<dyn DialGate> {
        let targets = match &options.role {
            Role::Client(client) => client.dial.remotes.clone(),
            Role::Peer(peer) => peer.dial.remotes.clone(),
            Role::Server(_) => Vec::new(),
        };
        let settings = options.management.as_ref();
        let query_remote = settings.is_some_and(|settings| settings.query_remote);
        let query_proxy = settings.is_some_and(|settings| settings.query_proxy);
        Arc::new(self.gate_of(targets, query_remote, query_proxy))
    }

    /// Reports that the name of a server is looked up, if it is a name.
    fn resolving(&self, target: &Target) {
        if target.host.parse::<IpAddr>().is_err() {
            self.state(&StateName::Resolve.into());
        }
    }

    pub(super) fn gate_of(
        &self,
        targets: Vec<Target>,
        query_remote: bool,
        query_proxy: bool,
    ) -> Gate {
        Gate {
            handle: self.clone(),
            targets: targets.into(),
            query_remote,
            query_proxy,
            begun: AtomicBool::new(false),
        }
    }
}

impl DialGate for Gate {
    fn decide(&self, target: &Target) -> Option<PassageFuture> {
        let held = self.handle.0.held.swap(false, Ordering::Relaxed);
        let hold = self.begun.swap(true, Ordering::Relaxed) && !held && self.handle.holds();
        if !hold && !self.query_remote && !self.query_proxy {
            self.handle.resolving(target);
            return None;
        }
        let (handle, targets) = (self.handle.clone(), Arc::clone(&self.targets));
        let (query_remote, query_proxy) = (self.query_remote, self.query_proxy);
        let mut target = target.clone();
        Some(Box::pin(async move {
            if hold {
                handle.answer(Question::Hold(0)).await;
            }
            if query_remote {
                target = remote(&handle, &targets, target).await;
            }
            let proxy = if query_proxy { proxy(&handle, &targets, &target).await } else { None };
            handle.resolving(&target);
            Passage { target, proxy }
        }))
    }
}

/// Asks for the server, and for the next one if it is to be skipped.
async fn remote(handle: &Handle, targets: &[Target], mut target: Target) -> Target {
    let mut at = targets.iter().position(|known| *known == target).unwrap_or(0);
    loop {
        let (host, port) = (target.host.clone(), target.port);
        let protocol = protocol(&target);
        match handle.answer(Question::Remote { host, port, protocol }).await {
            Some(Answer::Remote(RemoteChoice::Modify(host, port))) => {
                return Target { host, port, ..target };
            }
            Some(Answer::Remote(RemoteChoice::Skip(count))) => {
                let all = targets.len().max(1);
                at = at.saturating_add(count).checked_rem(all).unwrap_or(0);
                if let Some(next) = targets.get(at) {
                    target = next.clone();
                }
            }
            _ => return target,
        }
    }
}

/// Asks for the proxy.
async fn proxy(handle: &Handle, targets: &[Target], target: &Target) -> Option<Option<Arc<Proxy>>> {
    let at =
        targets.iter().position(|known| known.port == target.port && known.host == target.host);
    let question = Question::Proxy {
        number: at.unwrap_or(0).saturating_add(1),
        transport: match target.transport {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
        },
        host: target.host.clone(),
    };
    match handle.answer(question).await {
        Some(Answer::Proxy(ProxyChoice::Http { host, port, hidden })) => {
            let scheme = if hidden { Scheme::Hidden } else { Scheme::Auto };
            let (version, agent, headers) = ("1.0".to_owned(), None, Vec::new());
            let http = HttpProxy { host, port, login: None, scheme, version, agent, headers };
            Some(Some(Arc::new(Proxy::Http(http))))
        }
        Some(Answer::Proxy(ProxyChoice::Socks { host, port })) => {
            Some(Some(Arc::new(Proxy::Socks(SocksProxy { host, port, login: None }))))
        }
        Some(Answer::Proxy(ProxyChoice::None)) => Some(None),
        _ => None,
    }
}
