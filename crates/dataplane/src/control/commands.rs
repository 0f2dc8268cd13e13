//! The commands of the control plane.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use adit_engine::command::{Counters, Keepalive, KeySlot, PeerSpec};
use adit_engine::{Command, DataFormat, Instant, Notice, PeerId};
use adit_wire::ethernet::Mac;
use ipnet::IpNet;

use super::Plane;
use crate::ethernet::StationId;
use crate::format::Format;
use crate::key::Key;
use crate::peer::{Keys, MAX_PENDING_MESSAGES, Peer};
use crate::shared::Shared;
use crate::stats::DropReason;
use crate::tables::MAX_PEER_ID;

impl<F: Format> Plane<F> {
    /// Performs one command. Waits for a worker at most as long as sending one burst takes.
    pub fn apply(&self, command: Command<F::Types>) {
        let Shared { tables, upcalls, stats, clock, .. } = &*self.shared;
        match command {
            Command::AddPeer(id, spec) => self.add_peer(id, spec),
            Command::SetLink(id, link) => self.with(id, |peer| {
                tables.set_link(peer, link);
                peer.lock_tx().oversize = 0;
            }),
            Command::SetRelay(id, relay) => {
                let link = tables.peers.load().get(relay).map(|relay| relay.settings.load().link);
                if let Some(link) = link {
                    self.with(id, |peer| {
                        tables.share_link(peer, link);
                        peer.lock_tx().oversize = 0;
                    });
                }
            }
            Command::SetKeepalive(id, keepalive) => {
                self.with(id, |peer| {
                    peer.update(|spec| spec.keepalive = keepalive);
                    peer.restart_timeout(clock());
                });
                self.wake();
            }
            Command::SetMtu(id, mtu) => self.with(id, |peer| peer.update(|spec| spec.mtu = mtu)),
            Command::SetRates(id, rates) => {
                self.with(id, |peer| peer.update(|spec| spec.rates = rates));
            }
            Command::ProbePath(id, size) => self.with(id, |peer| self.probe(peer, size)),
            Command::ReadTraffic(id) => self.with(id, |peer| {
                upcalls.notice(stats, Notice::Traffic(id, peer.traffic()));
            }),
            Command::DelPeer(id) => self.del_peer(id),
            Command::InstallKey(id, slot, key) => {
                let mut replaces = false;
                self.with(id, |peer| {
                    replaces = peer.keys.load().has(slot);
                    self.install(peer, slot, &key);
                });
                drop(key);
                if replaces { self.clear_stacks() } else { adit_crypto::scrub_stack() }
            }
            Command::SwapKeys(id) => self.with(id, |peer| {
                change_keys(peer, |keys| std::mem::swap(&mut keys.primary, &mut keys.secondary));
            }),
            Command::DelKey(id, slot) => {
                self.with(id, |peer| {
                    change_keys(peer, |keys| *keys.slot(slot) = None);
                    // The last burst under the key ends before the caller goes on.
                    drop(peer.lock_tx());
                });
                self.clear_stacks();
            }
            Command::SetRoutes(id, prefixes) => self.set_routes(id, &prefixes),
            Command::AllowStation(id, mac, allowed) => self.allow_station(id, Mac(mac), allowed),
            Command::AddSplice(splice) => {
                let _ = tables.splices.add(splice);
            }
            Command::DelSplice(id) => tables.splices.remove(id),
            Command::LimitSplices(limit) => tables.splices.set_limit(limit),
            Command::SendData(id, message) => self.with(id, |peer| self.send_data(peer, message)),
            Command::AdmitLink(link) => tables.admit(link),
            Command::DismissLink(link) => tables.dismiss(&link),
        }
    }

    /// Calls `f` with a peer; ignores commands for a peer that was removed at the same moment.
    fn with(&self, id: PeerId, f: impl FnOnce(&Peer<F>)) {
        if let Some(peer) = self.shared.tables.peers.load().get(id) {
            f(peer);
        }
    }

    fn add_peer(&self, id: PeerId, mut spec: PeerSpec<F::Types>) {
        let Shared { tables, upcalls, stats, clock, .. } = &*self.shared;
        if id.0 > MAX_PEER_ID {
            return upcalls.notice(stats, Notice::PeerGone(id, Counters::default()));
        }
        spec.vlan = self.shared.vlans().map(|vlans| spec.vlan.unwrap_or(vlans.native));
        if self.shared.relay.is_client(id) {
            self.shared.has_clients.store(true, Ordering::Relaxed);
        }
        if F::needs_scratch(&spec) {
            self.shared.needs_scratch.store(true, Ordering::Relaxed);
        }
        let (now, keepalive) = (clock(), spec.keepalive);
        if tables.add_peer(Peer::new(id, spec, now)) {
            self.shared.expect_sweep(first_due(keepalive, now));
        } else {
            upcalls.notice(stats, Notice::PeerGone(id, Counters::default()));
        }
    }

    fn del_peer(&self, id: PeerId) {
        let Some(peer) = self.shared.tables.remove_peer(id) else { return };
        if let Some(switch) = &self.shared.ethernet {
            switch.remove(id);
        }
        self.shared.upcalls.notice(&self.shared.stats, Notice::PeerGone(id, peer.counters()));
        let had_keys = !peer.keys.load().is_empty();
        drop(peer);
        if had_keys {
            self.clear_stacks();
        }
    }

    fn set_routes(&self, id: PeerId, prefixes: &[IpNet]) {
        let tables = &self.shared.tables;
        if tables.peers.load().get(id).is_none() {
            return;
        }
        tables.set_routes(id, prefixes);
        if let Some(switch) = &self.shared.ethernet
            && !switch.is_open(&tables.routes.load(), id)
        {
            switch.remove(id);
        }
    }

    fn allow_station(&self, id: PeerId, mac: Mac, allowed: bool) {
        let Some(switch) = &self.shared.ethernet else { return };
        let tables = &self.shared.tables;
        let vlan = tables.peers.load().get(id).and_then(|peer| peer.vlan);
        switch.answer(StationId::new(vlan, mac), id, allowed, (self.shared.clock)(), || {
            tables.peers.load().get(id).is_some() && switch.is_open(&tables.routes.load(), id)
        });
    }

    /// Installs a key. It is a separate function so that the secrets it leaves on the stack are below its caller.
    #[inline(never)]
    fn install(&self, peer: &Peer<F>, slot: KeySlot, key: &<F::Types as DataFormat>::Key) {
        let replay_window = self.shared.replay_window(peer);
        // Key material whose type guarantees its length, so the library has no reason to refuse it.
        let Some(key) = Key::new(key, replay_window, peer.next_key_origin()) else { return };
        if key.is_headerless() {
            self.shared.tables.has_headerless_keys.store(true, Ordering::Relaxed);
        }
        let key = Arc::new(key);
        change_keys(peer, |keys| *keys.slot(slot) = Some(Arc::clone(&key)));
    }

    /// Clears the stacks of all threads that may have used a key that was just retired. A worker does so after the
    /// burst in which it may still use the key.
    fn clear_stacks(&self) {
        adit_crypto::scrub_stack();
        self.shared.retired_keys.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    fn probe(&self, peer: &Peer<F>, size: u16) {
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        let probed = self.shared.probe(peer, &mut peer.lock_tx(), size, &mut arena);
        // A probe that was sent while the kernel reports no path MTU has no result to report.
        if probed.size == 0 || probed.kernel != 0 {
            self.shared.upcalls.notice(&self.shared.stats, Notice::ProbeResult(peer.id, probed));
        }
    }

    fn send_data(&self, peer: &Peer<F>, message: Vec<u8>) {
        let stats = &self.shared.stats;
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tx = peer.lock_tx();
        if tx.blocked {
            // Sealed packets are queued, and this message must not overtake them.
            if tx.waiting.len() < MAX_PENDING_MESSAGES {
                tx.waiting.push_back(message);
            } else {
                stats.drop(DropReason::SocketFull);
            }
            return;
        }
        if let Err(reason) = self.shared.send_message(peer, &mut tx, &message, &mut arena) {
            stats.drop(reason);
        }
    }
}

/// Returns when the first timer of a peer added at `now` is due, if it has any.
fn first_due(keepalive: Keepalive, now: Instant) -> Option<Instant> {
    let timers = [keepalive.interval, keepalive.timeout];
    timers.into_iter().filter(|time| !time.is_zero()).min().map(|time| now + time)
}

fn change_keys<F: Format>(peer: &Peer<F>, change: impl Fn(&mut Keys<F>)) {
    peer.keys.rcu(|keys| {
        let mut keys = Keys::clone(keys);
        change(&mut keys);
        keys
    });
}
