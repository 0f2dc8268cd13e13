//! The notes of trials. Notes with the same words are merged into one line, and the relay's notes into a table.

use std::collections::BTreeMap;

use super::document::{Table, Text, Tone};
use super::number::number;
use super::tables::{Scenario, title};
use crate::record::{Measurement, Outcome, Record};
use crate::stats::median;

/// The maximum number of lines shown; the others remain in `trials.jsonl`.
const MOST: usize = 16;

/// Returns all notes; those that differ only in their figures share a line with the minimum and the maximum.
pub(super) fn of(records: &[&Record]) -> Vec<String> {
    let mut said: Vec<(&str, &str)> = Vec::new();
    for record in records {
        if let Outcome::Measured(measurement) = &record.outcome {
            let own = measurement.notes.iter().filter(|note| !in_table(note, measurement));
            said.extend(own.map(|note| (record.key.subject.as_str(), note.as_str())));
        }
    }
    // Subjects with the same note also share a line.
    let mut lines: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (subject, text) in merged(&said) {
        lines.entry(text).or_default().push(subject);
    }
    let mut lines: Vec<String> =
        lines.into_iter().map(|(text, who)| format!("{}: {text}", who.join(", "))).collect();
    lines.sort();
    let more = lines.len().saturating_sub(MOST);
    lines.truncate(MOST);
    if more > 0 {
        lines.push(format!("and {more} more notes in trials.jsonl"));
    }
    lines
}

/// Returns whether [`relay_table`] already contains the note.
fn in_table(note: &str, measurement: &Measurement) -> bool {
    let lateness = measurement.latencies.contains_key("relay");
    relayed(note).is_some() || (lateness && note.starts_with("the relay handed packets over"))
}

fn merged<'a>(said: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
    let mut groups: BTreeMap<(&str, Vec<String>), Vec<Vec<String>>> = BTreeMap::new();
    for (subject, note) in said {
        let (words, figures) = taken_apart(note);
        groups.entry((subject, words)).or_default().push(figures);
    }
    // Of several notes that begin alike and end differently, one is shown.
    let mut alike: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for ((subject, words), all) in groups {
        let begin = words.first().cloned().unwrap_or_default();
        alike.entry((subject, begin)).or_default().push(together(&words, &all));
    }
    let one = |((subject, _), texts): ((&'a str, String), Vec<String>)| {
        let more = texts.len() - 1;
        let mut text = texts.into_iter().next().unwrap_or_default();
        if more > 0 {
            text += &format!(" (and {more} more of this kind in trials.jsonl)");
        }
        (subject, text)
    };
    alike.into_iter().map(one).collect()
}

/// Splits a note into the words around the figures, and the figures.
fn taken_apart(note: &str) -> (Vec<String>, Vec<String>) {
    let mut words = vec![String::new()];
    let mut figures: Vec<String> = Vec::new();
    let mut inside = false;
    let mut letters = note.chars().peekable();
    while let Some(letter) = letters.next() {
        let point = letter == '.' && inside && letters.peek().is_some_and(char::is_ascii_digit);
        if letter.is_ascii_digit() || point {
            if !inside {
                figures.push(String::new());
                words.push(String::new());
            }
            inside = true;
            figures.last_mut().into_iter().for_each(|figure| figure.push(letter));
        } else {
            inside = false;
            words.last_mut().into_iter().for_each(|word| word.push(letter));
        }
    }
    (words, figures)
}

fn together(words: &[String], all: &[Vec<String>]) -> String {
    let value = |text: &&String| text.parse::<f64>().unwrap_or_default();
    let mut text = String::new();
    for (i, word) in words.iter().enumerate() {
        let figures = all.iter().filter_map(|one| one.get(i.checked_sub(1)?));
        let least = figures.clone().min_by(|a, b| value(a).total_cmp(&value(b)));
        let most = figures.max_by(|a, b| value(a).total_cmp(&value(b)));
        match least.zip(most) {
            Some((least, most)) if least != most => text += &format!("{least} to {most}"),
            Some((figure, _)) => text += figure,
            None => {}
        }
        text += word;
    }
    text
}

/// Parses `relay up: 900 sent, 9 lost, 0 duplicated, 0 reordered, 0 overflowed, 0 refused`. Returns the direction and
/// the share lost, unless the other counters show something that a reader must know.
fn relayed(note: &str) -> Option<(&str, f64)> {
    let (direction, counts) = note.strip_prefix("relay ")?.split_once(": ")?;
    let mut by_name = BTreeMap::new();
    for part in counts.split(", ") {
        let (count, name) = part.split_once(' ')?;
        by_name.insert(name, count.parse::<f64>().ok()?);
    }
    let of = |name: &str| by_name.get(name).copied();
    let clean = of("overflowed")? == 0.0 && of("refused")? == 0.0 && of("sent")? > 0.0;
    clean.then_some((direction, 100.0 * of("lost")? / of("sent")?))
}

/// Returns the figures of the relay itself, with a line for each row: its ceiling, its lateness, its actual losses.
pub(super) fn relay_table(scenario: &Scenario<'_>) -> Option<Table> {
    const SHARES: [(&str, f64); 2] = [("late p50 ms", 0.5), ("late p99 ms", 0.99)];
    let ceiling = "relay_ceiling_mbps";
    let mut rows = Vec::new();
    for row in &scenario.rows {
        let measured = scenario.measured(row);
        let middle = |figure: &dyn Fn(&Measurement) -> Option<f64>, digits: usize| {
            let all: Vec<f64> = measured.iter().filter_map(|(_, m)| figure(m)).collect();
            let figure = median(&all).map(|figure| number(figure, digits));
            figure.map_or_else(|| Text::toned("–", Tone::Weak), Text::from)
        };
        if !measured.iter().any(|(_, m)| m.values.contains_key(ceiling)) {
            continue;
        }
        let mut cells = scenario.stubs(row);
        cells.push(middle(&|m| m.values.get(ceiling).copied(), 0));
        for (_, share) in SHARES {
            cells.push(middle(&|m| m.latencies.get("relay")?.at(share), 3));
        }
        for direction in ["up", "down"] {
            let lost = |m: &Measurement| {
                let mut all = m.notes.iter().filter_map(|note| relayed(note));
                all.find(|(own, _)| *own == direction).map(|(_, share)| share)
            };
            cells.push(middle(&lost, 2));
        }
        rows.push(cells);
    }
    let lost = ["lost up %", "lost down %"];
    let others = SHARES.map(|share| share.0).into_iter().chain(lost).map(str::to_owned);
    let columns = [title(ceiling)].into_iter().chain(others).collect();
    scenario.table("The relay itself", columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_that_differ_in_figures_become_one() {
        let said = [
            ("b", "dropped: 12 at sockets, 0 at TUN, p99 1.5 ms"),
            ("b", "dropped: 7 at sockets, 0 at TUN, p99 0.25 ms"),
            ("a", "AES-256, done"),
            ("a", "AES-256, done"),
        ];
        let lines: Vec<(&str, String)> = merged(&said);
        assert_eq!(lines[0], ("a", "AES-256, done".to_owned()));
        assert_eq!(
            lines[1],
            ("b", "dropped: 7 to 12 at sockets, 0 at TUN, p99 0.25 to 1.5 ms".to_owned())
        );
        let said = [
            ("a", "offered: 1 sustained; 2 not"),
            ("a", "offered: 1 sustained; 2 sustained; 4 not"),
        ];
        let lines = merged(&said);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].1.ends_with("(and 1 more of this kind in trials.jsonl)"), "{lines:?}");
    }

    #[test]
    fn a_relay_that_overflowed_is_not_hidden_in_a_table() {
        let note = "relay up: 200 sent, 3 lost, 0 duplicated, 0 reordered, 0 overflowed, 0 refused";
        assert_eq!(relayed(note), Some(("up", 1.5)));
        assert_eq!(relayed(&note.replace("0 overflowed", "8 overflowed")), None);
        assert_eq!(relayed("relay up: something else"), None);
    }
}
