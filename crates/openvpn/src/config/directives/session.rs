//! Directives that keep a session alive, end it, and schedule new keys.

use std::time::Duration;

use super::Field::Seconds;
use super::InConnection::Shared;
use super::{DirectiveEffect, Roles, Spec, flag, one, used};
use crate::config::ConfigError;
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;

pub(super) const TABLE: &[Spec] = &[
    used("keepalive", "INTERVAL TIMEOUT", 2..=2, keepalive).doc(
        "Pings every INTERVAL seconds and reconnects after TIMEOUT; a server sets its clients too.",
    ),
    used("ping", "SECONDS", 1..=1, |raw, d| {
        raw.options.session.keepalive.interval = d.seconds(0)?;
        Ok(())
    })
    .doc("Sends a ping after this time without a packet."),
    used("ping-restart", "SECONDS", 1..=1, |raw, d| {
        raw.ping_timeout = Some(d.seconds(0)?);
        raw.options.session.limits.exit_when_silent = false;
        Ok(())
    })
    .doc("Reconnects after this time without a packet from the other end."),
    used("ping-exit", "SECONDS", 1..=1, |raw, d| {
        raw.ping_timeout = Some(d.seconds(0)?);
        raw.options.session.limits.exit_when_silent = true;
        Ok(())
    })
    .doc("Ends the program after this time without a packet from the other end."),
    used("ping-timer-rem", "", 0..=0, |_, _| Ok(()))
        .doc("Counts ping-restart and ping-exit only once the other end is known, as adit always does."),
    used("inactive", "SECONDS [BYTES]", 1..=2, |raw, d| {
        raw.options.session.limits.inactive = d.inactive()?;
        Ok(())
    })
    .in_client_file(super::client_file::inactive)
    .doc("Ends a session that carries no more than BYTES in this time."),
    used("session-timeout", "SECONDS", 1..=1, |raw, d| {
        raw.options.session.limits.session = Some(d.seconds(0)?).filter(|time| !time.is_zero());
        Ok(())
    })
    .in_client_file(super::client_file::session_timeout)
    .doc("Ends a session of this age."),
    flag("tls-exit", |raw| &mut raw.options.session.limits.exit_on_tls_failure)
        .roles(Roles::DIALS_LAX)
        .tls()
        .doc("Ends the program when a handshake fails."),
    used("explicit-exit-notify", "[TIMES]", 0..=1, |raw, d| {
        raw.options.session.exit_notify = match d.get(0) {
            None => Some(1),
            Some(_) => Some(d.number(0, 0..=100)?).filter(|n| *n > 0),
        };
        Ok(())
    })
    .in_connection(Shared)
    .doc("Over UDP, notifies the other end when this end exits."),
    flag("single-session", |raw| &mut raw.options.session.single_session)
        .roles(Roles { client: DirectiveEffect::Ignored, server: DirectiveEffect::Ignored, ..Roles::ANY })
        .doc("Does not let the other end replace its session with a new one before the session ends."),
    used("hand-window", "SECONDS", 1..=1, |raw, d| {
        raw.options.session.hand_window = Duration::from_secs(d.number(0, 1..=86_400)?);
        Ok(())
    })
    .tls()
    .doc("The maximum duration of a handshake (60)."),
    one("tran-window", "SECONDS", Seconds(|raw| &mut raw.options.session.tran_window))
        .tls()
        .doc("The time for which the previous key can still decrypt (3600)."),
    used("tls-timeout", "SECONDS", 1..=1, |raw, d| {
        raw.options.session.tls_timeout = Duration::from_secs(d.number(0, 1..=3600)?);
        Ok(())
    })
    .doc("The time before the first retransmission of a control packet (2)."),
    used("reneg-sec", "MAX [MIN]", 1..=2, reneg_sec)
        .tls()
        .doc("The age at which a key is replaced (3600); random between MIN and MAX."),
    used("reneg-bytes", "BYTES", 1..=1, |raw, d| {
        raw.options.session.renegotiation.bytes = at_least_0(d)?;
        Ok(())
    })
    .tls()
    .doc("The bytes after which a key is replaced."),
    used("reneg-pkts", "PACKETS", 1..=1, |raw, d| {
        raw.options.session.renegotiation.packets = at_least_0(d)?;
        Ok(())
    })
    .tls()
    .doc("The packets after which a key is replaced."),
    used("replay-window", "PACKETS [SECONDS]", 1..=2, |raw, d| {
        raw.options.session.replay_window = d.number(0, 1..=65_536)?;
        if d.args.len() > 1 {
            d.seconds(1)?;
        }
        Ok(())
    })
    .doc("How far packets may be out of order (64); the time has no effect."),
    used("mute-replay-warnings", "", 0..=0, |_, _| Ok(()))
        .doc("Logs no replayed packets, as adit never does: it counts them."),
    used("replay-persist", "FILE", 1..=1, |raw, d| {
        raw.warn(
            d,
            "writes no file: after a restart every session has new keys, with which packets of an \
             earlier run are not authentic",
        );
        Ok(())
    })
    .tls()
    .doc("Remembers control packets across restarts, which new keys and the address check replace."),
];

fn keepalive(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let (interval, timeout) = (d.seconds(0)?, d.seconds(1)?);
    if interval.is_zero() || timeout < interval.saturating_mul(2) {
        return Err(
            d.error("the timeout must be at least twice the interval", "write: keepalive 10 120")
        );
    }
    raw.keepalive = Some((interval, timeout));
    Ok(())
}

fn reneg_sec(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let longest = d.seconds(0)?;
    let shortest = d.get(1).map(|_| d.seconds(1)).transpose()?;
    if shortest.is_some_and(|shortest| shortest > longest) {
        return Err(d.error("the second time is longer than the first", "write: reneg-sec MAX MIN"));
    }
    raw.options.session.renegotiation.after = longest;
    raw.reneg_earliest = shortest;
    Ok(())
}

/// Parses a number. -1 is read as 0, which means no limit.
fn at_least_0(d: &Directive) -> Result<u64, ConfigError> {
    Ok(d.number::<i64>(0, -1..=i64::MAX)?.try_into().unwrap_or(0))
}
