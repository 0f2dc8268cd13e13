//! A shared place for changes.
//!
//! A directory keeps each chain without gaps, and refuses a second change with the same number. So if two machines use the same key, one
//! learns of the other before it forks the chain. A directory is not trusted. It can delay and withhold changes, which nodes notice when
//! they compare heads. It cannot forge them, because changes are signed.
//!
//! A directory that can notify nodes does so outside this trait, because that is I/O. [`crate::directory`] decides what a node requests
//! from a directory, and when.

use std::collections::BTreeMap;
use std::convert::Infallible;

use adit_crypto::sha256;

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

/// The result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Append {
    /// The change is in the directory.
    Added,
    /// The change was already there.
    Known,
    /// Another change, with these bytes, has this number.
    Conflict(Vec<u8>),
    /// The previous change is not in the directory.
    Gap,
}

/// A summary of one chain in a directory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ChainSummary {
    /// The hash of the signer's key.
    pub signer: KeyHash,
    /// The number of entries.
    pub count: u64,
    /// The SHA-256 of the SHA-256 of each entry's bytes, in the order of their numbers.
    pub digest: [u8; 32],
}

impl ChainSummary {
    /// Summarizes entries with these SHA-256 hashes, in the order of their numbers.
    pub fn new<'a>(signer: KeyHash, hashes: impl Iterator<Item = &'a [u8; 32]>) -> Self {
        let (mut count, mut all) = (0_u64, Vec::new());
        for hash in hashes {
            count = count.saturating_add(1);
            all.extend_from_slice(hash);
        }
        Self { signer, count, digest: sha256(&[&all]) }
    }
}

/// A shared place for changes.
pub trait Directory {
    /// The reason why the directory cannot be used.
    type Error;

    /// Appends a change if its signer's previous change is there and its number is free.
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

    /// Summarizes the entries of each chain up to this place.
    ///
    /// # Errors
    /// The directory cannot be used.
    fn summarize(&mut self, upto: u64) -> Result<Vec<ChainSummary>, Self::Error>;
}

/// A directory in memory, for tests.
#[derive(Clone, Debug, Default)]
pub struct MemoryDirectory {
    entries: BTreeMap<u64, Entry>,
    places: BTreeMap<(KeyHash, u32), u64>,
}

impl MemoryDirectory {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes an entry, which a correct directory never does.
    pub fn remove(&mut self, signer: &KeyHash, number: u32) -> Option<Entry> {
        let place = self.places.remove(&(*signer, number))?;
        self.entries.remove(&place)
    }

    /// Appends an entry without any check.
    pub fn put(&mut self, signer: KeyHash, number: u32, bytes: Vec<u8>) {
        let place = self.entries.last_key_value().map_or(1, |(place, _)| place.saturating_add(1));
        self.entries.insert(place, Entry { place, signer, number, bytes });
        self.places.insert((signer, number), place);
    }
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
        if number != 1 && !self.places.contains_key(&(*signer, number.saturating_sub(1))) {
            return Ok(Append::Gap);
        }
        self.put(*signer, number, bytes.to_vec());
        Ok(Append::Added)
    }

    fn read(&mut self, after: u64) -> Result<Vec<Entry>, Infallible> {
        let from = after.saturating_add(1);
        Ok(self.entries.range(from..).take(MAX_READ).map(|(_, entry)| entry.clone()).collect())
    }

    fn summarize(&mut self, upto: u64) -> Result<Vec<ChainSummary>, Infallible> {
        let mut chains = BTreeMap::<KeyHash, Vec<[u8; 32]>>::new();
        for ((signer, _), place) in self.places.iter().filter(|(_, place)| **place <= upto) {
            if let Some(entry) = self.entries.get(place) {
                chains.entry(*signer).or_default().push(sha256(&[&entry.bytes]));
            }
        }
        let chains = chains.into_iter();
        Ok(chains.map(|(signer, hashes)| ChainSummary::new(signer, hashes.iter())).collect())
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
            [Append::Gap, Append::Added, Append::Known, conflict, Append::Gap, Append::Added];
        assert_eq!(results, expected);
        let Ok(other) = directory.append(&[2; 32], 1, b"a");
        assert_eq!(other, Append::Added, "another chain");
        let Ok(entries) = directory.read(1);
        assert_eq!(entries.iter().map(|entry| entry.place).collect::<Vec<_>>(), [2, 3]);
    }
}
