//! Where a frame's fate is decided.

use std::sync::{Arc, Mutex};

use adit_filter::firewall::Peers;
use adit_filter::packet::Layer;
use adit_filter::{Burst, Firewall, IfName, Nanos, Place, Ruling, Worker};
use adit_linux::packet::Frame;
use adit_wire::VnetHeader;

use crate::port::Side;
use crate::routed::{Outgoing, RoutedCourt, RoutedHook, Router};

/// How frames are judged.
#[derive(Clone, Debug)]
pub enum Policy {
    /// Everything passes.
    Relay,
    /// What the rules accept passes.
    Filter(Arc<Firewall>),
    /// Packets are forwarded from one network to the other, if the rules accept them.
    Routed(Option<Arc<Firewall>>, Arc<Mutex<Router>>),
}

impl Policy {
    /// What one worker judges with, between ports of these names.
    pub(crate) fn hook(&self, [a, b]: [&str; 2]) -> Hook {
        let (a, b) = (IfName::new(a), IfName::new(b));
        let place = |zone, iif, oif| Place {
            layer: Layer::Ethernet,
            // Tags are in the frames: see `FrameBatch`.
            vlan: None,
            vnet: VnetHeader::default(),
            iif,
            oif,
            peers: Peers::default(),
            zone,
        };
        let places = [place(0, a, b), place(1, b, a)];
        match self {
            Self::Relay => Hook::Relay,
            Self::Filter(firewall) => Hook::Filter(firewall.worker(), places),
            Self::Routed(firewall, router) => {
                Hook::Routed(RoutedHook::new(firewall.as_ref(), router, places))
            }
        }
    }
}

/// One worker's judge.
#[derive(Debug)]
pub(crate) enum Hook {
    /// Everything passes.
    Relay,
    /// The rules, and what they are told of a frame from either side.
    Filter(Worker, [Place; 2]),
    /// The router, and the rules.
    Routed(RoutedHook),
}

/// A run of frames from one side, taken to be of one moment. It holds locks of the filter: nothing is
/// waited for while there is one.
pub(crate) enum Court<'a> {
    Relay,
    Filter(Burst<'a>, &'a mut Place),
    Routed(RoutedCourt<'a>),
}

/// What becomes of a frame.
pub(crate) enum Fate<'a> {
    /// What the rules say.
    Ruled(Ruling<'a>),
    /// The router has taken it.
    Taken,
    /// The router does not forward it.
    Unrouted,
}

impl Hook {
    /// Begins a run of frames.
    #[inline]
    pub fn court(&mut self, from: Side, now: u64) -> Court<'_> {
        match self {
            Self::Relay => Court::Relay,
            Self::Filter(worker, [a, b]) => {
                let place = match from {
                    Side::A => a,
                    Side::B => b,
                };
                Court::Filter(worker.burst(Nanos(now)), place)
            }
            Self::Routed(hook) => Court::Routed(hook.court(from, now)),
        }
    }
}

impl Hook {
    /// When [`Hook::tick`] has something to do, on the boot clock.
    pub fn wake(&self) -> Option<u64> {
        match self {
            Self::Relay | Self::Filter(..) => None,
            Self::Routed(hook) => hook.wake(),
        }
    }

    /// What is to be sent now that it is time.
    pub fn tick(&self, now: u64) -> Vec<Outgoing> {
        match self {
            Self::Relay | Self::Filter(..) => Vec::new(),
            Self::Routed(hook) => hook.tick(now),
        }
    }
}

impl Court<'_> {
    /// Judges one frame.
    #[inline]
    pub fn judge(&mut self, frame: &mut Frame<'_>) -> Fate<'_> {
        match self {
            Self::Relay => Fate::Ruled(Ruling::Pass),
            Self::Filter(burst, place) => {
                place.vnet = VnetHeader::decode(frame.vnet);
                Fate::Ruled(burst.judge(frame.bytes, place))
            }
            Self::Routed(court) => court.judge(frame),
        }
    }

    /// Ends the run: what else is to be sent.
    pub fn finish(self) -> Vec<Outgoing> {
        match self {
            Self::Relay | Self::Filter(..) => Vec::new(),
            Self::Routed(court) => court.finish(),
        }
    }
}
