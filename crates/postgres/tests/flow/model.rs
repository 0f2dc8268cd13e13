//! A model of the database, with its leaves and epochs, and the operations of a writer and a
//! reader.

use std::collections::BTreeMap;

use adit_postgres::receiver::Query;
use adit_postgres::row::{Columns, Row, copy, decode};
use adit_postgres::sender::{BatchPart, NewEpoch, ResumeRow};
use adit_postgres::{EpochNo, LeafNo, Seq, StreamId};

/// A row as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub seq: i64,
    pub epoch: i32,
    pub stream: i32,
    pub columns: Columns,
    pub tag: Vec<u8>,
    pub chain: Option<Vec<u8>>,
    pub payload: Vec<u8>,
    /// The time by the database's clock, in milliseconds.
    pub ts: i64,
}

impl Stored {
    pub(crate) fn row(&self) -> Row<'_> {
        Row {
            seq: Seq(self.seq),
            epoch: EpochNo(self.epoch),
            stream: StreamId(self.stream),
            columns: self.columns,
            tag: &self.tag,
            chain: self.chain.as_deref(),
            payload: &self.payload,
        }
    }
}

/// A row of the table of epochs. The record is an index into what the sender has signed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct EpochRow {
    pub no: i32,
    pub record: usize,
    pub opened: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Db {
    /// A leaf that was dropped is `None`.
    pub leaves: BTreeMap<i32, Option<Vec<Stored>>>,
    pub first_seqs: BTreeMap<i32, i64>,
    pub epochs: Vec<EpochRow>,
}

impl Db {
    /// Models `adit.resume`.
    pub(crate) fn resume(&self) -> ResumeRow {
        let last_epoch = self.epochs.iter().map(|epoch| epoch.no).max().unwrap_or(0);
        let Some((last_leaf, rows)) = self.leaves.last_key_value() else {
            return ResumeRow { last_epoch, ..ResumeRow::default() };
        };
        let before = self.first_seqs[last_leaf] - 1;
        let rows = rows.as_deref().unwrap_or_default();
        let newest = rows.iter().max_by_key(|row| row.seq);
        ResumeRow {
            last_seq: newest.map_or(before, |row| row.seq.max(before)),
            last_epoch,
            last_leaf: *last_leaf,
            ..ResumeRow::default()
        }
    }

    /// Models `adit.open_epoch`.
    pub(crate) fn open_epoch(
        &mut self,
        opening: &NewEpoch,
        record: usize,
        now: i64,
    ) -> Result<(), &'static str> {
        let newest = self.leaves.last_key_value();
        let newest_no = newest.map_or(0, |(no, _)| *no);
        let dropped = newest.is_some_and(|(_, rows)| rows.is_none());
        if opening.leaf.0 != newest_no + 1 && (opening.leaf.0 != newest_no || dropped) {
            return Err("an epoch opens in the newest leaf or in the one after it");
        }
        if self.epochs.iter().any(|epoch| epoch.no == opening.epoch.0) {
            return Err("duplicate key");
        }
        if opening.leaf.0 == newest_no + 1 {
            self.leaves.insert(opening.leaf.0, Some(Vec::new()));
            self.first_seqs.insert(opening.leaf.0, opening.first_seq.0);
        }
        self.epochs.push(EpochRow { no: opening.epoch.0, record, opened: now });
        Ok(())
    }

    /// Copies one part into its table, unless the table no longer exists.
    pub(crate) fn write(&mut self, part: &BatchPart, now: i64) {
        let Some(Some(leaf)) = self.leaves.get_mut(&part.leaf.0) else { return };
        let mut rest = part.bytes.as_slice();
        while let Some((fields, behind)) = copy::split_row(rest) {
            let row = decode::row(fields).unwrap();
            leaf.push(Stored {
                seq: row.seq.0,
                epoch: row.epoch.0,
                stream: row.stream.0,
                columns: row.columns,
                tag: row.tag.to_vec(),
                chain: row.chain.map(<[u8]>::to_vec),
                payload: row.payload.to_vec(),
                ts: now,
            });
            rest = behind;
        }
        assert!(rest.is_empty());
    }

    /// Returns the rows of a [`Query::Page`]; `None` if the leaf is gone.
    pub(crate) fn page(&self, query: Query) -> Option<Vec<Stored>> {
        let Query::Page { leaf, after, until, limit, newest_first } = query else { return None };
        let rows = self.rows(leaf)?;
        let within = |row: &&Stored| row.seq > after.0 && row.seq <= until.0;
        let mut rows: Vec<&Stored> = rows.iter().filter(within).collect();
        rows.sort_by_key(|row| row.seq);
        if newest_first {
            rows.reverse();
        }
        Some(rows.into_iter().take(limit as usize).cloned().collect())
    }

    /// Answers a [`Query::Skip`].
    pub(crate) fn skip(&self, leaf: LeafNo, after: Seq, now: i64) -> Option<Option<Seq>> {
        let old = |row: &&Stored| row.seq > after.0 && now - row.ts > 2000;
        Some(self.rows(leaf)?.iter().filter(old).map(|row| Seq(row.seq)).max())
    }

    pub(crate) fn rows(&self, leaf: LeafNo) -> Option<&Vec<Stored>> {
        self.leaves.get(&leaf.0)?.as_ref()
    }

    pub(crate) fn drop_leaf(&mut self, no: i32) {
        if let Some(rows) = self.leaves.get_mut(&no) {
            *rows = None;
        }
    }
}
