//! The snapshots that the control plane publishes and workers read.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use adit_engine::{Link, PeerId, SocketId};
use arc_swap::{ArcSwap, Guard};
use ipnet::IpNet;

use crate::channels::Slot;
use crate::format::Format;
use crate::peer::Peer;
use crate::routes::Routes;
use crate::sockets::Sockets;
use crate::splice::Splices;
use crate::stream::Streams;
use crossbeam_utils::CachePadded;

/// The highest peer id. It bounds the table of peers.
pub(crate) const MAX_PEER_ID: u32 = 0x00ff_fffe;

/// The number of peers in a page, so a table of a thousand peers has about as many pages.
const PAGE: usize = 32;

/// [`PAGE`] slots.
type Page<F> = Vec<Option<Slot<F>>>;

/// Peers by id, in pages, so that adding one copies a page and not the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerTable<F: Format> {
    pages: Vec<Option<Arc<Page<F>>>>,
    /// The peer added last, further channels excluded: a client's server.
    latest: Option<Arc<Peer<F>>>,
}

impl<F: Format> PeerTable<F> {
    #[inline]
    pub(crate) fn get(&self, id: PeerId) -> Option<&Arc<Peer<F>>> {
        self.slot(id).map(|slot| &slot.peer)
    }

    /// Returns a peer that is a first channel, with all channels to its remote end.
    #[inline]
    pub(crate) fn slot(&self, id: PeerId) -> Option<&Slot<F>> {
        let at = id.0 as usize;
        self.pages.get(at / PAGE)?.as_ref()?.get(at % PAGE)?.as_ref()
    }

    /// Changes a slot of the table that exists.
    fn change_slot(&mut self, id: PeerId, change: impl FnOnce(&mut Slot<F>)) {
        let at = id.0 as usize;
        if self.slot(id).is_some()
            && let Some(Some(page)) = self.pages.get_mut(at / PAGE)
            && let Some(Some(slot)) = Arc::make_mut(page).get_mut(at % PAGE)
        {
            change(slot);
        }
    }

    pub(crate) fn latest(&self) -> Option<&Arc<Peer<F>>> {
        self.latest.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Peer<F>>> {
        self.pages.iter().flatten().flat_map(|page| page.iter().flatten()).map(|slot| &slot.peer)
    }

    /// Returns the first channel to each remote end.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &Arc<Peer<F>>> {
        self.iter().filter(|peer| peer.is_first())
    }

    fn insert(&mut self, peer: Arc<Peer<F>>) {
        let at = peer.id.0 as usize;
        if self.pages.len() <= at / PAGE {
            self.pages.resize(at / PAGE + 1, None);
        }
        if let Some(page) = self.pages.get_mut(at / PAGE) {
            let page = Arc::make_mut(page.get_or_insert_with(|| Arc::new(vec![None; PAGE])));
            if let Some(slot) = page.get_mut(at % PAGE) {
                *slot = Some(Slot::new(Arc::clone(&peer)));
            }
        }
        if peer.is_first() {
            self.latest = Some(peer);
        } else {
            self.change_slot(peer.first, |slot| slot.join(peer));
        }
    }

    fn remove(&mut self, id: PeerId) -> Option<Arc<Peer<F>>> {
        let at = id.0 as usize;
        let slot = self.pages.get_mut(at / PAGE)?;
        let page = Arc::make_mut(slot.as_mut()?);
        let peer = page.get_mut(at % PAGE)?.take()?.peer;
        if page.iter().all(Option::is_none) {
            // Ids are reused only after all others were used, so an empty page stays empty for a long time.
            *slot = None;
            let used = self.pages.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            self.pages.truncate(used);
            self.pages.shrink_to_fit();
        }
        if self.latest.as_ref().is_some_and(|latest| latest.id == id) {
            self.latest = self.ends().last().cloned();
        }
        if !peer.is_first() {
            self.change_slot(peer.first, |slot| slot.leave(&peer));
        }
        Some(peer)
    }
}

/// The source address of one peer's packets.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
enum Address {
    Datagram(SocketId, SocketAddr),
    Stream(u64),
}

/// Peers and routes, and their [`Tables::version`].
pub(crate) type Snapshot<F> = (u64, Guard<Arc<PeerTable<F>>>, Guard<Arc<Routes>>);

/// Peers by address, for packets that carry no peer-id, and to prevent a peer from floating to another's address.
type Addresses = HashMap<Address, PeerId>;

/// All tables that are looked up on the data path.
#[derive(Debug, Default)]
pub(crate) struct Tables<F: Format> {
    pub peers: ArcSwap<PeerTable<F>>,
    pub routes: ArcSwap<Routes>,
    /// The number of times that peers or routes were published.
    version: AtomicU64,
    pub sockets: ArcSwap<Sockets>,
    pub streams: Streams,
    pub splices: Splices,
    /// Read once per train of packets without a peer-id, per control packet and per float.
    addresses: CachePadded<RwLock<Addresses>>,
    /// Links whose address is proven. Read per control packet only.
    admitted: CachePadded<RwLock<HashSet<Link>>>,
    /// Whether a key without headers was ever installed. If so, the first byte of a datagram need not be an opcode.
    /// Read once per received buffer.
    pub has_headerless_keys: AtomicBool,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn address(link: &Link) -> Option<Address> {
    match link.socket() {
        Some(socket) => Some(Address::Datagram(socket, link.remote())),
        None => link.stream_id().map(Address::Stream),
    }
}

fn release_in(addresses: &mut Addresses, link: &Link, id: PeerId) {
    if let Some(address) = address(link)
        && addresses.get(&address) == Some(&id)
    {
        addresses.remove(&address);
    }
}

impl<F: Format> Tables<F> {
    /// Adds a peer, replacing any with the same id. Returns false if its remote end has too many channels already.
    pub(crate) fn add_peer(&self, peer: Peer<F>) -> bool {
        let peer = Arc::new(peer);
        let peers = self.peers.load();
        if peers.slot(peer.first).is_some_and(|first| !first.has_room_for(&peer)) {
            return false;
        }
        if let Some(former) = peers.get(peer.id) {
            self.release(former);
        }
        if peer.is_first() {
            self.claim(&peer.settings.load().link, peer.id);
        }
        self.peers.rcu(|table| {
            let mut table = PeerTable::clone(table);
            table.insert(Arc::clone(&peer));
            table
        });
        self.published();
        true
    }

    pub(crate) fn remove_peer(&self, id: PeerId) -> Option<Arc<Peer<F>>> {
        let peer = self.peers.load().get(id).cloned()?;
        self.peers.rcu(|table| {
            let mut table = PeerTable::clone(table);
            table.remove(id);
            table
        });
        self.routes.rcu(|routes| {
            let mut routes = Routes::clone(routes);
            routes.remove(id);
            routes
        });
        self.published();
        self.release(&peer);
        self.splices.remove_peer(id);
        Some(peer)
    }

    /// Replaces the prefixes that a peer owns.
    pub(crate) fn set_routes(&self, id: PeerId, prefixes: &[IpNet]) {
        self.routes.rcu(|routes| {
            let mut routes = Routes::clone(routes);
            routes.set(id, prefixes.to_vec());
            routes
        });
        self.published();
    }

    fn published(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that changes whenever peers or routes do.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the present peers and routes, with their [`Self::version`] or a slightly older one.
    pub(crate) fn current(&self) -> Snapshot<F> {
        let version = self.version();
        (version, self.peers.load(), self.routes.load())
    }

    /// Records the address of a peer. A newer session from the same address takes it over.
    fn claim(&self, link: &Link, id: PeerId) {
        if let Some(address) = address(link) {
            write(&self.addresses).insert(address, id);
        }
    }

    /// Releases a peer's address. The peer has left the table or is about to be replaced.
    fn release(&self, peer: &Peer<F>) {
        let mut addresses = write(&self.addresses);
        // Read under the lock, because a worker may be moving the peer.
        release_in(&mut addresses, &peer.settings.load().link, peer.id);
    }

    /// Sets the link of a peer at the control plane's request. A further channel shares the first one's address.
    pub(crate) fn set_link(&self, peer: &Peer<F>, link: Link) {
        if !peer.is_first() {
            return self.share_link(peer, link);
        }
        let mut addresses = write(&self.addresses);
        release_in(&mut addresses, &peer.settings.load().link, peer.id);
        if let Some(address) = address(&link) {
            addresses.insert(address, peer.id);
        }
        peer.update(|spec| spec.link = link);
    }

    /// Sets the link of a peer to that of its relay or of its first channel, which remains the owner of the address.
    pub(crate) fn share_link(&self, peer: &Peer<F>, link: Link) {
        let mut addresses = write(&self.addresses);
        release_in(&mut addresses, &peer.settings.load().link, peer.id);
        peer.update(|spec| spec.link = link);
    }

    /// Moves a peer that floated; returns `false` if the new address belongs to another peer, or if the peer was
    /// removed meanwhile. `newest` returns whether the packet that moved the peer is still its newest; it is called
    /// when no other worker can move the peer. `tell` is called before one can again, so moves are reported in order.
    pub(crate) fn float(
        &self,
        peer: &Peer<F>,
        link: Link,
        newest: impl FnOnce() -> bool,
        tell: impl FnOnce(),
    ) -> bool {
        let Some(new) = address(&link) else { return false };
        let mut addresses = write(&self.addresses);
        if !newest() {
            return false;
        }
        if addresses.get(&new).is_some_and(|owner| *owner != peer.first) {
            return false;
        }
        // A removal takes the peer out of the table before it waits for this lock.
        if !self.peers.load().get(peer.id).is_some_and(|known| std::ptr::eq(&**known, peer)) {
            return false;
        }
        if peer.is_first() {
            release_in(&mut addresses, &peer.settings.load().link, peer.id);
            addresses.insert(new, peer.id);
        }
        peer.update(|spec| spec.link = link);
        tell();
        true
    }

    pub(crate) fn by_address(&self, link: &Link) -> Option<PeerId> {
        read(&self.addresses).get(&address(link)?).copied()
    }

    /// Shrinks the tables to their contents.
    pub(crate) fn release_memory(&self) {
        write(&self.addresses).shrink_to_fit();
        write(&self.admitted).shrink_to_fit();
        self.streams.release_memory();
        self.routes.rcu(|routes| {
            let mut routes = Routes::clone(routes);
            routes.release_memory();
            routes
        });
    }

    /// Returns whether control packets of this link belong to a known peer.
    pub(crate) fn is_known(&self, link: &Link) -> bool {
        self.is_admitted(link) || self.by_address(link).is_some()
    }

    /// Returns whether the control plane admitted this link, which then has at least a handshake.
    pub(crate) fn is_admitted(&self, link: &Link) -> bool {
        read(&self.admitted).contains(link)
    }

    pub(crate) fn admit(&self, link: Link) {
        write(&self.admitted).insert(link);
    }

    pub(crate) fn dismiss(&self, link: &Link) {
        write(&self.admitted).remove(link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_engine::Instant;
    use adit_engine::command::PeerSpec;

    use crate::trivial::Trivial;

    fn link(port: u16) -> Link {
        Link::datagram(SocketId(0), None, ([192, 0, 2, 1], port).into())
    }

    fn peer(id: u32, link: Link) -> Peer<Trivial> {
        let spec = PeerSpec { layout: id as u16, ..PeerSpec::plain(link) };
        Peer::new(PeerId(id), spec, Instant::from_nanos(0))
    }

    #[test]
    fn pages_of_peers_that_have_gone_take_no_memory() {
        let tables = Tables::<Trivial>::default();
        let pages = || tables.peers.load().pages.iter().flatten().count();
        for id in 0..1000 {
            tables.add_peer(peer(id, link(1)));
            tables.remove_peer(PeerId(id)).unwrap();
            assert!(tables.peers.load().get(PeerId(id)).is_none());
            assert_eq!(pages(), 0);
        }
        tables.add_peer(peer(1, link(1)));
        tables.add_peer(peer(2, link(2)));
        tables.remove_peer(PeerId(1)).unwrap();
        assert!(tables.peers.load().get(PeerId(2)).is_some());
        assert_eq!(pages(), 1);
        // Empty slots take no pages either, however many there were before.
        tables.add_peer(peer(70_000, link(3)));
        tables.remove_peer(PeerId(70_000)).unwrap();
        assert_eq!(tables.peers.load().pages.len(), 1);
        tables.remove_peer(PeerId(2)).unwrap();
        assert_eq!(tables.peers.load().pages.len(), 0);
    }

    #[test]
    fn each_change_of_peers_and_routes_is_another_edition() {
        let tables = Tables::<Trivial>::default();
        let mut versions = vec![tables.version()];
        tables.add_peer(peer(1, link(1)));
        versions.push(tables.version());
        tables.set_routes(PeerId(1), &["10.8.0.2/32".parse().unwrap()]);
        versions.push(tables.version());
        tables.remove_peer(PeerId(1)).unwrap();
        versions.push(tables.version());
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        assert_eq!(tables.current().0, tables.version());
    }

    // A worker may still hold a peer that the control plane has removed.
    #[test]
    fn a_removed_peer_takes_no_address() {
        let tables = Tables::<Trivial>::default();
        tables.add_peer(peer(1, link(1)));
        let removed = tables.remove_peer(PeerId(1)).unwrap();
        assert!(!tables.float(&removed, link(2), || true, || {}));
        assert_eq!(tables.by_address(&link(2)), None);
        // Nor can the removed peer take an address for a newer peer with its id.
        tables.add_peer(peer(1, link(3)));
        assert!(!tables.float(&removed, link(2), || true, || {}));
        assert_eq!(tables.by_address(&link(3)), Some(PeerId(1)));
    }

    #[test]
    fn a_peer_has_one_address_however_often_it_floats() {
        let tables = Tables::<Trivial>::default();
        tables.add_peer(peer(1, link(1)));
        let moving = tables.peers.load().get(PeerId(1)).cloned().unwrap();
        for port in [2, 3, 2, 1] {
            assert!(tables.float(&moving, link(port), || true, || {}));
        }
        assert_eq!(read(&tables.addresses).len(), 1);
        tables.add_peer(peer(2, link(2)));
        assert!(!tables.float(&moving, link(2), || true, || {}));
        tables.remove_peer(PeerId(1));
        assert_eq!(read(&tables.addresses).len(), 1);
    }

    // At the same time, another worker had a packet under a later key, from another address.
    #[test]
    fn a_packet_that_is_the_newest_no_longer_moves_no_peer() {
        let tables = Tables::<Trivial>::default();
        tables.add_peer(peer(1, link(1)));
        let moving = tables.peers.load().get(PeerId(1)).cloned().unwrap();
        assert!(tables.float(&moving, link(2), || true, || {}));
        assert!(!tables.float(&moving, link(1), || false, || {}));
        assert_eq!(tables.by_address(&link(2)), Some(PeerId(1)));
        assert_eq!(tables.by_address(&link(1)), None);
    }
}
