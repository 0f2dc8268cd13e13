//! Changes of a running server: the commands of a [`Handle`](crate::Handle), the requests of `adit filter`, and reloads.

use adit_engine::PeerId;
use adit_openvpn::server::Disconnect;
use adit_openvpn::tls::ServerTls;
use adit_runtime::control::{Request, Response};
use adit_runtime::fault::Fault;
use adit_runtime::filter;
use adit_runtime::host::HostPlan;
use adit_runtime::say;

use super::{Running, notes};
use crate::{Command, Selector};

impl Running<'_> {
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::Kick(who, disconnect, reason, reply) => {
                let _ = reply.send(self.kick(&who, disconnect, &reason));
            }
            Command::Visit(visit) => {
                self.refresh();
                visit(&self.sessions);
            }
            Command::SetTls(tls) => self.set_tls(*tls),
            // `handle` performs it, because it has to wait.
            Command::SetHost(_) => {}
            Command::SetOffer(offer) => {
                self.driver.act(|engine, now, out| engine.set_offer(now, *offer, out));
            }
        }
    }

    /// Changes the routes to the tunnel. Traffic continues.
    pub(super) async fn set_host(&mut self, plan: &HostPlan) {
        match self.host.change(plan).await {
            Ok(applied) => notes(applied).iter().for_each(|note| tracing::warn!("{note}")),
            Err(fault) => tracing::warn!("routes: not changed: {fault}"),
        }
    }

    pub(super) fn ask_filter(&mut self, request: &Request) -> Response {
        let answer = self.filter.as_mut().and_then(|filter| filter.answer(request));
        let answer = answer.unwrap_or_else(filter::none);
        if let Response::Done { .. } = answer {
            self.warn_of_unknown();
        }
        answer
    }

    /// Warns about rules that name unknown clients. These are valid but look like a mistake.
    pub(super) fn warn_of_unknown(&self) {
        if let (Some(filter), Some(known)) = (&self.filter, self.hooks.known()) {
            filter.unknown(&known).iter().for_each(|problem| tracing::warn!("{problem}"));
        }
    }

    pub(super) fn reload_all(&mut self) -> Result<(), Fault> {
        // If one of them cannot be read, the other is still read.
        let clients = self.reload_clients();
        if let Some(filter) = &mut self.filter {
            if let Some(file) = self.hooks.filter_file() {
                filter.configure(&file);
            }
            filter.reread()?;
            self.warn_of_unknown();
        }
        clients
    }

    /// Reloads everything except the rules.
    pub(super) fn reload_clients(&mut self) -> Result<(), Fault> {
        let tls = self.hooks.reload(&self.handle);
        if let Some(filter) = &mut self.filter {
            filter.regroup(|name| self.hooks.groups(name));
        }
        if let Some(tls) = tls? {
            self.set_tls(tls);
        }
        say!(1, "read certificates and settings again; no tunnel dropped");
        Ok(())
    }

    pub(super) fn set_tls(&mut self, tls: ServerTls) {
        self.driver.act(|engine, _, _| engine.set_tls(tls));
    }

    pub(super) fn kick(&mut self, who: &Selector, disconnect: Disconnect, reason: &str) -> usize {
        let chosen: Vec<PeerId> = self
            .sessions
            .iter()
            .filter(|session| match who {
                Selector::Name(name) => session.info.identity.common_name == *name,
                Selector::Serial(serial) => session.info.identity.serial == *serial,
                Selector::Peer(peer) => session.info.peer.0 == *peer,
                Selector::Session(number) => session.info.session == *number,
                Selector::Address(address) => {
                    let remote = session.info.link.remote();
                    (remote.ip().to_canonical(), remote.port()) == (address.ip(), address.port())
                }
            })
            .map(|session| session.info.peer)
            .collect();
        let ended = chosen.into_iter().filter(|&peer| {
            self.driver.act(|engine, now, out| engine.kick(now, peer, disconnect, reason, out))
        });
        ended.count()
    }
}
