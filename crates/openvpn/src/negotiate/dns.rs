//! DNS settings from `dns` of openvpn 2.7 and the older `dhcp-option`, read into one structure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use adit_dns::{Dnssec, DomainName};

/// The maximum number of addresses of one server, as in OpenVPN.
pub const MAX_DNS_ADDRESSES: usize = 8;
/// The maximum number of numbered servers.
pub const MAX_DNS_SERVERS: usize = 16;
/// The maximum number of domains in each list.
pub const MAX_DNS_DOMAINS: usize = 64;
/// The maximum number of `dhcp-option`s that are kept for programs, and the maximum length of each.
pub const MAX_FOREIGN_OPTIONS: (usize, usize) = (64, 256);
/// The port of a server for which none is configured.
const DNS_PORT: u16 = 53;

/// `transport`: the protocol of queries to a server.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DnsTransport {
    /// `plain`: UDP and TCP.
    Plain,
    /// `DoT`: DNS over TLS.
    Tls,
    /// `DoH`: DNS over HTTPS.
    Https,
}

/// One `dns server`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsServer {
    /// `address`; the second field is the port, if one is given.
    pub addresses: Vec<(IpAddr, Option<u16>)>,
    /// `resolve-domains`: the only domains that the server resolves. Empty: all.
    pub resolve_domains: Vec<DomainName>,
    /// `dnssec`.
    pub dnssec: Option<Dnssec>,
    /// `transport`.
    pub transport: Option<DnsTransport>,
    /// `sni`: the name in the server's certificate.
    pub sni: Option<DomainName>,
}

/// The DNS settings in `dhcp-option`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DhcpDns {
    /// `DNS`, `DNS6`.
    pub addresses: Vec<IpAddr>,
    /// `DOMAIN`, `ADAPTER_DOMAIN_SUFFIX`, `DOMAIN-SEARCH`.
    pub search_domains: Vec<DomainName>,
    /// `DOMAIN-ROUTE`: the only domains that are resolved. Empty: all.
    pub resolve_domains: Vec<DomainName>,
    /// All options as written, for programs (`foreign_option_N`).
    pub foreign: Vec<String>,
}

/// All DNS options of one end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsOptions {
    /// `dns server`, by number.
    pub servers: BTreeMap<i8, DnsServer>,
    /// `dns search-domains`.
    pub search_domains: Vec<DomainName>,
    /// `dhcp-option`, which takes effect only if there is no `dns server`.
    pub dhcp: DhcpDns,
}

/// The settings to apply: one server with its domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSettings {
    /// The addresses to which queries are sent.
    pub addresses: Vec<SocketAddr>,
    /// The domains that complete names without a dot.
    pub search_domains: Vec<DomainName>,
    /// The domains whose names the server resolves; empty for all names.
    pub resolve_domains: Vec<DomainName>,
    /// `dnssec`.
    pub dnssec: Option<Dnssec>,
    /// `transport`.
    pub transport: DnsTransport,
    /// `sni`.
    pub sni: Option<DomainName>,
}

/// The reason why an option is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsError {
    /// The value is not a domain name.
    Name(String),
    /// The value is not an address, with or without a port.
    Address(String),
    /// The value is not a server's number.
    Number(String),
    /// The option has no value.
    Missing(&'static str),
    /// The option does not exist or is not supported.
    Unknown(String),
    /// There are too many values of this kind.
    TooMany(&'static str),
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "\"{name}\" is not a domain name"),
            Self::Address(address) => write!(f, "\"{address}\" is not an address"),
            Self::Number(number) => write!(f, "\"{number}\" is not a server's number"),
            Self::Missing(what) => write!(f, "it needs {what}"),
            Self::Unknown(word) => write!(f, "\"{word}\" is not supported"),
            Self::TooMany(what) => write!(f, "there are too many {what}"),
        }
    }
}

impl std::error::Error for DnsError {}

/// Parses a domain name. An error contains the text in a form suitable for a log.
fn domain(text: &str) -> Result<DomainName, DnsError> {
    DomainName::parse(text).ok_or_else(|| DnsError::Name(bounded(text)))
}

fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

impl DnsOptions {
    /// Adds one option; `name` is `dns` or `dhcp-option`. A pushed option must number servers from
    /// 0 up.
    ///
    /// # Errors
    /// Returns why the option is left out; its usable part is kept.
    pub fn add(&mut self, name: &str, args: &[&str], pushed: bool) -> Result<(), DnsError> {
        match (name, args) {
            ("dhcp-option", [kind, values @ ..]) => {
                self.dhcp.add_foreign(args);
                self.dhcp.add(kind, values)
            }
            ("dhcp-option", []) => Err(DnsError::Missing("a type")),
            (_, ["search-domains", domains @ ..]) => add_domains(&mut self.search_domains, domains),
            (_, ["server", number, rest @ ..]) => self.server(number, rest, pushed),
            (_, [word, ..]) => Err(DnsError::Unknown(bounded(word))),
            (_, []) => Err(DnsError::Missing("server or search-domains")),
        }
    }

    fn server(&mut self, number: &str, rest: &[&str], pushed: bool) -> Result<(), DnsError> {
        let id = number.parse::<i8>().ok().filter(|id| !pushed || *id >= 0);
        let id = id.ok_or_else(|| DnsError::Number(bounded(number)))?;
        if !self.servers.contains_key(&id) && self.servers.len() >= MAX_DNS_SERVERS {
            return Err(DnsError::TooMany("servers"));
        }
        let mut server = self.servers.get(&id).cloned().unwrap_or_default();
        server.add(rest)?;
        self.servers.insert(id, server);
        Ok(())
    }

    /// Merges these options with the pushed ones: a pushed server replaces one with the same
    /// number, and pushed search domains are appended.
    #[must_use]
    pub fn merged(&self, pushed: &Self) -> Self {
        let mut all = self.clone();
        all.servers.extend(pushed.servers.iter().map(|(id, server)| (*id, server.clone())));
        append(&mut all.search_domains, &pushed.search_domains);
        append(&mut all.dhcp.addresses, &pushed.dhcp.addresses);
        append(&mut all.dhcp.search_domains, &pushed.dhcp.search_domains);
        append(&mut all.dhcp.resolve_domains, &pushed.dhcp.resolve_domains);
        all.dhcp.foreign.extend(pushed.dhcp.foreign.iter().cloned());
        all.dhcp.foreign.truncate(MAX_FOREIGN_OPTIONS.0);
        all
    }

    /// Returns whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the settings to apply: the server with the lowest number that has an address, or
    /// that of `dhcp-option`. Returns `None` if no server has an address.
    pub fn settings(&self) -> Option<DnsSettings> {
        let search_domains = self.search_domains.clone();
        let mut settings = match self.servers.values().find(|server| !server.addresses.is_empty()) {
            Some(server) => {
                let transport = server.transport.unwrap_or(DnsTransport::Plain);
                let usual = match transport {
                    DnsTransport::Plain => DNS_PORT,
                    DnsTransport::Tls => 853,
                    DnsTransport::Https => 443,
                };
                let address = |(ip, port): &(IpAddr, Option<u16>)| {
                    SocketAddr::new(*ip, port.unwrap_or(usual))
                };
                // The default port may be explicit in one line and omitted in another.
                let mut addresses = Vec::new();
                append(&mut addresses, &server.addresses.iter().map(address).collect::<Vec<_>>());
                DnsSettings {
                    addresses,
                    search_domains,
                    resolve_domains: server.resolve_domains.clone(),
                    dnssec: server.dnssec,
                    transport,
                    sni: server.sni.clone(),
                }
            }
            None if self.dhcp.addresses.is_empty() => return None,
            None => {
                let addresses = self.dhcp.addresses.iter().map(|ip| (*ip, DNS_PORT).into());
                let mut search_domains = search_domains;
                append(&mut search_domains, &self.dhcp.search_domains);
                DnsSettings {
                    addresses: addresses.collect(),
                    search_domains,
                    resolve_domains: self.dhcp.resolve_domains.clone(),
                    dnssec: None,
                    transport: DnsTransport::Plain,
                    sni: None,
                }
            }
        };
        settings.search_domains.retain(|domain| !domain.is_root());
        if settings.resolve_domains.iter().any(DomainName::is_root) {
            settings.resolve_domains.clear();
        }
        Some(settings)
    }

    /// Returns the options as lines in a fixed order.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for ip in &self.dhcp.addresses {
            let kind = if ip.is_ipv4() { "DNS" } else { "DNS6" };
            lines.push(format!("dhcp-option {kind} {ip}"));
        }
        let mut each = |prefix: &str, domains: &[DomainName]| {
            lines.extend(domains.iter().map(|domain| format!("{prefix} {domain}")));
        };
        each("dhcp-option DOMAIN", &self.dhcp.search_domains);
        each("dhcp-option DOMAIN-ROUTE", &self.dhcp.resolve_domains);
        each("dns search-domains", &self.search_domains);
        for (id, server) in &self.servers {
            lines.extend(server.words().into_iter().map(|line| format!("dns server {id} {line}")));
        }
        lines
    }
}

impl DhcpDns {
    fn add_foreign(&mut self, args: &[&str]) {
        let (options, length) = MAX_FOREIGN_OPTIONS;
        let text = format!("dhcp-option {}", args.join(" "));
        if self.foreign.len() < options && text.len() <= length {
            self.foreign.push(text);
        }
    }

    fn add(&mut self, kind: &str, values: &[&str]) -> Result<(), DnsError> {
        let value = values.first().copied();
        match kind {
            "DNS" | "DNS6" => {
                let text = value.ok_or(DnsError::Missing("an address"))?;
                let ip = text.parse().map_err(|_| DnsError::Address(bounded(text)))?;
                push(&mut self.addresses, ip, MAX_DNS_ADDRESSES, "addresses")
            }
            "DOMAIN" | "ADAPTER_DOMAIN_SUFFIX" | "DOMAIN-SEARCH" => {
                let name = domain(value.ok_or(DnsError::Missing("a domain"))?)?;
                push(&mut self.search_domains, name, MAX_DNS_DOMAINS, "domains")
            }
            "DOMAIN-ROUTE" => {
                let name = domain(value.ok_or(DnsError::Missing("a domain"))?)?;
                push(&mut self.resolve_domains, name, MAX_DNS_DOMAINS, "domains")
            }
            other => Err(DnsError::Unknown(bounded(other))),
        }
    }
}

impl DnsServer {
    fn add(&mut self, words: &[&str]) -> Result<(), DnsError> {
        let (kind, values) = words.split_first().ok_or(DnsError::Missing("an option"))?;
        let first = values.first().copied().ok_or(DnsError::Missing("a value"));
        match *kind {
            "address" => {
                first?;
                for text in values {
                    let address = address(text).ok_or_else(|| DnsError::Address(bounded(text)))?;
                    push(&mut self.addresses, address, MAX_DNS_ADDRESSES, "addresses")?;
                }
                Ok(())
            }
            "resolve-domains" => {
                first?;
                add_domains(&mut self.resolve_domains, values)
            }
            "dnssec" => {
                self.dnssec = Some(match first? {
                    "yes" => Dnssec::Required,
                    "optional" => Dnssec::Optional,
                    "no" => Dnssec::Off,
                    other => return Err(DnsError::Unknown(bounded(other))),
                });
                Ok(())
            }
            "transport" => {
                self.transport = Some(match first? {
                    "plain" => DnsTransport::Plain,
                    "DoT" => DnsTransport::Tls,
                    "DoH" => DnsTransport::Https,
                    other => return Err(DnsError::Unknown(bounded(other))),
                });
                Ok(())
            }
            "sni" => {
                self.sni = Some(domain(first?)?);
                Ok(())
            }
            other => Err(DnsError::Unknown(bounded(other))),
        }
    }

    /// Returns the argument of `dnssec`.
    pub fn dnssec_word(&self) -> Option<&'static str> {
        self.dnssec.map(|dnssec| match dnssec {
            Dnssec::Required => "yes",
            Dnssec::Optional => "optional",
            Dnssec::Off => "no",
        })
    }

    /// Returns the argument of `transport`.
    pub fn transport_word(&self) -> Option<&'static str> {
        self.transport.map(|transport| match transport {
            DnsTransport::Plain => "plain",
            DnsTransport::Tls => "DoT",
            DnsTransport::Https => "DoH",
        })
    }

    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (ip, port) in &self.addresses {
            words.push(match port {
                Some(port) => format!("address {}", SocketAddr::new(*ip, *port)),
                None => format!("address {ip}"),
            });
        }
        words.extend(self.resolve_domains.iter().map(|name| format!("resolve-domains {name}")));
        words.extend(self.dnssec_word().map(|word| format!("dnssec {word}")));
        words.extend(self.transport_word().map(|word| format!("transport {word}")));
        words.extend(self.sni.as_ref().map(|name| format!("sni {name}")));
        words
    }
}

/// Parses `192.0.2.1`, `192.0.2.1:53`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:53`.
fn address(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some((ip, None));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return (address.port() != 0).then_some((address.ip(), Some(address.port())));
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse().ok().map(|ip| (IpAddr::V6(ip), None))
}

fn add_domains(list: &mut Vec<DomainName>, words: &[&str]) -> Result<(), DnsError> {
    if words.is_empty() {
        return Err(DnsError::Missing("a domain"));
    }
    for word in words {
        push(list, domain(word)?, MAX_DNS_DOMAINS, "domains")?;
    }
    Ok(())
}

fn push<T: PartialEq>(
    list: &mut Vec<T>,
    item: T,
    limit: usize,
    what: &'static str,
) -> Result<(), DnsError> {
    if list.contains(&item) {
        return Ok(());
    }
    if list.len() >= limit {
        return Err(DnsError::TooMany(what));
    }
    list.push(item);
    Ok(())
}

fn append<T: Clone + PartialEq>(list: &mut Vec<T>, more: &[T]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(lines: &[&str]) -> DnsOptions {
        let mut dns = DnsOptions::default();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            dns.add(words[0], &words[1..], true).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        dns
    }

    fn error(line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        DnsOptions::default().add(words[0], &words[1..], true).unwrap_err().to_string()
    }

    fn names(names: &[DomainName]) -> Vec<&str> {
        names.iter().map(DomainName::as_str).collect()
    }

    #[test]
    fn both_forms_become_the_same_settings() {
        let old = options(&[
            "dhcp-option DNS 10.8.0.1",
            "dhcp-option DNS6 fd00::1",
            "dhcp-option DNS fd00::2",
            "dhcp-option DOMAIN Corp.Example.",
            "dhcp-option ADAPTER_DOMAIN_SUFFIX corp.example",
            "dhcp-option DOMAIN-SEARCH lab.example",
        ]);
        let new = options(&[
            "dns server 0 address 10.8.0.1 fd00::1 [fd00::2]",
            "dns search-domains corp.example lab.example",
        ]);
        assert_eq!(old.settings(), new.settings());
        let settings = new.settings().unwrap();
        assert_eq!(names(&settings.search_domains), ["corp.example", "lab.example"]);
        let addresses: Vec<String> = settings.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.8.0.1:53", "[fd00::1]:53", "[fd00::2]:53"]);
        assert!(settings.resolve_domains.is_empty());
    }

    #[test]
    fn the_lowest_number_with_an_address_counts_and_dhcp_options_do_not() {
        let dns = options(&[
            "dhcp-option DNS 192.0.2.9",
            "dhcp-option DOMAIN old.example",
            "dns server 5 address 192.0.2.5",
            "dns server 2 address [2001:db8::2]:853 192.0.2.2:5353",
            "dns server 2 resolve-domains a.example b.example",
            "dns server 2 dnssec optional",
            "dns server 2 transport DoT",
            "dns server 2 sni dns.example",
            "dns server 1 sni no-address.example",
        ]);
        let settings = dns.settings().unwrap();
        let addresses: Vec<String> = settings.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["[2001:db8::2]:853", "192.0.2.2:5353"]);
        assert_eq!(names(&settings.resolve_domains), ["a.example", "b.example"]);
        assert!(settings.search_domains.is_empty());
        assert_eq!(settings.dnssec, Some(Dnssec::Optional));
        assert_eq!(settings.transport, DnsTransport::Tls);
        assert_eq!(settings.sni.unwrap().as_str(), "dns.example");
    }

    #[test]
    fn lines_give_the_same_options_again() {
        let dns = options(&[
            "dhcp-option DNS 192.0.2.9",
            "dhcp-option DOMAIN-ROUTE corp.example",
            "dns search-domains corp.example",
            "dns server 2 address [2001:db8::2]:853 192.0.2.2",
            "dns server 2 dnssec yes",
            "dns server 2 transport DoH",
            "dns server 2 sni dns.example",
        ]);
        let lines = dns.lines();
        assert_eq!(options(&lines.iter().map(String::as_str).collect::<Vec<_>>()), dns);
    }

    #[test]
    fn a_server_is_named_once_however_often_it_is_written() {
        let own = options(&["dhcp-option DNS 192.0.2.1", "dhcp-option DNS 192.0.2.1"]);
        let pushed = options(&["dhcp-option DNS 192.0.2.7", "dhcp-option DNS 192.0.2.1"]);
        let settings = own.merged(&pushed).settings().unwrap();
        assert_eq!(
            settings.addresses,
            ["192.0.2.1:53", "192.0.2.7:53"].map(|a| a.parse().unwrap())
        );
        let server = options(&[
            "dns server 0 address 192.0.2.1 192.0.2.1:53 2001:db8::1",
            "dns server 0 address [2001:db8::1] 192.0.2.1:5353 [2001:db8::1]:53",
        ]);
        assert_eq!(
            server.settings().unwrap().addresses,
            ["192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.1:5353"].map(|a| a.parse().unwrap())
        );
        let tls = options(&[
            "dns server 0 transport DoT",
            "dns server 0 address 192.0.2.1 192.0.2.1:853",
        ]);
        assert_eq!(tls.settings().unwrap().addresses, ["192.0.2.1:853".parse().unwrap()]);
    }

    #[test]
    fn pushed_servers_replace_and_pushed_domains_come_after() {
        let own = options(&["dns server 1 address 192.0.2.1", "dns search-domains a.example"]);
        let pushed = options(&["dns server 1 address 192.0.2.7", "dns search-domains b.example"]);
        let settings = own.merged(&pushed).settings().unwrap();
        assert_eq!(settings.addresses, ["192.0.2.7:53".parse().unwrap()]);
        assert_eq!(names(&settings.search_domains), ["a.example", "b.example"]);
    }

    #[test]
    fn the_root_means_all_names() {
        let dns = options(&["dns server 0 address 192.0.2.1", "dns server 0 resolve-domains . x"]);
        assert!(dns.settings().unwrap().resolve_domains.is_empty());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (line, reason) in [
            ("dns server 1 address 192.0.2.1:0", "not an address"),
            ("dns server 1 address vpn.example", "not an address"),
            ("dns server 1 address", "needs a value"),
            ("dns server 300 address 192.0.2.1", "number"),
            ("dns server -1 address 192.0.2.1", "number"),
            ("dns server 1 exclude-domains a.example", "not supported"),
            ("dns server 1 transport DoQ", "not supported"),
            ("dns server 1", "needs an option"),
            ("dns search-domains", "needs a domain"),
            ("dns search-domains -x.example", "not a domain name"),
            ("dns search-domains a..b", "not a domain name"),
            ("dns search-domains $(reboot)", "not a domain name"),
            ("dns search-domains ~.", "not a domain name"),
            ("dns", "needs"),
            ("dhcp-option", "needs a type"),
            ("dhcp-option DNS", "needs an address"),
            ("dhcp-option DNS example", "not an address"),
            ("dhcp-option NTP 192.0.2.1", "not supported"),
        ] {
            assert!(error(line).contains(reason), "{line}: {}", error(line));
        }
    }

    #[test]
    fn every_list_is_bounded() {
        let mut dns = DnsOptions::default();
        for i in 0..300 {
            let (address, domain) = (format!("192.0.2.{}", i % 250), format!("d{i}.example"));
            let number = (i % 128).to_string();
            let _ = dns.add("dhcp-option", &["DNS", &address], true);
            let _ = dns.add("dhcp-option", &["DOMAIN", &domain], true);
            let _ = dns.add("dhcp-option", &["DOMAIN-ROUTE", &domain], true);
            let _ = dns.add("dns", &["search-domains", &domain], true);
            let _ = dns.add("dns", &["server", &number, "address", &address], true);
            let _ = dns.add("dns", &["server", "0", "resolve-domains", &domain], true);
        }
        assert_eq!(dns.dhcp.addresses.len(), MAX_DNS_ADDRESSES);
        assert_eq!(dns.dhcp.search_domains.len(), MAX_DNS_DOMAINS);
        assert_eq!(dns.dhcp.resolve_domains.len(), MAX_DNS_DOMAINS);
        assert_eq!(dns.search_domains.len(), MAX_DNS_DOMAINS);
        assert_eq!(dns.servers.len(), MAX_DNS_SERVERS);
        assert_eq!(dns.servers[&0].resolve_domains.len(), MAX_DNS_DOMAINS);
    }
}
