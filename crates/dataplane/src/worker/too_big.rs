//! ICMP messages to senders behind the TUN device whose packets exceed the path MTU.

use std::io::IoSlice;

use adit_engine::{Instant, Rate, TokenBucket};
use adit_linux::tun::TunQueue;
use adit_wire::VnetHeader;
use adit_wire::too_big::{MAX_ANSWER, answer};

/// The rate of messages per worker. A host needs one message for each destination.
const ANSWERS: Rate = Rate::per_second(50);

/// Sends "packet too big" messages at a limited rate.
#[derive(Debug, Default)]
pub(super) struct TooBig {
    answers: TokenBucket,
}

impl TooBig {
    /// Reports that only `largest` bytes of a packet would cross the path in one piece. The packet is still sent, in fragments of the outer
    /// protocol, so a sender that ignores the message loses nothing.
    #[cold]
    pub(super) fn notify(&self, now: Instant, tun: &TunQueue, packet: &[u8], largest: u16) {
        let mut out = [0; MAX_ANSWER];
        if let Some(answer) = answer(packet, largest, &mut out)
            && self.answers.take(now, 1, ANSWERS)
        {
            let vnet = VnetHeader::default().encode();
            // If the device is full, the message is lost; the next packet triggers another.
            let _ = tun.write(&[IoSlice::new(&vnet), IoSlice::new(answer)]);
        }
    }
}
