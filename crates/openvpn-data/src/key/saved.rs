//! Keys that another process continues to use.
//!
//! The material of a key passes only between two processes of one server, in memory.

use std::sync::atomic::Ordering::Relaxed;

use adit_crypto::DirectionKey;
use adit_engine::SecretBytes;
use adit_openvpn::data_format::{DataKey, KeyLimits, Protection, SavedProtection};
use serde::{Deserialize, Serialize};

use super::epoch::SavedEpochs;
use super::{ID_LAST, Key, KeyFormat, Usage, epoch};

/// The two halves of a key, from which it was prepared.
pub(super) struct Material {
    seal: DirectionKey,
    open: DirectionKey,
}

impl Material {
    pub(super) fn of(key: &DataKey) -> Box<Self> {
        Box::new(Self { seal: key.seal.clone(), open: key.open.clone() })
    }
}

// Written by hand so that keys never reach a log.
impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Material(..)")
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedKey {
    id: u8,
    protection: SavedProtection,
    limits: (u64, u64),
    next_id: u64,
    failed: u64,
    sealed: [u64; 3],
    opened: [u64; 3],
    state: SavedState,
}

#[derive(Serialize, Deserialize)]
enum SavedState {
    /// The halves of the key, and the newest packet id received.
    Halves {
        seal: SecretBytes,
        open: SecretBytes,
        newest: u64,
    },
    Epochs(SavedEpochs),
}

/// Returns the state of a key, as text.
pub(super) fn save(key: &Key) -> Option<SecretBytes> {
    let (protection, state) = match (&key.format, &key.material) {
        (KeyFormat::Aead(aead), Some(material)) => {
            (Protection::Aead(aead.cipher()), halves(material, aead.newest()))
        }
        (KeyFormat::Block(block), Some(material)) if !block.is_static() => {
            (Protection::Block(block.suite()), halves(material, block.newest()))
        }
        (KeyFormat::Epoch(epoch), _) => {
            (Protection::Epoch(epoch.cipher()), SavedState::Epochs(epoch.save()))
        }
        // A static key has no session.
        _ => return None,
    };
    let saved = SavedKey {
        id: key.id,
        protection: SavedProtection::of(protection),
        limits: (key.limits.bytes, key.limits.packets),
        next_id: key.next_id.load(Relaxed),
        failed: key.failed.load(Relaxed),
        sealed: key.sealed.counts(),
        opened: key.opened.counts(),
        state,
    };
    serde_json::to_vec(&saved).ok().map(|text| SecretBytes(text.into()))
}

/// Continues a key.
pub(super) fn resume(saved: &SecretBytes, replay_window: u32) -> Option<Key> {
    let saved: SavedKey = serde_json::from_slice(&saved.0).ok()?;
    let SavedKey { id, protection, limits: (bytes, packets), next_id, failed, .. } = saved;
    let protection = protection.protection()?;
    let limits = KeyLimits { bytes, packets };
    if id > 7 || !(1..=ID_LAST.saturating_add(1)).contains(&next_id) {
        return None;
    }
    let mut key = match (saved.state, protection) {
        (SavedState::Halves { seal, open, newest }, Protection::Aead(_) | Protection::Block(_)) => {
            let (seal, open) = (half(&seal)?, half(&open)?);
            let data_key = DataKey { key_id: id, protection, seal, open, limits };
            let mut key = Key::prepare(&data_key, replay_window).ok()?;
            match &mut key.format {
                KeyFormat::Aead(aead) => aead.received_up_to(newest, replay_window),
                KeyFormat::Block(block) => block.received_up_to(newest, replay_window),
                KeyFormat::Epoch(_) => {}
            }
            key
        }
        (SavedState::Epochs(epochs), Protection::Epoch(cipher)) => {
            let epoch = epoch::Epoch::resume(cipher, &epochs, replay_window)?;
            Key::of(id, KeyFormat::Epoch(Box::new(epoch)), limits, None)
        }
        _ => return None,
    };
    key.next_id = next_id.into();
    key.failed = failed.into();
    key.sealed = Usage::of(saved.sealed).into();
    key.opened = Usage::of(saved.opened).into();
    Some(key)
}

fn halves(material: &Material, newest: u64) -> SavedState {
    let bytes = |half: &DirectionKey| {
        let mut bytes = SecretBytes::of(&half.cipher);
        bytes.0.extend_from_slice(&half.hmac);
        bytes
    };
    SavedState::Halves { seal: bytes(&material.seal), open: bytes(&material.open), newest }
}

fn half(saved: &SecretBytes) -> Option<DirectionKey> {
    let (cipher, hmac) = saved.0.split_first_chunk::<64>()?;
    Some(DirectionKey { cipher: *cipher, hmac: *hmac.first_chunk()? })
}

/// Continues an arbitrary state, for the fuzzer, and saves it again.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Some(key) = resume(&SecretBytes::of(bytes), 64) {
        let again = save(&key).and_then(|state| resume(&state, 64));
        assert!(again.is_some(), "a state that was accepted is accepted again");
    }
}

#[cfg(test)]
mod tests {
    use adit_crypto::{BlockCipher, Cipher, Digest};
    use adit_dataplane::DropReason;
    use adit_dataplane::format::{FormatKey, Opener as _, Seal, SealBurst, Sealer as _};
    use adit_openvpn::data_format::BlockSuite;

    use super::*;
    use crate::key::tests::spec;

    fn pair(protection: Protection) -> (Key, Key) {
        let half = |byte| DirectionKey { cipher: [byte; 64], hmac: [byte; 64] };
        let key = |seal, open| {
            let limits = KeyLimits { bytes: 9, packets: 0 };
            Key::new(&DataKey { key_id: 3, protection, seal, open, limits }, 64).unwrap()
        };
        (key(half(1), half(2)), key(half(2), half(1)))
    }

    struct One;

    impl SealBurst for One {
        type Output = Vec<u8>;

        fn run(self, sealer: &mut impl Seal) -> Vec<u8> {
            let mut out = vec![0; 200];
            let len = sealer.seal(b"packet", &mut out).unwrap();
            out.truncate(len);
            out
        }
    }

    fn seal(key: &Key) -> Vec<u8> {
        key.sealer(&spec(Some(7))).run(One)
    }

    fn open(key: &Key, packet: &[u8]) -> Result<u64, DropReason> {
        key.opener().open(&mut packet.to_vec()).map(|(_, id, _)| id)
    }

    fn protections() -> [Protection; 4] {
        let cipher = Some(BlockCipher::Aes256Cbc);
        [
            Protection::Aead(Cipher::Aes256Gcm),
            Protection::Aead(Cipher::ChaCha20Poly1305),
            Protection::Epoch(Cipher::Aes128Gcm),
            Protection::Block(BlockSuite { cipher, digest: Some(Digest::Sha256) }),
        ]
    }

    fn next_process(key: &Key) -> Key {
        Key::resume(&key.save().unwrap(), 64).unwrap()
    }

    #[test]
    fn a_key_continues_with_new_ids_and_refuses_what_was_received_before() {
        for protection in protections() {
            let (one, other) = pair(protection);
            let sealed: Vec<_> = (0..4).map(|_| seal(&one)).collect();
            let ids: Vec<_> = sealed[..3].iter().map(|packet| open(&other, packet)).collect();
            assert!(ids.iter().all(Result::is_ok), "{protection:?}: {ids:?}");
            let (one, other) = (next_process(&one), next_process(&other));
            assert_eq!(open(&other, &sealed[2]), Err(DropReason::Replayed), "{protection:?}");
            assert_eq!(open(&other, &sealed[0]), Err(DropReason::Replayed), "{protection:?}");
            let next = seal(&one);
            let (fourth, fifth) = (open(&other, &sealed[3]).unwrap(), open(&other, &next).unwrap());
            assert_eq!(fifth, fourth + 1, "{protection:?}");
            assert_eq!((one.id, one.limits.bytes), (3, 9));
            assert_eq!(one.sealed.counts()[2], 5, "{protection:?}");
            // And the other direction.
            assert!(open(&one, &seal(&other)).is_ok(), "{protection:?}");
        }
    }

    #[test]
    fn epochs_go_on_from_the_ones_that_both_ends_have_reached() {
        let (one, other) = pair(Protection::Epoch(Cipher::Aes256Gcm));
        let KeyFormat::Epoch(state) = &one.format else { panic!() };
        state.advance_to(3);
        open(&other, &seal(&one)).unwrap();
        let (one, other) = (next_process(&one), next_process(&other));
        assert_eq!(open(&other, &seal(&one)).unwrap() >> 48, 3);
        // The receiver follows with its own packets, and still knows the next epochs.
        assert_eq!(open(&one, &seal(&other)).unwrap() >> 48, 3);
        let KeyFormat::Epoch(state) = &one.format else { panic!() };
        state.advance_to(5);
        seal(&one);
        let (one, other) = (next_process(&one), next_process(&other));
        assert_eq!(open(&other, &seal(&one)).unwrap() >> 48, 5);
    }

    #[test]
    fn a_used_up_key_stays_so() {
        let (one, _) = pair(Protection::Aead(Cipher::ChaCha20Poly1305));
        one.preset(ID_LAST + 1, 0, 0);
        let one = next_process(&one);
        let exhausted = |key: &Key| {
            struct Fails;
            impl SealBurst for Fails {
                type Output = bool;

                fn run(self, sealer: &mut impl Seal) -> bool {
                    sealer.seal(b"packet", &mut [0; 100]) == Err(DropReason::KeyExhausted)
                }
            }
            key.sealer(&spec(None)).run(Fails)
        };
        assert!(exhausted(&one));
    }

    #[test]
    fn a_damaged_state_is_refused() {
        let (one, _) = pair(Protection::Aead(Cipher::Aes256Gcm));
        let text = String::from_utf8(one.save().unwrap().0.to_vec()).unwrap();
        for (from, to) in [
            ("\"id\":3", "\"id\":8"),
            ("\"next_id\":1", "\"next_id\":0"),
            ("\"next_id\":1", "\"next_id\":4294967297"),
            ("AES-256-GCM", "none"),
            ("\"epoch\":false", "\"epoch\":true"),
            ("\"seal\":\"", "\"seal\":\"zz"),
            ("\"failed\"", "\"more\":1,\"failed\""),
        ] {
            assert!(text.contains(from), "{from}");
            let state = SecretBytes::of(text.replacen(from, to, 1).as_bytes());
            assert!(Key::resume(&state, 64).is_none(), "{from} {to}");
        }
        let short = text.replacen("\"open\":\"0202", "\"open\":\"02", 1);
        assert!(Key::resume(&SecretBytes::of(short.as_bytes()), 64).is_none());
        fuzz(text.as_bytes());
    }
}
