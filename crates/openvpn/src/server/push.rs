use std::net::{IpAddr, Ipv4Addr};

use crate::negotiate::DataCipher;
use adit_engine::{PeerId, auth};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::config::{Network4, ServerConfig, Topology};
use super::pool::Lease;
use crate::data_format::Framing;
use crate::negotiate::{IvProto, PeerInfo, PushTooLong, build_push_reply};
use crate::session::Settings;

/// The client for which options are generated.
pub(super) struct Recipient<'a> {
    pub(super) peer: PeerId,
    pub(super) grant: &'a auth::ClientParams,
    pub(super) lease: Lease,
    pub(super) cipher: DataCipher,
    pub(super) framing: Framing,
    pub(super) info: &'a PeerInfo,
}

/// Returns the options for one client: the configured options, the client's own, and those that the
/// server generates.
///
/// `push-remove` excludes common options that begin with its text; `push-reset` excludes all common
/// options. The client's addresses with their topology and the results of negotiation are always
/// included.
pub(super) fn pushed_options(config: &ServerConfig, to: &Recipient<'_>) -> Vec<String> {
    let (grant, proto) = (to.grant, to.info.proto());
    let removed = |option: &str| grant.push_remove.iter().any(|start| option.starts_with(start));
    let general = |option: &String| !grant.push_reset && !removed(option);
    let mut push: Vec<String> =
        config.push.iter().filter(|option| general(option)).chain(&grant.push).cloned().collect();
    push.retain(|option| !leads_home(option, &grant.iroutes));
    let own = |word: &str| grant.push.iter().any(|o| o.split(' ').next() == Some(word));
    if !removed("ifconfig-ipv6") {
        push.extend(ifconfig6(config, to));
    }
    if let Some((address, other)) = ifconfig4(config.network4.as_ref(), grant, to.lease) {
        let topology = config.network4.as_ref().map_or(Topology::Subnet, |n| n.topology);
        let gateway =
            config.network4.as_ref().map(|n| format!("route-gateway {}", n.server.addr()));
        let gateway = gateway.filter(|_| topology == Topology::Subnet && !own("route-gateway"));
        push.extend(gateway.filter(|option| !removed(option)));
        if !own("topology") && !config.settings.ethernet {
            push.push(format!("topology {}", topology.name()));
        }
        push.push(format!("ifconfig {address} {other}"));
    }
    if let Some(keepalive) = config.push_keepalive {
        let ping = [("ping", keepalive.interval), ("ping-restart", keepalive.timeout)];
        let ping = ping.iter().map(|(word, time)| format!("{word} {}", time.as_secs()));
        push.extend(ping.filter(general));
    }
    match to.framing {
        Framing::None => {}
        Framing::LzoStub => push.push("comp-lzo no".into()),
        Framing::SwapStub => push.push("compress stub".into()),
        Framing::StubV2 => push.push("compress stub-v2".into()),
    }
    if proto.has(IvProto::DATA_V2) {
        push.push(format!("peer-id {}", to.peer.0));
    }
    if !to.info.ciphers().is_empty() {
        push.push(format!("cipher {}", to.cipher));
    }
    push.extend(key_derivation(proto, to.cipher));
    if to.info.max_mtu().is_some() {
        push.push(format!("tun-mtu {}", config.settings.tun_mtu));
    }
    push
}

/// Returns whether this is a route to a network behind the same client (`iroute`). With such a
/// route, the client would send packets for the network into the tunnel, and the server would send
/// them back. A route with a gateway or metric is kept, as in OpenVPN.
fn leads_home(option: &str, behind: &[IpNet]) -> bool {
    let words: Vec<&str> = option.split_whitespace().collect();
    let to: Option<IpNet> = match words.as_slice() {
        ["route", address] => {
            address.parse().ok().map(|host: Ipv4Addr| IpNet::from(IpAddr::V4(host)))
        }
        ["route", address, mask] => match (address.parse(), mask.parse()) {
            (Ok(address), Ok(mask)) => Ipv4Net::with_netmask(address, mask).ok().map(IpNet::V4),
            _ => None,
        },
        ["route-ipv6", net] => net.parse().ok().map(IpNet::V6),
        _ => None,
    };
    to.is_some_and(|to| behind.contains(&to))
}

/// Bundles a client's options and its token into messages.
pub(super) fn push_bundles(
    options: &[String],
    token: Option<&str>,
) -> Result<Vec<String>, PushTooLong> {
    let Some(token) = token else { return build_push_reply(options) };
    let token = format!("auth-token {token}");
    let all: Vec<String> = options.iter().cloned().chain([token]).collect();
    build_push_reply(&all)
}

/// Returns both arguments of `ifconfig`.
pub(super) fn ifconfig4(
    network: Option<&Network4>,
    grant: &auth::ClientParams,
    lease: Lease,
) -> Option<(Ipv4Addr, Ipv4Addr)> {
    if grant.ifconfig4.is_some() {
        return grant.ifconfig4;
    }
    let (network, address) = (network?, lease.ipv4?);
    let other = match network.topology {
        Topology::Subnet => network.netmask.unwrap_or(network.server.netmask()),
        Topology::Net30 => far_end(address),
        Topology::P2p => network.server.addr(),
    };
    Some((address, other))
}

/// Returns the server's address in a client's block of four: the second one. The client has the third.
pub(super) fn far_end(address: Ipv4Addr) -> Ipv4Addr {
    ((u32::from(address) & !3) | 1).into()
}

/// Returns a client's IPv6 address with its prefix length.
pub(super) fn ifconfig6_net(
    config: &ServerConfig,
    grant: &auth::ClientParams,
    lease: Lease,
) -> Option<Ipv6Net> {
    let server = config.network6.as_ref().map(|network| network.server);
    match grant.ifconfig6 {
        Some((net, _)) => Some(net),
        None => Ipv6Net::new(lease.ipv6?, server?.prefix_len()).ok(),
    }
}

fn ifconfig6(config: &ServerConfig, to: &Recipient<'_>) -> Option<String> {
    let server = config.network6.as_ref().map(|network| network.server);
    if let Some((net, gateway)) = to.grant.ifconfig6 {
        let gateway = gateway.or(server.map(|server| server.addr()));
        let gateway = gateway.map(|gateway| format!(" {gateway}")).unwrap_or_default();
        return Some(format!("ifconfig-ipv6 {net}{gateway}"));
    }
    let (server, address) = (server?, to.lease.ipv6?);
    Some(format!("ifconfig-ipv6 {address}/{} {}", server.prefix_len(), server.addr()))
}

/// Returns the option that selects how the data keys are derived and used, and how sessions end. A
/// client with `protocol-flags` gets all flags in one option; without either option, the keys come
/// from the old PRF.
fn key_derivation(proto: IvProto, cipher: DataCipher) -> Option<String> {
    let exporter = proto.has(IvProto::TLS_EKM);
    if !proto.has(IvProto::CC_EXIT) {
        return exporter.then(|| "key-derivation tls-ekm".into());
    }
    let mut flags = "protocol-flags cc-exit".to_owned();
    let dynamic = exporter && proto.has(IvProto::DYN_TLS_CRYPT);
    for (chosen, flag) in [
        (exporter, " tls-ekm"),
        (dynamic, " dyn-tls-crypt"),
        (uses_epochs(proto, cipher), " aead-epoch"),
    ] {
        if chosen {
            flags.push_str(flag);
        }
    }
    Some(flags)
}

/// Returns whether a client gets the epoch data format. It does if it supports the format and the
/// flag for it, and the cipher is an AEAD.
pub(super) fn uses_epochs(proto: IvProto, cipher: DataCipher) -> bool {
    let all = IvProto(IvProto::CC_EXIT.0 | IvProto::TLS_EKM.0 | IvProto::DATA_EPOCH.0);
    cipher.is_aead() && proto.has(all)
}

/// Returns the framing of one client's packets. With `compress migrate` it is a stub for a client
/// with compression in its configuration, otherwise the common one.
pub(super) fn framing(config: &ServerConfig, compressed: bool, client: &PeerInfo) -> Framing {
    if !config.compress_migrate {
        return config.settings.framing;
    }
    match (compressed, client.get("IV_COMP_STUBv2")) {
        (false, _) => Framing::None,
        (true, Some("1")) => Framing::StubV2,
        (true, _) => Framing::LzoStub,
    }
}

/// Returns whether a client cannot derive keys as the server requires (`force-tls-key-material-export`).
pub(super) fn lacks_exporter(settings: &Settings, proto: IvProto) -> bool {
    settings.force_exporter && !proto.has(IvProto::TLS_EKM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_requires_the_exporter_refuses_clients_without_it() {
        let forced = Settings { force_exporter: true, ..Settings::default() };
        let old = IvProto(IvProto::DATA_V2.0 | IvProto::REQUEST_PUSH.0);
        assert!(lacks_exporter(&forced, old));
        assert!(!lacks_exporter(&forced, IvProto::ours(true)));
        assert!(!lacks_exporter(&Settings::default(), old));
    }
}
