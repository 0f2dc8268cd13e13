//! The network's settings, signed by its owner, the node that created the network.
//!
//! ```text
//!   signed:  "adit-pg2 settings" | len tag | serial | made | packet_size | audit | durability | retention_bytes
//!            | retention_age | auditor_key | previous
//!   hash:    SHA-256("adit-pg2 settings hash" | len signed | signed | signature)
//! ```
//!
//! Each change is a separate row. Serial numbers count from 1, and each row contains the hash of the previous row, so
//! the newest signature covers all of them. A reader stores the serial number and the hash of the newest row that it
//! has seen, and refuses a database whose newest row is older, or differs from the one with the same number.

use std::time::Duration;

use adit_crypto::{CryptoError, sha256};
use adit_engine::UnixTime;

use super::bytes::Encoder;
use super::{NodeKeys, NodePublic, SealPublic};
use crate::limits::PACKET_RANGE;
use crate::{Audit, Durability};

const SIGNED: &[u8] = b"adit-pg2 settings";
const HASHED: &[u8] = b"adit-pg2 settings hash";

/// The maximum number of settings rows. The database enforces the same limit.
pub const MAX_SETTINGS: usize = 1024;

/// The settings that the owner chooses for all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSettings {
    /// The serial number, counted from 1.
    pub serial: i64,
    /// The time when the owner signed the row, by the owner's clock.
    pub made: UnixTime,
    /// The maximum length of an IP packet in a row in bytes.
    pub packet_size: i32,
    /// The columns that are stored in the clear.
    pub audit: Audit,
    /// The guarantee for a packet when its peer can read it.
    pub durability: Durability,
    /// The size limit of all leaves together in bytes.
    pub retention_bytes: i64,
    /// The age limit in whole seconds. A fraction is cut off.
    pub retention_age: Duration,
    /// The auditor's X-Wing key, 1216 bytes.
    pub auditor_key: Option<Vec<u8>>,
    /// [`SettingsPin::hash`] of the previous row; zeros in the first.
    pub previous: [u8; 32],
}

/// A row of the table `settings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedSettings {
    /// The columns.
    pub settings: NetworkSettings,
    /// The owner's signature, 64 bytes.
    pub signature: Vec<u8>,
}

/// The newest row that a reader has seen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SettingsPin {
    /// Its serial number.
    pub serial: i64,
    /// The hash of its signed bytes and its signature.
    pub hash: [u8; 32],
}

/// The reason why settings from the database are rejected.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// There is no row.
    #[error("there are none")]
    None,
    /// There are more than [`MAX_SETTINGS`] rows.
    #[error("there are more than 1024 rows")]
    TooMany,
    /// A serial number is missing, although they count from 1.
    #[error("row {serial} is missing")]
    Gap {
        /// The first missing number.
        serial: i64,
    },
    /// A row was altered.
    #[error("row {serial} is not the one that the next row names")]
    Chain {
        /// Its serial number.
        serial: i64,
    },
    /// The newest row was altered, or another node signed it.
    #[error("the network's owner has not signed row {serial}")]
    Signature {
        /// Its serial number.
        serial: i64,
    },
    /// This reader has already seen newer settings.
    #[error("the newest row is {found}, and row {seen} was seen before")]
    Older {
        /// The newest serial number in the database.
        found: i64,
        /// The newest serial number that was seen.
        seen: i64,
    },
    /// This reader has seen a different row with the same number.
    #[error("row {serial} is not the one that was seen before")]
    Changed {
        /// The serial number.
        serial: i64,
    },
    /// A value in a row that the owner signed is out of bounds.
    #[error("a value in row {serial} is out of bounds")]
    Bounds {
        /// The serial number.
        serial: i64,
    },
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

impl NetworkSettings {
    /// Encodes the bytes that the owner signs.
    fn message(&self, tag: &str) -> Vec<u8> {
        let mut out = Encoder::new(SIGNED);
        out.bytes(tag.as_bytes());
        out.i64(self.serial);
        out.u64(self.made.0);
        out.i32(self.packet_size);
        out.bytes(self.audit.as_str().as_bytes());
        out.bytes(self.durability.as_str().as_bytes());
        out.i64(self.retention_bytes);
        out.u64(self.retention_age.as_secs());
        out.maybe(self.auditor_key.as_deref());
        out.fixed(&self.previous);
        out.done()
    }

    /// Signs the settings as the owner.
    ///
    /// # Errors
    /// Fails if the cryptographic library fails.
    pub fn sign(&self, tag: &str, keys: &NodeKeys) -> Result<SignedSettings, CryptoError> {
        let signature = keys.signing().sign(&self.message(tag))?.to_vec();
        Ok(SignedSettings { settings: self.clone(), signature })
    }

    /// Returns the auditor's key, or `None` if there is no auditor or the key is invalid.
    pub fn auditor(&self) -> Option<SealPublic> {
        self.auditor_key.as_deref().and_then(|key| SealPublic::from_bytes(key).ok())
    }

    fn in_bounds(&self) -> bool {
        let key = self.auditor_key.as_deref().map(SealPublic::from_bytes);
        usize::try_from(self.packet_size).is_ok_and(|size| PACKET_RANGE.contains(&size))
            && self.retention_bytes > 0
            && !self.retention_age.is_zero()
            && key.is_none_or(|key| key.is_ok())
    }
}

impl SignedSettings {
    /// Returns the serial number and the hash of this row, which a reader stores.
    pub fn pin(&self, tag: &str) -> SettingsPin {
        SettingsPin { serial: self.settings.serial, hash: self.hash(tag) }
    }

    fn hash(&self, tag: &str) -> [u8; 32] {
        let message = self.settings.message(tag);
        let len = u64::try_from(message.len()).unwrap_or(u64::MAX).to_be_bytes();
        sha256(&[HASHED, &len, &message, &self.signature])
    }
}

/// All settings that a network has had, the newest last. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    first: NetworkSettings,
    later: Vec<NetworkSettings>,
    seen: SettingsPin,
}

impl History {
    /// Checks the rows of the table `settings`, in ascending order. `owner` must have signed the newest one, the hashes must cover all
    /// earlier rows, and the rows must include the one that this reader has `seen`.
    ///
    /// # Errors
    /// Each check has its own error.
    pub fn verify(
        tag: &str,
        owner: &NodePublic,
        rows: &[SignedSettings],
        seen: Option<SettingsPin>,
    ) -> Result<Self, SettingsError> {
        if rows.len() > MAX_SETTINGS {
            return Err(SettingsError::TooMany);
        }
        let newest = rows.last().ok_or(SettingsError::None)?;
        let (mut serial, mut hash) = (0_i64, [0; 32]);
        let mut known = seen.is_none();
        for row in rows {
            let next = serial.saturating_add(1);
            if row.settings.serial != next {
                return Err(SettingsError::Gap { serial: next });
            }
            if row.settings.previous != hash {
                return Err(SettingsError::Chain { serial });
            }
            (serial, hash) = (next, row.hash(tag));
            if let Some(seen) = seen.filter(|seen| seen.serial == serial) {
                if seen.hash != hash {
                    return Err(SettingsError::Changed { serial });
                }
                known = true;
            }
        }
        if !owner.signed(&newest.settings.message(tag), &newest.signature) {
            return Err(SettingsError::Signature { serial });
        }
        if let Some(SettingsPin { serial: seen, .. }) = seen.filter(|_| !known) {
            return Err(SettingsError::Older { found: serial, seen });
        }
        if let Some(row) = rows.iter().find(|row| !row.settings.in_bounds()) {
            return Err(SettingsError::Bounds { serial: row.settings.serial });
        }
        let mut all = rows.iter().map(|row| row.settings.clone());
        let first = all.next().ok_or(SettingsError::None)?;
        Ok(Self { first, later: all.collect(), seen: SettingsPin { serial, hash } })
    }

    /// Returns the current settings.
    pub fn current(&self) -> &NetworkSettings {
        self.later.last().unwrap_or(&self.first)
    }

    /// Returns the settings with this serial number.
    pub fn at(&self, serial: i64) -> Option<&NetworkSettings> {
        self.all().find(|settings| settings.serial == serial)
    }

    /// Returns all settings, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = &NetworkSettings> {
        std::iter::once(&self.first).chain(&self.later)
    }

    /// Returns the serial number and the hash of the newest row, which a reader stores.
    pub fn pin(&self) -> SettingsPin {
        self.seen
    }

    /// Signs a successor of the current settings, which `change` has edited. The number, the time and the hash of the
    /// previous row are set here.
    ///
    /// # Errors
    /// Fails if a value is out of bounds, there are too many rows, or the library fails.
    pub fn next(
        &self,
        tag: &str,
        keys: &NodeKeys,
        now: UnixTime,
        change: NetworkSettings,
    ) -> Result<SignedSettings, SettingsError> {
        let serial = self.seen.serial.saturating_add(1);
        if usize::try_from(serial).is_ok_and(|serial| serial > MAX_SETTINGS) {
            return Err(SettingsError::TooMany);
        }
        let made = now.max(self.current().made);
        let next = NetworkSettings { serial, made, previous: self.seen.hash, ..change };
        if !next.in_bounds() {
            return Err(SettingsError::Bounds { serial });
        }
        Ok(next.sign(tag, keys)?)
    }
}

#[cfg(test)]
mod tests {
    use adit_engine::Random;

    use super::*;
    use crate::NodeId;
    use crate::key::SealSecret;

    fn keys(seed: u8) -> NodeKeys {
        NodeKeys::generate(&mut Random::new([seed; 32])).unwrap()
    }

    fn owner() -> NodePublic {
        keys(2).public(NodeId::OWNER).unwrap()
    }

    fn first() -> NetworkSettings {
        let auditor = SealSecret::generate(&mut Random::new([9; 32])).public().unwrap();
        NetworkSettings {
            serial: 1,
            made: UnixTime(1_790_000_000),
            packet_size: 7900,
            audit: Audit::Headers,
            durability: Durability::Strict,
            retention_bytes: 1 << 30,
            retention_age: Duration::from_secs(30 * 86_400),
            auditor_key: Some(auditor.as_bytes().to_vec()),
            previous: [0; 32],
        }
    }

    fn verify(
        rows: &[SignedSettings],
        seen: Option<SettingsPin>,
    ) -> Result<History, SettingsError> {
        History::verify("t1", &owner(), rows, seen)
    }

    /// Creates rows like the owner, each with twice the retention of the previous one.
    fn rows(count: usize) -> Vec<SignedSettings> {
        let mut rows = vec![first().sign("t1", &keys(2)).unwrap()];
        while rows.len() < count {
            let history = verify(&rows, None).unwrap();
            let now = UnixTime(1_790_000_000 + 100 * rows.len() as u64);
            let doubled = history.current().retention_bytes * 2;
            let change = NetworkSettings { retention_bytes: doubled, ..history.current().clone() };
            rows.push(history.next("t1", &keys(2), now, change).unwrap());
        }
        rows
    }

    #[test]
    fn the_newest_row_is_in_force_and_each_is_found_by_its_number() {
        let history = verify(&rows(3), None).unwrap();
        assert_eq!(history.current().retention_bytes, 4 << 30);
        assert_eq!(history.pin().serial, 3);
        let of = |serial| history.at(serial).map(|settings| settings.retention_bytes);
        assert_eq!([of(0), of(1), of(2), of(4)], [None, Some(1 << 30), Some(2 << 30), None]);
        assert_eq!(verify(&[], None), Err(SettingsError::None));
    }

    #[test]
    fn a_row_that_another_node_signed_or_that_was_altered_is_refused() {
        let forged = first().sign("t1", &keys(3)).unwrap();
        assert_eq!(verify(&[forged], None), Err(SettingsError::Signature { serial: 1 }));
        let other = first().sign("t2", &keys(2)).unwrap();
        assert_eq!(verify(&[other], None), Err(SettingsError::Signature { serial: 1 }));
        let edits: [fn(&mut NetworkSettings); 9] = [
            |s| s.made.0 += 1,
            |s| s.packet_size = 1400,
            |s| s.audit = Audit::Full,
            |s| s.durability = Durability::Relaxed,
            |s| s.retention_bytes += 1,
            |s| s.retention_age += Duration::from_secs(1),
            |s| s.auditor_key = None,
            |s| s.auditor_key.as_mut().unwrap()[0] ^= 1,
            |s| s.auditor_key = Some(vec![1; 32]),
        ];
        for (at, edit) in edits.into_iter().enumerate() {
            let mut newest = rows(2);
            edit(&mut newest[1].settings);
            let refused = verify(&newest, None);
            assert_eq!(refused, Err(SettingsError::Signature { serial: 2 }), "{at}");
            let mut older = rows(2);
            edit(&mut older[0].settings);
            assert_eq!(verify(&older, None), Err(SettingsError::Chain { serial: 1 }), "{at}");
        }
    }

    #[test]
    fn rows_that_are_missing_repeated_or_moved_are_refused() {
        let good = rows(3);
        let gap = |rows: &[SignedSettings], serial| {
            assert_eq!(verify(rows, None), Err(SettingsError::Gap { serial }));
        };
        gap(&good[1..], 1);
        gap(&[good[0].clone(), good[2].clone()], 2);
        gap(&[good[0].clone(), good[0].clone()], 2);
        gap(&[good[1].clone(), good[0].clone()], 1);
    }

    #[test]
    fn a_reader_that_has_seen_newer_settings_refuses_older_and_other_ones() {
        let good = rows(3);
        let seen = Some(verify(&good, None).unwrap().pin());
        assert!(verify(&good, seen).is_ok());
        assert_eq!(verify(&good[..2], seen), Err(SettingsError::Older { found: 2, seen: 3 }));
        // The owner itself cannot use the number twice.
        let history = verify(&good[..2], None).unwrap();
        let change = NetworkSettings { audit: Audit::Full, ..history.current().clone() };
        let other = history.next("t1", &keys(2), UnixTime(1_800_000_000), change).unwrap();
        let mut rows = good[..2].to_vec();
        rows.push(other);
        assert!(verify(&rows, None).is_ok());
        assert_eq!(verify(&rows, seen), Err(SettingsError::Changed { serial: 3 }));
    }

    #[test]
    fn values_out_of_bounds_are_neither_signed_nor_believed() {
        let edits: [fn(&mut NetworkSettings); 5] = [
            |s| s.packet_size = 1279,
            |s| s.packet_size = -1,
            |s| s.retention_bytes = 0,
            |s| s.retention_age = Duration::ZERO,
            |s| s.auditor_key = Some(vec![1; 32]),
        ];
        for edit in edits {
            let mut bad = first();
            edit(&mut bad);
            let row = bad.sign("t1", &keys(2)).unwrap();
            assert_eq!(verify(&[row], None), Err(SettingsError::Bounds { serial: 1 }));
            let next = verify(&rows(1), None).unwrap().next("t1", &keys(2), UnixTime(0), bad);
            assert_eq!(next, Err(SettingsError::Bounds { serial: 2 }));
        }
    }

    #[test]
    fn there_is_a_bound_to_the_rows_and_time_never_goes_back() {
        let good = rows(2);
        let history = verify(&good, None).unwrap();
        let change = history.current().clone();
        let next = history.next("t1", &keys(2), UnixTime(5), change).unwrap();
        assert_eq!(next.settings.made, history.current().made);
        let many = vec![good[0].clone(); MAX_SETTINGS + 1];
        assert_eq!(verify(&many, None), Err(SettingsError::TooMany));
    }

    /// Databases contain the encoding for years, so these numbers never change in this version.
    #[test]
    fn known_answers_of_the_encoding() {
        let row = first().sign("t1", &keys(2)).unwrap();
        let hash: String = row.hash("t1").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, KNOWN_HASH);
    }

    const KNOWN_HASH: &str = "4a8dd2e08e29dbdd254f7b2d16a907cc15177fd0449c97b67bb4a681ef1109d1";
}
