//! Bulk traffic of `tincd` of adit through its data plane: to another one, and to the real tinc 1.1; over rekeys, and when a subnet gets another owner.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

use super::super::Scenario;
use super::SOON;
use super::commands::End;
use super::programs::Programs;
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::{Namespace, Pair};
use crate::process::{Daemon, output};
use crate::traffic::{self, Stream};
use crate::wait::until;

/// The bytes of a transfer by TCP.
const BYTES: usize = 4 << 20;

/// The length of the longest datagrams in a stream.
const LARGEST: usize = 1300;

/// The seconds after which a node renews its keys.
const KEY_EXPIRE: u32 = 10;

/// The number of datagrams that a train of bulk traffic has at least, on average.
const TRAIN: f64 = 8.0;

/// An address that two nodes have.
const SHARED: &str = "10.9.7.7";

/// What a daemon logs when a session has new keys, and when its peer begins it again.
const NEW_KEYS: &str = "Session with ben: new keys";
const RESTARTED: &str = "Session with ben: restarted";

/// The cipher of two nodes of adit, and tinc's.
const AES: &str = "AES-256-GCM";
const CHACHA20: &str = "ChaCha20-Poly1305";

/// A node with its number and its files.
struct Node<'a> {
    name: &'static str,
    number: u8,
    commands: End<'a>,
    daemon: End<'a>,
}

impl<'a> Node<'a> {
    /// Creates the files of a node that listens on this port.
    fn new(
        scenario: &Scenario<'_>,
        namespace: &'a Namespace,
        programs: &Programs,
        (name, number): (&'static str, u8),
        port: u16,
    ) -> Result<Self> {
        let end = |program: &[OsString]| End {
            namespace,
            program: program.to_vec(),
            folder: scenario.folder().join(name),
        };
        let node =
            Self { name, number, commands: end(&programs.tinc), daemon: end(&programs.tincd) };
        let host = if number == 1 { 1 } else { 2 };
        for words in [
            format!("init {name}"),
            format!("set Port {port}"),
            format!("set KeyExpire {KEY_EXPIRE}"),
            format!("set Interface tinc-{name}"),
            format!("add Subnet {}", node.address()),
            format!("add Address 192.0.2.{host}"),
        ] {
            node.commands.done(&words, "")?;
        }
        let up = format!(
            "#!/bin/sh\nip link set $INTERFACE up\nip addr add {}/32 dev $INTERFACE\nip route add 10.9.0.0/16 dev $INTERFACE metric {number}\n",
            node.address()
        );
        file::write(node.commands.folder.join("tinc-up"), &up, 0o755)?;
        Ok(node)
    }

    fn address(&self) -> IpAddr {
        [10, 9, 0, self.number].into()
    }

    fn export(&self) -> Result<String> {
        Ok(self.commands.done("export", "")?.out)
    }

    fn start(&self) -> Result<Daemon> {
        let words = format!("-n {} -D -d 3", self.name);
        let mut daemon =
            Daemon::spawn(self.name, self.daemon.command(&self.daemon.folder, &words)?)?;
        daemon.wait_for("Ready", SOON)?;
        Ok(daemon)
    }
}

/// Returns the report of a daemon of adit.
fn report(program: &Path, node: &Node<'_>) -> Result<Value> {
    let mut command = node.commands.namespace.command(&program.to_string_lossy());
    command.args(["status", "--json"]);
    let status: Value = serde_json::from_str(&output(command)?).context("JSON")?;
    let report = status.as_array().into_iter().flatten().find(|it| it["tinc"]["net"] == node.name);
    report.cloned().context(format!("no {} in {status}", node.name))
}

/// Returns the trains that a daemon of adit has sent, and the datagrams in them.
fn trains(program: &Path, node: &Node<'_>) -> Result<(f64, f64)> {
    let trains = &report(program, node)?["trains"];
    let sent = trains["sent"].as_object().context("no trains")?.values();
    let sent: u64 = sent.filter_map(Value::as_u64).sum();
    Ok((sent as f64, trains["sent_packets"].as_f64().context("no packets")?))
}

/// Returns the packets that a daemon of adit has sent to another node.
fn packets(program: &Path, node: &Node<'_>, to: &str) -> Result<u64> {
    let report = report(program, node)?;
    let mut others = report["tinc"]["nodes"].as_array().into_iter().flatten();
    let other = others.find(|it| it["name"] == to).context("no such node")?;
    other["tx_packets"].as_u64().context("no packets")
}

/// Checks which cipher the session of a node of adit with another one has, by its status and by `info`, which has tinc's lines but for a cipher that
/// tinc lacks.
fn check_cipher(program: &Path, node: &Node<'_>, to: &str, cipher: &str) -> Result<()> {
    let report = report(program, node)?;
    let mut others = report["tinc"]["nodes"].as_array().into_iter().flatten();
    let other = others.find(|it| it["name"] == to).context("no such node")?;
    ensure(other["cipher"] == cipher, || format!("{cipher} expected: {other}"))?;
    let info = node.commands.done(&format!("info {to}"), "")?.out;
    let line = info.lines().find_map(|line| line.strip_prefix("Cipher:")).map(str::trim);
    let expected = Some(cipher).filter(|cipher| *cipher == AES);
    ensure(line == expected, || format!("{cipher} expected: {info}"))
}

/// Transfers bytes by TCP.
fn transfer(from: &Node<'_>, to: &Node<'_>) -> Result<()> {
    traffic::tcp(from.commands.namespace, to.commands.namespace, to.address(), BYTES).map(drop)
}

/// Transfers bytes by TCP from a node of adit until most packets of a transfer have left by the plane, in trains. Around a rekey they take the long
/// way. Returns the average length of the trains.
fn transfer_in_trains(program: &Path, from: &Node<'_>, to: &Node<'_>) -> Result<f64> {
    let (mut packets, mut mean) = (0.0, 0.0);
    until("a transfer in trains", SOON, || {
        let before = trains(program, from)?;
        transfer(from, to)?;
        let after = trains(program, from)?;
        packets = after.1 - before.1;
        mean = packets / (after.0 - before.0).max(1.0);
        Ok(packets > BYTES as f64 / 1500.0 / 2.0 && mean > TRAIN)
    })
    .map_err(|failure| format!("{failure}: {packets} packets, {mean:.1} in a train").into())
    .map(|()| mean)
}

/// Waits until two nodes reach each other by UDP, and know the path MTU.
fn connect(one: (&Node<'_>, &mut Daemon), other: &Node<'_>) -> Result<()> {
    let (node, daemon) = one;
    for (from, to) in [(node, other), (other, node)] {
        until("a ping through the tunnel", SOON, || {
            let to = to.address().to_string();
            let ping = from.commands.namespace.run("ping", &["-c", "1", "-W", "1", &to]);
            Ok(ping.is_ok())
        })
        .map_err(|failure| daemon.failure(&failure.0))?;
    }
    // Packets to the other node keep the search going.
    until("the path MTU", SOON, || {
        let to = other.address().to_string();
        let _ = node.commands.namespace.run("ping", &["-c", "1", "-W", "1", &to]);
        Ok(daemon.count(&format!("Fixing PMTU of {}", other.name)) > 0)
    })
    .map_err(|failure| daemon.failure(&failure.0))
}

/// Checks that of a stream's datagrams at most one in `lost` was lost, and that none has arrived twice.
fn check(stream: Stream, lost: u32, what: &str) -> Result<u32> {
    let delivery = stream.finish()?;
    let most = delivery.sent / lost;
    let is_good = delivery.sent.saturating_sub(delivery.received) <= most
        && delivery.duplicated + delivery.corrupted == 0;
    ensure(is_good && delivery.sent > 0, || format!("{what}: {delivery:?}"))?;
    Ok(delivery.sent)
}

/// Two nodes of adit; and a third one that takes over a subnet.
pub(super) fn plane(scenario: &Scenario<'_>) -> Result<String> {
    let (programs, program) = Programs::of_adit(scenario)?;
    let pair = Pair::new()?;
    let alice = Node::new(scenario, &pair.server, &programs, ("alice", 1), 655)?;
    let bob = Node::new(scenario, &pair.client, &programs, ("bob", 2), 655)?;
    let carol = Node::new(scenario, &pair.client, &programs, ("carol", 3), 656)?;
    bob.commands.done(&format!("add Subnet {SHARED}#5"), "")?;
    carol.commands.done(&format!("add Subnet {SHARED}#20"), "")?;
    for node in [&bob, &carol] {
        node.commands.done("import", &alice.export()?)?;
        alice.commands.done("import", &node.export()?)?;
        alice.commands.done(&format!("add ConnectTo {}", node.name), "")?;
    }
    pair.client.run("ip", &["addr", "add", SHARED, "dev", "lo"])?;
    let mut at_alice = alice.start()?;
    let (_at_bob, _at_carol) = (bob.start()?, carol.start()?);
    connect((&alice, &mut at_alice), &bob)?;
    connect((&alice, &mut at_alice), &carol)?;
    let there = transfer_in_trains(&program, &alice, &bob)?;
    let back = transfer_in_trains(&program, &bob, &alice)?;
    check_cipher(&program, &alice, "bob", AES)?;
    check_cipher(&program, &bob, "alice", AES)?;
    let shared: IpAddr = SHARED.parse().context("address")?;
    let stream = Stream::start(&pair.server, &pair.client, shared, LARGEST)?;
    let seen = at_alice.count("Session with bob: new keys");
    let sent = |name: &str| packets(&program, &alice, name);
    at_alice.wait_for_nth("Session with bob: new keys", seen + 1, SOON)?;
    let before = (sent("bob")?, sent("carol")?);
    until("bob gets the packets", SOON, || Ok(sent("bob")? > before.0 + 50))?;
    // Another node has the subnet from now on.
    bob.commands.done(&format!("del Subnet {SHARED}#5"), "")?;
    bob.commands.done("reload", "")?;
    until("carol gets the packets", SOON, || Ok(sent("carol")? > before.1 + 50))
        .map_err(|failure| at_alice.failure(&failure.0))?;
    let sent = check(stream, 20, "a stream over rekeys and to another owner")?;
    check_cipher(&program, &alice, "bob", AES)?;
    Ok(format!("{there:.0} and {back:.0} packets a train, {sent} datagrams in a stream"))
}

/// A node of adit, and one of the real tinc.
pub(super) fn plane_to_tinc(scenario: &Scenario<'_>) -> Result<String> {
    let Some(real) = Programs::real() else { return Ok("skipped".to_owned()) };
    let (programs, program) = Programs::of_adit(scenario)?;
    let pair = Pair::new()?;
    let anna = Node::new(scenario, &pair.server, &programs, ("anna", 1), 655)?;
    let ben = Node::new(scenario, &pair.client, &real, ("ben", 2), 655)?;
    ben.commands.done("import", &anna.export()?)?;
    anna.commands.done("import", &ben.export()?)?;
    anna.commands.done("add ConnectTo ben", "")?;
    let mut at_anna = anna.start()?;
    let _at_ben = ben.start()?;
    connect((&anna, &mut at_anna), &ben)?;
    let there = transfer_in_trains(&program, &anna, &ben)?;
    transfer(&ben, &anna)?;
    check_cipher(&program, &anna, "ben", CHACHA20)?;
    let mut sent = 0;
    for (from, to, address) in
        [(&pair.server, &pair.client, ben.address()), (&pair.client, &pair.server, anna.address())]
    {
        let stream = Stream::start(from, to, address, LARGEST)?;
        let seen = at_anna.count(NEW_KEYS) + at_anna.count(RESTARTED);
        until("a rekey", SOON, || Ok(at_anna.count(NEW_KEYS) + at_anna.count(RESTARTED) > seen))
            .map_err(|failure| at_anna.failure(&failure.0))?;
        // On a busy machine, tinc is late with its part of the rekey, and more datagrams come meanwhile than can wait for it.
        sent += check(stream, 2, "a stream over a rekey")?;
    }
    // The messages of a rekey go by TCP. If they are late, tinc cannot open the first datagrams under the new keys, and begins the session again.
    let restarted = at_anna.count(RESTARTED);
    Ok(format!(
        "{there:.0} packets a train, {sent} datagrams in streams, restarted {restarted} times"
    ))
}
