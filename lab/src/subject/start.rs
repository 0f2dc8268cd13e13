//! The steps that all starts share: concurrent processes, addresses by number, files without their keys.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::net::Namespace;
use adit_testbed::process::Daemon;
use adit_testbed::tunnel::InnerAddrs;

use super::tunnels::end;
use super::{TunnelSpec, Tunnels};
use crate::testbed::Testbed;

/// The UDP or TCP port of every server.
pub(super) const PORT: u16 = 1194;
/// The time limit for all clients together to become ready. Under loss, retransmissions start at 2 s and double.
pub(super) const SETUP_LIMIT: Duration = Duration::from_secs(60);

/// Processes that are starting; they are ended if a later step fails.
#[derive(Default)]
pub(super) struct Processes {
    pub(super) server: Vec<Daemon>,
    pub(super) clients: Vec<Vec<Daemon>>,
}

impl Processes {
    /// Starts a process at every client, one after the other without waiting for any.
    pub(super) fn dial(
        &mut self,
        testbed: &Testbed,
        mut command: impl FnMut(usize, &Namespace) -> Result<Command>,
    ) -> Result<()> {
        for (index, host) in testbed.clients.iter().enumerate() {
            let name = format!("client {}", index + 1);
            self.clients.push(vec![Daemon::spawn(&name, command(index, host)?)?]);
        }
        Ok(())
    }

    /// Waits until every client has logged `needle`; the time limit applies to all together.
    pub(super) fn wait_clients(&mut self, needle: &str) -> Result<()> {
        let last = Instant::now() + SETUP_LIMIT;
        for client in self.clients.iter_mut().flatten() {
            let left = last.saturating_duration_since(Instant::now());
            if let Err(failure) = client.wait_for(needle, left) {
                let meanwhile = self.server.iter().map(|s| s.failure("meanwhile at the server").0);
                return Err(format!("{failure}\n{}", meanwhile.collect::<String>()).into());
            }
        }
        Ok(())
    }

    /// Returns the logs of all processes, for a failure that none of them reported.
    pub(super) fn blame(&self, failure: impl std::fmt::Display) -> String {
        let first = self.clients.first().into_iter().flatten();
        let daemons = self.server.iter().take(1).chain(first);
        let logs = daemons.map(|daemon| daemon.failure("log").0).collect::<Vec<_>>().join("\n");
        format!("{failure}\n{logs}")
    }

    /// Turns processes that carry traffic between these addresses into tunnels; the caller adds only configs and notes.
    pub(super) fn into_tunnels(
        mut self,
        server_inner: InnerAddrs,
        client_inner: Vec<InnerAddrs>,
    ) -> Tunnels {
        Tunnels {
            server: std::mem::take(&mut self.server),
            clients: std::mem::take(&mut self.clients),
            server_inner,
            client_inner,
            configs: Vec::new(),
            notes: Vec::new(),
            folder: None,
            between: None,
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        end(self.clients.drain(..).flatten().chain(self.server.drain(..)).collect());
    }
}

/// Returns the addresses in the tunnel if the lab assigns them itself: the server is number 0, the clients count from
/// 1.
pub(super) fn inner(number: usize) -> Result<InnerAddrs> {
    let host = u16::try_from(number + 1).context("too many clients")?;
    let [high, low] = host.to_be_bytes();
    let v6 = Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, host);
    Ok(InnerAddrs { v4: Ipv4Addr::new(10, 88, high, low).into(), v6: Some(v6.into()) })
}

/// Returns the addresses of all clients in the tunnel.
pub(super) fn inners(testbed: &Testbed) -> Result<Vec<InnerAddrs>> {
    (1..=testbed.clients.len()).map(inner).collect()
}

/// Formats `address:port`, with brackets around IPv6 addresses.
pub(super) fn endpoint(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// Returns the lines that assign both addresses to a device, with the prefix length of the tunnel's network.
pub(super) fn address_lines(inner: InnerAddrs, device: &str) -> String {
    let mut lines = format!("address add {}/16 dev {device}\n", inner.v4);
    if let Some(v6) = inner.v6 {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "address add {v6}/64 dev {device} nodad");
    }
    lines
}

/// Runs `ip -batch` in a host.
///
/// # Errors
/// `ip` failed; the error includes its output.
pub(super) fn ip_batch(host: &Namespace, lines: &str) -> Result<()> {
    let mut command = host.command("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().context("ip")?;
    child.stdin.take().context("ip has no input")?.write_all(lines.as_bytes())?;
    let done = child.wait_with_output()?;
    ensure(done.status.success(), || {
        format!("ip in {}: {}", host.name(), String::from_utf8_lossy(&done.stderr).trim())
    })
}

/// Waits until a host has this device.
///
/// # Errors
/// The device did not appear.
pub(super) fn wait_for_device(daemon: &mut Daemon, host: &Namespace, device: &str) -> Result<()> {
    let last = Instant::now() + Duration::from_secs(10);
    while host.run("ip", &["link", "show", "dev", device]).is_err() {
        ensure(daemon.wait_exit(Duration::from_millis(50)).is_err(), || {
            daemon.failure(&format!("ended before {device} was there")).0
        })?;
        ensure(Instant::now() < last, || {
            daemon.failure(&format!("made no {device} within 10 s")).0
        })?;
    }
    Ok(())
}

/// Refuses options that only subjects with OpenVPN's protocol support.
///
/// # Errors
/// The spec has lines for OpenVPN's config files.
pub(super) fn no_lines(spec: &TunnelSpec, subject: &str) -> Result<()> {
    ensure(spec.server_lines.is_empty() && spec.client_lines.is_empty(), || {
        format!("{subject} takes no directives of OpenVPN: leave it out of this scenario")
    })
}
