//! The same rules and the same packets through the kernel's nftables and through adit: the same verdicts and counters.
//!
//! [`rules`] and [`packets`] make a case out of a seed, [`kernel`] and [`adit`] say what comes of it, [`differences`]
//! knows the differences that are wanted. A case that differs in another way is made small and printed as a fixture
//! ([`fixture`]); the fixtures that are kept are replayed first.

pub mod case;
pub mod frame;
pub mod kernel;
pub mod packets;
pub mod random;
pub mod rules;
pub mod seen;
mod universe;
mod values;

use std::time::{Duration, Instant};

use case::{Mode, Outcome, Sent};
use kernel::Kernel;
use random::Random;

use crate::failure::{Failure, Result};

/// How much is compared.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The first seed; each rule set has the next one.
    pub seed: u64,
    /// Rule sets.
    pub sets: u64,
    /// Frames for each.
    pub frames: usize,
}

/// Compares, and says how much was compared.
///
/// # Errors
/// A difference that is not wanted, as a fixture; or no root, or a kernel without nftables.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    let mut tally = [0u64; 3];
    let mut refused = 0;
    let mut hits = 0;
    let (mut tk, mut tl) = (Duration::ZERO, Duration::ZERO);
    for seed in options.seed..options.seed + options.sets {
        let mut random = Random::new(seed);
        let mode = if seed % 5 == 4 { Mode::Bridge } else { Mode::Route };
        let stateful = mode == Mode::Route && seed % 5 > 0;
        let rules = rules::generate(&mut random, mode, stateful);
        let frames = packets::generate(&mut random, mode, options.frames);
        let t = Instant::now();
        let kernel = Kernel::new(mode)?;
        tk += t.elapsed();
        let rules = settle(rules, |text| {
            let r = kernel.load(text);
            if let Err(e) = &r { eprintln!("{e}"); refused += 1; }
            r
        })?;
        let t = Instant::now();
        let outcome = through(&kernel, &frames)?;
        tl += t.elapsed();
        for seen in &outcome.seen {
            tally[match seen { case::Seen::Nothing => 0, case::Seen::Passed => 1, _ => 2 }] += 1;
        }
        hits += outcome.counts.iter().filter(|c| c.packets > 0).count() * 100 / outcome.counts.len().max(1);
        if mode == Mode::Route { println!("seed {seed} judged {} of {}", kernel.judged()?, frames.len()); }
        if options.sets < 4 { println!("{rules}"); }
    }
    Ok(format!("{tally:?} refused {refused} hit {} {:?} new {tk:?} pass {tl:?}", hits / options.sets as usize, started.elapsed()))
}

/// Sends all frames.
fn through(kernel: &Kernel, frames: &[Sent]) -> Result<Outcome> {
    let seen =
        frames.iter().map(|sent| kernel.pass(sent.side, &sent.frame)).collect::<Result<_>>()?;
    Ok(Outcome { seen, counts: kernel.counts()? })
}

/// Loads rules, less those that are refused: each stands in a line of its own. Returns what was loaded.
fn settle(mut rules: String, mut load: impl FnMut(&str) -> std::result::Result<(), String>) -> Result<String> {
    for _ in 0..50 {
        let Err(said) = load(&rules) else { return Ok(rules) };
        let lines = blamed(&said);
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

/// The lines (from 1) that `FILE:LINE:COLUMN` names.
fn blamed(said: &str) -> Vec<usize> {
    said.lines()
        .filter_map(|line| line.split_once("stdin:")?.1.split(':').next()?.parse().ok())
        .collect()
}
