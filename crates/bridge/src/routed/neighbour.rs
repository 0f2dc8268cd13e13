//! The neighbours' addresses on a link, and the packets queued for them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use adit_filter::Nanos;
use adit_wire::ethernet::Mac;

use crate::port::Side;

/// The maximum number of known neighbours. A new one evicts the one confirmed longest ago.
pub(super) const MAX_KNOWN: usize = 1024;
/// The maximum number of neighbours that are being resolved; the oldest is evicted. An existing neighbour answers at
/// once, so a scan of a network does not keep others from being found (RFC 6583).
pub(super) const MAX_ASKED: usize = 256;
/// The maximum number of packets queued for one neighbour.
pub(super) const MAX_WAITING: usize = 16;
/// The maximum number of queued bytes in all; the packets queued longest are evicted.
pub(super) const MAX_WAITING_BYTES: usize = 1 << 20;

/// The number of requests after which a neighbour is considered lost (RFC 4861 section 10).
const TRIES: u8 = 3;
/// The time between two requests.
const RETRY: Duration = Duration::from_secs(1);
/// How long an answer is valid. After that it is still used while it is being confirmed.
const REACHABLE: Duration = Duration::from_secs(30);
/// The time between two requests to a neighbour whose address another station claims. The owner answers at once, and if
/// the address has moved, packets are lost until it is found.
const CHALLENGE: Duration = Duration::from_millis(200);
/// How long after its answer a neighbour is not probed because of another station's claim, as in Linux (`locktime`). Endless claims
/// therefore cause one request a second.
const LOCKED: Duration = Duration::from_secs(1);
/// The maximum number of static neighbours.
pub const MAX_FIXED: usize = 256;

/// A queued packet, unchanged.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub from: Side,
    pub vnet: [u8; 10],
    pub frame: Vec<u8>,
}

/// A request to send.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Solicitation {
    pub side: Side,
    pub address: IpAddr,
    /// The receiver, or `None` for broadcast or multicast.
    pub to: Option<Mac>,
}

/// The kind of a neighbour's message.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum LearnedFrom {
    /// A request to us. It needs an answer, and the neighbour is entered.
    Request,
    /// A reply, or an unsolicited announcement. The neighbour is entered only if it is being resolved.
    Reply,
    /// An announcement without override. It does not change a known address.
    WeakReply,
}

#[derive(Debug)]
enum Entry {
    Asked {
        since: Nanos,
        tries: u8,
        next: Nanos,
        waiting: Vec<QueuedPacket>,
    },
    Known {
        mac: Mac,
        confirmed: Nanos,
        /// The number of requests sent to it since then, and the time of the next one.
        probe: Option<(u8, Nanos)>,
        /// Another station that claims the address, and gets it if the known station is silent.
        rival: Option<Mac>,
    },
    /// The operator has fixed its address.
    Fixed(Mac),
}

/// All neighbours of both ports.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<(usize, IpAddr), Entry>,
    asked: usize,
    bytes: usize,
    /// The time of the next request or timeout.
    pub wake: Option<Nanos>,
    /// Queued packets that were evicted.
    pub evicted: u64,
    /// Claims of an address that another station has.
    pub challenged: u64,
    /// The number of fixed neighbours.
    fixed: usize,
}

impl Table {
    /// Returns the link address of a neighbour, and the request to send to confirm it.
    pub(super) fn find(
        &mut self,
        side: Side,
        address: IpAddr,
        now: Nanos,
    ) -> Option<(Mac, Option<Solicitation>)> {
        let (mac, confirmed, probe) = match self.entries.get_mut(&(side.index(), address))? {
            Entry::Known { mac, confirmed, probe, .. } => (*mac, confirmed, probe),
            Entry::Fixed(mac) => return Some((*mac, None)),
            Entry::Asked { .. } => return None,
        };
        if probe.is_some() || now.since(*confirmed) < REACHABLE {
            return Some((mac, None));
        }
        let next = now.after(RETRY);
        *probe = Some((1, next));
        self.wake_at(next);
        Some((mac, Some(Solicitation { side, address, to: Some(mac) })))
    }

    /// Queues a packet for an unknown neighbour. Returns the request to send, or `Err` if there is no room.
    pub(super) fn wait(
        &mut self,
        side: Side,
        address: IpAddr,
        packet: QueuedPacket,
        now: Nanos,
    ) -> Result<Option<Solicitation>, ()> {
        let len = packet.frame.len();
        let key = (side.index(), address);
        if let Some(Entry::Asked { waiting, .. }) = self.entries.get_mut(&key) {
            if waiting.len() >= MAX_WAITING {
                return Err(());
            }
            waiting.push(packet);
            self.bytes = self.bytes.saturating_add(len);
            self.bound_bytes();
            return Ok(None);
        }
        while self.asked >= MAX_ASKED {
            let oldest = self.oldest(|entry| match entry {
                Entry::Asked { since, .. } => Some(*since),
                Entry::Known { .. } | Entry::Fixed(_) => None,
            });
            let Some(oldest) = oldest else { break };
            let gone = self.remove(&oldest).len() as u64;
            self.evicted = self.evicted.saturating_add(gone);
        }
        let next = now.after(RETRY);
        let entry = Entry::Asked { since: now, tries: 1, next, waiting: vec![packet] };
        self.remove(&key);
        self.entries.insert(key, entry);
        self.asked = self.asked.saturating_add(1);
        self.bytes = self.bytes.saturating_add(len);
        self.bound_bytes();
        self.wake_at(next);
        Ok(Some(Solicitation { side, address, to: None }))
    }

    /// Drops the packets of the neighbour that has been unresolved longest, until the others are within bounds. The
    /// request continues: packets to unused addresses must not keep others from being found.
    fn bound_bytes(&mut self) {
        while self.bytes > MAX_WAITING_BYTES {
            let oldest = self.oldest(|entry| match entry {
                Entry::Asked { since, waiting, .. } if !waiting.is_empty() => Some(*since),
                _ => None,
            });
            let entry = oldest.and_then(|oldest| self.entries.get_mut(&oldest));
            let Some(Entry::Asked { waiting, .. }) = entry else { return };
            let gone = std::mem::take(waiting);
            let bytes = gone.iter().map(|waiting| waiting.frame.len()).sum::<usize>();
            self.bytes = self.bytes.saturating_sub(bytes);
            self.evicted = self.evicted.saturating_add(gone.len() as u64);
        }
    }

    /// Records a neighbour's claim; returns the packets queued for it that can now be sent, and the request to send.
    ///
    /// Any station on a link can claim any address, so a claim does not change a known one: the station that has the
    /// address is probed (RFC 4861 7.2.5 marks it stale), and the other one gets it only if the probed station is
    /// silent.
    pub(super) fn learn(
        &mut self,
        side: Side,
        address: IpAddr,
        mac: Mac,
        learned_from: LearnedFrom,
        now: Nanos,
    ) -> (Vec<QueuedPacket>, Option<Solicitation>) {
        let key = (side.index(), address);
        match self.entries.get_mut(&key) {
            Some(Entry::Fixed(_)) => return (Vec::new(), None),
            None if learned_from != LearnedFrom::Request => return (Vec::new(), None),
            Some(Entry::Known { mac: known, confirmed, probe, rival }) => {
                if *known == mac {
                    (*confirmed, *probe, *rival) = (now, None, None);
                    return (Vec::new(), None);
                }
                if learned_from == LearnedFrom::WeakReply || rival.replace(mac).is_some() {
                    return (Vec::new(), None);
                }
                let (known, locked) = (*known, confirmed.after(LOCKED));
                let (asked, next) =
                    if now < locked { (0, locked) } else { (1, now.after(CHALLENGE)) };
                *probe = Some((asked, next));
                self.challenged = self.challenged.saturating_add(1);
                self.wake_at(next);
                let ask = Solicitation { side, address, to: Some(known) };
                return (Vec::new(), (asked > 0).then_some(ask));
            }
            Some(Entry::Asked { .. }) | None => {}
        }
        let waiting = self.remove(&key);
        self.make_room();
        self.entries.insert(key, Entry::Known { mac, confirmed: now, probe: None, rival: None });
        (waiting, None)
    }

    /// Adds a static neighbour that the operator has configured.
    pub(super) fn fix(&mut self, side: Side, address: IpAddr, mac: Mac) -> bool {
        if self.fixed >= MAX_FIXED {
            return false;
        }
        self.remove(&(side.index(), address));
        let before = self.entries.insert((side.index(), address), Entry::Fixed(mac));
        self.fixed = self.fixed.saturating_add(usize::from(before.is_none()));
        true
    }

    fn make_room(&mut self) {
        let others = self.asked.saturating_add(self.fixed);
        if self.entries.len().saturating_sub(others) >= MAX_KNOWN {
            let oldest = self.oldest(|entry| match entry {
                Entry::Known { confirmed, .. } => Some(*confirmed),
                Entry::Asked { .. } | Entry::Fixed(_) => None,
            });
            if let Some(oldest) = oldest {
                self.remove(&oldest);
            }
        }
    }

    /// Repeats unanswered requests, and gives up after enough of them; `lost` receives the packets that were queued.
    pub(super) fn tick(
        &mut self,
        now: Nanos,
        asks: &mut Vec<Solicitation>,
        lost: &mut Vec<QueuedPacket>,
    ) {
        if self.wake.is_none_or(|wake| now < wake) {
            return;
        }
        let (mut wake, mut gone) = (None::<Nanos>, Vec::new());
        for ((index, address), entry) in &mut self.entries {
            let side = if *index == 0 { Side::A } else { Side::B };
            if let Entry::Known { mac, probe, rival, .. } = entry
                && probe.is_some_and(|(tries, next)| tries >= TRIES && next <= now)
                && let Some(claims) = rival.take()
            {
                // The new station is probed at once.
                *mac = claims;
                *probe = Some((0, now));
            }
            let (tries, next, to, pause) = match entry {
                Entry::Asked { tries, next, .. } => (tries, next, None, RETRY),
                Entry::Known { probe: Some((tries, next)), mac, rival, .. } => {
                    let pause = if rival.is_some() { CHALLENGE } else { RETRY };
                    (tries, next, Some(*mac), pause)
                }
                Entry::Known { probe: None, .. } | Entry::Fixed(_) => continue,
            };
            if *next <= now {
                if *tries >= TRIES {
                    gone.push((*index, *address));
                    continue;
                }
                *tries = tries.saturating_add(1);
                *next = now.after(pause);
                asks.push(Solicitation { side, address: *address, to });
            }
            wake = Some(wake.map_or(*next, |wake| wake.min(*next)));
        }
        self.wake = wake;
        for key in gone {
            lost.append(&mut self.remove(&key));
        }
    }

    /// Removes all neighbours on one port except the static ones.
    pub(super) fn forget(&mut self, side: Side) {
        let learnt = self.entries.iter().filter(|((index, _), entry)| {
            *index == side.index() && !matches!(entry, Entry::Fixed(_))
        });
        let keys: Vec<_> = learnt.map(|(key, _)| *key).collect();
        for key in keys {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &(usize, IpAddr)) -> Vec<QueuedPacket> {
        match self.entries.remove(key) {
            Some(Entry::Asked { waiting, .. }) => {
                self.asked = self.asked.saturating_sub(1);
                let bytes = waiting.iter().map(|waiting| waiting.frame.len()).sum::<usize>();
                self.bytes = self.bytes.saturating_sub(bytes);
                waiting
            }
            Some(Entry::Fixed(_)) => {
                self.fixed = self.fixed.saturating_sub(1);
                Vec::new()
            }
            Some(Entry::Known { .. }) | None => Vec::new(),
        }
    }

    fn oldest(&self, age: impl Fn(&Entry) -> Option<Nanos>) -> Option<(usize, IpAddr)> {
        let ages = self.entries.iter().filter_map(|(key, entry)| Some((age(entry)?, *key)));
        ages.min().map(|(_, key)| key)
    }

    fn wake_at(&mut self, at: Nanos) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Returns the number of known neighbours and the number being resolved.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.entries.len().saturating_sub(self.asked), self.asked)
    }

    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.bytes
    }
}
