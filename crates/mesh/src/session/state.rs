//! The state of one session, except its records.

use adit_engine::command::Traffic;
use adit_engine::{Instant, PeerId};
use adit_openvpn::packet::SessionId;
use adit_openvpn::records::RecordSession;

use super::{KeyHash, Policy};

/// The number of traffic checks within one idle time.
const LOOKS: u32 = 4;

/// The protocol of a session.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Protocol {
    /// Between members, with data channels.
    Mesh,
    /// To join the mesh. Any key is accepted, and there are no data channels.
    Join,
}

impl Protocol {
    /// Both protocols, as offered by a listener.
    pub(super) const ALL: [Self; 2] = [Self::Mesh, Self::Join];

    /// Returns the name in TLS (ALPN).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mesh => "adit-mesh/1",
            Self::Join => "adit-mesh-join/1",
        }
    }

    pub(super) fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name().as_bytes() == name)
    }
}

/// A session in any state.
pub(super) struct Session {
    pub(super) record: RecordSession,
    /// The peer's expected key or, at the end that accepted the session, its proven key.
    pub(super) peer: Option<KeyHash>,
    pub(super) protocol: Protocol,
    /// The ids of our data channels; once the session is established, those in use.
    pub(super) ids: Vec<PeerId>,
    /// Whether the session stays open without traffic.
    pub(super) standing: bool,
    pub(super) began: Instant,
    pub(super) established: Option<Instant>,
    /// Whether it counts as one of the listener's handshakes; one for joining does so until it ends.
    pub(super) is_handshake: bool,
    /// The peer's session id, with which its packets are looked up.
    pub(super) filed: Option<SessionId>,
    /// Its time in the timer table.
    pub(super) scheduled: Option<Instant>,
    activity: Activity,
}

/// The traffic of a session since it began.
#[derive(Default)]
struct Activity {
    /// The tunnelled packets, by channel.
    packets: Vec<u64>,
    last: Instant,
    next_look: Option<Instant>,
}

impl Session {
    pub(super) fn new(now: Instant, record: RecordSession, protocol: Protocol) -> Self {
        Self {
            record,
            peer: None,
            protocol,
            ids: Vec::new(),
            standing: false,
            began: now,
            established: None,
            is_handshake: false,
            filed: None,
            scheduled: None,
            activity: Activity { last: now, ..Activity::default() },
        }
    }

    /// Records that the session is established with these channels.
    pub(super) fn establish(&mut self, now: Instant, ids: Vec<PeerId>, policy: &Policy) {
        self.established = Some(now);
        let look = (!ids.is_empty()).then(|| now + policy.idle_after / LOOKS);
        self.activity = Activity { packets: vec![0; ids.len()], last: now, next_look: look };
        self.ids = ids;
    }

    /// Records activity.
    pub(super) fn touch(&mut self, now: Instant) {
        self.activity.last = now;
    }

    /// Returns whether it is time to check the traffic, and schedules the next check.
    pub(super) fn looks(&mut self, now: Instant, policy: &Policy) -> bool {
        let due = self.activity.next_look.is_some_and(|at| at <= now);
        if due {
            self.activity.next_look = Some(now + policy.idle_after / LOOKS);
        }
        due
    }

    /// Processes the traffic of a channel. Returns true if the session has been idle for too long,
    /// once the last channel's traffic is known.
    pub(super) fn traffic(
        &mut self,
        now: Instant,
        peer: PeerId,
        traffic: Traffic,
        policy: &Policy,
    ) -> bool {
        let packets = traffic.packets.saturating_sub(traffic.in_band_packets);
        let at = self.ids.iter().position(|id| *id == peer);
        if let Some(seen) = at.and_then(|at| self.activity.packets.get_mut(at))
            && std::mem::replace(seen, packets) != packets
        {
            self.touch(now);
        }
        let is_last = self.ids.last() == Some(&peer);
        is_last && !self.standing && self.activity.last + policy.idle_after <= now
    }

    /// Returns the time by which the joining session must be over.
    pub(super) fn ends(&self, policy: &Policy) -> Option<Instant> {
        (self.protocol == Protocol::Join).then(|| self.began + policy.join_lasts)
    }

    pub(super) fn deadline(&self, policy: &Policy) -> Option<(Instant, &'static str)> {
        let look = self.activity.next_look.map(|at| (at, "idle"));
        let ends = self.ends(policy).map(|at| (at, "joining"));
        [self.record.deadline(), look, ends].into_iter().flatten().min()
    }
}
