//! The contents of both reports, before they become Markdown or HTML.

use std::collections::BTreeSet;

use super::number::{
    date, duration, kib, number, percent, times, times_with_interval, with_interval,
};
use super::{Run, order, tables, validity};
use crate::stats::{Cell, Row, Verdict, interval_of_median, median};

/// A whole report.
pub(super) struct Document {
    pub title: String,
    /// Notices before everything else, such as that the run is unfinished.
    pub notices: Vec<String>,
    /// The facts of the run: its plan and its machine.
    pub facts: Vec<(String, String)>,
    /// The results in one sentence each, for a reader who stops here.
    pub headline: Vec<Headline>,
    pub validity: Validity,
    /// Version and state of each subject.
    pub subjects: Table,
    pub sections: Vec<Section>,
    pub command: String,
}

/// The comparison of adit with others at one point of the scenario with one stream.
pub(super) struct Headline {
    /// `link mode offload`.
    pub place: String,
    /// The headline: `12.4×`, `of openvpn’s throughput`.
    pub figures: Vec<(String, &'static str)>,
    /// Whether all of it is computed from valid results.
    pub valid: bool,
    /// The bare link, adit and openvpn by name.
    pub bars: Vec<HeadlineBar>,
    /// The same comparison in full sentences, with intervals.
    pub sentences: Vec<String>,
    /// How the link mode affects the meaning of the figures.
    pub caveat: &'static str,
}

/// A subject's throughput.
pub(super) struct HeadlineBar {
    pub subject: String,
    pub value: f64,
    /// The throughput with its unit.
    pub text: String,
}

/// Whether the figures may be trusted, and how far.
pub(super) struct Validity {
    pub good: bool,
    pub verdict: String,
    pub warnings: Vec<String>,
    pub tables: Vec<Table>,
}

/// One scenario.
pub(super) struct Section {
    pub name: String,
    pub kind: String,
    pub intro: &'static str,
    /// The settings of all its trials: `link offload`.
    pub same: Vec<String>,
    pub tables: Vec<Table>,
    pub notes: Vec<String>,
}

/// A table. Its first `stubs` columns name the row.
pub(super) struct Table {
    pub title: String,
    pub stubs: usize,
    pub head: Vec<String>,
    pub rows: Vec<Vec<Text>>,
}

/// The text of a cell.
#[derive(Clone, Default)]
pub(super) struct Text {
    pub text: String,
    pub tone: Tone,
}

/// The tone of a cell. The colour only repeats what the words say.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    Weak,
}

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

impl Text {
    /// Creates text with a tone.
    pub(super) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl Document {
    /// Returns the whole report of a run.
    pub(super) fn of(run: &Run) -> Self {
        let name = match run.manifest.plan.name.as_str() {
            "" => "a run without a name",
            name => name,
        };
        Self {
            title: format!("adit-lab: {name}, {}", date(run.manifest.started_ms)),
            notices: notices(run),
            facts: facts(run),
            headline: headline(run),
            validity: validity::of(run),
            subjects: subjects(run),
            sections: tables::sections(run),
            command: run.manifest.command.clone(),
        }
    }
}

pub(super) fn notices(run: &Run) -> Vec<String> {
    let mut notices = Vec::new();
    let (done, planned) = (run.records.len(), run.manifest.trials_planned);
    if run.manifest.finished_ms.is_none() || done < planned {
        let of = if planned > 0 { format!(" of {planned}") } else { String::new() };
        notices.push(format!(
            "This run is unfinished: {done}{of} trials are here. Figures may change; resume it with the command below."
        ));
    }
    if !run.torn.is_empty() {
        let lines: Vec<String> = run.torn.iter().map(ToString::to_string).collect();
        notices.push(format!(
            "Unreadable in trials.jsonl, as a killed run leaves it: line {}. What stood there does not count.",
            lines.join(", ")
        ));
    }
    notices
}

fn facts(run: &Run) -> Vec<(String, String)> {
    let m = &run.manifest;
    let mut facts: Vec<(&str, String)> = Vec::new();
    let scenarios: BTreeSet<&str> =
        run.records.iter().map(|record| record.key.scenario.as_str()).collect();
    facts.push((
        "Plan",
        format!(
            "{}: {}, {}, seed {}",
            m.plan.name,
            counted(scenarios.len(), "scenario"),
            counted(m.rounds as usize, "round"),
            m.seed
        ),
    ));
    facts.push(match m.finished_ms {
        Some(end) => {
            let seconds = end.saturating_sub(m.started_ms) / 1000;
            ("When", format!("{}, for {}", date(m.started_ms), duration(seconds)))
        }
        None => ("When", format!("{}, not finished", date(m.started_ms))),
    });
    facts.push(("Trials", format!("{}, of them {} A/A", run.records.len(), count_a_a(run))));
    let machine = &m.machine;
    facts.push((
        "Processor",
        format!("{}, {} cores ({})", machine.cpu, machine.cores, machine.cpu_flags.join(" ")),
    ));
    facts.push(("Memory", kib(machine.memory_kib)));
    facts.push(("Kernel", machine.kernel.clone()));
    if let Some(source) = &m.source {
        let state = if source.dirty { ", with changes" } else { "" };
        facts.push(("Source", format!("{}{state}", source.hash)));
    }
    let tools: Vec<&str> = m.tools.values().map(String::as_str).collect();
    facts.push(("Tools", tools.join("; ")));
    let filled = facts.into_iter().filter(|(_, value)| !value.is_empty());
    filled.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Formats `1 round`, `5 rounds`.
fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

pub(super) fn count_a_a(run: &Run) -> usize {
    run.records.iter().filter(|record| record.a_a).count()
}

/// Returns the rows with one stream. These are the rows of the scenarios that are named accordingly, or else those with
/// one client and one stream.
fn single_stream<'a>(rows: &'a [Row], metric: &str) -> Vec<&'a Row> {
    let one = |axis: Option<&str>| axis.is_none_or(|value| value == "1");
    let alone = |row: &Row| one(row.point.get("clients")) && one(row.point.get("streams"));
    let fits = |row: &&Row| row.kind == "throughput" && row.values.contains_key(metric);
    let named = rows.iter().filter(fits).filter(|row| row.scenario.contains("single"));
    let named: Vec<&Row> = named.collect();
    if named.is_empty() {
        rows.iter().filter(fits).filter(|row| alone(row)).collect()
    } else {
        named
    }
}

fn headline(run: &Run) -> Vec<Headline> {
    let metric = "sum_mbps";
    let rows = single_stream(&run.summary.rows, metric);
    let mut places: Vec<&Row> = rows.iter().copied().filter(|row| row.subject == "adit").collect();
    places.sort_by(|a, b| order::points(&a.point, &b.point));
    places.dedup_by(|a, b| at(a) == at(b));
    let mut lines = Vec::new();
    for adit in places.into_iter().take(3) {
        let beside = |row: &&&Row| row.scenario == adit.scenario && row.point == adit.point;
        let of =
            |subject: &str| rows.iter().filter(beside).find(|row| row.subject == subject).copied();
        let peer = of("openvpn").and_then(|peer| beside_peer(adit, peer, metric));
        let bare = of("bare").and_then(|bare| beside_bare(adit, bare, metric));
        let (figures, sentences): (Vec<_>, Vec<_>) = [peer, bare].into_iter().flatten().unzip();
        if !figures.is_empty() {
            let place = at(adit);
            let all = [of("bare"), Some(adit), of("openvpn")];
            let valid = all.into_iter().flatten().all(|row| row.invalid.is_none());
            let bars = all.into_iter().flatten().filter_map(|row| stand(row, metric)).collect();
            let caveat = adit.point.get("link").map_or("", caveat);
            let sentences = sentences.into_iter().map(|text| format!("{place}: {text}")).collect();
            lines.push(Headline { place, figures, valid, bars, sentences, caveat });
        }
    }
    lines
}

fn stand(row: &Row, metric: &str) -> Option<HeadlineBar> {
    let value = row.values.get(metric)?.median;
    Some(HeadlineBar {
        subject: row.subject.clone(),
        value,
        text: format!("{} Mb/s", number(value, 0)),
    })
}

/// Returns the caveat for a reader who mistakes the figure for that of a network.
fn caveat(link: &str) -> &'static str {
    match link {
        "offload" => {
            "Pieces of up to 64 KiB cross this link whole, as between two containers of one host and on no cable: it favours programs that \
             hand over large pieces, the bare link and adit above all."
        }
        "wire-gro" => {
            "Each packet crosses alone and the receiving kernel merges them, as behind a common network card: the nearest to a real \
             network."
        }
        "wire" => {
            "Each packet crosses alone and stays alone, as behind a card that helps with nothing: the hardest case."
        }
        _ => "",
    }
}

/// The headline figure, and the sentence.
type Comparison = ((String, &'static str), String);

/// Formats `adit carries 8,480 Mb/s ±2 %, openvpn 690 Mb/s ±1 %: 12.4× [12.0, 12.9], adit is ahead`.
fn beside_peer(adit: &Row, peer: &Row, metric: &str) -> Option<Comparison> {
    let (a, p) = (adit.values.get(metric)?, peer.values.get(metric)?);
    let both = ["up_mbps", "down_mbps"].iter().all(|name| adit.values.contains_key(*name));
    let each = if both { " each way" } else { "" };
    let carries =
        format!("one stream{each} through adit carries {}, through openvpn {}", mbps(a), mbps(p));
    let ratio = a.ratio.as_ref().filter(|ratio| ratio.reference == peer.subject);
    let (figure, sentence) = match ratio {
        Some(r) => {
            let verdict = match r.verdict {
                Verdict::InsideTheNoise => "a difference inside the noise",
                Verdict::Invalid => "not a valid result",
                Verdict::Ahead => "adit is ahead",
                Verdict::Behind => "adit is behind",
            };
            let ratio = times_with_interval(r.median, r.interval);
            (times(r.median), format!("{carries}: {ratio}, {verdict}."))
        }
        None => (times(a.median / p.median), format!("{carries}.")),
    };
    Some(((figure, "openvpn’s throughput"), sentence))
}

/// Formats `20,141 Mb/s ±3 %`.
fn mbps(cell: &Cell) -> String {
    let shown = with_interval(cell.median, cell.interval, 0);
    match shown.split_once(' ') {
        Some((median, interval)) => format!("{median} Mb/s {interval}"),
        None => format!("{shown} Mb/s"),
    }
}

/// Compares with the bare link. It is an upper bound, so the sentence gives the share that is reached.
fn beside_bare(adit: &Row, bare: &Row, metric: &str) -> Option<Comparison> {
    let (a, b) = (adit.values.get(metric)?, bare.values.get(metric)?);
    let rounds = a.by_round.iter();
    let shares: Vec<f64> = rounds
        .filter_map(|(round, figure)| Some(100.0 * figure / b.by_round.get(round)?))
        .collect();
    let share = median(&shares).unwrap_or(100.0 * a.median / b.median);
    let sentence = match interval_of_median(&shares) {
        Some(i) => format!(
            "the bare link carries {}, of which adit reaches {} [{}, {}].",
            mbps(b),
            percent(share),
            number(i.low, 1),
            number(i.high, 1)
        ),
        None => {
            format!("the bare link carries {}, of which adit reaches {}.", mbps(b), percent(share))
        }
    };
    Some(((percent(share), "of the bare link"), sentence))
}

/// Returns the point of a row, in words.
fn at(row: &Row) -> String {
    match row.point.get("link") {
        Some(link) => format!("Link mode {link}"),
        None if row.point.0.is_empty() => row.scenario.clone(),
        None => row.point.to_string(),
    }
}

/// Capitalizes the first letter.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    first + letters.as_str()
}

/// Returns whether a record contributes to a row.
pub(super) fn is_of(record: &crate::record::Record, row: &Row) -> bool {
    let key = &record.key;
    key.scenario == row.scenario && key.point == row.point && key.subject == row.subject
}

fn subjects(run: &Run) -> Table {
    let mut names: Vec<_> = run.manifest.subjects.iter().collect();
    names.sort_by(|(a, _), (b, _)| order::subjects(a, b));
    let rows = names.into_iter().map(|(name, entry)| {
        let state = match &entry.skipped {
            Some(_) => Text::toned("skipped", Tone::Weak),
            None => "measured".into(),
        };
        // The manifest has OpenVPN's build options.
        let version = entry.version.split(" [").next().filter(|version| !version.is_empty());
        let version = version.unwrap_or("–");
        vec![name.as_str().into(), state, version.into()]
    });
    Table {
        title: "Subjects".into(),
        stubs: 3,
        head: ["subject", "state", "version"].map(str::to_owned).into(),
        rows: rows.collect(),
    }
}
