//! What is known about a client, for checks.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use adit_engine::Identity;
use adit_engine::auth::{ClientParams, Connecting};
use adit_openvpn::config::X509Track;

use adit_runtime::log::stamp;
use ipnet::Ipv6Net;

use super::Reserved;
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
    /// Whether clients have user names, so that the variable exists even if a client sent none.
    pub(crate) usernames: bool,
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
        for (depth, certificate) in identity.certificates.iter().enumerate().skip(depth).rev() {
            environment.certificate(depth, certificate, &settings.tracked);
        }
        if depth == 0 {
            environment.set_international("common_name", &identity.common_name);
        }
        if let Some(remote) = identity.remote {
            environment.untrusted(remote);
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
        if identity.username.is_some() || settings.usernames {
            let username = identity.username.as_deref().unwrap_or_default();
            environment.set_international("username", username);
        }
        // `auth-gen-token ... external-auth`: the checks decide about tokens, too.
        if let Some(token) = identity.token.as_ref().filter(|token| token.external) {
            environment.set("session_id", &token.session_id);
            environment.set("session_state", token.state.name());
        }
        // Set again, because a management client gets the variables in the order in which openvpn sets them.
        environment.set_international("common_name", &identity.common_name);
        if let Some(remote) = identity.remote {
            environment.untrusted(remote);
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
        environment.set_international("common_name", &facts.identity.common_name);
        if let Some(remote) = facts.identity.remote {
            environment.trusted(remote);
        }
        environment.set("time_ascii", stamp(unix));
        environment.set("time_unix", unix);
        facts.addresses(ipv4, netmask_or_far_end, ipv6, settings);
        facts
    }

    /// Returns the facts with the addresses that `client-connect` has chosen instead of the reserved ones.
    pub(super) fn with_chosen(
        self: Arc<Self>,
        params: &ClientParams,
        reserved: Reserved,
        settings: &FactSettings,
    ) -> Arc<Self> {
        let chosen4 = params.ifconfig4.filter(|(address, _)| Some(*address) != reserved.ipv4);
        let chosen6 =
            params.ifconfig6.map(|(net, _)| net).filter(|net| Some(*net) != reserved.ipv6);
        // A connection check keeps those that were reserved.
        if self.identity.check || (chosen4.is_none() && chosen6.is_none()) {
            return self;
        }
        let mut facts = Self::clone(&self);
        let (ipv4, other) = chosen4.unzip();
        facts.addresses(ipv4, other, chosen6.or(reserved.ipv6), settings);
        Arc::new(facts)
    }

    /// Sets the variables of a client's addresses.
    fn addresses(
        &mut self,
        ipv4: Option<Ipv4Addr>,
        netmask_or_far_end: Option<Ipv4Addr>,
        ipv6: Option<Ipv6Net>,
        settings: &FactSettings,
    ) {
        let environment = &mut self.environment;
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
        if let Some(net) = ipv6 {
            environment.set("ifconfig_pool_remote_ip6", net.addr());
            if let Some(own) = settings.own6 {
                environment.set("ifconfig_pool_local_ip6", own);
            }
            environment.set("ifconfig_pool_ip6_netbits", net.prefix_len());
        }
    }
}

/// Replaces control characters in a name by underscores. As with openvpn 2.6, all others remain, although its manual
/// lists fewer.
pub(crate) fn printable_name(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
}
