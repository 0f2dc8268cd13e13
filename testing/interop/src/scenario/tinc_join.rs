//! Invitations of tinc 1.1 in both directions: this program joins the net of the real tinc, and the real tinc joins its net.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random};
use adit_tinc::invitation::{Accepted, Cookie, Offer, Url};
use adit_tinc::join::{Claim, Inviter, InviterEvent, JoinError, Joiner, JoinerEvent};
use adit_tinc::keys::PrivateKey;
use adit_tinc::meta::{Id, Identity, Lines};

use super::tinc::{NO_TINC, SOON, name, program};
use super::{Scenario, ScenarioFn};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::process::{Daemon, output};
use crate::skip::skip;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[("join", join), ("invite", invite)];

/// The port of this program's inviter.
const OWN_PORT: u16 = 7000;
const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

fn key(seed: u8) -> Arc<PrivateKey> {
    Arc::new(PrivateKey::from_seed(&[seed; 32]))
}

/// The time after which nothing more is expected. tinc keeps the connection of a node that it refuses open.
const SILENCE: Duration = Duration::from_secs(8);

/// Reads what has arrived. Returns `None` at the end of the connection, and after [`SILENCE`].
fn read(tcp: &mut TcpStream) -> Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; 4096];
    let read = match tcp.read(&mut buffer) {
        // A side that ends the exchange may not have read everything.
        Err(error)
            if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::WouldBlock) =>
        {
            0
        }
        read => read?,
    };
    buffer.truncate(read);
    Ok((read > 0).then_some(buffer))
}

/// Accepts an invitation of the real tinc.
fn accept(url: Url) -> Result<std::result::Result<Accepted, JoinError>> {
    let mut tcp = TcpStream::connect((url.host(), url.port()))?;
    tcp.set_read_timeout(Some(SILENCE))?;
    let (mut random, mut out, mut offered) = (Random::new([5; 32]), Vec::new(), None);
    let mut joiner = Joiner::start(url, NOW, &mut random, &mut out);
    loop {
        tcp.write_all(&out)?;
        out.clear();
        let Some(bytes) = read(&mut tcp)? else { return Ok(Err(joiner.timed_out())) };
        let mut input = &bytes[..];
        loop {
            match joiner.receive(NOW, &mut input, &mut random, &mut out) {
                Err(error) => return Ok(Err(error)),
                Ok(None) => break,
                Ok(Some(JoinerEvent::Offered(accepted))) => {
                    offered = Some(*accepted);
                    joiner.accept(NOW, &key(1).public(), &mut out).context("accept")?;
                }
                Ok(Some(JoinerEvent::Done)) => {
                    return offered.map(Ok).context("done without an offer");
                }
            }
        }
    }
}

/// Joins the net of the real tinc by an invitation of its own, which works once.
fn join(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder().join("bob");
    let namespace = Namespace::new("tinc")?;
    let Some(mut command) = program(&namespace, "usr/sbin/tincd", &folder) else {
        skip("tinc", NO_TINC);
        return Ok("skipped".to_owned());
    };
    fs::create_dir_all(folder.join("hosts"))?;
    let conf = "Name = bob\nDeviceType = dummy\nAddressFamily = ipv4\nLocalDiscovery = no\n";
    fs::write(folder.join("tinc.conf"), conf)?;
    fs::write(folder.join("ed25519_key.priv"), key(2).to_file().as_bytes())?;
    let host = format!("Ed25519PublicKey = {}\nAddress = 127.0.0.1\nPort = 655\n", key(2).public());
    fs::write(folder.join("hosts/bob"), host)?;
    command.args(["-D", "-d", "5"]);
    let mut daemon = Daemon::spawn("tincd", command)?;
    daemon.wait_for("Ready", SOON)?;
    let mut command = program(&namespace, "usr/sbin/tinc", &folder).context(NO_TINC)?;
    command.args(["invite", "alice"]);
    let printed = output(command)?;
    let url: Url = printed.trim().parse().context(format!("the URL {printed:?}"))?;
    // The command does not wait for it, and the daemon ends the connections of nodes that it does not know yet.
    daemon.wait_for("Got 'reload' command", SOON)?;
    let accept_in = |url: Url| {
        let work = namespace.thread(move || accept(url))?;
        work.join().map_err(|_| "the joiner panicked")?.map_err(|e| daemon.failure(&e.0))
    };
    let accepted = accept_in(url.clone())?.map_err(|error| daemon.failure(&error.to_string()))?;
    ensure(accepted.name == name("alice"), || format!("{accepted:?}"))?;
    let files = accepted.files(&key(1)).context("files")?;
    let theirs = files.iter().find(|file| file.path == "hosts/bob").context("no hosts/bob")?;
    let line = format!("Ed25519PublicKey = {}\n", key(2).public());
    ensure(theirs.content.contains(&line), || theirs.content.to_string())?;
    let ours = fs::read_to_string(folder.join("hosts/alice"))?;
    ensure(ours.contains(&key(1).public().to_string()), || ours.clone())?;
    let again = accept_in(url)?;
    ensure(again == Err(JoinError::Refused), || format!("a second use: {again:?}"))?;
    Ok(format!("{} files, {} lines dropped", files.len(), accepted.dropped.len()))
}

/// Waits for the real tinc, and lets it into the net with one invitation. Returns the host file of the new node.
fn invite_one(listener: &TcpListener, cookie: &Cookie, file: String) -> Result<String> {
    let (mut tcp, _) = listener.accept()?;
    tcp.set_read_timeout(Some(SOON))?;
    let (mut lines, mut random, mut out) = (Lines::default(), Random::new([6; 32]), Vec::new());
    let (line, mut bytes) = loop {
        let bytes = read(&mut tcp)?.context("tinc sent no line")?;
        let mut rest = &bytes[..];
        if let Some(line) = lines.read(&mut rest).context("line")? {
            break (line, rest.to_vec());
        }
    };
    let id = Id::parse(&line).context("line")?;
    let Identity::Joining(joining) = id.identity else { return Err(format!("{id:?}").into()) };
    let mut inviter = Inviter::start(&name("alice"), key(3), joining, &mut random, &mut out);
    let (mut file, mut written) = (Some(file), None);
    loop {
        let mut input = &bytes[..];
        while let Some(event) =
            inviter.receive(&mut input, &mut random, &mut out).context("exchange")?
        {
            match event {
                InviterEvent::Claimed(found) => {
                    ensure(found == cookie.file_name(&key(3).public()), || found.clone())?;
                    let content = file.take().context("used twice")?;
                    let claim = Claim::Found { content, age: Duration::ZERO };
                    inviter.offer(claim, SOON, &mut out).context("offer")?;
                }
                InviterEvent::Accepted { host_file, .. } => {
                    written = Some(host_file);
                    inviter.finish(&mut out).context("finish")?;
                }
            }
        }
        tcp.write_all(&out)?;
        out.clear();
        match read(&mut tcp)? {
            Some(more) => bytes = more,
            None => return written.context("tinc closed the connection before its key"),
        }
    }
}

/// Invites the real tinc, which creates its files.
fn invite(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder().join("carol");
    let namespace = Namespace::new("tinc")?;
    let Some(mut command) = program(&namespace, "usr/sbin/tinc", &folder) else {
        skip("tinc", NO_TINC);
        return Ok("skipped".to_owned());
    };
    let cookie = Cookie::generate(&mut Random::new([7; 32]));
    let host_file = format!(
        "Ed25519PublicKey = {}\nAddress = 127.0.0.1\nSubnet = 10.1.0.0/16\n",
        key(1).public()
    );
    let file = Offer {
        name: &name("carol"),
        net_name: None,
        inviter: &name("alice"),
        mode: None,
        broadcast: None,
        host_file: &host_file,
        port: OWN_PORT,
    }
    .to_file();
    let url = Url::new("127.0.0.1", OWN_PORT, &key(3).public(), cookie.clone()).context("URL")?;
    let bind = || Ok(TcpListener::bind(("127.0.0.1", OWN_PORT))?);
    let listener = namespace.thread(bind)?.join().map_err(|_| "the listener panicked")??;
    let inviter = std::thread::spawn(move || invite_one(&listener, &cookie, file));
    command.args(["join", &url.to_string()]);
    output(command)?;
    let written = inviter.join().map_err(|_| "the inviter panicked")??;
    check(&folder, &written)
}

/// Checks the files that the real tinc created.
fn check(folder: &Path, written: &str) -> Result<String> {
    let read = |path: &str| fs::read_to_string(folder.join(path));
    let conf = read("tinc.conf")?;
    for line in ["Name = carol", "ConnectTo = alice"] {
        ensure(conf.lines().any(|found| found == line), || conf.clone())?;
    }
    let alice = read("hosts/alice")?;
    ensure(alice.contains("Subnet = 10.1.0.0/16\n"), || alice.clone())?;
    let carol = read("hosts/carol")?;
    ensure(carol.contains(written.trim()), || format!("{carol:?} without {written:?}"))?;
    Ok(written.trim().to_owned())
}
