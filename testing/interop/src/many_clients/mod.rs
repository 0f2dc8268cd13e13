//! Tests of many openvpn clients at one server, over UDP and TCP at once, which the matrix of pairs cannot cover.

mod simultaneous;
mod soak;
mod status_file;

use std::fs;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;

use crate::case::{InnerAddrs, READY, SETUP_LIMIT, TestEnv, inner_addrs};
use crate::failure::{Context, Result, ensure};
use crate::net::{Host, Namespace, Offload, star};
use crate::peer::Program;
use crate::pki::PkiTool;
use crate::process::Daemon;
use crate::wait::ScaledInstant;

pub use simultaneous::simultaneous;
pub use soak::{Soak, soak};
use status_file::StatusFile;

/// The address of both listeners of the server.
const SERVER: &str = "192.0.2.1";
const PORT: u16 = 1194;
/// The route that the server pushes in addition to addresses; every client must have it.
const PUSHED_ROUTE: &str = "198.51.100.0/24";
/// The number of clients that start at once. More would only wait for each other's handshakes.
const STARTING: usize = 8;

/// A server with its hosts around it.
#[derive(Debug)]
struct ClientPool<'a> {
    folder: &'a Path,
    client: &'a Program,
    daemon: Daemon,
    server: Namespace,
    hosts: Vec<Namespace>,
    _switch: Namespace,
}

/// A client that is connected.
#[derive(Debug)]
struct ConnectedClient {
    daemon: Daemon,
    inner: InnerAddrs,
}

/// Returns the outer address of the host with this number.
fn outer(host: usize) -> Result<IpNet> {
    let host = u32::try_from(host).context("a host's number")?;
    // 192.0.2.1 is the server's, in a network that is large enough for all clients.
    let first = u32::from_be_bytes([192, 0, 2, 11]);
    IpNet::new(std::net::Ipv4Addr::from(first + host).into(), 22).context("a prefix length")
}

impl<'a> ClientPool<'a> {
    /// Starts the server. Its clients share one certificate, so every connection is a separate session.
    fn start(
        env: &TestEnv,
        folder: &'a Path,
        server: &Program,
        client: &'a Program,
        hosts: usize,
        more: &str,
    ) -> Result<Self> {
        let mut all: Vec<Host> = vec![("server".to_owned(), vec![server_net()?])];
        for host in 0..hosts {
            all.push(("host".to_owned(), vec![outer(host)?]));
        }
        let (switch, mut namespaces) = star(&all, Offload::All)?;
        let space = namespaces.remove(0);
        write_configs(env, folder, hosts, more, client)?;
        let command = server.command(&space, &folder.join("server.conf"));
        let mut daemon = Daemon::spawn("server", command)?;
        daemon.wait_for(READY, SETUP_LIMIT)?;
        Ok(ClientPool { folder, client, daemon, server: space, hosts: namespaces, _switch: switch })
    }

    /// Starts the client of a host and waits until it is connected.
    fn join(&self, host: usize, over_tcp: bool) -> Result<ConnectedClient> {
        let namespace = self.hosts.get(host).context("no such host")?;
        let config = self.folder.join(if over_tcp { "tcp.conf" } else { "udp.conf" });
        let mut daemon =
            Daemon::spawn(&format!("client {host}"), self.client.command(namespace, &config))?;
        daemon.wait_for(READY, SETUP_LIMIT)?;
        Ok(ConnectedClient { inner: inner_addrs(namespace)?, daemon })
    }

    fn status(&self) -> Result<StatusFile> {
        StatusFile::read(&self.folder.join("status"))
    }
}

fn server_net() -> Result<IpNet> {
    IpNet::new(SERVER.parse().context("the server's address")?, 22).context("a prefix length")
}

/// Returns whether a host uses TCP in this round; every second one does.
fn is_tcp(host: usize) -> bool {
    host % 2 == 1
}

fn write_configs(
    env: &TestEnv,
    folder: &Path,
    hosts: usize,
    more: &str,
    client: &Program,
) -> Result<()> {
    let file = |name: &str| env.pki.file(PkiTool::OpenSslEc, name).display().to_string();
    let (ca, crypt) = (file("ca.crt"), env.pki.wrapping_key("static.key"));
    let common = format!("dev tun\nverb 3\nca {ca}\ntls-crypt {}\n", crypt.display());
    let server = format!(
        "{common}local {SERVER} {PORT} udp\nlocal {SERVER} {PORT} tcp-server\ndh none\ntopology subnet\nduplicate-cn\n\
         server 10.88.0.0 255.255.252.0\nserver-ipv6 fd88::/64\nmax-clients {}\ncert {}\nkey {}\n\
         push \"route 198.51.100.0 255.255.255.0\"\nkeepalive 2 10\n\
         status {} 1\nstatus-version 2\n{more}\n",
        // Killed clients count until the server notices their silence.
        hosts * 4,
        file("server.crt"),
        file("server.key"),
        folder.join("status").display(),
    );
    fs::write(folder.join("server.conf"), server)?;
    for (name, proto) in [("udp", "udp"), ("tcp", "tcp-client")] {
        let offload = if client.may_offload() { "disable-dco" } else { "" };
        let text = format!(
            "{common}client\nproto {proto}\nremote {SERVER} {PORT}\nnobind\nremote-cert-tls server\nreneg-sec 0\n\
             connect-retry 1 2\ncert {}\nkey {}\n{offload}\n",
            file("client.crt"),
            file("client.key"),
        );
        fs::write(folder.join(format!("{name}.conf")), text)?;
    }
    Ok(())
}

/// Connects all hosts in order, several at once.
fn join_all(pool: &ClientPool<'_>) -> Result<Vec<ConnectedClient>> {
    let hosts: Vec<usize> = (0..pool.hosts.len()).collect();
    let mut members = Vec::new();
    for some in hosts.chunks(STARTING) {
        let joined: Vec<Result<ConnectedClient>> = std::thread::scope(|scope| {
            let starting: Vec<_> = some
                .iter()
                .map(|&host| scope.spawn(move || pool.join(host, is_tcp(host))))
                .collect();
            let ended = starting.into_iter().map(|thread| thread.join());
            ended.map(|done| done.unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
        });
        for member in joined {
            members.push(
                member.map_err(|failure| {
                    format!("{failure}\n{}", pool.daemon.failure("meanwhile"))
                })?,
            );
        }
    }
    Ok(members)
}

/// Waits until the server's status file lists this many sessions.
fn wait_for_sessions(pool: &ClientPool<'_>, count: usize, limit: Duration) -> Result<StatusFile> {
    let begin = ScaledInstant::now();
    loop {
        let status = pool.status()?;
        if status.sessions.len() == count {
            return Ok(status);
        }
        ensure(begin.elapsed() < limit, || {
            format!("{} sessions instead of {count}", status.sessions.len())
        })?;
        std::thread::sleep(Duration::from_millis(200));
    }
}
