//! Name resolution, and the known addresses of each target.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use adit_engine::{Family, Target};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::outside_resolver::OutsideResolver;

/// The number of targets whose addresses are remembered.
const TARGET_LIMIT: usize = 64;

/// The maximum number of addresses of one name; further ones are ignored.
const ADDRESS_LIMIT: usize = 16;

/// The wait between two attempts at the same name (OpenVPN: 5 s).
const RETRY: Duration = Duration::from_secs(5);

/// The time limit of a look-up if there are known addresses and the last session worked. Otherwise one of the next two
/// constants applies, depending on whether there are known addresses.
const WITH_WORKING: Duration = Duration::from_secs(1);
const WITH_ADDRESSES: Duration = Duration::from_secs(6);
const WITHOUT_ADDRESSES: Duration = Duration::from_secs(60);

/// `resolv-retry`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ResolveRetry {
    /// Report a failure at once.
    Once,
    /// Retry for this time.
    For(Duration),
    /// Retry forever.
    Forever,
}

/// A name look-up in progress. Dropping it cancels the look-up.
#[derive(Debug)]
pub(super) struct Lookup(pub(super) JoinHandle<()>);

impl Drop for Lookup {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Chooses the next address of a name.
///
/// If the same target is dialled again, its next address is tried. After the last address, the name is looked up again,
/// because the server may have moved. The address that worked last is tried first. Old addresses are used if the name
/// cannot be looked up.
#[derive(Debug, Default)]
pub struct AddressBook {
    known: HashMap<Target, Entry>,
    /// `persist-remote-ip`: an address that worked is dialled again without a look-up.
    persistent: bool,
}

#[derive(Debug, Default)]
struct Entry {
    addresses: Vec<SocketAddr>,
    used: usize,
    worked: bool,
}

/// The known addresses of a target whose name must be resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachedAddresses {
    /// The addresses from earlier answers, the last one that worked first.
    pub addresses: Vec<SocketAddr>,
    /// Whether the last session at these addresses worked.
    pub worked: bool,
}

/// The addresses of the servers that worked in this process, the latest server last. A client that restarts on SIGHUP
/// takes them over.
static WORKED: Mutex<Vec<(Target, Vec<SocketAddr>)>> = Mutex::new(Vec::new());

/// The addresses of names that were looked up when the program started.
static EARLY: Mutex<Vec<(Target, Vec<SocketAddr>)>> = Mutex::new(Vec::new());

impl AddressBook {
    /// Looks up the names of these targets and waits for the answers, for a process that cannot do so later or does not
    /// want to. A name that is not found keeps its former addresses. Returns a line for the log for each such name.
    pub fn preresolve(targets: &[Target]) -> Vec<String> {
        let mut problems = Vec::new();
        for target in targets.iter().take(TARGET_LIMIT) {
            if target.host.parse::<IpAddr>().is_ok() {
                continue;
            }
            let found = (target.host.as_str(), target.port).to_socket_addrs();
            let fitting = found.map(|found| {
                let fitting = found.filter(|address| matches(target.family, &address.ip()));
                fitting.take(ADDRESS_LIMIT).collect::<Vec<_>>()
            });
            let problem = match fitting {
                Ok(fitting) if !fitting.is_empty() => {
                    let mut early = EARLY.lock().unwrap_or_else(PoisonError::into_inner);
                    early.retain(|(other, _)| other != target);
                    early.push((target.clone(), fitting));
                    let excess = early.len().saturating_sub(TARGET_LIMIT);
                    early.drain(..excess);
                    continue;
                }
                Ok(_) => format!("it has no {} address", family_name(target.family)),
                Err(e) => e.to_string(),
            };
            problems.push(format!(
                "RESOLVE: Cannot resolve host address: {}:{} ({problem})",
                target.host, target.port
            ));
        }
        problems
    }

    /// Chooses whether an address that worked is dialled again without a look-up (`persist-remote-ip`).
    #[must_use]
    pub fn persistent(self, persistent: bool) -> Self {
        Self { persistent, ..self }
    }

    /// Creates a book with the addresses that worked in this process.
    pub fn saved_addresses() -> Self {
        let worked = WORKED.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |(target, addresses): &(Target, Vec<SocketAddr>)| {
            let addresses = addresses.clone();
            // The name is looked up first, because the server may have moved in the meantime.
            (target.clone(), Entry { used: addresses.len(), addresses, worked: true })
        };
        let early = EARLY.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |(target, addresses): &(Target, Vec<SocketAddr>)| {
            let addresses = addresses.clone();
            (target.clone(), Entry { addresses, used: 0, worked: false })
        };
        let mut known: HashMap<_, _> = worked.iter().map(entry).collect();
        // No look-up comes before the first attempt at these.
        known.extend(early.iter().map(fresh));
        Self { known, persistent: false }
    }

    /// Saves a target's addresses for [`Self::saved_addresses`].
    pub fn save_addresses(&self, target: &Target) {
        let Some(entry) = self.known.get(target) else { return };
        let mut worked = WORKED.lock().unwrap_or_else(PoisonError::into_inner);
        worked.retain(|(other, _)| other != target);
        if worked.len() >= TARGET_LIMIT {
            worked.remove(0);
        }
        worked.push((target.clone(), entry.addresses.clone()));
    }

    /// Returns the next address that is already known.
    pub fn next(&mut self, target: &Target) -> Option<SocketAddr> {
        let entry = self.known.get_mut(target).filter(|entry| !entry.worked)?;
        let next = entry.addresses.get(entry.used).copied();
        entry.used = entry.used.saturating_add(1);
        next
    }

    /// Returns the known addresses for a look-up that [`Self::next`] requires.
    pub fn remembered(&mut self, target: &Target) -> CachedAddresses {
        self.known.get_mut(target).map_or_else(CachedAddresses::default, |entry| CachedAddresses {
            addresses: entry.addresses.clone(),
            worked: std::mem::take(&mut entry.worked),
        })
    }

    /// Stores the addresses of a name and returns the first.
    pub fn learn(&mut self, target: &Target, mut addresses: Vec<SocketAddr>) -> Option<SocketAddr> {
        addresses.truncate(ADDRESS_LIMIT);
        if self.known.len() >= TARGET_LIMIT {
            self.known.clear();
        }
        let first = addresses.first().copied()?;
        self.known.insert(target.clone(), Entry { addresses, used: 1, worked: false });
        Some(first)
    }

    /// Records that a session was established at this address, which is then tried first.
    pub fn worked(&mut self, target: &Target, address: SocketAddr) {
        if let Some(entry) = self.known.get_mut(target) {
            entry.addresses.retain(|other| *other != address);
            entry.addresses.insert(0, address);
            if self.persistent {
                entry.used = 0;
            } else {
                entry.worked = true;
            }
        }
    }

    /// Records that there is no longer a route to this address, but that there is one to the other family, whose
    /// addresses are tried next.
    pub fn unreachable(&mut self, target: &Target, address: SocketAddr) {
        if let Some(entry) = self.known.get_mut(target) {
            let same = |other: &SocketAddr| other.is_ipv6() == address.is_ipv6();
            entry.addresses.sort_by_key(same);
            entry.worked = false;
            entry.used =
                if entry.addresses.first().is_none_or(same) { entry.addresses.len() } else { 0 };
        }
    }
}

/// Applies `remote-random-hostname`, which puts twelve random hex digits before the name, so that no resolver has the
/// answer in its cache.
fn randomized(host: &str) -> String {
    // Without randomness, use the name as it is.
    let Ok(random) = crate::random::bytes::<6>() else { return host.to_owned() };
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}.{host}")
}

/// Resolves a target's name, with retries according to `retry`. With `random`, the name gets a random label each time.
///
/// If no answer arrives in time, known addresses are used. After a session that worked, the time limit is short,
/// because its addresses probably work again.
///
/// # Errors
/// Returns one sentence from the resolver.
pub async fn resolve(
    target: Target,
    retry: ResolveRetry,
    random: bool,
    resolver: OutsideResolver,
    known: CachedAddresses,
) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = target.host.parse::<IpAddr>() {
        return if matches(target.family, &address) {
            Ok(vec![SocketAddr::new(address, target.port)])
        } else {
            Err(format!(
                "RESOLVE: {} is not an {} address; choose another 'proto' or 'remote'",
                target.host,
                family_name(target.family)
            ))
        };
    }
    let started = adit_linux::clock::boottime();
    loop {
        let host = if random { randomized(&target.host) } else { target.host.clone() };
        let limit = match (known.addresses.is_empty(), known.worked) {
            (true, _) => WITHOUT_ADDRESSES,
            (false, true) => WITH_WORKING,
            (false, false) => WITH_ADDRESSES,
        };
        let found = timeout(limit, look_up(&host, &target, &resolver)).await;
        let problem = match found.unwrap_or_else(|_| Err("no answer in time".into())) {
            Ok(found) => {
                let fitting = found.into_iter().filter(|ip| matches(target.family, ip));
                let mut fitting: Vec<SocketAddr> =
                    fitting.map(|ip| SocketAddr::new(ip, target.port)).collect();
                if !fitting.is_empty() {
                    // Addresses that worked before come first; the others keep their order.
                    fitting.sort_by_key(|address| {
                        known.addresses.iter().position(|k| k == address).unwrap_or(usize::MAX)
                    });
                    return Ok(fitting);
                }
                format!("it has no {} address", family_name(target.family))
            }
            Err(e) => e,
        };
        let words =
            format!("RESOLVE: Cannot resolve host address: {host}:{} ({problem})", target.port);
        if !known.addresses.is_empty() {
            tracing::debug!("{words}: using the addresses from before");
            return Ok(known.addresses);
        }
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

/// Queries the system's resolver or, if traffic is redirected, the access network's servers.
async fn look_up(
    host: &str,
    target: &Target,
    resolver: &OutsideResolver,
) -> Result<Vec<IpAddr>, String> {
    if resolver.redirected {
        return resolver.look_up(host, target.family).await;
    }
    let problem = match tokio::net::lookup_host((host, target.port)).await {
        Ok(found) => return Ok(found.map(|address| address.ip()).collect()),
        Err(e) => e.to_string(),
    };
    // A kill switch from an earlier connection may block the system's resolver.
    match resolver.mark {
        Some(_) => resolver.look_up(host, target.family).await,
        None => Err(problem),
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
        assert_eq!(book.remembered(&target), CachedAddresses::default());
        assert_eq!(book.learn(&target, addresses.clone()), Some(addresses[0]));
        assert_eq!(book.next(&target), Some(addresses[1]));
        assert_eq!(book.next(&target), None);
        assert_eq!(book.remembered(&target).addresses, addresses);
        assert_eq!(book.learn(&target, Vec::new()), None);
        // The second address worked. The name is looked up soon, and the second address is tried first.
        book.worked(&target, addresses[1]);
        assert_eq!(book.next(&target), None);
        let known = book.remembered(&target);
        assert_eq!(
            known,
            CachedAddresses { addresses: vec![addresses[1], addresses[0]], worked: true }
        );
        assert!(!book.remembered(&target).worked);
    }

    #[test]
    fn a_persistent_address_is_dialled_again_without_a_look_up() {
        let target = target("persists.invalid", Family::Any);
        let addresses: Vec<SocketAddr> =
            ["192.0.2.1:1194", "192.0.2.2:1194"].map(|text| text.parse().unwrap()).into();
        let mut book = AddressBook::default().persistent(true);
        book.learn(&target, addresses.clone());
        book.worked(&target, addresses[1]);
        assert_eq!(book.next(&target), Some(addresses[1]));
        assert_eq!(book.next(&target), Some(addresses[0]), "it may be gone");
        assert_eq!(book.next(&target), None, "then the name is looked up");
    }

    #[test]
    fn names_that_are_looked_up_early_are_dialled_without_another_look_up() {
        let early = target("localhost", Family::V4);
        let missing = target("missing.invalid", Family::V4);
        let literal = target("192.0.2.9", Family::V4);
        let problems = AddressBook::preresolve(&[early.clone(), missing.clone(), literal.clone()]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("missing.invalid"), "{problems:?}");
        let mut book = AddressBook::saved_addresses();
        assert_eq!(book.next(&early), Some(([127, 0, 0, 1], early.port).into()));
        assert_eq!((book.next(&missing), book.next(&literal)), (None, None));
    }

    #[test]
    fn addresses_that_worked_are_first_for_a_client_that_begins_again() {
        let target = Target { host: "begins-again.invalid".into(), ..Target::default() };
        let addresses: Vec<SocketAddr> =
            ["192.0.2.1:1194", "192.0.2.2:1194"].map(|text| text.parse().unwrap()).into();
        let mut book = AddressBook::default();
        book.learn(&target, addresses.clone());
        assert_eq!(AddressBook::saved_addresses().remembered(&target), CachedAddresses::default());
        book.worked(&target, addresses[1]);
        book.save_addresses(&target);
        let mut again = AddressBook::saved_addresses();
        assert_eq!(again.next(&target), None, "the name is looked up first");
        let known = CachedAddresses { addresses: vec![addresses[1], addresses[0]], worked: true };
        assert_eq!(again.remembered(&target), known);
        // The table is bounded and forgets the oldest entries.
        for number in 0..200 {
            let other = Target { port: number, ..target.clone() };
            book.learn(&other, addresses.clone());
            book.save_addresses(&other);
        }
        assert!(AddressBook::saved_addresses().known.len() <= TARGET_LIMIT);
    }

    #[test]
    fn where_a_family_is_lost_the_other_one_is_next_whatever_worked() {
        let mut book = AddressBook::default();
        let both = target("vpn.example", Family::Any);
        let [v6, v4]: [SocketAddr; 2] =
            ["[2001:db8::1]:1194", "192.0.2.1:1194"].map(|address| address.parse().unwrap());
        book.learn(&both, vec![v6, v4]);
        book.worked(&both, v6);
        book.unreachable(&both, v6);
        assert_eq!(
            (book.next(&both), book.next(&both), book.next(&both)),
            (Some(v4), Some(v6), None)
        );
        // The name may have got addresses of the other family in the meantime.
        book.learn(&both, vec![v6]);
        book.worked(&both, v6);
        book.unreachable(&both, v6);
        assert_eq!(book.next(&both), None);
        assert_eq!(book.remembered(&both).addresses, [v6]);
    }

    async fn resolved(host: &str, family: Family) -> Result<Vec<SocketAddr>, String> {
        let known = CachedAddresses::default();
        resolve(target(host, family), ResolveRetry::Once, false, OutsideResolver::default(), known)
            .await
    }

    #[tokio::test]
    async fn a_literal_needs_no_resolver_but_must_fit_the_family() {
        let found = resolved("192.0.2.1", Family::Any).await.unwrap();
        assert_eq!(found, ["192.0.2.1:1194".parse().unwrap()]);
        let refused = resolved("192.0.2.1", Family::V6).await;
        assert!(refused.unwrap_err().contains("not an IPv6 address"));
    }

    #[tokio::test]
    async fn without_an_answer_the_addresses_from_before_are_used() {
        // A root without any server.
        let root = tempfile::tempdir().unwrap();
        let resolver = OutsideResolver::at(root.path());
        let addresses: Vec<SocketAddr> = vec!["192.0.2.1:1194".parse().unwrap()];
        let known = CachedAddresses { addresses: addresses.clone(), worked: true };
        let target = target("vpn.example", Family::Any);
        let retry = ResolveRetry::Forever;
        let found = resolve(target.clone(), retry, false, resolver.clone(), known.clone()).await;
        assert_eq!(found, Ok(addresses));
        let nothing = CachedAddresses::default();
        let none = resolve(target.clone(), ResolveRetry::Once, false, resolver.clone(), nothing);
        assert!(none.await.unwrap_err().contains("names no DNS server"));
        // A new answer takes precedence, and the address that worked becomes its first.
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let hosts = "192.0.2.8 vpn.example\n192.0.2.1 vpn.example\n";
        std::fs::write(root.path().join("etc/hosts"), hosts).unwrap();
        let found = resolve(target, retry, false, resolver, known).await.unwrap();
        let expected = ["192.0.2.1:1194", "192.0.2.8:1194"].map(|a| a.parse().unwrap());
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn a_random_name_is_another_one_each_time_and_an_address_stays() {
        let (one, other) = (randomized("vpn.example"), randomized("vpn.example"));
        assert_ne!(one, other);
        let (digits, rest) = one.split_once('.').unwrap();
        assert!(digits.len() == 12 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{one}");
        assert_eq!(rest, "vpn.example");
        let address = target("192.0.2.1", Family::Any);
        let (resolver, known) = (OutsideResolver::default(), CachedAddresses::default());
        let found = resolve(address, ResolveRetry::Once, true, resolver, known).await.unwrap();
        assert_eq!(found, ["192.0.2.1:1194".parse().unwrap()]);
    }
}
