//! Probes of the path to a peer, and replies to the peer's probes.

use std::sync::atomic::Ordering::Relaxed;

use adit_engine::command::{Float, ProbeResult};

use crate::egress::{Arena, PacketShape};
use crate::format::{Format, Sealer as _};
use crate::peer::{Peer, Tx};
use crate::shared::Shared;
use crate::sockets::find_socket;
use crate::stats::DropReason;

/// Returns the bytes of the IP and UDP headers before a datagram.
fn headers(remote: std::net::SocketAddr) -> usize {
    if remote.ip().to_canonical().is_ipv4() { 20 + 8 } else { 40 + 8 }
}

impl<F: Format> Shared<F> {
    /// Requests the sizes that the peer sees, padded so that the IP packet has `size` bytes, with DF set. With `size` 0
    /// nothing is sent.
    ///
    /// This asks the kernel for its path MTU only if the probe could not be sent, or if the last probe of this size was not answered: that
    /// takes more system calls than the probe, and most paths carry the first probe.
    pub(crate) fn probe(
        &self,
        peer: &Peer<F>,
        tx: &mut Tx<F>,
        size: u16,
        arena: &mut Arena,
    ) -> ProbeResult {
        let spec = peer.settings.load();
        if spec.link.is_stream() {
            return self.probe_over_stream(peer, tx, size, arena);
        }
        let sockets = self.tables.sockets.load();
        let socket = spec.link.socket().and_then(|id| find_socket(&sockets, id, 0));
        // Fragments have their own sizes.
        let Some(socket) = socket.filter(|_| !F::fragments(&spec)) else {
            return ProbeResult::default();
        };
        let (to, from) = (spec.link.remote(), spec.link.local());
        let opinion = || socket.path_mtu(to, from).unwrap_or_default();
        let again = std::mem::replace(&mut tx.probed, size) == size;
        let mut probed = ProbeResult::default();
        let keys = peer.keys.load();
        let Some(key) = keys.primary.as_ref().filter(|_| size != 0 && !tx.blocked) else {
            return ProbeResult { size: 0, kernel: opinion() };
        };
        let mut sealer = key.sealer(tx, &spec);
        let shape = PacketShape::<F>::of(&spec, 1);
        let added = sealer.key.overhead() + headers(to) + shape.message_growth();
        let message = F::size_request(usize::from(size).saturating_sub(added));
        arena.clear();
        let sealed = arena.message(&mut sealer, &message, &shape);
        drop(sealer);
        let span = arena.spans().first().filter(|_| matches!(sealed, Some(Ok(()))));
        if let Some(datagram) = span.map(|span| arena.bytes(span))
            && socket.send_whole(to, from, datagram).is_ok()
        {
            peer.sent((self.clock)(), 1, datagram.len() as u64);
            peer.count_in_band(message.len());
            let size = datagram.len() + headers(to);
            probed.size = u16::try_from(size).unwrap_or(u16::MAX);
        }
        if again || probed.size == 0 {
            probed.kernel = opinion();
        }
        arena.clear();
        probed
    }

    /// Does the same for a peer with several paths whose packets leave on a relay's stream, because the relay may forward them in
    /// datagrams. A peer with its own stream has no path MTU.
    fn probe_over_stream(
        &self,
        peer: &Peer<F>,
        tx: &mut Tx<F>,
        size: u16,
        arena: &mut Arena,
    ) -> ProbeResult {
        let (spec, keys) = (peer.settings.load(), peer.keys.load());
        let is_relayed = spec.float == Float::Accept && size != 0;
        let Some(key) = keys.primary.as_ref().filter(|_| is_relayed) else {
            return ProbeResult::default();
        };
        let shape = PacketShape::<F>::of(&spec, 1);
        let overhead = key.sealer(tx, &spec).key.overhead();
        let added = overhead + headers(spec.link.remote()) + shape.message_growth();
        let message = F::size_request(usize::from(size).saturating_sub(added));
        arena.clear();
        let sent = self.send_on_stream(peer, tx, &message, arena);
        arena.clear();
        ProbeResult { size: if sent.is_ok() { size } else { 0 }, kernel: 0 }
    }

    /// Reports to a peer how long the longest datagrams from and to it were.
    pub(crate) fn report_sizes(
        &self,
        peer: &Peer<F>,
        tx: &mut Tx<F>,
        arena: &mut Arena,
    ) -> Result<(), DropReason> {
        let (received, sent) = (&peer.longest_received, &peer.longest_sent);
        let message = F::size_reply(received.load(Relaxed), sent.load(Relaxed));
        self.send_message(peer, tx, &message, arena)
    }
}
