//! The workers' access to the router, under a lock. Each burst takes it once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_filter::firewall::{Burst, Firewall, FrameContext, FrameVerdict, Worker};
use adit_filter::{IfName, Nanos};
use adit_linux::packet::Frame;
use adit_wire::VnetHeader;

use super::{EgressResult, IngressResult, Outgoing, Router};
use crate::hook::HookVerdict;
use crate::port::Side;

/// One worker's part of the router, with its filter.
#[derive(Debug)]
pub(crate) struct RoutedHook {
    /// The worker of the filter, or `None` if everything is forwarded.
    worker: Option<Worker>,
    /// The rules' context for packets from either side; the outgoing port is known only later.
    frame_contexts: [FrameContext; 2],
    router: Arc<Mutex<Router>>,
}

impl RoutedHook {
    pub(crate) fn new(
        firewall: Option<&Arc<Firewall>>,
        router: &Arc<Mutex<Router>>,
        frame_contexts: [FrameContext; 2],
    ) -> Self {
        let worker = firewall.map(Firewall::worker);
        Self { worker, frame_contexts, router: Arc::clone(router) }
    }

    /// Begins a run of frames.
    pub(crate) fn burst(&mut self, from: Side, now: u64) -> RoutedBurst<'_> {
        let [a, b] = &self.frame_contexts;
        let (frame_context, back) = match from {
            Side::A => (*a, b.oif),
            Side::B => (*b, a.oif),
        };
        let now = Nanos(now);
        // The locks are always taken in this order; otherwise two workers could deadlock.
        let burst = self.worker.as_mut().map(|worker| worker.burst(now));
        RoutedBurst { burst, router: lock(&self.router), frame_context, back, from, now }
    }

    /// Returns when [`RoutedHook::tick`] has work, on the boot clock.
    pub(crate) fn wake(&self) -> Option<u64> {
        lock(&self.router).wake().map(|at| at.0)
    }

    /// Lets the router repeat and abandon requests; returns the frames that it sends.
    pub(crate) fn tick(&self, now: u64) -> Vec<Outgoing> {
        let mut router = lock(&self.router);
        router.tick(Nanos(now));
        router.take()
    }
}

fn lock(router: &Mutex<Router>) -> MutexGuard<'_, Router> {
    // The router's contents remain valid even if a thread panicked while it held the lock.
    router.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run of frames from one side.
pub(crate) struct RoutedBurst<'a> {
    burst: Option<Burst<'a>>,
    router: MutexGuard<'a, Router>,
    frame_context: FrameContext,
    /// The name of the port on which the frames arrived, for packets that leave through it again.
    back: IfName,
    from: Side,
    now: Nanos,
}

impl RoutedBurst<'_> {
    pub(crate) fn evaluate(&mut self, frame: &mut Frame<'_>) -> HookVerdict<'_> {
        let Self { burst, router, frame_context, back, from, now } = self;
        let hop = match router.arrive(frame.bytes, frame.vnet, *from, *now) {
            IngressResult::Forward(hop) => hop,
            IngressResult::Consumed => return HookVerdict::Consumed,
            IngressResult::Drop(_) => return HookVerdict::Unrouted,
        };
        let oif = if hop.to == *from { *back } else { frame_context.oif };
        let frame_context =
            FrameContext { vnet: VnetHeader::decode(frame.vnet), oif, ..*frame_context };
        let verdict = match burst {
            Some(burst) => burst.evaluate(frame.bytes, &frame_context),
            None => FrameVerdict::Pass,
        };
        match verdict {
            FrameVerdict::Pass => match router.leave(frame.bytes, frame.vnet, *from, hop, *now) {
                EgressResult::Send => HookVerdict::Filtered(FrameVerdict::Pass),
                EgressResult::Consumed => HookVerdict::Consumed,
                EgressResult::Drop(_) => HookVerdict::Unrouted,
            },
            FrameVerdict::Release(assembled) => {
                for piece in assembled.pieces() {
                    router.release(piece, *from, hop, *now);
                }
                HookVerdict::Consumed
            }
            other => HookVerdict::Filtered(other),
        }
    }

    /// Ends the run; returns the frames that the router sends.
    pub(crate) fn finish(mut self) -> Vec<Outgoing> {
        self.router.take()
    }
}
