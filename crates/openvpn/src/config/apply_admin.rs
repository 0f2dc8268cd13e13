//! Directives about single clients, their addresses, and certificates known by fingerprint.

use ipnet::Ipv4Net;

use super::ConfigError;
use super::raw_config::{Pool, RawConfig};
use super::reader::Directive;
use crate::tls::IssuerHash;

pub(super) fn apply(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "client-config-dir" => {
            d.shape("client-config-dir DIRECTORY", 1..=1)?;
            raw.client_config_dir = Some(d.path(0, raw.base.as_deref()));
        }
        // Adit's own.
        "filter" => {
            d.shape("filter FILE", 1..=1)?;
            raw.filter = Some(d.path(0, raw.base.as_deref()));
        }
        "ccd-exclusive" => {
            d.shape("ccd-exclusive", 0..=0)?;
            raw.ccd_exclusive = true;
        }
        "max-routes-per-client" => {
            d.shape("max-routes-per-client NUMBER", 1..=1)?;
            raw.max_routes_per_client = d.number(0, 1..=65_536)?;
        }
        "ifconfig-push-constraint" => {
            d.shape("ifconfig-push-constraint NETWORK NETMASK", 2..=2)?;
            raw.push_constraint = Some(d.net4(0, 1)?.trunc());
        }
        "ifconfig-pool" => {
            d.shape("ifconfig-pool FIRST LAST [NETMASK]", 2..=3)?;
            let (first, last) = (d.ipv4(0)?, d.ipv4(1)?);
            if first > last {
                return Err(
                    d.error(format!("{first} is behind {last}"), "write the lower address first")
                );
            }
            let netmask = match d.get(2) {
                Some(_) => Some(Ipv4Net::netmask(&d.net4(0, 2)?)),
                None => None,
            };
            raw.pool4 = Some(Pool { first, last, netmask });
        }
        "peer-fingerprint" => {
            d.shape("peer-fingerprint AA:BB:... <inline>", 1..=1)?;
            for fingerprint in fingerprints(d, false)? {
                if !raw.fingerprints.contains(&fingerprint) {
                    raw.fingerprints.push(fingerprint);
                }
            }
        }
        "verify-hash" => issuer(raw, d)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// `verify-hash HASH [SHA1|SHA256]`, or a block of SHA-256 ones; further ones add to the list.
fn issuer(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    d.shape("verify-hash AA:BB:... [SHA1|SHA256] <inline>", 1..=2)?;
    // As stock has it: a block is of SHA-256, and a lone argument of SHA-1.
    let sha1 = match (d.inline.is_some(), d.get(1)) {
        (true, _) | (_, Some("SHA256")) => false,
        (_, None | Some("SHA1")) => true,
        (_, Some(other)) => {
            return Err(d.error(format!("\"{other}\" is not known"), "write SHA256 or SHA1"));
        }
    };
    let new = fingerprints(d, sha1)?;
    let better = match sha1 {
        true => {
            ": a second certificate with the same SHA-1 hash can be made; write SHA256 behind one of that"
        }
        false => "; put that certificate alone into ca, or write peer-fingerprint",
    };
    raw.warn(d, &format!("is deprecated{better}"));
    let all = raw.issuer.get_or_insert(IssuerHash { sha1, fingerprints: Vec::new() });
    if all.sha1 != sha1 {
        return Err(d.error(
            "there is one of the other kind already",
            "write all of them as SHA256: openssl x509 -fingerprint -sha256 -noout -in FILE",
        ));
    }
    all.fingerprints.extend(new);
    Ok(())
}

/// One as argument, or a block with one in each line, at least one.
fn fingerprints(d: &Directive, sha1: bool) -> Result<Vec<String>, ConfigError> {
    let (name, flag, len) = if sha1 { ("SHA-1", "sha1", 20) } else { ("SHA-256", "sha256", 32) };
    let remedy =
        format!("write what this prints: openssl x509 -fingerprint -{flag} -noout -in FILE");
    let text = d.inline.as_ref().map_or(d.arg(0), |text| text.as_str());
    let lines = text.lines().map(str::trim);
    let mut found = Vec::new();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        let Some(fingerprint) = fingerprint(line, len) else {
            return Err(d.error(format!("\"{line}\" is not a {name} fingerprint"), remedy));
        };
        found.push(fingerprint);
    }
    if found.is_empty() {
        return Err(d.error("there is no fingerprint in it: no peer could be let in", remedy));
    }
    Ok(found)
}

/// So many bytes in hex with colons between them, as lower-case hex without.
fn fingerprint(text: &str, len: usize) -> Option<String> {
    let parts: Vec<&str> = text.split(':').collect();
    let whole = parts.len() == len
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()));
    whole.then(|| parts.concat().to_ascii_lowercase())
}
