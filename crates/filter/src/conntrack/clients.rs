//! The mapping of addresses and tunnel peers to clients. A client with many addresses has one share of the table, and
//! flows of different clients are different flows, whatever their addresses.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use arc_swap::ArcSwap;

use crate::compile::IpRange;

/// A client's number; 0 is none.
pub(crate) type Client = u16;

/// The last number. All further clients share it and count as one client.
const SHARED: Client = Client::MAX;

/// The number of peers in a page of [`Peers`].
const PAGE: u32 = 64;
/// The exclusive bound of peer numbers: peer ids have 24 bits.
const MAX_PEERS: u32 = 1 << 24;

/// The clients of addresses and peers. The control plane changes them; workers look up an address once for each new
/// flow, and peers with each packet.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// Whether any address belongs to a client: on a bridge none does, and lookups are skipped.
    some: AtomicBool,
    known: RwLock<ClientNumbers>,
    peers: Arc<ArcSwap<Peers>>,
}

/// The clients of peers by the peer's number, in pages: a change copies one page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(Vec<Option<Arc<[Client; PAGE as usize]>>>);

#[derive(Debug, Default)]
struct ClientNumbers {
    /// The client of each network, by address and prefix length.
    prefixes: HashMap<(IpAddr, u8), Client>,
    /// The number of networks of each prefix length, for IPv4 and IPv6.
    lengths: [BTreeMap<u8, usize>; 2],
    numbers: HashMap<Arc<str>, Client>,
    /// The names of clients by number, from 1 on.
    names: Vec<Option<Arc<str>>>,
    /// Unused numbers below the highest.
    free: Vec<Client>,
}

/// Numbers that were taken from disconnected clients. The flows of these clients must end.
pub(crate) type Retired = HashSet<Client>;

/// Returns the network that contains an address.
fn network(address: IpAddr, length: u8) -> IpAddr {
    IpRange::prefix(address, length).first
}

impl Clients {
    /// Returns the number of a client; 0 for none. It stays the same as long as the client is remembered, so a client
    /// that reconnects continues its flows. The flows of forgotten clients must end before their number is reused.
    #[must_use]
    pub(crate) fn number_of(&self, client: Option<&str>) -> (Client, Retired) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        client.map_or_else(Default::default, |client| known.number_of(client, &self.peers.load()))
    }

    /// From now on, assigns this network to the client with this number; 0 removes the assignment.
    pub(crate) fn set_network(&self, address: IpAddr, length: u8, client: Client) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let place = (network(address, length), length);
        let ClientNumbers { prefixes, lengths: [v4, v6], .. } = &mut *known;
        let lengths = if address.is_ipv4() { v4 } else { v6 };
        let count = lengths.entry(length).or_insert(0);
        *count = match client {
            0 => count.saturating_sub(prefixes.remove(&place).is_some().into()),
            client => count.saturating_add(prefixes.insert(place, client).is_none().into()),
        };
        if *count == 0 {
            lengths.remove(&length);
        }
        self.some.store(!known.prefixes.is_empty(), Ordering::Relaxed);
    }

    /// From now on, assigns this tunnel peer to the client with this number; 0 removes the assignment.
    pub(crate) fn set_peer(&self, peer: u32, client: Client) {
        let _known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut peers = Peers::clone(&self.peers.load());
        peers.set(peer, client);
        self.peers.store(Arc::new(peers));
    }

    /// Returns the clients of peers, which may be kept in an [`arc_swap::Cache`].
    pub(crate) fn peers(&self) -> Arc<ArcSwap<Peers>> {
        Arc::clone(&self.peers)
    }

    /// Returns the client of the smallest network that contains the address.
    pub(super) fn of(&self, address: impl FnOnce() -> IpAddr) -> Client {
        if !self.some.load(Ordering::Relaxed) {
            return 0;
        }
        let address = address();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let [v4, v6] = &known.lengths;
        let lengths = if address.is_ipv4() { v4 } else { v6 };
        let mut found = lengths.keys().rev().filter_map(|length| {
            known.prefixes.get(&(network(address, *length), *length)).copied()
        });
        found.next().unwrap_or(0)
    }

    /// Returns the number of a known client.
    pub(crate) fn number(&self, client: &str) -> Option<Client> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.numbers.get(client).copied()
    }

    /// Returns the name of the client with this number; `None` for 0 and for clients that share a number.
    pub(crate) fn name(&self, number: Client) -> Option<Arc<str>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.names.get(usize::from(number.checked_sub(1)?))?.clone()
    }
}

impl Peers {
    /// Returns the client of a peer; 0 for none.
    #[inline]
    pub(crate) fn client(&self, peer: Option<u32>) -> Client {
        let Some(peer) = peer else { return 0 };
        let page = self.0.get((peer / PAGE) as usize).and_then(Option::as_ref);
        page.and_then(|page| page.get((peer % PAGE) as usize)).copied().unwrap_or(0)
    }

    fn set(&mut self, peer: u32, client: Client) {
        if peer >= MAX_PEERS {
            return;
        }
        let at = (peer / PAGE) as usize;
        if self.0.len() <= at {
            self.0.resize(at.saturating_add(1), None);
        }
        let Some(slot) = self.0.get_mut(at) else { return };
        let page = Arc::make_mut(slot.get_or_insert_with(|| Arc::new([0; PAGE as usize])));
        if let Some(place) = page.get_mut((peer % PAGE) as usize) {
            *place = client;
        }
        if page.iter().all(|client| *client == 0) {
            *slot = None;
            let used =
                self.0.iter().rposition(Option::is_some).map_or(0, |last| last.saturating_add(1));
            self.0.truncate(used);
            self.0.shrink_to_fit();
        }
    }
}

impl ClientNumbers {
    fn number_of(&mut self, client: &str, peers: &Peers) -> (Client, Retired) {
        let mut retired = Retired::new();
        if let Some(number) = self.numbers.get(client) {
            return (*number, retired);
        }
        if self.free.is_empty() && self.names.len() >= usize::from(SHARED).saturating_sub(1) {
            retired = self.retire(peers);
        }
        let number = self.free.pop().or_else(|| {
            let next = Client::try_from(self.names.len().saturating_add(1)).ok()?;
            (next < SHARED).then(|| {
                self.names.push(None);
                next
            })
        });
        let Some(number) = number else { return (SHARED, retired) };
        let name: Arc<str> = client.into();
        if let Some(place) = self.names.get_mut(usize::from(number).saturating_sub(1)) {
            *place = Some(Arc::clone(&name));
        }
        self.numbers.insert(name, number);
        (number, retired)
    }

    /// Forgets the clients that have neither a peer nor an address.
    fn retire(&mut self, peers: &Peers) -> Retired {
        let of_peers = peers.0.iter().flatten().flat_map(|page| page.iter());
        let used: Retired = of_peers.chain(self.prefixes.values()).copied().collect();
        let retired: Retired =
            self.numbers.values().filter(|number| !used.contains(number)).copied().collect();
        self.numbers.retain(|_, number| !retired.contains(number));
        for number in &retired {
            if let Some(name) = self.names.get_mut(usize::from(*number).saturating_sub(1)) {
                *name = None;
            }
        }
        self.free.extend(&retired);
        retired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of a client, and checks that no client is forgotten for it.
    fn number(clients: &Clients, client: Option<&str>) -> Client {
        let (number, retired) = clients.number_of(client);
        assert!(retired.is_empty());
        number
    }

    #[test]
    fn the_smallest_network_counts_and_numbers_are_kept() {
        let clients = Clients::default();
        let of = |text: &str| clients.of(|| text.parse().unwrap());
        let set = |text: &str, length, client| {
            clients.set_network(text.parse().unwrap(), length, number(&clients, client));
        };
        assert_eq!(of("10.8.0.2"), 0);
        set("10.8.0.2", 32, Some("alice"));
        set("10.9.0.0", 16, Some("alice"));
        set("fd00::2", 128, Some("alice"));
        set("10.9.1.0", 24, Some("bob"));
        let alice = of("10.8.0.2");
        assert!(alice != 0 && [of("10.9.0.1"), of("fd00::2")] == [alice; 2]);
        assert!(of("10.9.1.7") != alice && of("10.9.1.7") != 0);
        assert_eq!([of("10.8.0.3"), of("fd00::3")], [0; 2]);
        set("10.9.1.0", 24, None);
        assert_eq!(of("10.9.1.7"), alice);
        for (text, length) in [("10.8.0.2", 32), ("10.9.0.0", 16), ("fd00::2", 128)] {
            set(text, length, None);
        }
        assert_eq!(of("10.9.0.1"), 0);
        assert!(clients.known.read().unwrap().lengths.iter().all(BTreeMap::is_empty));
        set("10.8.0.9", 32, Some("alice"));
        assert_eq!(of("10.8.0.9"), alice);
        set("10.8.0.9", 32, Some("alice"));
        set("10.8.0.9", 32, None);
        assert!(
            clients.known.read().unwrap().lengths.iter().all(BTreeMap::is_empty),
            "counted once"
        );
    }

    #[test]
    fn peers_of_a_client_share_its_number_and_empty_pages_are_freed() {
        let clients = Clients::default();
        let of = |peer| clients.peers.load().client(Some(peer));
        let set = |peer, client| clients.set_peer(peer, number(&clients, client));
        assert_eq!((of(0), of(70_000), clients.peers.load().client(None)), (0, 0, 0));
        set(0, Some("alice"));
        set(70_000, Some("alice"));
        set(63, Some("bob"));
        assert!(of(0) != 0 && of(0) == of(70_000) && of(63) != of(0) && of(63) != 0 && of(1) == 0);
        assert_eq!(clients.number("alice"), Some(of(0)));
        assert_eq!(clients.name(of(63)).as_deref(), Some("bob"));
        let alice = of(0);
        for peer in [0, 63, 70_000] {
            set(peer, None);
        }
        assert!(clients.peers.load().0.is_empty());
        set(5, Some("alice"));
        assert_eq!((of(5), clients.name(0)), (alice, None));
    }

    #[test]
    fn numbers_are_taken_from_clients_that_are_gone_and_from_no_other() {
        let clients = Clients::default();
        let all = u32::from(SHARED) - 1;
        let name = |number: u32| format!("client {number}");
        let address = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        for client in 0..all {
            clients.set_network(address(client), 32, number(&clients, Some(&name(client))));
        }
        // All clients are connected: another one gets the shared number.
        assert_eq!(number(&clients, Some("late")), SHARED);
        assert_eq!((clients.number("late"), clients.name(SHARED)), (None, None));
        let (first, second) =
            (clients.number(&name(1)).unwrap(), clients.number(&name(2)).unwrap());
        clients.set_peer(2, second);
        clients.set_network(address(1), 32, 0);
        // The peer of this client remains.
        clients.set_network(address(2), 32, 0);
        assert_eq!(clients.number_of(Some("late")), (first, Retired::from([first])));
        assert_eq!(number(&clients, Some("late")), first);
        assert_eq!((clients.number(&name(1)), clients.number(&name(2))), (None, Some(second)));
    }
}
