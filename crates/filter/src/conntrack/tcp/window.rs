//! The windows of a connection, and its options.

use super::{
    ACKED, Kind, LIBERAL, SACK, SCALES, Segment, Side, State, Tcp, UNACKNOWLEDGED, before, bits,
};
use crate::conntrack::Invalid;
use crate::ruleset::CtDirection;

/// The least amount by which acknowledgements may lag behind the newest byte; it is the largest
/// window if that is larger.
const ACK_WINDOW: u32 = 66_000;
/// The maximum window scale (RFC 7323 2.3).
const MAX_SCALE: u8 = 14;

impl Side {
    /// Records the window scale and selective acknowledgements that a SYN offers.
    pub(super) fn take_options(&mut self, options: &[u8]) {
        if options.is_empty() {
            return;
        }
        self.scale = 0;
        self.flags &= LIBERAL;
        for (kind, body) in Options(options) {
            match (kind, body) {
                (3, &[scale]) => {
                    self.scale = scale.min(MAX_SCALE);
                    self.flags |= SCALES;
                }
                (4, []) => self.flags |= SACK,
                _ => {}
            }
        }
    }
}

impl Tcp {
    /// Checks whether a segment fits the state of both ends. If so, updates that state and returns
    /// `true`. Returns `false` for a segment that passes without an update: a late one, such as a
    /// repetition of data that the receiver has, or one a little beyond the receiver's window, as
    /// some senders do.
    ///
    /// With `end` of the sender, `limit` of what it may send, and the receiver's window: `seq <=
    /// limit`, or `end < limit + window` if it is no reset (RFC 5961 3.2), and `ack <=
    /// receiver.end`, else it is invalid; `end > sender.end - window` and `ack > receiver.end -
    /// largest window`, else it is late.
    pub(super) fn window(
        &mut self,
        segment: &Segment<'_>,
        direction: CtDirection,
    ) -> Result<bool, Invalid> {
        let before = self.sides;
        let verdict = self.fits(segment, direction);
        if verdict != Ok(WindowFit::Good) {
            // Undoes the connection start that the segment seemed to show.
            self.sides = before;
        }
        if verdict == Ok(WindowFit::Beyond) {
            // If the receiver accepts the segment, its acknowledgement must pass, or all later
            // segments are lost.
            self.side(direction).end = segment.end;
        }
        verdict.map(|fit| fit == WindowFit::Good)
    }

    fn fits(
        &mut self,
        segment: &Segment<'_>,
        direction: CtDirection,
    ) -> Result<WindowFit, Invalid> {
        let state = self.state;
        let (sender, receiver) = self.ends(direction);
        let Segment { mut seq, mut ack, mut end, .. } = *segment;
        let mut sack = if receiver.is(SACK) { highest(ack, segment.options) } else { ack };
        let syn = segment.has(bits::SYN);
        if sender.window == 0 && !syn {
            sender.pick_up(receiver, segment, sack);
        } else if sender.window == 0
            || syn && before(sender.end, end) && matches!(state, State::SynSent | State::SynRecv)
        {
            sender.begin(receiver, segment, direction);
            if direction == CtDirection::Reply && !segment.has(bits::ACK) {
                return Ok(WindowFit::Good);
            }
        }
        let reset = segment.has(bits::RST);
        if !segment.has(bits::ACK) || reset && ack == 0 {
            (ack, sack) = (receiver.end, receiver.end);
        }
        if reset && seq == 0 && state == State::SynSent {
            // The answer to a SYN has no starting number.
            (seq, end) = (sender.end, sender.end);
        }
        let liberal = sender.is(LIBERAL);
        match verdict(sender, receiver, (seq, end), sack) {
            Ok(WindowFit::Good) => {}
            _ if liberal => return Ok(WindowFit::Good),
            Ok(WindowFit::Beyond) if reset => return Err(Invalid::Sequence),
            other => return other,
        }
        sender.learn(receiver, segment, (ack, sack, end));
        self.count_copies(segment, direction, (seq, ack, end));
        Ok(WindowFit::Good)
    }

    fn count_copies(
        &mut self,
        segment: &Segment<'_>,
        direction: CtDirection,
        (seq, ack, end): (u32, u32, u32),
    ) {
        if segment.kind != Kind::Ack {
            return;
        }
        let reply = direction == CtDirection::Reply;
        let last = (self.last_reply, self.last_seq, self.last_ack, self.last_end, self.last_window);
        if last == (reply, seq, ack, end, segment.window) {
            self.copies = self.copies.saturating_add(1);
        } else {
            self.copies = 0;
            self.last_seq = seq;
            self.last_ack = ack;
            self.last_end = end;
            self.last_window = segment.window;
        }
    }
}

/// The position of a plausible segment in the window.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum WindowFit {
    Good,
    Late,
    Beyond,
}

fn verdict(
    sender: &Side,
    receiver: &Side,
    (seq, end): (u32, u32),
    sack: u32,
) -> Result<WindowFit, Invalid> {
    let backwards = sender.window.max(ACK_WINDOW).wrapping_add(1);
    let late = receiver.window != 0
        && !before(sender.end.wrapping_sub(receiver.window).wrapping_sub(1), end)
        || !before(receiver.end.wrapping_sub(backwards), sack);
    let beyond = before(sender.limit, seq);
    if beyond && (late || end.wrapping_sub(sender.limit) >= receiver.window) {
        Err(Invalid::Sequence)
    } else if before(receiver.end, sack) {
        Err(Invalid::Acknowledgement)
    } else if beyond {
        Ok(WindowFit::Beyond)
    } else if late {
        Ok(WindowFit::Late)
    } else {
        Ok(WindowFit::Good)
    }
}

impl Side {
    /// Initializes this end from its first observed segment, or from the first after a reopening: a
    /// SYN.
    fn begin(&mut self, receiver: &mut Self, segment: &Segment<'_>, direction: CtDirection) {
        self.end = segment.end;
        self.limit = segment.end;
        self.window = u32::from(segment.window).max(1);
        self.take_options(segment.options);
        // Windows are scaled only if both ends offer it (RFC 7323 2.2), which the second SYN shows.
        if direction == CtDirection::Reply && !(self.is(SCALES) && receiver.is(SCALES)) {
            (self.scale, receiver.scale) = (0, 0);
        }
    }

    /// Initializes this end from a first observed segment in the middle of a connection.
    fn pick_up(&mut self, receiver: &mut Self, segment: &Segment<'_>, sack: u32) {
        self.end = segment.end;
        self.window = (u32::from(segment.window) << self.scale.min(MAX_SCALE)).max(1);
        self.limit = segment.end.wrapping_add(self.window);
        if receiver.window == 0 {
            (receiver.end, receiver.limit) = (sack, sack);
        } else if sack == receiver.end.wrapping_add(1) && !segment.has(bits::RST) {
            // A keepalive is one byte behind, and this segment seems to answer one.
            receiver.end = sack;
        }
    }

    /// Updates the state of both ends from a valid segment of this end.
    fn learn(
        &mut self,
        receiver: &mut Self,
        segment: &Segment<'_>,
        (ack, sack, end): (u32, u32, u32),
    ) {
        let scale = if segment.has(bits::SYN) { 0 } else { self.scale.min(MAX_SCALE) };
        let window = u32::from(segment.window) << scale;
        self.window = self.window.max(window.wrapping_add(sack.wrapping_sub(ack)));
        if before(self.end, end) {
            self.end = end;
            self.flags |= UNACKNOWLEDGED;
        }
        if segment.has(bits::ACK) && (!self.is(ACKED) || before(self.acked, ack)) {
            self.acked = ack;
            self.flags |= ACKED;
        }
        if receiver.window != 0 && before(self.limit, end) {
            receiver.window = receiver.window.saturating_add(end.wrapping_sub(self.limit));
        }
        let offered = sack.wrapping_add(window);
        if !before(offered, receiver.limit) {
            // A zero window is probed with one byte.
            receiver.limit = if window == 0 { offered.wrapping_add(1) } else { offered };
        }
        if ack == receiver.end {
            receiver.flags &= !UNACKNOWLEDGED;
        }
    }
}

/// Returns the highest byte that a segment acknowledges, cumulatively or selectively (RFC 2018).
fn highest(ack: u32, options: &[u8]) -> u32 {
    let mut highest = ack;
    for (kind, body) in Options(options) {
        if kind == 5 && body.len() % 8 == 0 {
            for block in body.chunks_exact(8) {
                if let Some(right) = block.last_chunk().map(|right| u32::from_be_bytes(*right))
                    && before(highest, right)
                {
                    highest = right;
                }
            }
            break;
        }
    }
    highest
}

/// The TCP options that have a body, up to the first malformed one.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&kind, rest) = self.0.split_first()?;
            match kind {
                0 => return None,
                1 => self.0 = rest,
                _ => {
                    let length = usize::from(*rest.first()?);
                    let (option, rest) = self.0.split_at_checked(length)?;
                    self.0 = rest;
                    return Some((kind, option.get(2..)?));
                }
            }
        }
    }
}
