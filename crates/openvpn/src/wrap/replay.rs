use serde::{Deserialize, Serialize};

/// The maximum distance behind the newest id at which a packet is accepted: OpenVPN's default `replay-window`.
const WINDOW: u32 = 64;

/// The error for a packet that was seen before, or is too old to be distinguished from a replay.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Replayed;

/// The replay window of the control channel. Ids count up within a time stamp and start over with a later one.
///
/// Only authenticated packets may be passed to [`Self::accept`], which records them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplayWindow {
    time: u32,
    /// The highest id seen under `time`; 0 before the first packet.
    newest: u32,
    /// Bit n is set if id `newest - n` was seen.
    seen: u64,
}

impl ReplayWindow {
    /// Accepts a packet's id and time stamp once.
    ///
    /// # Errors
    /// Fails if the packet was accepted before, is too far behind, has id 0, or is older than a
    /// restart of the sender.
    pub fn accept(&mut self, id: u32, time: u32) -> Result<(), Replayed> {
        if id == 0 || time < self.time {
            return Err(Replayed);
        }
        if time > self.time {
            *self = Self { time, newest: id, seen: 1 };
            return Ok(());
        }
        if let Some(ahead) = id.checked_sub(self.newest).filter(|&ahead| ahead > 0) {
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.newest = id;
            return Ok(());
        }
        let behind = self.newest.saturating_sub(id);
        let bit = 1_u64.checked_shl(behind).filter(|_| behind < WINDOW).ok_or(Replayed)?;
        if self.seen & bit != 0 {
            return Err(Replayed);
        }
        self.seen |= bit;
        Ok(())
    }
}
