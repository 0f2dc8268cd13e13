//! The gate: compares instruction counts with the accepted baseline.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::count::Conditions;
use crate::piece;

/// The tolerated difference in percent. Reordering of functions may cause it.
pub const TOLERANCE_PERCENT: u64 = 2;

/// Returns whether `more` exceeds `count` by more than the tolerance.
fn beyond(count: u64, more: u64) -> bool {
    more * 100 > count * (100 + TOLERANCE_PERCENT)
}

/// The accepted counts and their conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    /// The conditions, as [`Conditions`] prints them.
    pub conditions: String,
    /// The number of instructions of each benchmark.
    pub counts: BTreeMap<String, u64>,
}

/// The result of the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All counts are within the tolerance or lower; if some are lower, the text advises lowering
    /// the baseline.
    Passed(String),
    /// Some counts are higher.
    Failed(String),
    /// The counts cannot be compared, for this reason.
    Skipped(String),
}

impl Baseline {
    /// Parses the output of [`Baseline::write`].
    ///
    /// # Errors
    /// A line is not a benchmark with a count; the error names the line.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().enumerate();
        let first = lines.next().and_then(|(_, line)| line.strip_prefix("# "));
        let conditions = first.ok_or("line 1: not '# ' and where it was counted")?.to_owned();
        let mut counts = BTreeMap::new();
        for (at, line) in lines.filter(|(_, line)| !line.starts_with('#') && !line.is_empty()) {
            let entry = line
                .split_once(' ')
                .and_then(|(name, count)| Some((name, count.trim().parse().ok()?)));
            let (name, count) = entry
                .ok_or_else(|| format!("line {}: not a piece and its instructions", at + 1))?;
            counts.insert(name.to_owned(), count);
        }
        Ok(Self { conditions, counts })
    }

    /// Writes one line per benchmark, in the order of [`piece::ALL`].
    pub fn write(conditions: &Conditions, counts: &BTreeMap<String, u64>) -> String {
        let mut text = format!(
            "# {conditions}\n# Instructions that each piece takes; `make gate-accept` writes this file.\n"
        );
        for piece in piece::ALL {
            if let Some(count) = counts.get(piece.name) {
                // Writing into a string cannot fail.
                let _ = writeln!(text, "{:18} {count:>9}", piece.name);
            }
        }
        text
    }

    /// Returns the reason why counts under other conditions cannot be compared with these, if there
    /// is one.
    pub fn differs(&self, conditions: &Conditions) -> Option<String> {
        let here = conditions.to_string();
        (here != self.conditions).then(|| {
            format!(
                "counts of instructions compare only under the same conditions.\n  accepted: {}\n  here:     {here}",
                self.conditions
            )
        })
    }

    /// Compares the counts with this baseline.
    pub fn judge(&self, counts: &BTreeMap<String, u64>) -> Verdict {
        let (mut table, mut more, mut fewer) = (String::new(), false, false);
        for (name, count) in counts {
            let Some(accepted) = self.counts.get(name) else {
                let _ = writeln!(table, "  {name:18} {count:>9}  not accepted yet");
                more = true;
                continue;
            };
            let percent = (*count as f64 / (*accepted).max(1) as f64 - 1.0) * 100.0;
            let (worse, better) = (beyond(*accepted, *count), beyond(*count, *accepted));
            let mark = if worse {
                "  MORE"
            } else if better {
                "  fewer"
            } else {
                ""
            };
            (more, fewer) = (more || worse, fewer || better);
            let _ = writeln!(
                table,
                "  {name:18} {count:>9}  was {accepted:>9}  {percent:+6.1} %{mark}"
            );
        }
        if more {
            let advice = "if that is meant: make gate-accept, and say why in the commit";
            return Verdict::Failed(format!(
                "{table}the data path takes more instructions; {advice}"
            ));
        }
        if fewer {
            table += "fewer than accepted: lower the baseline, or the gain can be lost unseen: make gate-accept\n";
        }
        Verdict::Passed(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(compiler: &str) -> Conditions {
        let text = |text: &str| text.to_owned();
        Conditions {
            compiler: text(compiler),
            target: text("x86_64-unknown-linux-gnu"),
            valgrind: text("valgrind-3.19.0"),
            libc: text("glibc 2.36"),
            vectors: text("avx2"),
        }
    }

    fn counts(seal: u64, open: u64) -> BTreeMap<String, u64> {
        [("seal-1400".to_owned(), seal), ("open-1400".to_owned(), open)].into()
    }

    fn baseline() -> Baseline {
        let text = Baseline::write(&conditions("rustc 1"), &counts(1000, 2000));
        Baseline::read(&text).unwrap()
    }

    #[test]
    fn a_baseline_reads_as_it_was_written() {
        assert_eq!(baseline().counts, counts(1000, 2000));
        assert_eq!(baseline().differs(&conditions("rustc 1")), None);
        assert!(baseline().differs(&conditions("rustc 2")).unwrap().contains("rustc 2; x86_64"));
    }

    #[test]
    fn two_percent_more_pass_and_three_do_not() {
        assert!(matches!(baseline().judge(&counts(1020, 2000)), Verdict::Passed(_)));
        let Verdict::Failed(text) = baseline().judge(&counts(1030, 2000)) else { panic!("passed") };
        assert!(text.contains("+3.0 %  MORE") && text.contains("make gate-accept"), "{text}");
    }

    #[test]
    fn fewer_pass_with_the_advice_to_lower_the_baseline() {
        let Verdict::Passed(text) = baseline().judge(&counts(900, 2000)) else { panic!("failed") };
        assert!(text.contains("-10.0 %  fewer") && text.contains("lower the baseline"), "{text}");
        let Verdict::Passed(text) = baseline().judge(&counts(990, 2000)) else { panic!("failed") };
        assert!(!text.contains("lower"), "{text}");
    }

    #[test]
    fn a_piece_that_was_not_accepted_fails() {
        let mut more = counts(1000, 2000);
        more.insert("new".into(), 5);
        assert!(
            matches!(baseline().judge(&more), Verdict::Failed(text) if text.contains("not accepted yet"))
        );
    }

    #[test]
    fn nonsense_is_named_by_its_line() {
        assert!(Baseline::read("# here\nseal-1400 many\n").unwrap_err().contains("line 2"));
        assert!(Baseline::read("seal-1400 5\n").unwrap_err().contains("line 1"));
    }
}
