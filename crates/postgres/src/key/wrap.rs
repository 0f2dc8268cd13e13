//! HPKE (RFC 9180) with X-Wing, HKDF-SHA256 and AES-256-GCM, with a pre-shared key. A log is kept for years, so a
//! quantum computer must not be able to open it later. The pre-shared key keeps out any party that was never admitted
//! to the network.

use std::convert::Infallible;

use adit_engine::Random;
use hpke::aead::AesGcm256;
use hpke::kdf::HkdfSha256;
use hpke::kem::XWing;
use hpke::rand_core::{TryCryptoRng, TryRng};
use hpke::{Deserializable, Kem, OpModeR, OpModeS, PskBundle, Serializable};
use zeroize::Zeroizing;

type PrivateKey = <XWing as Kem>::PrivateKey;
type PublicKey = <XWing as Kem>::PublicKey;
type Encapsulated = <XWing as Kem>::EncappedKey;

/// The identifier of the only pre-shared key.
const PSK_ID: &[u8] = b"adit-pg1 network";

/// Adapts the injected randomness to HPKE's interface.
struct HpkeRandom<'a>(&'a mut Random);

impl TryRng for HpkeRandom<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(self.0.bytes()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_le_bytes(self.0.bytes()))
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(out);
        Ok(())
    }
}

// The generator is ChaCha20 with a seed from the operating system.
impl TryCryptoRng for HpkeRandom<'_> {}

/// Returns the public key for a seed.
pub(super) fn public(seed: &[u8; 32]) -> Option<Vec<u8>> {
    let secret = PrivateKey::from_bytes(seed).ok()?;
    Some(XWing::sk_to_pk(&secret).to_bytes().to_vec())
}

/// Returns whether these bytes are a public key.
pub(super) fn is_public(bytes: &[u8]) -> bool {
    PublicKey::from_bytes(bytes).is_ok()
}

/// Wraps `secret` for the holder of the key `to`. Returns the encapsulated key and the sealed secret.
pub(crate) fn wrap(
    secret: &[u8],
    to: &[u8],
    psk: &[u8; 32],
    info: &[u8],
    random: &mut Random,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let to = PublicKey::from_bytes(to).ok()?;
    let mode = OpModeS::Psk(PskBundle::new(psk, PSK_ID).ok()?);
    let (encapsulated, sealed) = hpke::single_shot_seal_with_rng::<AesGcm256, HkdfSha256, XWing>(
        &mode,
        &to,
        info,
        secret,
        b"",
        &mut HpkeRandom(random),
    )
    .ok()?;
    Some((encapsulated.to_bytes().to_vec(), sealed))
}

/// Opens the result of [`wrap`].
pub(crate) fn unwrap(
    seed: &[u8; 32],
    psk: &[u8; 32],
    info: &[u8],
    enc: &[u8],
    sealed: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    let secret = PrivateKey::from_bytes(seed).ok()?;
    let encapsulated = Encapsulated::from_bytes(enc).ok()?;
    let mode = OpModeR::Psk(PskBundle::new(psk, PSK_ID).ok()?);
    hpke::single_shot_open::<AesGcm256, HkdfSha256, XWing>(
        &mode,
        &secret,
        &encapsulated,
        info,
        sealed,
        b"",
    )
    .ok()
    .map(Zeroizing::new)
}
