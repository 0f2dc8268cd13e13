//! ICMP messages to senders behind the TUN device: a packet is larger than the path.

use std::io::IoSlice;
use std::time::Duration;

use adit_engine::Instant;
use adit_linux::tun::TunQueue;
use adit_wire::VnetHeader;
use adit_wire::too_big::{MAX_ANSWER, answer};

/// Answers per [`WINDOW`] and worker: a host needs one for each destination.
const MAX_ANSWERS: u32 = 50;
const WINDOW: Duration = Duration::from_secs(1);

/// How many answers went out lately.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct TooBig {
    since: Option<Instant>,
    answered: u32,
}

impl TooBig {
    /// Answers a packet of which only `largest` bytes would cross the path in one piece. It is sent on
    /// all the same, in fragments outside: who does not listen loses nothing.
    #[cold]
    pub(super) fn notify(&mut self, now: Instant, tun: &TunQueue, packet: &[u8], largest: u16) {
        let mut out = [0; MAX_ANSWER];
        if let Some(answer) = answer(packet, largest, &mut out)
            && self.may(now)
        {
            let vnet = VnetHeader::default().encode();
            // A full device drops the answer; the next packet brings another.
            let _ = tun.write(&[IoSlice::new(&vnet), IoSlice::new(answer)]);
        }
    }

    fn may(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.since(since) >= WINDOW) {
            *self = Self { since: Some(now), answered: 0 };
        }
        self.answered = self.answered.saturating_add(1);
        self.answered <= MAX_ANSWERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_rationed() {
        let mut too_big = TooBig::default();
        let start = Instant::from_nanos(7);
        assert_eq!((0..200).filter(|_| too_big.may(start)).count(), MAX_ANSWERS as usize);
        assert!(!too_big.may(start + WINDOW / 2));
        assert!(too_big.may(start + WINDOW));
    }
}
