//! Checks combinations of sizes.

use adit_engine::Transport;

use super::ConfigError;
use super::raw_config::RawConfig;
use crate::negotiate::link_overhead;

/// Checks `fragment`, which is only for datagrams because TCP segments its data itself.
pub(super) fn check(raw: &RawConfig) -> Result<(), ConfigError> {
    if raw.options.session.fragment.is_none() {
        return Ok(());
    }
    let remotes = raw.remotes.iter().chain(&raw.connections);
    let mut protos = remotes.map(|remote| remote.proto).chain([raw.proto]).flatten();
    if protos.any(|proto| proto.transport != Transport::Udp) {
        return Err(raw.error(
            "fragment",
            "it is for UDP, and TCP is asked for here",
            "remove it at both ends: over TCP no packet is too large",
        ));
    }
    Ok(())
}

/// Computes `tun-mtu` from `link-mtu` as openvpn does, with the configured cipher, even if a different one is
/// negotiated later.
pub(super) fn from_link_mtu(raw: &mut RawConfig) -> Result<(), ConfigError> {
    let Some(link_mtu) = raw.link_mtu else { return Ok(()) };
    if raw.seen.contains_key("tun-mtu") {
        return Err(raw.error(
            "link-mtu",
            "tun-mtu is set too, and one follows from the other",
            "keep tun-mtu",
        ));
    }
    let cipher = raw.fallback.as_ref().or(raw.cipher.as_ref());
    let cipher = cipher.map_or("none", |(name, _)| name.as_str());
    let mut protos = raw.remotes.iter().chain(&raw.connections).map(|remote| remote.proto);
    let proto = protos.find_map(|proto| proto).or(raw.proto);
    let stream = proto.is_some_and(|proto| proto.transport == Transport::Tcp);
    let tun_mtu = u32::from(link_mtu).saturating_sub(link_overhead(
        cipher,
        &raw.options.session.auth,
        stream,
    ));
    match u16::try_from(tun_mtu) {
        Ok(tun_mtu @ 100..) => {
            raw.options.session.tun_mtu = tun_mtu;
            let location = raw.seen.get("link-mtu").or(raw.seen.get("udp-mtu"));
            let location = location.map(|p| format!("{}:{}: ", p.file, p.line)).unwrap_or_default();
            raw.options.warnings.push(format!(
                "{location}link-mtu is deprecated: tun-mtu {tun_mtu} follows from it, by the cipher that is \
                 configured and not the one that is negotiated; write tun-mtu, the same at both ends"
            ));
            Ok(())
        }
        _ => Err(raw.error(
            "link-mtu",
            format!("{link_mtu} leaves too little for packets"),
            "write tun-mtu 1500 in its place",
        )),
    }
}
