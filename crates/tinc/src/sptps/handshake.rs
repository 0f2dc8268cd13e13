//! The handshake of both forms of a session: KEX, SIG and, in a rekey, ACK.

use adit_crypto::{Digest, HmacKey, sha256};
use adit_engine::Random;
use curve25519_dalek::edwards::CompressedEdwardsY;
use zeroize::Zeroizing;

use super::{CipherChoice, Error, Params, Role};
use crate::aead::{Cipher, KEY_LEN, Key};
use crate::keys::{EXPANDED_LEN, SIGNATURE_LEN, expand, public_bytes};

const VERSION: u8 = 0;
const NONCE_LEN: usize = 32;

/// Length of the random part of a marked nonce, bytes. The mark follows.
const UNMARKED: usize = 24;
const MARK_LEN: usize = NONCE_LEN - UNMARKED;

/// Length of a KEX message, bytes: version 1 | nonce 32 | ephemeral public key 32.
pub(super) const KEX_LEN: usize = 1 + NONCE_LEN + 32;

/// Length of a SIG message, bytes.
pub(super) const SIG_LEN: usize = SIGNATURE_LEN;

/// Length of the keys that a handshake derives, bytes: those of two directions. The second half of each is not used.
const KEY_BLOCK: usize = 2 * DIRECTION;
const DIRECTION: usize = 64;

/// This side's KEX message, and the secret of the ephemeral key in it.
pub(super) struct OwnKex {
    message: [u8; KEX_LEN],
    secret: Zeroizing<[u8; EXPANDED_LEN]>,
}

impl OwnKex {
    pub(super) fn generate(random: &mut Random) -> Self {
        Self::with_nonce(random.bytes(), random)
    }

    /// Generates one whose nonce is marked: this side offers AES-256-GCM.
    pub(super) fn generate_marked(random: &mut Random) -> Self {
        let unmarked: [u8; UNMARKED] = random.bytes();
        let mut nonce = [0; NONCE_LEN];
        for (to, from) in nonce.iter_mut().zip(unmarked.into_iter().chain(mark(&unmarked))) {
            *to = from;
        }
        Self::with_nonce(nonce, random)
    }

    fn with_nonce(nonce: [u8; NONCE_LEN], random: &mut Random) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        random.fill(&mut *seed);
        Self::new(nonce, &seed)
    }

    pub(super) fn new(nonce: [u8; NONCE_LEN], seed: &[u8; 32]) -> Self {
        let secret = expand(seed);
        let mut message = [VERSION; KEX_LEN];
        let (_, fields) = message.split_at_mut(1);
        for (to, from) in fields.iter_mut().zip(nonce.into_iter().chain(public_bytes(&secret))) {
            *to = from;
        }
        Self { message, secret }
    }

    /// Computes the shared secret with the ephemeral key in the peer's KEX.
    fn agree(&self, peer: &PeerKex) -> Result<Zeroizing<[u8; 32]>, Error> {
        let mut y = peer.ephemeral();
        // The sign of x does not matter for X25519, and tinc ignores it.
        if let Some(last) = y.last_mut() {
            *last &= 0x7f;
        }
        let point = CompressedEdwardsY(y).decompress().ok_or(Error::EphemeralKey)?;
        let (scalar, _) = self.secret.split_first_chunk().ok_or(Error::Library)?;
        let shared = Zeroizing::new(point.to_montgomery().mul_clamped(*scalar).to_bytes());
        if shared.iter().all(|byte| *byte == 0) {
            return Err(Error::EphemeralKey);
        }
        Ok(shared)
    }
}

/// The peer's KEX message.
pub(super) struct PeerKex([u8; KEX_LEN]);

impl PeerKex {
    fn parse(body: &[u8]) -> Result<Self, Error> {
        let message: [u8; KEX_LEN] = body.try_into().map_err(|_| Error::Length(body.len()))?;
        match message {
            [VERSION, ..] => Ok(Self(message)),
            [version, ..] => Err(Error::Version(version)),
        }
    }

    fn ephemeral(&self) -> [u8; 32] {
        self.0.last_chunk().copied().unwrap_or_default()
    }

    /// Returns whether the peer offers AES-256-GCM. An unmarked nonce passes for a marked one once in 2^64 sessions.
    fn is_marked(&self) -> bool {
        let nonce = nonce(&self.0);
        nonce.split_first_chunk().is_some_and(|(unmarked, rest)| *rest == mark(unmarked))
    }
}

/// Returns the mark of a nonce with which a side offers AES-256-GCM, like that of TLS 1.3 against a downgrade (RFC 8446, section 4.1.3). Both
/// sides sign the nonces, so unlike the offer itself, no node between them can remove the mark.
fn mark(unmarked: &[u8; UNMARKED]) -> [u8; MARK_LEN] {
    let digest = sha256(&[b"adit aes-256-gcm", unmarked]);
    digest.first_chunk().copied().unwrap_or_default()
}

/// Returns the nonce of a KEX message.
fn nonce(kex: &[u8; KEX_LEN]) -> &[u8] {
    kex.get(1..=NONCE_LEN).unwrap_or_default()
}

/// The keys that a handshake derived.
pub(super) struct Keys {
    pub(super) send: Key,
    pub(super) receive: Key,
}

/// What the session does after a handshake message, in this order.
pub(super) enum Step {
    /// Sends a message under the current sending key.
    Send(Vec<u8>),
    /// The peer may seal records under this key before [`Step::SwitchReceiving`].
    Expect(Key),
    /// Seals later records under the new key.
    SwitchSending(Key),
    /// The peer seals later records under the new key.
    SwitchReceiving,
}

/// The state of a session's handshakes.
pub(super) struct Handshake {
    params: Params,
    state: State,
    /// The first handshake, which needs no ACK, is over.
    established: bool,
    /// The cipher, once it is known. A rekey does not change it.
    cipher: Option<Cipher>,
    /// The peer's offer of AES-256-GCM has arrived.
    peer_offers: bool,
}

enum State {
    /// No handshake is in progress.
    Idle,
    /// This side's KEX was sent.
    AwaitKex(OwnKex),
    /// Both KEX were sent, and that of the initiator's SIG.
    AwaitSig(OwnKex, PeerKex),
    /// In a rekey: both sides know the new keys. This side's ACK was sent, unless there is a key: that of the records after it.
    AwaitAck(Option<Key>),
}

impl Handshake {
    /// Starts the first handshake. Returns its state, and the first message.
    pub(super) fn start(params: Params, own: OwnKex) -> (Self, Vec<u8>) {
        let message = own.message.to_vec();
        let cipher = match params.cipher {
            CipherChoice::Fixed(cipher) => Some(cipher),
            CipherChoice::Agree => None,
        };
        let state = State::AwaitKex(own);
        (Self { params, state, established: false, cipher, peer_offers: false }, message)
    }

    /// The peer's offer of AES-256-GCM has arrived.
    pub(super) fn peer_offers(&mut self) {
        self.peer_offers = true;
    }

    /// Returns the cipher, once it is known.
    pub(super) fn cipher(&self) -> Option<Cipher> {
        self.cipher
    }

    /// Starts a rekey. Returns its first message.
    pub(super) fn rekey(&mut self, own: OwnKex) -> Result<Vec<u8>, Error> {
        match self.state {
            State::Idle => {
                let message = own.message.to_vec();
                self.state = State::AwaitKex(own);
                Ok(message)
            }
            _ if self.established => Err(Error::HandshakeInProgress),
            _ => Err(Error::NotEstablished),
        }
    }

    #[cfg(test)]
    pub(super) fn role(&self) -> Role {
        self.params.role
    }

    /// Returns whether the first handshake is over.
    pub(super) fn is_established(&self) -> bool {
        self.established
    }

    /// Returns whether a handshake is in progress.
    pub(super) fn is_in_progress(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// Returns whether the peer may know the keys before this side does. Only a responder may: it has the initiator's SIG before it sends its own.
    pub(super) fn awaits_keys(&self) -> bool {
        let has_keys = matches!(self.state, State::Idle | State::AwaitAck(_));
        self.params.role == Role::Initiator && !has_keys
    }

    /// Returns whether this side has sent its ACK of a rekey and waits for the peer's.
    pub(super) fn has_sent_ack(&self) -> bool {
        matches!(self.state, State::AwaitAck(None))
    }

    /// Returns whether the peer opens records under the old and under the new keys around the ACKs of a rekey, and handshake records that any number of
    /// others has overtaken. tinc does neither. Nodes that agree on AES-256-GCM are of adit, and do.
    pub(super) fn is_peer_tolerant(&self) -> bool {
        self.params.cipher == CipherChoice::Agree && self.cipher == Some(Cipher::Aes256Gcm)
    }

    /// Handles a message. A message that is refused changes nothing. `fresh` generates this side's KEX for a rekey that the peer
    /// starts.
    pub(super) fn receive(
        &mut self,
        body: &[u8],
        fresh: impl FnOnce() -> OwnKex,
    ) -> Result<Vec<Step>, Error> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => {
                let peer = PeerKex::parse(body)?;
                let own = fresh();
                let mut steps = vec![Step::Send(own.message.to_vec())];
                steps.extend(self.kex_received(own, peer));
                Ok(steps)
            }
            State::AwaitKex(own) => match self.first_kex(body) {
                Ok(peer) => Ok(self.kex_received(own, peer).into_iter().collect()),
                Err(error) => {
                    self.state = State::AwaitKex(own);
                    Err(error)
                }
            },
            State::AwaitSig(own, peer) => match self.verify(&own, &peer, body) {
                Ok(keys) => Ok(self.finish(&own, &peer, keys)),
                Err(error) => {
                    self.state = State::AwaitSig(own, peer);
                    Err(error)
                }
            },
            State::AwaitAck(None) if body.is_empty() => Ok(vec![Step::SwitchReceiving]),
            State::AwaitAck(Some(send)) if body.is_empty() => {
                let ack = Step::Send(Vec::new());
                Ok(vec![ack, Step::SwitchSending(send), Step::SwitchReceiving])
            }
            state @ State::AwaitAck(_) => {
                self.state = state;
                Err(Error::UnexpectedHandshake)
            }
        }
    }

    /// Reads the peer's KEX. The first one settles the cipher.
    fn first_kex(&mut self, body: &[u8]) -> Result<PeerKex, Error> {
        let peer = PeerKex::parse(body)?;
        if self.cipher.is_none() {
            self.cipher = Some(match (peer.is_marked(), self.peer_offers) {
                (true, true) => Cipher::Aes256Gcm,
                (true, false) => return Err(Error::OfferRemoved),
                // tinc, or a node that does not offer it to this one. Another node may have added the offer.
                (false, _) => Cipher::ChaCha20Poly1305,
            });
        }
        Ok(peer)
    }

    /// The initiator signs as soon as it knows both KEX, the responder only when it has verified the initiator.
    fn kex_received(&mut self, own: OwnKex, peer: PeerKex) -> Option<Step> {
        let sig = (self.params.role == Role::Initiator).then(|| self.sign(&own, &peer));
        self.state = State::AwaitSig(own, peer);
        sig
    }

    fn sign(&self, own: &OwnKex, peer: &PeerKex) -> Step {
        let cipher = self.cipher.unwrap_or_default();
        let message = self.transcript(cipher, self.params.role, &own.message, &peer.0);
        Step::Send(self.params.key.sign(&message).to_vec())
    }

    fn verify(&self, own: &OwnKex, peer: &PeerKex, signature: &[u8]) -> Result<Keys, Error> {
        if signature.len() != SIG_LEN {
            return Err(Error::Length(signature.len()));
        }
        let verifies = |cipher: Cipher| {
            let message = self.transcript(cipher, self.params.role.other(), &peer.0, &own.message);
            self.params.peer.verify(&message, signature)
        };
        let cipher = self.cipher.unwrap_or_default();
        if verifies(cipher) {
            return self.derive(cipher, own, peer);
        }
        let other = match cipher {
            Cipher::ChaCha20Poly1305 => Cipher::Aes256Gcm,
            Cipher::Aes256Gcm => Cipher::ChaCha20Poly1305,
        };
        Err(if verifies(other) {
            Error::OtherCipher { own: cipher, peer: other }
        } else {
            Error::Signature
        })
    }

    /// Both sides know the keys once the initiator has the responder's SIG. A tolerant initiator gets the responder's ACK when its own has shown that,
    /// so the responder seals nothing under a key that the initiator does not know. Another one waits for the ACK, so it follows the SIG at once.
    fn finish(&mut self, own: &OwnKex, peer: &PeerKex, keys: Keys) -> Vec<Step> {
        let Keys { send, receive } = keys;
        let is_responder = self.params.role == Role::Responder;
        let mut steps = Vec::new();
        if is_responder {
            steps.push(self.sign(own, peer));
        }
        steps.push(Step::Expect(receive));
        if !self.established {
            steps.extend([Step::SwitchSending(send), Step::SwitchReceiving]);
            self.established = true;
        } else if is_responder && self.is_peer_tolerant() {
            self.state = State::AwaitAck(Some(send));
        } else {
            steps.extend([Step::Send(Vec::new()), Step::SwitchSending(send)]);
            self.state = State::AwaitAck(None);
        }
        steps
    }

    /// Returns the signed message: role 1 | the signer's KEX | the other's KEX | label.
    fn transcript(
        &self,
        cipher: Cipher,
        signer: Role,
        kex: &[u8; KEX_LEN],
        other: &[u8; KEX_LEN],
    ) -> Vec<u8> {
        let role = [u8::from(signer == Role::Initiator)];
        [&role[..], kex, other, &self.params.label, label_suffix(cipher)].concat()
    }

    fn derive(&self, cipher: Cipher, own: &OwnKex, peer: &PeerKex) -> Result<Keys, Error> {
        let secret = own.agree(peer)?;
        let (initiator, responder) = match self.params.role {
            Role::Initiator => (&own.message, &peer.0),
            Role::Responder => (&peer.0, &own.message),
        };
        let (label, suffix) = (&self.params.label[..], label_suffix(cipher));
        let (one, other) = (nonce(initiator), nonce(responder));
        let seed = [&b"key expansion"[..], one, other, label, suffix].concat();
        let block = key_block(&*secret, &seed)?;
        let (to_initiator, to_responder) =
            block.split_at_checked(DIRECTION).ok_or(Error::Library)?;
        let key = |half: &[u8]| Key::new(cipher, *half.first_chunk::<KEY_LEN>()?).ok();
        let to_initiator = key(to_initiator).ok_or(Error::Library)?;
        let to_responder = key(to_responder).ok_or(Error::Library)?;
        Ok(match self.params.role {
            Role::Initiator => Keys { send: to_responder, receive: to_initiator },
            Role::Responder => Keys { send: to_initiator, receive: to_responder },
        })
    }
}

// Written by hand so that ephemeral secrets never reach a log.
impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            State::Idle => "idle",
            State::AwaitKex(_) => "awaits KEX",
            State::AwaitSig(..) => "awaits SIG",
            State::AwaitAck(_) => "awaits ACK",
        };
        write!(f, "Handshake({state})")
    }
}

/// Returns what follows the label: one byte each for the key exchange and the cipher, unless both are tinc's.
const fn label_suffix(cipher: Cipher) -> &'static [u8] {
    match cipher {
        Cipher::ChaCha20Poly1305 => &[],
        Cipher::Aes256Gcm => &[0, 1],
    }
}

/// The PRF of SPTPS: each step authenticates the previous one with the seed, and each block of output that step with the seed.
pub(super) fn key_block(secret: &[u8], seed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
    let hmac = HmacKey::new(Digest::Sha512, secret).map_err(|_| Error::Library)?;
    let mut step = Zeroizing::new(vec![0; Digest::Sha512.output_len()]);
    let mut out = Zeroizing::new(Vec::with_capacity(KEY_BLOCK));
    while out.len() < KEY_BLOCK {
        step = Zeroizing::new(hmac.sign(&[&step, seed]).as_bytes().to_vec());
        out.extend_from_slice(hmac.sign(&[&step, seed]).as_bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hex;

    #[test]
    fn the_vectors_of_the_specification() {
        let alice = OwnKex::new([0x11; 32], &[0x21; 32]);
        let bob = OwnKex::new([0x12; 32], &[0x22; 32]);
        let secret = alice.agree(&PeerKex(bob.message)).unwrap();
        assert_eq!(
            secret.as_slice(),
            hex("86ef31b15ec7c02ac0398c610ddfac64def21907ed01d141b381683bf8d3d513")
        );
        assert_eq!(bob.agree(&PeerKex(alice.message)).unwrap(), secret);
        let label = super::super::meta_label("alice", "bob");
        let seed = [&b"key expansion"[..], &[0x11; 32], &[0x12; 32], &label].concat();
        assert_eq!(
            key_block(&*secret, &seed).unwrap().as_slice(),
            hex("e281db76eeaf728e7fbf53f0780a86cebf7cd05b89dd821a0dab2363571274e6
                 e03ac8a01e64da3cf2abd5eb09a2f021fefd95a6637e801b88094f6436b70881
                 da9c5fc84d2fbaf41d7d7c81ea59b9803321b5275a228cdc57235195f32f9e21
                 c37d63996ecffafd8c2dacad09c246a007e1045f158cbb3f7f9ecefaeff18c5e")
        );
    }

    /// The mark is 8 bytes of SHA-256 over a text and the first 24 bytes of the nonce.
    #[test]
    fn a_nonce_is_marked() {
        let mut random = Random::new([7; 32]);
        let marked = PeerKex(OwnKex::generate_marked(&mut random).message);
        assert!(marked.is_marked());
        assert!(!PeerKex(OwnKex::generate(&mut random).message).is_marked());
        for at in 1..=NONCE_LEN {
            let mut other = marked.0;
            other[at] ^= 1;
            assert!(!PeerKex(other).is_marked(), "byte {at}");
        }
        assert_eq!(mark(&[0; 24]).as_slice(), hex("1533cb3bdfd73f10"));
    }

    fn peer_with_y(y: [u8; 32]) -> PeerKex {
        let mut message = [0; KEX_LEN];
        message[33..].copy_from_slice(&y);
        PeerKex(message)
    }

    /// Specification 3.3: an all-zero shared secret is refused.
    #[test]
    fn an_ephemeral_key_that_fixes_the_secret_is_refused() {
        let own = OwnKex::new([0x11; 32], &[0x21; 32]);
        let with_y = |y: u8| {
            let mut bytes = [0; 32];
            bytes[0] = y;
            peer_with_y(bytes)
        };
        // y = 1 is the neutral element, and y = -1 the point of order two.
        let minus_one: [u8; 32] =
            hex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")
                .try_into()
                .unwrap();
        for peer in [with_y(0), with_y(1), peer_with_y(minus_one)] {
            assert_eq!(own.agree(&peer), Err(Error::EphemeralKey));
        }
        assert_eq!(own.agree(&with_y(2)), Err(Error::EphemeralKey), "not on the curve");
    }

    /// Specification 3.3: bit 255 of the peer's point is masked.
    #[test]
    fn the_sign_of_an_ephemeral_key_does_not_matter() {
        let own = OwnKex::new([0x11; 32], &[0x21; 32]);
        let peer = OwnKex::new([0x12; 32], &[0x22; 32]);
        let mut other = peer.message;
        other[KEX_LEN - 1] ^= 0x80;
        assert_eq!(own.agree(&PeerKex(other)), own.agree(&PeerKex(peer.message)));
    }
}
