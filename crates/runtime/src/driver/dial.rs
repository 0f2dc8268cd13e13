//! Dialling a server: its name, the proxy in front of it, and its address.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use adit_engine::{Engine, Family, Input, Target, Transport};
use adit_linux::tcp::TcpStream;

use super::backend::Backend;
use super::resolve::{Lookup, resolve};
use super::sockets::Dialled;
use super::streams::ProxyTarget;
use super::{Driver, Event};

impl<E: Engine, B: Backend<Format = E::Format>> Driver<E, B> {
    /// Records that the last dialled server works. From now on its address is tried first.
    pub fn worked(&mut self) {
        if let Some((target, address)) = &self.dialled_last {
            self.book.worked(target, *address);
            self.book.save_addresses(target);
        }
    }

    /// Records that the last dialled address is no longer reachable. An address of the other family may still be.
    pub fn unreachable(&mut self) {
        if let Some((target, address)) = &self.dialled_last {
            self.book.unreachable(target, *address);
        }
    }

    pub(super) fn begin(&mut self, target: Target) {
        self.lookup = None;
        self.connect_to = None;
        self.streams.forget();
        let target = self.first_hop(target);
        if let Some(address) = self.book.next(&target) {
            self.open(&target, address);
            return;
        }
        let known = self.book.remembered(&target);
        let resolver = self.resolver.clone();
        let settings = self.sockets.dial_settings();
        let (tx, retry) = (self.looked_up.0.clone(), settings.resolve_retry);
        // `remote-random-hostname` applies to the server's name, not to the proxy's.
        let random = settings.random_hostname && self.proxy_target.is_none();
        self.lookup = Some(Lookup(tokio::spawn(async move {
            let found = resolve(target.clone(), retry, random, resolver, known).await;
            let _ = tx.send((target, found)).await;
        })));
    }

    /// Returns the target or, if there is a proxy in front of it, the proxy, which gets the target's name.
    fn first_hop(&mut self, target: Target) -> Target {
        let settings = self.sockets.dial_settings();
        let configured = target.proxy.and_then(|at| settings.proxies.get(usize::from(at)).cloned());
        let proxy = self.proxy_instead.take().unwrap_or(configured);
        self.connect_limit = target.wait.unwrap_or(settings.connect_timeout);
        self.proxy_target = None;
        let Some(proxy) = proxy else { return target };
        let (host, port) = (proxy.address().0.to_owned(), proxy.address().1);
        let hop = Target {
            host,
            port,
            transport: Transport::Tcp,
            family: Family::Any,
            ..Target::default()
        };
        let datagrams = target.transport == Transport::Udp;
        self.proxy_target =
            Some(ProxyTarget { proxy, host: target.host, port: target.port, datagrams });
        hop
    }

    pub(super) fn found(&mut self, target: Target, found: Result<Vec<SocketAddr>, String>) {
        let found = found.and_then(|addresses| {
            self.book
                .learn(&target, addresses)
                .ok_or_else(|| format!("RESOLVE: {} has no address", target.host))
        });
        match found {
            Ok(address) => self.open(&target, address),
            Err(problem) => self.dial_failed(problem),
        }
    }

    fn open(&mut self, target: &Target, address: SocketAddr) {
        self.dialled_last = Some((target.clone(), address));
        if target.transport == Transport::Tcp {
            self.connect_to = Some(address);
            self.events.push_back(Event::Dialling(address));
            return;
        }
        let dialled = self.sockets.dial(address, &self.backend);
        self.dialled(dialled);
    }

    pub(super) fn connect(&mut self, remote: SocketAddr) {
        match self.sockets.connect_options(remote) {
            Ok(options) => {
                self.streams.connect(options, self.connect_limit, self.proxy_target.take());
            }
            Err(problem) => self.dial_failed(problem),
        }
    }

    pub(super) fn connected(&mut self, stream: TcpStream) {
        let served = stream.peer_addr().and_then(|peer| {
            let link = self.stream_link(peer);
            let local = stream.local_addr()?;
            let dialled = Dialled {
                link,
                hop: peer,
                local,
                connection: Some(local),
                bound: self.sockets.dial_settings().bind_streams,
                descriptor: stream.as_fd().as_raw_fd(),
                buffers: None,
            };
            self.backend.add_stream(link, stream)?;
            Ok(dialled)
        });
        match served {
            Ok(dialled) => {
                let link = dialled.link;
                self.events.push_back(Event::Dialled(dialled));
                self.feed(Input::LinkUp(link));
            }
            Err(e) => self.dial_failed(format!("TCP: the connection broke at once: {e}")),
        }
    }

    pub(super) fn dialled(&mut self, dialled: Result<Dialled, String>) {
        match dialled {
            Ok(dialled) => {
                let link = dialled.link;
                self.events.push_back(Event::Dialled(dialled));
                self.feed(Input::LinkUp(link));
            }
            Err(problem) => self.dial_failed(problem),
        }
    }

    pub(super) fn dial_failed(&mut self, problem: String) {
        self.events.push_back(Event::DialFailed(problem.clone()));
        self.feed(Input::DialFailed(problem));
    }
}
