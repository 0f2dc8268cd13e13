//! What control publishes and workers read.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use adit_engine::{Link, PeerId, SocketId};
use adit_linux::udp::UdpSocket;
use arc_swap::ArcSwap;

use crate::peer::Peer;
use crate::routes::Routes;

/// Peer-ids are 24 bits wide; the highest means "none".
pub(crate) const MAX_PEER_ID: u32 = 0x00ff_fffe;

const PAGE: usize = 256;

/// [`PAGE`] places.
type Page = Vec<Option<Arc<Peer>>>;

/// Peers by id, in pages, so that adding one copies a page and not the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerTable {
    pages: Vec<Option<Arc<Page>>>,
    /// The peer added last: a client's server.
    latest: Option<Arc<Peer>>,
}

impl PeerTable {
    #[inline]
    pub fn get(&self, id: PeerId) -> Option<&Arc<Peer>> {
        let at = id.0 as usize;
        self.pages.get(at / PAGE)?.as_ref()?.get(at % PAGE)?.as_ref()
    }

    pub fn latest(&self) -> Option<&Arc<Peer>> {
        self.latest.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.pages.iter().flatten().flat_map(|page| page.iter().flatten())
    }

    fn insert(&mut self, peer: Arc<Peer>) {
        let at = peer.id.0 as usize;
        if self.pages.len() <= at / PAGE {
            self.pages.resize(at / PAGE + 1, None);
        }
        if let Some(page) = self.pages.get_mut(at / PAGE) {
            let page = Arc::make_mut(page.get_or_insert_with(|| Arc::new(vec![None; PAGE])));
            if let Some(slot) = page.get_mut(at % PAGE) {
                *slot = Some(Arc::clone(&peer));
            }
        }
        self.latest = Some(peer);
    }

    fn remove(&mut self, id: PeerId) -> Option<Arc<Peer>> {
        let at = id.0 as usize;
        let page = Arc::make_mut(self.pages.get_mut(at / PAGE)?.as_mut()?);
        let peer = page.get_mut(at % PAGE)?.take();
        if self.latest.as_ref().is_some_and(|latest| latest.id == id) {
            self.latest = self.iter().last().cloned();
        }
        peer
    }
}

/// The sockets of the plane.
pub(crate) type Sockets = Vec<(SocketId, Arc<UdpSocket>)>;

pub(crate) fn find_socket(sockets: &Sockets, id: SocketId) -> Option<&Arc<UdpSocket>> {
    sockets.iter().find(|(other, _)| *other == id).map(|(_, socket)| socket)
}

/// Peers by address, for packets that carry no peer-id and so that no peer floats onto another.
type Addresses = HashMap<(SocketId, SocketAddr), PeerId>;

/// Everything that is looked up.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub peers: ArcSwap<PeerTable>,
    pub routes: ArcSwap<Routes>,
    pub sockets: ArcSwap<Sockets>,
    /// Read once per train of DATA_V1 packets, per control packet and per float.
    addresses: RwLock<Addresses>,
    /// Links that proved their address. Read per control packet only.
    admitted: RwLock<HashSet<Link>>,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn address(link: &Link) -> Option<(SocketId, SocketAddr)> {
    Some((link.socket()?, link.remote()))
}

impl Tables {
    pub fn add_peer(&self, peer: Peer) {
        let peer = Arc::new(peer);
        if let Some(former) = self.peers.load().get(peer.id) {
            self.release(&former.settings.load().link, peer.id);
        }
        self.claim(&peer.settings.load().link, peer.id);
        self.peers.rcu(|table| {
            let mut table = PeerTable::clone(table);
            table.insert(Arc::clone(&peer));
            table
        });
    }

    pub fn remove_peer(&self, id: PeerId) -> Option<Arc<Peer>> {
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
        self.release(&peer.settings.load().link, id);
        Some(peer)
    }

    /// Notes the address of a peer. A newer session from the same address takes it over.
    fn claim(&self, link: &Link, id: PeerId) {
        if let Some(address) = address(link) {
            write(&self.addresses).insert(address, id);
        }
    }

    fn release(&self, link: &Link, id: PeerId) {
        if let Some(address) = address(link) {
            let mut addresses = write(&self.addresses);
            if addresses.get(&address) == Some(&id) {
                addresses.remove(&address);
            }
        }
    }

    /// Control moves a peer.
    pub fn set_link(&self, peer: &Peer, link: Link) {
        let old = peer.settings.load().link;
        self.release(&old, peer.id);
        self.claim(&link, peer.id);
        peer.update(|spec| spec.link = link);
    }

    /// A peer moved by itself; `false` if the new address belongs to another peer.
    pub fn float(&self, peer: &Peer, link: Link) -> bool {
        let Some(new) = address(&link) else { return false };
        let old = peer.settings.load().link;
        {
            let mut addresses = write(&self.addresses);
            if addresses.get(&new).is_some_and(|owner| *owner != peer.id) {
                return false;
            }
            if let Some(old) = address(&old)
                && addresses.get(&old) == Some(&peer.id)
            {
                addresses.remove(&old);
            }
            addresses.insert(new, peer.id);
        }
        peer.update(|spec| spec.link = link);
        true
    }

    pub fn by_address(&self, link: &Link) -> Option<PeerId> {
        read(&self.addresses).get(&address(link)?).copied()
    }

    /// Whether control packets of this link are a known peer's.
    pub fn is_known(&self, link: &Link) -> bool {
        read(&self.admitted).contains(link) || self.by_address(link).is_some()
    }

    pub fn admit(&self, link: Link) {
        write(&self.admitted).insert(link);
    }

    pub fn dismiss(&self, link: &Link) {
        write(&self.admitted).remove(link);
    }
}
