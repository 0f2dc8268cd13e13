//! The peers of a plane whose sessions continue in another process.
//!
//! A key passes with its next packet id, so that no id is used twice, and with the newest id received. Packets of the
//! peer that are older than that one and still in transit are lost.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_engine::command::Counters;
use adit_engine::{PeerId, SecretBytes};
use adit_linux::tcp::TcpStream;
use serde::{Deserialize, Serialize};

use crate::control::Plane;
use crate::format::{Format, FormatKey};
use crate::key::Key;
use crate::peer::{Keys, Peer};
use crate::stream::{SavedStream, Stream, StreamOptions};

/// A peer's keys and counters, for another process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPeer {
    /// The peer.
    pub id: PeerId,
    /// Its traffic.
    pub counters: Counters,
    /// The pings and messages in it, and their bytes: in both directions, and received.
    in_band: [u64; 4],
    /// Its keys, the oldest first.
    keys: Vec<SavedKey>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedKey {
    /// Whether it seals packets.
    primary: bool,
    /// The state, in the format's own form.
    state: SecretBytes,
}

impl<F: Format> Plane<F> {
    /// Stops the workers, and returns the peers and the streams. Nothing may be sent to them any more, except by the process that gets
    /// the result.
    pub fn stop(mut self) -> (Vec<SavedPeer>, Vec<(SavedStream, OwnedFd)>) {
        self.join_workers();
        let peers = self.shared.tables.peers.load();
        (peers.iter().map(|peer| save(peer)).collect(), self.shared.tables.streams.save())
    }

    /// Continues a stream of another process.
    ///
    /// # Errors
    /// The socket cannot be watched.
    pub fn resume_stream(
        &self,
        saved: &SavedStream,
        socket: TcpStream,
        options: StreamOptions,
    ) -> io::Result<()> {
        let poller = self.shared.poller_of(&saved.link)?;
        let stream = Stream::open(saved.link, socket, options, poller)?;
        stream.resume(saved);
        let streams = &self.shared.tables.streams;
        streams.insert(Arc::clone(&stream));
        stream.watch().inspect_err(|_| drop(streams.remove(stream.id)))?;
        stream.watch_if_full();
        Ok(())
    }

    /// Gives a peer the keys and counters that it had in another process. Keys that cannot be read are left out.
    pub fn resume(&self, saved: &SavedPeer) {
        let peers = self.shared.tables.peers.load();
        let Some(peer) = peers.get(saved.id) else { return };
        peer.restore_counters(saved.counters, saved.in_band);
        let replay_window = self.shared.replay_window(peer);
        for SavedKey { primary, state } in &saved.keys {
            let Some(format) = F::Key::resume(state, replay_window) else { continue };
            let key = Arc::new(Key::resumed(format, peer.next_key_origin()));
            peer.keys.rcu(|keys| {
                let mut keys = Keys::clone(keys);
                let slot = if *primary { &mut keys.primary } else { &mut keys.secondary };
                *slot = Some(Arc::clone(&key));
                keys
            });
        }
        adit_crypto::scrub_stack();
        self.shared.retired_keys.fetch_add(1, Ordering::Relaxed);
    }
}

fn save<F: Format>(peer: &Peer<F>) -> SavedPeer {
    let keys = peer.keys.load();
    let slots = [(true, &keys.primary), (false, &keys.secondary)];
    let mut saved: Vec<_> = slots
        .into_iter()
        .filter_map(|(primary, key)| {
            let key = key.as_ref()?;
            Some((key.generation, SavedKey { primary, state: key.format.save()? }))
        })
        .collect();
    saved.sort_by_key(|(generation, _)| *generation);
    SavedPeer {
        id: peer.id,
        counters: peer.counters(),
        in_band: peer.in_band(),
        keys: saved.into_iter().map(|(_, key)| key).collect(),
    }
}
