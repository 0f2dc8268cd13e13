//! The options strings of point-to-point tunnels. They contain the addresses inside the tunnel. Peers compare them with their own and warn
//! about differences.

use std::fmt::Write as _;

use super::config::{Ifconfig4, StaticConfig, TunnelAddrs};
use crate::data_format::Framing;
use crate::keys::Direction;
use crate::negotiate::{ETHERNET_EXTRA, STREAM_LENGTH, device_type};
use crate::session::OCC_MAGIC;

/// OCC: a request for the peer's options.
const OCC_REQUEST: u8 = 0;
/// OCC: the reply.
const OCC_REPLY: u8 = 1;

/// Returns the items about the addresses inside the tunnel, each after a comma. For a pair of
/// addresses, each end names the other's address first, so the two strings differ only in the
/// order.
fn inside(tunnel_addrs: &TunnelAddrs) -> String {
    let mut items = String::new();
    if tunnel_addrs.ipv6.is_some() {
        items.push_str(",tun-ipv6");
    }
    let (first, second) = match tunnel_addrs.ipv4 {
        Some(Ifconfig4::Pair(local, remote)) => (remote, local),
        Some(Ifconfig4::Net(net)) => (net.network(), net.netmask()),
        None => return items,
    };
    // Writing to a String cannot fail.
    let _ = write!(items, ",ifconfig {first} {second}");
    items
}

/// Returns the options string of a TLS session with the items of this mode.
pub(super) fn with_inside(options: &str, tunnel_addrs: &TunnelAddrs) -> String {
    let Some((at, proto)) = options.match_indices(",proto ").next() else {
        return options.to_owned();
    };
    let end = at.saturating_add(proto.len());
    let end = options
        .get(end..)
        .and_then(|rest| rest.find(','))
        .map_or(options.len(), |length| end.saturating_add(length));
    let (before, after) = options.split_at_checked(end).unwrap_or((options, ""));
    format!("{before}{}{after}", inside(tunnel_addrs))
}

/// Returns the options string of a static key.
pub(super) fn of_secret(config: &StaticConfig, stream: bool) -> String {
    /// The length in bytes of the packet id and the time.
    const LONG_ID: u32 = 8;
    /// The length in bytes of the IV and the padding of CBC.
    const CBC: u32 = 32;
    let suite = &config.suite;
    let digest = suite.digest.map_or(0, |digest| u32::try_from(digest.output_len()).unwrap_or(0));
    let framed = config.settings.framing != Framing::None;
    let one = matches!(config.settings.framing, Framing::LzoStub | Framing::SwapStub);
    let link_mtu = u32::from(config.settings.tun_mtu)
        .saturating_add(LONG_ID)
        .saturating_add(if suite.cipher.is_some() { CBC } else { 0 })
        .saturating_add(digest)
        .saturating_add(u32::from(one))
        .saturating_add(if config.settings.fragment.is_some() { 4 } else { 0 })
        .saturating_add(if config.settings.ethernet { ETHERNET_EXTRA } else { 0 });
    let link_mtu = link_mtu.saturating_add(if stream { STREAM_LENGTH } else { 0 });
    // OpenVPN writes v4 for IPv6 too. Do the same, so that both ends' strings agree.
    let proto = match (stream, config.remote_policy.accepts.is_some()) {
        (false, _) => "UDPv4",
        (true, true) => "TCPv4_SERVER",
        (true, false) => "TCPv4_CLIENT",
    };
    let mut text = format!(
        "V4,dev-type {},link-mtu {link_mtu},tun-mtu {},proto {proto}{}",
        device_type(config.settings.ethernet),
        config.settings.tun_mtu,
        inside(&config.tunnel_addrs)
    );
    if framed {
        text.push_str(",comp-lzo");
    }
    if config.settings.fragment.is_some() {
        text.push_str(",mtu-dynamic");
    }
    if let Some(direction) = config.direction {
        let _ = write!(text, ",keydir {}", u8::from(direction == Direction::Inverse));
    }
    let cipher = suite.cipher.map_or("[null-cipher]", |cipher| cipher.name());
    let auth = suite.digest.map_or("[null-digest]", |digest| digest.name());
    let bits = suite.cipher.map_or(0, |cipher| cipher.key_len().saturating_mul(8));
    let _ = write!(text, ",cipher {cipher},auth {auth},keysize {bits},secret");
    text
}

/// Returns the reply to a message on the data channel, if it requests our options.
pub(super) fn reply(message: &[u8], config: &StaticConfig, stream: bool) -> Option<Vec<u8>> {
    let asked = message.strip_prefix(&OCC_MAGIC)?.first() == Some(&OCC_REQUEST);
    asked.then(|| {
        let mut answer = OCC_MAGIC.to_vec();
        answer.push(OCC_REPLY);
        answer.extend_from_slice(of_secret(config, stream).as_bytes());
        answer.push(0);
        answer
    })
}

#[cfg(test)]
mod tests {
    use adit_crypto::{BlockCipher, Digest};

    use super::*;
    use crate::data_format::BlockSuite;
    use crate::keys::StaticKey;
    use crate::p2p::RemotePolicy;
    use crate::session::Settings;

    fn tunnel_addrs() -> TunnelAddrs {
        TunnelAddrs {
            ipv4: Some(Ifconfig4::Pair("10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap())),
            ipv6: None,
        }
    }

    fn config() -> StaticConfig {
        StaticConfig {
            settings: Settings::default(),
            key: StaticKey::new([0; StaticKey::LEN]),
            direction: None,
            suite: BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha1) },
            remote_policy: RemotePolicy::new(Vec::new()),
            tunnel_addrs: tunnel_addrs(),
        }
    }

    /// The output of openvpn 2.6.14 at `--verb 7`.
    #[test]
    fn static_keys_have_openvpns_string() {
        let mut config = config();
        config.tunnel_addrs.ipv6 =
            Some(("fd00::1/64".parse().unwrap(), Some("fd00::2".parse().unwrap())));
        config.suite.digest = Some(Digest::Sha256);
        config.direction = Some(Direction::Normal);
        assert_eq!(
            of_secret(&config, false),
            "V4,dev-type tun,link-mtu 1572,tun-mtu 1500,proto UDPv4,tun-ipv6,ifconfig 10.1.0.2 \
             10.1.0.1,keydir 0,cipher AES-256-CBC,auth SHA256,keysize 256,secret"
        );
        let net = Ifconfig4::Net("10.1.0.1/24".parse().unwrap());
        let config = StaticConfig {
            tunnel_addrs: TunnelAddrs { ipv4: Some(net), ipv6: None },
            direction: None,
            ..self::config()
        };
        assert_eq!(
            of_secret(&config, false),
            "V4,dev-type tun,link-mtu 1560,tun-mtu 1500,proto UDPv4,ifconfig 10.1.0.0 \
             255.255.255.0,cipher AES-256-CBC,auth SHA1,keysize 256,secret"
        );
    }

    #[test]
    fn over_tcp_each_end_says_which_it_is() {
        let mut config = config();
        let starts = |config: &StaticConfig, proto: &str| {
            let start = format!("V4,dev-type tun,link-mtu 1562,tun-mtu 1500,proto {proto},");
            assert!(of_secret(config, true).starts_with(&start), "{}", of_secret(config, true));
        };
        starts(&config, "TCPv4_CLIENT");
        config.remote_policy.accepts = Some(Vec::new());
        starts(&config, "TCPv4_SERVER");
    }

    #[test]
    fn tls_strings_name_the_inside_behind_the_protocol() {
        let plain = "V4,dev-type tun,link-mtu 1541,tun-mtu 1500,proto UDPv4,auth SHA1,tls-server";
        assert_eq!(
            with_inside(plain, &tunnel_addrs()),
            "V4,dev-type tun,link-mtu 1541,tun-mtu 1500,proto UDPv4,ifconfig 10.1.0.2 \
             10.1.0.1,auth SHA1,tls-server"
        );
        assert_eq!(with_inside("V4", &tunnel_addrs()), "V4");
    }

    #[test]
    fn only_a_request_is_answered() {
        let mut request = OCC_MAGIC.to_vec();
        assert_eq!(reply(&request, &config(), false), None);
        request.push(OCC_REQUEST);
        let answer = reply(&request, &config(), false).expect("an answer");
        assert!(answer.starts_with(&OCC_MAGIC) && answer.ends_with(b",secret\0"));
        assert_eq!(reply(&answer, &config(), false), None, "two ends would talk for ever");
    }
}
