//! Directives for the process: configuration files, user, log, status, environment.

use std::time::Duration;

use super::Field::{Path, Text};
use super::InConnection::Free;
use super::{Spec, flag, one, used};
use crate::config::ConfigError;
use crate::config::options::{LogTo, Metrics, Remap, Status};
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;

pub(super) const TABLE: &[Spec] = &[
    // The reader has already processed both.
    used("config", "FILE", 1..=1, |_, _| Ok(())).doc("Reads another file at this point."),
    used("cd", "DIRECTORY", 1..=1, |_, _| Ok(())).doc("The directory to which paths are relative."),
    used("ignore-unknown-option", "NAME [NAME ...]", 1..=usize::MAX, |raw, d| {
        raw.ignored.extend(d.args.iter().cloned());
        Ok(())
    })
    .in_connection(Free)
    .doc("From here on, skips these directives if they are unknown."),
    used("compat-mode", "VERSION", 1..=2, compat_mode)
        .doc("The oldest version of openvpn to be compatible with."),
    used("daemon", "[NAME]", 0..=1, |raw, d| {
        raw.options.process.daemon = Some(d.get(0).unwrap_or("openvpn").to_owned());
        Ok(())
    })
    .doc("Runs in the background, with this name in the system log."),
    one("writepid", "FILE", Path(|raw| &mut raw.options.process.pid_file))
        .doc("Writes the process id to a file."),
    one("user", "NAME", Text(|raw| &mut raw.options.process.user))
        .doc("The user to switch to after the start."),
    one("group", "NAME", Text(|raw| &mut raw.options.process.group))
        .doc("The group to switch to after the start."),
    one("chroot", "DIRECTORY", Path(|raw| &mut raw.options.process.chroot)).doc(
        "The root directory to switch to after the start; files that are read later are inside it.",
    ),
    used("nice", "NUMBER", 1..=1, |raw, d| {
        raw.options.process.nice = d.number(0, -20..=19)?;
        Ok(())
    })
    .doc("The process's priority."),
    flag("mlock", |raw| &mut raw.options.process.mlock)
        .doc("Keeps the process's memory out of swap."),
    flag("persist-key", |raw| &mut raw.options.process.persist_key)
        .doc("Does not read the key files again at a restart."),
    used("remap-usr1", "SIGHUP|SIGTERM", 1..=1, remap_usr1)
        .doc("Treats SIGUSR1 as another signal."),
    used("verb", "LEVEL", 1..=1, |raw, d| {
        // OpenVPN accepts any number and clamps it to the range 0 to 15.
        let level = d.number::<i32>(0, i32::MIN..=i32::MAX)?.clamp(0, 11);
        raw.options.log.verb = level.unsigned_abs().try_into().unwrap_or(11);
        Ok(())
    })
    .doc("The log level, from 0 to 11 (1)."),
    used("mute", "MESSAGES", 1..=1, |raw, d| {
        raw.options.log.mute = Some(d.number(0, 0..=i32::MAX.cast_unsigned())?).filter(|n| *n > 0);
        Ok(())
    })
    .doc("The maximum number of consecutive messages of one kind."),
    // openvpn opens the log when it reads the directive, so only a `cd` before it has an effect.
    used("log", "FILE", 1..=1, |raw, d| {
        log_to(raw, LogTo::File(d.path(0, d.directory.as_deref())));
        Ok(())
    })
    .doc("Logs to a file, which is emptied at the start."),
    used("log-append", "FILE", 1..=1, |raw, d| {
        log_to(raw, LogTo::Append(d.path(0, d.directory.as_deref())));
        Ok(())
    })
    .doc("Appends the log to a file."),
    used("syslog", "[NAME]", 0..=1, |raw, d| {
        raw.syslog = Some(d.get(0).unwrap_or("openvpn").to_owned());
        Ok(())
    })
    .doc("Logs to the system log, under this name."),
    used("suppress-timestamps", "", 0..=0, |raw, _| {
        raw.options.log.timestamps = false;
        Ok(())
    })
    .doc("Logs without the time."),
    flag("machine-readable-output", |raw| &mut raw.options.log.machine_readable)
        .doc("Logs the time in seconds and each message's flags."),
    flag("errors-to-stderr", |raw| &mut raw.options.log.errors_to_stderr).doc(
        "Sends errors to standard error instead of standard output, unless there is a log file.",
    ),
    used("status", "FILE [SECONDS]", 1..=2, |raw, d| {
        let every = if d.args.len() > 1 { d.seconds(1)? } else { Duration::from_secs(60) };
        let path = d.path(0, raw.base.as_deref());
        raw.options.status = Some(Status { path, every, version: 1 });
        Ok(())
    })
    .doc("Writes the state to a file, every 60 seconds or at the given interval."),
    used("status-version", "1|2|3", 1..=1, |raw, d| {
        raw.status_version = Some(d.number(0, 1..=3)?);
        Ok(())
    })
    .doc("The format of the status file (1)."),
    used("metrics", "unix:PATH|ADDRESS:PORT [openvpn]", 1..=2, |raw, d| {
        let compatible = match d.get(1) {
            None => false,
            Some("openvpn") => true,
            Some(other) => return Err(d.error(format!("\"{other}\" is not known"), "write openvpn")),
        };
        raw.options.metrics = Some(Metrics { listen: d.arg(0).to_owned(), compatible });
        Ok(())
    })
    .doc("Serves metrics on a unix socket or a local port, with the names of openvpn's exporter if they are wanted. Only adit has it."),
    used("setenv", "NAME [VALUE]", 1..=2, setenv)
        .doc("A variable for programs, and, if it is IV_SSO, IV_GUI_VER or begins with UV_, for the peer info."),
    used("setenv-safe", "NAME [VALUE]", 1..=2, |raw, d| environment(raw, d, "OPENVPN_"))
        .doc("A variable for programs, with OPENVPN_ before its name."),
    used("echo", "[TEXT ...]", 0..=usize::MAX, |raw, d| {
        raw.options.echo.push(d.args.join(" "));
        Ok(())
    })
    .doc("A text for the management client."),
];

/// The first file is the log, as in openvpn, which opens it when it reads the directive.
fn log_to(raw: &mut RawConfig, file: LogTo) {
    if !matches!(raw.options.log.to, LogTo::File(_) | LogTo::Append(_)) {
        raw.options.log.to = file;
    }
}

fn remap_usr1(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.options.process.remap_usr1 = match d.arg(0) {
        "SIGHUP" => Some(Remap::Hangup),
        "SIGTERM" => Some(Remap::Terminate),
        "SIGUSR1" => None,
        other => {
            return Err(d.error(format!("\"{other}\" is not known"), "write SIGHUP or SIGTERM"));
        }
    };
    Ok(())
}

/// Allows the algorithms that a peer of this version needs.
fn compat_mode(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let mut parts = d.arg(0).split('.').map(str::parse::<u32>);
    let mut part = || match parts.next() {
        None => Some(0),
        Some(number) => number.ok().filter(|number| *number < 100),
    };
    let (Some(major), Some(minor), Some(patch)) = (part(), part(), part()) else {
        return Err(d.error(format!("\"{}\" is not a version", d.arg(0)), "write it as 2.4.0"));
    };
    let version = major
        .saturating_mul(10_000)
        .saturating_add(minor.saturating_mul(100))
        .saturating_add(patch);
    raw.compatible_with = Some(version);
    let text = match version {
        20_600.. => "has no effect: nothing that later versions changed depends on it",
        20_500.. => "allows the other end to use compression framing, which is always allowed",
        20_400.. => "adds cipher to data-ciphers",
        20_307.. => {
            "adds cipher to data-ciphers and data-ciphers-fallback; BF-CBC stays unsupported"
        }
        _ => {
            "adds cipher to data-ciphers and data-ciphers-fallback; BF-CBC, and TLS before 1.2, stay \
              unsupported"
        }
    };
    raw.warn(d, text);
    Ok(())
}

/// Handles `setenv NAME [VALUE]`. OpenVPN treats some names as directives.
fn setenv(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    match (d.arg(0), d.get(1)) {
        ("FORWARD_COMPATIBLE", value) => raw.forward_compatible = value == Some("1"),
        ("REMOTE_RANDOM_HOSTNAME", None) => raw.dial.random_hostname = true,
        ("PUSH_PEER_INFO", None) => raw.options.session.push_peer_info = true,
        ("SERVER_POLL_TIMEOUT", Some(_)) => {
            raw.dial.connect_timeout = Duration::from_secs(d.number(1, 1..=86_400)?);
        }
        _ => environment(raw, d, "")?,
    }
    Ok(())
}

fn environment(raw: &mut RawConfig, d: &Directive, prefix: &str) -> Result<(), ConfigError> {
    if d.arg(0) == "GENERIC_CONFIG" {
        return Err(d.error(
            "this is a generic configuration that cannot be used directly",
            "ask its provider for one with your own certificate or login",
        ));
    }
    let name = format!("{prefix}{}", d.arg(0));
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !plain || name.starts_with(|c: char| c.is_ascii_digit()) || name.len() > 64 {
        return Err(d.error(
            format!("\"{}\" is not a variable's name", d.arg(0)),
            "use letters, digits and underscores",
        ));
    }
    raw.options.environment.retain(|(other, _)| *other != name);
    raw.options.environment.push((name, d.arg(1).to_owned()));
    Ok(())
}
