//! `join`: accepts an invitation.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use adit_engine::Random;
use adit_runtime::clock::now;
use adit_runtime::fault::Fault;
use adit_runtime::random;
use adit_tinc::invitation::{Accepted, Url};
use adit_tinc::join::{Ifconfig, JoinError, Joiner, JoinerEvent};
use adit_tinc::keys::PrivateKey;

use crate::conf_file::write_file;
use crate::console::{Console, reason};
use crate::init::{choose_port, make_folders, write_script};
use crate::net::{Net, NetOptions};

/// The longest wait for a connection to one address.
const CONNECT: Duration = Duration::from_secs(5);

/// Joins the net that an invitation is for, and creates the configuration of this node. If the options name no net, the invitation does.
///
/// # Errors
/// Fails if this node has a configuration, or if the inviter refuses it.
pub fn join(
    options: &NetOptions,
    net: &Net,
    url: &str,
    console: &mut Console<'_>,
) -> Result<(), Fault> {
    let url: Url = url
        .trim()
        .parse()
        .map_err(|error| Fault::operator(format!("Invalid invitation URL: {error}")))?;
    let is_chosen = options.config.is_some() || net.name.is_some();
    if is_chosen {
        refuse_existing(net)?;
    }
    let mut random = random::generator()?;
    let mut exchange = Exchange::start(url, &mut random)?;
    let accepted = exchange.offered(&mut random)?;
    let named = NetOptions { name: accepted.net_name.clone(), ..options.clone() };
    let net = if is_chosen { net.clone() } else { Net::new(&named, None)? };
    refuse_existing(&net)?;
    let key = PrivateKey::generate(&mut random);
    let files = accepted.files(&key).map_err(|error| Fault::peer(error.to_string()))?;
    make_folders(&net)?;
    // Without tinc.conf there is no configuration, and the command can be repeated with another invitation.
    let (last, first): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| file.path == "tinc.conf");
    for file in &first {
        let mode = if file.is_secret { 0o600 } else { 0o644 };
        write_file(&net.config.join(&file.path), file.content.as_bytes(), mode)?;
    }
    exchange.accept(&key, &mut random)?;
    for file in &last {
        write_file(&net.config.join(&file.path), file.content.as_bytes(), 0o644)?;
    }
    choose_port(&net, &accepted.name, console)?;
    write_script(&net)?;
    report(&net, &accepted, console);
    Ok(())
}

fn refuse_existing(net: &Net) -> Result<(), Fault> {
    let path = net.server_file();
    if path.exists() {
        let path = path.display();
        return Err(Fault::operator(format!("Configuration file {path} already exists!")));
    }
    Ok(())
}

fn report(net: &Net, accepted: &Accepted, console: &mut Console<'_>) {
    for name in &accepted.dropped {
        console.note(&format!("Ignoring variable {name} in the invitation"));
    }
    let plan = accepted.interface_plan();
    for setting in &plan.ifconfig {
        let text = match setting {
            Ifconfig::Address(address, prefix) => format!("the address {address}/{prefix}"),
            Ifconfig::Dhcp => "an address by DHCP".to_owned(),
            Ifconfig::Dhcp6 => "an address by DHCPv6".to_owned(),
            Ifconfig::Slaac => "an address from router advertisements".to_owned(),
        };
        console.note(&format!("The invitation proposes for the interface: {text}"));
    }
    for route in &plan.routes {
        let (network, prefix) = route.network;
        let gateway = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
        console.note(&format!("The invitation proposes a route: {network}/{prefix}{gateway}"));
    }
    let config = net.config.display();
    console.note(&format!("Configuration stored in: {config}"));
    console.note(&format!("Edit {config}/tinc-up to give the interface its address."));
    console.note("Invitation successfully accepted.");
}

/// The exchange with the inviter.
struct Exchange {
    stream: TcpStream,
    joiner: Joiner,
    input: Vec<u8>,
}

impl Exchange {
    fn start(url: Url, random: &mut Random) -> Result<Self, Fault> {
        let stream = connect(&url)?;
        let mut out = Vec::new();
        let joiner = Joiner::start(url, now(), random, &mut out);
        let mut exchange = Self { stream, joiner, input: Vec::new() };
        exchange.send(&out)?;
        Ok(exchange)
    }

    fn offered(&mut self, random: &mut Random) -> Result<Box<Accepted>, Fault> {
        match self.event(random)? {
            JoinerEvent::Offered(accepted) => Ok(accepted),
            JoinerEvent::Done => {
                Err(Fault::ours("the invitation was accepted before it was offered"))
            }
        }
    }

    fn accept(&mut self, key: &PrivateKey, random: &mut Random) -> Result<(), Fault> {
        let mut out = Vec::new();
        self.joiner.accept(now(), &key.public(), &mut out).map_err(|error| failed(&error))?;
        self.send(&out)?;
        self.event(random).map(drop)
    }

    /// Reads until the next event.
    fn event(&mut self, random: &mut Random) -> Result<JoinerEvent, Fault> {
        loop {
            let input = std::mem::take(&mut self.input);
            let (mut rest, mut out) = (&input[..], Vec::new());
            let received = self.joiner.receive(now(), &mut rest, random, &mut out);
            self.input = rest.to_vec();
            self.send(&out)?;
            if let Some(event) = received.map_err(|error| failed(&error))? {
                return Ok(event);
            }
            let limit = self.joiner.deadline().map_or(CONNECT, |deadline| deadline.since(now()));
            let mut bytes = [0; 4096];
            let read = self
                .stream
                .set_read_timeout(Some(limit.max(Duration::from_millis(1))))
                .and_then(|()| self.stream.read(&mut bytes));
            match read {
                Ok(0) => return Err(failed(&self.joiner.closed())),
                Ok(len) => self.input.extend_from_slice(bytes.get(..len).unwrap_or_default()),
                Err(error) if is_timeout(&error) => return Err(failed(&JoinError::Timeout)),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Err(failed(&self.joiner.closed())),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        // If the inviter has closed the connection, reading tells what that means.
        match self.stream.write_all(bytes) {
            Err(error) if is_timeout(&error) => Err(failed(&JoinError::Timeout)),
            _ => Ok(()),
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

fn failed(error: &JoinError) -> Fault {
    Fault::peer(error.to_string())
}

/// Connects to the first address of the inviter that answers.
fn connect(url: &Url) -> Result<TcpStream, Fault> {
    let (host, port) = (url.host(), url.port());
    let found = (host, port).to_socket_addrs().map_err(|error| {
        Fault::environment(format!("Error looking up {host} port {port}: {}", reason(&error)))
    })?;
    let mut last = None;
    for address in found {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                let _ = stream.set_write_timeout(Some(CONNECT));
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(|| "it has no address".to_owned(), |error| reason(&error));
    Err(Fault::environment(format!("Could not connect to inviter {host} port {port}: {why}")))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use adit_tinc::invitation::Cookie;
    use adit_tinc::join::{Claim, Inviter, InviterEvent};
    use adit_tinc::meta::{Id, Identity};

    use super::*;
    use crate::testing::Folder;

    const OFFER: &str = "Name = bob\nNetName = vpn\nConnectTo = alice\nMode = switch\nDevice = /dev/x\nIfconfig = 10.0.0.5/24\n\
                         #---------------------------------------------------------------#\nName = alice\nPort = 7\n";

    /// Serves one invitation, and returns the new node's host file.
    fn inviter(listener: &TcpListener, key: Arc<PrivateKey>, claim: Claim) -> Option<String> {
        let (mut stream, _) = listener.accept().unwrap();
        let mut random = Random::new([9; 32]);
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let id = Id::parse(line.strip_suffix(b"\n").unwrap()).unwrap();
        let Identity::Joining(joining) = id.identity else { panic!("{id:?}") };
        let mut out = Vec::new();
        let own = "alice".parse().unwrap();
        let mut session = Inviter::start(&own, key, joining, &mut random, &mut out);
        let mut claim = Some(claim);
        loop {
            stream.write_all(&out).unwrap();
            out.clear();
            let mut bytes = [0; 4096];
            let len = stream.read(&mut bytes).unwrap();
            let mut input = &bytes[..len];
            if len == 0 {
                return None;
            }
            while let Some(event) = session.receive(&mut input, &mut random, &mut out).unwrap() {
                match event {
                    InviterEvent::Claimed(_) => {
                        let claim = claim.take().unwrap();
                        if session.offer(claim, Duration::from_secs(60), &mut out).is_err() {
                            return None;
                        }
                    }
                    InviterEvent::Accepted { host_file, .. } => {
                        session.finish(&mut out).unwrap();
                        stream.write_all(&out).unwrap();
                        return Some(host_file);
                    }
                }
            }
        }
    }

    fn joined(claim: Claim) -> (Folder, crate::testing::Printed, Option<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let key = Arc::new(PrivateKey::from_seed(&[3; 32]));
        let cookie = Cookie::generate(&mut Random::new([4; 32]));
        let url = Url::new("127.0.0.1", port, &key.public(), cookie).unwrap().to_string();
        let serving = std::thread::spawn(move || inviter(&listener, key, claim));
        let folder = Folder::empty();
        let options =
            NetOptions { config: Some(folder.net.config.clone()), ..NetOptions::default() };
        let printed = folder.run(b"", false, |net, console| join(&options, net, &url, console));
        (folder, printed, serving.join().unwrap())
    }

    #[test]
    fn a_node_joins_with_the_safe_lines_of_the_invitation() {
        let claim = Claim::Found { content: OFFER.to_owned(), age: Duration::ZERO };
        let (folder, printed, key) = joined(claim);
        assert_eq!(printed.error, None);
        assert_eq!(folder.read("tinc.conf"), "Name = bob\nConnectTo = alice\nMode = switch\n");
        assert_eq!(folder.read("hosts/alice"), "Port = 7\n");
        let own = folder.read("hosts/bob");
        assert!(own.starts_with(&key.unwrap()), "{own}");
        assert!(printed.notes.contains("Ignoring variable Device"), "{}", printed.notes);
        assert!(printed.notes.contains("the address 10.0.0.5/24"), "{}", printed.notes);
        let options =
            NetOptions { config: Some(folder.net.config.clone()), ..NetOptions::default() };
        let again = folder.run(b"", false, |net, console| join(&options, net, "x", console));
        assert!(again.error.unwrap().starts_with("Invalid invitation URL"));
    }

    #[test]
    fn a_refused_invitation_leaves_no_configuration() {
        let (folder, printed, key) = joined(Claim::Missing);
        assert_eq!(key, None);
        assert!(printed.error.unwrap().contains("used before"));
        assert!(!folder.net.config.exists());
    }
}
