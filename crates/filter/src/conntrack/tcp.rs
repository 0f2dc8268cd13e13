//! TCP as seen between its two ends: the state of both, and the sequence numbers that each can have reached.
//!
//! States, their order and the bounds of the windows are those of Linux, so the same rule file has the same meaning in
//! both; they are based on G. van Rooij, "Real Stateful TCP Packet Filtering in IP Filter". A reset ends a connection
//! only at the next expected byte (RFC 5961 section 3), and a SYN in an open connection changes nothing (section 4):
//! the answers that its receiver sends to either pass.

use serde::{Deserialize, Serialize};

use super::{Invalid, Timeouts};
use crate::packet::{Packet, Transport};
use crate::ruleset::CtDirection;
use adit_wire::transport::flags as bits;

mod window;

/// The state of a connection.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[repr(u8)]
pub(super) enum State {
    /// No segment was seen.
    None,
    SynSent,
    /// Both ends have sent a SYN, and neither has answered.
    BothSynSent,
    SynRecv,
    Established,
    FinWait,
    CloseWait,
    LastAck,
    TimeWait,
    Close,
}

/// The kind of a segment.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[repr(u8)]
pub(super) enum Kind {
    None,
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
}

/// The observed state of one end.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Side {
    /// The number after the last byte that the end has sent.
    end: u32,
    /// The number after the last byte that the end may send.
    limit: u32,
    /// The largest window that the end has offered, in bytes; 0 before its first packet.
    window: u32,
    /// The last byte that the end has acknowledged.
    acked: u32,
    /// The end's window scale.
    scale: u8,
    flags: u8,
}

/// The end scales windows.
const SCALES: u8 = 1;
/// The end supports selective acknowledgements.
const SACK: u8 = 2;
/// The end closed first.
const CLOSED: u8 = 4;
/// The end's scale is unknown, so its windows are not checked.
const LIBERAL: u8 = 8;
/// Some of the end's data is not acknowledged.
const UNACKNOWLEDGED: u8 = 16;
/// `acked` is valid.
const ACKED: u8 = 32;

impl Side {
    const EMPTY: Self = Self { end: 0, limit: 0, window: 0, acked: 0, scale: 0, flags: 0 };

    const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A tracked TCP connection.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tcp {
    sides: [Side; 2],
    last_seq: u32,
    last_ack: u32,
    last_end: u32,
    last_window: u16,
    last_kind: Kind,
    last_reply: bool,
    /// The number of consecutive repetitions of the last acknowledgement.
    copies: u8,
    /// The flags and scale of a SYN that passed although it was not verified.
    doubted_flags: u8,
    doubted_scale: u8,
    pub(super) state: State,
}

/// A SYN carries no more than a full segment (RFC 7413).
const SYN_DATA: u32 = 1460;
/// The unverified SYN may be answered by an acknowledgement that looks like the acknowledgement of the last FIN (RFC
/// 5961 section 4.2).
const CHALLENGED: u8 = 64;
/// Both ends sent a SYN.
const SIMULTANEOUS: u8 = 128;

/// The fields of a segment that tracking needs.
#[derive(Clone, Debug)]
pub(super) struct Segment<'a> {
    kind: Kind,
    seq: u32,
    ack: u32,
    /// The number after its last byte; SYN and FIN count one each. A super-packet is one segment.
    end: u32,
    window: u16,
    flags: u8,
    options: &'a [u8],
}

/// The effect of a segment on a connection.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// The connection continues.
    Accept(Accepted),
    /// The segment passes, but changes nothing.
    Ignore,
    /// The segment is impossible.
    Invalid(Invalid),
    /// The connection has ended, and the segment starts another one in its place.
    Reopen,
    /// The connection ended before it was answered.
    Gone,
}

/// The changes to a connection that continues.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Accepted {
    /// The segment shows that the connection is alive.
    pub(super) refresh: bool,
    /// The connection's handshake is complete.
    pub(super) assured: bool,
    /// The connection may be dead.
    pub(super) stuck: bool,
}

enum Next {
    To(State),
    Ignore,
    Invalid,
}

/// Returns the state after a segment, based only on the order of segments.
fn next(state: State, kind: Kind, direction: CtDirection) -> Next {
    use CtDirection::{Original, Reply};
    use Kind::{Ack, Fin, Rst, Syn, SynAck};
    use State::{
        BothSynSent, Close, CloseWait, Established, FinWait, LastAck, SynRecv, SynSent, TimeWait,
    };
    let state = match (kind, direction, state) {
        (Syn, Original, State::None | SynSent | TimeWait | Close) => SynSent,
        (Syn, Reply, TimeWait) => SynSent,
        (Syn, _, BothSynSent) | (Syn, Reply, SynSent) => BothSynSent,
        (Syn, Original, _) => return Next::Ignore,
        (SynAck, Original, SynRecv | BothSynSent) => SynRecv,
        (SynAck, Reply, SynSent | BothSynSent) => SynRecv,
        (SynAck, Reply, State::None) => return Next::Invalid,
        (SynAck, Reply, _) => return Next::Ignore,
        (Fin, _, SynRecv | Established) => FinWait,
        (Fin, _, FinWait | CloseWait | LastAck) => LastAck,
        (Ack, Original, State::None | SynRecv) | (Ack, _, Established) => Established,
        (Ack, Reply, SynRecv) => SynRecv,
        (Ack, Reply, SynSent | BothSynSent) => return Next::Ignore,
        (Ack, _, FinWait | CloseWait) => CloseWait,
        (Ack, _, LastAck) => TimeWait,
        (Fin | Ack, _, TimeWait | Close) => state,
        (Rst, _, State::None) => return Next::Invalid,
        (Rst, _, _) => Close,
        _ => return Next::Invalid,
    };
    Next::To(state)
}

impl<'a> Segment<'a> {
    /// Returns the segment of a packet; `None` if it is not TCP or its flags never occur together.
    pub(super) fn of(packet: &Packet<'a>) -> Option<Self> {
        let (Transport::Tcp(tcp), Some(ip)) = (packet.transport, packet.ip()) else { return None };
        let bytes: &'a [u8] = packet.bytes.get(ip.payload..)?;
        let window = u16::from_be_bytes(*bytes.get(14..)?.first_chunk()?);
        let kind = kind(tcp.flags)?;
        let data = bytes.len().saturating_sub(tcp.header_len) as u32;
        let controls = u32::from(tcp.flags & bits::SYN != 0)
            .wrapping_add(u32::from(tcp.flags & bits::FIN != 0));
        Some(Self {
            kind,
            seq: tcp.seq,
            ack: tcp.ack,
            end: tcp.seq.wrapping_add(data).wrapping_add(controls),
            window,
            flags: tcp.flags,
            options: bytes.get(adit_wire::transport::TCP_LEN..tcp.header_len)?,
        })
    }

    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Returns the kind of a segment with these flags; `None` if they never occur together.
const fn kind(flags: u8) -> Option<Kind> {
    const FIN_ACK: u8 = bits::FIN | bits::ACK;
    const SYN_ACK: u8 = bits::SYN | bits::ACK;
    const RST_ACK: u8 = bits::RST | bits::ACK;
    // PSH and the ECN bits occur with anything, URG with segments that may carry data.
    let urgent = flags & bits::URG != 0;
    match flags & !(bits::PSH | bits::ECE | bits::CWR | bits::URG) {
        bits::SYN => Some(Kind::Syn),
        SYN_ACK if !urgent => Some(Kind::SynAck),
        FIN_ACK => Some(Kind::Fin),
        bits::ACK => Some(Kind::Ack),
        bits::RST | RST_ACK if !urgent => Some(Kind::Rst),
        _ => None,
    }
}

impl Tcp {
    pub(super) const EMPTY: Self = Self {
        sides: [Side::EMPTY; 2],
        last_seq: 0,
        last_ack: 0,
        last_end: 0,
        last_window: 0,
        last_kind: Kind::None,
        last_reply: false,
        copies: 0,
        doubted_flags: 0,
        doubted_scale: 0,
        state: State::None,
    };

    /// Returns whether a segment can be the first of a connection: a SYN or, with `loose`, an acknowledgement from the
    /// middle of one.
    pub(super) fn may_start(segment: &Segment<'_>, loose: bool) -> bool {
        match segment.kind {
            Kind::Syn => true,
            Kind::Ack => loose,
            _ => false,
        }
    }

    /// Creates a connection from the first observed segment.
    pub(super) fn start(segment: &Segment<'_>) -> Self {
        let mut tcp = Self::EMPTY;
        let [sender, receiver] = &mut tcp.sides;
        sender.end = segment.end;
        sender.window = u32::from(segment.window).max(1);
        if segment.kind == Kind::Syn {
            sender.limit = sender.end;
            sender.take_options(segment.options);
        } else {
            sender.limit = sender.end.wrapping_add(sender.window);
            (sender.flags, receiver.flags) = (SACK | LIBERAL, SACK | LIBERAL);
        }
        // Called for its effect on the windows: there is no earlier segment that this one could contradict.
        let _ = tcp.window(segment, CtDirection::Original);
        tcp.state = if segment.kind == Kind::Syn { State::SynSent } else { State::Established };
        tcp.remember(segment.kind, CtDirection::Original);
        tcp
    }

    /// Processes one segment. `answered` means that a packet in the opposite direction was seen before, `assured` that
    /// the handshake was completed.
    pub(super) fn segment(
        &mut self,
        segment: &Segment<'_>,
        direction: CtDirection,
        answered: bool,
        assured: bool,
    ) -> Outcome {
        let mut old = self.state;
        let mut new = match next(old, segment.kind, direction) {
            Next::To(new) => new,
            Next::Invalid => return Outcome::Invalid(Invalid::State),
            Next::Ignore if self.answers_doubted(segment, direction) => {
                self.believe_doubted(direction);
                old = State::SynSent;
                State::SynRecv
            }
            Next::Ignore => return self.pass_unverified(segment, direction),
        };
        match new {
            State::SynSent if matches!(old, State::TimeWait | State::Close) => {
                return if self.reopens(direction) {
                    Outcome::Reopen
                } else {
                    self.pass_unverified(segment, direction)
                };
            }
            State::TimeWait if self.is_challenge_ack(segment, direction, old) => {
                self.doubted_flags &= !CHALLENGED;
                return Outcome::Ignore;
            }
            State::BothSynSent => self.doubted_flags |= SIMULTANEOUS,
            State::SynRecv
                if direction == CtDirection::Reply
                    && segment.kind == Kind::Ack
                    && self.doubted_flags & SIMULTANEOUS != 0 =>
            {
                new = State::Established;
            }
            _ => {}
        }
        let mut inside = false;
        if segment.kind == Kind::Rst {
            match self.reset(segment, direction, old, (answered, assured)) {
                Reset::Invalid => return Outcome::Invalid(Invalid::Reset),
                Reset::Certain => inside = true,
                Reset::Likely => {}
                Reset::Challenge => new = old,
                Reset::Doubtful => return Outcome::Ignore,
            }
        }
        if !inside {
            match self.window(segment, direction) {
                Ok(true) => {}
                Ok(false) => return Outcome::Ignore,
                Err(invalid) => return Outcome::Invalid(invalid),
            }
        }
        self.remember(segment.kind, direction);
        if segment.kind == Kind::Syn {
            // A reset that acknowledges an older segment does not answer this one; for a reset that acknowledges this
            // one, the windows decide.
            self.last_end = 0;
        }
        self.state = new;
        if old != new && new == State::FinWait {
            self.side(direction).flags |= CLOSED;
        }
        self.accepted(segment, (old, new), answered, assured)
    }

    fn accepted(
        &self,
        segment: &Segment<'_>,
        (old, new): (State, State),
        answered: bool,
        assured: bool,
    ) -> Outcome {
        if !answered && segment.kind == Kind::Rst {
            // A lone reset as the only answer: there is no connection.
            return Outcome::Gone;
        }
        let waiting = self.sides.iter().any(|side| side.is(UNACKNOWLEDGED));
        Outcome::Accept(Accepted {
            // An unanswered SYN must not keep its entry alive by being repeated.
            refresh: answered
                || segment.kind != Kind::Syn
                || (old, new) != (State::SynSent, State::SynSent),
            assured: answered
                && !assured
                && matches!(old, State::SynRecv | State::Established)
                && new == State::Established,
            stuck: self.copies >= Timeouts::MAX_COPIES
                || waiting
                || self.last_window == 0
                || segment.kind == Kind::Rst,
        })
    }

    fn remember(&mut self, kind: Kind, direction: CtDirection) {
        self.last_kind = kind;
        self.last_reply = direction == CtDirection::Reply;
    }

    fn last_was(&self, kind: Kind, direction: CtDirection) -> bool {
        self.last_kind == kind && self.last_reply == (direction == CtDirection::Reply)
    }

    fn side(&mut self, direction: CtDirection) -> &mut Side {
        self.ends(direction).0
    }

    /// Returns sender and receiver.
    fn ends(&mut self, direction: CtDirection) -> (&mut Side, &mut Side) {
        let [original, reply] = &mut self.sides;
        match direction {
            CtDirection::Original => (original, reply),
            CtDirection::Reply => (reply, original),
        }
    }

    /// Returns whether a SYN may replace a connection that has ended, because it was closed in order (RFC 9293 3.6.1)
    /// or the SYN's sender has reset it.
    fn reopens(&self, direction: CtDirection) -> bool {
        self.sides.iter().any(|side| side.is(CLOSED)) || self.last_was(Kind::Rst, direction)
    }

    /// Lets a segment that does not fit pass, and records it, because the ends may know more than the filter does.
    fn pass_unverified(&mut self, segment: &Segment<'_>, direction: CtDirection) -> Outcome {
        self.remember(segment.kind, direction);
        self.last_seq = segment.seq;
        self.last_end = segment.end;
        self.last_window = segment.window;
        if segment.kind == Kind::Syn && direction == CtDirection::Original {
            let mut offered = Side::EMPTY;
            offered.take_options(segment.options);
            self.doubted_scale = offered.scale;
            self.doubted_flags = offered.flags;
            if self.state == State::LastAck {
                self.doubted_flags |= CHALLENGED;
            }
        }
        let early = matches!(self.state, State::SynSent);
        if early && segment.kind == Kind::Ack && direction == CtDirection::Reply {
            self.last_ack = segment.ack;
        }
        Outcome::Ignore
    }

    /// Returns whether a SYN/ACK acknowledges the unverified SYN, which means that both ends have started again.
    fn answers_doubted(&self, segment: &Segment<'_>, direction: CtDirection) -> bool {
        segment.kind == Kind::SynAck
            && self.last_was(Kind::Syn, against(direction))
            && segment.ack == self.last_end
    }

    fn believe_doubted(&mut self, direction: CtDirection) {
        let (end, window) = (self.last_end, u32::from(self.last_window).max(1));
        let (scale, flags) = (self.doubted_scale, self.doubted_flags & (SCALES | SACK));
        let (sender, receiver) = self.ends(direction);
        *sender = Side::EMPTY;
        *receiver = Side { end, limit: end, window, scale, flags, ..*receiver };
        self.doubted_flags = flags;
    }

    /// Returns whether an acknowledgement answers the unverified SYN rather than the last FIN.
    fn is_challenge_ack(&self, segment: &Segment<'_>, direction: CtDirection, old: State) -> bool {
        old == State::LastAck
            && segment.kind == Kind::Ack
            && self.last_was(Kind::Syn, against(direction))
            && self.doubted_flags & CHALLENGED != 0
    }

    fn reset(
        &mut self,
        segment: &Segment<'_>,
        direction: CtDirection,
        old: State,
        (answered, assured): (bool, bool),
    ) -> Reset {
        let established = old == State::Established && assured;
        let receiver = *self.ends(direction).1;
        let exact = segment.seq == receiver.acked
            || self.last_was(Kind::Ack, direction) && segment.seq == self.last_end;
        let answers_last = segment.has(bits::ACK) && segment.ack == self.last_end;
        let answers_syn = answered && self.last_kind == Kind::Syn && answers_last;
        match old {
            State::TimeWait | State::Close => return Reset::Certain,
            // RFC 9293 3.10.7.3: the reset must acknowledge the SYN, with or without data after it.
            State::SynSent if direction == CtDirection::Reply => {
                let short = receiver.end.wrapping_sub(segment.ack);
                let good = segment.has(bits::ACK) && short <= SYN_DATA;
                return if good { Reset::Likely } else { Reset::Invalid };
            }
            State::FinWait | State::CloseWait | State::LastAck => {
                let certain = exact || answers_syn || !receiver.is(ACKED);
                return if certain { Reset::Certain } else { Reset::Doubtful };
            }
            _ => {}
        }
        if receiver.is(ACKED) && self.last_kind != Kind::Syn {
            if segment.seq == 0 && !established {
                return Reset::Likely;
            }
            if before(segment.seq, receiver.acked) {
                return Reset::Invalid;
            }
            if !established || exact {
                return Reset::Likely;
            }
        }
        if answers_syn
            || !assured && self.last_kind == Kind::Ack && answers_last
            || old == State::SynSent
                && self.last_was(Kind::Ack, CtDirection::Reply)
                && segment.seq == self.last_ack
        {
            // The reset answers a segment that passed.
            Reset::Certain
        } else if established && receiver.is(ACKED) && !exact {
            Reset::Challenge
        } else {
            Reset::Likely
        }
    }
}

/// The classification of a reset.
enum Reset {
    /// The reset precedes data that was already acknowledged. Neither end of the connection sends such a reset.
    Invalid,
    /// The reset ends the connection if it is in the window.
    Likely,
    /// The reset ends the connection.
    Certain,
    /// The reset is in the window but not at the next expected byte, so its receiver sends a challenge.
    Challenge,
    /// The reset may belong to another connection with the same ports.
    Doubtful,
}

const fn against(direction: CtDirection) -> CtDirection {
    match direction {
        CtDirection::Original => CtDirection::Reply,
        CtDirection::Reply => CtDirection::Original,
    }
}

/// Returns whether `a` precedes `b` in sequence number order, which wraps around.
const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
