//! Directives about single clients, their addresses, and certificates known by fingerprint.

use ipnet::Ipv4Net;

use super::ConfigError;
use super::draft::{Draft, Pool};
use super::reader::Directive;

type Taken = Result<bool, ConfigError>;

pub(super) fn apply(draft: &mut Draft, d: &Directive) -> Taken {
    match d.name.as_str() {
        "client-config-dir" => {
            d.shape("client-config-dir DIRECTORY", 1..=1)?;
            draft.client_config_dir = Some(d.path(0, draft.base.as_deref()));
        }
        // Adit's own.
        "filter" => {
            d.shape("filter FILE", 1..=1)?;
            draft.filter = Some(d.path(0, draft.base.as_deref()));
        }
        "ccd-exclusive" => {
            d.shape("ccd-exclusive", 0..=0)?;
            draft.ccd_exclusive = true;
        }
        "max-routes-per-client" => {
            d.shape("max-routes-per-client NUMBER", 1..=1)?;
            draft.max_routes_per_client = d.number(0, 1..=65_536)?;
        }
        "ifconfig-push-constraint" => {
            d.shape("ifconfig-push-constraint NETWORK NETMASK", 2..=2)?;
            draft.push_constraint = Some(d.net4(0, 1)?.trunc());
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
            draft.pool4 = Some(Pool { first, last, netmask });
        }
        "peer-fingerprint" => fingerprints(draft, d)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// One as argument, or a block with one in each line; further ones add to the list.
fn fingerprints(draft: &mut Draft, d: &Directive) -> Result<(), ConfigError> {
    d.shape("peer-fingerprint AA:BB:... <inline>", 1..=1)?;
    let text = d.inline.as_ref().map_or(d.arg(0), |text| text.as_str());
    let lines = text.lines().map(str::trim);
    let mut found = false;
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        let Some(fingerprint) = fingerprint(line) else {
            return Err(d.error(
                format!("\"{line}\" is not a SHA-256 fingerprint"),
                "write what this prints: openssl x509 -fingerprint -sha256 -noout -in FILE",
            ));
        };
        found = true;
        if !draft.fingerprints.contains(&fingerprint) {
            draft.fingerprints.push(fingerprint);
        }
    }
    if !found {
        return Err(d.error(
            "there is no fingerprint in it: nobody could be let in",
            "write what this prints: openssl x509 -fingerprint -sha256 -noout -in FILE",
        ));
    }
    Ok(())
}

/// 32 bytes in hex with colons between them, as lower-case hex without.
fn fingerprint(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(':').collect();
    let whole = parts.len() == 32
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()));
    whole.then(|| parts.concat().to_ascii_lowercase())
}
