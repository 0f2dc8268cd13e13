//! Builds a different row with the same tag, for tests. Anyone who knows an epoch's secret can do this.
//!
//! AES-GCM authenticates with GHASH, a polynomial over the authenticated data and the ciphertext. For a holder of its
//! key GHASH is linear, so one freely chosen block of ciphertext can compensate for all other changes.

use adit_crypto::Aes256Ctr;
use adit_crypto::{Digest, hkdf_expand_sha256, hmac};

use super::{EpochSecret, aad};
use crate::row::{Columns, columns};
use crate::{Audit, EpochNo, Seq, StreamId};

/// Multiplies in GCM's field (NIST SP 800-38D, 6.3).
fn mul(x: u128, y: u128) -> u128 {
    let (mut product, mut y) = (0, y);
    for bit in (0..128).rev() {
        if x >> bit & 1 == 1 {
            product ^= y;
        }
        y = if y & 1 == 1 { (y >> 1) ^ (0xe1 << 120) } else { y >> 1 };
    }
    product
}

fn power(x: u128, mut exponent: u128) -> u128 {
    let (mut result, mut x) = (1 << 127, x);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = mul(result, x);
        }
        (x, exponent) = (mul(x, x), exponent >> 1);
    }
    result
}

fn blocks(bytes: &[u8]) -> Vec<u128> {
    let block = |chunk: &[u8]| {
        let mut block = [0; 16];
        block[..chunk.len()].copy_from_slice(chunk);
        u128::from_be_bytes(block)
    };
    bytes.chunks(16).map(block).collect()
}

fn ghash(key: u128, aad: &[u8], ciphertext: &[u8]) -> u128 {
    let lengths = ((aad.len() as u128 * 8) << 64) | (ciphertext.len() as u128 * 8);
    let all = [blocks(aad), blocks(ciphertext), vec![lengths]].concat();
    all.iter().fold(0, |hash, block| mul(hash ^ block, key))
}

/// Builds columns and payload for `fake`, whose block `free` makes the tag equal to that of `columns` and `payload`.
pub(crate) fn collide(
    (secret, hash): (&EpochSecret, &[u8; 32]),
    (stream, epoch, seq): (StreamId, EpochNo, Seq),
    (true_columns, true_payload): (&Columns, &[u8]),
    fake: &[u8],
    free: usize,
) -> (Columns, Vec<u8>) {
    let audit = Audit::Headers;
    let extracted = hmac(Digest::Sha256, hash, &[secret.expose()]).unwrap();
    let mut key = [0; 32];
    let info: [&[u8]; 2] = [b"adit-pg1 packet ", audit.as_str().as_bytes()];
    hkdf_expand_sha256(extracted.as_bytes(), &info, &mut key).unwrap();
    let cipher = Aes256Ctr::new(&key).unwrap();
    let mut zero = [0; 16];
    cipher.apply(&[0; 16], &mut zero).unwrap();
    let hash_key = u128::from_be_bytes(zero);

    let mut counter = [0; 16];
    counter[4..12].copy_from_slice(&seq.0.to_be_bytes());
    counter[15] = 2;
    let mut payload = fake.to_vec();
    cipher.apply(&counter, &mut payload).unwrap();
    payload[16 * free..][..16].fill(0);

    let columns = columns(audit, fake);
    let true_aad = aad::of(audit, stream, epoch, seq, true_columns);
    let fake_aad = aad::of(audit, stream, epoch, seq, &columns);
    let off = ghash(hash_key, &true_aad, true_payload) ^ ghash(hash_key, &fake_aad, &payload);
    let behind = blocks(&payload).len() - free + 1;
    let inverse = power(power(hash_key, behind as u128), u128::MAX - 1);
    payload[16 * free..][..16].copy_from_slice(&mul(off, inverse).to_be_bytes());
    (columns, payload)
}
