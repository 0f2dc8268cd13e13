//! What is known about a client, for checks.

use std::net::Ipv6Addr;

use adit_engine::Identity;
use adit_engine::auth::Connecting;
use adit_openvpn::config::X509Track;

use adit_runtime::log::stamp;

use crate::openvpn::environment::Environment;

/// What is known about a client: its identity, and openvpn's variables about it.
#[derive(Clone, Debug)]
pub(crate) struct ClientFacts {
    /// The client as the engine describes it. The password is in it only until the client is accepted.
    pub(crate) identity: Identity,
    /// The variables that every check of this client gets. The password is never among them.
    pub(crate) environment: Environment,
}

/// The settings of the variables.
#[derive(Clone, Debug, Default)]
pub(crate) struct FactSettings {
    /// `x509-track`.
    pub(crate) tracked: Vec<X509Track>,
    /// The server's own IPv6 address in the tunnel.
    pub(crate) own6: Option<Ipv6Addr>,
    /// Whether clients have a netmask, as with `topology subnet` and TAP devices; else they have a far end.
    pub(crate) netmask: bool,
}

impl ClientFacts {
    /// Describes a client whose certificate of this depth is being checked. The variables are about that certificate
    /// and those above it, because the others are not checked yet.
    pub(super) fn at_depth(
        identity: Identity,
        depth: usize,
        environment: &Environment,
        settings: &FactSettings,
    ) -> Self {
        let mut environment = environment.clone();
        if let Some(remote) = identity.remote {
            environment.untrusted(remote);
        }
        if depth == 0 {
            environment.set_international("common_name", &identity.common_name);
        }
        for (depth, certificate) in identity.certificates.iter().enumerate().skip(depth) {
            environment.certificate(depth, certificate, &settings.tracked);
        }
        Self { identity, environment }
    }

    /// Describes a client whose certificates are accepted.
    pub(super) fn verified(
        identity: Identity,
        environment: &Environment,
        settings: &FactSettings,
    ) -> Self {
        let mut facts = Self::at_depth(identity, 0, environment, settings);
        let Self { identity, environment } = &mut facts;
        environment.peer_info(&identity.peer_info);
        if let Some(username) = &identity.username {
            environment.set_international("username", username);
        }
        // `auth-gen-token ... external-auth`: the checks decide about tokens, too.
        if let Some(token) = identity.token.as_ref().filter(|token| token.external) {
            environment.set("session_id", &token.session_id);
            environment.set("session_state", token.state.name());
        }
        facts
    }

    /// Describes an accepted client that has its addresses.
    pub(super) fn connecting(
        connecting: Connecting,
        environment: &Environment,
        settings: &FactSettings,
        unix: u64,
    ) -> Self {
        let Connecting { mut identity, ipv4, ipv6, netmask_or_far_end, .. } = connecting;
        identity.password = None;
        let mut facts = Self::verified(identity, environment, settings);
        let environment = &mut facts.environment;
        if let Some(remote) = facts.identity.remote {
            environment.trusted(remote);
        }
        environment.set("time_ascii", stamp(unix));
        environment.set("time_unix", unix);
        if let Some(address) = ipv4 {
            environment.set("ifconfig_pool_remote_ip", address);
            match netmask_or_far_end {
                Some(netmask) if settings.netmask => {
                    environment.set("ifconfig_pool_netmask", netmask);
                }
                Some(far_end) => environment.set("ifconfig_pool_local_ip", far_end),
                None => {}
            }
        }
        if let Some(own) = ipv6.and(settings.own6) {
            environment.set("ifconfig_pool_local_ip6", own);
        }
        if let Some(net) = ipv6 {
            environment.set("ifconfig_pool_remote_ip6", net.addr());
            environment.set("ifconfig_pool_ip6_netbits", net.prefix_len());
        }
        facts
    }
}

/// Replaces control characters in a name by underscores. As with openvpn 2.6, all others remain, although its manual
/// lists fewer.
pub(crate) fn printable_name(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
}
