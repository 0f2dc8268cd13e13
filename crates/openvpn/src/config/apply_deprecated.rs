//! Directives of older versions that newer ones replace, and what they mean today.

use super::ConfigError;
use super::options::Usage;
use super::raw_config::RawConfig;
use super::reader::Directive;
use crate::server::Topology;
use crate::session::Mssfix;

/// Longest control packet that is sent, as openvpn has it by default.
const CONTROL_PACKET: u16 = 1250;

pub(super) fn apply(raw: &mut RawConfig, d: &Directive) -> Result<bool, ConfigError> {
    match d.name.as_str() {
        "ns-cert-type" => {
            d.shape("ns-cert-type server|client", 1..=1)?;
            let usage = match d.arg(0) {
                "server" => Usage::Server,
                "client" => Usage::Client,
                other => {
                    return Err(
                        d.error(format!("\"{other}\" is not known"), "write server or client")
                    );
                }
            };
            raw.netscape_usage = Some(usage);
            raw.warn(
                d,
                "is deprecated: the extended key usage is checked, or the old Netscape type where there \
                 is none; write remote-cert-tls",
            );
        }
        "link-mtu" | "udp-mtu" => {
            d.shape("link-mtu BYTES", 1..=1)?;
            raw.link_mtu = Some(d.number(0, 100..=65_535)?);
        }
        "max-packet-size" => {
            d.shape("max-packet-size BYTES", 1..=1)?;
            let size = d.number(0, 100..=65_535)?;
            raw.mssfix = Some(Mssfix { size, outer: true, fixed: false });
            if size != CONTROL_PACKET {
                let text = format!(
                    "sets mssfix {size} mtu; control packets have at most {CONTROL_PACKET} bytes whatever it says"
                );
                raw.warn(d, &text);
            }
        }
        "compat-mode" => compat_mode(raw, d)?,
        "providers" => {
            d.shape("providers NAME [NAME ...]", 1..=usize::MAX)?;
            let known = |name: &String| matches!(name.as_str(), "default" | "legacy" | "base");
            if let Some(other) = d.args.iter().find(|name| !known(name)) {
                return Err(d.error(
                    format!(
                        "provider \"{other}\" is not supported: there is no OpenSSL to load it"
                    ),
                    "use cert and key with files",
                ));
            }
            raw.warn(d, "has no effect: it chooses parts of OpenSSL, which is not used");
        }
        "key-method" => {
            d.shape("key-method 2", 1..=1)?;
            if d.arg(0) != "2" {
                return Err(d.error("only the second method exists", "remove it, at both ends"));
            }
            raw.warn(d, "has no effect: there is no other method");
        }
        "ifconfig-pool-linear" => {
            d.shape("ifconfig-pool-linear", 0..=0)?;
            raw.topology.get_or_insert(Topology::P2p);
            raw.warn(d, "is deprecated: it means topology p2p");
        }
        "echo" => {
            raw.echo.push(d.args.join(" "));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// `compat-mode VERSION`: what an end of that version needs to be allowed.
fn compat_mode(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    d.shape("compat-mode VERSION", 1..=2)?;
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
