//! Minimizes a case that differs, to fewer frames and rules with the same kind of difference.

use super::compare::{Case, ResultPair};
use crate::failure::Result;

/// The maximum number of runs for minimizing a case.
const TRIES: usize = 400;

/// Returns a smaller case that still differs, and the results of both for it.
///
/// # Errors
/// The testbed fails.
pub fn shrink(
    mut case: Case,
    mut both: ResultPair,
    run: impl Fn(&Case) -> Result<ResultPair>,
) -> Result<(Case, ResultPair)> {
    let mut tries = TRIES;
    let at_frame = |both: &ResultPair| both.differs().is_some_and(|at| at < both.seen.len());
    let by_frame = at_frame(&both);
    let mut attempt = |case: &Case, both: &mut ResultPair| -> Result<bool> {
        tries = tries.saturating_sub(1);
        if tries == 0 {
            return Ok(false);
        }
        // Rules that depend on removed ones are refused, and this attempt is then abandoned.
        let Ok(now) = run(case) else { return Ok(false) };
        let still = now.differs().is_some() && at_frame(&now) == by_frame;
        if still {
            *both = now;
        }
        Ok(still)
    };
    if let Some(at) = both.differs().filter(|_| by_frame) {
        let mut shorter = case.clone();
        shorter.frames.truncate(at + 1);
        if attempt(&shorter, &mut both)? {
            case = shorter;
        }
    }
    loop {
        let size = (case.frames.len(), case.rules.len());
        let frames = case.frames.clone();
        let frames = fewer(frames, |kept| {
            attempt(&Case { frames: kept.to_vec(), ..case.clone() }, &mut both)
        })?;
        case.frames = frames;
        let lines: Vec<String> = case.rules.lines().map(str::to_owned).collect();
        let lines = fewer(lines, |kept| {
            attempt(&Case { rules: kept.join("\n") + "\n", ..case.clone() }, &mut both)
        })?;
        case.rules = lines.join("\n") + "\n";
        if size == (case.frames.len(), case.rules.len()) {
            return Ok((case, both));
        }
    }
}

/// Removes runs of items, long ones first, as long as `holds`.
fn fewer<T: Clone>(
    mut items: Vec<T>,
    mut holds: impl FnMut(&[T]) -> Result<bool>,
) -> Result<Vec<T>> {
    let mut run = (items.len() / 2).max(1);
    loop {
        let mut at = 0;
        while at < items.len() {
            let mut kept = items.clone();
            kept.drain(at..(at + run).min(items.len()));
            if holds(&kept)? {
                items = kept;
            } else {
                at += run;
            }
        }
        if run == 1 {
            return Ok(items);
        }
        run = run.div_ceil(2).min(run - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_goes() {
        let both_there = |kept: &[u32]| Ok(kept.contains(&17) && kept.contains(&90));
        assert_eq!(fewer((0..100).collect(), both_there).unwrap(), [17, 90]);
    }
}
