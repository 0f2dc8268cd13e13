//! Generates TCP conversations, complete or from the middle on, and arbitrary segments of other hosts.

use super::{Flow, Pair};
use crate::nftdiff::case::SentFrame;
use crate::nftdiff::frame::Tcp;
use crate::nftdiff::random::Random;
use crate::nftdiff::universe;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const URG: u8 = 32;

/// The numbers of one end.
#[derive(Clone, Copy)]
struct End {
    /// The sequence number of the next byte.
    next: u32,
    window: u16,
    port: u16,
}

struct TcpConversation<'a> {
    random: &'a mut Random,
    pair: Pair,
    /// The client and the server.
    ends: [End; 2],
    scaled: bool,
    flow: Flow,
}

/// Generates a conversation, perhaps with others after it between the same ports.
pub(super) fn conversation(random: &mut Random) -> Flow {
    let pair = Pair::new(random);
    let end =
        |random: &mut Random, port| End { next: number(random), window: window(random), port };
    let client = universe::client_port(random);
    let server = universe::port(random);
    let ends = [end(random, client), end(random, server)];
    let scaled = random.percent(50);
    let mut talk = TcpConversation { random, pair, ends, scaled, flow: Vec::new() };
    let from_the_begin = talk.whole();
    // A connection that was picked up in the middle and starts again is not compared (see docs/filter-differences.md).
    if from_the_begin && talk.random.percent(20) {
        // Use the same ports again, with numbers further on or anywhere.
        let step = *talk.random.pick(&[1, 100_000, 0x4000_0000, 0x9000_0000]);
        talk.ends[0].next = talk.ends[0].next.wrapping_add(step);
        talk.ends[1].next = number(talk.random);
        talk.whole();
    }
    talk.flow
}

fn number(random: &mut Random) -> u32 {
    match random.within(0..=3) {
        0 => 1000,
        1 => 0xffff_ffff - random.within(0..=3000) as u32,
        _ => random.bits() as u32,
    }
}

fn window(random: &mut Random) -> u16 {
    *random.pick(&[0, 1, 1000, 8192, 29_200, 65_535])
}

impl TcpConversation<'_> {
    /// Adds the beginning of a conversation, and returns whether it is complete.
    fn whole(&mut self) -> bool {
        let begin = self.random.within(0..=9);
        match begin {
            // Begins in the middle.
            0 => {}
            1 => self.segment(false, SYN | ACK, 0, "SYN+ACK without SYN"),
            2 => {
                self.segment(true, SYN, 0, "SYN");
                self.ends[0].next = self.ends[0].next.wrapping_add(1);
                self.segment(false, SYN, 0, "SYN against SYN");
                self.ends[1].next = self.ends[1].next.wrapping_add(1);
                self.segment(true, ACK, 0, "ACK of a simultaneous open");
            }
            _ => self.handshake(),
        }
        for _ in 0..self.random.within(0..=5) {
            let forward = self.random.percent(50);
            let length = *self.random.pick(&[0, 1, 20, 500, 1400]);
            self.segment(forward, ACK | if length > 0 { PSH } else { 0 }, length, "data");
            self.stranger();
            if self.random.percent(70) {
                self.segment(!forward, ACK, 0, "ACK");
            }
        }
        match self.random.within(0..=9) {
            0..=4 => self.close(),
            5 | 6 => {
                let forward = self.random.percent(50);
                self.segment(forward, RST | ACK, 0, "RST");
                self.stranger();
            }
            _ => {}
        }
        begin > 1
    }

    fn handshake(&mut self) {
        self.segment(true, SYN, 0, "SYN");
        if self.random.percent(10) {
            self.segment(true, SYN, 0, "SYN again");
        }
        self.stranger();
        if self.random.percent(8) {
            self.ends[0].next = self.ends[0].next.wrapping_add(1);
            self.segment(false, RST | ACK, 0, "refused");
            return;
        }
        self.ends[0].next = self.ends[0].next.wrapping_add(1);
        self.segment(false, SYN | ACK, 0, "SYN+ACK");
        self.stranger();
        self.ends[1].next = self.ends[1].next.wrapping_add(1);
        self.segment(true, ACK, 0, "ACK of the handshake");
        self.stranger();
    }

    fn close(&mut self) {
        let first = self.random.percent(60);
        for forward in [first, !first] {
            self.segment(forward, FIN | ACK, 0, "FIN");
            let end = &mut self.ends[usize::from(!forward)];
            end.next = end.next.wrapping_add(1);
            self.stranger();
            if self.random.percent(90) {
                self.segment(!forward, ACK, 0, "ACK of FIN");
            }
        }
        self.stranger();
    }

    /// Adds a segment in order.
    fn segment(&mut self, forward: bool, flags: u8, length: usize, what: &'static str) {
        let seq = self.ends[usize::from(!forward)].next;
        let ack = self.ends[usize::from(forward)].next;
        self.put(forward, flags, (seq, ack), length, what);
        let end = &mut self.ends[usize::from(!forward)];
        end.next = end.next.wrapping_add(length as u32);
    }

    fn put(
        &mut self,
        forward: bool,
        flags: u8,
        (seq, ack): (u32, u32),
        length: usize,
        what: &'static str,
    ) {
        let (own, peer) = (self.ends[usize::from(!forward)], self.ends[usize::from(forward)]);
        let tcp = Tcp {
            ports: (own.port, peer.port),
            seq,
            ack: if flags & ACK == 0 { 0 } else { ack },
            flags,
            window: if self.random.percent(5) { window(self.random) } else { own.window },
            urgent: if flags & URG == 0 { 0 } else { 1 },
            options: self.options(flags),
            payload: self.random.bytes(length),
        };
        let segment = tcp.bytes(self.pair.way(forward).1);
        let sent = self.pair.sent(self.random, forward, 6, &segment, what);
        self.flow.push(sent);
    }

    fn options(&mut self, flags: u8) -> Vec<u8> {
        let mut options = Vec::new();
        if flags & SYN != 0 {
            options.extend([2, 4, 5, 0xb4]);
            if self.scaled {
                options.extend([3, 3, *self.random.pick(&[0, 2, 7, 14])]);
            }
            if self.random.percent(50) {
                options.extend([4, 2]);
            }
        } else if self.random.percent(10) {
            options.extend([1, 1, 8, 10]);
            options.extend(self.random.bytes(8));
        }
        options
    }

    /// Adds, one time in five, a segment that does not belong to the conversation.
    fn stranger(&mut self) {
        if !self.random.percent(20) {
            return;
        }
        let forward = self.random.percent(50);
        let seq = self.ends[usize::from(!forward)].next;
        let ack = self.ends[usize::from(forward)].next;
        let fresh = number(self.random);
        let far = *self.random.pick(&[0x1000_0000u32, 0x7000_0000, 0x9000_0000]);
        match self.random.within(0..=18) {
            0 => self.again(),
            1 => self.put(forward, RST, (seq, 0), 0, "RST at the exact number"),
            2 => self.put(forward, RST, (seq.wrapping_add(5), 0), 0, "RST within the window"),
            3 => self.put(forward, RST, (seq.wrapping_add(far), 0), 0, "RST far outside"),
            4 => {
                self.put(
                    forward,
                    RST | ACK,
                    (seq.wrapping_add(far), ack),
                    0,
                    "RST+ACK far outside",
                );
            }
            5 => self.put(forward, ACK | PSH, (seq.wrapping_add(far), ack), 10, "data far outside"),
            6 => self.put(
                forward,
                ACK,
                (seq, ack.wrapping_add(far)),
                0,
                "ACK of what was never sent",
            ),
            7 => self.put(forward, SYN, (fresh, 0), 0, "SYN into a conversation"),
            8 => self.put(forward, SYN | ACK, (seq.wrapping_sub(1), ack), 0, "SYN+ACK once more"),
            9 => self.put(forward, 0, (seq, 0), 0, "no flags"),
            10 => self.put(forward, FIN | PSH | URG, (seq, 0), 0, "FIN, PSH and URG"),
            11 => self.put(forward, SYN | FIN, (seq, 0), 0, "SYN and FIN"),
            12 => self.put(forward, SYN | RST, (seq, 0), 0, "SYN and RST"),
            14..=17 => {
                // Just within or beyond the receiver's window, and the allowance behind it.
                let window = u32::from(self.ends[usize::from(forward)].window);
                let times = *self.random.pick(&[1, 1, 2]);
                let near = self.random.within(0..=4) as u32;
                let seq = seq.wrapping_add(window * times).wrapping_add(near).wrapping_sub(2);
                self.put(forward, ACK | PSH, (seq, ack), 1, "data at the window's edge");
            }
            13 => self.put(forward, ACK, (seq.wrapping_sub(1), ack), 1, "keepalive"),
            _ => self.put(forward, FIN | ACK, (seq, ack), 0, "FIN out of turn"),
        }
    }

    fn again(&mut self) {
        if let Some(last) = self.flow.last().cloned() {
            self.flow.push(SentFrame { what: "once more".into(), ..last });
        }
    }
}
