//! The search, and the secrets that it searches for.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use adit_crypto::{DirectionKey, hkdf_expand_sha256};
use adit_openvpn::data_format::{DataKey, Protection};
use zeroize::{Zeroize, Zeroizing};

/// The mask under which the tests keep secrets; otherwise the search would find the tests' own copies.
pub(crate) const MASK: u8 = 0xa5;
/// How much of a secret counts as a find.
const PART: usize = 16;
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
    const CHUNK: usize = 1 << 20;
    const PAGE: usize = 4096;
    const ZEROS: [u8; PAGE + PART] = [0; PAGE + PART];
    let mut buffer = vec![0_u8; CHUNK + PART];
    let own = buffer.as_ptr() as u64..buffer.as_ptr() as u64 + buffer.len() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let memory = File::open("/proc/self/mem").unwrap();
    // The parts of 16 bytes of each secret, grouped by first byte.
    let mut parts: Vec<Vec<(usize, usize)>> = vec![Vec::new(); 256];
    for (n, Secret(_, masked)) in secrets.iter().enumerate() {
        for at in (0..=masked.len() - PART).step_by(PART) {
            parts[usize::from(masked[at] ^ MASK)].push((n, at));
        }
    }
    let mut found = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        let (from, to) = range.split_once('-').unwrap();
        let (from, to) =
            (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
        if !rights.starts_with("rw") || line.contains("[vvar") {
            continue;
        }
        let mut at = from;
        while at < to {
            let len = buffer.len().min((to - at) as usize);
            let Ok(read) = memory.read_at(&mut buffer[..len], at) else { break };
            for page in (0..read).step_by(PAGE) {
                let bytes = &buffer[page..read.min(page + PAGE + PART - 1)];
                // Most of the memory is zero, and no part of a secret is all zeros.
                if *bytes == ZEROS[..bytes.len()] {
                    continue;
                }
                for (n, window) in bytes.windows(PART).enumerate() {
                    let place = at + (page + n) as u64;
                    for &(which, offset) in &parts[usize::from(window[0])] {
                        let Secret(name, masked) = &secrets[which];
                        let masked = &masked[offset..offset + PART];
                        let same = || window.iter().zip(masked).all(|(a, b)| a ^ MASK == *b);
                        if !own.contains(&place) && same() {
                            let region = line.split_whitespace().nth(5).unwrap_or("anonymous");
                            found.push(format!("{name}, byte {offset}, at {place:x} in {region}"));
                        }
                    }
                }
            }
            at += CHUNK as u64;
        }
    }
    // The buffer is too long for the allocator to wipe.
    buffer.zeroize();
    found
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
