use zeroize::Zeroizing;

use crate::{CryptoError, Digest, HmacKey};

/// Computes the pseudo-random function of TLS 1.0 and 1.1 (RFC 2246 section 5): P_MD5 xor P_SHA1.
///
/// The seed is the concatenation of `label` and the parts of `seed`.
///
/// # Errors
/// The library failed. The cause is a bug or the machine, never the peer.
pub fn tls1_prf(
    secret: &[u8],
    label: &[u8],
    seed: &[&[u8]],
    out: &mut [u8],
) -> Result<(), CryptoError> {
    let mut whole = Vec::with_capacity(seed.len().saturating_add(1));
    whole.push(label);
    whole.extend_from_slice(seed);

    // If the length is odd, both halves share the middle byte.
    let half = secret.len().div_ceil(2);
    let first = secret.get(..half).unwrap_or_default();
    let second = secret.get(secret.len().saturating_sub(half)..).unwrap_or_default();

    let mut other = Zeroizing::new(vec![0; out.len()]);
    expand(Digest::Md5, first, &whole, out)?;
    expand(Digest::Sha1, second, &whole, &mut other)?;
    for (byte, mask) in out.iter_mut().zip(other.iter()) {
        *byte ^= mask;
    }
    Ok(())
}

/// Computes P_hash: A(0) = seed, A(i) = HMAC(secret, A(i-1)); the output is HMAC(secret, A(i) |
/// seed) for each i.
fn expand(
    digest: Digest,
    secret: &[u8],
    seed: &[&[u8]],
    out: &mut [u8],
) -> Result<(), CryptoError> {
    let key = HmacKey::new(digest, secret)?;
    let mut a = key.sign(seed);
    for chunk in out.chunks_mut(digest.output_len()) {
        let mut parts: Vec<&[u8]> = vec![a.as_bytes()];
        parts.extend_from_slice(seed);
        let block = key.sign(&parts);
        for (to, from) in chunk.iter_mut().zip(block.as_bytes()) {
            *to = *from;
        }
        a = key.sign(&[a.as_bytes()]);
    }
    Ok(())
}
