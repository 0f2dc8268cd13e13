//! Checks the directives about the management interface.

use super::ConfigError;
use super::directives;
use super::options::{ExternalCert, ExternalKey, Management, ManagementPlace};
use super::raw_config::{RawConfig, RawManagement};

/// The default of `management-log-cache`.
const LOG_CACHE: usize = 250;

/// Returns the management interface, which the other directives about it need.
pub(super) fn management(raw: &mut RawConfig) -> Result<Option<Management>, ConfigError> {
    let chosen = std::mem::take(&mut raw.management);
    let Some(place) = chosen.place.clone() else {
        if chosen == RawManagement::default() {
            return Ok(None);
        }
        let first = directives::all()
            .map(|spec| spec.name)
            .find(|name| name.starts_with("management-") && raw.seen.contains_key(*name));
        return Err(raw.error(
            first.unwrap_or_default(),
            "there is no management interface that it could concern",
            "add: management ADDRESS PORT, or management PATH unix; or remove this line",
        ));
    };
    let checked = [("user", &chosen.client_user), ("group", &chosen.client_group)];
    for (name, value) in checked {
        if value.is_some() && !matches!(place, ManagementPlace::Unix(_)) {
            return Err(raw.error(
                &format!("management-client-{name}"),
                "only the other end of a unix socket is known",
                "write: management PATH unix, or remove this line",
            ));
        }
    }
    if chosen.connects && matches!(place, ManagementPlace::Tunnel(_)) {
        return Err(raw.error(
            "management-client",
            "it cannot connect to this end's own address in the tunnel",
            "write the address of the program that listens in management",
        ));
    }
    Ok(Some(Management {
        place,
        password: chosen.password,
        connects: chosen.connects,
        client_user: chosen.client_user,
        client_group: chosen.client_group,
        hold: chosen.hold,
        query_passwords: chosen.query_passwords,
        query_remote: chosen.query_remote,
        query_proxy: chosen.query_proxy,
        client_auth: chosen.client_auth,
        up_down: chosen.up_down,
        forget_disconnect: chosen.forget_disconnect,
        signal: chosen.signal,
        log_cache: chosen.log_cache.unwrap_or(LOG_CACHE),
    }))
}

/// Returns the key that the management client holds, and takes the certificate for it.
pub(super) fn external_key(raw: &mut RawConfig) -> Result<Option<ExternalKey>, ConfigError> {
    let Some(padding) = raw.management.external_key.clone() else {
        if raw.management.external_cert.is_some() {
            return Err(raw.error(
                "management-external-cert",
                "the key of the certificate is not with the management client",
                "add: management-external-key",
            ));
        }
        return Ok(None);
    };
    if raw.key.is_some() {
        return Err(raw.error(
            "management-external-key",
            "there is a key already",
            "remove key, or this line",
        ));
    }
    let cert = match (raw.cert.take(), raw.management.external_cert.clone()) {
        (Some(cert), None) => ExternalCert::Source(cert),
        (None, Some(hint)) => ExternalCert::Ask(hint),
        (Some(_), Some(_)) => {
            return Err(raw.error(
                "management-external-cert",
                "there is a certificate already",
                "remove cert, or this line",
            ));
        }
        (None, None) => {
            return Err(raw.error(
                "management-external-key",
                "its certificate is not named",
                "add: cert FILE, or management-external-cert HINT",
            ));
        }
    };
    Ok(Some(ExternalKey { cert, extra: raw.extra.take(), padding }))
}
