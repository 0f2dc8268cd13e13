//! How clients end, and the state that they leave on the laptop.

use nix::sys::signal::Signal;

use super::Control::{Fails, Passes};
use super::{BOTH, Day, PATIENCE, Scene, Setup};
use crate::failure::Result;
use crate::laptop::Access;

/// The scenes of this module.
pub(super) const SCENES: &[Scene] = &[
    ("strict-reverse-path", BOTH, Passes, strict_reverse_path),
    ("orderly-end", BOTH, Passes, orderly),
    ("killed", BOTH, Fails("leaves its host route behind"), killed),
];

/// The access interface takes only packets whose source is routed by it (`rp_filter` 1).
fn strict_reverse_path(day: &Day<'_>) -> Result<String> {
    let setup = Setup { access: Access::Cafe, ..Setup::default() };
    let day = day.connect_after(setup, |internet| {
        let laptop = internet.laptop.handle()?;
        for name in ["all", "default", Access::Cafe.interface()] {
            laptop.set_sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "1")?;
        }
        Ok(())
    })?;
    day.back(PATIENCE)?;
    day.ensure_no_leak()?;
    day.end()?;
    Ok(String::new())
}

/// The client ends when it is asked to.
fn orderly(day: &Day<'_>) -> Result<String> {
    let day =
        day.connect(Setup { access: Access::Cafe, dns: true, ipv6: true, ..Setup::default() })?;
    day.ensure_no_leak()?;
    day.end()?;
    Ok(String::new())
}

/// The client and all its processes are killed; the next start undoes what they did.
fn killed(day: &Day<'_>) -> Result<String> {
    let mut day = day.connect(Setup { access: Access::Cafe, dns: true, ..Setup::default() })?;
    day.signal_all(Signal::SIGKILL)?;
    day.client.wait_exit(PATIENCE)?;
    day.client = day.day.dial(&day.internet.laptop, day.setup.options)?;
    day.wait_connected(1)?;
    day.end()?;
    Ok(String::new())
}
