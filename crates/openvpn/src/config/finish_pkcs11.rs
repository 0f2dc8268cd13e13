//! Checks the directives about keys on tokens.

use super::ConfigError;
use super::options::{AskPass, Pkcs11, Pkcs11Provider, Tls};
use super::raw_config::RawConfig;

/// The module that knows those of the system, which is used if none is named.
const DEFAULT_PROVIDER: &str = "p11-kit-proxy.so";

/// Returns the key on a token. `tls` has the other directives about keys.
pub(super) fn pkcs11(
    raw: &mut RawConfig,
    tls: &Tls,
    server: bool,
) -> Result<Option<Pkcs11>, ConfigError> {
    let chosen = std::mem::take(&mut raw.pkcs11);
    let name = match (&chosen.query, chosen.ask) {
        (None, false) => {
            if !chosen.providers.is_empty() {
                raw.options.warnings.push(
                    "pkcs11-providers has no effect without pkcs11-id or pkcs11-id-management"
                        .into(),
                );
            }
            return Ok(None);
        }
        (Some(_), false) => "pkcs11-id",
        (None, true) => "pkcs11-id-management",
        (Some(_), true) => {
            return Err(raw.error(
                "pkcs11-id-management",
                "pkcs11-id names the certificate already",
                "remove one of the two",
            ));
        }
    };
    for other in ["cert", "key", "pkcs12", "management-external-key"] {
        if raw.seen.contains_key(other) {
            return Err(raw.error(
                other,
                format!("{name} says that certificate and key are on a token"),
                "remove one of the two",
            ));
        }
    }
    let from_file = matches!(tls.askpass, Some(AskPass::File(_)));
    if server && chosen.pin_cache.is_some() && !from_file {
        return Err(raw.error(
            "pkcs11-pin-cache",
            "clients of a server cannot wait until the operator enters the PIN again",
            "add: askpass FILE, with the PIN in the file; or remove this line",
        ));
    }
    let mut modules = chosen.providers;
    if modules.is_empty() {
        modules.push(DEFAULT_PROVIDER.into());
    }
    let set = |flags: &[bool], at: usize| flags.get(at).copied().unwrap_or(false);
    let provider = |(at, module): (usize, String)| Pkcs11Provider {
        module,
        protected: set(&chosen.protected, at),
        private: set(&chosen.private, at),
    };
    Ok(Some(Pkcs11 {
        providers: modules.into_iter().enumerate().map(provider).collect(),
        query: chosen.query,
        pin_cache: chosen.pin_cache,
        extra: raw.extra.take(),
    }))
}
