//! Names in tinc's files that only this machine knows: services, and hosts to listen on.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;

use adit_tinc::config::{Entries, Entry};

/// The names and port numbers of services.
const SERVICES: &str = "/etc/services";

/// The addresses of hosts, and the ports of services. Each name is looked up once, so that a daemon waits for the resolver only at its start.
#[derive(Debug, Default)]
pub(crate) struct SystemNames {
    hosts: BTreeMap<String, Vec<String>>,
    services: Option<BTreeMap<String, u16>>,
}

impl SystemNames {
    /// Replaces service names by ports, and names of hosts to listen on by all their addresses. Unknown ones remain.
    pub(crate) fn replace(&mut self, entries: &mut Entries) {
        entries.replace(|entry| self.values(entry));
    }

    fn values(&mut self, entry: &Entry) -> Option<Vec<String>> {
        let is = |name: &str| entry.name.eq_ignore_ascii_case(name);
        if is("Port") {
            return Some(vec![self.port(&entry.value)?]);
        }
        let words: Vec<&str> = entry.value.split_whitespace().collect();
        let (host, port) = match words[..] {
            [host] => (host, None),
            [host, port] => (host, Some(port)),
            _ => return None,
        };
        let named = port.and_then(|port| self.port(port));
        let is_bound = is("BindToAddress") || is("ListenAddress");
        let looked_up = is_bound && host != "*" && host.parse::<std::net::IpAddr>().is_err();
        if !is("Address") && !is_bound || !looked_up && named.is_none() {
            return None;
        }
        let port = named.or(port.map(str::to_owned)).map(|port| format!(" {port}"));
        let port = port.unwrap_or_default();
        let hosts = if looked_up { self.addresses(host)? } else { vec![host.to_owned()] };
        Some(hosts.iter().map(|host| format!("{host}{port}")).collect())
    }

    /// Returns the port of a service. `None` for a number, and for an unknown service.
    fn port(&mut self, name: &str) -> Option<String> {
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let services = self.services.get_or_insert_with(|| {
            services(&std::fs::read_to_string(SERVICES).unwrap_or_default())
        });
        services.get(name).map(ToString::to_string)
    }

    fn addresses(&mut self, host: &str) -> Option<Vec<String>> {
        if let Some(known) = self.hosts.get(host) {
            return Some(known.clone());
        }
        let found = (host, 0).to_socket_addrs().ok()?;
        let mut addresses: Vec<String> = found.map(|address| address.ip().to_string()).collect();
        addresses.dedup();
        self.hosts.insert(host.to_owned(), addresses.clone());
        Some(addresses)
    }
}

/// Reads the services that have a TCP and a UDP port; tinc needs both. The lines are `NAME PORT/PROTOCOL [ALIAS...] [# COMMENT]`.
fn services(text: &str) -> BTreeMap<String, u16> {
    let ports = |wanted: &str| {
        let mut found = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let (Some(name), Some(port)) = (words.next(), words.next()) else { continue };
            let Some((port, protocol)) = port.split_once('/') else { continue };
            let (Ok(port), true) = (port.parse::<u16>(), protocol == wanted) else { continue };
            for name in words.chain([name]) {
                found.entry(name.to_owned()).or_insert(port);
            }
        }
        found
    };
    let (tcp, mut udp) = (ports("tcp"), ports("udp"));
    udp.retain(|name, port| tcp.get(name) == Some(port));
    udp
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(line: &str) -> Vec<String> {
        let known = services("tinc 655/tcp\ntinc 655/udp\nhttp 80/tcp www # web\n");
        let two = vec!["192.0.2.1".to_owned(), "::1".to_owned()];
        let mut names =
            SystemNames { hosts: [("two".to_owned(), two)].into(), services: Some(known) };
        let mut entries = Entries::default();
        entries.add_file("tinc.conf", line).unwrap();
        names.replace(&mut entries);
        entries.iter().map(|entry| entry.value.clone()).collect()
    }

    #[test]
    fn services_and_hosts_are_replaced_where_tinc_looks_them_up() {
        for (line, values) in [
            ("Port = tinc", &["655"][..]),
            ("Port = 7", &["7"]),
            ("Port = www", &["www"]),
            ("Port = 655 # x", &["655 # x"]),
            ("Address = example.org tinc", &["example.org 655"]),
            ("Address = example.org", &["example.org"]),
            ("BindToAddress = two", &["192.0.2.1", "::1"]),
            ("ListenAddress = two 0", &["192.0.2.1 0", "::1 0"]),
            ("listenaddress = * tinc", &["* 655"]),
            ("ListenAddress = 192.0.2.7 1", &["192.0.2.7 1"]),
            ("ListenAddress = two 0 x", &["two 0 x"]),
            ("Interface = two", &["two"]),
        ] {
            assert_eq!(replaced(line), values, "{line}");
        }
    }

    #[test]
    fn a_host_that_is_not_found_remains() {
        assert_eq!(replaced("BindToAddress = nonexistent.invalid"), ["nonexistent.invalid"]);
    }

    #[test]
    fn only_services_with_both_protocols_are_known() {
        let text = "# a comment\na 1/tcp x\na 1/udp x\nb 2/tcp\nc 3/tcp\nc 4/udp\nd x/tcp\ne\n";
        let expected = [("a".to_owned(), 1), ("x".to_owned(), 1)];
        assert_eq!(services(text), expected.into());
    }
}
