//! Rounds: an offer, its answer, and probes from both sides at the same time.

use std::time::Duration;

use adit_engine::{Instant, Rate};

use super::super::KeyHash;
use super::super::candidate::Candidate;
use super::super::nat::NatKind;
use super::super::probe::{ProbeKey, ReplayWindow, Tag};
use super::super::record::{Offer, Purpose, Record};
use super::path_state::Origin;
use super::{MAIN_SOCKET, Output, PathFinder, Route};

/// The number of probes to each candidate in a round.
const BURSTS: u32 = 3;

/// The interval between these probes.
const BURST_INTERVAL: Duration = Duration::from_millis(50);

/// The time from the first probe until a round without an answer has failed.
const ROUND: Duration = Duration::from_secs(1);

/// The time after which an offer without an answer goes through another relay.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum wait between two offers without an answer, and after a round that found no path.
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// The initial wait after a round that found no path.
const ROUND_BACKOFF: Duration = Duration::from_secs(30);

/// The minimum time between two offers that are caused by changes of the network.
const ASK_INTERVAL: Duration = Duration::from_secs(2);

/// The limit on offers from the peer.
const OFFER_RATE: Rate = Rate::one_in(Duration::from_secs(1), 8);

/// The maximum number of old tags of the peer that are remembered.
const MAX_FORMER_TAGS: usize = 8;

/// The maximum time from an offer to the first probes, even if the peer proposes more.
const MAX_PUNCH_DELAY: Duration = Duration::from_secs(2);

/// The state of the current round.
#[derive(Clone, Debug)]
pub(super) enum Round {
    /// No round is in progress; the next one begins at this time.
    Idle { again: Option<Instant> },
    /// An offer waits for its answer.
    Asked { sequence: u64, via: Option<KeyHash>, tries: u32, since: Instant, until: Instant },
    /// Probes are sent from this time on.
    Punching { start: Instant, bursts: u32 },
}

/// The peer's last offer and the keys derived from it.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) tag: Tag,
    sequence: u64,
    pub(super) nat: NatKind,
    pub(super) candidates: Vec<Candidate>,
    pub(super) send: ProbeKey,
    pub(super) receive: ProbeKey,
    pub(super) window: ReplayWindow,
}

impl PathFinder {
    pub(super) fn round_due(&self) -> Option<Instant> {
        match self.round {
            Round::Idle { again } => again,
            Round::Asked { until, .. } => Some(until),
            Round::Punching { start, bursts } if bursts < BURSTS => {
                Some(start + BURST_INTERVAL * bursts)
            }
            Round::Punching { start, .. } => Some(start + ROUND),
        }
    }

    pub(super) fn advance_round(&mut self, now: Instant, out: &mut Vec<Output>) {
        while self.round_due().is_some_and(|at| at <= now) {
            match self.round {
                Round::Idle { .. } => self.ask(now, out),
                Round::Asked { via, tries, .. } => self.ask_again(now, via, tries, out),
                Round::Punching { start, bursts } if bursts < BURSTS => {
                    self.round = Round::Punching { start, bursts: bursts + 1 };
                    self.probe_candidates(now, out);
                }
                Round::Punching { .. } => self.end_round(now, out),
            }
        }
    }

    /// Offers the node's addresses and asks for the peer's.
    pub(super) fn ask(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.send_ask(now, 0, out);
    }

    /// Begins a round as soon as the last one allows.
    pub(super) fn ask_soon(&mut self, now: Instant) {
        let soon = match self.round {
            Round::Idle { .. } => now,
            // The round in progress ends first.
            Round::Asked { since, .. } => (since + ASK_INTERVAL).max(now),
            Round::Punching { start, .. } => (start + ASK_INTERVAL).max(now),
        };
        self.round = Round::Idle { again: Some(soon) };
    }

    /// Offers again through another relay, because neither the last relay nor the peer behind it has answered.
    fn ask_again(&mut self, now: Instant, via: Option<KeyHash>, tries: u32, out: &mut Vec<Output>) {
        if let Some(path) = via.and_then(|relay| self.path_mut(Route::Relay(relay)))
            && path.rtt.is_none()
        {
            path.alive = false;
        }
        self.select(now, out);
        self.send_ask(now, tries.saturating_add(1), out);
    }

    fn send_ask(&mut self, now: Instant, tries: u32, out: &mut Vec<Output>) {
        let relays: Vec<KeyHash> = self.legs.iter().map(|leg| leg.relay).collect();
        let current = match self.current {
            Some(Route::Relay(relay)) if tries == 0 => Some(relay),
            _ => None,
        };
        let via = current.or_else(|| relays.get(tries as usize % relays.len().max(1)).copied());
        let sequence = self.send_offer(via, Purpose::Ask, out);
        let backoff = ANSWER_TIMEOUT * 2u32.saturating_pow(tries.saturating_sub(2).min(10));
        let until = now + backoff.min(MAX_BACKOFF);
        self.round = Round::Asked { sequence, via, tries, since: now, until };
    }

    fn send_offer(&mut self, via: Option<KeyHash>, purpose: Purpose, out: &mut Vec<Output>) -> u64 {
        self.last_sequence += 1;
        let relay_rtt = via.and_then(|relay| self.leg(relay)).map_or(Duration::ZERO, |leg| leg.rtt);
        let offer = Offer {
            sequence: self.last_sequence,
            tag: self.tag,
            secret: self.secret.clone(),
            purpose,
            relay_rtt_ms: millis(relay_rtt),
            nat: self.nat.kind,
            candidates: self.candidates.clone(),
        };
        let bytes = Record::Offer(Box::new(offer)).encode();
        out.push(Output::SendRecord { via, bytes });
        self.last_sequence
    }

    pub(super) fn on_offer(
        &mut self,
        now: Instant,
        via: Option<KeyHash>,
        offer: Offer,
        out: &mut Vec<Output>,
    ) {
        let known = self.remote.as_ref().filter(|remote| remote.tag == offer.tag);
        let replayed = known.is_some_and(|remote| offer.sequence <= remote.sequence)
            || self.former_tags.contains(&offer.tag);
        if replayed {
            self.counters.replayed_offers += 1;
            return;
        }
        if !self.offers.take(now, 1, OFFER_RATE) {
            self.counters.limited += 1;
            return;
        }
        let leg_rtt = via.and_then(|relay| self.leg(relay)).map_or(Duration::ZERO, |leg| leg.rtt);
        let both_legs = leg_rtt + Duration::from_millis(offer.relay_rtt_ms.into());
        let one_way = (both_legs / 2).min(MAX_PUNCH_DELAY);
        let (purpose, sequence) = (offer.purpose, offer.sequence);
        if !self.set_remote(offer) {
            return;
        }
        if let Some(path) = via.and_then(|relay| self.path_mut(Route::Relay(relay))) {
            path.revive();
        }
        if purpose == Purpose::Ask && self.data_sent_at.is_some() {
            // The peer may have moved, and the path that carries data may be lost.
            self.on_data_sent(now, out);
        }
        match (purpose, &self.round) {
            (Purpose::Ask, round) => {
                // Probes of a round that is still to begin keep their time.
                let start = match round {
                    Round::Punching { start, bursts: 0 } => *start,
                    _ => now + one_way,
                };
                let punch_in_ms = millis(start.since(now));
                self.send_offer(via, Purpose::Answer { to: sequence, punch_in_ms }, out);
                self.punch_at(start);
            }
            (Purpose::Answer { to, punch_in_ms }, Round::Asked { sequence, .. })
                if to == *sequence =>
            {
                let punch_in = Duration::from_millis(punch_in_ms.into());
                self.punch_at(now + punch_in.saturating_sub(one_way).min(MAX_PUNCH_DELAY));
            }
            // The answer to an earlier offer has current addresses, but its time has passed.
            (Purpose::Answer { .. }, _) => {}
        }
    }

    fn punch_at(&mut self, start: Instant) {
        self.round = Round::Punching { start, bursts: 0 };
    }

    /// Stores the peer's offer and derives the keys of probes. Returns whether that succeeded.
    fn set_remote(&mut self, offer: Offer) -> bool {
        let Offer { sequence, tag, secret, nat, candidates, .. } = offer;
        if let Some(remote) = self.remote.as_mut().filter(|remote| remote.tag == tag) {
            remote.sequence = sequence;
            remote.nat = nat;
            remote.candidates = candidates;
            return true;
        }
        let (own, peer) = ((&self.own, &*self.secret), (&self.peer, &*secret));
        let (Ok(send), Ok(receive)) = (ProbeKey::derive(own, peer), ProbeKey::derive(peer, own))
        else {
            debug_assert!(false, "HMAC-SHA256 takes any key");
            return false;
        };
        let window = ReplayWindow::new();
        let remote = Remote { tag, sequence, nat, candidates, send, receive, window };
        if let Some(former) = self.remote.replace(remote) {
            self.former_tags.truncate(MAX_FORMER_TAGS - 1);
            self.former_tags.push_front(former.tag);
        }
        true
    }

    pub(super) fn probe_candidates(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Some(remote) = &self.remote else { return };
        let reachable = |candidate: &&Candidate| {
            let ipv6 = candidate.address().is_ipv6();
            let same_family = |own: &Candidate| own.address().is_ipv6() == ipv6;
            candidate.takes_datagrams()
                && self.candidates.iter().any(|own| own.takes_datagrams() && same_family(own))
        };
        let candidates: Vec<Candidate> =
            remote.candidates.iter().filter(reachable).copied().collect();
        for candidate in candidates {
            let route = Route::Direct { socket: MAIN_SOCKET, to: candidate.address() };
            self.add_path(now, route, Origin::Offered(candidate.kind()));
        }
        let direct: Vec<Route> =
            self.paths.iter().filter(|path| path.is_direct()).map(|path| path.route).collect();
        for route in direct {
            self.probe(now, route, out);
        }
    }

    fn end_round(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.round = Round::Idle { again: None };
        if self.paths.iter().any(|path| path.is_direct() && path.alive) {
            self.failed_rounds = 0;
            return;
        }
        self.failed_rounds = self.failed_rounds.saturating_add(1);
        let backoff = ROUND_BACKOFF * 2u32.saturating_pow((self.failed_rounds - 1).min(10));
        self.round = Round::Idle { again: Some(now + backoff.min(MAX_BACKOFF)) };
        self.begin_search(now, out);
    }
}

fn millis(time: Duration) -> u16 {
    u16::try_from(time.as_millis()).unwrap_or(u16::MAX)
}
