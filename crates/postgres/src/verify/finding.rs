//! The findings of `verify`, and their texts.

use std::fmt;

use crate::key::epoch::EpochError;
use crate::row::Columns;
use crate::{Audit, EpochNo, Seq};
use adit_engine::UnixTime;

/// The position of missing rows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum GapPosition {
    /// Before the epoch's first row.
    Start,
    /// Within a batch.
    Batch,
    /// Between two batches.
    Between,
    /// After the last row, according to a signature of the sender.
    End(Signed),
    /// Between an epoch and the next one, and more than a lost batch can explain.
    Given,
}

/// The record that contains a sender's signature of an epoch's end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Signed {
    /// A checkpoint of the epoch itself.
    Checkpoint,
    /// The next epoch's record.
    Record,
}

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checkpoint => "the sender's checkpoint",
            Self::Record => "the next epoch's record",
        })
    }
}

/// The difference between an epoch and the network's settings.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SettingsConflict {
    /// The network never had settings with this number.
    Unknown,
    /// The previous epoch was opened under newer settings.
    Back {
        /// The number of those settings.
        before: i64,
    },
    /// The audit policy differs from that of the settings.
    Audit {
        /// The policy of the epoch.
        is: Audit,
        /// The policy of the settings.
        said: Audit,
    },
    /// The secret is not wrapped to the auditor, or is wrapped to one although there was none.
    Auditor {
        /// Whether the epoch's secret is wrapped to an auditor.
        read: bool,
    },
    /// The epoch was opened more than an hour after newer settings were signed.
    Late,
}

/// A difference between the log and what its sender wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An epoch's record is not from its sender, or not for this stream.
    Epoch {
        /// The epoch.
        epoch: EpochNo,
        /// The reason.
        why: EpochError,
    },
    /// The columns next to an epoch's record differ from it.
    Columns {
        /// The epoch.
        epoch: EpochNo,
        /// The column.
        column: &'static str,
    },
    /// An epoch's secret does not open, although it is for this reader.
    Secret {
        /// The epoch.
        epoch: EpochNo,
        /// The reason, or `None` if there is no wrap.
        why: Option<EpochError>,
    },
    /// Epochs to which a record refers are missing.
    EpochsMissing {
        /// The epoch whose record refers to them.
        epoch: EpochNo,
        /// The epoch to which it refers.
        named: EpochNo,
    },
    /// The dropped rows are younger than the network's retention, and the log is far from full.
    Early {
        /// The epoch if its record still exists, or else the one whose record refers to it.
        epoch: EpochNo,
        /// The epoch to which it refers.
        named: Option<EpochNo>,
        /// The time when the dropped epoch was opened, according to its sender.
        opened: UnixTime,
    },
    /// An epoch has been dropped although an older one has not.
    OutOfTurn {
        /// The epoch.
        epoch: EpochNo,
    },
    /// A record skips an epoch that has rows, or refers to no previous epoch although there is one.
    Predecessor {
        /// The epoch with this record.
        epoch: EpochNo,
        /// The epoch to which it refers.
        named: Option<EpochNo>,
        /// The actual previous epoch.
        found: EpochNo,
    },
    /// Rows that existed are missing.
    Missing {
        /// The epoch.
        epoch: EpochNo,
        /// The first missing row.
        from: Seq,
        /// The last missing row.
        to: Seq,
        /// The position of the rows.
        place: GapPosition,
    },
    /// A packet number occurs twice.
    Twice {
        /// The epoch.
        epoch: EpochNo,
        /// The number.
        seq: Seq,
    },
    /// A row whose values do not have the table's types, or that belongs to no epoch.
    Stray {
        /// The row's number.
        seq: Seq,
    },
    /// The packet, tag or number differs from what the sender wrote, and the original cannot be determined.
    Altered {
        /// The epoch.
        epoch: EpochNo,
        /// The row.
        seq: Seq,
    },
    /// A column is not what the sender wrote.
    Column {
        /// The epoch.
        epoch: EpochNo,
        /// The row.
        seq: Seq,
        /// The name of each column, its value, and the value that the sender wrote.
        columns: Vec<(&'static str, String, String)>,
    },
    /// The sender itself wrote columns that do not match the packet.
    Untrue {
        /// The epoch.
        epoch: EpochNo,
        /// The row.
        seq: Seq,
    },
    /// The chain's value of a batch is wrong, although all its rows are present.
    Chain {
        /// The epoch.
        epoch: EpochNo,
        /// The batch's first row.
        from: Seq,
        /// The batch's last row.
        to: Seq,
    },
    /// Rows at an epoch's end belong to a batch without an end.
    Unfinished {
        /// The epoch.
        epoch: EpochNo,
        /// The first.
        from: Seq,
        /// The last.
        to: Seq,
    },
    /// The chain's value differs from the one that the sender signed.
    Vouched {
        /// The epoch.
        epoch: EpochNo,
        /// The row.
        seq: Seq,
        /// The record with the signature.
        by: Signed,
    },
    /// A checkpoint is not from the sender.
    Checkpoint {
        /// The epoch.
        epoch: EpochNo,
    },
    /// An epoch does not conform to the network's settings, or not to those of its time.
    Settings {
        /// The epoch.
        epoch: EpochNo,
        /// The number of the settings in its record.
        serial: i64,
        /// The difference.
        why: SettingsConflict,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epoch { epoch, why } => write!(f, "epoch {epoch}: {why}"),
            Self::Columns { epoch, column } => {
                write!(f, "epoch {epoch}: column {column} is not what its signed record says")
            }
            Self::Secret { epoch, why: None } => {
                write!(f, "epoch {epoch}: the wrapped secret for this reader is missing")
            }
            Self::Secret { epoch, why: Some(why) } => write!(f, "epoch {epoch}: {why}"),
            Self::EpochsMissing { epoch, named } => {
                write!(f, "epoch {epoch}: it follows epoch {named}, which is missing")
            }
            Self::Early { epoch, named, opened } => {
                let (what, by) = match named {
                    Some(named) => (named, format!(", which epoch {epoch} follows,")),
                    None => (epoch, String::new()),
                };
                write!(
                    f,
                    "epoch {what}{by} was dropped early: it was opened at {} (Unix time), within the retention, and the log is far \
                     from full",
                    opened.0
                )
            }
            Self::OutOfTurn { epoch } => {
                write!(
                    f,
                    "epoch {epoch} was dropped, and an older one was not: the oldest expire first"
                )
            }
            Self::Predecessor { epoch, named: Some(named), found } => {
                write!(
                    f,
                    "epoch {epoch}: it claims to follow epoch {named}, but epoch {found} with rows is between them"
                )
            }
            Self::Predecessor { epoch, named: None, found } => {
                write!(f, "epoch {epoch}: it claims to be the first, but epoch {found} precedes it")
            }
            Self::Missing { epoch, from, to, place } => {
                let place = match place {
                    GapPosition::Start => "the first of the epoch".to_owned(),
                    GapPosition::Batch => "inside a batch".to_owned(),
                    GapPosition::Between => "between batches".to_owned(),
                    GapPosition::End(by) => format!("the last of the epoch, as {by} says"),
                    GapPosition::Given => {
                        "before the next epoch: more than were in flight when it began".to_owned()
                    }
                };
                write!(f, "epoch {epoch}: {} missing ({place})", Rows(*from, *to, "is", "are"))
            }
            Self::Twice { epoch, seq } => {
                write!(f, "epoch {epoch}: row {seq} exists more than once")
            }
            Self::Stray { seq } => write!(f, "row {seq} belongs to no epoch of this stream"),
            Self::Altered { epoch, seq } => {
                write!(f, "epoch {epoch}: row {seq} was altered: it is not what the sender wrote")
            }
            Self::Column { epoch, seq, columns } => {
                write!(f, "epoch {epoch}: row {seq} was altered:")?;
                for (at, (column, now, was)) in columns.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma} column {column} says {now}, the sender wrote {was}")?;
                }
                Ok(())
            }
            Self::Untrue { epoch, seq } => {
                write!(
                    f,
                    "epoch {epoch}: row {seq}: the sender wrote columns that are not the packet's"
                )
            }
            Self::Chain { epoch, from, to } => {
                write!(
                    f,
                    "epoch {epoch}: the chain is broken at the batch of {}",
                    Rows(*from, *to, "", "")
                )
            }
            Self::Unfinished { epoch, from, to } => {
                write!(
                    f,
                    "epoch {epoch}: the end of the batch that begins with {} is missing",
                    Rows(*from, *to, "", "")
                )
            }
            Self::Vouched { epoch, seq, by } => {
                write!(f, "epoch {epoch}: the chain at row {seq} is not what {by} says")
            }
            Self::Checkpoint { epoch } => {
                write!(f, "epoch {epoch}: the sender has not signed the checkpoint")
            }
            Self::Settings { epoch, serial, why } => {
                write!(f, "epoch {epoch}: it was opened under settings {serial}")?;
                match why {
                    SettingsConflict::Unknown => write!(f, ", which the network has never had"),
                    SettingsConflict::Back { before } => {
                        write!(f, ", and the epoch before it under settings {before}")
                    }
                    SettingsConflict::Audit { is, said } => {
                        write!(f, ", whose audit policy is {said}, and its own is {is}")
                    }
                    SettingsConflict::Auditor { read: true } => {
                        write!(f, ", which name no auditor, and its key is wrapped to one")
                    }
                    SettingsConflict::Auditor { read: false } => {
                        write!(f, ", which name an auditor, and its key is not wrapped to one")
                    }
                    SettingsConflict::Late => {
                        write!(f, " more than an hour after the owner had signed newer ones")
                    }
                }
            }
        }
    }
}

/// Formats a range of rows, such as `row 5 is` or `rows 5 to 7 are`.
struct Rows(Seq, Seq, &'static str, &'static str);

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(from, to, one, many) = self;
        let (text, verb) = if from == to {
            (format!("row {from} {one}"), one)
        } else {
            (format!("rows {from} to {to} {many}"), many)
        };
        f.write_str(if verb.is_empty() { text.trim_end() } else { &text })
    }
}

/// Returns the columns in which two rows differ, with their names, actual values and expected values.
pub(super) fn differences(now: &Columns, was: &Columns) -> Vec<(&'static str, String, String)> {
    fn word<T: fmt::Display>(value: Option<T>) -> String {
        value.map_or_else(|| "nothing".to_owned(), |value| value.to_string())
    }
    let all = [
        ("len", word(now.len), word(was.len)),
        ("sport", word(now.sport), word(was.sport)),
        ("dport", word(now.dport), word(was.dport)),
        ("proto", word(now.proto), word(was.proto)),
        ("flags", word(now.flags), word(was.flags)),
        ("src", word(now.src), word(was.src)),
        ("dst", word(now.dst), word(was.dst)),
    ];
    all.into_iter().filter(|(_, now, was)| now != was).collect()
}
