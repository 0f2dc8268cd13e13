//! Passes the network's key to a joining node. No invitation contains the key.
//!
//! ```text
//!   invite:  invitation key = HMAC(secret, ..)          token: secret, role
//!            database: SEAL(network key; invitation key, until)   for the nodes
//!   ask:     joiner ──► database: a new public key, HMAC(invitation key; it)
//!   answer:  any running node opens the first, checks the second, and wraps the network's key to the public key (HPKE, with
//!            a pre-shared key of the invitation's)
//! ```
//!
//! The private key exists only while the command `join` runs. So a used token opens nothing, whatever copies of the
//! database exist. The database has no invitation key and can neither send a request nor answer one.
//!
//! An invitation is bound to the network's key at the time of the invitation, so after a rekey no node answers it.
//! Otherwise a holder of the old key, such as a removed node, could forge an invitation and obtain the new key.
//!
//! An offline invitation is for a network without a running node. In this case the network's key is in the database,
//! sealed with the invitation's key, until the node has registered. A token together with a copy of the database from
//! that time opens it.

use std::fmt;

use adit_crypto::aead::CounterKey;
use adit_crypto::{CryptoError, Digest, HmacKey, hkdf_expand_sha256, hmac};
use adit_engine::{Random, UnixTime};
use zeroize::Zeroizing;

use super::JoinSecret;
use crate::key::{NetworkKey, SealPublic, SealSecret, wrap};

const TAG: usize = 16;
const SALT: usize = 16;

/// A key that, like the password, is derived from an invitation's secret. Only the holder of the token and the nodes
/// know it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinKey(Zeroizing<[u8; Self::LEN]>);

// Implemented by hand to keep keys out of the logs.
impl fmt::Debug for JoinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinKey(..)")
    }
}

/// A node's answer, in the columns `enc` and `sealed` of the table `invitation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The encapsulated key.
    pub enc: Vec<u8>,
    /// The sealed network key.
    pub sealed: Vec<u8>,
}

/// The reason why a node does not answer a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The invitation was created without the network's key, or for another network.
    #[error("no node created this invitation")]
    Invitation,
    /// The invitation is too old according to this node's clock.
    #[error("the invitation is too old")]
    Old,
    /// The request was made without the invitation's key.
    #[error("the request was made without the invitation")]
    Request,
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

impl JoinKey {
    const LEN: usize = 32;

    pub(super) fn of(secret: &JoinSecret) -> Result<Self, CryptoError> {
        let key = hmac(Digest::Sha256, b"adit-pg2 invitation", &[&*secret.0])?;
        Ok(Self(Zeroizing::new(key.as_bytes().try_into().map_err(|_| CryptoError)?)))
    }

    fn derive(&self, label: &[u8]) -> Result<Zeroizing<[u8; 32]>, CryptoError> {
        let mut out = Zeroizing::new([0; 32]);
        hkdf_expand_sha256(&*self.0, &[b"adit-pg2 ", label], &mut *out)?;
        Ok(out)
    }

    /// Seals this key and its expiry for the nodes, with the network's key.
    ///
    /// # Errors
    /// Fails if the library fails.
    pub fn for_nodes(
        &self,
        network: &NetworkKey,
        tag: &str,
        until: UnixTime,
        random: &mut Random,
    ) -> Result<Vec<u8>, CryptoError> {
        let salt: [u8; SALT] = random.bytes();
        let mut text = Zeroizing::new([&self.0[..], &until.0.to_be_bytes()].concat());
        let key = invitation_key(network, &salt)?;
        let seal = key.seal(0, tag.as_bytes(), &mut text).map_err(|_| CryptoError)?;
        Ok([&salt[..], &text, &seal].concat())
    }

    fn from_nodes(network: &NetworkKey, tag: &str, sealed: &[u8]) -> Option<(Self, UnixTime)> {
        let (salt, rest) = sealed.split_first_chunk::<SALT>()?;
        let (text, seal) = rest.split_last_chunk::<TAG>()?;
        let mut text = Zeroizing::new(text.to_vec());
        let key = invitation_key(network, salt).ok()?;
        key.open(0, tag.as_bytes(), seal, &mut text).ok()?;
        let (key, until) = text.split_first_chunk::<{ Self::LEN }>()?;
        let until = UnixTime(u64::from_be_bytes(until.try_into().ok()?));
        Some((Self(Zeroizing::new(*key)), until))
    }

    /// Seals the network's key for the joiner with this key, for a time when no node runs. Call it only once, because
    /// the derived key must not seal anything else.
    ///
    /// # Errors
    /// Fails if the library fails.
    pub fn offline(&self, network: &NetworkKey, tag: &str) -> Result<Vec<u8>, CryptoError> {
        let mut text = network.encode();
        let key = CounterKey::new(&*self.derive(b"offline")?).map_err(|_| CryptoError)?;
        let seal = key.seal(0, tag.as_bytes(), &mut text).map_err(|_| CryptoError)?;
        Ok([&text[..], &seal].concat())
    }

    /// Opens the result of [`Self::offline`].
    #[must_use]
    pub fn open_offline(&self, tag: &str, sealed: &[u8]) -> Option<NetworkKey> {
        let (text, seal) = sealed.split_last_chunk::<TAG>()?;
        let mut text = Zeroizing::new(text.to_vec());
        let key = CounterKey::new(&*self.derive(b"offline").ok()?).ok()?;
        key.open(0, tag.as_bytes(), seal, &mut text).ok()?;
        NetworkKey::decode(&text)
    }

    /// Returns the proof that a request comes from the invited node, and not from the database.
    ///
    /// # Errors
    /// Fails if the library fails.
    pub fn prove(&self, tag: &str, role: &str, key: &SealPublic) -> Result<[u8; 32], CryptoError> {
        let mac = HmacKey::new(Digest::Sha256, &*self.derive(b"request")?)?
            .sign(&[&request(tag, role, key)]);
        mac.as_bytes().try_into().map_err(|_| CryptoError)
    }

    /// Opens a node's answer with the private key for the request.
    #[must_use]
    pub fn open_admission(
        &self,
        tag: &str,
        role: &str,
        key: &SealSecret,
        answer: &Admission,
    ) -> Option<NetworkKey> {
        let info = request(tag, role, &key.public().ok()?);
        let psk = self.derive(b"answer").ok()?;
        let opened = wrap::unwrap(key.as_bytes(), &psk, &info, &answer.enc, &answer.sealed)?;
        NetworkKey::decode(&opened)
    }
}

/// Returns the encoding of a request, to which the answer is bound too.
fn request(tag: &str, role: &str, key: &SealPublic) -> Vec<u8> {
    let mut out = b"adit-pg2 request".to_vec();
    for part in [tag.as_bytes(), role.as_bytes(), key.as_bytes()] {
        out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

fn invitation_key(network: &NetworkKey, salt: &[u8; SALT]) -> Result<CounterKey, CryptoError> {
    let mut key = Zeroizing::new([0; CounterKey::LEN]);
    hkdf_expand_sha256(network.as_bytes(), &[b"adit-pg2 invitation ", salt], &mut *key)?;
    CounterKey::new(&key).map_err(|_| CryptoError)
}

/// A request as a node finds it in the database.
#[derive(Copy, Clone, Debug)]
pub struct Request<'a> {
    /// The invitation's role.
    pub role: &'a str,
    /// The invitation that [`JoinKey::for_nodes`] created.
    pub invitation: &'a [u8],
    /// The joiner's public key.
    pub key: &'a [u8],
    /// The proof from [`JoinKey::prove`].
    pub proof: &'a [u8],
}

/// Answers a request with the network's key.
///
/// # Errors
/// Fails if the invitation or the request is invalid.
pub fn admit(
    request: &Request<'_>,
    network: &NetworkKey,
    tag: &str,
    now: UnixTime,
    random: &mut Random,
) -> Result<Admission, AdmissionError> {
    let invitation = JoinKey::from_nodes(network, tag, request.invitation);
    let (key, until) = invitation.ok_or(AdmissionError::Invitation)?;
    if until < now {
        return Err(AdmissionError::Old);
    }
    let to = SealPublic::from_bytes(request.key).map_err(|_| AdmissionError::Request)?;
    let asked = self::request(tag, request.role, &to);
    let mac = HmacKey::new(Digest::Sha256, &*key.derive(b"request")?)?;
    if !mac.verify(&[&asked], request.proof) {
        return Err(AdmissionError::Request);
    }
    let psk = key.derive(b"answer")?;
    let wrapped = wrap::wrap(&network.encode(), to.as_bytes(), &psk, &asked, random);
    let (enc, sealed) = wrapped.ok_or(CryptoError)?;
    Ok(Admission { enc, sealed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Generation;

    const NOW: UnixTime = UnixTime(1_795_000_000);
    const ROLE: &str = "adit_t1_join_0a1b2c3d";

    struct Fixture {
        network: NetworkKey,
        secret: JoinSecret,
        invitation: Vec<u8>,
        joiner: SealSecret,
        random: Random,
    }

    fn scene() -> Fixture {
        let mut random = Random::new([3; 32]);
        // After a rekey, the generation is passed together with the key.
        let network = NetworkKey::generate(&mut random).successor(&mut random).unwrap();
        let secret = JoinSecret::generate(&mut random);
        let key = secret.key().unwrap();
        let invitation = key.for_nodes(&network, "t1", NOW, &mut random).unwrap();
        let joiner = SealSecret::generate(&mut random);
        Fixture { network, secret, invitation, joiner, random }
    }

    impl Fixture {
        fn admit(&mut self, proof: &[u8; 32], now: UnixTime) -> Result<Admission, AdmissionError> {
            let key = self.joiner.public().unwrap();
            let (role, invitation, key) = (ROLE, &self.invitation[..], key.as_bytes());
            let request = Request { role, invitation, key, proof };
            admit(&request, &self.network, "t1", now, &mut self.random)
        }

        fn proof(&self) -> [u8; 32] {
            let key = self.secret.key().unwrap();
            key.prove("t1", ROLE, &self.joiner.public().unwrap()).unwrap()
        }
    }

    #[test]
    fn the_invited_one_gets_the_networks_key_from_a_node() {
        let mut scene = scene();
        let proof = scene.proof();
        let answer = scene.admit(&proof, NOW).unwrap();
        let key = scene.secret.key().unwrap();
        let got = key.open_admission("t1", ROLE, &scene.joiner, &answer);
        assert_eq!(got, Some(scene.network));
    }

    /// Everything that the database ever contained, together with the token, does not open the network's key without
    /// the joiner's private key.
    #[test]
    fn a_used_token_and_a_copy_of_the_database_open_nothing() {
        let mut scene = scene();
        let proof = scene.proof();
        let answer = scene.admit(&proof, NOW).unwrap();
        let key = scene.secret.key().unwrap();
        let finder = SealSecret::generate(&mut scene.random);
        assert_eq!(key.open_admission("t1", ROLE, &finder, &answer), None);
        assert_eq!(key.open_offline("t1", &scene.invitation), None);
        assert_eq!(key.open_offline("t1", &answer.sealed), None);
        let made_up = NetworkKey::new(Generation::FIRST, &key.0);
        assert_eq!(JoinKey::from_nodes(&made_up, "t1", &scene.invitation), None);
        // The database does not contain the key itself either.
        let secret = scene.network.as_bytes();
        for bytes in [&scene.invitation, &answer.enc, &answer.sealed] {
            assert!(!bytes.windows(8).any(|window| secret.windows(8).any(|part| part == window)));
        }
    }

    #[test]
    fn a_node_answers_no_other_request() {
        let right = scene().proof();
        for (refusal, now, edit) in [
            (
                AdmissionError::Old,
                UnixTime(NOW.0 + 1),
                (|_, _| {}) as fn(&mut Fixture, &mut [u8; 32]),
            ),
            (AdmissionError::Request, NOW, |_, proof| proof[0] ^= 1),
            (AdmissionError::Request, NOW, |scene, _| {
                // The database sends a request with its own key.
                scene.joiner = SealSecret::generate(&mut scene.random);
            }),
            (AdmissionError::Invitation, NOW, |scene, _| scene.invitation[0] ^= 1),
            (AdmissionError::Invitation, NOW, |scene, _| scene.invitation[20] ^= 1),
            (AdmissionError::Invitation, NOW, |scene, _| scene.invitation.truncate(31)),
            (AdmissionError::Invitation, NOW, |scene, _| {
                scene.network = NetworkKey::generate(&mut scene.random);
            }),
        ] {
            let (mut scene, mut proof) = (scene(), right);
            edit(&mut scene, &mut proof);
            assert_eq!(scene.admit(&proof, now), Err(refusal));
        }
        // Requests for another role and another network are refused.
        let mut scene = scene();
        let key = scene.joiner.public().unwrap();
        for (role, tag) in [("adit_t1_join_other", "t1"), (ROLE, "t2")] {
            let proof = scene.secret.key().unwrap().prove(tag, role, &key).unwrap();
            assert!(scene.admit(&proof, NOW).is_err(), "{role} {tag}");
        }
    }

    #[test]
    fn an_answer_is_for_one_request() {
        let mut scene = scene();
        let proof = scene.proof();
        let answer = scene.admit(&proof, NOW).unwrap();
        let key = scene.secret.key().unwrap();
        assert_eq!(key.open_admission("t1", "adit_t1_join_other", &scene.joiner, &answer), None);
        assert_eq!(key.open_admission("t2", ROLE, &scene.joiner, &answer), None);
        let other = JoinSecret::generate(&mut scene.random).key().unwrap();
        assert_eq!(other.open_admission("t1", ROLE, &scene.joiner, &answer), None);
        let mut altered = answer.clone();
        altered.sealed[0] ^= 1;
        assert_eq!(key.open_admission("t1", ROLE, &scene.joiner, &altered), None);
    }

    #[test]
    fn an_offline_invitation_opens_with_its_token_alone() {
        let mut scene = scene();
        let key = scene.secret.key().unwrap();
        let sealed = key.offline(&scene.network, "t1").unwrap();
        assert_eq!(key.open_offline("t1", &sealed), Some(scene.network));
        assert_eq!(key.open_offline("t2", &sealed), None);
        let other = JoinSecret::generate(&mut scene.random).key().unwrap();
        assert_eq!(other.open_offline("t1", &sealed), None);
        for len in 0..sealed.len() {
            assert_eq!(key.open_offline("t1", &sealed[..len]), None);
        }
    }

    #[test]
    fn a_key_stands_in_no_debug() {
        assert_eq!(format!("{:?}", scene().secret.key().unwrap()), "JoinKey(..)");
    }
}
