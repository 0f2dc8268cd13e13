//! Keepalive timers: pings, and notices of silent peers.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use adit_engine::{Instant, Notice};

use crate::format::Format;
use crate::shared::NO_SWEEP;

use super::{SWEEP_GRAIN, Worker};

impl<F: Format> Worker<F> {
    /// Checks the timers of all peers if one is due. Only worker 0 does so.
    pub(super) fn sweep_if_due(&mut self) {
        if self.index != 0 {
            self.next_sweep = None;
        }
        let Some(due) = self.next_sweep else { return };
        let now = (self.shared.clock)();
        if now >= due {
            self.plan_sweep(None);
            // A peer added meanwhile may be missed. In that case the control plane sees that no sweep is planned, and
            // wakes this worker.
            fence(Ordering::SeqCst);
            let next = self.sweep(now);
            self.plan_sweep(next);
        }
    }

    /// Records the time of the next sweep, which the control plane reads too.
    pub(super) fn plan_sweep(&mut self, at: Option<Instant>) {
        self.next_sweep = at;
        if self.index == 0 {
            let nanos = at.map_or(NO_SWEEP, Instant::as_nanos);
            self.shared.sweep_at.store(nanos, Ordering::Relaxed);
        }
    }

    /// Returns when the next peer is due.
    fn sweep(&mut self, now: Instant) -> Option<Instant> {
        let shared = self.shared.clone();
        let peers = shared.tables.peers.load();
        let mut next: Option<Instant> = None;
        let mut wake_at = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        if let Some(switch) = &shared.ethernet
            && let Some(due) = switch.macs.expire(now, |peer, mac| {
                if switch.questions.get().is_some() {
                    shared.upcalls.notice(&shared.stats, Notice::StationForgotten(peer, mac.0));
                }
            })
        {
            wake_at(due);
        }
        for peer in peers.iter() {
            let keepalive = peer.settings.load().keepalive;
            if keepalive.interval > Duration::ZERO {
                if now >= peer.last_sent() + keepalive.interval {
                    self.transmitter.ping(peer);
                    // A ping that could not be sent now is tried after another interval.
                    wake_at(now + keepalive.interval);
                } else {
                    wake_at(peer.last_sent() + keepalive.interval);
                }
            }
            if keepalive.timeout > Duration::ZERO {
                let due = peer.last_heard() + keepalive.timeout;
                if now < due {
                    wake_at(due);
                } else {
                    if peer.mark_silent() {
                        shared.upcalls.notice(&shared.stats, Notice::PeerSilent(peer.id));
                    }
                    // The peer may send again meanwhile, and fall silent again.
                    wake_at(now + keepalive.timeout);
                }
            }
        }
        next.map(|next| next.max(now + SWEEP_GRAIN))
    }
}
