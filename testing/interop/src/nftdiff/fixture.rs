//! Cases stored as text, with the rules, the frames, and the result for each.
//!
//! ```text
//! # Why it is kept.
//! mode route
//! rule table inet t0 {
//! rule }
//! frame a passed nothing 02ad17000a01... SYN
//! count 1:60 0:0
//! ```
//!
//! `frame` has the side, the results of the kernel and of adit, the bytes, and a comment; `count` has the final values of a counter in
//! both. If the two differ, the difference is intended.

use std::fmt::Write as _;

use super::adit::Adit;
use super::case::{Count, Mode, SentFrame};
use super::compare::{Case, ResultPair};
use super::frame::Side;
use crate::failure::{Context, Failure, Result, ensure};

/// The content of a fixture file.
#[derive(Debug)]
pub struct Fixture {
    /// The case.
    pub case: Case,
    /// The results of the kernel and adit for each frame.
    pub seen: Vec<(String, String)>,
    /// The counters of both.
    pub counts: Vec<(String, String)>,
}

/// Formats a case as text.
pub fn print(why: &str, case: &Case, both: &ResultPair) -> String {
    let mut text =
        format!("# {why}\nmode {}\n", if case.mode == Mode::Route { "route" } else { "bridge" });
    for line in case.rules.lines() {
        let _ = writeln!(text, "rule {line}");
    }
    for (sent, (kernel, adit)) in case.frames.iter().zip(&both.seen) {
        let side = if sent.side == Side::A { 'a' } else { 'b' };
        let bytes: String = sent.frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "frame {side} {kernel} {} {bytes} {}", adit.seen, sent.what);
    }
    for (kernel, adit) in &both.counts {
        let _ = writeln!(text, "count {} {}", show(*kernel), show(*adit));
    }
    text
}

fn show(count: Count) -> String {
    format!("{}:{}", count.packets, count.bytes)
}

/// Parses a case from text.
///
/// # Errors
/// A line has none of these forms.
pub fn read(text: &str) -> Result<Fixture> {
    let case = Case { mode: Mode::Route, rules: String::new(), frames: Vec::new() };
    let mut fixture = Fixture { case, seen: Vec::new(), counts: Vec::new() };
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        match (kind, words.as_slice()) {
            ("mode", ["route"]) => fixture.case.mode = Mode::Route,
            ("mode", ["bridge"]) => fixture.case.mode = Mode::Bridge,
            ("rule", _) => fixture.case.rules.push_str(&format!("{rest}\n")),
            ("frame", [side, kernel, adit, bytes, what @ ..]) => {
                let side = if *side == "a" { Side::A } else { Side::B };
                fixture.case.frames.push(SentFrame {
                    side,
                    frame: hex(bytes).context(line)?,
                    what: what.join(" ").into(),
                });
                fixture.seen.push(((*kernel).to_owned(), (*adit).to_owned()));
            }
            ("count", [kernel, adit]) => {
                fixture.counts.push(((*kernel).to_owned(), (*adit).to_owned()));
            }
            _ => return Err(Failure(format!("not a line of a fixture: {line}"))),
        }
    }
    Ok(fixture)
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if digits.len().is_multiple_of(2) { digits.chunks(2).map(byte).collect() } else { None }
}

impl Fixture {
    /// Replays the case on adit.
    ///
    /// # Errors
    /// adit's results differ from those in the file.
    pub fn replay(&self) -> Result<()> {
        let mut adit = Adit::new(self.case.mode, &self.case.rules).map_err(Failure)?;
        for (index, (sent, (_, expected))) in self.case.frames.iter().zip(&self.seen).enumerate() {
            let made = adit.pass(sent.side, &sent.frame);
            ensure(made.seen.to_string() == *expected, || {
                format!("frame {index}: {} instead of {expected} ({})", made.seen, made.why)
            })?;
        }
        let counts: Vec<String> = adit.counts()?.into_iter().map(show).collect();
        let expected: Vec<&String> = self.counts.iter().map(|(_, adit)| adit).collect();
        ensure(counts.iter().eq(expected.iter().copied()), || {
            format!("counters {counts:?} instead of {expected:?}")
        })
    }

    /// Compares the current results of both implementations with those in the file.
    ///
    /// # Errors
    /// They differ.
    pub fn holds(&self, both: &ResultPair) -> Result<()> {
        let seen =
            both.seen.iter().map(|(kernel, adit)| (kernel.to_string(), adit.seen.to_string()));
        let counts = both.counts.iter().map(|(kernel, adit)| (show(*kernel), show(*adit)));
        ensure(seen.eq(self.seen.iter().cloned()) && counts.eq(self.counts.iter().cloned()), || {
            format!("now it is\n{}", print("", &self.case, both))
        })
    }
}

/// Returns all fixtures in the repository, by name.
///
/// # Errors
/// A file cannot be read.
pub fn kept() -> Result<Vec<(String, Fixture)>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/nftdiff");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).context(folder)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let fixture = read(&std::fs::read_to_string(&path)?).context(path.display())?;
        all.push((name, fixture));
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs no root, because the files contain the kernel's verdicts.
    #[test]
    fn kept_cases_replay() {
        for (name, fixture) in kept().unwrap() {
            if let Err(failure) = fixture.replay() {
                panic!("{name}: {failure}");
            }
        }
    }
}
