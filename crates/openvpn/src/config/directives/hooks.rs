//! Directives for the programs that are run when the state of the tunnel changes.

use super::Field::{self, Path};
use super::{Roles, Spec, flag, one, used};
use crate::config::ConfigError;
use crate::config::lexer;
use crate::config::options::{Program, X509Track};
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;

/// The arguments of a directive that names a program.
pub(super) const CMD: &str = "\"COMMAND [ARGUMENT ...]\"";

pub(super) const TABLE: &[Spec] = &[
    used("script-security", "LEVEL", 1..=2, |raw, d| {
        raw.options.script_security = d.number(0, 0..=3)?;
        Ok(())
    })
    .doc(
        "Which programs may run: none of the configuration's below 2, those at 2, and at 3 also with passwords \
         in their environment (1).",
    ),
    one("up", CMD, Field::Program(|raw| &mut raw.options.hooks.up))
        .doc("A program to run when the device has its addresses."),
    one("down", CMD, Field::Program(|raw| &mut raw.options.hooks.down))
        .doc("A program to run after the device is closed."),
    used("dns-updown", "\"COMMAND [ARGUMENT ...]\"|force|disable", 1..=1, dns_updown).doc(
        "How DNS settings are applied: by a program, by adit itself (force), or not at all; without it they are \
         logged.",
    ),
    flag("down-pre", |raw| &mut raw.options.hooks.down_pre)
        .doc("Runs down before the device is closed."),
    flag("up-delay", |raw| &mut raw.options.hooks.up_delay)
        .roles(Roles::DIALS)
        .doc("Sets up the device, and runs up, once the other end has answered."),
    flag("up-restart", |raw| &mut raw.options.hooks.up_restart)
        .doc("Runs up and down also at a restart that keeps the device."),
    one("route-up", CMD, Field::Program(|raw| &mut raw.options.hooks.route_up))
        .doc("A program to run after routes are added."),
    one("route-pre-down", CMD, Field::Program(|raw| &mut raw.options.hooks.route_pre_down))
        .doc("A program to run before routes are removed."),
    one("ipchange", CMD, Field::Program(|raw| &mut raw.options.hooks.ip_change))
        .roles(Roles::DIALS)
        .doc("A program to run when the other end's address is authenticated or has changed."),
    used("x509-track", "[+]ATTRIBUTE", 1..=1, |raw, d| {
        let (attribute, whole_chain) = match d.arg(0).strip_prefix('+') {
            Some(attribute) => (attribute, true),
            None => (d.arg(0), false),
        };
        let attribute = attribute.to_owned();
        raw.options.hooks.tracked.push(X509Track { attribute, whole_chain });
        Ok(())
    })
    .tls()
    .doc("An attribute of the peer's certificate, or with + of each in the chain, for programs."),
    one("tmp-dir", "DIRECTORY", Path(|raw| &mut raw.options.hooks.temporary))
        .doc("The directory for files that are exchanged with programs (/tmp)."),
];

/// Parses `dns-updown`, of which the last one is in force.
fn dns_updown(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let (apply, program) = match d.arg(0) {
        "force" => (true, None),
        "disable" => (false, None),
        _ => (false, Some(program(d)?)),
    };
    raw.options.routes.apply_dns = Some(apply);
    raw.options.hooks.dns_updown = program;
    Ok(())
}

/// Stores a directive's program. As in openvpn, the last one is in force.
pub(super) fn set(
    raw: &mut RawConfig,
    d: &Directive,
    field: fn(&mut RawConfig) -> &mut Option<Program>,
) -> Result<(), ConfigError> {
    let program = program(d)?;
    if field(raw).as_ref().is_some_and(|former| *former != program) {
        let text = "is configured more than once: the last program is run";
        raw.warn(d, text);
    }
    *field(raw) = Some(program);
    Ok(())
}

/// Parses the program in the first argument: its path and arguments by the quoting rules of a line.
pub(super) fn program(d: &Directive) -> Result<Program, ConfigError> {
    let words = lexer::words(d.arg(0)).map_err(|e| d.error(e.problem(), e.remedy()))?;
    let mut words = words.into_iter();
    match words.next().filter(|path| !path.is_empty()) {
        Some(path) => Ok(Program { path, args: words.collect() }),
        None => Err(d.error("it names no program", format!("write: {} {CMD}", d.name))),
    }
}
