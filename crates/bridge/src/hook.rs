//! Where a frame's fate is decided.

use std::sync::Arc;

use adit_filter::packet::Layer;
use adit_filter::{Burst, Firewall, IfName, Nanos, Place, Ruling, Worker};
use adit_linux::packet::Frame;
use adit_wire::VnetHeader;

use crate::port::Side;

/// How frames are judged.
#[derive(Clone, Debug)]
pub enum Policy {
    /// Everything passes.
    Relay,
    /// What the rules accept passes.
    Filter(Arc<Firewall>),
}

impl Policy {
    /// What one worker judges with, between ports of these names.
    pub(crate) fn hook(&self, [a, b]: [&str; 2]) -> Hook {
        match self {
            Self::Relay => Hook::Relay,
            Self::Filter(firewall) => {
                let (a, b) = (IfName::new(a), IfName::new(b));
                let place = |zone, iif, oif| Place {
                    layer: Layer::Ethernet,
                    // Tags are in the frames: see `FrameBatch`.
                    vlan: None,
                    vnet: VnetHeader::default(),
                    iif,
                    oif,
                    zone,
                };
                Hook::Filter(firewall.worker(), [place(0, a, b), place(1, b, a)])
            }
        }
    }
}

/// One worker's judge.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each worker")]
pub(crate) enum Hook {
    /// Everything passes.
    Relay,
    /// The rules, and what they are told of a frame from either side.
    Filter(Worker, [Place; 2]),
}

/// A run of frames from one side, taken to be of one moment. It holds locks of the filter: nothing is
/// waited for while there is one.
pub(crate) enum Court<'a> {
    Relay,
    Filter(Burst<'a>, &'a mut Place),
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
        }
    }
}

impl Court<'_> {
    /// Judges one frame.
    #[inline]
    pub fn judge(&mut self, frame: &Frame<'_>) -> Ruling<'_> {
        match self {
            Self::Relay => Ruling::Pass,
            Self::Filter(burst, place) => {
                place.vnet = VnetHeader::decode(frame.vnet);
                burst.judge(frame.bytes, place)
            }
        }
    }
}
