//! The data that a full socket has not accepted yet: sealed packets in the order of their ids, and control
//! packets, which precede all data that is not partly sent. No I/O.

use super::frames::{self, LENGTH};

/// The maximum number of queued bytes of control packets: a dozen flights of a handshake.
pub(crate) const MAX_CONTROL_PENDING: usize = 64 << 10;

/// Bytes in the order in which they are sent: `rest of the partly sent packet | control packets | data packets`.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    bytes: Vec<u8>,
    /// The number of bytes already sent.
    gone: usize,
    /// The end of the packet that is partly sent; `gone` if there is none.
    begun: usize,
    /// The end of the control packets; not before `begun`.
    control: usize,
    /// The number of packets, including the partly sent one.
    packets: usize,
}

impl Pending {
    /// Continues a queue of another process. Nothing overtakes its bytes.
    pub(super) fn resumed(bytes: &[u8]) -> Self {
        let end = bytes.len();
        let packets = usize::from(end > 0);
        Self { bytes: bytes.to_vec(), gone: 0, begun: end, control: end, packets }
    }

    /// Returns the bytes to send.
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.gone..).unwrap_or(&[])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Returns the number of queued packets.
    pub(super) fn packets(&self) -> usize {
        self.packets
    }

    /// Appends `count` packets of which `sent` bytes have already been sent; `sent` must be 0 unless the queue was
    /// empty.
    pub(super) fn append(&mut self, packets: &[u8], count: usize, sent: usize) {
        let (whole, left) = frames::progress(packets, sent);
        let unsent = packets.get(sent..).unwrap_or(&[]);
        if self.is_empty() {
            self.clear();
            (self.begun, self.control) = (left, left);
        } else {
            self.compact();
        }
        self.bytes.extend_from_slice(unsent);
        self.packets = self.packets.saturating_add(count.saturating_sub(whole));
    }

    /// Inserts a control packet after the queued control packets, ahead of all data that is not yet partly sent.
    /// Returns `false` if the queue is full.
    pub(super) fn insert_control(&mut self, packet: &[u8]) -> bool {
        let Ok(length) = u16::try_from(packet.len()) else { return false };
        if self.is_empty() {
            self.clear();
        }
        let at = self.control.max(self.begun);
        let waiting = at.saturating_sub(self.begun.max(self.gone));
        if waiting.saturating_add(packet.len()) > MAX_CONTROL_PENDING {
            return false;
        }
        let framed = length.to_be_bytes().into_iter().chain(packet.iter().copied());
        self.bytes.splice(at..at, framed);
        self.control = at.saturating_add(LENGTH).saturating_add(packet.len());
        self.packets = self.packets.saturating_add(1);
        true
    }

    /// Records that `sent` more bytes have been sent. Frees the memory when the queue is empty.
    pub(super) fn advance(&mut self, sent: usize) {
        let left = self.bytes().len();
        if sent >= left {
            return self.clear();
        }
        let begun = self.begun.saturating_sub(self.gone);
        if sent < begun {
            self.gone = self.gone.saturating_add(sent);
            return;
        }
        // The partly sent packet is complete; packets follow back to back.
        let from = if begun > 0 { self.begun } else { self.gone };
        let more = sent.saturating_sub(begun);
        let (whole, rest) = frames::progress(self.bytes.get(from..).unwrap_or(&[]), more);
        self.packets = self.packets.saturating_sub(whole).saturating_sub(usize::from(begun > 0));
        self.gone = from.saturating_add(more);
        self.begun = self.gone.saturating_add(rest);
        self.control = self.control.max(self.begun);
    }

    /// Removes the sent bytes if they are most of the buffer: on a busy stream it may never be empty.
    fn compact(&mut self) {
        if self.gone > self.bytes.len() / 2 {
            self.bytes.drain(..self.gone);
            self.begun = self.begun.saturating_sub(self.gone);
            self.control = self.control.saturating_sub(self.gone);
            self.gone = 0;
        }
    }

    /// Discards everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(fill: u8, len: usize) -> Vec<u8> {
        let mut out = (len as u16).to_be_bytes().to_vec();
        out.resize(LENGTH + len, fill);
        out
    }

    /// Takes the packets out of a byte stream again.
    fn packets(mut bytes: &[u8]) -> Vec<(u8, usize)> {
        let mut out = Vec::new();
        while let Some(length) = bytes.first_chunk::<2>() {
            let len = usize::from(u16::from_be_bytes(*length));
            let packet = &bytes[LENGTH..LENGTH + len];
            assert!(packet.iter().all(|byte| *byte == packet[0]), "a packet was torn");
            out.push((packet[0], len));
            bytes = &bytes[LENGTH + len..];
        }
        out
    }

    #[test]
    fn control_goes_ahead_of_data_that_has_not_begun() {
        let mut pending = Pending::default();
        let data = [framed(1, 10), framed(2, 10)].concat();
        pending.append(&data, 2, 5);
        assert!(pending.insert_control(&[8; 3]) && pending.insert_control(&[9; 3]));
        let stream = [&data[..5], pending.bytes()].concat();
        assert_eq!(packets(&stream), [(1, 10), (8, 3), (9, 3), (2, 10)]);
        assert_eq!(pending.packets(), 4);
    }

    #[test]
    fn between_packets_control_is_next() {
        let mut pending = Pending::default();
        let data = [framed(1, 10), framed(2, 10)].concat();
        pending.append(&data, 2, 12);
        assert!(pending.insert_control(&[8; 3]));
        assert_eq!(packets(pending.bytes()), [(8, 3), (2, 10)]);
        assert_eq!(pending.packets(), 2);
    }

    #[test]
    fn control_is_bounded_and_makes_room_as_it_leaves() {
        let mut pending = Pending::default();
        pending.append(&framed(1, 100), 1, 1);
        let mut taken = 0;
        while pending.insert_control(&[9; 1000]) {
            taken += 1;
        }
        assert_eq!(taken, 65, "64 KiB");
        // The partly sent packet no longer blocks, and data does not count.
        pending.append(&framed(2, 60_000), 1, 0);
        pending.advance(101 + 1002);
        assert!(pending.insert_control(&[9; 1000]));
        assert!(!pending.insert_control(&[9; 1000]));
    }

    #[test]
    fn nothing_is_kept_when_all_has_left() {
        let mut pending = Pending::default();
        pending.append(&framed(1, 1000), 1, 1);
        pending.advance(1001);
        assert!(pending.is_empty());
        assert_eq!((pending.packets(), pending.bytes.capacity()), (0, 0));
    }

    #[test]
    fn a_stream_that_is_never_drained_does_not_grow() {
        let mut pending = Pending::default();
        pending.append(&framed(1, 1000), 1, 1);
        for _ in 0..1000 {
            pending.append(&framed(1, 1000), 1, 0);
            pending.advance(1002);
        }
        assert_eq!((pending.packets(), pending.bytes().len()), (1, 1001));
        assert!(pending.bytes.len() < 10_000);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Data(Vec<usize>),
        Control(usize),
        Send(usize),
    }

    proptest! {
        /// Whatever the socket accepts, and whenever control packets are sent, no packet is torn or lost, and data and
        /// control each stay in order.
        #[test]
        fn packets_stay_whole_and_in_order(
            steps in proptest::collection::vec(prop_oneof![
                proptest::collection::vec(1usize..40, 1..6).prop_map(Step::Data),
                (1usize..40).prop_map(Step::Control),
                (0usize..90).prop_map(Step::Send),
            ], 1..80),
        ) {
            let (mut pending, mut stream) = (Pending::default(), Vec::new());
            let (mut data, mut control) = (0u8, 128u8);
            let mut expected = 0;
            for step in steps {
                match step {
                    Step::Data(lens) => {
                        let mut bytes = Vec::new();
                        let count = lens.len();
                        for len in lens {
                            bytes.extend(framed(data, len));
                            data = (data + 1) % 128;
                        }
                        // Simulates a socket with little space.
                        let taken = if pending.is_empty() { bytes.len() / 3 } else { 0 };
                        stream.extend_from_slice(&bytes[..taken]);
                        pending.append(&bytes, count, taken);
                        expected += count;
                    }
                    Step::Control(len) => {
                        prop_assert!(pending.insert_control(&vec![control; len]));
                        control = 128 + (control - 127) % 128;
                        expected += 1;
                    }
                    Step::Send(most) => {
                        let count = most.min(pending.bytes().len());
                        stream.extend_from_slice(&pending.bytes()[..count]);
                        pending.advance(count);
                    }
                }
            }
            let waiting = pending.packets();
            let gone = stream.len();
            stream.extend_from_slice(pending.bytes());
            let all = packets(&stream);
            prop_assert_eq!(all.len(), expected);
            let order = |wanted: bool| {
                let of = all.iter().map(|(fill, _)| *fill).filter(move |fill| (*fill >= 128) == wanted);
                of.collect::<Vec<_>>()
            };
            for list in [order(false), order(true)] {
                prop_assert!(list.windows(2).all(|two| two[1] == two[0] + 1 || two[1] & 127 == 0));
            }
            // The packets that were not sent completely are the queued ones.
            let (mut at, mut left) = (0, 0);
            for (_, len) in &all {
                at += LENGTH + len;
                left += usize::from(at > gone);
            }
            prop_assert_eq!(waiting, left);
        }
    }
}
