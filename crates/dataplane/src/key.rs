//! A data channel key in use: the part that all formats share.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_engine::DataFormat;
use adit_engine::command::PeerSpec;

use crate::format::{Format, FormatKey, Sealer as _};
use crate::peer::{KeyOrigin, Tx};

/// A key of one slot, shared by both directions.
#[derive(Debug)]
pub(crate) struct Key<F: Format> {
    /// The number of the key within its peer; later keys have higher numbers.
    pub generation: u64,
    /// The peer that the key belongs to: [`Tx::owner`].
    owner: u64,
    used: AtomicBool,
    warned: AtomicBool,
    pub format: F::Key,
}

/// Seals packets under one key while the peer's TX lock is held.
#[derive(Debug)]
pub struct Sealer<'k, F: Format> {
    pub(crate) key: <F::Key as FormatKey>::Sealer<'k>,
    pub(crate) tx: &'k mut F::Tx,
}

impl<F: Format> Sealer<'_, F> {
    /// Seals in-band messages from now on.
    pub(crate) fn begin_messages(&mut self) {
        self.key.begin_messages();
    }
}

impl<F: Format> Key<F> {
    /// Creates a key; `None` if the crypto library refuses it.
    pub(crate) fn new(
        key: &<F::Types as DataFormat>::Key,
        replay_window: u32,
        origin: KeyOrigin,
    ) -> Option<Self> {
        Some(Self::resumed(F::Key::new(key, replay_window)?, origin))
    }

    /// Continues a key of another process.
    pub(crate) fn resumed(format: F::Key, origin: KeyOrigin) -> Self {
        Self {
            generation: origin.generation,
            owner: origin.owner,
            used: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            format,
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> u8 {
        self.format.id()
    }

    /// Returns whether packets under this key carry no header.
    pub(crate) fn is_headerless(&self) -> bool {
        self.format.is_headerless()
    }

    /// Acquires the right to seal under this key for as long as the peer's TX lock is held: packet
    /// ids are assigned in the order in which packets are sent.
    #[inline(always)]
    pub(crate) fn sealer<'k>(
        &'k self,
        lock: &'k mut Tx<F>,
        spec: &PeerSpec<F::Types>,
    ) -> Sealer<'k, F> {
        // Under another peer's lock two workers could give one id to two packets.
        assert_eq!(self.owner, lock.owner(), "a key is used under the lock of another peer");
        Sealer { key: self.format.sealer(spec), tx: &mut lock.format }
    }

    /// Sends packets to this stream from now on, under the same lock as [`Key::sealer`].
    pub(crate) fn begin_stream(&self, lock: &mut Tx<F>, stream: u64) {
        self.format.begin_stream(&mut lock.format, stream);
    }

    /// Acquires the right to open packets, until the next run.
    #[inline(always)]
    pub(crate) fn opener(&self) -> <F::Key as FormatKey>::Opener<'_> {
        self.format.opener()
    }

    /// Counts authentic packets of a run. `bytes` are those on the wire.
    pub(crate) fn count_opened(&self, packets: u64, bytes: u64) {
        self.format.count_opened(packets, bytes);
    }

    /// Returns, once, whether an authentic packet was received under this key.
    pub(crate) fn first_use(&self) -> bool {
        !self.used.load(Relaxed) && !self.used.swap(true, Relaxed)
    }

    /// Returns, once, whether a limit is close.
    pub(crate) fn near_limit(&self) -> bool {
        self.format.near_limit() && !self.warned.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::trivial::{PlainKey, Trivial};

    fn plain_key(limit: u64) -> PlainKey {
        PlainKey { id: 0, seal: 1, open: 1, limit }
    }

    fn spec() -> PeerSpec<Trivial> {
        let link =
            adit_engine::Link::datagram(adit_engine::SocketId(0), None, ([192, 0, 2, 1], 1).into());
        PeerSpec { float: adit_engine::command::Float::Refuse, ..PeerSpec::plain(link) }
    }

    /// Two workers that use one key under two locks would assign one id to two packets.
    #[test]
    #[should_panic(expected = "under the lock of another peer")]
    fn a_key_is_never_used_under_the_lock_of_another_peer() {
        let peer = |id| {
            crate::peer::Peer::<Trivial>::new(adit_engine::PeerId(id), spec(), Default::default())
        };
        let (own, other) = (peer(1), peer(2));
        let origin = own.next_key_origin();
        let key = Key::new(&plain_key(0), 64, origin).unwrap();
        let _ = key.sealer(&mut own.lock_tx(), &spec());
        let _ = key.sealer(&mut other.lock_tx(), &spec());
    }

    #[test]
    fn a_close_limit_is_reported_once() {
        let key = Key::<Trivial>::new(&plain_key(100), 64, KeyOrigin::default()).unwrap();
        key.count_opened(99, 0);
        assert!(!key.near_limit());
        key.count_opened(1, 0);
        assert!(key.near_limit() && !key.near_limit());
    }
}
