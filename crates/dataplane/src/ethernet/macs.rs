//! The table of stations. It maps each, in its VLAN, to the peer in front of it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use adit_engine::{Instant, PeerId, VlanId};
use adit_wire::ethernet::Mac;

use crate::stats::DropReason;

/// The maximum number of stations behind one peer (the default of `max-routes-per-client`).
pub const MACS_PER_PEER: usize = 256;
/// The maximum number of stations.
pub const MAX_MACS: usize = 65_536;
/// A station that was silent for this long is replaced when a full table needs room: the age at which bridges forget.
const IDLE: Duration = Duration::from_secs(300);
/// The minimum interval between searches for silent stations, among all stations or those of one peer. A sender of
/// made-up addresses already causes a lookup per frame; it must not also cause the table to be locked and searched each
/// time.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// A station in its VLAN. The same address in another VLAN is another station.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StationId(u64);

impl StationId {
    pub(crate) fn new(vlan: Option<VlanId>, Mac([a, b, c, d, e, f]): Mac) -> Self {
        let [high, low] = vlan.map_or(0, VlanId::get).to_be_bytes();
        Self(u64::from_be_bytes([high, low, a, b, c, d, e, f]))
    }

    pub(crate) fn mac(self) -> Mac {
        let [_, _, a, b, c, d, e, f] = self.0.to_be_bytes();
        Mac([a, b, c, d, e, f])
    }
}

/// The table of stations. It is read once per flow and burst, and written when a station is new or has moved.
#[derive(Debug)]
pub(crate) struct Macs {
    stations: RwLock<Stations>,
    /// The device's own address.
    own: OnceLock<Mac>,
    per_peer: AtomicUsize,
    /// Stations silent for this many nanoseconds are forgotten; 0: only when others need the room.
    age: AtomicU64,
    /// The time of the next search for expired stations, in nanoseconds.
    next_expiry: AtomicU64,
    learnt: AtomicU64,
    moved: AtomicU64,
}

#[derive(Debug, Default)]
struct Stations {
    by_id: HashMap<StationId, Station>,
    /// The stations of each peer.
    owned: HashMap<PeerId, PeerMacs>,
    searched: Option<Instant>,
}

#[derive(Debug, Default)]
struct PeerMacs {
    stations: Vec<StationId>,
    /// The time when a search among them last found nothing to remove.
    searched: Option<Instant>,
}

#[derive(Debug)]
struct Station {
    peer: PeerId,
    /// The time of the station's last frame, in nanoseconds.
    heard: AtomicU64,
}

/// Counters of the table of stations.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MacTotals {
    /// The number of stations known now.
    pub known: u64,
    /// The number of stations learnt since the start.
    pub learnt: u64,
    /// The number of times that a station moved from one peer to another.
    pub moved: u64,
}

impl Default for Macs {
    fn default() -> Self {
        Self {
            stations: RwLock::default(),
            own: OnceLock::new(),
            per_peer: AtomicUsize::new(MACS_PER_PEER),
            age: AtomicU64::new(0),
            next_expiry: AtomicU64::new(0),
            learnt: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        }
    }
}

impl Macs {
    /// Sets the address that no peer can have.
    pub(crate) fn set_own(&self, mac: Mac) {
        // Set once, before any worker starts.
        let _ = self.own.set(mac);
    }

    /// Sets the limits of `max-routes-per-client` and `stale-routes-check`.
    pub(crate) fn limit(&self, per_peer: usize, age: Option<Duration>) {
        self.per_peer.store(per_peer.min(MAX_MACS), Relaxed);
        let nanos = age.map_or(0, |age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        self.age.store(nanos, Relaxed);
    }

    /// Returns the peer that a station is behind.
    pub(crate) fn owner(&self, id: StationId) -> Option<PeerId> {
        if id.mac().is_group() {
            return None;
        }
        self.read().by_id.get(&id).map(|station| station.peer)
    }

    /// Records that a peer has sent a frame from its station. Returns false if the station is not behind this peer.
    pub(crate) fn heard(&self, id: StationId, peer: PeerId, now: Instant) -> bool {
        let stations = self.read();
        let station = stations.by_id.get(&id).filter(|station| station.peer == peer);
        station.inspect(|station| station.heard.store(now.as_nanos(), Relaxed)).is_some()
    }

    /// Returns whether a peer's station may have this address.
    pub(crate) fn is_permitted(&self, mac: Mac) -> bool {
        mac.is_station() && self.own.get() != Some(&mac)
    }

    /// Records that a peer has sent a frame from this station, which is behind it from now on. `alive` returns whether
    /// the peer is still in the table of peers and may send frames: the control plane changes that before it removes
    /// the peer from this table.
    pub(crate) fn claim(
        &self,
        id: StationId,
        peer: PeerId,
        now: Instant,
        alive: impl Fn() -> bool,
    ) -> Result<(), DropReason> {
        let stations = self.read();
        if let Some(station) = stations.by_id.get(&id)
            && station.peer == peer
        {
            station.heard.store(now.as_nanos(), Relaxed);
            return Ok(());
        }
        if self.is_full(&stations, id, peer, now) {
            return Err(DropReason::MacsFull);
        }
        drop(stations);
        if !self.is_permitted(id.mac()) {
            return Err(DropReason::SourceSpoofed);
        }
        let mut stations = self.write();
        if !alive() {
            return Err(DropReason::UnknownPeer);
        }
        self.make_room(&mut stations, id, peer, now)?;
        let heard = AtomicU64::new(now.as_nanos());
        match stations.by_id.insert(id, Station { peer, heard }) {
            Some(former) if former.peer == peer => return Ok(()),
            Some(former) => {
                stations.remove_owner(id, former.peer);
                self.moved.fetch_add(1, Relaxed);
            }
            None => {
                self.learnt.fetch_add(1, Relaxed);
            }
        }
        stations.owned.entry(peer).or_default().stations.push(id);
        Ok(())
    }

    /// Returns whether a recent search found no room for this station.
    fn is_full(&self, stations: &Stations, id: StationId, peer: PeerId, now: Instant) -> bool {
        let recent = |at: Option<Instant>| at.is_some_and(|at| now.since(at) < SEARCH_EVERY);
        let owned = stations.owned.get(&peer);
        owned.is_some_and(|owned| {
            owned.stations.len() >= self.per_peer.load(Relaxed) && recent(owned.searched)
        }) || stations.is_full_for(id) && recent(stations.searched)
    }

    fn make_room(
        &self,
        stations: &mut Stations,
        id: StationId,
        peer: PeerId,
        now: Instant,
    ) -> Result<(), DropReason> {
        // Another worker may have searched while this one waited for the lock.
        if self.is_full(stations, id, peer, now) {
            return Err(DropReason::MacsFull);
        }
        let idle = |station: &Station| since(station, now) >= IDLE.as_nanos() as u64;
        let Stations { by_id, owned, .. } = stations;
        if let Some(owned) = owned.get_mut(&peer)
            && owned.stations.len() >= self.per_peer.load(Relaxed)
        {
            let silent = owned.stations.iter().find(|id| by_id.get(id).is_some_and(idle)).copied();
            let Some(silent) = silent else {
                owned.searched = Some(now);
                return Err(DropReason::MacsFull);
            };
            stations.forget(silent);
        }
        if stations.is_full_for(id) {
            stations.searched = Some(now);
            stations.forget_if(|_, station| idle(station));
            if stations.is_full_for(id) {
                return Err(DropReason::MacsFull);
            }
        }
        Ok(())
    }

    /// Replaces the stations behind a peer, which leave the peers that they were behind. Those that do not fit remain unknown.
    pub(crate) fn assign(
        &self,
        peer: PeerId,
        stations: impl Iterator<Item = StationId>,
        now: Instant,
    ) {
        let wanted: HashSet<StationId> = stations.collect();
        let mut known = self.write();
        let former = known.owned.get(&peer).map_or(&[][..], |owned| &owned.stations);
        let gone: Vec<StationId> =
            former.iter().filter(|id| !wanted.contains(id)).copied().collect();
        gone.into_iter().for_each(|id| known.forget(id));
        for id in wanted {
            match known.by_id.get(&id) {
                Some(station) if station.peer == peer => continue,
                Some(_) => {
                    known.forget(id);
                    self.moved.fetch_add(1, Relaxed);
                }
                None if known.is_full_for(id) => continue,
                None => {
                    self.learnt.fetch_add(1, Relaxed);
                }
            }
            let heard = AtomicU64::new(now.as_nanos());
            known.by_id.insert(id, Station { peer, heard });
            known.owned.entry(peer).or_default().stations.push(id);
        }
    }

    /// Returns when a station behind this peer was last heard.
    pub(crate) fn last_heard(&self, id: StationId, peer: PeerId) -> Option<Instant> {
        let stations = self.read();
        let station = stations.by_id.get(&id).filter(|station| station.peer == peer)?;
        Some(Instant::from_nanos(station.heard.load(Relaxed)))
    }

    /// Forgets the stations behind a peer.
    pub(crate) fn remove(&self, peer: PeerId) {
        let mut stations = self.write();
        for id in stations.owned.remove(&peer).unwrap_or_default().stations {
            stations.by_id.remove(&id);
        }
    }

    /// Forgets stations that were silent for too long, if there is a limit and a search is due; returns when the next
    /// one is due. `forgotten` is called for each.
    pub(crate) fn expire(
        &self,
        now: Instant,
        mut forgotten: impl FnMut(PeerId, Mac),
    ) -> Option<Instant> {
        let age = self.age.load(Relaxed);
        if age == 0 {
            return None;
        }
        let due = self.next_expiry.load(Relaxed);
        if now.as_nanos() < due {
            return Some(Instant::from_nanos(due));
        }
        let mut gone = Vec::new();
        self.write().forget_if(|id, station| {
            let silent = since(station, now) >= age;
            if silent {
                gone.push((station.peer, id.mac()));
            }
            silent
        });
        gone.into_iter().for_each(|(peer, mac)| forgotten(peer, mac));
        let due = now.as_nanos().saturating_add(age);
        self.next_expiry.store(due, Relaxed);
        Some(Instant::from_nanos(due))
    }

    pub(crate) fn totals(&self) -> MacTotals {
        MacTotals {
            known: self.read().by_id.len() as u64,
            learnt: self.learnt.load(Relaxed),
            moved: self.moved.load(Relaxed),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Stations> {
        self.stations.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Stations> {
        self.stations.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn since(station: &Station, now: Instant) -> u64 {
    now.as_nanos().saturating_sub(station.heard.load(Relaxed))
}

impl Stations {
    fn is_full_for(&self, id: StationId) -> bool {
        self.by_id.len() >= MAX_MACS && !self.by_id.contains_key(&id)
    }

    fn remove_owner(&mut self, id: StationId, peer: PeerId) {
        if let Some(owned) = self.owned.get_mut(&peer) {
            owned.stations.retain(|other| *other != id);
            if owned.stations.is_empty() {
                self.owned.remove(&peer);
            }
        }
    }

    fn forget(&mut self, id: StationId) {
        if let Some(station) = self.by_id.remove(&id) {
            self.remove_owner(id, station.peer);
        }
    }

    fn forget_if(&mut self, mut unwanted: impl FnMut(StationId, &Station) -> bool) {
        let Self { by_id, owned, .. } = self;
        by_id.retain(|id, station| !unwanted(*id, station));
        owned.retain(|_, owned| {
            owned.stations.retain(|id| by_id.contains_key(id));
            !owned.stations.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn mac(number: u32) -> Mac {
        let [a, b, c, d] = number.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    }

    fn id(number: u32) -> StationId {
        StationId::new(None, mac(number))
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_secs(seconds)
    }

    fn claim(macs: &Macs, station: u32, peer: PeerId, seconds: u64) -> Result<(), DropReason> {
        macs.claim(id(station), peer, at(seconds), || true)
    }

    fn totals(macs: &Macs) -> (u64, u64, u64) {
        let MacTotals { known, learnt, moved } = macs.totals();
        (known, learnt, moved)
    }

    #[test]
    fn a_station_is_behind_the_peer_that_spoke_for_it_last() {
        let macs = Macs::default();
        assert_eq!(macs.owner(id(1)), None);
        claim(&macs, 1, A, 1).unwrap();
        claim(&macs, 1, A, 2).unwrap();
        assert_eq!(macs.owner(id(1)), Some(A));
        claim(&macs, 1, B, 3).unwrap();
        assert_eq!((macs.owner(id(1)), totals(&macs)), (Some(B), (1, 1, 1)));
        // The previous peer loses the station and nothing else.
        macs.remove(A);
        assert_eq!(macs.owner(id(1)), Some(B));
        macs.remove(B);
        assert_eq!((macs.owner(id(1)), totals(&macs).0), (None, 0));
    }

    #[test]
    fn an_address_is_another_station_in_another_vlan() {
        let macs = Macs::default();
        let [one, two] = [1, 2].map(|vlan| StationId::new(VlanId::new(vlan), mac(7)));
        assert_eq!((one.mac(), two.mac()), (mac(7), mac(7)));
        for (id, peer) in [(one, A), (two, B), (id(7), A)] {
            macs.claim(id, peer, at(1), || true).unwrap();
        }
        assert_eq!([one, two, id(7)].map(|id| macs.owner(id)), [Some(A), Some(B), Some(A)]);
        assert_eq!(totals(&macs), (3, 3, 0), "none has moved");
        macs.remove(A);
        assert_eq!([one, two, id(7)].map(|id| macs.owner(id)), [None, Some(B), None]);
        let group = StationId::new(VlanId::new(1), Mac([0xff; 6]));
        assert_eq!(macs.claim(group, A, at(1), || true), Err(DropReason::SourceSpoofed));
    }

    #[test]
    fn groups_the_null_address_and_the_device_s_own_are_never_learnt() {
        let macs = Macs::default();
        macs.set_own(mac(9));
        for bad in ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "33:33:0:0:0:1", "0:0:0:0:0:0"] {
            let refused = macs.claim(StationId::new(None, bad.parse().unwrap()), A, at(1), || true);
            assert_eq!(refused, Err(DropReason::SourceSpoofed), "{bad}");
        }
        assert_eq!(claim(&macs, 9, A, 1), Err(DropReason::SourceSpoofed));
        assert_eq!(macs.totals(), MacTotals::default());
    }

    #[test]
    fn one_peer_cannot_fill_the_table() {
        let macs = Macs::default();
        macs.limit(3, None);
        for station in 0..3 {
            claim(&macs, station, A, u64::from(station)).unwrap();
        }
        assert_eq!(claim(&macs, 3, A, 10), Err(DropReason::MacsFull));
        claim(&macs, 0, A, 11).unwrap();
        claim(&macs, 4, B, 11).unwrap();
        assert_eq!(claim(&macs, 4, A, 12), Err(DropReason::MacsFull), "nor by taking another's");
        assert_eq!(macs.owner(id(4)), Some(B));
        // A long-silent station makes room; a station that was heard meanwhile does not.
        claim(&macs, 3, A, 2 + 300).unwrap();
        assert_eq!((macs.owner(id(0)), macs.owner(id(3))), (Some(A), Some(A)));
        assert_eq!([1, 2].iter().filter(|n| macs.owner(id(**n)).is_some()).count(), 1);
    }

    #[test]
    fn one_that_makes_addresses_up_neither_locks_nor_searches_the_table_for_each() {
        let macs = Macs::default();
        macs.limit(3, None);
        (0..3).for_each(|station| claim(&macs, station, A, 1).unwrap());
        assert_eq!(claim(&macs, 3, A, 2), Err(DropReason::MacsFull));
        // Another worker reads, so a writer would wait forever.
        let reading = macs.read();
        for station in 4..10_000 {
            assert_eq!(claim(&macs, station, A, 2), Err(DropReason::MacsFull));
        }
        drop(reading);
        claim(&macs, 4, B, 2).unwrap();
        assert_eq!(claim(&macs, 5, A, 3), Err(DropReason::MacsFull), "searched again");
        claim(&macs, 5, A, 301).unwrap();
    }

    #[test]
    fn the_table_is_bounded_and_recovers() {
        let macs = Macs::default();
        macs.limit(MAX_MACS, None);
        for station in 0..MAX_MACS as u32 {
            claim(&macs, station, PeerId(station % 7), 1).unwrap();
        }
        assert_eq!(claim(&macs, 1 << 20, A, 2), Err(DropReason::MacsFull));
        claim(&macs, 5, B, 3).unwrap();
        assert_eq!(totals(&macs).0, MAX_MACS as u64);
        claim(&macs, 1 << 20, A, 302).unwrap();
        assert_eq!(macs.owner(id(1 << 20)), Some(A));
        assert_eq!(macs.owner(id(5)), Some(B), "spoke since");
        assert_eq!(totals(&macs).0, 2);
    }

    #[test]
    fn stations_are_forgotten_by_age_only_where_that_is_asked_for() {
        let macs = Macs::default();
        claim(&macs, 1, A, 0).unwrap();
        claim(&macs, 2, A, 50).unwrap();
        let mut gone = Vec::new();
        let mut expire =
            |macs: &Macs, seconds| macs.expire(at(seconds), |peer, mac| gone.push((peer, mac)));
        assert_eq!(expire(&macs, 100_000), None);
        assert_eq!(totals(&macs).0, 2);
        macs.limit(MACS_PER_PEER, Some(Duration::from_secs(60)));
        assert_eq!(expire(&macs, 70), Some(at(130)));
        assert_eq!((macs.owner(id(1)), macs.owner(id(2))), (None, Some(A)));
        assert_eq!(expire(&macs, 129), Some(at(130)));
        assert_eq!(macs.owner(id(2)), Some(A), "not every time");
        assert_eq!(expire(&macs, 130), Some(at(190)));
        assert_eq!(macs.owner(id(2)), None);
        assert_eq!(gone, [(A, mac(1)), (A, mac(2))]);
        // The memory is released too.
        macs.limit(1, None);
        claim(&macs, 3, A, 130).unwrap();
    }

    #[test]
    fn a_peer_that_is_gone_learns_nothing() {
        let macs = Macs::default();
        macs.remove(A);
        assert_eq!(macs.claim(id(1), A, at(1), || false), Err(DropReason::UnknownPeer));
        assert_eq!(macs.owner(id(1)), None);
    }
}
