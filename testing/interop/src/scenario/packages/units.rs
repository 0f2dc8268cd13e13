//! The units: correct, and as confined as promised.

use std::fs;

use super::{Case, Machine, VERSION};
use crate::failure::{Context, Result, ensure};

/// The exposure of adit's own units is below this, on the scale of systemd-analyze from 0 to 10.
const EXPOSURE_LIMIT: f64 = 3.0;

/// systemd-analyze finds no mistake in the units, and rates each of adit's own below the limit, and those in openvpn's
/// place no worse than Debian's units for openvpn.
pub(super) fn hardened(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    machine.dpkg("--install", &[case.deb("adit", VERSION)?])?;
    let folder = "/usr/lib/systemd/system";
    let mut units: Vec<String> = fs::read_dir(machine.path(folder))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("adit-"))
        .map(|name| format!("{folder}/{name}"))
        .collect();
    units.sort();
    ensure(units.len() >= 8, || format!("units are missing: {units:?}"))?;
    let names: Vec<&str> = units.iter().map(String::as_str).collect();
    // It prints mistakes that it tolerates as well. The system has no program man.
    let found = machine.run("systemd-analyze", &[&["verify", "--man=no"][..], &names].concat())?;
    let about_units: Vec<&str> = found.lines().filter(|line| line.contains("adit")).collect();
    ensure(about_units.is_empty(), || format!("mistakes in units: {about_units:?}"))?;
    let mut seen = Vec::new();
    for unit in &names {
        let exposure = exposure(&machine, unit)?;
        match unit.split_once("/adit-openvpn") {
            Some((_, kind)) => {
                let debian = self::exposure(&machine, &format!("{folder}/openvpn{kind}"))?;
                ensure(exposure <= debian, || {
                    format!("{unit} has {exposure}, and Debian's {debian}")
                })?;
            }
            None => ensure(exposure < EXPOSURE_LIMIT, || format!("{unit} has {exposure}"))?,
        }
        seen.push(exposure.to_string());
    }
    Ok(seen.join(" "))
}

/// Returns the overall exposure of a unit.
fn exposure(machine: &Machine, unit: &str) -> Result<f64> {
    let words = ["security", "--offline=true", "--no-pager", unit];
    let report = machine.run("systemd-analyze", &words)?;
    let last = report.lines().last().and_then(|line| line.rsplit_once(".service: "));
    let number = last.and_then(|(_, rest)| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).context(format!("no rating of {unit}: {report}"))
}
