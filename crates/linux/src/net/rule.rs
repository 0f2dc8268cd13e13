use std::fmt;

use ipnet::IpNet;
use rtnetlink::packet_route::rule::{
    RuleAction, RuleAttribute, RuleFlags, RuleMessage, RulePortRange,
};
use rtnetlink::packet_route::{AddressFamily, IpProtocol, RouteNetlinkMessage};

use super::{MAIN_TABLE, Mode, Net, NetError, NetErrorKind};

/// A policy routing rule that selects a table for the packets that it matches.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// IPv6 rather than IPv4.
    pub v6: bool,
    /// Its preference; rules with lower values are evaluated first.
    pub preference: u32,
    /// Matches only packets from this network.
    pub from: Option<IpNet>,
    /// Matches only packets to this network.
    pub to: Option<IpNet>,
    /// Matches only packets *without* this mark.
    pub not_mark: Option<u32>,
    /// Matches only UDP packets with these source and destination ports.
    pub udp_ports: Option<(u16, u16)>,
    /// The table to use.
    pub table: u32,
}

/// The relevant fields of a listed rule of any form.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RuleInUse {
    /// IPv6 rather than IPv4.
    pub v6: bool,
    /// Its preference.
    pub preference: u32,
    /// Its table, if it has one.
    pub table: u32,
    /// The mark it compares with, and the bits it compares.
    pub mark: Option<(u32, u32)>,
}

impl Rule {
    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = family(self.v6);
        message.header.action = RuleAction::ToTable;
        // A table beyond 255 is in the attribute only.
        message.header.table = u8::try_from(self.table).unwrap_or(0);
        let attributes = &mut message.attributes;
        attributes.push(RuleAttribute::Priority(self.preference));
        attributes.push(RuleAttribute::Table(self.table));
        if let Some(mark) = self.not_mark {
            message.header.flags = RuleFlags::Invert;
            attributes.push(RuleAttribute::FwMark(mark));
            attributes.push(RuleAttribute::FwMask(u32::MAX));
        }
        if let Some(from) = self.from {
            message.header.src_len = from.prefix_len();
            attributes.push(RuleAttribute::Source(from.trunc().addr()));
        }
        if let Some(to) = self.to {
            message.header.dst_len = to.prefix_len();
            attributes.push(RuleAttribute::Destination(to.trunc().addr()));
        }
        if let Some((from, to)) = self.udp_ports {
            let range = |port| RulePortRange { start: port, end: port };
            attributes.push(RuleAttribute::IpProtocol(IpProtocol::Udp));
            attributes.push(RuleAttribute::SourcePortRange(range(from)));
            attributes.push(RuleAttribute::DestinationPortRange(range(to)));
        }
        message
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(from) => write!(f, "{}: from {from}", self.preference)?,
            None => write!(f, "{}: from all", self.preference)?,
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        if let Some(mark) = self.not_mark {
            write!(f, " not fwmark {mark:#x}")?;
        }
        if let Some((from, to)) = self.udp_ports {
            write!(f, " ipproto udp sport {from} dport {to}")?;
        }
        match self.table {
            MAIN_TABLE => f.write_str(" lookup main"),
            table => write!(f, " lookup {table}"),
        }
    }
}

fn family(v6: bool) -> AddressFamily {
    if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn read(message: &RuleMessage) -> RuleInUse {
    let mut rule = RuleInUse {
        v6: message.header.family == AddressFamily::Inet6,
        preference: 0,
        table: message.header.table.into(),
        mark: None,
    };
    let (mut mark, mut mask) = (None, u32::MAX);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(preference) => rule.preference = *preference,
            RuleAttribute::Table(table) => rule.table = *table,
            RuleAttribute::FwMark(value) => mark = Some(*value),
            RuleAttribute::FwMask(value) => mask = *value,
            _ => {}
        }
    }
    rule.mark = mark.map(|mark| (mark, mask));
    rule
}

impl Net {
    /// Returns the policy routing rules of both families.
    pub async fn rules(&self) -> Result<Vec<RuleInUse>, NetError> {
        let mut rules = self.rules_of(false).await?;
        match self.rules_of(true).await {
            Ok(more) => rules.extend(more),
            // A kernel without IPv6 has no IPv6 rules.
            Err(e) if e.kind() == NetErrorKind::NoFamily => {}
            Err(e) => return Err(e),
        }
        Ok(rules)
    }

    /// Returns the policy routing rules of one family. Fails with kind `NoFamily` if the kernel has
    /// no rules for it.
    pub async fn rules_of(&self, v6: bool) -> Result<Vec<RuleInUse>, NetError> {
        let mut query = RuleMessage::default();
        query.header.family = family(v6);
        let message = RouteNetlinkMessage::GetRule(query);
        let answers = self.talk(message, Mode::Dump, || "listing rules".into()).await?;
        let rules = answers.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRule(message) => Some(read(message)),
            _ => None,
        });
        Ok(rules.collect())
    }

    /// Adds a rule. Fails with kind `Exists` if an identical rule exists.
    pub async fn add_rule(&self, rule: &Rule) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::NewRule(rule.message());
        self.talk(message, Mode::Create, || format!("adding the rule {rule}")).await.map(drop)
    }

    /// Removes a rule.
    pub async fn delete_rule(&self, rule: &Rule) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::DelRule(rule.message());
        self.talk(message, Mode::Change, || format!("removing the rule {rule}")).await.map(drop)
    }
}
