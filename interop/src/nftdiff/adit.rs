//! adit's side.

use std::sync::Arc;
use std::time::Duration;

use adit_filter::fragment::{self, Outcome, Reassembler};
use adit_filter::packet::{Layer, Packet};
use adit_filter::ruleset::{Counter, Statement};
use adit_filter::track::Tracker;
use adit_filter::{Context, Decision, Filter, IfName, Judge, Nanos, answer, lang, track};
use adit_wire::VnetHeader;

use super::case::{Count, Mode, Seen};
use super::frame::{Side, counted_down};
use super::seen;
use crate::failure::{Context as _, Result};

/// What adit made of a frame, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// What somebody outside sees.
    pub seen: Seen,
    /// A state, a reason or a rule.
    pub why: String,
}

/// A filter with rules.
pub struct Adit {
    mode: Mode,
    filter: Arc<Filter>,
    judge: Judge,
    tracker: Tracker,
    fragments: Reassembler,
    now: Nanos,
}

/// Between two packets: a whole case takes less than the shortest of the timeouts.
const STEP: Duration = Duration::from_micros(20);

impl Adit {
    /// With rules, in nftables' language.
    ///
    /// # Errors
    /// What is wrong with them, as `stdin:LINE:COLUMN: ...`.
    pub fn new(mode: Mode, rules: &str) -> std::result::Result<Adit, String> {
        let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let ruleset = lang::parse("stdin", rules, none).map_err(|wrong| wrong.to_string())?;
        let filter = Filter::compile(ruleset).map_err(|wrong| wrong.to_string())?;
        let filter = Arc::new(filter);
        Ok(Adit {
            mode,
            judge: Judge::new(Arc::clone(&filter)),
            filter,
            tracker: Tracker::new(track::Limits::default(), [7; 16]),
            fragments: Reassembler::new(fragment::Limits::default()),
            now: Nanos(1_000_000_000),
        })
    }

    /// Judges a frame.
    pub fn pass(&mut self, side: Side, frame: &[u8]) -> Made {
        self.now = self.now.after(STEP);
        let frame = if self.mode == Mode::Route { counted_down(frame) } else { frame.to_vec() };
        let vnet = VnetHeader::default();
        let nothing = |why: String| Made { seen: Seen::Nothing, why };
        let packet = match Packet::parse(&frame, Layer::Ethernet, None, &vnet) {
            Ok(packet) => packet,
            Err(wrong) => return nothing(format!("malformed: {wrong}")),
        };
        let whole = match self.fragments.push(&packet, &vnet, side as u32, self.now) {
            Outcome::NotAPiece => return self.judge(side, &packet),
            Outcome::Held => return nothing("held".to_owned()),
            Outcome::Dropped(why) => return nothing(format!("piece: {why}")),
            Outcome::Whole(all) => all.whole().to_vec(),
        };
        match Packet::parse(&whole, Layer::Ethernet, None, &vnet) {
            Ok(packet) => self.judge(side, &packet),
            Err(wrong) => nothing(format!("malformed: {wrong}")),
        }
    }

    fn judge(&mut self, side: Side, packet: &Packet<'_>) -> Made {
        let mut burst = self.tracker.burst(self.now);
        let tracked = burst.look(packet);
        let context = Context {
            now: self.now,
            iif: IfName::new(side.interface()),
            oif: IfName::new(side.other().interface()),
            state: tracked.state,
            direction: tracked.direction,
            protocol: tracked.protocol,
        };
        let judgement = self.judge.judge(packet, &context, None, &mut ());
        let why = format!("{tracked:?} {judgement:?}");
        let seen = match judgement.decision {
            Decision::Accept if burst.confirm(&tracked, packet) => Seen::Passed,
            Decision::Accept | Decision::Drop => Seen::Nothing,
            Decision::Reject(how) => {
                let mut out = [0; answer::MAX_ANSWER];
                match answer::reject(packet, how, &mut out) {
                    Some(length) => {
                        let packet = out.get(14..length).unwrap_or_default();
                        Seen::Answered(seen::answer(packet))
                    }
                    None => Seen::Nothing,
                }
            }
        };
        Made { seen, why }
    }

    /// What the rules counted, in the order in which they stand: a table's named counters, then its rules.
    ///
    /// # Errors
    /// A counter without a count.
    pub fn counts(&mut self) -> Result<Vec<Count>> {
        self.judge.flush();
        let counts = self.filter.counts();
        let mut all = Vec::new();
        for (index, table) in self.filter.ruleset().tables.iter().enumerate() {
            for counter in 0..table.counters.len() {
                let id = adit_filter::ruleset::CounterId(counter);
                all.push(counts.named(index, id));
            }
            for rule in table.chains.iter().flat_map(|chain| &chain.rules) {
                let own = |statement: &&Statement| matches!(statement, Statement::Counter(Counter::Own(_)));
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
