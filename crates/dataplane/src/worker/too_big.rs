//! ICMP messages to senders behind the TUN device whose packets exceed the path MTU.

use std::iter;

use adit_engine::{Instant, Rate, TokenBucket, VlanId};
use adit_linux::tun::TunQueue;
use adit_wire::VnetHeader;
use adit_wire::ethernet::MAX_HEADER_LEN;
use adit_wire::too_big::{MAX_ANSWER, answer};

use super::receive::write_slices;

/// The rate of messages per worker. A host needs one message for each destination.
const ANSWERS: Rate = Rate::per_second(50);

/// Sends "packet too big" messages at a limited rate.
#[derive(Debug, Default)]
pub(super) struct TooBig {
    answers: TokenBucket,
}

impl TooBig {
    /// Reports that only `largest` bytes of the packet behind the first `l2` bytes of a frame would cross the path in one
    /// piece. The packet is still sent, in fragments of the outer protocol, so a sender that ignores the message loses
    /// nothing unless a relay passes the packet on.
    #[cold]
    pub(super) fn notify(
        &self,
        now: Instant,
        (tun, tag): (&TunQueue, Option<VlanId>),
        (frame, l2): (&[u8], usize),
        largest: u16,
    ) {
        let Some((header, packet)) = frame.split_at_checked(l2) else { return };
        let (mut back, mut out) = ([0; MAX_HEADER_LEN], [0; MAX_ANSWER]);
        let back = backwards(header, &mut back);
        if let Some(answer) = answer(packet, largest, &mut out)
            && self.answers.take(now, 1, ANSWERS)
        {
            let vnet = VnetHeader::default().encode();
            // If the device is full, the message is lost; the next packet triggers another.
            let _ = write_slices(tun, tag, &vnet, back, iter::once(answer));
        }
    }
}

/// Returns a frame's header with its two stations exchanged; an empty one for a packet without a frame.
fn backwards<'b>(header: &[u8], back: &'b mut [u8; MAX_HEADER_LEN]) -> &'b [u8] {
    let Some(back) = back.get_mut(..header.len()) else { return &[] };
    back.copy_from_slice(header);
    if let Some((stations, _)) = back.split_first_chunk_mut::<12>() {
        stations.rotate_left(6);
    }
    back
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_back_to_the_station_that_sent_the_packet() {
        let mut back = [0; MAX_HEADER_LEN];
        let header = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x81, 0, 0, 5, 8, 0];
        let expected = [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0x81, 0, 0, 5, 8, 0];
        assert_eq!(backwards(&header, &mut back), expected);
        assert!(backwards(&[], &mut back).is_empty());
        assert!(backwards(&[7; MAX_HEADER_LEN + 1], &mut back).is_empty());
    }
}
