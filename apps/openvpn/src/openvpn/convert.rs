//! Converts a parsed configuration into the settings of engine, driver and host.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Family, Transport};
use adit_linux::udp::Fragmentation;
use adit_openvpn::client::{ClientConfig, Credentials, Remote, Route, TunnelConfig};
use adit_openvpn::config::{
    self, ClientOptions, DeviceKind, DialOptions, Listen, MtuDiscovery, Options, Role, Routes,
    ServerOptions, UserPass,
};
use adit_openvpn::keys::TokenKey;
use adit_openvpn::negotiate::{DnsSettings, DnsTransport, PullFilters, RouteContext};
use adit_openvpn::server::auth_token::TokenPolicy;
use adit_openvpn::server::{ClientChecks, ServerConfig, Topology};
use adit_openvpn::tls::{ClientTls, ServerTls};
use adit_openvpn::wrap::WrapConfig;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::key_files::{self, Ask};
use super::login;
use adit_openvpn_service::{Listener, SocketTuning, StreamOptions};
use adit_runtime::driver::{DialSettings, ResolveRetry};
use adit_runtime::fault::Fault;
use adit_runtime::host::{
    Device, DnsPlan, HostPlan, PlannedRoute, Redirect, Transport as DnsPath, Via,
};
use adit_runtime::proxy::{HttpProxy, Login, Proxy, Scheme, SocksProxy};
use adit_runtime::random;

/// Builds the client engine's configuration. `order` is the order of the remotes, by index.
pub(crate) fn client_config(
    options: &Options,
    client: &ClientOptions,
    wrap: WrapConfig,
    tls: ClientTls,
    credentials: Option<Credentials>,
    order: &[usize],
) -> Result<ClientConfig, Fault> {
    let remotes = order.iter().filter_map(|&index| client.dial.remotes.get(index));
    Ok(ClientConfig {
        settings: options.settings(wrap),
        tls,
        remotes: remotes.map(|target| Remote { target: target.clone() }).collect(),
        connect_retry: client.dial.connect_retry,
        connect_retry_max: client.dial.connect_retry_max,
        server_poll_timeout: client.dial.connect_timeout,
        credentials,
        auth: login::client_auth(client),
        pull_filters: PullFilters {
            filters: client.pull_filters.clone(),
            route_nopull: client.route_nopull,
        },
        keepalive: options.session.keepalive,
        check: false,
    })
}

/// Builds the server engine's configuration.
pub(crate) fn server_config(
    options: &Options,
    server: &ServerOptions,
    wrap: WrapConfig,
    tls: ServerTls,
    leases: Vec<(String, IpNet)>,
) -> ServerConfig {
    ServerConfig {
        settings: options.settings(wrap),
        tls,
        network4: server.network4.clone(),
        network6: server.network6.clone(),
        push: server.push.clone(),
        push_keepalive: server.push_keepalive,
        max_clients: server.max_clients,
        duplicate_cn: server.duplicate_cn,
        leases,
        force_cookie: server.force_cookie,
        authorize: server.client_config_dir.is_some(),
        checks: ClientChecks {
            username_as_common_name: server.username_as_common_name,
            verify_options: server.verify_options,
            exported_key: server.exported_key.clone(),
            ..ClientChecks::default()
        },
        compress_migrate: server.compress_migrate,
        vlans: server.vlans,
    }
}

/// Returns how a server issues tokens. Without `auth-gen-token-secret`, they are valid until the server ends.
///
/// # Errors
/// The key cannot be read.
pub(crate) fn token_policy(
    options: &Options,
    server: &ServerOptions,
) -> Result<Option<TokenPolicy>, Fault> {
    let Some(tokens) = server.tokens else { return Ok(None) };
    let key = match &server.token_secret {
        Some(source) => key_files::token_key(source)?,
        None => TokenKey::new(&random::bytes()?),
    };
    let rekeying = options.session.renegotiation.after;
    let renewal = if rekeying.is_zero() { DEFAULT_RENEWAL } else { rekeying };
    Ok(Some(TokenPolicy {
        key,
        lifetime: tokens.lifetime,
        renewal: tokens.renewal.unwrap_or(renewal),
        external: tokens.external,
    }))
}

/// How often tokens are renewed if keys are not renegotiated after a time.
const DEFAULT_RENEWAL: Duration = Duration::from_secs(3600);

/// Returns the options of a client's sockets.
///
/// # Errors
/// `local` is a name without an address.
pub(crate) fn dial_settings(
    options: &Options,
    dialled: &DialOptions,
    ask: &mut dyn Ask,
) -> Result<DialSettings, Fault> {
    let (local, port) = dialled_from(options)?;
    let resolve_retry = match dialled.resolv_retry {
        // Try another server instead of waiting for the name of this one to resolve.
        _ if dialled.remotes.len() > 1 => ResolveRetry::Once,
        None => ResolveRetry::Forever,
        Some(limit) if limit.is_zero() => ResolveRetry::Once,
        Some(limit) => ResolveRetry::For(limit),
    };
    Ok(DialSettings {
        local,
        port,
        mark: options.socket.mark,
        device: options.socket.device.clone(),
        random_hostname: dialled.random_hostname,
        receive_buffer: options.socket.receive_buffer.map(|size| size as usize),
        send_buffer: options.socket.send_buffer.map(|size| size as usize),
        gro: true,
        fragmentation: fragmentation(options),
        persist_remote: dialled.persist_remote,
        resolve_retry,
        bind_streams: options.socket.bind_streams,
        connect_timeout: dialled.connect_timeout,
        streams: stream_options(options),
        proxies: dialled.proxies.iter().map(|of| proxy(of, ask)).collect::<Result<_, _>>()?,
    })
}

/// Returns the local end of an outgoing connection, as set by `local` and `lport`.
///
/// # Errors
/// `local` is a name without an address.
pub(crate) fn dialled_from(options: &Options) -> Result<(Option<IpAddr>, u16), Fault> {
    let listen = options.socket.listen.first();
    let host = listen.and_then(|listen| listen.host.as_deref());
    let local = host.map(|host| local_address(host, Family::Any)).transpose()?;
    Ok((local, listen.map_or(0, |listen| listen.port)))
}

fn proxy(proxy: &config::Proxy, ask: &mut dyn Ask) -> Result<Arc<Proxy>, Fault> {
    let mut login = |directive, from: &Option<UserPass>| -> Result<Option<Login>, Fault> {
        let login =
            from.as_ref().map(|from| key_files::proxy_login(directive, from, ask)).transpose()?;
        Ok(login.map(|login| Login { username: login.username, password: login.password }))
    };
    Ok(Arc::new(match proxy {
        config::Proxy::Http(http) => Proxy::Http(HttpProxy {
            host: http.host.clone(),
            port: http.port,
            login: login("http-proxy", &http.login)?,
            scheme: match http.scheme {
                config::ProxyScheme::Basic => Scheme::Basic,
                config::ProxyScheme::Auto => Scheme::Auto,
                config::ProxyScheme::AutoNct => Scheme::Hidden,
            },
            version: http.version.clone(),
            agent: http.agent.clone(),
            headers: http.headers.clone(),
        }),
        config::Proxy::Socks(socks) => Proxy::Socks(SocksProxy {
            host: socks.host.clone(),
            port: socks.port,
            login: login("socks-proxy", &socks.login)?,
        }),
    }))
}

/// Returns the options of every listening socket.
pub(super) fn socket_tuning(options: &Options) -> SocketTuning {
    SocketTuning {
        mark: options.socket.mark,
        device: options.socket.device.clone(),
        receive_buffer: options.socket.receive_buffer.map(|size| size as usize),
        send_buffer: options.socket.send_buffer.map(|size| size as usize),
        fragmentation: fragmentation(options),
        copies_tos: options.socket.copies_tos,
        streams: stream_options(options),
    }
}

/// Returns the setting of `mtu-disc`.
pub(super) fn fragmentation(options: &Options) -> Fragmentation {
    match options.socket.mtu_discovery {
        None | Some(MtuDiscovery::No) => Fragmentation::Allowed,
        Some(MtuDiscovery::Maybe) => Fragmentation::Local,
        Some(MtuDiscovery::Yes) => Fragmentation::Forbidden,
    }
}

/// Returns the addresses that a server listens on.
///
/// # Errors
/// `local` is a name without an address.
pub(crate) fn listeners(options: &Options) -> Result<Vec<Listener>, Fault> {
    let any = Listen {
        host: None,
        port: 1194,
        transport: Transport::Udp,
        family: Family::Any,
        ipv6_only: false,
    };
    let wanted = match options.socket.listen.as_slice() {
        [] => std::slice::from_ref(&any),
        listen => listen,
    };
    let mut listeners = wanted.iter().map(listener).collect::<Result<Vec<_>, _>>()?;
    leave_ipv4_to_others(&mut listeners);
    Ok(listeners)
}

/// Restricts an IPv6 listener to IPv6 if an IPv4 listener has the same port and transport; `[::]` would otherwise
/// accept IPv4 too.
fn leave_ipv4_to_others(listeners: &mut [Listener]) {
    let others: Vec<Listener> = listeners.iter().filter(|l| l.bind.is_ipv4()).copied().collect();
    for listener in listeners.iter_mut().filter(|l| l.bind.is_ipv6()) {
        listener.v6only |= others.iter().any(|other| {
            (other.transport, other.bind.port()) == (listener.transport, listener.bind.port())
        });
    }
}

fn listener(listen: &Listen) -> Result<Listener, Fault> {
    let ip = match (&listen.host, listen.family) {
        (Some(host), family) => local_address(host, family)?,
        (None, Family::V6) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        // OpenVPN binds IPv4 only where `proto udp` names no family.
        (None, _) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    Ok(Listener {
        bind: SocketAddr::new(ip, listen.port),
        v6only: listen.ipv6_only,
        transport: listen.transport,
    })
}

fn local_address(host: &str, family: Family) -> Result<IpAddr, Fault> {
    if let Ok(ip) = host.parse() {
        return Ok(ip);
    }
    let found = (host, 0).to_socket_addrs();
    let addresses = found.map_err(|e| {
        Fault::operator(format!("local {host}: {e}: write an address of this machine"))
    })?;
    let fits = |ip: &IpAddr| match family {
        Family::Any => true,
        Family::V4 => ip.is_ipv4(),
        Family::V6 => ip.is_ipv6(),
    };
    addresses.map(|address| address.ip()).find(fits).ok_or_else(|| {
        Fault::operator(format!("local {host}: no address of the family of 'proto'"))
    })
}

/// Returns the options of streams.
pub(crate) fn stream_options(options: &Options) -> StreamOptions {
    let queue_limit = options.socket.queue_limit;
    StreamOptions { queue_limit, ..StreamOptions::default() }.of_mtu(options.session.tun_mtu)
}

/// Returns the device to open.
pub(crate) fn device(options: &Options) -> Device {
    match options.device.kind {
        DeviceKind::Tun => Device::Tun(options.device.name.clone()),
        DeviceKind::Tap => Device::Tap(options.device.name.clone()),
        DeviceKind::Null => Device::Null,
    }
}

/// Returns a plan with only the device, before addresses are known.
pub(crate) fn bare_plan(options: &Options) -> HostPlan {
    HostPlan {
        device: device(options),
        mtu: options.session.tun_mtu,
        mac: options.device.mac,
        tx_queue_len: options.device.tx_queue,
        rate: options.device.rate,
        table: options.routes.table,
        ..HostPlan::default()
    }
}

/// Returns a server's host plan.
pub(crate) fn server_plan(
    options: &Options,
    server: &ServerOptions,
) -> Result<(HostPlan, Vec<String>), Fault> {
    let mut plan = bare_plan(options);
    let context = RouteContext {
        remote: None,
        // With `topology subnet`, the next address represents all clients; the kernel only needs to know the device.
        gateway4: options.routes.gateway4,
        gateway6: options.routes.gateway6,
        metric: options.routes.metric,
    };
    if !options.device.ifconfig_noexec {
        plan.addresses.extend(server.bridged_address.map(IpNet::V4));
        // A bridged device has no address in the clients' network, because the bridge has it.
        if let Some(network) = server.network4.as_ref().filter(|_| !server.bridged) {
            let subnet = network.topology == Topology::Subnet;
            let own = network.server;
            plan.addresses.push(if subnet {
                own.into()
            } else {
                IpNet::from(IpAddr::V4(own.addr()))
            });
            plan.far4 = server.far4;
            // The clients' addresses are not in any network of the device.
            if !subnet && own.prefix_len() < 32 && !options.routes.noexec {
                let via = Via::Tunnel(server.far4.map(IpAddr::V4));
                let net = IpNet::V4(own.trunc());
                plan.routes.push(PlannedRoute { net, via, metric: None });
            }
        }
        plan.addresses.extend(server.network6.as_ref().map(|n| IpNet::V6(n.server)));
    }
    let notes = add_configured(&mut plan, &options.routes, &context)?;
    Ok((plan, notes))
}

/// The shortest prefix lengths that a server may push for the device's own network. A shorter prefix covers parts of
/// the Internet that no VPN uses.
const SHORTEST: (u8, u8) = (8, 32);

/// The device's addresses as pushed, restricted so that they do not capture other hosts' addresses.
struct PushedAddresses {
    ipv4: Option<Ipv4Net>,
    far4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Net>,
}

impl PushedAddresses {
    /// Restricts the network of `ifconfig`. It is a route that `route-nopull` does not filter. With that directive, neither the network nor
    /// the far end may be public.
    fn confine(tunnel: &TunnelConfig, nopull: bool, notes: &mut Vec<String>) -> Self {
        let mut pushed = Self { ipv4: tunnel.ipv4, far4: tunnel.far4, ipv6: tunnel.ipv6 };
        let mut note = |what: String, alone: IpAddr| {
            notes.push(format!(
                "the server pushes {what}, which would take other hosts' addresses into the tunnel: \
                 {alone} is set alone"
            ));
        };
        if let Some(net) = pushed.ipv4
            && net.prefix_len() < 32
            && (net.prefix_len() < SHORTEST.0 || (nopull && !is_private4(net.network())))
        {
            note(format!("ifconfig {net}"), net.addr().into());
            pushed.ipv4 = Some(Ipv4Net::from(net.addr()));
        }
        if let Some(far) = pushed.far4.filter(|far| nopull && !is_private4(*far)) {
            let own = pushed.ipv4.map_or(Ipv4Addr::UNSPECIFIED, |net| net.addr());
            note(format!("the far end {far}"), own.into());
            pushed.far4 = None;
        }
        if let Some(net) = pushed.ipv6
            && net.prefix_len() < 128
            && (net.prefix_len() < SHORTEST.1 || (nopull && !net.addr().is_unique_local()))
        {
            note(format!("ifconfig-ipv6 {net}"), net.addr().into());
            pushed.ipv6 = Some(Ipv6Net::from(net.addr()));
        }
        pushed
    }
}

/// Returns whether an address is private or shared (RFC 1918, RFC 6598).
fn is_private4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    ip.is_private() || ip.is_link_local() || (a == 100 && (64..128).contains(&b))
}

/// Returns a client's host plan, as configured and pushed, and notes on omitted parts.
///
/// # Errors
/// The local configuration has an unknown flag of `redirect-gateway`.
pub(crate) fn client_plan(
    options: &Options,
    tunnel: &TunnelConfig,
) -> Result<(HostPlan, Vec<String>), Fault> {
    let mut plan = bare_plan(options);
    plan.mtu = tunnel.mtu.unwrap_or(options.session.tun_mtu);
    plan.remote = tunnel.remote;
    let (own4, own6, nopull) = match &options.role {
        Role::Client(role) => (role.ifconfig4, role.ifconfig6, role.route_nopull),
        _ => (None, None, false),
    };
    let mut confined = Vec::new();
    if !options.device.ifconfig_noexec {
        let pushed = PushedAddresses::confine(tunnel, nopull, &mut confined);
        plan.addresses.extend(pushed.ipv4.or(own4).map(IpNet::V4));
        plan.far4 = pushed.far4;
        plan.addresses.extend(pushed.ipv6.or(own6).map(IpNet::V6));
    }
    let context = RouteContext {
        remote: tunnel.remote.map(|remote| remote.ip()),
        gateway4: tunnel.gateway4.or(options.routes.gateway4),
        gateway6: tunnel.gateway6.or(options.routes.gateway6),
        metric: options.routes.metric,
    };
    if options.routes.apply_dns == Some(true) {
        plan.dns = options.routes.dns.merged(&tunnel.dns).settings().map(dns_plan);
    }
    let mut notes = add_configured(&mut plan, &options.routes, &context)?;
    notes.extend(confined);
    if options.routes.noexec {
        return Ok((plan, notes));
    }
    let ethernet = plan.device.is_ethernet();
    for route in &tunnel.routes4 {
        let route = planned(route, context.gateway4);
        plan.routes.push(PlannedRoute { metric: route.metric.or(context.metric), ..route });
    }
    for route in &tunnel.routes6 {
        let route = by_station(planned(route, context.gateway6), ethernet);
        plan.routes.push(PlannedRoute { metric: route.metric.or(context.metric), ..route });
    }
    if let Some(flags) = &tunnel.redirect_gateway {
        match Redirect::parse(flags.iter().map(String::as_str)) {
            Ok(pushed) => plan.redirect = Some(plan.redirect.unwrap_or_default().with(pushed)),
            Err(problem) => notes.push(format!("pushed {problem}; it is skipped")),
        }
    }
    if let Some(redirect) = &mut plan.redirect {
        redirect.gateway4 = context.gateway4;
    }
    plan.kill_switch = options.routes.kill_switch;
    plan.policy = options.routes.policy.unwrap_or(plan.kill_switch);
    plan.allow_lan = options.routes.allow_lan;
    plan.block_ipv6 = tunnel.block_ipv6 || options.routes.block_ipv6;
    Ok((plan, notes))
}

/// Adds the routes of the local configuration.
pub(crate) fn add_configured(
    plan: &mut HostPlan,
    routes: &Routes,
    context: &RouteContext,
) -> Result<Vec<String>, Fault> {
    let mut notes = Vec::new();
    if routes.noexec {
        return Ok(notes);
    }
    for spec in &routes.v4 {
        match spec.resolve(context) {
            Some(route) => plan.routes.push(planned(&route, context.gateway4)),
            None => {
                notes.push(format!(
                    "a 'route' is left out, because its arguments are not valid: {spec:?}"
                ));
            }
        }
    }
    for spec in &routes.v6 {
        match spec.resolve(context) {
            Some(route) => {
                let route = planned(&route, context.gateway6);
                plan.routes.push(by_station(route, plan.device.is_ethernet()));
            }
            None => {
                notes.push(format!(
                    "a 'route-ipv6' is left out, because its arguments are not valid: {spec:?}"
                ));
            }
        }
    }
    let parse = |flags: &Vec<String>| {
        Redirect::parse(flags.iter().map(String::as_str)).map_err(Fault::operator)
    };
    if let Some(flags) = &routes.redirect_gateway {
        plan.redirect = Some(parse(flags)?);
    } else if let Some(flags) = &routes.redirect_private {
        plan.redirect = Some(Redirect { private: true, ..parse(flags)? });
    }
    if let Some(redirect) = &mut plan.redirect {
        redirect.gateway4 = context.gateway4;
    }
    Ok(notes)
}

/// Sends IPv6 packets of a TAP device to the far end, because a frame needs a destination station. As in OpenVPN,
/// metric 0 means that the network itself is on the link.
fn by_station(route: PlannedRoute, ethernet: bool) -> PlannedRoute {
    let via = match route.via {
        Via::Tunnel(Some(gateway)) if ethernet && gateway.is_ipv6() && route.metric != Some(0) => {
            Via::Gateway(gateway)
        }
        via => via,
    };
    PlannedRoute { via, ..route }
}

fn planned<N, G>(route: &Route<N, G>, gateway: Option<G>) -> PlannedRoute
where
    N: Into<IpNet> + Copy,
    G: Into<IpAddr> + Copy,
{
    let via = match (route.outside, route.via) {
        (true, _) => Via::Outside,
        (false, Some(gateway)) => Via::Gateway(gateway.into()),
        (false, None) => Via::Tunnel(gateway.map(Into::into)),
    };
    PlannedRoute { net: route.net.into(), via, metric: route.metric }
}

/// Returns the host's plan for DNS settings.
pub(crate) fn dns_plan(settings: DnsSettings) -> DnsPlan {
    DnsPlan {
        servers: settings.addresses,
        search: settings.search_domains.iter().map(ToString::to_string).collect(),
        domains: settings.resolve_domains.iter().map(ToString::to_string).collect(),
        dnssec: settings.dnssec,
        transport: match settings.transport {
            DnsTransport::Plain => DnsPath::Plain,
            DnsTransport::Tls => DnsPath::Tls(settings.sni.map(|name| name.to_string())),
            DnsTransport::Https => DnsPath::Https,
        },
    }
}
