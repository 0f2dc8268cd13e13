//! Names to addresses.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::{Family, Target};

/// How many targets are remembered with their addresses.
const TARGET_LIMIT: usize = 64;

/// Addresses taken from one name; the rest are ignored.
const ADDRESS_LIMIT: usize = 16;

/// Wait between two attempts at the same name (stock: 5 s).
const RETRY: Duration = Duration::from_secs(5);

/// `resolv-retry`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ResolveRetry {
    /// Report a failure at once.
    Once,
    /// Go on trying for so long.
    For(Duration),
    /// Go on for ever.
    Forever,
}

/// Which of a name's addresses is next.
///
/// Dialling the same target again tries its next address; after the last the name is looked up
/// again, since the reason may be that it has moved.
#[derive(Debug, Default)]
pub struct AddressBook {
    known: HashMap<Target, (Vec<SocketAddr>, usize)>,
}

impl AddressBook {
    /// The next address that is already known.
    pub fn next(&mut self, target: &Target) -> Option<SocketAddr> {
        let (addresses, used) = self.known.get_mut(target)?;
        let next = addresses.get(*used).copied();
        *used = used.saturating_add(1);
        if next.is_none() {
            self.known.remove(target);
        }
        next
    }

    /// Remembers the addresses of a name and takes the first.
    pub fn learn(&mut self, target: &Target, mut addresses: Vec<SocketAddr>) -> Option<SocketAddr> {
        addresses.truncate(ADDRESS_LIMIT);
        if self.known.len() >= TARGET_LIMIT {
            self.known.clear();
        }
        let first = addresses.first().copied()?;
        self.known.insert(target.clone(), (addresses, 1));
        Some(first)
    }
}

/// `remote-random-hostname`: twelve random hex digits before the name, so that nobody on the way has the
/// answer at hand.
fn randomized(host: &str) -> String {
    // Without randomness there is still the name.
    let Ok(random) = crate::plane::random::<6>() else { return host.to_owned() };
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}.{host}")
}

/// Looks a target's name up, again and again where told to; with `random` by another name of it each time.
///
/// # Errors
/// The resolver's words, in stock's sentence.
pub async fn resolve(
    target: Target,
    retry: ResolveRetry,
    random: bool,
) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = target.host.parse::<IpAddr>() {
        return match matches(target.family, &address) {
            true => Ok(vec![SocketAddr::new(address, target.port)]),
            false => Err(format!(
                "RESOLVE: {} is not an {} address; choose another 'proto' or 'remote'",
                target.host,
                family_name(target.family)
            )),
        };
    }
    let started = adit_linux::clock::boottime();
    loop {
        let host = if random { randomized(&target.host) } else { target.host.clone() };
        let problem = match tokio::net::lookup_host((host.as_str(), target.port)).await {
            Ok(found) => {
                let fitting: Vec<SocketAddr> =
                    found.filter(|address| matches(target.family, &address.ip())).collect();
                if !fitting.is_empty() {
                    return Ok(fitting);
                }
                format!("it has no {} address", family_name(target.family))
            }
            Err(e) => e.to_string(),
        };
        let words =
            format!("RESOLVE: Cannot resolve host address: {host}:{} ({problem})", target.port);
        let passed = Duration::from_nanos(adit_linux::clock::boottime().saturating_sub(started));
        let again = match retry {
            ResolveRetry::Once => false,
            ResolveRetry::For(limit) => passed < limit,
            ResolveRetry::Forever => true,
        };
        if !again {
            return Err(words);
        }
        tracing::warn!("{words}");
        tokio::time::sleep(RETRY).await;
    }
}

fn matches(family: Family, address: &IpAddr) -> bool {
    match family {
        Family::Any => true,
        Family::V4 => address.is_ipv4(),
        Family::V6 => address.is_ipv6(),
    }
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::Any => "usable",
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

#[cfg(test)]
mod tests {
    use adit_engine::Transport;

    use super::*;

    fn target(host: &str, family: Family) -> Target {
        Target {
            host: host.into(),
            port: 1194,
            transport: Transport::Udp,
            family,
            ..Target::default()
        }
    }

    #[test]
    fn dialling_again_walks_through_the_addresses_and_then_asks_again() {
        let mut book = AddressBook::default();
        let target = target("vpn.example", Family::Any);
        let addresses: Vec<SocketAddr> =
            vec!["192.0.2.1:1194".parse().unwrap(), "[2001:db8::1]:1194".parse().unwrap()];
        assert_eq!(book.next(&target), None);
        assert_eq!(book.learn(&target, addresses.clone()), Some(addresses[0]));
        assert_eq!(book.next(&target), Some(addresses[1]));
        assert_eq!(book.next(&target), None);
        assert_eq!(book.learn(&target, Vec::new()), None);
    }

    #[tokio::test]
    async fn a_literal_needs_no_resolver_but_must_fit_the_family() {
        let found =
            resolve(target("192.0.2.1", Family::Any), ResolveRetry::Once, false).await.unwrap();
        assert_eq!(found, ["192.0.2.1:1194".parse().unwrap()]);
        let refused = resolve(target("192.0.2.1", Family::V6), ResolveRetry::Once, false).await;
        assert!(refused.unwrap_err().contains("not an IPv6 address"));
    }

    #[tokio::test]
    async fn a_random_name_is_another_one_each_time_and_an_address_stays() {
        let (one, other) = (randomized("vpn.example"), randomized("vpn.example"));
        assert_ne!(one, other);
        let (digits, rest) = one.split_once('.').unwrap();
        assert!(digits.len() == 12 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{one}");
        assert_eq!(rest, "vpn.example");
        let address = target("192.0.2.1", Family::Any);
        let found = resolve(address, ResolveRetry::Once, true).await.unwrap();
        assert_eq!(found, ["192.0.2.1:1194".parse().unwrap()]);
    }
}
