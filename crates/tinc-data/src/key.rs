//! A session in use: both directions, with the numbers that it shares with the node.

use std::sync::{Arc, MutexGuard};

use adit_dataplane::format::{self, FormatKey, Opened, Seal, SealBurst};
use adit_dataplane::{DropReason, ReplayCheck};
use adit_tinc::aead;
use adit_tinc::name::NodeId;
use adit_tinc::sptps::{Numbers, ReceiveKeys, ReplayWindow};

use crate::packet::{self, Ids, OVERHEAD, Packets};
use crate::{DataKey, PeerSpec, Tinc};

/// A session in use.
///
/// The node replaces a session long before its numbers end, and decides about new keys, so this has no limits of its own to report.
#[derive(Debug)]
pub struct Key {
    send: aead::Key,
    receive: ReceiveKeys,
    numbers: Arc<Numbers>,
    sent_ids: Ids,
    received_ids: Ids,
    packets: Packets,
}

impl FormatKey for Key {
    type Types = Tinc;
    type Tx = ();
    type Sealer<'k> = Sealer<'k>;
    type Opener<'k> = Opener<'k>;

    /// The session has its own replay window.
    fn new(key: &DataKey, _: u32) -> Option<Self> {
        let DataKey { session, own, peer, relayed, packets } = key;
        let [to_peer, to_own] =
            if *relayed { [*peer, *own] } else { [NodeId::DIRECT, NodeId::DIRECT] };
        Some(Self {
            send: session.send.clone(),
            receive: session.receive.clone(),
            numbers: Arc::clone(&session.numbers),
            sent_ids: Ids::between(to_peer, *own),
            received_ids: Ids::between(to_own, *peer),
            packets: *packets,
        })
    }

    fn id(&self) -> u8 {
        0
    }

    fn is_headerless(&self) -> bool {
        false
    }

    #[inline]
    fn accepts(&self, run: &[u8]) -> bool {
        self.received_ids.precede(run)
    }

    #[inline]
    fn sealer(&self, _: &PeerSpec) -> Sealer<'_> {
        Sealer { key: self, kind: Some(self.packets.record_type()) }
    }

    #[inline]
    fn opener(&self) -> Opener<'_> {
        Opener { key: self, window: self.numbers.window() }
    }

    fn begin_stream(&self, (): &mut (), _: u64) {}

    fn count_opened(&self, _: u64, _: u64) {}

    fn near_limit(&self) -> bool {
        false
    }
}

/// Seals packets.
#[derive(Debug)]
pub struct Sealer<'k> {
    key: &'k Key,
    /// The type of the packets; `None` for messages, which have theirs.
    kind: Option<u8>,
}

impl format::Sealer for Sealer<'_> {
    fn overhead(&self) -> usize {
        OVERHEAD
    }

    fn begin_messages(&mut self) {
        self.kind = None;
    }

    #[inline]
    fn run<B: SealBurst>(&mut self, burst: B) -> B::Output {
        burst.run(self)
    }
}

impl Seal for Sealer<'_> {
    #[inline]
    fn overhead(&self) -> usize {
        OVERHEAD
    }

    #[inline]
    fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason> {
        let Key { send, numbers, sent_ids, .. } = self.key;
        let seqno = numbers.take().map_err(|_| DropReason::KeyExhausted)?;
        packet::seal(sent_ids, send, seqno, (self.kind, plain), out).ok_or(DropReason::TunMalformed)
    }
}

/// Opens packets. Holds the lock of the replay window, so it must live for one run only.
pub struct Opener<'k> {
    key: &'k Key,
    window: MutexGuard<'k, ReplayWindow>,
}

impl format::Opener for Opener<'_> {
    #[inline]
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason> {
        let packet::Sealed { seqno, record, tag } =
            packet::parse(datagram).ok_or(DropReason::Short)?;
        if self.window.is_repeated(seqno) {
            return Err(DropReason::Replayed);
        }
        self.key.receive.open(seqno, record, tag).map_err(|_| DropReason::BadTag)?;
        let place =
            if self.window.is_newest(seqno) { ReplayCheck::Newest } else { ReplayCheck::Late };
        self.window.accept(seqno).map_err(|_| DropReason::Replayed)?;
        let text = packet::text(self.key.packets, record).ok_or(DropReason::BadFraming)?;
        Ok((place, seqno.into(), text))
    }
}
