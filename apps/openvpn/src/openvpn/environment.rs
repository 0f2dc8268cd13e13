//! The variables of programs, with openvpn's names and values.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use adit_engine::auth::CertificateFacts;
use adit_engine::command::Counters;
use adit_engine::{Family, Transport};
use adit_openvpn::config::{LogTo, Options, Proxy, Role, X509Track};
use adit_openvpn::negotiate::{DhcpDns, DnsOptions, DnsServer};
use adit_runtime::clock::unix_time;
use adit_runtime::host::{HostPlan, Via};
use adit_runtime::programs::Variables;
use ipnet::IpNet;

/// The maximum number of variables, and the maximum length of a value in bytes. What peers send has bounds of its own.
const MAX_VARIABLES: usize = 4096;
const MAX_VALUE: usize = 4096;

/// The maximum number of certificates of a chain whose contents become variables, as in openvpn.
const MAX_CHAIN: usize = 16;

/// The variables that a call may set to any value. The runner of programs refuses others, so that the process that faces
/// the network cannot influence how programs are loaded.
const NAMES: &[&str] = &[
    "common_name",
    "config",
    "daemon",
    "daemon_log_redirect",
    "daemon_pid",
    "daemon_start_time",
    "dev",
    "dev_type",
    "link_mtu",
    "metadata_file",
    "metadata_type",
    "n_clients",
    "password",
    "peer_cert",
    "redirect_gateway",
    "script_context",
    "script_type",
    "session_id",
    "session_state",
    "signal",
    "tun_mtu",
    "username",
    "verb",
];

/// The beginnings of the names of further such variables.
const PREFIXES: &[&str] = &[
    "IV_",
    "OPENVPN_",
    "UV_",
    "X509_",
    "auth_",
    "bytes_",
    "client_connect_",
    "dns_",
    "foreign_option_",
    "http_proxy_",
    "ifconfig_",
    "local_",
    "net_gateway_",
    "proto_",
    "remote_",
    "route_",
    "socks_proxy_",
    "time_",
    "tls_",
    "trusted_",
    "untrusted_",
];

/// Returns the variables that programs of this configuration may get.
pub(crate) fn permitted(options: &Options) -> Variables {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut configured = Environment::default();
    options.environment.iter().for_each(|(name, value)| configured.set(name, value));
    let fixed = configured.pairs().into_iter().collect();
    Variables { names: owned(NAMES), prefixes: owned(PREFIXES), fixed }
}

/// The variables of a program.
///
/// Values may come from strangers. Characters outside printable ASCII become underscores, except that the parts of
/// certificates keep other printable characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    variables: BTreeMap<String, Variable>,
    /// The number of changes so far.
    changes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Variable {
    value: String,
    /// The number of the change that set it.
    change: u64,
}

impl Environment {
    /// Returns the variables that follow from the configuration.
    pub(crate) fn new(options: &Options) -> Self {
        let mut this = Self::default();
        options.environment.iter().for_each(|(name, value)| this.set(name, value));
        if let Some(config) = &options.config_file {
            this.set("config", config);
        }
        this.set("verb", options.log.verb);
        this.set("daemon", u8::from(options.process.daemon.is_some()));
        let redirected = matches!(options.log.to, LogTo::File(_) | LogTo::Append(_));
        this.set("daemon_log_redirect", u8::from(redirected));
        this.set("daemon_start_time", unix_time().0);
        this.set("daemon_pid", std::process::id());
        this.transports(options);
        if options.hooks.dns_updown.is_none() {
            this.dns(&options.routes.dns);
        }
        this
    }

    /// Sets a variable. Characters that its name or value may not contain become underscores.
    pub(crate) fn set(&mut self, name: &str, value: impl Display) {
        let value = value.to_string();
        let printable = |c: char| if matches!(c, ' '..='~') { c } else { '_' };
        self.insert(name, value.chars().map(printable).collect());
    }

    /// Sets a variable whose value may contain any printable character.
    pub(crate) fn set_international(&mut self, name: &str, value: &str) {
        let printable = |c: char| if c.is_control() { '_' } else { c };
        self.insert(name, value.chars().map(printable).collect());
    }

    fn insert(&mut self, name: &str, mut value: String) {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = name.chars().map(plain).collect();
        let mut end = MAX_VALUE.min(value.len());
        while !value.is_char_boundary(end) {
            end = end.saturating_sub(1);
        }
        value.truncate(end);
        if self.variables.len() < MAX_VARIABLES || self.variables.contains_key(&name) {
            self.changes = self.changes.saturating_add(1);
            self.variables.insert(name, Variable { value, change: self.changes });
        }
    }

    /// Removes a variable.
    pub(crate) fn unset(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Removes the variables whose names begin with one of these texts.
    fn unset_all(&mut self, prefixes: &[&str]) {
        let stale = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        self.variables.retain(|name, _| !stale(name));
    }

    /// Returns the variables for a call.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let pair = |(name, variable): (&String, &Variable)| (name.clone(), variable.value.clone());
        self.variables.iter().map(pair).collect()
    }

    /// Returns the variables in openvpn's order: the last one that was set is the first.
    pub(crate) fn newest_first(&self) -> Vec<(String, String)> {
        let mut all: Vec<(&String, &Variable)> = self.variables.iter().collect();
        all.sort_unstable_by_key(|(_, variable)| std::cmp::Reverse(variable.change));
        all.into_iter().map(|(name, variable)| (name.clone(), variable.value.clone())).collect()
    }

    /// Reverses the order of [`Self::newest_first`]. This is what happens in openvpn when the program's variables become
    /// those of its device, and when the device's become those of a client.
    pub(crate) fn inherit(&mut self) {
        for variable in self.variables.values_mut() {
            variable.change = self.changes.saturating_sub(variable.change);
        }
    }

    /// Sets the variables of the transport: `proto_1`, `remote_1`, `local_port_1` and so on.
    fn transports(&mut self, options: &Options) {
        let (dial, listens) = match &options.role {
            Role::Client(role) => (Some(&role.dial), false),
            Role::Peer(role) => (Some(&role.dial), role.accepts.is_some()),
            Role::Server(_) => (None, true),
        };
        let local = options.socket.listen.first();
        let remotes = dial.map_or(&[][..], |dial| dial.remotes.as_slice());
        let count = remotes.len().max(1);
        for index in 0..count {
            let remote = remotes.get(index);
            let number = index.saturating_add(1);
            let (transport, family) = match (remote, local) {
                (Some(remote), _) => (remote.transport, remote.family),
                (None, Some(local)) => (local.transport, local.family),
                (None, None) => (Transport::Udp, Family::Any),
            };
            self.set(&format!("proto_{number}"), proto(transport, family, listens));
            if let Some(host) = local.and_then(|local| local.host.as_ref()) {
                self.set(&format!("local_{number}"), host);
            }
            if let Some(local) = local {
                self.set(&format!("local_port_{number}"), local.port);
            }
            match (remote, local) {
                (Some(remote), _) => {
                    self.set(&format!("remote_{number}"), &remote.host);
                    self.set(&format!("remote_port_{number}"), remote.port);
                }
                (None, Some(local)) => self.set(&format!("remote_port_{number}"), local.port),
                (None, None) => {}
            }
            let proxy = remote.and_then(|remote| remote.proxy).zip(dial);
            match proxy.and_then(|(proxy, dial)| dial.proxies.get(usize::from(proxy))) {
                Some(Proxy::Http(http)) => {
                    self.set(&format!("http_proxy_server_{number}"), &http.host);
                    self.set(&format!("http_proxy_port_{number}"), http.port);
                }
                Some(Proxy::Socks(socks)) => {
                    self.set(&format!("socks_proxy_server_{number}"), &socks.host);
                    self.set(&format!("socks_proxy_port_{number}"), socks.port);
                }
                None => {}
            }
        }
    }

    /// Sets the address of a peer that is not authenticated yet.
    pub(crate) fn untrusted(&mut self, remote: SocketAddr) {
        self.address("untrusted", remote);
    }

    /// Sets the address of an authenticated peer.
    pub(crate) fn trusted(&mut self, remote: SocketAddr) {
        self.address("trusted", remote);
    }

    /// Sets the bytes and the duration of a session that has ended.
    pub(crate) fn traffic(&mut self, traffic: Counters, duration: Duration) {
        self.set("bytes_received", traffic.rx_bytes);
        self.set("bytes_sent", traffic.tx_bytes);
        self.set("time_duration", duration.as_secs());
    }

    fn address(&mut self, prefix: &str, remote: SocketAddr) {
        let (name, other) = match remote.ip().to_canonical() {
            IpAddr::V4(_) => ("_ip", "_ip6"),
            IpAddr::V6(_) => ("_ip6", "_ip"),
        };
        self.set(&format!("{prefix}{name}"), remote.ip().to_canonical());
        self.unset(&format!("{prefix}{other}"));
        self.set(&format!("{prefix}_port"), remote.port());
    }

    /// Sets the contents of the verified certificates, the peer's first.
    pub(crate) fn certificates(&mut self, chain: &[CertificateFacts], tracked: &[X509Track]) {
        self.unset_all(&["tls_id_", "tls_serial_", "tls_digest_", "X509_"]);
        // The root first, as openvpn verifies them.
        for (depth, facts) in chain.iter().enumerate().take(MAX_CHAIN).rev() {
            self.certificate(depth, facts, tracked);
        }
    }

    /// Sets the contents of one certificate.
    pub(crate) fn certificate(
        &mut self,
        depth: usize,
        facts: &CertificateFacts,
        tracked: &[X509Track],
    ) {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, value) in &facts.attributes {
            let track =
                |track: &&X509Track| track.attribute == *name && (track.whole_chain || depth == 0);
            if !tracked.is_empty() && !tracked.iter().any(|known| track(&known)) {
                continue;
            }
            // Further attributes of the same name are numbered.
            let count = seen.entry(name).or_default();
            let suffix = if *count == 0 { String::new() } else { format!("_{count}") };
            *count = count.saturating_add(1);
            self.set_international(&format!("X509_{depth}_{name}{suffix}"), value);
        }
        let digests = [("SHA1", &facts.sha1), ("SHA256", &facts.sha256)];
        for (name, digest) in digests {
            let wanted = tracked
                .iter()
                .any(|track| track.attribute == name && (track.whole_chain || depth == 0));
            if wanted {
                self.set(&format!("X509_{depth}_{name}"), digest);
            }
        }
        self.set_international(&format!("tls_id_{depth}"), &facts.subject);
        self.set(&format!("tls_digest_{depth}"), &facts.sha1);
        self.set(&format!("tls_digest_sha256_{depth}"), &facts.sha256);
        self.set(&format!("tls_serial_{depth}"), &facts.serial_decimal);
        self.set(&format!("tls_serial_hex_{depth}"), &facts.serial_hex);
    }

    /// Sets the peer info (`IV_VER`, `UV_ID`, ...).
    pub(crate) fn peer_info(&mut self, info: &[(String, String)]) {
        for (name, value) in info {
            if name.starts_with("IV_") || name.starts_with("UV_") {
                // As in openvpn, whose programs are often shell scripts.
                let plain = |c: char| if matches!(c, ' ' | '(' | '$' | '`') { '_' } else { c };
                self.set(name, value.chars().map(plain).collect::<String>());
            }
        }
    }

    /// Sets the addresses of a plan, which also contains what `ifconfig-noexec` leaves to programs. Returns the
    /// arguments of `up`.
    pub(crate) fn addresses(
        &mut self,
        device: &str,
        plan: &HostPlan,
        far6: Option<Ipv6Addr>,
    ) -> UpArguments {
        let mut arguments =
            UpArguments { device: device.to_owned(), mtu: plan.mtu, ..UpArguments::default() };
        for address in &plan.addresses {
            match address {
                IpNet::V4(net) => {
                    let (name, second) = match plan.far4 {
                        Some(far) => ("ifconfig_remote", far),
                        None => ("ifconfig_netmask", net.netmask()),
                    };
                    self.set("ifconfig_local", net.addr());
                    self.set(name, second);
                    arguments.local = Some(net.addr());
                    arguments.second = Some(second);
                }
                IpNet::V6(net) => {
                    self.set("ifconfig_ipv6_local", net.addr());
                    self.set("ifconfig_ipv6_netbits", net.prefix_len());
                    if let Some(far6) = far6 {
                        self.set("ifconfig_ipv6_remote", far6);
                    }
                }
            }
        }
        arguments
    }

    /// Sets the device before `up`, `down` or `route-pre-down` runs.
    pub(crate) fn device(&mut self, arguments: &UpArguments, context: &str) {
        let (mtu, context) = (arguments.mtu.to_string(), context.to_owned());
        for (name, value) in
            [("script_context", context), ("tun_mtu", mtu), ("dev", arguments.device.clone())]
        {
            // The order of variables that stay is that of openvpn, which does not set them again.
            if self.variables.get(name).is_none_or(|known| known.value != value) {
                self.set(name, value);
            }
        }
    }

    /// Sets the routes of a plan, which also contains what `route-noexec` leaves to programs.
    pub(crate) fn routes(&mut self, plan: &HostPlan, gateways: &Gateways) {
        self.set("route_net_gateway", gateways.net4.unwrap_or(Ipv4Addr::UNSPECIFIED));
        if let Some(gateway) = gateways.vpn4 {
            self.set("route_vpn_gateway", gateway);
        }
        let (mut v4, mut v6) = (0_usize, 0_usize);
        for route in &plan.routes {
            let (name, number) = match route.net {
                IpNet::V4(net) => {
                    v4 = v4.saturating_add(1);
                    self.set(&format!("route_network_{v4}"), net.network());
                    self.set(&format!("route_netmask_{v4}"), net.netmask());
                    ("route", v4)
                }
                IpNet::V6(net) => {
                    v6 = v6.saturating_add(1);
                    self.set(&format!("route_ipv6_network_{v6}"), net);
                    ("route_ipv6", v6)
                }
            };
            let ipv6 = matches!(route.net, IpNet::V6(_));
            let vpn =
                if ipv6 { gateways.vpn6.map(IpAddr::V6) } else { gateways.vpn4.map(IpAddr::V4) };
            let gateway = match route.via {
                Via::Tunnel(gateway) => gateway.or(vpn),
                Via::Outside => gateways.net4.map(IpAddr::V4).filter(|_| !ipv6),
                Via::Gateway(gateway) => Some(gateway),
            };
            if let Some(gateway) = gateway {
                self.set(&format!("{name}_gateway_{number}"), gateway);
            }
            if let Some(metric) = route.metric {
                self.set(&format!("{name}_metric_{number}"), metric);
            }
        }
    }

    /// Sets the DNS options, own and pushed.
    pub(crate) fn dns(&mut self, dns: &DnsOptions) {
        self.unset_all(&["dns_", "foreign_option_"]);
        for (index, option) in foreign_options(dns).into_iter().enumerate() {
            self.set(&format!("foreign_option_{}", index.saturating_add(1)), option);
        }
        self.dns_servers(dns);
    }

    /// Sets the options that are not DNS settings, for programs other than `dns-updown`.
    pub(crate) fn foreign_options(&mut self, dns: &DnsOptions) {
        let is_setting = |option: &&String| {
            let kind = option.split(' ').nth(1).unwrap_or_default();
            matches!(kind, "DNS" | "DNS6" | "DOMAIN" | "DOMAIN-SEARCH" | "ADAPTER_DOMAIN_SUFFIX")
        };
        let foreign = dns.dhcp.foreign.iter().filter(|option| !is_setting(option));
        let dhcp = DhcpDns { foreign: foreign.cloned().collect(), ..DhcpDns::default() };
        self.dns(&DnsOptions { dhcp, ..DnsOptions::default() });
    }

    /// Returns the variables of `dns-updown`. Without a `dns server`, the older options take its place. The result is empty
    /// if there is nothing to apply.
    pub(crate) fn of_dns(dns: &DnsOptions) -> Self {
        let mut all = dns.clone();
        if !all.servers.values().any(|server| !server.addresses.is_empty()) {
            let addresses = dns.dhcp.addresses.iter().map(|address| (*address, None)).collect();
            all.servers = [(0, DnsServer { addresses, ..DnsServer::default() })].into();
            all.search_domains.extend(dns.dhcp.search_domains.iter().cloned());
        }
        let mut this = Self::default();
        this.dns_servers(&all);
        this
    }

    fn dns_servers(&mut self, dns: &DnsOptions) {
        for (index, domain) in dns.search_domains.iter().enumerate() {
            self.set(&format!("dns_search_domain_{}", index.saturating_add(1)), domain);
        }
        for (index, (_, server)) in dns.servers.iter().enumerate() {
            let prefix = format!("dns_server_{}", index.saturating_add(1));
            for (index, (ip, port)) in server.addresses.iter().enumerate() {
                let number = index.saturating_add(1);
                self.set(&format!("{prefix}_address_{number}"), ip);
                if let Some(port) = port {
                    self.set(&format!("{prefix}_port_{number}"), port);
                }
            }
            for (index, domain) in server.resolve_domains.iter().enumerate() {
                let number = index.saturating_add(1);
                self.set(&format!("{prefix}_resolve_domain_{number}"), domain);
            }
            if let Some(dnssec) = server.dnssec_word() {
                self.set(&format!("{prefix}_dnssec"), dnssec);
            }
            if let Some(transport) = server.transport_word() {
                self.set(&format!("{prefix}_transport"), transport);
            }
            if let Some(sni) = &server.sni {
                self.set(&format!("{prefix}_sni"), sni);
            }
        }
    }
}

/// Returns the options for programs that only know `dhcp-option`. If there is a `dns server`, it replaces the servers
/// among them.
fn foreign_options(dns: &DnsOptions) -> Vec<String> {
    let Some(server) = dns.servers.values().find(|server| !server.addresses.is_empty()) else {
        return dns.dhcp.foreign.clone();
    };
    let names_server = |option: &str| {
        option.starts_with("dhcp-option DNS ") || option.starts_with("dhcp-option DNS6 ")
    };
    let others = dns.dhcp.foreign.iter().filter(|option| !names_server(option)).cloned();
    let servers = server.addresses.iter().map(|(ip, _)| {
        let kind = if ip.is_ipv4() { "DNS" } else { "DNS6" };
        format!("dhcp-option {kind} {ip}")
    });
    let domains = dns.search_domains.iter();
    let domains = domains.map(|domain| format!("dhcp-option DOMAIN-SEARCH {domain}"));
    others.chain(servers).chain(domains).collect()
}

/// The gateways of routes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gateways {
    /// The gateway inside the tunnel.
    pub(crate) vpn4: Option<Ipv4Addr>,
    /// The IPv6 gateway inside the tunnel.
    pub(crate) vpn6: Option<Ipv6Addr>,
    /// The default gateway of the machine.
    pub(crate) net4: Option<Ipv4Addr>,
}

/// The arguments of `up` and `down`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UpArguments {
    device: String,
    mtu: u16,
    local: Option<Ipv4Addr>,
    /// The far end's address or the netmask.
    second: Option<Ipv4Addr>,
}

impl UpArguments {
    /// Returns the name of the device.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Returns the arguments. `context` is `init` or `restart`.
    pub(crate) fn words(&self, context: &str) -> Vec<String> {
        let address = |address: Option<Ipv4Addr>| {
            address.map(|address| address.to_string()).unwrap_or_default()
        };
        let (local, second) = (address(self.local), address(self.second));
        vec![
            self.device.clone(),
            self.mtu.to_string(),
            // In earlier versions this was the size of packets on the wire.
            "0".into(),
            local,
            second,
            context.into(),
        ]
    }
}

/// Returns openvpn's name of a protocol.
fn proto(transport: Transport, family: Family, listens: bool) -> &'static str {
    match (transport, family, listens) {
        (Transport::Udp, Family::Any, _) => "udp",
        (Transport::Udp, Family::V4, _) => "udp4",
        (Transport::Udp, Family::V6, _) => "udp6",
        (Transport::Tcp, Family::Any, true) => "tcp-server",
        (Transport::Tcp, Family::V4, true) => "tcp4-server",
        (Transport::Tcp, Family::V6, true) => "tcp6-server",
        (Transport::Tcp, Family::Any, false) => "tcp-client",
        (Transport::Tcp, Family::V4, false) => "tcp4-client",
        (Transport::Tcp, Family::V6, false) => "tcp6-client",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
        environment.variables.get(name).map(|variable| variable.value.as_str())
    }

    #[test]
    fn a_value_cannot_become_another_variable_or_line() {
        let mut environment = Environment::default();
        environment.set("common_name", "eve\nLD_PRELOAD=/tmp/x.so\0\u{1b}[2J\"'`$(id)");
        assert_eq!(
            value(&environment, "common_name"),
            Some("eve_LD_PRELOAD=/tmp/x.so__[2J\"'`$(id)")
        );
        environment.set("a=b\nc-d", "x");
        assert_eq!(value(&environment, "a_b_c_d"), Some("x"));
        environment.set("username", "müller");
        assert_eq!(value(&environment, "username"), Some("m_ller"));
        assert_eq!(environment.pairs().len(), 3);
    }

    #[test]
    fn variables_and_values_are_bounded() {
        let mut environment = Environment::default();
        for number in 0..MAX_VARIABLES + 10 {
            environment.set(&format!("IV_{number}"), "x");
        }
        assert_eq!(environment.pairs().len(), MAX_VARIABLES);
        environment.set("IV_0", "é".repeat(MAX_VALUE));
        assert_eq!(value(&environment, "IV_0").unwrap().len(), MAX_VALUE);
        environment.set_international("IV_0", &format!("x{}", "é".repeat(MAX_VALUE)));
        assert_eq!(value(&environment, "IV_0").unwrap().len(), MAX_VALUE - 1);
    }

    #[test]
    fn the_order_is_that_of_openvpn() {
        let order = |environment: &Environment| -> String {
            environment.newest_first().into_iter().map(|(name, _)| name).collect()
        };
        let mut environment = Environment::default();
        ["a", "c", "b"].iter().for_each(|name| environment.set(name, 1));
        assert_eq!(order(&environment), "bca");
        environment.inherit();
        assert_eq!(order(&environment), "acb");
        // A variable that is set again becomes the newest.
        environment.set("b", 2);
        environment.set("d", 1);
        assert_eq!(order(&environment), "dbac");
    }

    fn facts(attributes: &[(&str, &str)]) -> CertificateFacts {
        CertificateFacts {
            subject: attributes
                .iter()
                .map(|(n, v)| format!("{n}={v}"))
                .collect::<Vec<_>>()
                .join(", "),
            attributes: attributes.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
            serial_decimal: "26".into(),
            serial_hex: "1a".into(),
            sha1: "aa:bb".into(),
            sha256: "cc:dd".into(),
            ..CertificateFacts::default()
        }
    }

    #[test]
    fn certificates_become_variables() {
        let chain = [facts(&[("CN", "é\nx"), ("OU", "a"), ("OU", "b")]), facts(&[("CN", "CA")])];
        let mut environment = Environment::default();
        environment.certificates(&chain, &[]);
        for (name, expected) in [
            ("X509_0_CN", "é_x"),
            ("X509_0_OU", "a"),
            ("X509_0_OU_1", "b"),
            ("X509_1_CN", "CA"),
            ("tls_id_0", "CN=é_x, OU=a, OU=b"),
            ("tls_serial_0", "26"),
            ("tls_serial_hex_0", "1a"),
            ("tls_digest_0", "aa:bb"),
            ("tls_digest_sha256_1", "cc:dd"),
        ] {
            assert_eq!(value(&environment, name), Some(expected), "{name}");
        }
        let track =
            |attribute: &str, whole_chain| X509Track { attribute: attribute.into(), whole_chain };
        environment.certificates(&chain, &[track("CN", true), track("SHA256", false)]);
        let x509: Vec<_> = environment.pairs().into_iter().map(|(name, _)| name).collect();
        let x509: Vec<_> = x509.iter().filter(|name| name.starts_with("X509")).collect();
        assert_eq!(x509, ["X509_0_CN", "X509_0_SHA256", "X509_1_CN"]);
    }

    #[test]
    fn a_dns_server_replaces_the_servers_of_older_options() {
        let mut dns = DnsOptions::default();
        for option in ["DNS 192.0.2.1", "DOMAIN a.example", "DNS6 fd00::1"] {
            let words: Vec<&str> = option.split(' ').collect();
            dns.add("dhcp-option", &words, true).unwrap();
        }
        let of = |dns: &DnsOptions| {
            let mut environment = Environment::default();
            environment.dns(dns);
            environment.pairs().into_iter().collect::<BTreeMap<_, _>>()
        };
        let older = of(&dns);
        assert_eq!(older.len(), 3);
        assert_eq!(older["foreign_option_1"], "dhcp-option DNS 192.0.2.1");
        for line in [
            "server 4 address 10.8.0.1 fd00::2",
            "server 4 resolve-domains b.example",
            "search-domains c.example",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            dns.add("dns", &words, true).unwrap();
        }
        let newer: Vec<String> =
            of(&dns).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            newer,
            [
                "dns_search_domain_1=c.example",
                "dns_server_1_address_1=10.8.0.1",
                "dns_server_1_address_2=fd00::2",
                "dns_server_1_resolve_domain_1=b.example",
                "foreign_option_1=dhcp-option DOMAIN a.example",
                "foreign_option_2=dhcp-option DNS 10.8.0.1",
                "foreign_option_3=dhcp-option DNS6 fd00::2",
                "foreign_option_4=dhcp-option DOMAIN-SEARCH c.example",
            ]
        );
    }

    #[test]
    fn older_dns_settings_become_a_server_for_dns_updown() {
        let pairs = |lines: &[&str]| {
            let mut dns = DnsOptions::default();
            for line in lines {
                let words: Vec<&str> = line.split(' ').collect();
                dns.add(words[0], &words[1..], true).unwrap();
            }
            let pairs = Environment::of_dns(&dns).pairs().into_iter();
            pairs.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let older =
            ["dhcp-option DNS 192.0.2.1", "dhcp-option DOMAIN a.example", "dns server 3 dnssec no"];
        assert_eq!(
            pairs(&older),
            ["dns_search_domain_1=a.example", "dns_server_1_address_1=192.0.2.1"]
        );
        let newer = [
            "dns server 4 address 10.8.0.1",
            "dns server 5 address 10.8.0.2",
            "dns search-domains b.example",
        ];
        let all = [&older[..], &newer].concat();
        assert_eq!(
            pairs(&all),
            [
                "dns_search_domain_1=b.example",
                "dns_server_1_dnssec=no",
                "dns_server_2_address_1=10.8.0.1",
                "dns_server_3_address_1=10.8.0.2",
            ]
        );
        assert!(pairs(&[]).is_empty());
    }

    #[test]
    fn an_address_of_one_family_replaces_the_other() {
        let mut environment = Environment::default();
        environment.trusted("192.0.2.1:1194".parse().unwrap());
        environment.trusted("[2001:db8::1]:443".parse().unwrap());
        assert_eq!(value(&environment, "trusted_ip"), None);
        assert_eq!(value(&environment, "trusted_ip6"), Some("2001:db8::1"));
        assert_eq!(value(&environment, "trusted_port"), Some("443"));
        environment.untrusted("[::ffff:192.0.2.1]:1".parse().unwrap());
        assert_eq!(value(&environment, "untrusted_ip"), Some("192.0.2.1"));
    }

    #[test]
    fn each_variable_passes_the_runner() {
        let options = Options {
            environment: vec![("LD_LIBRARY_PATH".into(), "/opt\n".into())],
            ..Options::default()
        };
        let permitted = permitted(&options);
        let mut environment = Environment::new(&options);
        environment.trusted("192.0.2.1:1194".parse().unwrap());
        environment.certificates(&[facts(&[("CN", "x")])], &[]);
        let arguments = environment.addresses("tun0", &HostPlan::default(), None);
        environment.device(&arguments, "init");
        environment.routes(&HostPlan::default(), &Gateways::default());
        for (name, value) in environment.pairs() {
            assert!(permitted.permit(&name, &value), "{name}={value}");
        }
        assert!(
            !permitted.permit("LD_PRELOAD", "x") && !permitted.permit("LD_LIBRARY_PATH", "/tmp")
        );
        assert!(!permitted.permit("PATH", "/tmp") && !permitted.permit("BASH_ENV", "/tmp/x"));
    }
}
