//! The search, and the secrets that it searches for.

use std::collections::BTreeMap;

use adit_crypto::{DirectionKey, hkdf_expand_sha256};
pub(crate) use adit_memory_search::MASK;
use adit_memory_search::{Find, PART};
use adit_openvpn::data_format::{DataKey, Protection};
use zeroize::Zeroizing;

/// A masked secret with its name.
#[derive(Clone)]
pub(crate) struct Secret(pub String, pub Vec<u8>);

impl Secret {
    pub(crate) fn new(name: impl Into<String>, secret: &[u8]) -> Self {
        Self(name.into(), secret.iter().map(|byte| byte ^ MASK).collect())
    }
}

/// The number of epochs whose keys are searched for: the first, the ones accepted after it, and one more.
const EPOCHS: u16 = 6;

/// Runs `work` with secrets on a separate thread, and clears that thread's stack, because a search must not find the
/// test's own copies.
pub(crate) fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        let done = work();
        adit_crypto::scrub_stack();
        done
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// Returns a data key and everything derived from it.
pub(crate) fn of_key(end: &str, key: &DataKey) -> Vec<Secret> {
    aside(|| {
        let mut secrets = Vec::new();
        for (direction, half) in [("seal", &key.seal), ("open", &key.open)] {
            let name = |part: &str| format!("{end} data key to {direction}, {part}");
            of_half(&mut secrets, &name, key.protection, half);
        }
        secrets
    })
}

#[inline(never)]
fn of_half(
    secrets: &mut Vec<Secret>,
    name: &dyn Fn(&str) -> String,
    protection: Protection,
    half: &DirectionKey,
) {
    secrets.push(Secret::new(name("cipher"), &half.cipher));
    secrets.push(Secret::new(name("hmac"), &half.hmac));
    match protection {
        Protection::Aead(_) => {}
        Protection::Epoch(cipher) => {
            let mut secret = Zeroizing::new([0; 32]);
            secret.copy_from_slice(&half.cipher[..32]);
            for epoch in 1..=EPOCHS {
                let mut key = Zeroizing::new([0; 32]);
                let key = &mut key[..cipher.key_len()];
                expand(&secret, b"data_key", key);
                secrets.push(Secret::new(name(&format!("key of epoch {epoch}")), key));
                secrets.push(Secret::new(name(&format!("secret of epoch {epoch}")), &*secret));
                let mut next = Zeroizing::new([0; 32]);
                expand(&secret, b"datakey upd", &mut *next);
                secret = next;
            }
        }
        Protection::Block(suite) | Protection::Static(suite) => {
            // The key is in HMAC's first blocks, masked.
            let len = suite.digest.map_or(0, |digest| digest.output_len());
            for (pad, mask) in [("inner", 0x36), ("outer", 0x5c)] {
                let mut block = Zeroizing::new(half.hmac);
                block.iter_mut().for_each(|byte| *byte ^= mask);
                if len >= PART {
                    secrets.push(Secret::new(name(&format!("{pad} hmac block")), &block[..len]));
                }
            }
        }
    }
}

/// Derives keys as the epoch format does (`openvpn-wire-protocol`).
fn expand(secret: &[u8; 32], label: &[u8], out: &mut [u8]) {
    let lead = [0, out.len() as u8, 5 + label.len() as u8];
    hkdf_expand_sha256(secret, &[&lead, b"ovpn ", label, &[0]], out).unwrap();
}

/// Searches the writable memory of the process; returns the name and location of each find.
pub(crate) fn search(secrets: &[Secret]) -> Vec<String> {
    let masked: Vec<&[u8]> = secrets.iter().map(|Secret(_, masked)| masked.as_slice()).collect();
    let describe = |Find { secret, offset, address, mapping }| {
        let Secret(name, _) = &secrets[secret];
        format!("{name}, byte {offset}, at {address:x} in {mapping}")
    };
    adit_memory_search::search(&masked).unwrap().into_iter().map(describe).collect()
}

/// Returns the maximum number of copies that a search found of any part of a key method 2 message's secrets.
pub(crate) fn key_method_copies(found: &[String]) -> usize {
    let mut parts = BTreeMap::<&str, usize>::new();
    for found in found {
        if let Some((part, _)) = found.split_once(", at ")
            && (part.contains("random bytes") || part.contains("pre-master"))
        {
            *parts.entry(part).or_default() += 1;
        }
    }
    parts.into_values().max().unwrap_or(0)
}
