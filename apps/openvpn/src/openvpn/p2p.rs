//! The point-to-point role: a client with configured addresses.

use std::net::SocketAddr;
use std::sync::Arc;

use adit_engine::Transport;
use adit_linux::udp::UdpOptions;
use adit_openvpn::client::Remote;
use adit_openvpn::config::{Options, PeerKeys, PeerOptions};
use adit_openvpn::negotiate::RouteContext;
use adit_openvpn::p2p::{Ifconfig4, PeerConfig, PeerTls, RemotePolicy, StaticConfig, TunnelAddrs};
use adit_openvpn::wrap::WrapConfig;
use ipnet::IpNet;

use super::client::{self, PreparedClient, open_status, order, preresolve};
use super::{Ask, Next, convert, daemonize::Daemonizer, key_files};
use crate::client::{Kind, ListenSocket};
use crate::token_host::Tokens;
use adit_openvpn_service::unbound;
use adit_runtime::authorize::CertificateOnly;
use adit_runtime::clock::unix_time;
use adit_runtime::fault::Fault;
use adit_runtime::helper;
use adit_runtime::host::HostPlan;
use adit_runtime::plane_backend::gates;

pub(super) fn prepare(
    options: &Options,
    role: &PeerOptions,
    ask: &mut dyn Ask,
    tokens: Option<&Tokens>,
) -> Result<PreparedClient, Fault> {
    preresolve(options, &role.dial);
    let remotes = order(&role.dial)?
        .into_iter()
        .filter_map(|index| role.dial.remotes.get(index))
        .map(|target| Remote { target: target.clone() });
    let remote_policy = RemotePolicy {
        remotes: remotes.collect(),
        accepts: role.accepts.clone(),
        connect_retry: role.dial.connect_retry,
        connect_retry_max: role.dial.connect_retry_max,
    };
    let mut certificate = None;
    let engine = match &role.keys {
        PeerKeys::Static { key, direction, suite } => Kind::Static(Box::new(StaticConfig {
            settings: options.settings(WrapConfig::None),
            key: key_files::secret(key)?,
            direction: direction.map(key_files::way),
            suite: *suite,
            remote_policy,
            tunnel_addrs: role.tunnel_addrs,
        })),
        keys => {
            let mut tls = key_files::TlsMaterial::read(&options.tls)?;
            tls.open_token(&options.tls, tokens, true, ask)?;
            let now = unix_time().0;
            if let Err(fault) = tls.validity(now) {
                // Only warn, as OpenVPN does, because the clock may be set while the program
                // retries.
                tracing::warn!("WARNING: {fault}");
            }
            certificate = tls.nearest_expiry(now);
            let settings = options.settings(key_files::wrap(options)?);
            let tls = match keys {
                PeerKeys::TlsServer => PeerTls::Server(tls.server_asking(ask)?),
                _ => PeerTls::Client(tls.client_asking(ask)?),
            };
            let force_cookie = role.force_cookie;
            Kind::Peer(Box::new(PeerConfig {
                settings,
                tls,
                force_cookie,
                remote_policy,
                tunnel_addrs: role.tunnel_addrs,
            }))
        }
    };
    let (early, notes) = plan(options, &role.tunnel_addrs, None)?;
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    Ok(PreparedClient {
        engine,
        dial: convert::dial_settings(options, &role.dial, ask)?,
        listen: role.dial.remotes.is_empty().then(|| listen(options)).transpose()?,
        // `up-delay`: the addresses come once the other end has answered.
        early: (!options.hooks.up_delay).then_some(early),
        status: open_status(options),
        certificate,
        management: None,
        authorizer: Arc::new(CertificateOnly),
    })
}

pub(super) async fn run(
    prepared: PreparedClient,
    options: &Options,
    role: &PeerOptions,
    ground: &mut Daemonizer,
) -> Result<Next, Fault> {
    client::run(prepared, options, role.dial.connect_retry_max, ground).await
}

/// Opens the socket of an end that waits because it has no `remote`.
fn listen(options: &Options) -> Result<ListenSocket, Fault> {
    let listeners = convert::listeners(options)?;
    let [listener] = listeners.as_slice() else {
        return Err(Fault::operator("local: a point-to-point end has one address; keep one line"));
    };
    if listener.transport == Transport::Tcp {
        return adit_openvpn_service::listen(listener, &convert::socket_tuning(options))
            .map(ListenSocket::Streams);
    }
    let mut udp = UdpOptions::new(listener.bind);
    udp.v6only = listener.v6only;
    udp.gro = gates().udp_gro;
    udp.icmp_errors = true;
    udp.fwmark = options.socket.mark;
    udp.device.clone_from(&options.socket.device);
    udp.recv_buffer = options.socket.receive_buffer.map_or(udp.recv_buffer, |size| size as usize);
    udp.send_buffer = options.socket.send_buffer.map_or(udp.send_buffer, |size| size as usize);
    udp.fragmentation = convert::fragmentation(options);
    helper::sockets::udp(&udp)
        .map(ListenSocket::Datagrams)
        .map_err(|e| unbound(Transport::Udp, listener, &convert::socket_tuning(options), &e))
}

/// Returns this end's host plan. Without the other end's address it omits `redirect-gateway`, which
/// would send the tunnel's own packets into the tunnel.
pub(super) fn plan(
    options: &Options,
    tunnel_addrs: &TunnelAddrs,
    remote: Option<SocketAddr>,
) -> Result<(HostPlan, Vec<String>), Fault> {
    let mut plan = convert::bare_plan(options);
    let far = match tunnel_addrs.ipv4 {
        Some(Ifconfig4::Pair(_, far)) => Some(far),
        Some(Ifconfig4::Net(_)) | None => None,
    };
    if !options.device.ifconfig_noexec {
        plan.addresses.extend(tunnel_addrs.ipv4.map(|inside| match inside {
            Ifconfig4::Pair(local, _) => IpNet::from(std::net::IpAddr::V4(local)),
            Ifconfig4::Net(net) => net.into(),
        }));
        plan.far4 = far;
        plan.addresses.extend(tunnel_addrs.ipv6.map(|(net, _)| IpNet::V6(net)));
    }
    let context = RouteContext {
        remote: remote.map(|remote| remote.ip()),
        gateway4: options.routes.gateway4.or(far),
        gateway6: options.routes.gateway6.or(tunnel_addrs.ipv6.and_then(|(_, far)| far)),
        metric: options.routes.metric,
    };
    let notes = convert::add_configured(&mut plan, &options.routes, &context)?;
    if plan.redirect.is_some() {
        plan.remote = remote;
        plan.redirect = plan.redirect.filter(|_| remote.is_some());
    }
    Ok((plan, notes))
}

#[cfg(test)]
mod tests {
    use adit_openvpn::config::{Files, Role, parse};

    use super::*;

    struct One<'a>(&'a str);

    impl Files for One<'_> {
        fn read(&self, _: &std::path::Path) -> std::io::Result<Vec<u8>> {
            Ok(self.0.as_bytes().to_vec())
        }
    }

    fn planned(text: &'static str, remote: Option<&str>) -> HostPlan {
        let options = parse(&["x.conf".into()], &One(text)).unwrap();
        let Role::Peer(peer) = &options.role else { panic!("{:?}", options.role) };
        let remote = remote.map(|remote| remote.parse().unwrap());
        plan(&options, &peer.tunnel_addrs, remote).unwrap().0
    }

    const PAIR: &str = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n\
                        ifconfig-ipv6 fd00::1/64 fd00::2\nroute 10.5.0.0 255.255.0.0\n\
                        redirect-gateway def1\nremote 192.0.2.1\n";

    #[test]
    fn a_pair_of_addresses_stands_before_the_tunnel_is_up() {
        let plan = planned(PAIR, None);
        assert_eq!(plan.addresses[0].to_string(), "10.1.0.1/32");
        assert_eq!(plan.addresses[1].to_string(), "fd00::1/64");
        assert_eq!(plan.far4, Some("10.1.0.2".parse().unwrap()));
        let gateway = adit_runtime::host::Via::Tunnel(Some("10.1.0.2".parse().unwrap()));
        assert_eq!((plan.routes.len(), plan.routes[0].via), (1, gateway));
        assert_eq!(plan.redirect, None, "not before the other end's address is known");
        let plan = planned(PAIR, Some("192.0.2.1:1194"));
        assert!(plan.redirect.is_some_and(|redirect| redirect.def1));
        assert_eq!(plan.remote, Some("192.0.2.1:1194".parse().unwrap()));
    }

    #[test]
    fn a_move_of_the_other_end_alone_changes_nothing_here() {
        let text = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n";
        assert_eq!(planned(text, None), planned(text, Some("192.0.2.1:1194")));
        let subnet = "dev tun\nsecret k\ncipher AES-256-CBC\ntopology subnet\n\
                      ifconfig 10.1.0.1 255.255.255.0\n";
        let plan = planned(subnet, None);
        assert_eq!((plan.far4, plan.addresses[0].to_string().as_str()), (None, "10.1.0.1/24"));
        let noexec = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n\
                      ifconfig-noexec\n";
        let plan = planned(noexec, None);
        assert!(plan.addresses.is_empty() && plan.far4.is_none());
    }
    /// The addresses of an end with `up-delay` come once the other end has answered.
    #[test]
    fn up_delay_leaves_the_device_alone_until_the_other_end_has_answered() {
        let key = "00112233445566778899aabbccddeeff\n".repeat(16);
        let text = format!(
            "dev tun\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\nremote 192.0.2.1\n<secret>\n\
             -----BEGIN OpenVPN Static key V1-----\n{key}-----END OpenVPN Static key V1-----\n</secret>\n"
        );
        let early = |more: &str| {
            let options = parse(&["x.conf".into()], &One(&format!("{text}{more}"))).unwrap();
            let Role::Peer(peer) = &options.role else { panic!("{:?}", options.role) };
            prepare(&options, peer, &mut key_files::Terminal, None).unwrap().early
        };
        assert_eq!(early("").unwrap().addresses[0].to_string(), "10.1.0.1/32");
        assert_eq!(early("up-delay\n"), None);
    }
}
