//! adit's side of the comparison: a [`Firewall`] as the bridge uses it, without a bridge.

use std::sync::Arc;
use std::time::Duration;

use adit_filter::conntrack::{Crossing, Invalid, Tracker};
use adit_filter::firewall::{Firewall, FrameContext, FrameVerdict, Limits, Peers, Worker};
use adit_filter::fragment::FragmentStats;
use adit_filter::packet::{Layer, Packet, Transport};
use adit_filter::ruleset::{Counter, CounterId, CtState, Statement};
use adit_filter::{Filter, IfName, Nanos, lang};
use adit_wire::VnetHeader;
use adit_wire::transport::flags;

use super::case::{Count, FrameResult, Mode};
use super::frame::{Side, counted_down};
use super::{rules, seen};
use crate::failure::{Context as _, Result};

/// adit's treatment of a frame, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AditResult {
    /// The result as seen from outside.
    pub seen: FrameResult,
    /// The reason, for a human reader and for [`super::differences`].
    pub why: String,
    /// Whether the checksum of its protocol is known.
    pub checked: bool,
    /// TCP's flags.
    pub flags: Option<u8>,
}

/// A firewall with rules.
pub struct Adit {
    mode: Mode,
    firewall: Arc<Firewall>,
    worker: Worker,
    now: Nanos,
    /// Reports details of a packet's connection that the firewall does not expose.
    shadow: Tracker,
    /// The numbers of invalid packets so far, by reason.
    invalid: Vec<(Invalid, u64)>,
}

/// The reason why a reset did not end its connection, although it belongs to one.
pub const RESET_IGNORED: &str = "a reset that is not accepted";

/// The time between two packets. A whole case takes less than the shortest timeout, and the rate of notifications stays
/// below adit's limit.
const STEP: Duration = Duration::from_millis(2);

const SEED: [u8; 16] = [7; 16];

impl Adit {
    /// Creates a firewall with rules in nftables' language.
    ///
    /// # Errors
    /// The rules contain a mistake, reported as `stdin:LINE:COLUMN: ...`.
    pub fn new(mode: Mode, rules: &str) -> std::result::Result<Self, String> {
        // adit has one hook, and supports `reject` in it.
        let rules = &rules.replace(rules::PREROUTING, rules::FORWARD);
        let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let ruleset = lang::parse("stdin", rules, none).map_err(|wrong| wrong.to_string())?;
        let filter = Filter::compile(ruleset).map_err(|wrong| wrong.to_string())?;
        let limits = Limits::default();
        let shadow = Tracker::new(limits.track.clone(), SEED);
        let firewall = Firewall::new(filter, limits, SEED);
        let worker = firewall.worker();
        Ok(Self { mode, firewall, worker, now: Nanos(1_000_000_000), shadow, invalid: Vec::new() })
    }

    /// Evaluates a frame.
    pub fn pass(&mut self, side: Side, frame: &[u8]) -> AditResult {
        self.now = self.now.after(STEP);
        let frame = if self.mode == Mode::Route { counted_down(frame) } else { frame.to_vec() };
        let place = FrameContext {
            layer: Layer::Ethernet,
            vlan: None,
            vnet: VnetHeader::default(),
            iif: IfName::new(side.interface()),
            oif: IfName::new(side.other().interface()),
            peers: Peers::default(),
            zone: side as u32,
        };
        let crossing = Crossing::between(place.iif, place.oif);
        let before = self.pieces(&frame);
        let mut burst = self.worker.burst(self.now);
        let verdict = burst.evaluate(&frame, &place);
        let mut whole = None;
        let seen = match verdict {
            FrameVerdict::Pass => FrameResult::Passed,
            FrameVerdict::Release(all) => {
                whole = Some(all.whole().to_vec());
                FrameResult::Passed
            }
            FrameVerdict::Drop | FrameVerdict::Held => FrameResult::Nothing,
            FrameVerdict::Reply(answer) => {
                FrameResult::Answered(seen::answer(seen::network(answer)))
            }
        };
        drop(burst);
        let why = self.why(whole.as_deref().unwrap_or(&frame), before.as_ref(), seen, crossing);
        let parsed = Packet::parse(&frame, Layer::Ethernet, None, &VnetHeader::default());
        let transport = parsed.map_or(Transport::None, |packet| packet.transport);
        let flags = if let Transport::Tcp(tcp) = transport { Some(tcp.flags) } else { None };
        AditResult { seen, why, checked: !matches!(transport, Transport::Other), flags }
    }

    /// Returns the counters of fragments, if the frame is one.
    fn pieces(&self, frame: &[u8]) -> Option<FragmentStats> {
        let packet = Packet::parse(frame, Layer::Ethernet, None, &VnetHeader::default()).ok()?;
        packet.is_fragment().then(|| self.firewall.stats().fragments)
    }

    fn why(
        &mut self,
        frame: &[u8],
        before: Option<&FragmentStats>,
        seen: FrameResult,
        crossing: Crossing,
    ) -> String {
        let packet = match Packet::parse(frame, Layer::Ethernet, None, &VnetHeader::default()) {
            Ok(packet) => packet,
            Err(wrong) => return format!("malformed: {wrong}"),
        };
        if packet.is_fragment() {
            let after = self.firewall.stats().fragments;
            let grew = |count: fn(&FragmentStats) -> u64| {
                before.is_some_and(|before| count(&after) > count(before))
            };
            let why = [
                ("overlap", grew(|stats| stats.overlap)),
                ("duplicate", grew(|stats| stats.duplicate)),
                ("refused", grew(|stats| stats.refused)),
                ("held", grew(|stats| stats.held)),
                ("ends", grew(|stats| stats.ends)),
                ("uneven", grew(|stats| stats.uneven)),
            ];
            let names: Vec<&str> =
                why.iter().filter(|(_, so)| *so).map(|(name, _)| *name).collect();
            return format!("piece: {}", names.join(", "));
        }
        if !self.firewall.filter().tracks() {
            return "no state".to_owned();
        }
        let reset = matches!(packet.transport, Transport::Tcp(tcp) if tcp.flags & flags::RST != 0);
        let before = reset.then(|| self.shadow.stats());
        let mut burst = self.shadow.burst(self.now);
        let tracked = burst.look(&packet, crossing.into());
        if tracked.state == CtState::INVALID {
            drop(burst);
            return format!("invalid: {}", self.reason());
        }
        if seen == FrameResult::Passed {
            burst.confirm(&tracked, &packet);
        }
        drop(burst);
        if before.is_some_and(|before| before.states == self.shadow.stats().states) {
            return RESET_IGNORED.to_owned();
        }
        format!("{:?} {:?} {:?}", tracked.state, tracked.direction, tracked.protocol)
    }

    /// Returns why the last packet was invalid.
    fn reason(&mut self) -> String {
        let now = self.shadow.stats().invalid;
        let grew = now.iter().find(|(reason, count)| {
            !self.invalid.iter().any(|(had, before)| had == reason && before == count)
        });
        let name = grew.map_or_else(String::new, |(reason, _)| format!("{reason:?}"));
        self.invalid = now;
        name
    }

    /// Returns the rules' counters in the order of the rules, which is a table's named counters followed by its rules.
    ///
    /// # Errors
    /// A counter without a count.
    pub fn counts(&self) -> Result<Vec<Count>> {
        let filter = self.firewall.filter();
        let counts = filter.counts();
        let mut all = Vec::new();
        for (index, table) in filter.ruleset().tables.iter().enumerate() {
            all.extend((0..table.counters.len()).map(|id| counts.named(index, CounterId(id))));
            for rule in table.chains.iter().flat_map(|chain| &chain.rules) {
                let own = |statement: &&Statement| {
                    matches!(statement, Statement::Counter(Counter::Own(_)))
                };
                let own = rule.statements.iter().filter(own).count();
                all.extend((0..own).map(|nth| counts.rule_nth(rule.handle, nth)));
            }
        }
        let plain = |count: Option<adit_filter::ruleset::Count>| {
            let count = count.context("a counter without a count")?;
            Ok(Count { packets: count.packets, bytes: count.bytes })
        };
        all.into_iter().map(plain).collect()
    }
}
