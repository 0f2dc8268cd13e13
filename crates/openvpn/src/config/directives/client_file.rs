//! Directives in per-client files (`client-config-dir`).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use adit_engine::auth::Inactive;
use adit_engine::{MAX_GROUPS, is_group_name};
use ipnet::{Ipv4Net, Ipv6Net};

use super::{ClientFileParser, Spec, Support};
use crate::config::ConfigError;
use crate::config::bridge;
use crate::config::client_file::{ClientRules, RawClientFile};
use crate::config::push_filter::Pushed;
use crate::config::reader::Directive;

/// The directives that are allowed only in such files.
pub(super) const TABLE: &[Spec] = &[
    only("disable", "", 0, |raw, _| {
        raw.file.disabled = true;
        Ok(())
    })
    .doc("Refuses this client."),
    only("ifconfig-push", "ADDRESS NETMASK|FAR-END", 2, |raw, d| {
        raw.file.grant.ifconfig4 = Some(ifconfig_push(d, &raw.rules)?);
        Ok(())
    })
    .up_to(3)
    .doc("The client's IPv4 address."),
    only("ifconfig-ipv6-push", "ADDRESS/BITS [FAR-END]", 1, |raw, d| {
        let far = d.get(1).map(|_| d.ipv6(1)).transpose()?;
        raw.file.grant.ifconfig6 = Some((d.net6_or_64(0)?, far));
        Ok(())
    })
    .up_to(2)
    .doc("The client's IPv6 address."),
    only("iroute", "NETWORK [NETMASK]", 1, |raw, d| {
        let net = if d.args.len() > 1 { d.net4(0, 1)? } else { Ipv4Net::from(d.ipv4(0)?) };
        raw.route(d, net.trunc().into());
        Ok(())
    })
    .up_to(2)
    .doc("An IPv4 network behind the client."),
    only("iroute-ipv6", "NETWORK/BITS", 1, |raw, d| {
        let net = match d.arg(0).parse::<Ipv6Addr>() {
            Ok(address) => Ipv6Net::from(address),
            Err(_) => d.net6(0)?,
        };
        raw.route(d, net.trunc().into());
        Ok(())
    })
    .doc("An IPv6 network behind the client."),
    only("push-reset", "", 0, |raw, _| {
        // This removes earlier `push` lines of this file as well.
        raw.file.grant.push.clear();
        raw.file.grant.push_reset = true;
        Ok(())
    })
    .doc("Drops the options that all clients get, and the options before this line."),
    only("push-remove", "\"BEGINNING\"", 1, push_remove)
        .doc("Drops the options that begin with this text."),
    only("filter-group", "NAME [NAME ...]", 1, filter_group)
        .up_to(MAX_GROUPS)
        .doc("The client's groups in filter rules. Only adit has it."),
];

const fn only(
    name: &'static str,
    args: &'static str,
    count: usize,
    parser: ClientFileParser,
) -> Spec {
    Spec { args, arity: count..=count, ..Spec::new(name, Support::ClientFile) }
        .in_client_file(parser)
}

impl Spec {
    const fn up_to(mut self, most: usize) -> Self {
        self.arity = *self.arity.start()..=most;
        self
    }
}

pub(super) fn push(raw: &mut RawClientFile, d: &Directive) -> Result<(), ConfigError> {
    let option = d.arg(0);
    match raw.rules.push.evaluate_for_one(option) {
        Ok(Pushed::Kept) => raw.file.grant.push.push(option.to_owned()),
        Ok(Pushed::Implied) => {}
        Ok(Pushed::LeftOut(warning)) => raw.warn(d, &warning),
        Err((problem, remedy)) => return Err(d.error(problem, remedy)),
    }
    Ok(())
}

pub(super) fn inactive(raw: &mut RawClientFile, d: &Directive) -> Result<(), ConfigError> {
    let none = Inactive { after: Duration::ZERO, bytes: 0 };
    raw.file.grant.inactive = Some(d.inactive()?.unwrap_or(none));
    Ok(())
}

pub(super) fn session_timeout(raw: &mut RawClientFile, d: &Directive) -> Result<(), ConfigError> {
    raw.file.grant.session_timeout = Some(d.seconds(0)?);
    Ok(())
}

pub(super) fn max_routes(raw: &mut RawClientFile, d: &Directive) -> Result<(), ConfigError> {
    raw.rules.max_routes = d.number(0, 1..=65_536)?;
    Ok(())
}

pub(super) fn vlan_pvid(raw: &mut RawClientFile, d: &Directive) -> Result<(), ConfigError> {
    raw.file.grant.vlan = Some(bridge::vlan(d)?);
    if !raw.rules.vlans {
        raw.warn(d, "vlan-pvid has no effect: the server has no vlan-tagging");
    }
    Ok(())
}

fn ifconfig_push(d: &Directive, rules: &ClientRules) -> Result<(Ipv4Addr, Ipv4Addr), ConfigError> {
    if d.args.len() > 2 {
        return Err(d.error("an alias for address translation is not supported", "remove it"));
    }
    let (address, other) = (d.ipv4(0)?, d.ipv4(1)?);
    if let Some(net) = rules.constraint.filter(|net| !net.contains(&address)) {
        return Err(d.error(
            format!("{address} is not in {net}, where ifconfig-push-constraint keeps all of them"),
            "write an address of that network",
        ));
    }
    Ok((address, other))
}

fn push_remove(raw: &mut RawClientFile, d: &Directive) -> Result<(), ConfigError> {
    if d.arg(0).is_empty() {
        return Err(d.error("it would remove everything", "write: push-reset"));
    }
    let grant = &mut raw.file.grant;
    grant.push.retain(|option| !option.starts_with(d.arg(0)));
    grant.push_remove.push(d.arg(0).to_owned());
    Ok(())
}

fn filter_group(raw: &mut RawClientFile, d: &Directive) -> Result<(), ConfigError> {
    let groups = &mut raw.file.grant.groups;
    for name in &d.args {
        if !is_group_name(name) {
            return Err(d.error(
                format!("\"{name}\" cannot be the name of a group"),
                "write letters, digits, '.', '_', '-' or '@', at most 64 of them",
            ));
        }
        if !groups.contains(name) {
            groups.push(name.clone());
        }
    }
    if groups.len() > MAX_GROUPS {
        return Err(d.error(format!("a client has at most {MAX_GROUPS} groups"), "name fewer"));
    }
    Ok(())
}
