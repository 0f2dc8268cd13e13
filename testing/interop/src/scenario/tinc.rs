//! Tests of `crates/tinc` against the real tinc 1.1 from its private root, without a tunnel: this program is the other node.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::Random;
use adit_tinc::base64;
use adit_tinc::keys::PrivateKey;
use adit_tinc::meta::{
    AddressToken, EdgeInfo, Id, KeyRequest, Lines, Message, Options, Token, decode_record,
};
use adit_tinc::name::{NodeId, NodeName};
use adit_tinc::sptps::{
    CipherChoice, Datagram, Event, Params, Received, Role, Stream, WindowSize, data_label,
    meta_label,
};

use super::{Scenario, ScenarioFn, Test};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::peer::Program;
use crate::process::{Daemon, output};
use crate::skip::skip;
use crate::wait::until;

mod announcements;
mod answers;
mod bed;
mod churn;
mod ciphers;
mod commands;
mod daemon;
mod desk;
mod drop_in;
mod frames;
mod matrix;
mod nets;
mod network;
mod plane;
mod plane_switch;
mod priority;
mod programs;
mod rekeys;
mod relay;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("announcements", announcements::announcements),
    ("ciphers", ciphers::configured),
    ("ciphers-through-tinc", ciphers::offered_through_tinc),
    ("commands", commands::commands),
    ("daemon", daemon::daemon),
    ("drop-in", drop_in::drop_in),
    ("followers", desk::followers),
    ("neighbour", neighbour),
    ("net-auto-connect", network::auto_connect),
    ("net-invitations", network::invitations),
    ("net-learned-keys", network::learned_keys),
    ("net-outgoing", network::outgoing),
    ("net-proxies", network::proxies),
    ("net-reload", network::reload),
    ("plane", plane::plane),
    ("plane-second-address", answers::second_address),
    ("plane-stations", frames::quiet_stations),
    ("plane-switch", plane_switch::plane_switch),
    ("plane-to-tinc", plane::plane_to_tinc),
    ("plane-too-big", answers::too_big),
    ("plane-vlan", frames::vlan_tags),
    ("priority", priority::priority),
    ("relay", relay::relay),
    ("relay-of-tinc", relay::relay_of_tinc),
    ("start", desk::start),
    ("six-mixed-nodes", nets::six),
    ("start-at-once", nets::start_at_once),
    ("name-twice", nets::name_twice),
];

/// The scenarios that take minutes.
pub(super) const LONG: &[(&str, ScenarioFn)] = &[
    ("rekeys", rekeys::rekeys),
    ("start-at-once", nets::start_at_once_often),
    ("sixty-nodes", churn::sixty),
];

/// Returns the tests of pairs of adit and tinc.
pub(super) fn matrix(adit: &Program) -> impl Iterator<Item = Test> {
    matrix::tests(adit)
}

pub(super) const SOON: Duration = Duration::from_secs(20);

/// tinc's port, and that of this program.
const PORT: u16 = 655;
const OWN_PORT: u16 = 7000;

pub(super) const NO_TINC: &str = "no tinc 1.1 under target/roots: scripts/roots.sh tinc";

/// The names of this program and of the real node.
const US: &str = "alice";
const THEM: &str = "bob";

pub(super) fn name(text: &str) -> NodeName {
    text.parse().expect("a valid name")
}

/// Returns the command of a program of tinc 1.1, unless its root is missing.
pub(super) fn program(namespace: &Namespace, file: &str, folder: &Path) -> Option<Command> {
    let words = programs::real_program(file)?;
    let (first, rest) = words.split_first()?;
    let mut command = namespace.command(&first.to_string_lossy());
    command.args(rest).arg("-c").arg(folder).arg("--pidfile").arg(folder.join("pid"));
    Some(command)
}

/// Writes the real node's files, with its private key in this program's form of the file.
fn write_files(folder: &Path, ours: &PrivateKey, theirs: &PrivateKey) -> Result<()> {
    fs::create_dir_all(folder.join("hosts"))?;
    let conf = format!(
        "Name = {THEM}\nDeviceType = dummy\nAddressFamily = ipv4\nConnectTo = {US}\nLocalDiscovery = no\n"
    );
    fs::write(folder.join("tinc.conf"), conf)?;
    fs::write(folder.join("ed25519_key.priv"), theirs.to_file().as_bytes())?;
    let host =
        |key: &PrivateKey, rest: String| format!("Ed25519PublicKey = {}\n{rest}", key.public());
    let bob = host(theirs, format!("Port = {PORT}\nSubnet = 10.2.0.0/16#5\n"));
    fs::write(folder.join("hosts").join(THEM), bob)?;
    let alice = host(ours, format!("Address = 127.0.0.1 {OWN_PORT}\n"));
    fs::write(folder.join("hosts").join(US), alice)?;
    Ok(())
}

/// A connection to the real node.
struct Neighbour {
    tcp: TcpStream,
    session: Stream,
    random: Random,
    /// Received bytes that were not passed to the session yet.
    input: Vec<u8>,
    received: Vec<Message>,
    rekeyed: bool,
}

impl Neighbour {
    /// Exchanges identifications, and starts the session. Both sides send theirs at once.
    fn start(
        mut tcp: TcpStream,
        role: Role,
        ours: &Arc<PrivateKey>,
        theirs: &PrivateKey,
    ) -> Result<Self> {
        tcp.set_read_timeout(Some(SOON))?;
        let mut id = Vec::new();
        Id::of(name(US)).write(&mut id);
        tcp.write_all(&id)?;
        let (mut lines, mut input) = (Lines::default(), Vec::new());
        let line = loop {
            let mut buffer = [0; 4096];
            let read = tcp.read(&mut buffer)?;
            ensure(read > 0, || "tinc closed the connection before its identification".to_owned())?;
            let mut rest = &buffer[..read];
            if let Some(line) = lines.read(&mut rest).context("identification")? {
                input.extend_from_slice(rest);
                break line;
            }
        };
        let id = Id::parse(&line).context("identification")?;
        ensure(id == Id::of(name(THEM)), || format!("{id:?}"))?;
        let label = match role {
            Role::Initiator => meta_label(US, THEM),
            Role::Responder => meta_label(THEM, US),
        };
        let params = Params {
            role,
            key: ours.clone(),
            peer: theirs.public(),
            label,
            cipher: CipherChoice::default(),
        };
        let mut random = Random::new([5; 32]);
        let mut out = Vec::new();
        let session = Stream::start(params, &mut random, &mut out);
        tcp.write_all(&out)?;
        let mut neighbour =
            Self { tcp, session, random, input, received: Vec::new(), rekeyed: false };
        neighbour.read_until("the session", |it| it.session.is_established())?;
        let options = Options::new(Options::PMTU_DISCOVERY | Options::CLAMP_MSS);
        let udp_port = Token::new(OWN_PORT.to_string().as_bytes()).context("port")?;
        neighbour.send(&Message::Ack { udp_port, weight: 10, options })?;
        let agreed = neighbour.find("ACK", |message| match message {
            Message::Ack { udp_port, options, .. } => Some((udp_port.to_string(), *options)),
            _ => None,
        })?;
        ensure(agreed == (PORT.to_string(), options), || format!("ACK: {agreed:?}"))?;
        Ok(neighbour)
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let mut line = Vec::new();
        message.write(&mut self.random, &mut line);
        let mut out = Vec::new();
        self.session.send(0, &line, &mut out).context("send")?;
        Ok(self.tcp.write_all(&out)?)
    }

    /// Reads until a condition holds, and answers pings.
    fn read_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        loop {
            let input = std::mem::take(&mut self.input);
            let (mut rest, mut out, mut pings) = (&input[..], Vec::new(), 0);
            while let Some(received) =
                self.session.receive(&mut rest, &mut self.random, &mut out).context(what)?
            {
                match received {
                    Received::Event(event) => self.rekeyed |= event == Event::Rekeyed,
                    Received::Record(kind, line) => {
                        ensure(kind == 0, || format!("a record of type {kind}"))?;
                        let message = Message::parse(line)
                            .context(String::from_utf8_lossy(line).into_owned())?;
                        pings += usize::from(message == Message::Ping);
                        self.received.push(message);
                    }
                }
            }
            self.tcp.write_all(&out)?;
            for _ in 0..pings {
                self.send(&Message::Pong)?;
            }
            if done(self) {
                return Ok(());
            }
            let mut buffer = [0; 4096];
            let read = self.tcp.read(&mut buffer).context(format!("waiting for {what}"))?;
            ensure(read > 0, || {
                format!("tinc closed the connection before {what}, after {:?}", self.received)
            })?;
            self.input.extend_from_slice(&buffer[..read]);
        }
    }

    /// Waits for a message.
    fn find<T>(&mut self, what: &str, wanted: impl Fn(&Message) -> Option<T>) -> Result<T> {
        self.read_until(what, |it| it.received.iter().any(|message| wanted(message).is_some()))?;
        self.received.iter().find_map(wanted).context(what)
    }

    /// Waits for the next handshake record of a data session.
    fn answer(&mut self) -> Result<Vec<u8>> {
        let key = |message: &Message| match message {
            Message::AnsKey { key, compression: 0, .. } => Some(key.clone()),
            _ => None,
        };
        let token = self.find("ANS_KEY", key)?;
        // Several may have arrived.
        if let Some(at) = self.received.iter().position(|message| key(message).is_some()) {
            self.received.remove(at);
        }
        Ok(decode_record(&token).context("the record in ANS_KEY")?.to_vec())
    }
}

fn record_token(record: &[u8]) -> Result<Token> {
    Token::new(base64::encode(record).as_bytes()).context("record")
}

/// Establishes a data session through the neighbour itself.
fn data_session(
    neighbour: &mut Neighbour,
    ours: &Arc<PrivateKey>,
    theirs: &PrivateKey,
) -> Result<Datagram> {
    let label = data_label(US, THEM);
    let params = Params {
        role: Role::Initiator,
        key: ours.clone(),
        peer: theirs.public(),
        label,
        cipher: CipherChoice::default(),
    };
    let (mut session, kex) = Datagram::start(params, WindowSize::DEFAULT, &mut neighbour.random);
    let request = KeyRequest::Session { record: record_token(&kex)?, offers_aes: false };
    neighbour.send(&Message::ReqKey(name(US), name(THEM), Some(request)))?;
    exchange(neighbour, &mut session, Event::Established)?;
    Ok(session)
}

/// Answers handshake records until an event.
fn exchange(neighbour: &mut Neighbour, session: &mut Datagram, wanted: Event) -> Result<()> {
    loop {
        let record = neighbour.answer()?;
        let mut out = Vec::new();
        let event = session.receive_handshake(&record, &mut neighbour.random, &mut out);
        for record in out {
            send_handshake(neighbour, &record)?;
        }
        if event.context("data session")? == Some(wanted) {
            return Ok(());
        }
    }
}

fn send_handshake(neighbour: &mut Neighbour, record: &[u8]) -> Result<()> {
    let (from, to, key) = (name(US), name(THEM), record_token(record)?);
    neighbour.send(&Message::AnsKey {
        from,
        to,
        key,
        offers_aes: false,
        compression: 0,
        reflexive: None,
    })
}

/// Sends a probe directly, and checks the answer: the same length, and the same random bytes.
fn probe(session: &mut Datagram, socket: &UdpSocket, last: u8) -> Result<()> {
    let direct = NodeId::DIRECT.0;
    let payload = [&[0; 14][..], &[0xaa, 0xbb, 0xcc, last]].concat();
    let mut datagram = [direct, name(US).id().0].concat();
    session.seal(4, &payload, &mut datagram).context("probe")?;
    socket.send_to(&datagram, ("127.0.0.1", PORT))?;
    loop {
        let mut buffer = [0; 2048];
        let len = socket.recv(&mut buffer).context("no answer to a probe")?;
        let (ids, record) = buffer[..len].split_at_mut_checked(12).context("a short datagram")?;
        ensure(*ids == [direct, name(THEM).id().0].concat(), || format!("ids: {ids:x?}"))?;
        let (kind, data) = session.open(record).context("the answer to a probe")?;
        // tinc sends probes of its own as well.
        if kind == 4 && data.first() == Some(&2) {
            let expected = [&[2, 0, 18][..], &[0; 11], &[0xaa, 0xbb, 0xcc, last]].concat();
            return ensure(data == expected, || format!("{data:x?}"));
        }
    }
}

/// Connects from and to the real tinc 1.1, exchanges topology and keys, and has a probe answered; before and after new keys.
fn neighbour(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder().join("tinc");
    let namespace = Namespace::new("tinc")?;
    let Some(mut command) = program(&namespace, "usr/sbin/tincd", &folder) else {
        skip("tinc", NO_TINC);
        return Ok("skipped".to_owned());
    };
    let ours = Arc::new(PrivateKey::from_seed(&[1; 32]));
    let theirs = Arc::new(PrivateKey::from_seed(&[2; 32]));
    write_files(&folder, &ours, &theirs)?;
    let (own, other) = (ours.clone(), theirs.clone());
    let listener = namespace
        .thread(move || Ok(TcpListener::bind(("127.0.0.1", OWN_PORT))?))?
        .join()
        .map_err(|_| "the listener panicked")??;
    command.args(["-D", "-d", "5"]);
    let mut daemon = Daemon::spawn("tincd", command)?;
    daemon.wait_for("Ready", SOON)?;
    // tinc connects, so this program responds.
    let (tcp, _) = listener.accept()?;
    let mut first = Neighbour::start(tcp, Role::Responder, &ours, &theirs)
        .map_err(|failure| daemon.failure(&failure.0))?;
    first.send(&Message::Ping)?;
    first.find("PONG", |message| (*message == Message::Pong).then_some(()))?;
    drop((first, listener));
    let work = namespace.thread(move || connected(&own, &other))?;
    let (seen, neighbour) = work
        .join()
        .map_err(|_| "the connection panicked")?
        .map_err(|failure| daemon.failure(&failure.0))?;
    // The real node believes what it was sent.
    let subnets = || {
        let mut dump = program(&namespace, "usr/sbin/tinc", &folder).context(NO_TINC)?;
        dump.args(["dump", "subnets"]);
        output(dump)
    };
    until("tinc knows the subnet", SOON, || {
        Ok(subnets()?.contains(&format!("10.1.0.0/16 owner {US}")))
    })
    .map_err(|failure| daemon.failure(&failure.0))?;
    drop(neighbour);
    Ok(seen)
}

/// Connects to the real node, and does everything that one connection can.
fn connected(ours: &Arc<PrivateKey>, theirs: &PrivateKey) -> Result<(String, Neighbour)> {
    let tcp = TcpStream::connect(("127.0.0.1", PORT))?;
    let mut neighbour = Neighbour::start(tcp, Role::Initiator, ours, theirs)?;
    let subnet = neighbour.find("ADD_SUBNET", |message| match message {
        Message::AddSubnet(owner, subnet) if *owner == name(THEM) => Some(*subnet),
        _ => None,
    })?;
    ensure(subnet.to_string() == "10.2.0.0/16#5", || format!("{subnet}"))?;
    let edge = neighbour.find("ADD_EDGE", |message| match message {
        Message::AddEdge(from, to, edge) if (from, to) == (&name(THEM), &name(US)) => {
            Some(edge.clone())
        }
        _ => None,
    })?;
    let expected = ("127.0.0.1", OWN_PORT);
    let address = edge.address.socket().context("the edge has no address")?;
    ensure((address.ip().to_string().as_str(), address.port()) == expected, || {
        format!("{edge:?}")
    })?;
    let own = EdgeInfo {
        address: AddressToken::from(SocketAddr::from(([127, 0, 0, 1], PORT))),
        local: None,
        ..edge
    };
    neighbour.send(&Message::AddEdge(name(US), name(THEM), own))?;
    let subnet = "10.1.0.0/16".parse().context("subnet")?;
    neighbour.send(&Message::AddSubnet(name(US), subnet))?;
    let socket = UdpSocket::bind(("127.0.0.1", OWN_PORT))?;
    socket.set_read_timeout(Some(SOON))?;
    let mut session = data_session(&mut neighbour, ours, theirs)?;
    probe(&mut session, &socket, 1)?;
    // New keys for both sessions.
    let mut out = Vec::new();
    neighbour.session.rekey(&mut neighbour.random, &mut out).context("rekey")?;
    neighbour.tcp.write_all(&out)?;
    neighbour.read_until("new keys of the connection", |it| it.rekeyed)?;
    let record = session.rekey(&mut neighbour.random).context("rekey")?;
    send_handshake(&mut neighbour, &record)?;
    exchange(&mut neighbour, &mut session, Event::Rekeyed)?;
    neighbour.received.clear();
    neighbour.send(&Message::Ping)?;
    neighbour.find("PONG", |message| (*message == Message::Pong).then_some(()))?;
    probe(&mut session, &socket, 2)?;
    Ok((format!("edge options {:x}", edge.options.0), neighbour))
}
