//! Directives for keys on tokens (PKCS#11).

use std::time::Duration;

use super::{Spec, flag, used};
use crate::config::ConfigError;
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;
use crate::tls::CertificateQuery;

/// The maximum number of providers, as in openvpn.
const MAX_PROVIDERS: usize = 16;

/// The bit of `pkcs11-private-mode` for the function that signs.
const SIGN: u32 = 1;

/// The other bits: sign recover, decrypt, unwrap.
const OTHER_MODES: u32 = 2 | 4 | 8;

pub(super) const TABLE: &[Spec] = &[
    used("pkcs11-providers", "MODULE [MODULE ...]", 1..=MAX_PROVIDERS, |raw, d| {
        let base = raw.base.clone();
        // A name without a slash is one for the dynamic linker.
        let module = |(at, name): (usize, &String)| {
            if name.contains('/') {
                d.path(at, base.as_deref()).to_string_lossy().into_owned()
            } else {
                name.clone()
            }
        };
        raw.pkcs11.providers = d.args.iter().enumerate().map(module).collect();
        Ok(())
    })
    .tls()
    .doc("The PKCS#11 modules of tokens; a process of its own loads them (p11-kit-proxy.so)."),
    used("pkcs11-id", "ID", 1..=1, |raw, d| {
        let query = CertificateQuery::parse(d.arg(0)).map_err(|problem| {
            d.error(
                problem,
                "write an id that --show-pkcs11-ids prints, in single quotes, or a URI such as \
                 'pkcs11:token=office;id=%01'",
            )
        })?;
        raw.pkcs11.query = Some(query);
        Ok(())
    })
    .tls()
    .doc("The certificate on a token whose key is used, instead of cert and key."),
    flag("pkcs11-id-management", |raw| &mut raw.pkcs11.ask)
        .tls()
        .doc("Has the management client, or the user of the terminal, choose the certificate."),
    used("pkcs11-pin-cache", "SECONDS", 1..=1, |raw, d| {
        raw.pkcs11.pin_cache = match d.arg(0) {
            "-1" => None,
            _ => Some(Duration::from_secs(d.number(0, 0..=i32::MAX.unsigned_abs().into())?)),
        };
        Ok(())
    })
    .tls()
    .doc(
        "The time after which a token's PIN is asked for again (only when the token was removed).",
    ),
    used("pkcs11-protected-authentication", "0|1 [0|1 ...]", 1..=MAX_PROVIDERS, |raw, d| {
        raw.pkcs11.protected = flags(d)?;
        Ok(())
    })
    .tls()
    .doc("For each module, whether the PIN is entered on the token's own keypad."),
    used("pkcs11-cert-private", "0|1 [0|1 ...]", 1..=MAX_PROVIDERS, |raw, d| {
        raw.pkcs11.private = flags(d)?;
        Ok(())
    })
    .tls()
    .doc("For each module, whether certificates can be seen only after the PIN."),
    used("pkcs11-private-mode", "MODE [MODE ...]", 1..=MAX_PROVIDERS, private_mode).tls().doc(
        "For each module, the functions that use keys, in hex: 0 or 1, because keys sign here.",
    ),
];

fn flags(d: &Directive) -> Result<Vec<bool>, ConfigError> {
    let flag = |word: &String| match word.as_str() {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(d.error(format!("\"{other}\" is not known"), "write 0 or 1 for each module")),
    };
    d.args.iter().map(flag).collect()
}

fn private_mode(_: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    for word in &d.args {
        match u32::from_str_radix(word, 16) {
            Ok(mode) if mode & !(SIGN | OTHER_MODES) != 0 => {
                return Err(d.error(format!("\"{word}\" is not a mode"), "write 0 or 1"));
            }
            // All methods are allowed, or signing is among them.
            Ok(mode) if mode == 0 || mode & SIGN != 0 => {}
            Ok(_) => {
                return Err(d.error(
                    format!("mode {word} does not sign, and TLS needs nothing but signatures"),
                    "write 0 or 1",
                ));
            }
            Err(_) => {
                return Err(d.error(format!("\"{word}\" is not hexadecimal"), "write 0 or 1"));
            }
        }
    }
    Ok(())
}
