//! Fuzzes the search for paths to a peer of the mesh. No order of records, probes and changes of the network makes the
//! finder panic, exceed its bounds, or stay busy without the passage of time.
//!
//! The input is a list of steps, each with its kind, a length, and that many bytes.
#![cfg_attr(fuzzing, no_main)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, SocketId};
use adit_mesh::path::{
    Candidate, CandidateKind, Input, MAIN_SOCKET, MAX_PATHS, MAX_RELAYS, NatInfo, NatKind, Offer,
    Output, PathFinder, Probe, ProbeKey, PunchBudget, Record, RelayLeg,
};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const OWN: [u8; 32] = [1; 32];
const PEER: [u8; 32] = [2; 32];
const MAX_STEPS: usize = 64;
const NATS: [NatKind; 5] = [
    NatKind::Unknown,
    NatKind::None,
    NatKind::EndpointIndependent,
    NatKind::Symmetric { sequential: true },
    NatKind::UdpBlocked,
];

struct Player {
    now: Instant,
    finder: PathFinder,
    /// The finder's last offer, and the peer's.
    own: Option<Offer>,
    peer: Option<Offer>,
}

pub fn run(bytes: &[u8]) {
    let budget = Arc::new(PunchBudget::default());
    let mut player = Player {
        now: Instant::from_nanos(1_000_000_000_000),
        finder: PathFinder::new(OWN, PEER, Random::new([7; 32]), budget),
        own: None,
        peer: None,
    };
    player.handle(Input::Relays(vec![leg(9)]));
    player.handle(Input::DataSent);
    let mut rest = bytes;
    for _ in 0..MAX_STEPS {
        let [kind, length, more @ ..] = rest else { break };
        let (step, more) = more.split_at(more.len().min(usize::from(*length)));
        player.step(*kind, step);
        rest = more;
    }
}

fn leg(relay: u8) -> RelayLeg {
    let rtt = Duration::from_millis(relay.into());
    RelayLeg { relay: [relay; 32], stream: relay.is_multiple_of(2), rtt, mtu: 1400 }
}

/// Returns an address that depends on the first byte.
fn address(step: &[u8]) -> SocketAddr {
    let number = step.first().copied().unwrap_or(1);
    let ip: [u8; 4] = if number < 128 { [203, 0, 113, number] } else { [10, 0, 0, number] };
    SocketAddr::from((ip, 1000 + u16::from(number % 16)))
}

impl Player {
    fn step(&mut self, kind: u8, step: &[u8]) {
        let first = step.first().copied().unwrap_or(0);
        match kind % 9 {
            0 => {
                if let Ok(Record::Offer(offer)) = Record::decode(step) {
                    self.peer = Some(*offer);
                }
                self.handle(Input::Record { from: PEER, via: Some([9; 32]), bytes: step });
            }
            1 => self.probe(step, step),
            2 => {
                let sealed = step.split_first().and_then(|(_, body)| self.seal(body));
                self.probe(step, sealed.as_deref().unwrap_or(step));
            }
            3 => self.pass(Duration::from_millis(20) * u32::from(first)),
            4 => self.handle(Input::DataSent),
            5 => {
                let kind = NATS[usize::from(first) % NATS.len()];
                let own = Candidate::new(address(step), CandidateKind::Own);
                let nat = NatInfo { kind, ..NatInfo::default() };
                self.handle(Input::Local { candidates: own.into_iter().collect(), nat });
            }
            6 => self.handle(Input::Relays(step.iter().map(|relay| leg(*relay)).collect())),
            7 => {
                let sockets = step.iter().map(|socket| SocketId(u16::from(*socket))).collect();
                self.handle(Input::SocketsOpened(sockets));
            }
            _ if first % 4 == 3 => self.handle(Input::StreamDown(u64::from(first / 4))),
            _ => {
                let id = u64::from(first / 4);
                self.handle(Input::EstablishedStream { id, to: address(step) });
            }
        }
    }

    fn probe(&mut self, step: &[u8], bytes: &[u8]) {
        let from = address(step);
        self.handle(Input::Datagram { socket: MAIN_SOCKET, from, local: None, bytes });
    }

    /// Returns the authentic probe of the peer with this body.
    fn seal(&self, body: &[u8]) -> Option<Vec<u8>> {
        let (own, peer) = (self.own.as_ref()?, self.peer.as_ref()?);
        let probe = Probe { tag: own.tag, ..Probe::decode(body).ok()? };
        let key = ProbeKey::derive((&PEER, &peer.secret), (&OWN, &own.secret)).unwrap();
        Some(key.seal(&probe))
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, _)) = self.finder.deadline().filter(|(at, _)| *at <= end) {
            self.now = at.max(self.now);
            for tick in 0.. {
                let Some((at, reason)) = self.finder.deadline() else { break };
                if at > self.now {
                    break;
                }
                assert!(tick < 8, "a deadline stays due: {reason}");
                self.handle(Input::Tick);
            }
        }
        self.now = end;
    }

    fn handle(&mut self, input: Input<'_>) {
        let mut out = Vec::new();
        self.finder.handle(self.now, input, &mut out);
        assert!(out.len() < 1000, "{} outputs", out.len());
        let report = self.finder.report(self.now);
        assert!(report.paths.len() <= MAX_PATHS + MAX_RELAYS);
        assert!(!report.to_string().is_empty());
        for output in out {
            if let Output::SendRecord { bytes, .. } = output
                && let Record::Offer(offer) = Record::decode(&bytes).unwrap()
            {
                self.own = Some(*offer);
            }
        }
    }
}
