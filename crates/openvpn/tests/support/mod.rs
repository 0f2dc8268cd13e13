//! A server, its clients and the links between them, in virtual time, which simulates hours of
//! protocol in milliseconds.

// `to_server` and `to_client` are directions here, not conversions.
#![allow(dead_code, unused_imports, clippy::wrong_self_convention)]

mod data_plane;
mod pki;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::auth::Connecting;
use adit_engine::{Engine, Identity, Instant, Link, PeerId, UnixTime, auth};
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent, Remote};
use adit_openvpn::data_format::{Command, Input, Notice, Outbox, Output};
use adit_openvpn::server::{ServerConfig, ServerEngine, ServerEvent};
use adit_openvpn::session::Settings;
use adit_openvpn::tls::ServerTls;
use adit_sim::{Impairment, Pipe};

pub(crate) use data_plane::{Datagram, Peer, PlaneModel};
pub(crate) use pki::{
    client_tls, client_tls_named, foreign_client_tls, nameless_client_tls, server_tls,
    server_tls_named, server_tls_with,
};

pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000_000);
const UNIX: UnixTime = UnixTime(1_800_000_000);

/// A packet on a simulated wire.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    Control(Vec<u8>),
    Data(Datagram),
    /// The end of a stream.
    Fin(u64),
}

/// A client with its own link to the server.
pub(crate) struct ClientNode {
    pub engine: ClientEngine,
    pub plane: PlaneModel,
    pub events: Vec<ClientEvent>,
    pub address: SocketAddr,
    pub up: Pipe<Packet>,
    pub down: Pipe<Packet>,
    /// Whether the client exchanges a data packet in each direction every 10 ms.
    pub traffic: bool,
    seed: u8,
    impairment: Impairment,
    /// The stream of the client, if it uses one.
    pub stream: Option<u64>,
    /// The targets that it dialled, in order.
    pub dialled: Vec<adit_engine::Target>,
    /// The numbers of bytes in control packets that reached the server, and that the server sent.
    pub control: (u64, u64),
    /// The requests of the client, which the test answers.
    pub requests: Vec<(auth::RequestId, auth::Request)>,
}

pub(crate) struct World {
    pub now: Instant,
    pub server: ServerEngine,
    pub plane: PlaneModel,
    pub events: Vec<ServerEvent>,
    pub clients: Vec<ClientNode>,
    /// The response of the registry to each request.
    pub reply: auth::Response,
    /// Whether the registry is slow, in which case requests wait here until the test answers them.
    pub slow_registry: bool,
    pub asked: Vec<auth::RequestId>,
    /// The password in the last authorization request.
    pub password: Option<String>,
    /// The latest authorization requests.
    pub identities: Vec<Identity>,
    /// The requests about clients' keys.
    pub keys: Vec<Identity>,
    /// Whether such a request waits in `asked` until the test answers it; otherwise it is accepted.
    pub slow_keys: bool,
    /// The requests about stations, which wait in `asked`.
    pub stations: Vec<auth::Station>,
    /// The latest requests about clients that are authorized.
    pub connecting: Vec<Connecting>,
    /// The response to them, or `None` to accept them with the parameters so far.
    pub connect_reply: Option<auth::Response>,
    /// Whether such a request waits in `asked` until the test answers it.
    pub slow_connect: bool,
    /// The most recent session ids of client and server on the wire.
    pub session_ids: ([u8; 8], [u8; 8]),
    next_traffic: Instant,
    next_stream: u64,
    /// Whether there is no listener for streams.
    pub no_streams: bool,
    /// The links that the server closed.
    pub hung_up: Vec<Link>,
    /// Copies of the latest control packets, if a test requests them.
    pub wiretap: Option<Wiretap>,
    /// The maximum number of outputs of one input.
    pub most_outputs: usize,
}

/// The latest control packets on the wire, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Wiretap {
    packets: VecDeque<(bool, Vec<u8>)>,
}

impl Wiretap {
    /// The number of packets kept.
    const KEPT: usize = 64;

    fn keep(&mut self, to_server: bool, packet: &[u8]) {
        self.packets.push_back((to_server, packet.to_vec()));
        if self.packets.len() > Self::KEPT {
            self.packets.pop_front();
        }
    }

    /// Returns a packet in one direction, counted from the newest.
    pub(crate) fn packet(&self, to_server: bool, back: usize) -> Option<&[u8]> {
        let mut packets = self.packets.iter().rev().filter(|(way, _)| *way == to_server);
        packets.nth(back).map(|(_, packet)| packet.as_slice())
    }
}

pub(crate) fn server_address() -> SocketAddr {
    "192.0.2.1:1194".parse().expect("an address")
}

pub(crate) fn server_config(settings: Settings) -> ServerConfig {
    server_config_with(settings, server_tls())
}

pub(crate) fn server_config_with(settings: Settings, tls: ServerTls) -> ServerConfig {
    ServerConfig {
        settings,
        tls,
        network4: Some(adit_openvpn::server::Network4::subnet(
            "10.9.0.1/24".parse().expect("a network"),
            "10.9.0.2".parse().expect("an address"),
            "10.9.0.254".parse().expect("an address"),
        )),
        network6: Some(adit_openvpn::server::Network6 {
            server: "fd00::1/64".parse().expect("a network"),
            first: "fd00::1000".parse().expect("an address"),
        }),
        push: vec!["route 10.77.0.0 255.255.0.0".into()],
        push_keepalive: None,
        max_clients: 100,
        duplicate_cn: false,
        leases: Vec::new(),
        force_cookie: false,
        authorize: false,
        checks: Default::default(),
        compress_migrate: false,
        vlans: None,
    }
}

pub(crate) fn client_config(settings: Settings) -> ClientConfig {
    let target = adit_engine::Target {
        host: "vpn.example".into(),
        port: 1194,
        transport: Default::default(),
        family: Default::default(),
        ..Default::default()
    };
    ClientConfig::new(settings, client_tls(), vec![Remote { target }])
}

impl World {
    pub(crate) fn new(config: ServerConfig, seed: u64) -> Self {
        let server = ServerEngine::new(config, seed_bytes(seed, 0), START, UNIX).expect("a server");
        Self {
            now: START,
            server,
            plane: PlaneModel::default(),
            events: Vec::new(),
            clients: Vec::new(),
            reply: auth::Response::Accept(auth::ClientParams::default()),
            slow_registry: false,
            asked: Vec::new(),
            password: None,
            identities: Vec::new(),
            keys: Vec::new(),
            slow_keys: false,
            stations: Vec::new(),
            connecting: Vec::new(),
            connect_reply: None,
            slow_connect: false,
            session_ids: Default::default(),
            next_traffic: START,
            next_stream: 1,
            no_streams: false,
            hung_up: Vec::new(),
            wiretap: None,
            most_outputs: 0,
        }
    }

    /// Adds a client with its own link, which begins to dial.
    pub(crate) fn connect(
        &mut self,
        config: ClientConfig,
        impairment: Impairment,
        seed: u64,
    ) -> usize {
        let n = self.clients.len() as u8;
        let client_seed = n.wrapping_mul(4).wrapping_add(1);
        let pipe = |which| Pipe::new(impairment.clone(), seed_bytes(seed, client_seed + which));
        self.clients.push(ClientNode {
            engine: ClientEngine::new(config, seed_bytes(seed, client_seed), self.now, UNIX),
            plane: PlaneModel::default(),
            events: Vec::new(),
            address: SocketAddr::from(([198, 51, 100, n], 40_000)),
            up: pipe(1),
            down: pipe(2),
            traffic: false,
            seed: client_seed,
            impairment,
            stream: None,
            dialled: Vec::new(),
            control: (0, 0),
            requests: Vec::new(),
        });
        self.clients.len() - 1
    }

    /// Runs until `done`, or until this time has passed. Returns true if `done` was reached.
    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        let mut idle_steps = 0;
        loop {
            self.step();
            if done(self) {
                return true;
            }
            match self.next() {
                Some(at) if at <= end => {
                    idle_steps = if at > self.now { 0 } else { idle_steps + 1 };
                    let busy =
                        (self.server.deadline(), self.clients.first().map(|c| c.engine.deadline()));
                    assert!(
                        idle_steps < 1000,
                        "time stands still: an engine is due and does nothing: {busy:?}"
                    );
                    self.now = at.max(self.now);
                }
                _ => {
                    self.now = end;
                    return false;
                }
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let clients = self.clients.iter().flat_map(|client| {
            let traffic = client.traffic.then_some(self.next_traffic);
            let engine = client.engine.deadline().map(|(at, _)| at);
            [engine, client.up.next_arrival(), client.down.next_arrival(), traffic]
        });
        clients.chain([self.server.deadline().map(|(at, _)| at)]).flatten().min()
    }

    /// Performs all work that is due now.
    fn step(&mut self) {
        self.exchange_traffic();
        if self.server.deadline().is_some_and(|(at, _)| at <= self.now) {
            self.to_server(Input::Tick);
        }
        for n in 0..self.clients.len() {
            if self.clients[n].engine.deadline().is_some_and(|(at, _)| at <= self.now) {
                self.to_client(n, Input::Tick);
            }
            while let Some(packet) = self.clients[n].up.pop(self.now) {
                self.server_receives(n, packet);
            }
            while let Some(packet) = self.clients[n].down.pop(self.now) {
                self.client_receives(n, packet);
            }
        }
    }

    fn exchange_traffic(&mut self) {
        if self.next_traffic > self.now {
            return;
        }
        self.next_traffic = self.now + Duration::from_millis(10);
        for client in self.clients.iter_mut().filter(|client| client.traffic) {
            for (_, datagram) in client.plane.send_to_all() {
                client.up.push(self.now, Packet::Data(datagram));
            }
        }
        for (link, datagram) in self.plane.send_to_all() {
            if let Some(client) =
                self.clients.iter_mut().find(|c| c.address == link.remote() && c.traffic)
            {
                client.down.push(self.now, Packet::Data(datagram));
            }
        }
    }

    fn server_receives(&mut self, n: usize, packet: Packet) {
        let link = self.server_link(n);
        match packet {
            Packet::Fin(id) => {
                let link = Link::stream(id, self.clients[n].address);
                self.to_server(Input::LinkDown(link));
            }
            Packet::Control(mut bytes) => {
                self.session_ids.0 = bytes[1..9].try_into().expect("eight bytes");
                self.clients[n].control.0 += bytes.len() as u64;
                self.to_server(Input::ControlPacket(link, &mut bytes));
            }
            Packet::Data(datagram) => {
                for notice in self.plane.receive(link, datagram) {
                    self.to_server(Input::Notice(notice));
                }
            }
        }
    }

    fn client_receives(&mut self, n: usize, packet: Packet) {
        let link = self.client_link(n);
        match packet {
            Packet::Fin(id) if self.clients[n].stream == Some(id) => {
                self.clients[n].stream = None;
                self.to_client(n, Input::LinkDown(link));
            }
            Packet::Fin(_) => {}
            Packet::Control(mut bytes) => {
                self.session_ids.1 = bytes[1..9].try_into().expect("eight bytes");
                self.to_client(n, Input::ControlPacket(link, &mut bytes));
            }
            Packet::Data(datagram) => {
                for notice in self.clients[n].plane.receive(link, datagram) {
                    self.to_client(n, Input::Notice(notice));
                }
            }
        }
    }

    pub(crate) fn to_server(&mut self, input: Input<'_>) {
        let mut out = Outbox::new();
        self.server.handle(self.now, input, &mut out);
        self.perform_server(out);
    }

    /// Checks that a client's addresses were reported before a command that lets packets use them.
    fn was_told_before(&self, op: &Command) {
        if let Command::SetRoutes(id, routes) = op {
            let said = |peer: PeerId, prefixes: &[ipnet::IpNet]| peer == *id && prefixes == routes;
            assert!(
                matches!(self.events.last(), Some(ServerEvent::Addresses(a)) if said(a.peer, &a.prefixes)),
                "{:?}",
                self.events.last()
            );
        }
    }

    pub(crate) fn perform_server(&mut self, mut out: Outbox<ServerEvent>) {
        let mut again = Vec::new();
        let mut outputs = 0;
        while let Some(output) = out.pop() {
            outputs += 1;
            match output {
                Output::Send(link, frame) => {
                    self.wiretap.iter_mut().for_each(|tap| tap.keep(false, &frame));
                    if let Some(c) = self.clients.iter_mut().find(|c| c.is_behind(link)) {
                        c.control.1 += frame.len() as u64;
                        c.down.push(self.now, Packet::Control(frame));
                    }
                }
                Output::Plane(op) => {
                    self.was_told_before(&op);
                    again.extend(self.plane.apply(op).map(Again::Notice));
                }
                Output::AuthRequest(ticket, request) => {
                    again.extend(self.server_asks(ticket, request));
                }
                Output::Event(event) => self.events.push(event),
                Output::Hangup(link) => {
                    self.hung_up.push(link);
                    if let Some(id) = link.stream_id()
                        && let Some(c) = self.clients.iter_mut().find(|c| c.is_behind(link))
                    {
                        c.down.push(self.now, Packet::Fin(id));
                    }
                }
                Output::Dial(_) => {}
            }
        }
        self.most_outputs = self.most_outputs.max(outputs);
        for item in again {
            match item {
                Again::Notice(notice) => self.to_server(Input::Notice(notice)),
                Again::Authorize(ticket) => {
                    self.to_server(Input::AuthResponse(ticket, self.reply.clone()));
                }
                Again::Connect(ticket, response) => {
                    self.to_server(Input::AuthResponse(ticket, response));
                }
            }
        }
    }

    /// Records a request of the server. Returns how it is answered, unless the registry is slow.
    fn server_asks(&mut self, ticket: auth::RequestId, request: auth::Request) -> Option<Again> {
        // Long simulations would otherwise collect thousands of certificates.
        const KEPT: usize = 64;
        match request {
            auth::Request::VerifyKey(identity) => {
                self.keys.push(*identity);
                if !self.slow_keys {
                    let response = auth::Response::Accept(auth::ClientParams::default());
                    return Some(Again::Connect(ticket, response));
                }
            }
            auth::Request::Learn(station) => self.stations.push(station),
            auth::Request::Authorize(identity) => {
                self.password = identity.password.as_ref().map(|password| password.to_string());
                if self.identities.len() >= KEPT {
                    self.identities.remove(0);
                }
                self.identities.push(*identity);
                if !self.slow_registry {
                    return Some(Again::Authorize(ticket));
                }
            }
            auth::Request::Connect(connecting) => {
                let params = connecting.params.clone();
                if self.connecting.len() >= KEPT {
                    self.connecting.remove(0);
                }
                self.connecting.push(*connecting);
                if !self.slow_connect {
                    let response = self.connect_reply.clone();
                    let response = response.unwrap_or(auth::Response::Accept(params));
                    return Some(Again::Connect(ticket, response));
                }
            }
            other => panic!("a server asks {other:?}"),
        }
        self.asked.push(ticket);
        None
    }

    pub(crate) fn to_client(&mut self, n: usize, input: Input<'_>) {
        let mut out = Outbox::new();
        self.clients[n].engine.handle(self.now, input, &mut out);
        self.perform_client(n, out);
    }

    pub(crate) fn perform_client(&mut self, n: usize, mut out: Outbox<ClientEvent>) {
        let mut dialled = None;
        let client = &mut self.clients[n];
        let mut notices = Vec::new();
        let mut outputs = 0;
        while let Some(output) = out.pop() {
            outputs += 1;
            match output {
                Output::Send(_, frame) => {
                    self.wiretap.iter_mut().for_each(|tap| tap.keep(true, &frame));
                    client.up.push(self.now, Packet::Control(frame));
                }
                Output::Plane(op) => notices.extend(client.plane.apply(op)),
                Output::Dial(target) => {
                    client.dialled.push(target.clone());
                    dialled = Some(target);
                }
                Output::Event(event) => client.events.push(event),
                Output::Hangup(link) if link.is_stream() => {
                    if let Some(id) = client.stream.take() {
                        client.up.push(self.now, Packet::Fin(id));
                    }
                }
                Output::AuthRequest(id, request) => client.requests.push((id, request)),
                Output::Hangup(_) => {}
            }
        }
        self.most_outputs = self.most_outputs.max(outputs);
        for notice in notices {
            self.to_client(n, Input::Notice(notice));
        }
        let Some(target) = dialled else { return };
        if target.transport == adit_engine::Transport::Tcp {
            return self.open_stream(n);
        }
        let link = Link::datagram(Default::default(), None, server_address());
        self.to_client(n, Input::LinkUp(link));
    }

    /// Opens a new connection for a client, from another port.
    fn open_stream(&mut self, n: usize) {
        if self.no_streams {
            return self.to_client(n, Input::DialFailed("Connection refused".into()));
        }
        let id = self.next_stream;
        self.next_stream += 1;
        // Packets in transit on the previous stream are lost with it, except for its end.
        while let Some(packet) = self.clients[n].up.pop(self.now + Duration::from_secs(3600)) {
            if matches!(packet, Packet::Fin(_)) {
                self.server_receives(n, packet);
            }
        }
        let client = &mut self.clients[n];
        let delay = Impairment { delay: client.impairment.delay, ..Impairment::default() };
        let pipe = |which| Pipe::new(delay.clone(), seed_bytes(id, client.seed + which));
        (client.up, client.down) = (pipe(1), pipe(2));
        client.stream = Some(id);
        let port = client.address.port() + 1;
        client.address.set_port(port);
        let link = self.server_link(n);
        self.to_server(Input::LinkUp(link));
        self.to_client(n, Input::LinkUp(Link::stream(id, server_address())));
    }

    /// Breaks the connection. Both ends notice it, and packets in transit are lost.
    pub(crate) fn cut(&mut self, n: usize) {
        let (server, client) = (self.server_link(n), self.client_link(n));
        while self.clients[n].up.pop(self.now + Duration::from_secs(3600)).is_some() {}
        while self.clients[n].down.pop(self.now + Duration::from_secs(3600)).is_some() {}
        self.clients[n].stream = None;
        self.to_server(Input::LinkDown(server));
        self.to_client(n, Input::LinkDown(client));
    }

    /// Returns the link of a client at the server.
    pub(crate) fn server_link(&self, n: usize) -> Link {
        let client = &self.clients[n];
        match client.stream {
            Some(id) => Link::stream(id, client.address),
            None => Link::datagram(Default::default(), None, client.address),
        }
    }

    /// Returns a client's link as the client itself sees it.
    pub(crate) fn client_link(&self, n: usize) -> Link {
        match self.clients[n].stream {
            Some(id) => Link::stream(id, server_address()),
            None => Link::datagram(Default::default(), None, server_address()),
        }
    }

    /// Delivers a packet from an unauthenticated sender at `address`, and returns the server's
    /// answers.
    pub(crate) fn stranger(&mut self, address: SocketAddr, packet: &[u8]) -> Vec<Vec<u8>> {
        let link = Link::datagram(Default::default(), None, address);
        let mut out = Outbox::new();
        self.server.handle(self.now, Input::ControlPacket(link, &mut packet.to_vec()), &mut out);
        let mut answers = Vec::new();
        while let Some(output) = out.pop() {
            match output {
                Output::Send(to, frame) if to.remote() == address => answers.push(frame),
                Output::Send(to, _) => panic!("an answer to another address: {to:?}"),
                Output::Plane(op) => assert!(self.plane.apply(op).is_none()),
                Output::Event(event) => self.events.push(event),
                other => panic!("{other:?}"),
            }
        }
        answers
    }

    /// Takes the packets that a client has in transit to the server.
    pub(crate) fn capture(&mut self, n: usize) -> Vec<Vec<u8>> {
        let far = self.now + Duration::from_secs(3600);
        std::iter::from_fn(|| self.clients[n].up.pop(far))
            .filter_map(|packet| match packet {
                Packet::Control(bytes) => Some(bytes),
                Packet::Data(_) | Packet::Fin(_) => None,
            })
            .collect()
    }

    /// Lets the client's engine act without delivering anything.
    pub(crate) fn tick_client(&mut self, n: usize) {
        self.to_client(n, Input::Tick);
    }

    /// Returns the reasons that the server reported for clients' disconnects.
    pub(crate) fn downs(&self) -> Vec<String> {
        self.events
            .iter()
            .filter_map(|event| match event {
                ServerEvent::ClientDown(_, reason, _) => Some(reason.to_string()),
                _ => None,
            })
            .collect()
    }

    /// Returns the number of times that the client has connected.
    pub(crate) fn ups(&self, n: usize) -> usize {
        self.clients[n].events.iter().filter(|e| matches!(e, ClientEvent::Up(_))).count()
    }

    pub(crate) fn is_up(&self, n: usize) -> bool {
        self.ups(n) > 0
    }

    /// Returns the number of rekeys at the client.
    pub(crate) fn rekeys(&self, n: usize) -> usize {
        self.clients[n].events.iter().filter(|e| matches!(e, ClientEvent::Rekeyed { .. })).count()
    }

    /// Changes the client's address, as after a NAT has lost its mapping.
    pub(crate) fn rebind(&mut self, n: usize) {
        let port = self.clients[n].address.port();
        self.clients[n].address.set_port(port + 1);
    }
}

impl ClientNode {
    fn is_behind(&self, link: Link) -> bool {
        self.address == link.remote() && (!link.is_stream() || link.stream_id() == self.stream)
    }
}

enum Again {
    Notice(Notice),
    Authorize(auth::RequestId),
    Connect(auth::RequestId, auth::Response),
}

fn seed_bytes(seed: u64, which: u8) -> [u8; 32] {
    let mut bytes = [which; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes
}
