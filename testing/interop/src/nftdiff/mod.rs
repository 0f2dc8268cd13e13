//! Compares the kernel's nftables with adit: the same rules and packets must give the same verdicts and counters.
//!
//! [`rules`] and [`packets`] generate a case from a seed, [`kernel`] and [`adit`] evaluate it, and [`differences`]
//! lists the intended differences. A case that differs in another way is minimized and printed as a fixture
//! ([`fixture`]); the fixtures in the repository are replayed first.

pub mod adit;
pub mod case;
pub mod compare;
pub mod differences;
pub mod fixture;
pub mod frame;
pub mod kernel;
pub mod packets;
pub mod random;
pub mod rules;
pub mod seen;
pub mod shrink;
mod universe;
mod values;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use adit::{Adit, AditResult};
use case::{FrameResult, Mode};
use compare::{Case, Plain, ResultPair, both, without_wanted};
use kernel::Kernel;
use random::Random;

use crate::failure::{Context, Failure, Result, ensure};

/// The extent of a comparison.
#[derive(Debug, Clone)]
pub struct Options {
    /// The first seed; each further rule set has the next one.
    pub seed: u64,
    /// The number of rule sets.
    pub sets: u64,
    /// The number of frames for each.
    pub frames: usize,
    /// The number of rule sets with differences after which it stops.
    pub most: usize,
}

/// The number of lines of a case that are printed.
const SHOWN: usize = 60;

/// The folder for cases that differ.
const LEFT: &str = "target/nft-diff";

/// The extent of a finished comparison.
#[derive(Debug, Default)]
struct Tally {
    frames: usize,
    passed: usize,
    answered: usize,
    counters: usize,
    moved: usize,
    /// Resets that ended a connection.
    resets: usize,
    /// The number of times that each intended difference occurred.
    wanted: BTreeMap<&'static str, usize>,
    /// Rules that adit refuses although nft accepts them.
    refused: BTreeMap<String, usize>,
    failed: usize,
}

/// Compares, and reports how much was compared.
///
/// # Errors
/// There is a difference that is not intended, which is saved as a fixture; the process does not run as root; or the
/// kernel has no nftables.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    let kept = fixture::kept()?;
    let mut tally = Tally::default();
    for (name, fixture) in &kept {
        let now = both(&fixture.case).context(name)?;
        fixture.holds(&now).context(name)?;
    }
    for seed in options.seed..options.seed.saturating_add(options.sets) {
        one(seed, options.frames, &mut tally).context(format!("seed {seed}"))?;
        if tally.failed >= options.most {
            break;
        }
    }
    for (name, count) in &tally.wanted {
        println!("  wanted: {count} x {name}");
    }
    for (said, count) in &tally.refused {
        println!("  refused by adit: {count} x {said}");
    }
    let doubted = tally.wanted.get(differences::RESET).copied().unwrap_or(0);
    ensure(tally.frames < 10_000 || tally.resets * 2 >= doubted, || {
        format!("{} resets were believed and {doubted} were not: too many", tally.resets)
    })?;
    let Tally { frames, passed, answered, counters, moved, resets, failed, .. } = tally;
    let told = format!(
        "{} fixtures, {frames} packets ({passed} passed, {answered} answered, {resets} resets believed), {counters} counters ({moved} not zero), \
         {failed} rule sets differ, {} s",
        kept.len(),
        started.elapsed().as_secs(),
    );
    if failed == 0 { Ok(told) } else { Err(Failure(format!("{told}: see {LEFT}"))) }
}

/// Runs the case of a fixture's file through both, and prints it with their present results.
///
/// # Errors
/// The file cannot be read, or the testbed fails.
pub fn replay(path: &Path) -> Result<()> {
    let text = std::fs::read_to_string(path).context(path.display())?;
    let case = fixture::read(&text)?.case;
    let made = both(&case)?;
    let why: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    let why = why.into_iter().filter(|line| !line.starts_with("kernel:")).collect::<Vec<_>>();
    print!("{}{}", fixture::print(&why.join("\n# "), &case, &made), states(&case, &made)?);
    Ok(())
}

/// Returns the states of both for each frame's connection, as comments.
fn states(case: &Case, made: &ResultPair) -> Result<String> {
    let states = if case.mode == Mode::Route { Kernel::states(case)? } else { Vec::new() };
    let mut text = String::new();
    for (index, (_, adit)) in made.seen.iter().enumerate() {
        let kernel = states.get(index).map_or("", String::as_str);
        text.push_str(&format!("# kernel: {kernel}; adit: {}\n", adit.why));
    }
    Ok(text)
}

/// Returns the case of a seed, with rules that both accept.
fn case(seed: u64, frames: usize, tally: &mut Tally) -> Result<Case> {
    let mut random = Random::new(seed);
    let mode = if seed % 5 == 4 { Mode::Bridge } else { Mode::Route };
    let stateful = mode == Mode::Route && !seed.is_multiple_of(5);
    let rules = rules::generate(&mut random, mode, stateful);
    let frames = packets::generate(&mut random, mode, frames);
    let kernel = Kernel::new(mode)?;
    let rules = settle(rules, |text| kernel.load(text))?;
    let rules = settle(rules, |text| {
        Adit::new(mode, text).map(drop).inspect_err(|said| {
            let what = said.lines().next().unwrap_or_default();
            let what = what.splitn(4, ':').last().unwrap_or_default().trim();
            *tally.refused.entry(what.to_owned()).or_default() += 1;
        })
    })?;
    Ok(Case { mode, rules, frames })
}

fn one(seed: u64, frames: usize, tally: &mut Tally) -> Result<()> {
    let case = case(seed, frames, tally)?;
    let Plain { case, both: made, wanted } = without_wanted(case)?;
    for name in wanted {
        *tally.wanted.entry(name).or_default() += 1;
    }
    let count = |seen: fn(&FrameResult) -> bool| {
        made.seen.iter().filter(|(kernel, _)| seen(kernel)).count()
    };
    tally.frames += case.frames.len();
    tally.passed += count(|seen| *seen == FrameResult::Passed);
    tally.answered += count(|seen| matches!(seen, FrameResult::Answered(_)));
    let reset = |adit: &AditResult| adit.flags.is_some_and(|flags| flags & 4 != 0);
    let ended = |adit: &AditResult| reset(adit) && adit.why.starts_with("CtState(2)");
    tally.resets += made.seen.iter().filter(|(_, adit)| ended(adit)).count();
    tally.counters += made.counts.len();
    tally.moved += made.counts.iter().filter(|(kernel, _)| kernel.packets > 0).count();
    if made.differs().is_some() {
        tally.failed += 1;
        leave(seed, case, made)?;
    }
    Ok(())
}

/// Minimizes a case that differs, and saves it as a fixture.
fn leave(seed: u64, case: Case, made: ResultPair) -> Result<()> {
    let run = |case: &Case| without_wanted(case.clone()).map(|plain| plain.both);
    let (case, made) = shrink::shrink(case, made, run)?;
    let text = fixture::print(&format!("Seed {seed}."), &case, &made) + &states(&case, &made)?;
    std::fs::create_dir_all(LEFT)?;
    let path = Path::new(LEFT).join(format!("{seed}.txt"));
    std::fs::write(&path, &text).context(path.display())?;
    // The beginning is printed; the file contains all of it.
    let shown: Vec<String> =
        text.lines().take(SHOWN).map(|line| line.chars().take(300).collect()).collect();
    println!("{}:\n{}", path.display(), shown.join("\n"));
    Ok(())
}
/// Loads the rules except those that are refused; each is on a separate line. Returns the rules that were loaded.
fn settle(
    mut rules: String,
    mut load: impl FnMut(&str) -> std::result::Result<(), String>,
) -> Result<String> {
    for _ in 0..50 {
        let Err(said) = load(&rules) else { return Ok(rules) };
        let lines = named_lines(&said);
        let kept: Vec<&str> = rules
            .lines()
            .enumerate()
            .filter(|(index, line)| !lines.contains(&(index + 1)) || !line.starts_with("\t\t"))
            .map(|(_, line)| line)
            .collect();
        let shorter = kept.join("\n") + "\n";
        if shorter == rules {
            return Err(Failure(format!("rules that cannot be loaded: {said}\n{rules}")));
        }
        rules = shorter;
    }
    Err(Failure(format!("rules that are refused again and again:\n{rules}")))
}

/// Returns the lines (from 1) that `FILE:LINE:COLUMN` names.
fn named_lines(said: &str) -> Vec<usize> {
    said.lines()
        .filter_map(|line| line.split_once("stdin:")?.1.split(':').next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_is_refused_goes_and_nothing_else() {
        let rules = "table inet t {\n\tchain c {\n\t\tgood\n\t\tbad\n\t}\n}\n";
        let load = |text: &str| {
            let at = text.lines().position(|line| line.contains("bad"));
            at.map_or(Ok(()), |at| Err(format!("/dev/stdin:{}:3-5: Error: no", at + 1)))
        };
        let left = settle(rules.to_owned(), load).unwrap();
        assert_eq!(left, "table inet t {\n\tchain c {\n\t\tgood\n\t}\n}\n");
        let never = settle(rules.to_owned(), |_| Err("stdin:1:1: no".to_owned()));
        assert!(never.is_err(), "a table is not left out");
    }
}
