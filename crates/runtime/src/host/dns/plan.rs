use std::fmt;
use std::net::SocketAddr;

use adit_dns::{Dnssec, DomainName};
use serde::{Deserialize, Serialize};

/// The maximum number of servers.
pub(super) const MAX_SERVERS: usize = 8;
/// The maximum number of domains in each list.
pub(super) const MAX_DOMAINS: usize = 128;

/// The DNS settings of a tunnel. They are plain data, because they cross a process boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsPlan {
    /// The servers, best first.
    pub servers: Vec<SocketAddr>,
    /// The domains that complete names without a dot.
    pub search: Vec<String>,
    /// The domains whose names go to the servers (split DNS). Empty: all names.
    pub domains: Vec<String>,
    /// Whether answers are validated, or `None` for the host's default.
    pub dnssec: Option<Dnssec>,
    /// The transport of queries to the servers.
    pub transport: Transport,
}

/// The transport of queries to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// UDP and TCP.
    Plain,
    /// DNS over TLS, with the name in the server's certificate.
    Tls(Option<String>),
    /// DNS over HTTPS.
    Https,
}

impl DnsPlan {
    /// Checks everything that becomes an argument of a program or a line of a file.
    ///
    /// # Errors
    /// Returns the first value that is not allowed.
    pub fn check(&self) -> Result<(), String> {
        if self.servers.is_empty() || self.servers.len() > MAX_SERVERS {
            return Err(format!("{} servers are too few or too many", self.servers.len()));
        }
        for server in &self.servers {
            let ip = server.ip();
            if ip.is_unspecified() || ip.is_multicast() || server.port() == 0 {
                return Err(format!("{server} is not a server's address"));
            }
        }
        if self.search.len() > MAX_DOMAINS || self.domains.len() > MAX_DOMAINS {
            return Err("there are too many domains".into());
        }
        let tls = match &self.transport {
            Transport::Tls(name) => name.as_ref(),
            Transport::Plain | Transport::Https => None,
        };
        for name in self.search.iter().chain(&self.domains).chain(tls) {
            match DomainName::parse(name) {
                Some(parsed) if parsed.as_str() == name && !parsed.is_root() => {}
                _ => return Err(format!("{name:?} is not a domain")),
            }
        }
        Ok(())
    }

    /// Checks whether programs that know only addresses can query the servers.
    pub(super) fn is_plain(&self) -> Result<(), String> {
        if self.transport != Transport::Plain {
            return Err("an encrypted transport is not possible there".into());
        }
        match self.servers.iter().find(|server| server.port() != 53) {
            Some(server) => Err(format!("the port of {server} is not possible there")),
            None => Ok(()),
        }
    }
}

/// The program that manages the host's DNS settings.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackEnd {
    /// systemd-resolved, through `resolvectl`.
    Resolved,
    /// NetworkManager, through `nmcli`.
    NetworkManager,
    /// openresolv or resolvconf.
    Resolvconf,
    /// /etc/resolv.conf itself.
    File,
}

impl fmt::Display for BackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolved => "systemd-resolved",
            Self::NetworkManager => "NetworkManager",
            Self::Resolvconf => "resolvconf",
            Self::File => "/etc/resolv.conf",
        })
    }
}

/// The DNS servers that resolve names on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DnsInUse {
    /// The host's own servers. Contains the reason if the tunnel's should be used but are not.
    Own(Option<String>),
    /// The tunnel's servers.
    Tunnel {
        /// The addresses of the servers.
        servers: Vec<SocketAddr>,
        /// The back end that makes the host use them.
        back_end: BackEnd,
        /// The domains whose names they resolve; empty: all names.
        domains: Vec<String>,
        /// Whether no other server is queried for these names.
        exclusive: bool,
    },
}

impl Default for DnsInUse {
    fn default() -> Self {
        Self::Own(None)
    }
}

impl DnsInUse {
    /// Returns whether only the tunnel's servers resolve names. Otherwise queries go to other
    /// servers, and the tunnel does not carry all traffic.
    pub fn covers_all(&self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Tunnel { domains, exclusive, .. } => domains.is_empty() && *exclusive,
        }
    }
}

impl fmt::Display for DnsInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(None) => write!(f, "this machine's own"),
            Self::Own(Some(why)) => write!(f, "this machine's own ({why})"),
            Self::Tunnel { servers, back_end, domains, exclusive } => {
                let servers: Vec<String> = servers.iter().map(shown).collect();
                write!(f, "{} by {back_end}", servers.join(" and "))?;
                if !domains.is_empty() {
                    write!(f, ", for {} only", domains.join(" and "))?;
                } else if !exclusive {
                    write!(f, ", before this machine's own")?;
                }
                Ok(())
            }
        }
    }
}

/// Formats a server, without the default port.
pub(super) fn shown(server: &SocketAddr) -> String {
    if server.port() == 53 { server.ip().to_string() } else { server.to_string() }
}

/// A change that adit has not made itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsEvent {
    /// The change.
    pub change: DnsChange,
    /// The state after the change.
    pub in_use: DnsInUse,
}

/// The kinds of [`DnsEvent`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DnsChange {
    /// Another program replaced the settings, and they were applied again.
    AppliedAgain,
    /// Another program replaced the settings, and they are no longer applied.
    Lost,
    /// The settings are in force again without our action.
    Back,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> DnsPlan {
        DnsPlan {
            servers: vec!["10.8.0.1:53".parse().unwrap()],
            search: vec!["corp.example".into()],
            domains: Vec::new(),
            dnssec: None,
            transport: Transport::Plain,
        }
    }

    #[test]
    fn values_for_programs_are_checked() {
        assert_eq!(plan().check(), Ok(()));
        let mut tls = plan();
        tls.transport = Transport::Tls(Some("dns.example".into()));
        assert_eq!(tls.check(), Ok(()));
        let broken: [fn(&mut DnsPlan); 8] = [
            |p| p.servers.clear(),
            |p| p.servers = vec!["0.0.0.0:53".parse().unwrap()],
            |p| p.servers = vec!["192.0.2.1:0".parse().unwrap()],
            |p| p.servers = vec!["224.0.0.1:53".parse().unwrap()],
            |p| p.search = vec!["--help".into()],
            |p| p.search = vec!["a b".into()],
            |p| p.domains = vec!["x\nnameserver 192.0.2.9".into()],
            |p| p.transport = Transport::Tls(Some("#".into())),
        ];
        for breaks in broken {
            let mut plan = plan();
            breaks(&mut plan);
            assert!(plan.check().is_err(), "{plan:?}");
        }
    }

    #[test]
    fn all_names_are_covered_only_by_the_tunnel_alone() {
        let tunnel = |domains: &[&str], exclusive| DnsInUse::Tunnel {
            servers: vec!["10.8.0.1:53".parse().unwrap()],
            back_end: BackEnd::Resolved,
            domains: domains.iter().map(|&domain| domain.to_owned()).collect(),
            exclusive,
        };
        assert!(tunnel(&[], true).covers_all());
        assert!(!tunnel(&[], false).covers_all());
        assert!(!tunnel(&["corp.example"], true).covers_all());
        assert!(!DnsInUse::default().covers_all());
        assert_eq!(tunnel(&[], true).to_string(), "10.8.0.1 by systemd-resolved");
    }
}
