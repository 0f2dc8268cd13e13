//! The accounting, without any I/O: the window that all flows share, the arrivals in it, and whether the trial counts.
//!
//! All times are nanoseconds of the boot clock, which both ends share. Arrivals are attributed by the receiver's time stamp right after the
//! read, never by the time when a counter was read.

use crate::record::Flow;

use super::{Measured, Window};

/// The widest spread of the flows' starts, as a share of the window, with which a trial still counts.
pub const SKEW_LIMIT: f64 = 0.02;

/// A [`Window`] with fixed times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The common start of all flows.
    pub start: u64,
    /// The first instant that counts.
    pub begin: u64,
    /// The first instant that no longer counts.
    pub end: u64,
}

impl Frame {
    /// Returns the frame of a window whose flows start at `start`.
    pub fn new(start: u64, window: &Window) -> Self {
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let begin = start.saturating_add(nanos(window.warmup));
        Self { start, begin, end: begin.saturating_add(nanos(window.length)) }
    }

    /// Returns whether this instant counts.
    pub fn contains(&self, at: u64) -> bool {
        (self.begin..self.end).contains(&at)
    }

    /// Returns its length in seconds.
    pub fn seconds(&self) -> f64 {
        seconds(self.end - self.begin)
    }
}

/// Converts nanoseconds to seconds.
pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// The result of one flow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowResult {
    /// The flow's name.
    pub name: String,
    /// The time when it started, if it did.
    pub started: Option<u64>,
    /// The bytes that arrived inside the frame.
    pub bytes: u64,
    /// The first and the last arrival inside the frame.
    pub arrivals: Option<(u64, u64)>,
    /// The reason why it broke, if it did.
    pub broken: Option<String>,
}

impl FlowResult {
    /// Creates a flow that has done nothing yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Records the first time of sending; later calls have no effect.
    pub fn sent(&mut self, at: u64) {
        self.started.get_or_insert(at);
    }

    /// Counts an arrival if it is inside the frame, and returns whether it is.
    pub fn arrived(&mut self, frame: &Frame, at: u64, bytes: u64) -> bool {
        if !frame.contains(at) {
            return false;
        }
        self.bytes += bytes;
        let first = self.arrivals.map_or(at, |(first, _)| first);
        self.arrivals = Some((first, at));
        true
    }

    fn flow(&self, frame: &Frame) -> Flow {
        let start = self.started.map_or(0.0, |at| seconds(at.saturating_sub(frame.start)));
        let between = self.arrivals.map_or(0.0, |(first, last)| seconds(last - first));
        let coverage = if frame.seconds() > 0.0 { between / frame.seconds() } else { 0.0 };
        Flow { name: self.name.clone(), bytes: self.bytes, start, coverage }
    }
}

/// Adds up the flows and lists each reason why the trial does not count, with the name of the flow.
pub fn judge(frame: &Frame, accounts: &[FlowResult]) -> Measured {
    let mut invalid = Vec::new();
    for account in accounts {
        let name = &account.name;
        if let Some(why) = &account.broken {
            invalid.push(format!("flow {name} broke: {why}"));
        } else if account.started.is_none() {
            invalid.push(format!("flow {name} never started"));
        }
    }
    // If one flow starves while others do not, this is a valid finding, which the fairness and the coverage show.
    let starved = accounts.iter().all(|account| account.bytes == 0);
    if starved && !accounts.is_empty() && invalid.is_empty() {
        invalid.push("no flow carried anything".to_owned());
    }
    let starts = accounts.iter().filter_map(|account| Some((account.started?, &account.name)));
    let (earliest, latest) = (starts.clone().min(), starts.max());
    let mut skew = 0.0;
    if let (Some((first, early)), Some((last, late))) = (earliest, latest) {
        let spread = seconds(last - first);
        skew = if spread > 0.0 { spread / frame.seconds() } else { 0.0 };
        if skew > SKEW_LIMIT {
            invalid.push(format!(
                "the flows' starts lie {:.1} % of the window apart, more than {:.0} %: {late} started {:.1} ms after {early}",
                skew * 100.0,
                SKEW_LIMIT * 100.0,
                spread * 1e3,
            ));
        }
    }
    let flows = accounts.iter().map(|account| account.flow(frame)).collect();
    Measured { flows, seconds: frame.seconds(), skew, invalid }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Starts at 1000 ms, counts from 1100 to 2100 ms.
    fn frame() -> Frame {
        let (warmup, length) = (Duration::from_millis(100), Duration::from_secs(1));
        Frame::new(1000 * MS, &Window { warmup, length })
    }

    fn account(name: &str, started: u64, arrivals: &[(u64, u64)]) -> FlowResult {
        let mut account = FlowResult::new(name);
        account.sent(started * MS);
        for (at, bytes) in arrivals {
            account.arrived(&frame(), at * MS, *bytes);
        }
        account
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn counts_what_arrives_inside_and_nothing_else() {
        let inside_and_out =
            [(1050, 1), (1099, 2), (1100, 10), (1600, 100), (2099, 1000), (2100, 4)];
        let measured = judge(&frame(), &[account("up 1", 1000, &inside_and_out)]);
        assert_eq!(measured.flows[0].bytes, 1110);
        close(measured.flows[0].coverage, 0.999);
        close(measured.seconds, 1.0);
        close(measured.mbps(), 1110.0 * 8.0 / 1e6);
        assert_eq!(measured.invalid, Vec::<String>::new());
    }

    #[test]
    fn a_read_belongs_whole_to_the_instant_at_which_it_ended() {
        // Its bytes arrived before and after the edge; the receiver's time stamp decides.
        let (mut before, mut after) = (FlowResult::new("a"), FlowResult::new("b"));
        assert!(!before.arrived(&frame(), 1100 * MS - 1, 65536));
        assert!(after.arrived(&frame(), 1100 * MS, 65536));
        assert!(!after.arrived(&frame(), 2100 * MS, 65536));
        assert_eq!((before.bytes, after.bytes), (0, 65536));
    }

    #[test]
    fn flows_that_start_apart_make_the_trial_invalid() {
        let busy = [(1200, 5), (2000, 5)];
        let near = [account("up 1", 1001, &busy), account("up 2", 1020, &busy)];
        let measured = judge(&frame(), &near);
        close(measured.skew, 0.019);
        assert_eq!(measured.invalid, Vec::<String>::new());
        close(measured.flows[1].start, 0.020);
        let apart = [
            account("up 1", 1001, &busy),
            account("up 2", 1005, &busy),
            account("up 3", 1032, &busy),
        ];
        let measured = judge(&frame(), &apart);
        close(measured.skew, 0.031);
        let expected = "the flows' starts lie 3.1 % of the window apart, more than 2 %: up 3 started 31.0 ms after up 1";
        assert_eq!(measured.invalid, [expected]);
    }

    #[test]
    fn a_flow_that_starves_among_others_is_a_finding_and_no_flow_at_all_is_none() {
        let flows =
            [account("up 1", 1000, &[(1200, 5)]), account("up 3", 1000, &[(1050, 5), (2100, 5)])];
        let measured = judge(&frame(), &flows);
        assert!(measured.invalid.is_empty());
        close(measured.coverage(), 0.0);
        let measured = judge(&frame(), flows.get(1..).unwrap());
        assert_eq!(measured.invalid, ["no flow carried anything"]);
    }

    #[test]
    fn a_flow_that_broke_or_never_started_is_named_once() {
        let mut broken = account("down 2", 1000, &[(1200, 5)]);
        broken.broken = Some("connection reset".into());
        let measured = judge(&frame(), &[broken, FlowResult::new("down 3")]);
        assert_eq!(
            measured.invalid,
            ["flow down 2 broke: connection reset", "flow down 3 never started"]
        );
    }

    #[test]
    fn sums_by_prefix() {
        let flows = [
            account("up 1", 1000, &[(1200, 1_000_000)]),
            account("down 1", 1000, &[(1200, 250_000)]),
        ];
        let measured = judge(&frame(), &flows);
        close(measured.mbps(), 10.0);
        close(measured.mbps_of("up"), 8.0);
        close(measured.mbps_of("down"), 2.0);
    }

    #[test]
    fn what_goes_into_a_record_is_what_was_measured() {
        let flows =
            [account("up 1", 1000, &[(1200, 1_000_000)]), account("up 2", 1050, &[(1200, 1)])];
        let (measured, mut record) =
            (judge(&frame(), &flows), crate::record::Measurement::default());
        measured.put(&mut record);
        close(record.values["up_mbps"], 8.000_008);
        close(record.values["sum_mbps"], 8.000_008);
        close(record.values["skew_percent"], 5.0);
        assert!(!record.values.contains_key("down_mbps"));
        assert_eq!((record.flows, record.invalid), (measured.flows, measured.invalid));
    }

    #[test]
    fn jain_of_equals_is_one_and_of_a_hog_one_nth() {
        let of = |bytes: &[u64]| {
            let flows: Vec<_> = bytes.iter().map(|n| account("up", 1000, &[(1200, *n)])).collect();
            judge(&frame(), &flows).jain()
        };
        close(of(&[7; 20]), 1.0);
        close(of(&[0, 0, 9, 0]), 0.25);
        close(of(&[1, 3]), 0.8);
    }

    #[test]
    fn of_no_flows_there_is_nothing_to_say() {
        let measured = judge(&frame(), &[]);
        assert!(measured.flows.is_empty() && measured.invalid.is_empty());
        close(measured.skew, 0.0);
    }
}
