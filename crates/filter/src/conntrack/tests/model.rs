//! Tests with two simulated ends of a TCP connection: whatever the network loses, reorders or duplicates, their segments are never invalid,
//! and segments of an attacker who cannot see theirs change nothing.

use proptest::prelude::*;

use super::*;

/// An end that sends data, acknowledges selectively, retransmits lost data, closes or resets.
#[derive(Clone, Debug)]
struct End {
    back: bool,
    start: u32,
    /// The offset up to which its data is acknowledged; offsets count from the SYN, which is byte 0.
    acked: u32,
    next: u32,
    total: u32,
    fin: bool,
    /// The window that the other end offered last.
    offered: u32,
    their_scale: u8,
    /// The end of the data received in order; one block after a gap may have been received too.
    received: u32,
    block: Option<(u32, u32)>,
    their_start: Option<u32>,
    their_end: Option<u32>,
    buffer: u32,
    scale: u8,
    sack: bool,
    sent_syn: bool,
}

impl End {
    fn flag_len(&self) -> u32 {
        self.total + 1 + u32::from(self.fin)
    }

    fn window(&self, syn: bool) -> u16 {
        let kept = self.block.map_or(0, |(left, right)| right - left);
        let free = self.buffer.saturating_sub(kept);
        if syn { free.min(65_535) as u16 } else { (free >> self.scale).min(65_535) as u16 }
    }

    fn ack(&self) -> u32 {
        self.their_start.unwrap_or(0).wrapping_add(self.received)
    }

    fn segment(&self, flags: u8, at: u32, len: u32) -> Seg {
        let mut options = Vec::new();
        if flags & SYN != 0 {
            options.extend([1, 3, 3, self.scale]);
            if self.sack {
                options.extend([4, 2, 1, 1]);
            }
        } else if let (true, Some((left, right)), Some(start)) =
            (self.sack, self.block, self.their_start)
        {
            options.extend([1, 1, 5, 10]);
            options.extend(start.wrapping_add(left).to_be_bytes());
            options.extend(start.wrapping_add(right).to_be_bytes());
        }
        let ack = if flags & ACK != 0 { self.ack() } else { 0 };
        let (back, window) = (self.back, self.window(flags & SYN != 0));
        let seq = self.start.wrapping_add(at);
        Seg { v6: false, back, flags, seq, ack, window, options, len: len as usize }
    }

    /// Returns the segment that the end would send now: new data if the window allows, otherwise a retransmission or a
    /// bare acknowledgement.
    fn send(&mut self, repeat: bool, most: u32) -> Option<Seg> {
        if !self.sent_syn || repeat && self.acked == 0 {
            if self.back && self.their_start.is_none() {
                return None;
            }
            self.sent_syn = true;
            self.next = self.next.max(1);
            return Some(self.segment(if self.back { SYN | ACK } else { SYN }, 0, 0));
        }
        self.their_start?;
        if self.acked == 0 {
            return None;
        }
        let from = if repeat { self.acked } else { self.next };
        let room = (self.acked + self.offered).saturating_sub(from);
        let len = (self.total + 1).saturating_sub(from).min(room).min(most);
        let fin = self.fin && from + len == self.total + 1 && from < self.flag_len() && room > len;
        self.next = self.next.max(from + len + u32::from(fin));
        Some(self.segment(ACK | if fin { FIN } else { 0 }, from.min(self.next), len))
    }

    fn take(&mut self, segment: &Seg) {
        let syn = segment.flags & SYN != 0;
        if syn && self.their_start.is_none() {
            self.their_start = Some(segment.seq);
            self.received = 1;
            self.their_scale = segment.options[3];
        }
        let Some(start) = self.their_start else { return };
        if segment.flags & ACK != 0 {
            let acked = segment.ack.wrapping_sub(self.start);
            if acked <= self.next && acked >= self.acked {
                self.acked = acked;
                let scale = if syn { 0 } else { self.their_scale };
                self.offered = u32::from(segment.window) << scale;
            }
        }
        let left = segment.seq.wrapping_sub(start);
        let fin = u32::from(segment.flags & FIN != 0);
        let right = left.wrapping_add(segment.len as u32).wrapping_add(fin);
        if syn || left > right {
            return;
        }
        if fin != 0 {
            self.their_end = Some(right);
        }
        if left > self.received {
            // Only one block: data that does not touch it is forgotten.
            self.block = match self.block {
                Some((l, r)) if left <= r && right >= l => Some((l.min(left), r.max(right))),
                Some(block) => Some(block),
                None if right > left => Some((left, right)),
                None => None,
            };
        } else {
            self.received = self.received.max(right);
            if let Some((l, r)) = self.block
                && l <= self.received
            {
                self.received = self.received.max(r);
                self.block = None;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// A or B sends at most this many bytes, which may be a retransmission.
    Send {
        back: bool,
        repeat: bool,
        most: u16,
    },
    /// A segment in flight arrives, from any place in the queue; it may arrive again later.
    Arrive {
        which: prop::sample::Index,
        twice: bool,
    },
    Lose(prop::sample::Index),
    /// A blind attacker sends this segment.
    Attack {
        back: bool,
        flags: u8,
        seq: u32,
        ack: u32,
        len: u8,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let forged = prop::sample::select(vec![SYN, RST, RST | ACK, ACK, FIN | ACK, SYN | ACK]);
    prop_oneof![
        10 => (any::<bool>(), prop::bool::weighted(0.2), 1..20_000u16)
            .prop_map(|(back, repeat, most)| Event::Send { back, repeat, most }),
        12 => (any::<prop::sample::Index>(), prop::bool::weighted(0.1))
            .prop_map(|(which, twice)| Event::Arrive { which, twice }),
        1 => any::<prop::sample::Index>().prop_map(Event::Lose),
        2 => (any::<bool>(), forged, any::<u32>(), any::<u32>(), 0..100u8)
            .prop_map(|(back, flags, seq, ack, len)| Event::Attack { back, flags, seq, ack, len }),
    ]
}

fn end(back: bool, start: u32, total: u32, (buffer, scale): (u32, u8), sack: bool) -> End {
    End {
        back,
        start,
        acked: 0,
        next: 0,
        total,
        fin: true,
        offered: 0,
        their_scale: 0,
        received: 0,
        block: None,
        their_start: None,
        their_end: None,
        buffer,
        scale,
        sack,
        sent_syn: false,
    }
}

/// Returns the state that an attacker could have changed.
fn view(world: &World) -> Option<(FlowState, Duration)> {
    world.flows().first().map(|flow| (flow.state, flow.left))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn what_two_ends_send_is_never_invalid(
        events in prop::collection::vec(event(), 50..600),
        starts: [u32; 2],
        totals in [0..200_000u32, 0..200_000u32],
        buffers in [(1000..65_000u32, 0..1u8), (1000..400_000u32, 3..8u8)],
        scaled: bool,
        sack: bool,
    ) {
        let world = World::new();
        let buffer = |which: usize| if scaled { (buffers[1].0, buffers[1].1) } else { buffers[which] };
        let mut ends = [
            end(false, starts[0], totals[0], buffer(0), sack),
            end(true, starts[1], totals[1], buffer(1), sack),
        ];
        let mut under_way: Vec<Seg> = Vec::new();
        for event in events {
            match event {
                Event::Send { back, repeat, most } => {
                    let sent = ends[usize::from(back)].send(repeat, most.into());
                    // The bridge is next to A: segments of B may have been lost or reordered before they pass it, those
                    // of A have not.
                    if let Some(segment) = sent {
                        if !segment.back {
                            let view = world.tcp(segment.clone());
                            prop_assert_ne!(view.0, CtState::INVALID, "{:?}", segment);
                        }
                        under_way.push(segment);
                    }
                }
                Event::Arrive { which, twice } if !under_way.is_empty() => {
                    let at = which.index(under_way.len());
                    let segment =
                        if twice { under_way[at].clone() } else { under_way.remove(at) };
                    if segment.back {
                        let view = world.tcp(segment.clone());
                        prop_assert_ne!(view.0, CtState::INVALID, "{:?}", segment);
                    }
                    ends[usize::from(!segment.back)].take(&segment);
                }
                Event::Lose(which) if !under_way.is_empty() => {
                    under_way.remove(which.index(under_way.len()));
                }
                Event::Attack { back, flags, seq, ack, len } => {
                    let established =
                        view(&world).is_some_and(|(state, _)| state == FlowState::Established);
                    // A random number is inside the window about once in several thousand attempts; such a segment has
                    // the same effect as one of the real sender, except for resets and SYNs.
                    let from = &ends[usize::from(back)];
                    let (offset, to) =
                        (seq.wrapping_sub(from.start), &ends[usize::from(!back)]);
                    let lucky = offset.wrapping_add(1 << 20) < 1 << 22
                        || ack.wrapping_sub(to.start).wrapping_add(1 << 20) < 1 << 22;
                    if !established || lucky {
                        continue;
                    }
                    let forged = Seg { back, len: len.into(), ..seg(flags, seq, ack) };
                    let before = view(&world);
                    world.tcp(forged.clone());
                    prop_assert_eq!(before, view(&world), "{:?}", forged);
                }
                _ => {}
            }
        }
    }
}
