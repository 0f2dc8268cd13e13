//! The verdict on each frame.

use std::sync::{Arc, Mutex};

use adit_filter::firewall::Peers;
use adit_filter::packet::Layer;
use adit_filter::{Burst, Firewall, FrameContext, FrameVerdict, IfName, Nanos, Worker};
use adit_linux::packet::Frame;
use adit_wire::VnetHeader;

use crate::port::Side;
use crate::routed::{Outgoing, RoutedBurst, RoutedHook, Router};

/// The evaluation of frames.
#[derive(Clone, Debug)]
pub enum Policy {
    /// Every frame passes.
    Relay,
    /// Frames that the rules accept pass.
    Filter(Arc<Firewall>),
    /// Packets are forwarded from one network to the other, if the rules accept them.
    Routed(Option<Arc<Firewall>>, Arc<Mutex<Router>>),
}

impl Policy {
    /// Creates the hook of one worker, for two ports with these names.
    pub(crate) fn hook(&self, [a, b]: [&str; 2]) -> Hook {
        let (a, b) = (IfName::new(a), IfName::new(b));
        let frame_context = |zone, iif, oif| FrameContext {
            layer: Layer::Ethernet,
            // Tags are in the frames; see `FrameBatch`.
            vlan: None,
            vnet: VnetHeader::default(),
            iif,
            oif,
            peers: Peers::default(),
            zone,
        };
        let frame_contexts = [frame_context(0, a, b), frame_context(1, b, a)];
        match self {
            Self::Relay => Hook::Relay,
            Self::Filter(firewall) => Hook::Filter(firewall.worker(), frame_contexts),
            Self::Routed(firewall, router) => {
                Hook::Routed(RoutedHook::new(firewall.as_ref(), router, frame_contexts))
            }
        }
    }
}

/// The hook of one worker.
#[derive(Debug)]
pub(crate) enum Hook {
    /// Every frame passes.
    Relay,
    /// The rules, and their context for a frame from either side.
    Filter(Worker, [FrameContext; 2]),
    /// The router, and the rules.
    Routed(RoutedHook),
}

/// A run of frames from one side, treated as arriving at the same time. It holds locks of the filter: the worker must not block while it
/// exists.
pub(crate) enum HookBurst<'a> {
    Relay,
    Filter(Burst<'a>, &'a mut FrameContext),
    Routed(RoutedBurst<'a>),
}

/// The verdict on a frame.
pub(crate) enum HookVerdict<'a> {
    /// The verdict of the rules.
    Filtered(FrameVerdict<'a>),
    /// The router processed or queued the frame.
    Consumed,
    /// The router does not forward the frame.
    Unrouted,
}

impl Hook {
    /// Begins a run of frames.
    #[inline]
    pub(crate) fn burst(&mut self, from: Side, now: u64) -> HookBurst<'_> {
        match self {
            Self::Relay => HookBurst::Relay,
            Self::Filter(worker, [a, b]) => {
                let frame_context = match from {
                    Side::A => a,
                    Side::B => b,
                };
                HookBurst::Filter(worker.burst(Nanos(now)), frame_context)
            }
            Self::Routed(hook) => HookBurst::Routed(hook.burst(from, now)),
        }
    }
}

impl Hook {
    /// Returns when [`Hook::tick`] has work, on the boot clock.
    pub(crate) fn wake(&self) -> Option<u64> {
        match self {
            Self::Relay | Self::Filter(..) => None,
            Self::Routed(hook) => hook.wake(),
        }
    }

    /// Returns the frames that are due at this time.
    pub(crate) fn tick(&self, now: u64) -> Vec<Outgoing> {
        match self {
            Self::Relay | Self::Filter(..) => Vec::new(),
            Self::Routed(hook) => hook.tick(now),
        }
    }
}

impl HookBurst<'_> {
    /// Evaluates one frame.
    #[inline]
    pub(crate) fn evaluate(&mut self, frame: &mut Frame<'_>) -> HookVerdict<'_> {
        match self {
            Self::Relay => HookVerdict::Filtered(FrameVerdict::Pass),
            Self::Filter(burst, frame_context) => {
                frame_context.vnet = VnetHeader::decode(frame.vnet);
                HookVerdict::Filtered(burst.evaluate(frame.bytes, frame_context))
            }
            Self::Routed(burst) => burst.evaluate(frame),
        }
    }

    /// Ends the run; returns further frames to send.
    pub(crate) fn finish(self) -> Vec<Outgoing> {
        match self {
            Self::Relay | Self::Filter(..) => Vec::new(),
            Self::Routed(burst) => burst.finish(),
        }
    }
}
