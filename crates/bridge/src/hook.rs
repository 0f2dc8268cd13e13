//! Where a frame's fate is decided.

use adit_linux::packet::Frame;

use crate::port::Side;

/// How frames are judged.
#[derive(Clone, Debug)]
pub enum Policy {
    /// Everything passes.
    Relay,
}

impl Policy {
    /// What one worker judges with.
    pub(crate) fn hook(&self) -> Hook {
        match self {
            Self::Relay => Hook::Relay,
        }
    }
}

/// One worker's judge.
#[derive(Debug)]
pub(crate) enum Hook {
    /// Everything passes.
    Relay,
}

/// What becomes of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ruling {
    /// It leaves by the other port, as it is now.
    Pass,
}

impl Hook {
    /// Judges one frame.
    pub fn judge(&mut self, from: Side, frame: &mut Frame<'_>) -> Ruling {
        let _ = (from, frame);
        match self {
            Self::Relay => Ruling::Pass,
        }
    }
}
