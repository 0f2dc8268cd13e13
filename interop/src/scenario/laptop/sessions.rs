//! Servers that restart, and several sessions at a time.

use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Control::Fails;
use super::{BOTH, Day, IMPATIENT, PATIENCE, SETUP, Scene, Setup};
use crate::failure::{Result, ensure};
use crate::laptop::{Access, Probe, Resolver, VPN_NAME, VPN_RESOLVER, VPS, WEB};

/// The scenes of this module.
pub(super) const SCENES: &[Scene] = &[
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

/// The server is killed and comes back; the profile has its name, and the resolver is not on the local network.
fn server_away(day: &Day<'_>) -> Result<String> {
    let setup = Setup {
        host: VPN_NAME,
        resolver: Resolver::Outside,
        profile: IMPATIENT,
        ..Setup::default()
    };
    let mut day = day.connect(setup)?;
    day.server.signal(Signal::SIGKILL)?;
    day.server.wait_exit(PATIENCE)?;
    // Longer than the client's patience: it has begun to look for the server.
    std::thread::sleep(Duration::from_secs(7));
    day.server = day.day.serve(&day.internet, day.setup)?;
    let took = day.back(Duration::from_secs(25))?;
    day.ensure_no_leak()?;
    day.end()?;
    Ok(format!("back after {} ms", took.as_millis()))
}

/// The server's administrator turns the full tunnel and the resolver on, and off again, while the client is connected.
fn pushed_live(day: &Day<'_>) -> Result<String> {
    let day = day.connect(day.with_dns(Setup { full: false, dns: false, ..Setup::default() }))?;
    let home = IpAddr::V4(Access::Home.outside());
    let (seen, _) = day.internet.probe().until_answered(WEB, PATIENCE)?;
    ensure(seen == home, || format!("in a split tunnel it is {seen}"))?;
    let set = |full: bool, dns: &str| {
        day.day.edit_settings(|line| match line.split_once(" = ") {
            Some(("full-tunnel", _)) => format!("full-tunnel = {full}"),
            Some(("dns", _)) => format!("dns = [{dns}]"),
            _ => line.to_owned(),
        })?;
        day.internet.vps.run(&day.day.adit()?, &["reload"])
    };
    set(true, &format!("\"{VPN_RESOLVER}\""))?;
    day.until_seen_as(IpAddr::V4(VPS))?;
    day.asked_through("secret-1")?;
    set(false, "")?;
    day.until_seen_as(home)?;
    let found = day.internet.resolve("plain-1.web.example");
    ensure(found == Some(WEB.into()), || format!("without the tunnel's DNS: {found:?}"))?;
    let asked = day.internet.queries("plain-1");
    ensure(asked.iter().all(|query| query.from == home), || format!("{asked:?}"))?;
    ensure(day.client.count(day.day.connected_line()) == 1, || {
        day.client.failure("it connected again").0
    })?;
    day.end()?;
    Ok(String::new())
}

/// `adit connect --check` with the profile that is in use.
fn check_beside(day: &Day<'_>) -> Result<String> {
    let day = day.connect(Setup::default())?;
    let (adit, profile) = (day.day.adit()?, day.day.profile().display().to_string());
    let said = day.internet.laptop.run(&adit, &["connect", "--check", &profile])?;
    // At once: a session that was replaced would be silent until its time is over.
    let took = day.back(Duration::from_secs(5))?;
    std::thread::sleep(Duration::from_secs(2));
    day.back(Duration::from_secs(5))?;
    ensure(day.server.count("replaced by a new session") == 0, || {
        day.server.failure("the check took the session's place").0
    })?;
    ensure(day.client.count(day.day.connected_line()) == 1, || {
        day.client.failure("it connected again").0
    })?;
    day.end()?;
    Ok(format!("{} lines of findings, answer after {} ms", said.lines().count(), took.as_millis()))
}

/// The phone connects with the laptop's profile. The laptop is told and stays away.
fn two_devices(day: &Day<'_>) -> Result<String> {
    let mut day = day.connect(Setup::default())?;
    let phone = day.internet.phone()?;
    let line = day.day.connected_line();
    let mut second = day.day.dial(&phone, &[])?;
    second.wait_for(line, SETUP)?;
    day.client.wait_for("in use at 198.51.100.20", PATIENCE)?;
    day.server.wait_for("two devices use this profile", PATIENCE)?;
    let status = day.internet.vps.run(&day.day.adit()?, &["status"])?;
    ensure(status.contains("198.51.100.10") && status.contains("198.51.100.20"), || {
        format!("the status does not name both devices:\n{status}")
    })?;
    std::thread::sleep(Duration::from_secs(4));
    let (seen, _) = Probe::new(&phone).until_answered(WEB, PATIENCE)?;
    ensure(seen == IpAddr::V4(VPS), || format!("the phone is {seen}"))?;
    let times = day.client.count(line) + second.count(line);
    ensure(times == 2, || day.with_logs(format!("{times} sessions of two devices").into()).0)?;
    // Both processes end before the phone's namespace.
    drop(second);
    drop(phone);
    day.end()?;
    Ok(String::new())
}
