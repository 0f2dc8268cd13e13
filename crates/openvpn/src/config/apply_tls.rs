//! Directives about certificates, keys, TLS and ciphers.

use std::time::Duration;

use super::ConfigError;
use super::options::{AskPass, NameKind, TlsVersion, Usage, VerifyName, Wrap};
use super::raw_config::RawConfig;
use super::reader::Directive;
use crate::tls::CertProfile;

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

pub(super) fn apply(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    Ok(files(raw, d)? || wrap(raw, d)? || verify(raw, d)? || tls(raw, d)? || ciphers(raw, d)?)
}

fn files(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    let base = raw.base.clone();
    let base = base.as_deref();
    let (slot, name) = match d.name.as_str() {
        "ca" => (&mut raw.ca, "ca"),
        "cert" => (&mut raw.cert, "cert"),
        "key" => (&mut raw.key, "key"),
        "extra-certs" => (&mut raw.extra, "extra-certs"),
        "crl-verify" if d.args.len() > 1 => {
            return Err(d.error(
                "directories of revoked serial numbers are not supported",
                "write: crl-verify FILE with a list made by your authority (easyrsa gen-crl)",
            ));
        }
        "crl-verify" => (&mut raw.crl, "crl-verify"),
        "dh" => {
            d.shape("dh none <inline>", 1..=1)?;
            if d.arg(0) != "none" {
                raw.dh = d.source("dh", base);
                raw.warn(
                    d,
                    "has no effect: it is for key exchanges over finite fields, and TLS here uses \
                     elliptic curves; dh none says so",
                );
            } else {
                raw.dh = None;
            }
            return Ok(true);
        }
        "capath" => {
            d.shape("capath DIRECTORY", 1..=1)?;
            raw.ca_path = Some(d.path(0, base));
            return Ok(true);
        }
        "askpass" => {
            d.shape("askpass [FILE]", 0..=1)?;
            raw.askpass = Some(match d.get(0) {
                None | Some("stdin") => AskPass::Prompt,
                Some(_) => AskPass::File(d.path(0, base)),
            });
            return Ok(true);
        }
        _ => return Ok(false),
    };
    d.shape(&format!("{name} FILE <inline>"), 1..=1)?;
    if let Some(source) = d.source(name, base) {
        *slot = Some(source);
    }
    Ok(true)
}

fn wrap(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    let base = raw.base.clone();
    let base = base.as_deref();
    let new = match d.name.as_str() {
        "key-direction" => {
            d.shape("key-direction 0|1", 1..=1)?;
            raw.key_direction = Some(d.number(0, 0..=1)?);
            return Ok(true);
        }
        "tls-auth" => {
            d.shape("tls-auth FILE [0|1] <inline>", 1..=2)?;
            if d.args.len() > 1 {
                raw.key_direction = Some(d.number(1, 0..=1)?);
            }
            d.source("tls-auth", base).map(|key| Wrap::TlsAuth { key, direction: None })
        }
        "tls-crypt" => {
            d.shape("tls-crypt FILE <inline>", 1..=1)?;
            d.source("tls-crypt", base).map(Wrap::TlsCrypt)
        }
        "tls-crypt-v2" => {
            d.shape("tls-crypt-v2 FILE [force-cookie|allow-noncookie] <inline>", 1..=2)?;
            match d.get(1) {
                None | Some("allow-noncookie") => {}
                Some("force-cookie") => raw.force_cookie = true,
                Some(other) => {
                    return Err(d.error(
                        format!("\"{other}\" is not known"),
                        "write force-cookie or allow-noncookie",
                    ));
                }
            }
            if let Some(key) = d.source("tls-crypt-v2", base) {
                raw.crypt_v2 = Some((key, d.location.clone()));
            }
            return Ok(true);
        }
        "tls-crypt-v2-max-age" => {
            d.shape("tls-crypt-v2-max-age DAYS", 1..=1)?;
            let days: u64 = d.number(0, 1..=i32::MAX.unsigned_abs().into())?;
            raw.max_key_age = Some(Duration::from_secs(days.saturating_mul(DAY)));
            return Ok(true);
        }
        _ => return Ok(false),
    };
    let Some(new) = new else { return Ok(true) };
    if raw.wrap != Wrap::None && std::mem::discriminant(&raw.wrap) != std::mem::discriminant(&new) {
        return Err(d.error(
            "there already is another of tls-auth and tls-crypt",
            "keep the one that the other end has",
        ));
    }
    raw.wrap = new;
    Ok(true)
}

fn verify(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "verify-x509-name" => {
            d.shape("verify-x509-name NAME [subject|name|name-prefix]", 1..=2)?;
            let kind = match d.get(1) {
                None | Some("subject") => NameKind::Subject,
                Some("name") => NameKind::Name,
                Some("name-prefix") => NameKind::NamePrefix,
                Some(other) => {
                    return Err(d.error(
                        format!("\"{other}\" is not known"),
                        "write subject, name or name-prefix",
                    ));
                }
            };
            if d.arg(0).is_empty() {
                return Err(d.error(
                    "the name is empty",
                    "write the common name of the server's certificate, and name",
                ));
            }
            raw.verify_name = Some(VerifyName { name: d.arg(0).to_owned(), kind });
        }
        "remote-cert-tls" => {
            d.shape("remote-cert-tls server|client", 1..=1)?;
            raw.peer_usage = Some(match d.arg(0) {
                "server" => Usage::Server,
                "client" => Usage::Client,
                other => {
                    return Err(
                        d.error(format!("\"{other}\" is not known"), "write server or client")
                    );
                }
            });
        }
        "remote-cert-eku" => {
            d.shape("remote-cert-eku \"TLS Web Server Authentication\"", 1..=1)?;
            raw.peer_usage = Some(match d.arg(0) {
                "TLS Web Server Authentication" | "serverAuth" | "1.3.6.1.5.5.7.3.1" => {
                    Usage::Server
                }
                "TLS Web Client Authentication" | "clientAuth" | "1.3.6.1.5.5.7.3.2" => {
                    Usage::Client
                }
                other => {
                    return Err(d.error(
                        format!("key usage \"{other}\" is not supported"),
                        "use remote-cert-tls server or client",
                    ));
                }
            });
        }
        "remote-cert-ku" => {
            d.shape("remote-cert-ku [BITS ...]", 0..=15)?;
            raw.key_usage = Some(key_usage(d)?);
        }
        "verify-client-cert" => {
            d.shape("verify-client-cert require", 0..=1)?;
            match d.get(0) {
                None | Some("require") => {}
                Some("none" | "optional") => {
                    return Err(d.error(
                        "a client without a certificate must prove itself in another way: by \
                         auth-user-pass-verify, a plugin or management-client-auth, and this server has \
                         none of them (openvpn does not start then either)",
                        "remove it and give each client a certificate; peer-fingerprint knows those that \
                         no authority signed",
                    ));
                }
                Some(other) => {
                    return Err(d.error(
                        format!("\"{other}\" is not known"),
                        "write: verify-client-cert require",
                    ));
                }
            }
        }
        "x509-username-field" => {
            d.shape("x509-username-field CN", 1..=1)?;
            if d.arg(0) != "CN" {
                return Err(d.error("only the common name can name a client", "remove it"));
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The values of `remote-cert-ku`, in hex: the first bit of the extension is 80.
fn key_usage(d: &Directive) -> Result<Vec<u8>, ConfigError> {
    let value = |text: &String| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        match u32::from_str_radix(digits, 16) {
            Ok(bits @ 1..=0xff) => u8::try_from(bits).ok(),
            _ => None,
        }
        .ok_or_else(|| {
            d.error(
                format!("\"{text}\" is not a key usage from 1 to ff: no certificate could have it"),
                "write a0 for the key usage digitalSignature and keyEncipherment, 80 for the first \
                 alone, or nothing to demand that there is one",
            )
        })
    };
    d.args.iter().map(value).collect()
}

/// A TLS version; `None` for those older than 1.2.
fn version(d: &Directive) -> Result<Option<TlsVersion>, ConfigError> {
    match d.arg(0) {
        "1.0" | "1.1" => Ok(None),
        "1.2" => Ok(Some(TlsVersion::V12)),
        "1.3" => Ok(Some(TlsVersion::V13)),
        _ if d.get(1) == Some("or-highest") => Ok(Some(TlsVersion::V13)),
        other => Err(d.error(format!("there is no TLS version \"{other}\""), "write 1.2 or 1.3")),
    }
}

fn list(d: &Directive) -> Result<Vec<String>, ConfigError> {
    let names: Vec<String> =
        d.arg(0).split(':').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.is_empty() {
        return Err(d.error("the list is empty", "remove it for the default"));
    }
    Ok(names)
}

fn tls(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "tls-version-min" => {
            d.shape("tls-version-min VERSION [or-highest]", 1..=2)?;
            match version(d)? {
                Some(version) => raw.min_version = version,
                None => raw.warn(d, "means 1.2: older versions are broken and not offered"),
            }
        }
        "tls-version-max" => {
            d.shape("tls-version-max VERSION", 1..=1)?;
            let Some(version) = version(d)? else {
                return Err(d.error(
                    "versions older than TLS 1.2 are broken and not offered",
                    "write 1.2 or 1.3",
                ));
            };
            raw.max_version = Some(version);
        }
        "tls-cipher" => {
            d.shape("tls-cipher NAME:NAME", 1..=1)?;
            raw.cipher_list = Some(list(d)?);
        }
        "tls-ciphersuites" => {
            d.shape("tls-ciphersuites NAME:NAME", 1..=1)?;
            raw.cipher_suites = Some(list(d)?);
        }
        "tls-groups" | "ecdh-curve" => {
            d.shape("tls-groups NAME:NAME", 1..=1)?;
            // tls-groups is the newer word and wins.
            if d.name == "tls-groups" || !raw.seen.contains_key("tls-groups") {
                raw.groups = Some(list(d)?);
            }
        }
        "tls-cert-profile" => {
            d.shape("tls-cert-profile preferred", 1..=1)?;
            raw.profile = Some(match d.arg(0) {
                "legacy" => CertProfile::Legacy,
                "preferred" => CertProfile::Preferred,
                "suiteb" => {
                    raw.warn(
                        d,
                        "means preferred: RSA of 2048 bits or more is accepted besides P-256 and P-384",
                    );
                    CertProfile::Preferred
                }
                "insecure" => {
                    raw.warn(
                        d,
                        "accepts signatures with SHA-1, which can be forged; keys below 1024 bits and \
                         signatures with MD5 are refused all the same",
                    );
                    CertProfile::Insecure
                }
                other => {
                    return Err(d.error(
                        format!("profile \"{other}\" is not supported"),
                        "write legacy, which is the default, or preferred",
                    ));
                }
            });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn ciphers(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    let location = d.location.clone();
    match d.name.as_str() {
        "data-ciphers" | "ncp-ciphers" => {
            d.shape("data-ciphers AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305", 1..=1)?;
            raw.data_ciphers = Some((d.arg(0).to_owned(), location));
        }
        "data-ciphers-fallback" => {
            d.shape("data-ciphers-fallback AES-256-GCM", 1..=1)?;
            raw.fallback = Some((d.arg(0).to_owned(), location));
        }
        "cipher" => {
            d.shape("cipher AES-256-GCM", 1..=1)?;
            raw.cipher = Some((d.arg(0).to_owned(), location));
        }
        "auth" => {
            d.shape("auth SHA256", 1..=1)?;
            raw.auth = Some(digest(d)?);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The reference implementation's spelling of a digest's name.
fn digest(d: &Directive) -> Result<String, ConfigError> {
    const KNOWN: [&str; 6] = ["SHA1", "SHA224", "SHA256", "SHA384", "SHA512", "MD5"];
    let asked = d.arg(0).to_ascii_uppercase();
    let plain: String = asked.strip_prefix("RSA-").unwrap_or(&asked).replace('-', "");
    if plain == "NONE" {
        return Ok("none".into());
    }
    match KNOWN.iter().find(|known| **known == plain) {
        Some(known) => Ok((*known).to_owned()),
        None => Err(d.error(
            format!("digest {} is not supported", d.arg(0)),
            "write SHA1, SHA256, SHA384 or SHA512, the same at both ends",
        )),
    }
}
