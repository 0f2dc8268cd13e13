//! Judges what was dropped by the network's settings over time.

use std::time::Duration;

use adit_engine::UnixTime;

use crate::key::settings::History;

/// A dropped leaf is judged with this to spare, and an eighth of the age: clocks differ, and a leaf lasts for a sixteenth.
const SLACK: Duration = Duration::from_secs(300);

/// The log is far from full when it takes no more than this part of the retention.
const FAR_FROM_FULL: u64 = 16;

/// The rows that may have expired: the bounds of the network's settings over time, and the size of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Now, by this machine's clock.
    pub now: UnixTime,
    /// The bounds one after the other, the newest last.
    pub kept: Vec<RetentionPeriod>,
    /// Bytes that the leaves take, the database reports.
    pub used: u64,
}

/// The bounds of the network's settings for a time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RetentionPeriod {
    /// Since when they were in force, by the owner's clock.
    pub since: UnixTime,
    /// The time for which packets were kept.
    pub age: Duration,
    /// Bytes that all leaves together could take.
    pub bytes: u64,
}

impl Retention {
    /// Collects the bounds of the network's settings, from the first to those in force.
    pub fn of(history: &History, now: UnixTime, used: u64) -> Self {
        let kept = history.all().map(|settings| RetentionPeriod {
            since: settings.made,
            age: settings.retention_age,
            bytes: u64::try_from(settings.retention_bytes).unwrap_or(0),
        });
        Self { now, kept: kept.collect(), used }
    }

    /// Returns whether an epoch that was opened then cannot have expired under any bounds in force since.
    pub(super) fn rules_out_expiry(&self, opened: UnixTime) -> bool {
        let ends = self.kept.iter().skip(1).map(|next| next.since).chain([self.now]);
        let mut since = self.kept.iter().zip(ends).filter(|(_, end)| {
            // Clocks differ.
            end.0.saturating_add(SLACK.as_secs()) >= opened.0
        });
        since.all(|(kept, end)| kept.rules_out_expiry(opened, end, self.used))
    }
}

impl RetentionPeriod {
    /// Returns whether an epoch that was opened then cannot have expired before `end`.
    fn rules_out_expiry(&self, opened: UnixTime, end: UnixTime, used: u64) -> bool {
        let until = opened.0.saturating_add(self.age.as_secs());
        let slack = SLACK.saturating_add(self.age.checked_div(8).unwrap_or(SLACK));
        end.0.saturating_add(slack.as_secs()) < until
            && used < self.bytes.checked_div(FAR_FROM_FULL).unwrap_or(0)
    }
}
