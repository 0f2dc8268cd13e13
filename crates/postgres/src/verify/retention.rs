//! Checks dropped rows against the network's settings over time.

use std::time::Duration;

use adit_engine::UnixTime;

use crate::key::settings::History;

/// The tolerance for the age of a dropped leaf, in addition to an eighth of the retention age. Clocks differ, and a
/// leaf covers a sixteenth of the age.
const SLACK: Duration = Duration::from_secs(300);

/// The divisor of the retention size below which the log is far from full.
const FAR_FROM_FULL: u64 = 16;

/// The data that determine which rows may have expired: the limits in the network's settings over time, and the size of
/// the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The current time, by this host's clock.
    pub now: UnixTime,
    /// The limits in order, the newest last.
    pub kept: Vec<RetentionPeriod>,
    /// The size of all leaves in bytes, as reported by the database.
    pub used: u64,
}

/// The limits in the network's settings for a period.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RetentionPeriod {
    /// The time when they came into force, by the owner's clock.
    pub since: UnixTime,
    /// How long packets were kept.
    pub age: Duration,
    /// The maximum total size of all leaves in bytes.
    pub bytes: u64,
}

impl Retention {
    /// Collects the limits in the network's settings, from the first to the current ones.
    pub fn of(history: &History, now: UnixTime, used: u64) -> Self {
        let kept = history.all().map(|settings| RetentionPeriod {
            since: settings.made,
            age: settings.retention_age,
            bytes: u64::try_from(settings.retention_bytes).unwrap_or(0),
        });
        Self { now, kept: kept.collect(), used }
    }

    /// Returns whether an epoch that was opened at this time cannot have expired under any limits in force since.
    pub(super) fn rules_out_expiry(&self, opened: UnixTime) -> bool {
        let ends = self.kept.iter().skip(1).map(|next| next.since).chain([self.now]);
        let mut since = self.kept.iter().zip(ends).filter(|(_, end)| {
            // Allow for different clocks.
            end.0.saturating_add(SLACK.as_secs()) >= opened.0
        });
        since.all(|(kept, end)| kept.rules_out_expiry(opened, end, self.used))
    }
}

impl RetentionPeriod {
    /// Returns whether an epoch that was opened at this time cannot have expired before `end`.
    fn rules_out_expiry(&self, opened: UnixTime, end: UnixTime, used: u64) -> bool {
        let until = opened.0.saturating_add(self.age.as_secs());
        let slack = SLACK.saturating_add(self.age.checked_div(8).unwrap_or(SLACK));
        end.0.saturating_add(slack.as_secs()) < until
            && used < self.bytes.checked_div(FAR_FROM_FULL).unwrap_or(0)
    }
}
