//! Directives about the process: user, log, status, environment.

use std::time::Duration;

use super::ConfigError;
use super::options::{LogTo, Remap};
use super::raw_config::RawConfig;
use super::reader::Directive;

pub(super) fn apply(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    Ok(process(raw, d)? || log(raw, d)? || other(raw, d)?)
}

fn process(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    let base = raw.base.clone();
    match d.name.as_str() {
        // The reader has followed it.
        "cd" => d.shape("cd DIRECTORY", 1..=1)?,
        "daemon" => {
            d.shape("daemon [NAME]", 0..=1)?;
            raw.process.daemon = Some(d.get(0).unwrap_or("openvpn").to_owned());
        }
        "writepid" => {
            d.shape("writepid FILE", 1..=1)?;
            raw.process.pid_file = Some(d.path(0, base.as_deref()));
        }
        "user" => {
            d.shape("user NAME", 1..=1)?;
            raw.process.user = Some(d.arg(0).to_owned());
        }
        "group" => {
            d.shape("group NAME", 1..=1)?;
            raw.process.group = Some(d.arg(0).to_owned());
        }
        "nice" => {
            d.shape("nice NUMBER", 1..=1)?;
            raw.process.nice = d.number(0, -20..=19)?;
        }
        "mlock" => {
            d.shape("mlock", 0..=0)?;
            raw.process.mlock = true;
        }
        "persist-key" => {
            d.shape("persist-key", 0..=0)?;
            raw.process.persist_key = true;
        }
        "remap-usr1" => {
            d.shape("remap-usr1 SIGHUP|SIGTERM", 1..=1)?;
            raw.process.remap_usr1 = match d.arg(0) {
                "SIGHUP" => Some(Remap::Hangup),
                "SIGTERM" => Some(Remap::Terminate),
                "SIGUSR1" => None,
                other => {
                    return Err(
                        d.error(format!("\"{other}\" is not known"), "write SIGHUP or SIGTERM")
                    );
                }
            };
        }
        "script-security" => {
            d.shape("script-security LEVEL", 1..=2)?;
            // Up to 1 no script of the user's runs in openvpn either.
            if d.number(0, 0..=3)? > 1 {
                raw.warn(d, "has no effect: it allows scripts, and none are run");
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn log(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "verb" => {
            d.shape("verb LEVEL", 1..=1)?;
            // Stock takes any number and keeps it between 0 and 15.
            raw.log.verb = d
                .number::<i32>(0, i32::MIN..=i32::MAX)?
                .clamp(0, 11)
                .unsigned_abs()
                .try_into()
                .unwrap_or(11);
        }
        "mute" => {
            d.shape("mute MESSAGES", 1..=1)?;
            raw.log.mute = Some(d.number(0, 0..=i32::MAX.cast_unsigned())?).filter(|n| *n > 0);
        }
        // Stock opens the log where the directive stands, so only a cd before it counts.
        "log" => {
            d.shape("log FILE", 1..=1)?;
            raw.log.to = LogTo::File(d.path(0, d.directory.as_deref()));
        }
        "log-append" => {
            d.shape("log-append FILE", 1..=1)?;
            raw.log.to = LogTo::Append(d.path(0, d.directory.as_deref()));
        }
        "syslog" => {
            d.shape("syslog [NAME]", 0..=1)?;
            raw.syslog = Some(d.get(0).unwrap_or("openvpn").to_owned());
        }
        "suppress-timestamps" => {
            d.shape("suppress-timestamps", 0..=0)?;
            raw.log.timestamps = false;
        }
        "machine-readable-output" => {
            d.shape("machine-readable-output", 0..=0)?;
            raw.log.machine_readable = true;
        }
        "status" => {
            d.shape("status FILE [SECONDS]", 1..=2)?;
            let every = if d.args.len() > 1 { d.seconds(1)? } else { Duration::from_secs(60) };
            raw.status = Some((d.path(0, raw.base.as_deref()), every));
        }
        "status-version" => {
            d.shape("status-version 1|2|3", 1..=1)?;
            raw.status_version = d.number(0, 1..=3)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn other(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "setenv" | "setenv-safe" => {
            d.shape("setenv NAME [VALUE]", 1..=2)?;
            if d.arg(0) == "FORWARD_COMPATIBLE" && d.name == "setenv" {
                raw.forward_compatible = d.arg(1) == "1";
                return Ok(true);
            }
            // Stock takes these for directives.
            if d.name == "setenv" {
                match (d.arg(0), d.get(1)) {
                    ("REMOTE_RANDOM_HOSTNAME", None) => {
                        raw.random_hostname = true;
                        return Ok(true);
                    }
                    ("PUSH_PEER_INFO", None) => {
                        raw.push_peer_info = true;
                        return Ok(true);
                    }
                    ("SERVER_POLL_TIMEOUT", Some(_)) => {
                        raw.server_poll_timeout = Duration::from_secs(d.number(1, 1..=86_400)?);
                        return Ok(true);
                    }
                    _ => {}
                }
            }
            if d.arg(0) == "GENERIC_CONFIG" {
                return Err(d.error(
                    "this is a generic configuration that cannot be used directly",
                    "ask its provider for one with your own certificate or login",
                ));
            }
            let prefix = if d.name == "setenv-safe" { "OPENVPN_" } else { "" };
            let name = format!("{prefix}{}", d.arg(0));
            let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if !plain || name.starts_with(|c: char| c.is_ascii_digit()) || name.len() > 64 {
                return Err(d.error(
                    format!("\"{}\" is not a variable's name", d.arg(0)),
                    "use letters, digits and underscores",
                ));
            }
            if !name.starts_with("UV_") {
                let text =
                    format!("{} has no effect: it is for scripts, and none are run", d.arg(0));
                raw.warn(d, &text);
            }
            raw.environment.retain(|(other, _)| *other != name);
            raw.environment.push((name, d.arg(1).to_owned()));
        }
        "management" => {
            d.shape("management ADDRESS PORT [PASSWORD-FILE]", 2..=3)?;
            raw.management = Some(d.args.clone());
            raw.warn(d, "is not opened: there is no management interface yet");
        }
        _ => return Ok(false),
    }
    Ok(true)
}
