//! Traffic that must not get around the tunnel.

use std::net::IpAddr;

use super::Control::Passes;
use super::{BOTH, Connected, Day, PATIENCE, Scene, Setup};
use crate::failure::{Failure, Result, ensure};
use crate::laptop::{Access, VPS6, WEB6};

/// The scenes of this module.
pub(super) const SCENES: &[Scene] = &[("both-families", BOTH, Passes, both_families)];

/// IPv6 goes through the tunnel.
fn through6(day: &Connected<'_>) -> Result<()> {
    let (seen, _) =
        day.internet.probe().until_answered(WEB6, PATIENCE).map_err(|f| day.with_logs(f))?;
    ensure(seen == IpAddr::V6(VPS6), || {
        day.with_logs(Failure(format!("LEAK: the host outside says: you are {seen}"))).0
    })
}

/// Both families through a tunnel that has both, from a network that has both.
fn both_families(day: &Day<'_>) -> Result<String> {
    let day = day.connect(Setup { access: Access::Cafe, ipv6: true, ..Setup::default() })?;
    through6(&day)?;
    day.ensure_no_leak()?;
    day.end()?;
    Ok(String::new())
}
