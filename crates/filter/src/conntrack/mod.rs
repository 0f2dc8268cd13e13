//! Connection tracking: the flows of packets, and the segments that their ends can have sent.
//!
//! ```text
//!   Tracker::burst ──► Burst::look(packet) ──► Tracked { state, direction } ──► the rules
//!                      Burst::confirm(tracked) ◄── accepted: only now a new flow is entered
//! ```
//!
//! States, timeouts and windows are those of Linux, so a rule file has the same meaning in both. As in Linux, a known
//! flow's timeout restarts when its packet is looked up, not when the rules have accepted it. A flow whose packets are
//! dropped therefore stays as long as they arrive.
//!
//! After a start the table is empty, and open connections are picked up in the middle ([`Limits::loose`]): the next
//! packet of such a connection is new, and the answer to it is established. If another process has passed its flows on
//! ([`Tracker::resume`]), they continue.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Nanos;
use crate::evaluate::VerdictCache;
use crate::packet::{Ip, Network, Packet, Transport};
use crate::ruleset::{CtDirection, CtState};

mod clients;
mod first_packet;
mod flow;
mod flow_key;
mod flow_table;
mod hash;
mod limits;
mod saved;
mod shard;
mod stats;
mod tcp;
#[cfg(test)]
mod tests;

pub(crate) use clients::{Client, Peers};
pub use flow_key::{Crossing, Path};
pub use limits::{Limits, Timeouts};
pub use saved::{MAX_SAVED, Resumed, SavedFlows};
pub use stats::{FlowInfo, FlowState, Invalid, TrackStats};

use clients::Clients;
use first_packet::Ends;
pub(crate) use first_packet::{MAX_FIRST, write as first_packet};
use flow::Class;
use flow_key::{FlowKey, FlowTuple, IcmpRole};
use hash::Seed;
use shard::{FlowMatch, Shard};
use tcp::{Segment, Tcp};

/// The number of flows that [`Tracker::sweep`] checks in one call.
const SWEEP: u32 = 1024;

/// All flows, in as many shards as there are workers. Any number of threads may use it.
#[derive(Debug)]
pub struct Tracker {
    limits: Limits,
    /// The present limit of flows.
    most: AtomicU64,
    seed: Seed,
    shards: Box<[Mutex<Shard>]>,
    clients: Clients,
    invalid: [AtomicU64; Invalid::COUNT],
}

impl Tracker {
    /// Creates an empty table. `seed` must be random: it keeps senders from choosing their flows' places in the table.
    pub fn new(limits: Limits, seed: [u8; 16]) -> Self {
        let seed = Seed::new(seed);
        let shards = (0..limits.shards.max(1)).map(|_| Mutex::new(Shard::new(&limits, seed)));
        let most = AtomicU64::new(limits.flows as u64);
        let (clients, invalid) = (Clients::default(), Default::default());
        Self { seed, shards: shards.collect(), most, limits, clients, invalid }
    }

    /// From now on, assigns this network to a client; `None` removes the assignment.
    pub(crate) fn set_network(&self, address: IpAddr, length: u8, client: Option<&str>) {
        self.clients.set_network(address, length, self.number(client));
    }

    /// From now on, assigns a tunnel peer to this client; `None` removes the assignment.
    pub(crate) fn set_peer(&self, peer: u32, client: Option<&str>) {
        self.clients.set_peer(peer, self.number(client));
    }

    /// Returns the number of a client. Ends the flows of clients that are forgotten for it.
    fn number(&self, client: Option<&str>) -> Client {
        // No lock is held during this call, because a burst that holds a shard looks up the client of an address.
        let (number, retired) = self.clients.number_of(client);
        if !retired.is_empty() {
            let all = |flow: &FlowEnds| flow.clients.into_iter().chain([flow.owner]);
            self.flush(|flow| all(flow).any(|client| retired.contains(&client)));
        }
        number
    }

    /// Returns the clients of peers and addresses.
    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Changes the limits of flows; existing flows stay until others need their slots.
    pub fn resize(&self, limits: &Limits) {
        self.most.store(limits.flows as u64, Ordering::Relaxed);
        let limits = Limits { shards: self.limits.shards, ..limits.clone() };
        self.shards.iter().for_each(|shard| lock(shard).resize(&limits));
    }

    /// Returns the limits that the tracker was created with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Begins a run of packets that are treated as arriving at `now`. It holds the lock of at most one shard until it
    /// is dropped, so a thread must have only one burst at a time, and must not block meanwhile.
    pub fn burst(&self, now: Nanos) -> Burst<'_> {
        Burst { tracker: self, now, generation: 0, held: None, invalid: [0; Invalid::COUNT] }
    }

    /// Returns the counters of all shards.
    pub fn stats(&self) -> TrackStats {
        let mut stats =
            TrackStats { limit: self.most.load(Ordering::Relaxed), ..TrackStats::default() };
        for shard in &self.shards {
            stats.add(&mut lock(shard));
        }
        stats.invalid = Invalid::ALL
            .into_iter()
            .zip(&self.invalid)
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count != 0)
            .collect();
        stats
    }

    /// Returns some of the flows, from `cursor` on (0 at first), and the next cursor, which is `None` at the end. Flows
    /// that are added or removed meanwhile may be missing.
    pub fn flows(&self, now: Nanos, cursor: u64) -> (Vec<FlowInfo>, Option<u64>) {
        let (index, segment) = (cursor >> 32, cursor & u64::from(u32::MAX));
        let Some(shard) = usize::try_from(index).ok().and_then(|index| self.shards.get(index))
        else {
            return (Vec::new(), None);
        };
        match lock(shard).describe(segment as usize, &self.clients, now) {
            Some(flows) => (flows, cursor.checked_add(1)),
            None => (Vec::new(), index.checked_add(1).map(|next| next << 32)),
        }
    }

    /// Ends the flows that `matches` selects, and returns their number.
    pub(crate) fn flush(&self, matches: impl Fn(&FlowEnds) -> bool) -> u64 {
        let mut ended = 0u64;
        for shard in &self.shards {
            // One segment at a time, because workers wait for the lock.
            let mut segment = 0usize;
            while let Some(some) = lock(shard).flush(segment, &matches) {
                ended = ended.saturating_add(some);
                segment = segment.saturating_add(1);
            }
        }
        ended
    }

    /// Returns the number of the shard for a hash.
    #[inline]
    fn shard_of(&self, hash: u64) -> Option<usize> {
        let count = self.shards.len();
        // The low half chooses the bucket.
        if count == 1 { Some(0) } else { ((hash >> 32) as usize).checked_rem(count) }
    }

    /// Removes expired flows, at most a thousand of each shard per call; returns true if more are left. Bursts do this
    /// too; this method is for times without packets.
    pub fn sweep(&self, now: Nanos) -> bool {
        // Sweeps every shard, regardless of the result for the previous one.
        self.shards.iter().filter(|shard| lock(shard).sweep(now, SWEEP)).count() > 0
    }
}

/// The ends of a flow, as in its first packet.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FlowEnds {
    /// Source and destination.
    pub addresses: [IpAddr; 2],
    /// The clients that the packet came from and went to.
    pub clients: [Client; 2],
    /// The client to which the source belongs.
    owner: Client,
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of one packet. [`Burst::confirm`] enters it if it starts a flow.
#[derive(Copy, Clone, Debug)]
pub struct Tracked {
    /// The connection state, as a single bit.
    pub state: CtState,
    /// The packet's direction in its flow; [`CtDirection::Original`] without a flow.
    pub direction: CtDirection,
    /// The flow's transport protocol: for an ICMP error, the protocol of the flow it reports on. `None` without a flow
    /// (invalid, untracked): then `ct direction` and `ct l4proto` do not match.
    pub protocol: Option<u8>,
    /// Whether its flow was accepted by previous rules, or with previous members.
    pub stale: bool,
    place: Place,
}

#[derive(Copy, Clone, Debug)]
enum Place {
    Nowhere,
    /// The packet reports on a flow without belonging to it.
    About {
        slot: u32,
        key: FlowKey,
        hash: u64,
    },
    Known {
        slot: u32,
        key: FlowKey,
        hash: u64,
    },
    New {
        way: FlowTuple,
        hash: u64,
    },
}

impl Tracked {
    const fn flow(&self) -> Option<(u32, FlowKey, u64)> {
        match self.place {
            Place::Known { slot, key, hash } | Place::About { slot, key, hash } => {
                Some((slot, key, hash))
            }
            Place::Nowhere | Place::New { .. } => None,
        }
    }

    /// Describes a packet without a flow: untracked or invalid.
    pub const fn without(state: CtState) -> Self {
        let direction = CtDirection::Original;
        Self { state, direction, protocol: None, stale: false, place: Place::Nowhere }
    }
}

/// A run of packets on the table.
#[derive(Debug)]
pub struct Burst<'a> {
    tracker: &'a Tracker,
    now: Nanos,
    generation: u32,
    held: Option<(usize, MutexGuard<'a, Shard>)>,
    invalid: [u32; Invalid::COUNT],
}

impl Burst<'_> {
    /// Looks up a packet. A known flow is updated here regardless of the verdict on the packet, as in the kernel; a new flow is entered
    /// only by [`Self::confirm`].
    ///
    /// `path` and VLAN tags distinguish flows with the same addresses: an answer must take the opposite path.
    ///
    /// It takes whole packets: fragments, and packets with a wrong checksum, are invalid.
    #[inline]
    pub fn look(&mut self, packet: &Packet<'_>, path: Path) -> Tracked {
        let Network::Ip(ip) = &packet.network else { return Tracked::without(CtState::UNTRACKED) };
        match self.track(packet, ip, path) {
            Ok(tracked) => tracked,
            Err(reason) => {
                if let Some(count) = self.invalid.get_mut(reason as usize) {
                    *count = count.saturating_add(1);
                }
                Tracked::without(CtState::INVALID)
            }
        }
    }

    fn track(&mut self, packet: &Packet<'_>, ip: &Ip, path: Path) -> Result<Tracked, Invalid> {
        if ip.fragment.is_some_and(|piece| piece.more || piece.offset != 0) {
            return Err(Invalid::Headers);
        }
        if !packet.checksum_ok() {
            return Err(Invalid::Checksum);
        }
        let segment = match packet.transport {
            Transport::Tcp(_) => Some(Segment::of(packet).ok_or(Invalid::Flags)?),
            Transport::Icmp(icmp) => match IcmpRole::of(ip.source.is_ipv6(), icmp.kind) {
                IcmpRole::Error => return self.related(packet, ip, path),
                IcmpRole::Neighbour => return Ok(Tracked::without(CtState::UNTRACKED)),
                _ => None,
            },
            _ => None,
        };
        let way = FlowKey::of(packet, ip)?.within(packet.vlans(), path);
        let hash = way.key.hash(&self.tracker.seed);
        let (now, generation) = (self.now, self.generation);
        let shard = self.shard(hash).ok_or(Invalid::State)?;
        let tracked = |state, direction, place| Tracked {
            state,
            direction,
            protocol: Some(way.key.protocol()),
            stale: false,
            place,
        };
        if let Some(slot) = shard.find(&way, hash, now) {
            match shard.advance(slot, way.downwards, packet, segment.as_ref(), now) {
                FlowMatch::Known(state, direction) => {
                    let place = Place::Known { slot, key: way.key, hash };
                    let stale = shard.is_stale(slot, generation);
                    return Ok(Tracked { stale, ..tracked(state, direction, place) });
                }
                FlowMatch::Last(state, direction) => {
                    return Ok(tracked(state, direction, Place::Nowhere));
                }
                FlowMatch::Invalid(reason) => return Err(reason),
                FlowMatch::Over => {}
            }
        }
        self.may_start(packet, ip, segment.as_ref())?;
        Ok(tracked(CtState::NEW, CtDirection::Original, Place::New { way, hash }))
    }

    /// Returns whether a packet without a flow may start one.
    fn may_start(
        &self,
        packet: &Packet<'_>,
        ip: &Ip,
        segment: Option<&Segment<'_>>,
    ) -> Result<(), Invalid> {
        if let Some(segment) = segment
            && !Tcp::may_start(segment, self.tracker.limits.loose)
        {
            return Err(Invalid::State);
        }
        if let Transport::Icmp(icmp) = packet.transport
            && IcmpRole::of(ip.source.is_ipv6(), icmp.kind) != IcmpRole::Query
        {
            return Err(Invalid::Icmp);
        }
        Ok(())
    }

    /// Looks up an ICMP error. It is related to the flow of the packet that it carries, if it is sent to the source of
    /// that packet. It does not change the flow.
    fn related(&mut self, packet: &Packet<'_>, ip: &Ip, path: Path) -> Result<Tracked, Invalid> {
        let head = packet.transport_bytes().get(8..).ok_or(Invalid::IcmpError)?;
        let (way, source) =
            FlowKey::embedded(ip.source.is_ipv6(), head).ok_or(Invalid::IcmpError)?;
        if source != ip.destination {
            return Err(Invalid::IcmpError);
        }
        // The embedded packet was sent in the opposite direction.
        let way = way.within(packet.vlans(), path.back());
        let hash = way.key.hash(&self.tracker.seed);
        let (now, generation) = (self.now, self.generation);
        let shard = self.shard(hash).ok_or(Invalid::IcmpError)?;
        let slot = shard.find(&way, hash, now).ok_or(Invalid::IcmpError)?;
        let stale = shard.is_stale(slot, generation);
        let flow = shard.table().get(slot).ok_or(Invalid::IcmpError)?;
        Ok(Tracked {
            stale,
            state: CtState::RELATED,
            direction: flow.direction(!way.downwards),
            protocol: Some(way.key.protocol()),
            place: Place::About { slot, key: way.key, hash },
        })
    }

    /// Enters the flow of a packet that was accepted; does nothing if the flow is known. Returns false if the table has
    /// no room, which is counted. The packet must then be dropped.
    #[inline]
    pub fn confirm(&mut self, tracked: &Tracked, packet: &Packet<'_>) -> bool {
        let Place::New { way, hash } = &tracked.place else { return true };
        let (now, generation) = (self.now, self.generation);
        let owner = self.tracker.clients.of(|| {
            let [(source, _), _] = way.key.ends(way.downwards);
            source
        });
        let shard = self.shard(*hash);
        shard.is_some_and(|shard| shard.enter(way, *hash, packet, (owner, generation), now))
    }

    /// Sets the generation of rules and members for the following packets. Flows accepted by another generation are
    /// [`Tracked::stale`].
    #[inline]
    pub(crate) fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    /// Returns the ends of the flow that a packet belongs to or reports on.
    pub(crate) fn ends(&mut self, tracked: &Tracked) -> Option<Ends> {
        let (slot, key, hash) = tracked.flow()?;
        let flow = self.shard(hash)?.table().get(slot).filter(|flow| flow.key == key)?;
        let [source, destination] = key.ends(flow.downwards());
        Some(Ends { protocol: key.protocol(), source, destination })
    }

    /// Records the result of evaluating a stale flow again: it continues or ends.
    pub(crate) fn reevaluated(&mut self, tracked: &Tracked, accepted: bool) {
        let (Some((slot, key, hash)), generation) = (tracked.flow(), self.generation) else {
            return;
        };
        if let Some(shard) = self.shard(hash) {
            shard.reevaluated(slot, &key, accepted.then_some(generation));
        }
    }

    /// Returns the cache for the verdict on the flow's last packet in the same direction. Returns `None` for a packet
    /// without a known flow, and for ICMP errors.
    #[inline]
    pub fn verdict_cache(&mut self, tracked: &Tracked) -> Option<&mut VerdictCache> {
        let Place::Known { slot, key, hash } = tracked.place else { return None };
        let direction = tracked.direction;
        let flow = self.shard(hash)?.table().get_mut(slot)?;
        // The flow may have been evicted for another packet.
        (flow.class != Class::Free && flow.key == key).then(|| flow.verdict_cache(direction))
    }

    /// Locks and returns the shard of a hash.
    #[inline]
    fn shard(&mut self, hash: u64) -> Option<&mut Shard> {
        let index = self.tracker.shard_of(hash)?;
        if self.held.as_ref().is_none_or(|(held, _)| *held != index) {
            // Never holds two shards at once, because two bursts could then wait for each other.
            self.held = None;
            let mut shard = lock(self.tracker.shards.get(index)?);
            shard.tick(self.now);
            self.held = Some((index, shard));
        }
        self.held.as_mut().map(|(_, shard)| &mut **shard)
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        for (total, count) in self.tracker.invalid.iter().zip(self.invalid) {
            if count != 0 {
                total.fetch_add(count.into(), Ordering::Relaxed);
            }
        }
    }
}
