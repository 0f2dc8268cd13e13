//! A shared place for changes.
//!
//! A directory keeps each chain without gaps, and refuses a second change with one number: of two machines with the same
//! key, one learns of the other before it forks the chain. It is not trusted. It can delay and withhold, which nodes
//! notice that compare heads; it cannot forge, because changes are signed.
//!
//! A directory that can report news does so outside this trait: that is I/O.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::session::KeyHash;

/// The number of entries that one [`Directory::read`] returns.
pub const MAX_READ: usize = 256;

/// A change in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The place of the entry in the directory, from 1.
    pub place: u64,
    /// The hash of the signer's key.
    pub signer: KeyHash,
    /// The number of the change in the signer's chain.
    pub number: u32,
    /// The encoded change.
    pub bytes: Vec<u8>,
}

/// What became of an appended change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Append {
    /// The change is in the directory.
    Added,
    /// The change was there before.
    Known,
    /// Another change has this number: its bytes.
    Conflict(Vec<u8>),
    /// The chain in the directory ends before the previous change: its last number.
    Gap(u32),
}

/// A shared place for changes.
pub trait Directory {
    /// The reason why the directory cannot be used.
    type Error;

    /// Appends a change if its number is the next one in the signer's chain.
    ///
    /// # Errors
    /// The directory cannot be used.
    fn append(
        &mut self,
        signer: &KeyHash,
        number: u32,
        bytes: &[u8],
    ) -> Result<Append, Self::Error>;

    /// Returns the entries after a place, at most [`MAX_READ`], in the order of their places.
    ///
    /// # Errors
    /// The directory cannot be used.
    fn read(&mut self, after: u64) -> Result<Vec<Entry>, Self::Error>;
}

/// A directory in memory, for tests.
#[derive(Clone, Debug, Default)]
pub struct MemoryDirectory {
    entries: BTreeMap<u64, Entry>,
    places: BTreeMap<(KeyHash, u32), u64>,
}

impl Directory for MemoryDirectory {
    type Error = Infallible;

    fn append(
        &mut self,
        signer: &KeyHash,
        number: u32,
        bytes: &[u8],
    ) -> Result<Append, Infallible> {
        let known = self.places.get(&(*signer, number)).and_then(|place| self.entries.get(place));
        if let Some(known) = known {
            let same = known.bytes == bytes;
            return Ok(if same { Append::Known } else { Append::Conflict(known.bytes.clone()) });
        }
        let last = self.places.range((*signer, 0)..=(*signer, u32::MAX)).next_back();
        let last = last.map_or(0, |((_, number), _)| *number);
        if last.checked_add(1) != Some(number) {
            return Ok(Append::Gap(last));
        }
        let place = self.entries.last_key_value().map_or(1, |(place, _)| place.saturating_add(1));
        let entry = Entry { place, signer: *signer, number, bytes: bytes.to_vec() };
        self.entries.insert(place, entry);
        self.places.insert((*signer, number), place);
        Ok(Append::Added)
    }

    fn read(&mut self, after: u64) -> Result<Vec<Entry>, Infallible> {
        let from = after.saturating_add(1);
        Ok(self.entries.range(from..).take(MAX_READ).map(|(_, entry)| entry.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::testing::{Signer, admit, genesis, grant_admin, write};
    use crate::roster::{Change, Changes};

    /// Appends the changes that the directory lacks, as a node does.
    fn publish(directory: &mut MemoryDirectory, changes: &Changes) -> Vec<Append> {
        let append = |change: &Change| {
            let Ok(result) =
                directory.append(&change.signer(), change.body().number, &change.encode());
            result
        };
        changes.in_causal_order().into_iter().map(append).collect()
    }

    fn fetch(directory: &mut MemoryDirectory, changes: &mut Changes) {
        let mut after = 0;
        loop {
            let Ok(entries) = directory.read(after);
            let Some(last) = entries.last() else { break };
            after = last.place;
            for entry in entries {
                let change = Change::decode(&changes.mesh().clone(), &entry.bytes).unwrap();
                changes.insert(change).unwrap();
            }
        }
    }

    #[test]
    fn two_nodes_meet_in_a_directory() {
        let admins = [Signer::new(1), Signer::new(2)];
        let mut one = Changes::new(genesis(&admins[..1], 1)).unwrap();
        let mut other = one.clone();
        write(&mut one, &admins[0], grant_admin(&admins[1]));
        (0..MAX_READ as u32).for_each(|n| {
            write(&mut one, &admins[0], admit(n as u8));
        });
        let mut directory = MemoryDirectory::default();
        assert!(publish(&mut directory, &one).iter().all(|it| *it == Append::Added));
        assert!(publish(&mut directory, &one).iter().all(|it| *it == Append::Known));
        let Ok(entries) = directory.read(0);
        assert_eq!(entries.len(), MAX_READ);
        fetch(&mut directory, &mut other);
        assert_eq!(one.digest(), other.digest());
        write(&mut other, &admins[1], admit(1));
        publish(&mut directory, &other);
        fetch(&mut directory, &mut one);
        assert_eq!(one.digest(), other.digest());
    }

    #[test]
    fn a_second_change_with_one_number_and_a_gap_are_refused() {
        let mut directory = MemoryDirectory::default();
        let Ok(results) = [(2, "b"), (1, "a"), (1, "a"), (1, "x"), (3, "c"), (2, "b")]
            .map(|(number, bytes)| directory.append(&[1; 32], number, bytes.as_bytes()))
            .into_iter()
            .collect::<Result<Vec<_>, _>>();
        let conflict = Append::Conflict(b"a".to_vec());
        let expected =
            [Append::Gap(0), Append::Added, Append::Known, conflict, Append::Gap(1), Append::Added];
        assert_eq!(results, expected);
        let Ok(other) = directory.append(&[2; 32], 1, b"a");
        assert_eq!(other, Append::Added, "another chain");
        let Ok(entries) = directory.read(1);
        assert_eq!(entries.iter().map(|entry| entry.place).collect::<Vec<_>>(), [2, 3]);
    }
}
