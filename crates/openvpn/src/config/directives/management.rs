//! Directives for the management interface.

use super::{Roles, Spec, flag, used};
use crate::config::ConfigError;
use crate::config::options::{ManagementPassword, ManagementPlace, Padding};
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;

/// The maximum of `management-log-cache`.
const MAX_LOG_CACHE: usize = 100_000;

pub(super) const TABLE: &[Spec] = &[
    used("management", "ADDRESS PORT [PASSWORD-FILE]", 2..=3, management).doc(
        "Opens the management interface at an address, or at a unix socket (PORT is unix). The \
         address tunnel means this end's address in the tunnel, and the file stdin for the terminal.",
    ),
    flag("management-client", |raw| &mut raw.management.connects)
        .doc("Connects to a program at the address of management instead of listening there."),
    used("management-client-user", "NAME", 1..=1, |raw, d| {
        raw.management.client_user = Some(d.arg(0).to_owned());
        Ok(())
    })
    .doc("The only user that may connect to the unix socket of management."),
    used("management-client-group", "NAME", 1..=1, |raw, d| {
        raw.management.client_group = Some(d.arg(0).to_owned());
        Ok(())
    })
    .doc("The only group whose processes may connect to the unix socket of management."),
    flag("management-hold", |raw| &mut raw.management.hold)
        .doc("Waits for hold release before the start and before each new attempt to connect."),
    flag("management-query-passwords", |raw| &mut raw.management.query_passwords)
        .doc("Asks the management client for passwords instead of the terminal."),
    flag("management-forget-disconnect", |raw| &mut raw.management.forget_disconnect)
        .doc("Forgets the password when the management client disconnects."),
    flag("management-query-remote", |raw| &mut raw.management.query_remote)
        .roles(Roles::DIALS_LAX)
        .doc("Asks the management client for the server before each attempt to connect."),
    flag("management-query-proxy", |raw| &mut raw.management.query_proxy)
        .roles(Roles::DIALS_LAX)
        .doc("Asks the management client for the proxy before each attempt to connect."),
    used("management-external-key", "[nopadding] [pkcs1] [pss]", 0..=3, external_key)
        .roles(Roles::CLIENT)
        .doc("Lets the management client sign, which has the key and these paddings of RSA."),
    used("management-external-cert", "HINT", 1..=1, |raw, d| {
        raw.management.external_cert = Some(d.arg(0).to_owned());
        Ok(())
    })
    .roles(Roles::CLIENT)
    .doc("Gets the certificate from the management client, which finds it by the hint."),
    flag("management-client-auth", |raw| &mut raw.management.client_auth)
        .roles(Roles::SERVER)
        .doc("Lets the management client decide which clients may connect, and with which options."),
    flag("management-up-down", |raw| &mut raw.management.up_down)
        .doc("Tells the management client when the tunnel comes up and goes down, with the variables of up."),
    flag("management-signal", |raw| &mut raw.management.signal)
        .doc("Restarts the tunnel (SIGUSR1) when the management client disconnects."),
    used("management-log-cache", "LINES", 1..=1, |raw, d| {
        raw.management.log_cache = Some(d.number(0, 1..=MAX_LOG_CACHE)?);
        Ok(())
    })
    .doc("The number of log lines that are kept for the management client (250)."),
];

fn external_key(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let padding = |word: &String| match word.as_str() {
        "nopadding" => Ok(Padding::None),
        "pkcs1" => Ok(Padding::Pkcs1),
        "pss" => Ok(Padding::Pss),
        other => Err(d.error(format!("\"{other}\" is not known"), "write nopadding, pkcs1 or pss")),
    };
    let named = d.args.iter().map(padding).collect::<Result<Vec<_>, _>>()?;
    // As in openvpn, whose first such clients made both.
    let usual = vec![Padding::None, Padding::Pkcs1];
    raw.management.external_key = Some(if named.is_empty() { usual } else { named });
    Ok(())
}

fn management(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.management.place = Some(match (d.arg(0), d.arg(1)) {
        (_, "unix") => ManagementPlace::Unix(d.path(0, raw.base.as_deref())),
        ("tunnel", _) => ManagementPlace::Tunnel(d.reachable_port(1)?),
        _ => ManagementPlace::Tcp(d.host(0)?, d.reachable_port(1)?),
    });
    raw.management.password = match d.get(2) {
        Some("stdin") => Some(ManagementPassword::Prompt),
        Some(_) => Some(ManagementPassword::File(d.path(2, raw.base.as_deref()))),
        None => None,
    };
    Ok(())
}
