//! How workers use the router: under a lock that is taken once for each burst.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_filter::firewall::{Burst, Firewall, Place, Ruling, Worker};
use adit_filter::{IfName, Nanos};
use adit_linux::packet::Frame;
use adit_wire::VnetHeader;

use super::{Leave, Outgoing, Router, Step};
use crate::hook::Fate;
use crate::port::Side;

/// One worker's part of the router, and what it judges with.
#[derive(Debug)]
pub(crate) struct RoutedHook {
    /// Without rules, everything is forwarded.
    worker: Option<Worker>,
    /// What the rules are told of packets from either side; where they go out is only known later.
    places: [Place; 2],
    router: Arc<Mutex<Router>>,
}

impl RoutedHook {
    pub fn new(
        firewall: Option<&Arc<Firewall>>,
        router: &Arc<Mutex<Router>>,
        places: [Place; 2],
    ) -> Self {
        let worker = firewall.map(Firewall::worker);
        Self { worker, places, router: Arc::clone(router) }
    }

    /// Begins a run of frames.
    pub fn court(&mut self, from: Side, now: u64) -> RoutedCourt<'_> {
        let [a, b] = &self.places;
        let (place, back) = match from {
            Side::A => (*a, b.oif),
            Side::B => (*b, a.oif),
        };
        let now = Nanos(now);
        // Always in this order, or two workers could wait for each other.
        let burst = self.worker.as_mut().map(|worker| worker.burst(now));
        RoutedCourt { burst, router: lock(&self.router), place, back, from, now }
    }

    /// When [`RoutedHook::tick`] has something to do, on the boot clock.
    pub fn wake(&self) -> Option<u64> {
        lock(&self.router).wake().map(|at| at.0)
    }

    /// Lets the router ask again, and give up; what it says.
    pub fn tick(&self, now: u64) -> Vec<Outgoing> {
        let mut router = lock(&self.router);
        router.tick(Nanos(now));
        router.take()
    }
}

fn lock(router: &Mutex<Router>) -> MutexGuard<'_, Router> {
    // What it knows stays true where a thread ended in the middle.
    router.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run of frames from one side.
pub(crate) struct RoutedCourt<'a> {
    burst: Option<Burst<'a>>,
    router: MutexGuard<'a, Router>,
    place: Place,
    /// The name of the port that they came by, where one leaves again.
    back: IfName,
    from: Side,
    now: Nanos,
}

impl RoutedCourt<'_> {
    pub fn judge(&mut self, frame: &mut Frame<'_>) -> Fate<'_> {
        let Self { burst, router, place, back, from, now } = self;
        let hop = match router.arrive(frame.bytes, frame.vnet, *from, *now) {
            Step::Forward(hop) => hop,
            Step::Taken => return Fate::Taken,
            Step::Drop(_) => return Fate::Unrouted,
        };
        let oif = if hop.to == *from { *back } else { place.oif };
        let place = Place { vnet: VnetHeader::decode(frame.vnet), oif, ..*place };
        let ruling = match burst {
            Some(burst) => burst.judge(frame.bytes, &place),
            None => Ruling::Pass,
        };
        match ruling {
            Ruling::Pass => match router.leave(frame.bytes, frame.vnet, *from, hop, *now) {
                Leave::Send => Fate::Ruled(Ruling::Pass),
                Leave::Taken => Fate::Taken,
                Leave::Drop(_) => Fate::Unrouted,
            },
            Ruling::Release(assembled) => {
                for piece in assembled.pieces() {
                    router.release(piece, *from, hop, *now);
                }
                Fate::Taken
            }
            other => Fate::Ruled(other),
        }
    }

    /// What the router has to say at the end of the run.
    pub fn finish(mut self) -> Vec<Outgoing> {
        self.router.take()
    }
}
