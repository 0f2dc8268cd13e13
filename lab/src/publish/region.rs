//! Tables in a document. An HTML comment defines the table below it:
//!
//! ```text
//! <!-- figures: standard
//! columns: adit | openvpn as openvpn 2.6 | bare as the bare link | ratio as adit vs. openvpn
//! veth as it is: sum_mbps of single-stream link=offload
//! adit serves openvpn's clients: sum_mbps of single-stream link=offload, adit is adit/openvpn
//! -->
//! (the table)
//! <!-- end of figures -->
//! ```
//!
//! With `metrics:` instead of `columns:` the table is transposed: its columns are metrics, its rows are subjects.
//!
//! ```text
//! metrics: up_mbps as up | sum_mbps as sum | ratio of sum_mbps as vs. openvpn
//! adit serves openvpn's clients: adit/openvpn of single-stream link=offload
//! ```
//!
//! The last line of the table names the run: date, revision, machine, and the run's warnings.

use adit_testbed::failure::{Context, Failure, Result, ensure};

use super::figures::{Figures, RatioToReference, Value};
use crate::metric;
use crate::report::{number, times_with_interval, with_interval};
use crate::stats::Interval;

const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";

/// The contents of one table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Region {
    plan: String,
    across: ColumnAxis,
    columns: Vec<Column>,
    rows: Vec<Line>,
}

/// The property shown in the columns; the rows show the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnAxis {
    Subjects,
    Metrics,
}

#[derive(Debug, PartialEq, Eq)]
struct Column {
    /// A subject or a metric.
    of: String,
    /// Whether it shows the ratio to the reference.
    ratio: bool,
    title: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    title: String,
    /// A metric or a subject.
    of: String,
    scenario: String,
    /// The axes and their values.
    point: Vec<(String, String)>,
    /// The subject of a column, and the subject that replaces it in this row.
    instead: Vec<(String, String)>,
}

/// Returns the plans whose figures a document's tables show.
///
/// # Errors
/// A region is malformed; the error names the document and line.
pub(super) fn plans(document: &str, text: &str) -> Result<Vec<String>> {
    let mut plans = Vec::new();
    replace(document, text, |region| {
        plans.push(region.plan.clone());
        Ok(None)
    })?;
    plans.dedup();
    Ok(plans)
}

/// Replaces each table for which `table` returns a new one; the others stay.
///
/// # Errors
/// A region is malformed, or `table` fails; the error names the document and line.
pub(super) fn replace(
    document: &str,
    text: &str,
    mut table: impl FnMut(&Region) -> Result<Option<String>>,
) -> Result<String> {
    let mut new = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let line = text.len() - rest.len() + at;
        let line = text.get(..line).unwrap_or_default().lines().count() + 1;
        let said = |failure: Failure| Failure(format!("{document}:{line}: {failure}"));
        let (before, region) = rest.split_at(at);
        let whole = region.split_once("\n-->\n").and_then(|(head, after)| {
            let (old, after) = after.split_once(END)?;
            Some((head, old, after))
        });
        let (head, old, after) =
            whole.context(format!("figures need a line --> and then {END}")).map_err(said)?;
        let parsed = Region::parse(head.trim_start_matches(BEGIN)).map_err(said)?;
        let made = table(&parsed).map_err(said)?;
        new.push_str(before);
        new.push_str(head);
        new.push_str("\n-->\n");
        new.push_str(made.as_deref().unwrap_or(old));
        new.push_str(END);
        rest = after;
    }
    new.push_str(rest);
    Ok(new)
}

impl Region {
    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let plan = lines.next().context("no plan is named")?.to_owned();
        let second = lines.next().unwrap_or_default();
        let (across, columns) = match second.split_once(": ") {
            Some(("columns", columns)) => (ColumnAxis::Subjects, columns),
            Some(("metrics", columns)) => (ColumnAxis::Metrics, columns),
            _ => {
                let needed = "the second line says columns: SUBJECT as TITLE | ..., or metrics: METRIC as TITLE | ...";
                return Err(Failure(needed.to_owned()));
            }
        };
        let columns = Column::parse(columns);
        let rows: Vec<Line> = lines.map(Line::parse).collect::<Result<_>>()?;
        let replaced =
            rows.iter().find(|row| across == ColumnAxis::Metrics && !row.instead.is_empty());
        ensure(replaced.is_none(), || "columns of metrics have no subject to replace".to_owned())?;
        Ok(Self { plan, across, columns, rows })
    }

    /// Returns the plan whose run the table shows.
    pub(super) fn plan(&self) -> &str {
        &self.plan
    }

    /// Returns the table in Markdown, with a line about its origin, followed by the run's warnings if they are
    /// requested.
    ///
    /// # Errors
    /// A figure in the table is not in the run.
    pub(super) fn table(&self, figures: &Figures, warn: bool) -> Result<String> {
        let mut text = String::from("| |");
        self.columns.iter().for_each(|column| text.push_str(&format!(" {} |", column.title)));
        text.push_str("\n|---|");
        self.columns.iter().for_each(|_| text.push_str("---:|"));
        text.push('\n');
        for row in &self.rows {
            text.push_str(&format!("| {} |", row.title));
            for column in &self.columns {
                let cell = self.cell(figures, row, column)?;
                text.push_str(&if cell.is_empty() {
                    " |".to_owned()
                } else {
                    format!(" {cell} |")
                });
            }
            text.push('\n');
        }
        Ok(text + "\n" + &origin(figures, warn) + "\n")
    }

    fn cell(&self, figures: &Figures, row: &Line, column: &Column) -> Result<String> {
        let (subject, metric) = match self.across {
            ColumnAxis::Subjects => (row.instead_of(&column.of), row.of.as_str()),
            ColumnAxis::Metrics => (row.of.as_str(), column.of.as_str()),
        };
        let metric = metric::find(metric).context(format!("no metric is called {metric:?}"))?;
        let first = self.columns.first().is_some_and(|first| first.of == column.of);
        let Some(value) = row.value(figures, subject, metric.name)? else {
            // Not every subject takes part in every scenario; the first column's does.
            ensure(!first, || format!("{}: the run has no such result", row.title))?;
            return Ok(String::new());
        };
        if column.ratio {
            return Ok(value.ratio.as_ref().map(compared).unwrap_or_default());
        }
        let with_its_interval = match self.across {
            ColumnAxis::Subjects => first,
            ColumnAxis::Metrics => metric.better != metric::Better::Neither,
        };
        Ok(if with_its_interval {
            with_interval(value.median, value.interval.map(interval), metric.digits)
        } else {
            number(value.median, metric.digits)
        })
    }
}

impl Column {
    /// Parses `adit | openvpn as openvpn 2.6 | ratio of adit as adit vs. openvpn`; a plain ratio belongs to the first
    /// column.
    fn parse(text: &str) -> Vec<Self> {
        let mut columns: Vec<Self> = Vec::new();
        for column in text.split('|') {
            let (of, title) = column.split_once(" as ").unwrap_or((column, column));
            let (of, title) = (of.trim(), title.trim().to_owned());
            let first = columns.first().map(|first| first.of.clone());
            let (of, ratio) = match (of.strip_prefix("ratio of "), of, first) {
                (Some(of), _, _) => (of.to_owned(), true),
                (_, "ratio", Some(first)) => (first, true),
                _ => (of.to_owned(), false),
            };
            columns.push(Self { of, ratio, title });
        }
        columns
    }
}

impl Line {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            format!(
                "{text:?}: write TITLE: METRIC (or SUBJECT) of SCENARIO [AXIS=VALUE ...][, COLUMN is SUBJECT]"
            )
        };
        let (title, what) = text.rsplit_once(": ").context(wrong())?;
        let mut parts = what.split(',').map(str::trim);
        let (of, place) = parts.next().and_then(|p| p.split_once(" of ")).context(wrong())?;
        let mut words = place.split_whitespace();
        let scenario = words.next().context(wrong())?;
        let pair = |word: &str, by: &str| -> Result<(String, String)> {
            let (one, other) = word.split_once(by).context(wrong())?;
            Ok((one.trim().to_owned(), other.trim().to_owned()))
        };
        Ok(Self {
            title: title.to_owned(),
            of: of.trim().to_owned(),
            scenario: scenario.to_owned(),
            point: words.map(|word| pair(word, "=")).collect::<Result<_>>()?,
            instead: parts.map(|part| pair(part, " is ")).collect::<Result<_>>()?,
        })
    }

    /// Returns the subject that replaces that of a column in this row.
    fn instead_of<'a>(&'a self, column: &'a str) -> &'a str {
        self.instead.iter().find(|(of, _)| of == column).map_or(column, |(_, other)| other)
    }

    /// Returns a subject's figure; `None` if it took no part.
    fn value<'a>(
        &self,
        figures: &'a Figures,
        subject: &str,
        metric: &str,
    ) -> Result<Option<&'a Value>> {
        let mut fitting = figures.results.iter().filter(|result| {
            let here = |(axis, value): &(String, String)| result.point.get(axis) == Some(value);
            result.scenario == self.scenario
                && result.subject == subject
                && self.point.iter().all(here)
        });
        let found = fitting.next();
        ensure(fitting.next().is_none(), || {
            format!("{}: {} has several points: name axis and value", self.title, self.scenario)
        })?;
        Ok(found.and_then(|result| result.values.get(metric)))
    }
}

fn interval([low, high]: [f64; 2]) -> Interval {
    Interval { low, high }
}

fn compared(ratio: &RatioToReference) -> String {
    let text = times_with_interval(ratio.median, ratio.interval.map(interval));
    if ratio.certain { text } else { format!("{text}, noise") }
}

fn origin(figures: &Figures, warn: bool) -> String {
    let mut text = format!(
        "<sub>`{}` of {}, revision {}, {} rounds; {}",
        figures.plan,
        figures.date,
        figures.short(),
        figures.rounds,
        figures.machine
    );
    for warning in figures.warnings.iter().filter(|_| warn) {
        text.push_str(&format!("; {warning}"));
    }
    text + ".</sub>\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::figures::PublishedRow;
    use super::*;

    const TEXT: &str = "Before.\n<!-- figures: standard\ncolumns: adit | openvpn as openvpn 2.6 | tinc | ratio as adit vs. openvpn\n\
        one stream: sum_mbps of single link=offload\nserved: sum_mbps of single link=offload, adit is adit/openvpn\n-->\nold\n\
        <!-- end of figures -->\nAfter.\n";

    fn result(subject: &str, link: &str, median: f64, ratio: Option<f64>) -> PublishedRow {
        let ratio = ratio.map(|median| RatioToReference {
            reference: "openvpn".into(),
            median,
            interval: Some([median * 0.9, median * 1.1]),
            certain: median > 1.3,
        });
        let value = Value { median, interval: Some([median * 0.95, median * 1.05]), ratio };
        PublishedRow {
            scenario: "single".into(),
            point: BTreeMap::from([("link".to_owned(), link.to_owned())]),
            subject: subject.into(),
            values: BTreeMap::from([("sum_mbps".to_owned(), value)]),
        }
    }

    fn figures() -> Figures {
        Figures {
            plan: "standard".into(),
            revision: "0123456789abcdef".into(),
            date: "2026-03-01".into(),
            machine: "a processor, 2 cores".into(),
            command: String::new(),
            versions: BTreeMap::new(),
            trials: 10,
            rounds: 5,
            warnings: vec!["the machine was not quiet".into()],
            results: vec![
                result("adit", "offload", 17000.0, Some(12.0)),
                result("adit", "wire", 8000.0, Some(5.0)),
                result("adit/openvpn", "offload", 1800.0, Some(1.2)),
                result("openvpn", "offload", 1400.0, None),
            ],
        }
    }

    fn written(text: &str) -> Result<String> {
        let kept = figures().to_text()?;
        assert_eq!(kept.lines().count(), 1 + figures().results.len());
        let figures = Figures::from_text(&kept)?;
        replace("README.md", text, |region| region.table(&figures, true).map(Some))
    }

    #[test]
    fn a_table_is_written_between_its_marks_and_again_the_same() {
        let new = written(TEXT).unwrap();
        for line in [
            "Before.\n<!-- figures: standard\n",
            "| | adit | openvpn 2.6 | tinc | adit vs. openvpn |\n|---|---:|---:|---:|---:|\n",
            "| one stream | 17,000 ±5.0 % | 1,400 | | 12.0× [10.8, 13.2] |\n",
            "| served | 1,800 ±5.0 % | 1,400 | | 1.20× [1.08, 1.32], noise |\n",
            "`standard` of 2026-03-01, revision 01234567, 5 rounds; a processor, 2 cores; the machine was not quiet.",
            "<!-- end of figures -->\nAfter.\n",
        ] {
            assert!(new.contains(line), "{line}\n{new}");
        }
        assert!(!new.contains("old"));
        assert_eq!(written(&new).unwrap(), new);
        assert_eq!(plans("README.md", &new).unwrap(), ["standard"]);
    }

    #[test]
    fn a_turned_table_has_metrics_across_and_subjects_down() {
        let text = "<!-- figures: standard\nmetrics: sum_mbps as Mb/s | ratio of sum_mbps as vs. openvpn\n\
            **adit**: adit of single link=offload\nopenvpn: openvpn of single\n-->\n<!-- end of figures -->\n";
        let new = written(text).unwrap();
        for line in [
            "| | Mb/s | vs. openvpn |\n|---|---:|---:|\n",
            "| **adit** | 17,000 ±5.0 % | 12.0× [10.8, 13.2] |\n",
            "| openvpn | 1,400 ±5.0 % | |\n",
        ] {
            assert!(new.contains(line), "{line}\n{new}");
        }
        let replaced = text.replace("single\n", "single, adit is tinc\n");
        assert!(written(&replaced).unwrap_err().0.contains("no subject to replace"));
        let unknown = text.replace("openvpn of", "tinc of");
        assert!(written(&unknown).unwrap_err().0.contains("no such result"));
    }

    #[test]
    fn a_table_that_is_not_published_stays() {
        assert_eq!(replace("README.md", TEXT, |_| Ok(None)).unwrap(), TEXT);
    }

    #[test]
    fn what_the_run_does_not_have_is_named_with_its_line() {
        let said = |from: &str, to: &str| written(&TEXT.replace(from, to)).unwrap_err().0;
        assert!(said("of single link", "of double link").starts_with("README.md:2: one stream"));
        assert!(said("single link=offload", "single").contains("several points"));
        assert!(said("sum_mbps", "sum").contains("no metric is called \"sum\""));
        assert!(said("columns: ", "rows: ").contains("columns: SUBJECT as TITLE"));
        assert!(said("<!-- end of figures -->", "").contains("end of figures"));
        assert!(said(" of single", "").contains("write TITLE: METRIC (or SUBJECT) of SCENARIO"));
    }
}
