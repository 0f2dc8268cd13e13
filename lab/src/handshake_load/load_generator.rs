//! The server of a subject, client hosts with separate addresses, and the client pool on them.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::net::Namespace;
use adit_testbed::peer::Program;
use tempfile::TempDir;

use super::arrivals::count;
use super::pushed::{Expected, Findings, check};
use super::{ClientPool, Hosts, LoadOutcome, Server, config};
use crate::measure::Meter;
use crate::record::Measurement;
use crate::subject::{Carrier, Implementation, Subject, Toolchain, Variant};
use crate::testbed::Testbed;

/// The server and the clients of a trial. Dropping it ends the server.
#[derive(Debug)]
pub struct LoadGenerator {
    /// The clients.
    pub pool: ClientPool,
    /// The subject's server.
    pub server: Server,
    /// The maximum number of simultaneous clients.
    pub slots: usize,
    expected: Expected,
    _folder: TempDir,
}

/// Returns the program whose server the clients can connect to.
///
/// # Errors
/// This subject cannot be measured with the client pool; the error says why.
pub fn program(toolchain: &Toolchain, subject: &Subject) -> std::result::Result<Program, String> {
    let Subject::Vpn(vpn) = subject else {
        return Err(format!("{subject} has no server that OpenVPN's clients could come to"));
    };
    let refused = match (&vpn.variant, vpn.carrier) {
        (Variant::Workers(_), _) => "the load generator's server has the workers of its machine",
        (Variant::Filter, _) => "the load generator's server has no packet filter",
        (_, Carrier::Tcp) => "the load generator's clients connect over UDP only so far",
        (_, Carrier::UdpTap) => "the load generator's clients have no TAP devices",
        (Variant::Default | Variant::Revision(_), Carrier::Udp) => {
            return match vpn.server {
                Implementation::Adit => toolchain.adit(vpn.revision()).map(Program::Adit),
                Implementation::Openvpn => toolchain.available(subject).map(|_| Program::OpenVpn),
            };
        }
    };
    Err(refused.to_owned())
}

impl LoadGenerator {
    /// Starts the subject's server on `testbed` and gives the first client's namespace the addresses of `hosts` hosts
    /// with `sessions` clients each.
    ///
    /// # Errors
    /// The subject has no such server, or it did not become ready.
    pub fn set(
        toolchain: &Toolchain,
        testbed: &Testbed,
        subject: &Subject,
        hosts: u16,
        sessions: usize,
    ) -> Result<Self> {
        let program = program(toolchain, subject)?;
        let client = testbed.clients.first().context("a testbed without a client")?;
        let folder = toolchain.scratch()?;
        let keys = toolchain.keys().folder();
        let sources = hosts_on(testbed, client, hosts, &folder)?;
        let server = Server::start(&program, &testbed.server, folder.path(), keys)?;
        let slots = sources.len() * sessions;
        let address = SocketAddr::new(testbed.server_outer(false), config::PORT);
        let hosts = Hosts { sources, sessions, server: address };
        let keys = toolchain.keys().clone();
        let pool = ClientPool::open(client, move || config::client(&keys), hosts)?;
        let expected = config::expected()?;
        Ok(Self { pool, server, slots, expected, _folder: folder })
    }

    /// Runs `work`, and returns its outcome and the server's CPU time meanwhile, in seconds.
    ///
    /// # Errors
    /// `work` fails, or the server has ended; the error includes its log.
    pub fn measure_cpu(
        &self,
        work: impl FnOnce(&ClientPool) -> Result<LoadOutcome>,
    ) -> Result<(LoadOutcome, f64)> {
        let before = self.server.cpu()?;
        let ran = work(&self.pool)?;
        Ok((ran, self.server.cpu()? - before))
    }

    /// Runs a trial while the server is sampled, and adds the samples to the outcome.
    ///
    /// # Errors
    /// `work` fails, or the kernel's counters cannot be read.
    pub fn metered(
        &self,
        testbed: &Testbed,
        work: impl FnOnce() -> Result<Measurement>,
    ) -> Result<Measurement> {
        let meter = Meter::start(&[("server", vec![self.server.daemon().pid()])], testbed)?;
        let mut measurement = work()?;
        meter.stop()?.put(&mut measurement, 0.0);
        Ok(measurement)
    }

    /// Waits until the server is idle, for at most this long.
    ///
    /// # Errors
    /// The server has ended; the error includes its log.
    pub fn settle(&self, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        let look = Duration::from_millis(50);
        let mut before = self.server.cpu()?;
        while Instant::now() < end {
            std::thread::sleep(look);
            let spent = self.server.cpu()?;
            if spent - before < look.as_secs_f64() / 20.0 {
                break;
            }
            before = spent;
        }
        Ok(())
    }

    /// Compares the configuration of each client of a run with the expected one, and records the findings.
    ///
    /// # Errors
    /// The pool's thread has ended.
    pub fn check(&self, ran: &LoadOutcome, measurement: &mut Measurement) -> Result<Findings> {
        let mut findings = check(&self.expected, &ran.told, &self.pool.applied()?);
        findings.duplicates.extend(ran.shared.iter().cloned());
        findings.duplicates.sort_unstable();
        findings.duplicates.dedup();
        put_findings(&findings, measurement);
        Ok(findings)
    }
}

/// Adds findings to the figure `misconfigured` and names the first few.
pub fn put_findings(findings: &Findings, measurement: &mut Measurement) {
    let wrong = count(findings.misconfigured.len() + findings.duplicates.len());
    let before = measurement.values.get("misconfigured").copied().unwrap_or(0.0);
    measurement.set("misconfigured", before + wrong);
    let lines = findings.duplicates.iter().map(|line| format!("an address is not unique: {line}"));
    let lines = lines.chain(findings.misconfigured.iter().cloned());
    measurement.notes.extend(lines.take(5));
}

/// Gives the clients' namespace the addresses 10.66.0.1 and up, which the server reaches through the veth pair.
pub(crate) fn hosts_on(
    testbed: &Testbed,
    client: &Namespace,
    hosts: u16,
    folder: &TempDir,
) -> Result<Vec<IpAddr>> {
    ensure(hosts > 0, || "a client pool needs at least one host".to_owned())?;
    let device = device(client, testbed.server_outer(false))?;
    let sources: Vec<IpAddr> = (1..=hosts)
        .map(|host| {
            let [high, low] = host.to_be_bytes();
            Ipv4Addr::new(10, 66, high, low).into()
        })
        .collect();
    let mut batch = String::new();
    for source in &sources {
        // Writing to a String cannot fail.
        let _ = writeln!(batch, "address replace {source}/32 dev {device}");
    }
    let path = folder.path().join("addresses");
    fs::write(&path, batch)?;
    client.run("ip", &["-batch", &path.to_string_lossy()])?;
    let veth = self::device(&testbed.server, testbed.client_outer(0, false))?;
    testbed.server.run("ip", &["route", "replace", "10.66.0.0/16", "dev", &veth])?;
    Ok(sources)
}

/// Returns the device through which `to` is reached.
fn device(from: &Namespace, to: IpAddr) -> Result<String> {
    let route = from.run("ip", &["-o", "route", "get", &to.to_string()])?;
    let device = route.split_whitespace().skip_while(|word| *word != "dev").nth(1);
    device.map(str::to_owned).context(format!("no device in \"{route}\""))
}
