//! Runs one case through both implementations.

use super::adit::{Adit, AditResult};
use super::case::{Count, FrameResult, Mode, SentFrame};
use super::differences;
use super::kernel::Kernel;
use crate::failure::{Failure, Result};

/// Rules and frames.
#[derive(Debug, Clone)]
pub struct Case {
    /// The connection between the sides.
    pub mode: Mode,
    /// A rule file that both implementations accept.
    pub rules: String,
    /// The frames, in order.
    pub frames: Vec<SentFrame>,
}

/// The results of both implementations for a case.
#[derive(Debug, Clone)]
pub struct ResultPair {
    /// The results for each frame.
    pub seen: Vec<(FrameResult, AditResult)>,
    /// The values of each counter.
    pub counts: Vec<(Count, Count)>,
}

impl ResultPair {
    /// Returns the first difference: the index of a frame, or the number of frames if only counters differ.
    pub fn differs(&self) -> Option<usize> {
        let frame = self.seen.iter().position(|(kernel, adit)| *kernel != adit.seen);
        frame.or_else(|| {
            self.counts.iter().any(|(kernel, adit)| kernel != adit).then_some(self.seen.len())
        })
    }
}

/// Runs a case through both implementations.
///
/// # Errors
/// The rules are refused, or the testbed fails.
pub fn both(case: &Case) -> Result<ResultPair> {
    let kernel = Kernel::new(case.mode)?;
    kernel.load(&case.rules).map_err(Failure)?;
    through(&kernel, case)
}

/// Runs a case through a kernel that has its rules and has seen no packet, and through adit.
///
/// # Errors
/// adit refuses the rules, or the testbed fails.
pub fn through(kernel: &Kernel, case: &Case) -> Result<ResultPair> {
    let mut adit = Adit::new(case.mode, &case.rules).map_err(Failure)?;
    let mut seen = Vec::with_capacity(case.frames.len());
    for sent in &case.frames {
        seen.push((kernel.pass(sent.side, &sent.frame)?, adit.pass(sent.side, &sent.frame)));
    }
    let (kernel, adit) = (kernel.counts()?, adit.counts()?);
    if kernel.len() != adit.len() {
        let text = format!(
            "{} counters in the kernel, {} in adit:\n{}",
            kernel.len(),
            adit.len(),
            case.rules
        );
        return Err(Failure(text));
    }
    Ok(ResultPair { seen, counts: kernel.into_iter().zip(adit).collect() })
}

/// The number of times that the frames of intended differences are removed. The frames after them are evaluated again
/// each time.
const ROUNDS: usize = 12;

/// A case without the frames whose difference is intended, and its results.
pub struct Plain {
    /// The remaining case.
    pub case: Case,
    /// The results of both for it.
    pub both: ResultPair,
    /// The names of the differences that were removed.
    pub wanted: Vec<&'static str>,
}

/// Removes the frames whose difference is intended, until there are none.
///
/// # Errors
/// As [`both`].
pub fn without_wanted(mut case: Case) -> Result<Plain> {
    let mut wanted = Vec::new();
    for _ in 0..ROUNDS {
        let both = both(&case)?;
        let mut named = differences::all(&case, &both);
        if named.is_empty() && case.mode == Mode::Route && both.differs().is_some() {
            named = differences::traces(&both, &Kernel::states(&case)?);
        }
        if named.is_empty() {
            return Ok(Plain { case, both, wanted });
        }
        let frames = std::mem::take(&mut case.frames).into_iter().enumerate();
        case.frames =
            frames.filter(|(at, _)| !named.contains_key(at)).map(|frame| frame.1).collect();
        wanted.extend(named.into_values());
    }
    Err(Failure(format!("wanted differences without end ({wanted:?}):\n{}", case.rules)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(seen: &[(FrameResult, FrameResult)], counts: &[(u64, u64)]) -> ResultPair {
        let made = |seen| AditResult { seen, why: String::new(), checked: true, flags: None };
        let count = |packets| Count { packets, bytes: 0 };
        ResultPair {
            seen: seen.iter().map(|(kernel, adit)| (*kernel, made(*adit))).collect(),
            counts: counts.iter().map(|(kernel, adit)| (count(*kernel), count(*adit))).collect(),
        }
    }

    #[test]
    fn a_difference_is_seen_in_a_verdict_and_in_a_counter() {
        use FrameResult::{Nothing, Passed};
        let same = [(Passed, Passed), (Nothing, Nothing)];
        assert_eq!(both(&same, &[(3, 3)]).differs(), None);
        assert_eq!(both(&same, &[(3, 3), (1, 0)]).differs(), Some(2), "behind the last frame");
        let other = [(Passed, Passed), (Nothing, Passed), (Passed, Nothing)];
        assert_eq!(both(&other, &[]).differs(), Some(1));
    }
}
