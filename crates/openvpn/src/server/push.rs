use adit_crypto::Cipher;
use adit_engine::PeerId;
use adit_engine::verbs::Framing;

use super::config::ServerConfig;
use super::pool::Lease;
use crate::negotiate::{IvProto, PeerInfo};

/// The options of one client: the configured ones, then those that the server makes.
pub(super) fn pushed_options(
    config: &ServerConfig,
    granted: &[String],
    peer: PeerId,
    lease: Lease,
    cipher: Cipher,
    client: &PeerInfo,
) -> Vec<String> {
    let proto = client.proto();
    let mut push: Vec<String> = config.push.iter().chain(granted).cloned().collect();
    if let (Some(network), Some(address)) = (&config.network6, lease.ipv6) {
        let (len, gateway) = (network.server.prefix_len(), network.server.addr());
        push.push(format!("ifconfig-ipv6 {address}/{len} {gateway}"));
    }
    if let (Some(network), Some(address)) = (&config.network4, lease.ipv4) {
        push.push(format!("route-gateway {}", network.server.addr()));
        push.push("topology subnet".into());
        push.push(format!("ifconfig {address} {}", network.server.netmask()));
    }
    if let Some(keepalive) = config.push_keepalive {
        push.push(format!("ping {}", keepalive.interval.as_secs()));
        push.push(format!("ping-restart {}", keepalive.timeout.as_secs()));
    }
    match config.settings.framing {
        Framing::None => {}
        Framing::LzoStub => push.push("comp-lzo no".into()),
        Framing::SwapStub => push.push("compress stub".into()),
        Framing::StubV2 => push.push("compress stub-v2".into()),
    }
    if proto.has(IvProto::DATA_V2) {
        push.push(format!("peer-id {}", peer.0));
    }
    if !client.ciphers().is_empty() {
        push.push(format!("cipher {cipher}"));
    }
    push.extend(key_derivation(proto).map(str::to_owned));
    if client.max_mtu().is_some() {
        push.push(format!("tun-mtu {}", config.settings.tun_mtu));
    }
    push
}

/// How the data keys are made, and how sessions end. A client with `protocol-flags` takes both at
/// once; without either, the keys come from the PRF of old.
fn key_derivation(proto: IvProto) -> Option<&'static str> {
    match (proto.has(IvProto::TLS_EKM), proto.has(IvProto::CC_EXIT)) {
        (true, true) if proto.has(IvProto::DYN_TLS_CRYPT) => {
            Some("protocol-flags cc-exit tls-ekm dyn-tls-crypt")
        }
        (true, true) => Some("protocol-flags cc-exit tls-ekm"),
        (true, false) => Some("key-derivation tls-ekm"),
        (false, true) => Some("protocol-flags cc-exit"),
        (false, false) => None,
    }
}
