//! Packet and state in, verdict out. A [`Judge`] is one worker's: it counts without atomics and hands
//! its counts over once per burst.
//!
//! The order is nftables': the base chains of bridge tables, then those of the tables of the packet's
//! own family, each kind by priority and then as written. `accept` ends its base chain only, `drop`
//! and `reject` are final.

pub(crate) mod bucket;
mod memo;
pub(crate) mod read;
mod trace;
pub(crate) mod walk;

use std::sync::Arc;

pub use memo::Memo;
pub use trace::{Mismatch, Place, RuleEnd, Step, Trace};

use crate::Nanos;
use crate::compile::Filter;
use crate::packet::Packet;
use crate::ruleset::{CtDirection, CtState, Log, Reject};

/// An interface's name, padded with zeros to 16 bytes and read as a big-endian number. Zero is none.
#[derive(Copy, Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct IfName(pub u128);

impl IfName {
    /// The first 16 bytes of `name`.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        Self(u128::from_be_bytes(bytes))
    }
}

/// What a packet does not say itself.
#[derive(Copy, Clone, Debug)]
pub struct Context {
    /// The time, for limits.
    pub now: Nanos,
    /// Where the packet came in.
    pub iif: IfName,
    /// Where it will go out.
    pub oif: IfName,
    /// The state of its connection.
    pub state: CtState,
    /// Which way it goes in its connection.
    pub direction: CtDirection,
    /// The transport protocol of its connection; `None` without one.
    pub protocol: Option<u8>,
}

/// What becomes of a packet.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Decision {
    /// It passes.
    Accept,
    /// It ends here.
    Drop,
    /// It ends here and its sender is told.
    Reject(Reject),
}

/// A decision and who made it.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct Judgement {
    /// What becomes of the packet.
    pub decision: Decision,
    /// Handle of the rule that decided in the last base chain; `None` where a policy did or where
    /// there is no chain for the packet.
    pub by: Option<u32>,
}

/// Takes what `log` statements write down. Called while a packet is judged, so it must not block.
pub trait Sink {
    /// The rule with this handle logs the packet.
    fn log(&mut self, rule: u32, log: &Log, packet: &Packet<'_>);
}

/// Logs nothing.
impl Sink for () {
    fn log(&mut self, _: u32, _: &Log, _: &Packet<'_>) {}
}

/// One worker's way to judge packets by a [`Filter`].
#[derive(Debug)]
pub struct Judge {
    filter: Arc<Filter>,
    live: Arc<crate::compile::Live>,
    counts: crate::compile::Pending,
}

impl Judge {
    /// A judge of its own for one worker.
    pub fn new(filter: Arc<Filter>) -> Self {
        let (live, counts) = (filter.live(), filter.pending());
        Self { filter, live, counts }
    }

    /// By which rules it judges.
    pub fn filter(&self) -> &Arc<Filter> {
        &self.filter
    }

    /// Judges one packet, counts it, and logs it where a rule says so.
    ///
    /// `memo` is the flow's own slot for this direction, if it has one: an established flow whose
    /// judgement depends only on what is the same for all its packets is then not judged again.
    pub fn judge(
        &mut self,
        packet: &Packet<'_>,
        context: &Context,
        memo: Option<&mut Memo>,
        logs: &mut dyn Sink,
    ) -> Judgement {
        let _ = memo;
        self.filter.refresh(&mut self.live);
        let mut act = walk::Act { counts: &mut self.counts, logs, packet, context };
        walk::walk(&self.filter, &self.live, packet, context, &mut act)
    }

    /// Hands the counts of this judge over to the filter's. Once per burst.
    pub fn flush(&mut self) {
        self.filter.add(&mut self.counts);
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        self.flush();
    }
}
