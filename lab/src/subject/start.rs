//! The parts that all starts share: processes at once, addresses by number, files with their keys left out.

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
/// The time limit for all clients together to come up. Under loss retransmissions start at 2 s and double.
pub(super) const SETUP_LIMIT: Duration = Duration::from_secs(60);

/// Processes in the making, which end if something goes wrong on the way.
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

    /// Waits until every client has logged `needle`; the limit is for all together.
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

    /// Returns the logs of all of them, for a failure that none of them reported.
    pub(super) fn blame(&self, failure: impl std::fmt::Display) -> String {
        let first = self.clients.first().into_iter().flatten();
        let daemons = self.server.iter().take(1).chain(first);
        let logs = daemons.map(|daemon| daemon.failure("log").0).collect::<Vec<_>>().join("\n");
        format!("{failure}\n{logs}")
    }

    /// They carry traffic, between these addresses in the tunnel: only configs and notes are left to record.
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

/// Returns the addresses in the tunnel where the lab gives them out itself: the server is number 0, the clients count
/// from 1.
pub(super) fn inner(number: usize) -> Result<InnerAddrs> {
    let host = u16::try_from(number + 1).context("too many clients")?;
    let [high, low] = host.to_be_bytes();
    let v6 = Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, host);
    Ok(InnerAddrs { v4: Ipv4Addr::new(10, 88, high, low).into(), v6: Some(v6.into()) })
}

/// Returns the addresses in the tunnel of all clients.
pub(super) fn inners(testbed: &Testbed) -> Result<Vec<InnerAddrs>> {
    (1..=testbed.clients.len()).map(inner).collect()
}

/// Formats `address:port`, with brackets where IPv6 needs them.
pub(super) fn endpoint(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// Returns both addresses with the length of the tunnel's network, for a device there.
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
/// The output of `ip`.
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
/// It did not come.
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

/// Refuses what only subjects that speak OpenVPN can be asked for.
///
/// # Errors
/// The spec has lines for config files of OpenVPN's.
pub(super) fn no_lines(spec: &TunnelSpec, subject: &str) -> Result<()> {
    ensure(spec.server_lines.is_empty() && spec.client_lines.is_empty(), || {
        format!("{subject} takes no directives of OpenVPN: leave it out of this scenario")
    })
}
