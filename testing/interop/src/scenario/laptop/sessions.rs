//! Tests of servers that restart, and of several sessions at a time.

use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Control::Fails;
use super::{BOTH, IMPATIENT, Laptop, SETUP_LIMIT, Scenario, Setup, TIMEOUT};
use crate::failure::{Result, ensure};
use crate::laptop::{Access, Probe, Resolver, VPN_NAME, VPN_RESOLVER, VPS, WEB};

/// The scenarios of this module.
pub(super) const SCENARIOS: &[Scenario] = &[
    ("pushed-live", BOTH, Fails("has no live push in 2.6"), pushed_live),
    ("server-away", BOTH, Fails("resolves the server's name through the dead tunnel"), server_away),
    ("check-beside-a-session", BOTH, Fails("has no check"), check_beside),
    (
        "two-devices-one-profile",
        BOTH,
        Fails("takes the other device's place for ever"),
        two_devices,
    ),
];

/// The server is killed and returns; the profile has its name, and the resolver is not on the local network.
fn server_away(laptop: &Laptop<'_>) -> Result<String> {
    let setup = Setup {
        host: VPN_NAME,
        resolver: Resolver::Outside,
        profile: IMPATIENT,
        ..Setup::default()
    };
    let mut laptop = laptop.connect(setup)?;
    laptop.server.signal(Signal::SIGKILL)?;
    laptop.server.wait_exit(TIMEOUT)?;
    // This is longer than the client's timeout, so it has begun to look up the server.
    std::thread::sleep(Duration::from_secs(7));
    laptop.server = laptop.laptop.serve(&laptop.internet, laptop.setup)?;
    let took = laptop.back(Duration::from_secs(25))?;
    laptop.ensure_no_leak()?;
    laptop.end()?;
    Ok(format!("back after {} ms", took.as_millis()))
}

/// The server's administrator turns the full tunnel and the resolver on, and off again, while the client is connected.
fn pushed_live(laptop: &Laptop<'_>) -> Result<String> {
    let laptop =
        laptop.connect(laptop.with_dns(Setup { full: false, dns: false, ..Setup::default() }))?;
    let home = IpAddr::V4(Access::Home.outside());
    let (seen, _) = laptop.internet.probe().until_answered(WEB, TIMEOUT)?;
    ensure(seen == home, || format!("in a split tunnel it is {seen}"))?;
    let set = |full: bool, dns: &str| {
        laptop.laptop.edit_settings(|line| match line.split_once(" = ") {
            Some(("full-tunnel", _)) => format!("full-tunnel = {full}"),
            Some(("dns", _)) => format!("dns = [{dns}]"),
            _ => line.to_owned(),
        })?;
        laptop.internet.vps.run(&laptop.laptop.adit()?, &["reload"])
    };
    set(true, &format!("\"{VPN_RESOLVER}\""))?;
    laptop.until_seen_as(IpAddr::V4(VPS))?;
    laptop.until_resolver_is(VPN_RESOLVER)?;
    laptop.asked_through("secret-1")?;
    set(false, "")?;
    laptop.until_seen_as(home)?;
    laptop.until_resolver_is(laptop.internet.resolver(Access::Home))?;
    let found = laptop.internet.resolve("plain-1.web.example");
    ensure(found == Some(WEB.into()), || format!("without the tunnel's DNS: {found:?}"))?;
    let asked = laptop.internet.queries("plain-1");
    ensure(asked.iter().all(|query| query.from == home), || format!("{asked:?}"))?;
    ensure(laptop.client.count(laptop.laptop.connected_line()) == 1, || {
        laptop.client.failure("it connected again").0
    })?;
    laptop.end()?;
    Ok(String::new())
}

/// `adit connect --check` with the profile that is in use.
fn check_beside(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup::default())?;
    let (adit, profile) = (laptop.laptop.adit()?, laptop.laptop.profile().display().to_string());
    let said = laptop.internet.laptop.run(&adit, &["connect", "--check", &profile])?;
    // The answer arrives at once, because a session that was replaced would be silent until its timeout.
    let took = laptop.back(Duration::from_secs(5))?;
    std::thread::sleep(Duration::from_secs(2));
    laptop.back(Duration::from_secs(5))?;
    ensure(laptop.server.count("replaced by a new session") == 0, || {
        laptop.server.failure("the check took the session's place").0
    })?;
    ensure(laptop.client.count(laptop.laptop.connected_line()) == 1, || {
        laptop.client.failure("it connected again").0
    })?;
    laptop.end()?;
    Ok(format!("{} lines of findings, answer after {} ms", said.lines().count(), took.as_millis()))
}

/// The phone connects with the laptop's profile. The laptop gets HALT and does not reconnect.
fn two_devices(laptop: &Laptop<'_>) -> Result<String> {
    let mut laptop = laptop.connect(Setup::default())?;
    let phone = laptop.internet.phone()?;
    let line = laptop.laptop.connected_line();
    let mut second = laptop.laptop.dial(&phone, &[])?;
    second.wait_for(line, SETUP_LIMIT)?;
    laptop.client.wait_for("in use at 198.51.100.20", TIMEOUT)?;
    laptop.server.wait_for("two devices use this profile", TIMEOUT)?;
    let status = laptop.internet.vps.run(&laptop.laptop.adit()?, &["status"])?;
    ensure(status.contains("198.51.100.10") && status.contains("198.51.100.20"), || {
        format!("the status does not name both devices:\n{status}")
    })?;
    std::thread::sleep(Duration::from_secs(4));
    let (seen, _) = Probe::new(&phone).until_answered(WEB, TIMEOUT)?;
    ensure(seen == IpAddr::V4(VPS), || format!("the phone is {seen}"))?;
    let times = laptop.client.count(line) + second.count(line);
    ensure(times == 2, || laptop.with_logs(format!("{times} sessions of two devices").into()).0)?;
    // Both processes end before the phone's namespace.
    drop(second);
    drop(phone);
    laptop.end()?;
    Ok(String::new())
}
