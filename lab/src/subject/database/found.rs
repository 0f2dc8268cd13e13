//! Checks that delivered packets are in the tables.

use adit_testbed::failure::Result;

use super::{DatabasePrograms, Nodes, rows};
use crate::testbed::Database;

/// The delivered packets that the tables contain.
#[derive(Debug, Default)]
pub struct StoredPackets {
    /// The number of rows of packets.
    pub rows: u64,
    /// The bytes of the packets that the nodes delivered, in both directions.
    pub delivered_bytes: u64,
    /// The reasons why the trial does not count, such as a delivered packet that is missing from
    /// the tables.
    pub invalid: Vec<String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// One direction: the receiver's counts, and those of the table.
pub(super) struct DirectionCounts {
    pub(super) name: String,
    pub(super) delivered: u128,
    pub(super) rows: u128,
    /// Pairs that must be equal if the counts are: bytes, hashes; the receiver's value comes first.
    pub(super) sums: Vec<(u128, u128)>,
}

impl StoredPackets {
    /// Compares one direction.
    pub(super) fn take(&mut self, way: &DirectionCounts) {
        let DirectionCounts { name, delivered, rows, sums } = way;
        self.rows += u64::try_from(*rows).unwrap_or(u64::MAX);
        if delivered > rows {
            self.invalid.push(format!("{name}: {delivered} packets delivered, {rows} rows"));
        } else if delivered < rows {
            self.notes.push(format!("{name}: {} rows were never delivered", rows - delivered));
        } else if sums.iter().any(|(told, stored)| told != stored) {
            self.invalid.push(format!(
                "{name}: the rows are others than the packets delivered: {sums:?} (bytes, hashes)"
            ));
        }
    }
}

impl Nodes {
    /// Waits until the counters no longer change, and looks for the delivered packets in the
    /// tables.
    ///
    /// # Errors
    /// A node or the server does not respond.
    pub fn found(&mut self, database: &Database) -> Result<StoredPackets> {
        match self.scheme.ends() {
            DatabasePrograms::Rows(rows) => rows::found(self, rows, database),
            DatabasePrograms::Adit(_) => super::adit::found(self, database),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(delivered: u128, rows: u128, sums: [(u128, u128); 2]) -> StoredPackets {
        let mut found = StoredPackets::default();
        found.take(&DirectionCounts {
            name: "from a".to_owned(),
            delivered,
            rows,
            sums: sums.to_vec(),
        });
        found
    }

    #[test]
    fn what_is_there_whole_is_well() {
        let found = taken(3, 3, [(10, 10), (77, 77)]);
        assert!(found.invalid.is_empty() && found.notes.is_empty());
        assert_eq!(found.rows, 3);
    }

    #[test]
    fn what_is_missing_or_other_spoils_the_trial() {
        assert!(
            taken(4, 3, [(10, 10), (77, 77)]).invalid[0].contains("4 packets delivered, 3 rows")
        );
        assert!(!taken(3, 3, [(10, 11), (77, 77)]).invalid.is_empty());
        assert!(!taken(3, 3, [(10, 10), (77, 78)]).invalid.is_empty());
        let lost = taken(3, 5, [(10, 12), (77, 99)]);
        assert!(lost.invalid.is_empty() && lost.notes[0].contains("2 rows were never delivered"));
    }
}
