//! Paths to a peer: its possible addresses, those that work, and the one that carries data.

mod candidate;
mod finder;
mod nat;
mod probe;
mod record;
mod relay_budget;
mod relays;

pub use crate::wire::{DecodeError, is_usable};
pub use candidate::{Candidate, CandidateKind, MAX_CANDIDATES, is_private};
pub use finder::{
    CandidateReport, Input, LostReport, MAIN_SOCKET, MAX_GUESSES, MAX_PATHS, MAX_RELAYS, NatReport,
    NodeReport, Output, PathCounters, PathFinder, PathReport, PunchBudget, RelayLeg, RelayReason,
    Report, Route, RouteReport, SEARCH_SOCKETS, SearchReport, SearchState,
};
pub use nat::{MAX_OBSERVERS, NatInfo, NatKind, NatObserver};
pub use probe::{
    FIRST_BYTE, MAX_PROBE, MIN_PROBE, Nonce, Probe, ProbeKey, ProbeKind, ReplayWindow, Tag,
};
pub use record::{MAX_RECORD, Offer, Purpose, Record};
pub use relay_budget::{MAX_PAIRS, RelayBudget, RelayCounters};
pub use relays::{RELAYS_PER_NODE, STANDING_NEIGHBOURS, relays_of, standing_neighbours};

/// The SHA-256 of a node's public key.
pub type KeyHash = [u8; 32];
