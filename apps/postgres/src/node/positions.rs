//! The positions up to which each stream has been read, written and signed. With them, after `kill -9` no packet is
//! delivered twice and no number is used twice, and the next epoch's record refers to the data that this node has
//! signed instead of the data in the database.
//!
//! The file has one line of fixed length per stream, written in place. Data that the kernel has accepted survives the process. The file is
//! flushed for each new epoch, so that after a crash of the host no earlier epoch is trusted again. Numbers within the last epoch may then
//! be outdated, so the numbers in the database are considered too.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use adit_postgres::key::{Checkpoint, Fingerprint};
use adit_postgres::receiver::Position;
use adit_postgres::{EpochNo, Seq, StreamId};

/// The length of a line in bytes, including its newline.
const LINE: usize = 45 + 65;

/// The filler in place of a chain's value.
const NO_CHAIN: Fingerprint = Fingerprint([0; 32]);

/// The maximum number of lines. Other streams are not recorded.
const LINES: usize = 8192;

/// The kind of a position.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PositionKind {
    Received,
    Sent,
    Signed,
}

impl PositionKind {
    fn flag(self) -> char {
        match self {
            Self::Received => 'r',
            Self::Sent => 's',
            Self::Signed => 'c',
        }
    }
}

/// Reads the positions of received streams from the file of a node that may be running.
pub(crate) fn received(path: &Path) -> io::Result<BTreeMap<StreamId, Seq>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let lines = bytes.chunks_exact(LINE).take(LINES);
    let lines = lines.filter_map(|line| parse(std::str::from_utf8(line).ok()?));
    let received = lines.filter(|((kind, _), ..)| *kind == PositionKind::Received);
    Ok(received.map(|((_, stream), position, _)| (stream, position.seq)).collect())
}

/// The open file.
#[derive(Debug)]
pub(super) struct Positions {
    file: File,
    slots: HashMap<(PositionKind, StreamId), Slot>,
    lines: usize,
}

#[derive(Copy, Clone, Debug)]
struct Slot {
    line: usize,
    position: Position,
    chain: Fingerprint,
}

impl Positions {
    /// Opens the file, or creates it. Ignores invalid lines; the worst consequence is a repetition.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        // A truncated (full disk) or damaged line does not affect the others.
        let mut slots = HashMap::new();
        let whole = bytes.chunks_exact(LINE).take(LINES);
        let lines = whole.len();
        for (line, bytes) in whole.enumerate() {
            if let Some((key, position, chain)) = std::str::from_utf8(bytes).ok().and_then(parse) {
                slots.insert(key, Slot { line, position, chain });
            }
        }
        file.set_len((lines * LINE) as u64)?;
        Ok(Self { file, slots, lines })
    }

    /// Returns the position of a stream, or zeros if it is unknown.
    pub(super) fn get(&self, kind: PositionKind, stream: StreamId) -> Position {
        self.slots.get(&(kind, stream)).map(|slot| slot.position).unwrap_or_default()
    }

    /// Returns the last checkpoint of a stream, and its epoch.
    pub(super) fn signed(&self, stream: StreamId) -> Option<(EpochNo, Checkpoint)> {
        let Slot { position, chain, .. } = self.slots.get(&(PositionKind::Signed, stream))?;
        Some((position.epoch, Checkpoint { seq: position.seq, chain: chain.0 }))
    }

    /// Records a checkpoint.
    pub(super) fn sign(
        &mut self,
        stream: StreamId,
        epoch: EpochNo,
        to: Checkpoint,
    ) -> io::Result<()> {
        let position = Position { epoch, seq: to.seq };
        self.write(PositionKind::Signed, stream, position, Fingerprint(to.chain))
    }

    /// Records the position of a stream.
    pub(super) fn set(
        &mut self,
        kind: PositionKind,
        stream: StreamId,
        position: Position,
    ) -> io::Result<()> {
        self.write(kind, stream, position, NO_CHAIN)
    }

    fn write(
        &mut self,
        kind: PositionKind,
        stream: StreamId,
        position: Position,
        chain: Fingerprint,
    ) -> io::Result<()> {
        let line = match self.slots.get(&(kind, stream)) {
            Some(slot) if slot.position == position && slot.chain == chain => return Ok(()),
            Some(slot) => slot.line,
            // Received streams may use only half of the lines, because a database that invents received streams must
            // not displace sent ones.
            None if self.lines
                >= if kind == PositionKind::Received { LINES } else { LINES / 2 } =>
            {
                return Err(io::Error::other("more streams than this file has lines"));
            }
            None => self.lines,
        };
        let Position { epoch, seq } = position;
        let letter = kind.flag();
        let text = format!("{letter} {:>10} {:>10} {:>20} {chain}\n", stream.0, epoch.0, seq.0);
        if text.len() != LINE {
            return Err(io::Error::other("an invalid number"));
        }
        self.file.write_all_at(text.as_bytes(), (line * LINE) as u64)?;
        self.lines = self.lines.max(line + 1);
        let former = self.slots.insert((kind, stream), Slot { line, position, chain });
        if former.is_none_or(|slot| slot.position.epoch != epoch) {
            self.file.sync_data()?;
        }
        Ok(())
    }
}

fn parse(line: &str) -> Option<((PositionKind, StreamId), Position, Fingerprint)> {
    let mut words = line.split_ascii_whitespace();
    let kind = match words.next()? {
        "r" => PositionKind::Received,
        "s" => PositionKind::Sent,
        "c" => PositionKind::Signed,
        _ => return None,
    };
    let stream = StreamId(words.next()?.parse().ok()?);
    let epoch = EpochNo(words.next()?.parse().ok()?);
    let seq = Seq(words.next()?.parse().ok()?);
    let chain = words.next()?.parse().ok()?;
    words.next().is_none().then_some(((kind, stream), Position { epoch, seq }, chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: i32, seq: i64) -> Position {
        Position { epoch: EpochNo(epoch), seq: Seq(seq) }
    }

    #[test]
    fn what_was_set_last_is_found_by_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        let mut positions = Positions::open(&path).unwrap();
        for seq in 1..20 {
            positions.set(PositionKind::Received, StreamId(7), at(1, seq)).unwrap();
            positions.set(PositionKind::Sent, StreamId(7), at(2, i64::MAX - seq)).unwrap();
            positions
                .set(PositionKind::Received, StreamId(i32::MAX), at(i32::MAX, seq * 1000))
                .unwrap();
        }
        let again = Positions::open(&path).unwrap();
        assert_eq!(again.get(PositionKind::Received, StreamId(7)), at(1, 19));
        assert_eq!(again.get(PositionKind::Sent, StreamId(7)), at(2, i64::MAX - 19));
        assert_eq!(again.get(PositionKind::Received, StreamId(i32::MAX)), at(i32::MAX, 19000));
        assert_eq!(again.get(PositionKind::Sent, StreamId(8)), Position::default());
        assert_eq!(fs::metadata(&path).unwrap().len(), 3 * LINE as u64);
    }

    #[test]
    fn a_checkpoint_is_found_by_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        let mut positions = Positions::open(&path).unwrap();
        assert_eq!(positions.signed(StreamId(7)), None);
        let signed = |seq, byte| Checkpoint { seq: Seq(seq), chain: [byte; 32] };
        positions.set(PositionKind::Sent, StreamId(7), at(2, 9)).unwrap();
        positions.sign(StreamId(7), EpochNo(2), signed(8, 0xab)).unwrap();
        positions.sign(StreamId(7), EpochNo(2), signed(9, 0xcd)).unwrap();
        positions.set(PositionKind::Received, StreamId(8), at(2, 5)).unwrap();
        assert_eq!(received(&path).unwrap(), BTreeMap::from([(StreamId(8), Seq(5))]));
        assert!(received(&dir.path().join("none")).unwrap().is_empty());
        let again = Positions::open(&path).unwrap();
        assert_eq!(again.signed(StreamId(7)), Some((EpochNo(2), signed(9, 0xcd))));
        assert_eq!(again.get(PositionKind::Sent, StreamId(7)), at(2, 9));
        assert_eq!(fs::metadata(&path).unwrap().len(), 3 * LINE as u64);
    }

    #[test]
    fn what_could_not_be_written_is_not_taken_for_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        let mut positions = Positions::open(&path).unwrap();
        positions.set(PositionKind::Received, StreamId(7), at(1, 5)).unwrap();
        let writable = std::mem::replace(&mut positions.file, File::open(&path).unwrap());
        for _ in 0..2 {
            positions.set(PositionKind::Received, StreamId(7), at(1, 6)).unwrap_err();
        }
        assert_eq!(positions.get(PositionKind::Received, StreamId(7)), at(1, 5));
        positions.file = writable;
        positions.set(PositionKind::Received, StreamId(7), at(1, 6)).unwrap();
        let again = Positions::open(&path).unwrap();
        assert_eq!(again.get(PositionKind::Received, StreamId(7)), at(1, 6));
    }

    #[test]
    fn a_line_cut_off_or_damaged_costs_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        let mut positions = Positions::open(&path).unwrap();
        for stream in 7..10 {
            positions.set(PositionKind::Received, StreamId(stream), at(1, 5)).unwrap();
        }
        let mut bytes = fs::read(&path).unwrap();
        // The state after a crash of the host: a line without newline and text, and the last line incomplete.
        bytes[..LINE].fill(0xff);
        bytes.truncate(3 * LINE - 1);
        fs::write(&path, &bytes).unwrap();
        let mut positions = Positions::open(&path).unwrap();
        let got: Vec<_> =
            (7..10).map(|s| positions.get(PositionKind::Received, StreamId(s)).seq.0).collect();
        assert_eq!(got, [0, 5, 0]);
        positions.set(PositionKind::Received, StreamId(8), at(1, 6)).unwrap();
        positions.set(PositionKind::Received, StreamId(9), at(1, 7)).unwrap();
        let positions = Positions::open(&path).unwrap();
        assert_eq!(positions.get(PositionKind::Received, StreamId(8)), at(1, 6));
        assert_eq!(positions.get(PositionKind::Received, StreamId(9)), at(1, 7));
    }

    #[test]
    fn made_up_streams_to_write_to_take_no_place_of_received_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        let mut positions = Positions::open(&path).unwrap();
        let lines = LINES as i32;
        let taken = (1..=lines)
            .filter(|s| positions.set(PositionKind::Sent, StreamId(*s), at(1, 1)).is_ok())
            .count();
        assert_eq!(taken, LINES / 2);
        positions.set(PositionKind::Received, StreamId(7), at(1, 5)).unwrap();
        assert!(positions.set(PositionKind::Received, StreamId(i32::MIN), at(1, 5)).is_err());
        assert_eq!(
            Positions::open(&path).unwrap().get(PositionKind::Received, StreamId(7)),
            at(1, 5)
        );
    }
}
