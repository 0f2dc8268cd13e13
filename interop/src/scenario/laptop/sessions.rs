//! Servers that restart, and several sessions at a time.

use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Control::Fails;
use super::{BOTH, Day, IMPATIENT, PATIENCE, Scene, Setup};
use crate::failure::{Result, ensure};
use crate::laptop::{Access, Resolver, VPN_NAME, VPN_RESOLVER, VPS, WEB};

/// The scenes of this module.
pub(super) const SCENES: &[Scene] = &[
    ("pushed-live", BOTH, Fails("has no live push in 2.6"), pushed_live),
    ("server-away", BOTH, Fails("resolves the server's name through the dead tunnel"), server_away),
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
    day.server = day.day.serve(&day.internet)?;
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
