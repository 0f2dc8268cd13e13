//! Passes the sessions of a running server to the next process, and continues those of a former one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use adit_dataplane::StreamOptions;
use adit_engine::command::Counters;
use adit_engine::{Link, PeerId, SocketId};
use adit_linux::fd_store;
use adit_linux::tcp::TcpStream;
use adit_linux::tun::TunDevice;
use adit_linux::udp::UdpSocket;
use adit_openvpn::server::SavedServer;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::control::Response;
use adit_runtime::driver::Sockets;
use adit_runtime::fault::Fault;
use adit_runtime::filter::LiveFilter;
use adit_runtime::log;
use adit_runtime::say;

use super::Running;
use crate::handover::{self, Parts, Passing, State, Store};

/// The time in which the exchanges with clients that are in progress may end before the sessions are handed over.
const QUIET_WITHIN: Duration = Duration::from_secs(2);
/// How often the end of these exchanges is looked for.
const QUIET_CHECK: Duration = Duration::from_millis(10);

/// What is needed to pass the sessions to another process.
pub(super) struct HandOver {
    settings: String,
    obstacle: Option<&'static str>,
    /// The store, with the descriptors for it. `None` if the service manager has no store.
    store: Option<(Store, Passing)>,
    /// Whether the sessions pass to another process at the end.
    wanted: bool,
}

impl HandOver {
    pub(super) fn prepare(
        setup: &mut handover::Setup,
        tun: Option<&TunDevice>,
        sockets: &Sockets,
    ) -> Self {
        let passing = tun.and_then(|tun| {
            Passing::of(tun, sockets)
                .inspect_err(|e| tracing::warn!("sessions cannot be handed over: {e}"))
                .ok()
        });
        let (settings, obstacle) = (std::mem::take(&mut setup.settings), setup.obstacle);
        Self { settings, obstacle, store: setup.store.take().zip(passing), wanted: false }
    }
}

impl Running<'_> {
    /// Decides whether the sessions can continue in a process with this version and these settings.
    pub(super) fn may_hand_over(&mut self, version: u32, settings: &str) -> Response {
        let refused = |message: String| Response::Error { message };
        if let Some(obstacle) = self.hand_over.obstacle {
            return refused(format!("{obstacle} cannot be handed over"));
        }
        if self.hand_over.store.is_none() {
            return refused("the service manager keeps no descriptors (NOTIFY_SOCKET)".into());
        }
        if let Err(reason) = handover::check(version, settings, &self.hand_over.settings) {
            return refused(reason);
        }
        self.hand_over.wanted = true;
        Response::Done { count: self.sessions.len() }
    }

    /// Ends the service. Returns whether the sessions continue in another process.
    pub(super) async fn finish(mut self) -> bool {
        let store = self.hand_over.store.take().filter(|_| self.hand_over.wanted);
        let Some((store, passing)) = store.filter(|(store, _)| store.answers()) else {
            self.end(0).await;
            return false;
        };
        self.wait_for_quiet().await;
        let room = fd_store::room();
        let server = self.driver.act(|engine, _, _| engine.save(room));
        let count = self.driver.engine().stream_sessions();
        if count > 0 && server.links().filter(Link::is_stream).count() == room {
            tracing::warn!(
                "{count} sessions over TCP end, and their clients connect again: the limit of open files (LimitNOFILE) has \
                 room for {room} of them in the next process"
            );
        }
        self.end(server.peers().count()).await;
        match self.pass(server, store, passing) {
            Ok(count) => {
                say!(1, "{count} sessions handed over to the next process");
                true
            }
            Err(fault) => {
                log::error(&fault.to_string());
                false
            }
        }
    }

    /// Begins nothing more, and waits until nothing is in progress.
    async fn wait_for_quiet(&mut self) {
        self.driver.act(|engine, _, _| engine.pause());
        let until = now() + QUIET_WITHIN;
        while !self.driver.engine().is_quiet() && now() < until {
            match tokio::time::timeout(QUIET_CHECK, self.driver.next()).await {
                Ok(Ok(event)) => self.driver_event(event),
                Ok(Err(_)) => return,
                Err(_) => {}
            }
        }
    }

    /// Stops the data plane, and passes the sessions on. Returns their number.
    fn pass(
        self,
        mut server: SavedServer,
        mut store: Store,
        mut passing: Passing,
    ) -> Result<usize, Fault> {
        let Self { hooks, driver, mut sessions, hand_over, filter, .. } = self;
        let (mut peers, mut streams) = driver.into_backend().into_plane().stop();
        let data: HashMap<PeerId, Counters> =
            peers.iter().map(|peer| (peer.id, peer.counters)).collect();
        server.set_traffic(|peer| data.get(&peer).copied());
        let total: HashMap<PeerId, Counters> = server.traffic().collect();
        // The next process counts from here.
        sessions.refresh(now(), unix_time().0, |peer| total.get(&peer).copied());
        let _ = hooks.tick(&sessions);
        peers.retain(|peer| total.contains_key(&peer.id));
        // If the next process cannot take all, it takes those of the oldest sessions.
        let places: HashMap<Link, usize> = server.links().zip(0..).collect();
        streams.retain(|(stream, _)| places.contains_key(&stream.link));
        streams.sort_by_key(|(stream, _)| places.get(&stream.link).copied());
        let (streams, sockets) = streams.into_iter().unzip();
        passing.add_streams(sockets);
        let device = passing.device.clone();
        let filter = filter.as_ref().map(LiveFilter::save);
        let parts = Parts { server, peers, streams, filter };
        let state = State::new(hand_over.settings, device, parts);
        store.pass(&state, &passing)?;
        Ok(total.len())
    }

    /// Continues the sessions of a former process, and then serves the sockets.
    pub(super) fn take_over(
        &mut self,
        state: State,
        streams: Vec<Option<TcpStream>>,
        sockets: &[(SocketId, Arc<UdpSocket>)],
        options: StreamOptions,
    ) {
        let State { server, peers, streams: states, filter, .. } = state;
        // Without a filter before, connections are picked up in the middle.
        if let (Some(live), Some(saved)) = (&mut self.filter, filter) {
            live.resume(saved);
        }
        let restored = self.driver.act(|engine, now, out| engine.restore(now, server, out));
        while let Some(event) = self.driver.perform() {
            self.driver_event(event);
        }
        let links = restored.iter().map(|(_, link)| *link).filter(Link::is_stream);
        let mut lost: HashSet<Link> = links.collect();
        let restored: HashSet<PeerId> = restored.into_iter().map(|(peer, _)| peer).collect();
        let plane = self.driver.backend().plane();
        peers.iter().filter(|peer| restored.contains(&peer.id)).for_each(|peer| plane.resume(peer));
        for (stream, socket) in states.iter().zip(streams) {
            let resumed = socket.map(|socket| plane.resume_stream(stream, socket, options));
            if matches!(resumed, Some(Ok(()))) {
                lost.remove(&stream.link);
            }
        }
        for id in sockets.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>() {
            let group = sockets.iter().filter(|(other, _)| *other == id);
            plane.add_sockets(id, group.map(|(_, socket)| Arc::clone(socket)).collect());
        }
        let count = restored.len().saturating_sub(lost.len());
        say!(1, "{count} sessions of the former process continue");
        if !lost.is_empty() {
            tracing::warn!(
                "{} sessions of the former process over TCP end: their connections were closed, or are more than the limit \
                 of open files (LimitNOFILE) has room for",
                lost.len()
            );
        }
        states.iter().for_each(|stream| self.driver.follow_stream(stream.link));
        lost.into_iter().for_each(|link| self.driver.lose_stream(link));
    }
}
