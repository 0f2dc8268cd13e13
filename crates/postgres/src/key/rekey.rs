//! Rekeys. Each gives a new key to exactly the current nodes of the network.
//!
//! ```text
//!   record:  "adit-pg2 rekey" | len tag | generation | made | highest node | members
//!            | (member, SHA-256(enc | sealed)) each, ascending
//!   wrap:    HPKE to the member's own key; pre-shared key from the network's key before; bound to the record and to the owner
//! ```
//!
//! The network's owner, the node that created it, signs the record. Another node accepts the key if it has pinned the owner's keys and the
//! key has the generation after its own. So neither the database nor another node can invent, repeat or revert a rekey, and a removed node
//! cannot open the new key.

use adit_crypto::CryptoError;
use adit_engine::{Random, UnixTime};

use super::bytes::{Decoder, Encoder};
use super::epoch::Wrap;
use super::{KeyRing, Members, NetworkKey, NodeKeys, NodePublic, Reader, SealPublic, wrap};
use crate::limits::PEERS;
use crate::{Generation, NodeId};

const KIND: &[u8] = b"adit-pg2 rekey";
const SIGNED: &[u8] = b"adit-pg2 signed rekey";
const WRAPPED: &[u8] = b"adit-pg2 rekey wrap";

/// The maximum number of members: the nodes of a network, and the auditor.
pub const MAX_MEMBERS: usize = PEERS + 1;

/// The fields of a record other than the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rekey {
    /// The network's tag.
    pub network: String,
    /// The generation of the new key.
    pub generation: Generation,
    /// The time of the rekey, by the owner's clock.
    pub made: UnixTime,
    /// The highest number that a node has ever had.
    pub highest: NodeId,
}

/// A parsed record. It is trusted only after [`accept`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RekeyRecord {
    /// The fields of the record.
    pub rekey: Rekey,
    /// The members and the hash of each one's wrap, ascending.
    pub members: Vec<(NodeId, [u8; 32])>,
}

/// The rows for the database, and the new key, which stays out of it.
#[derive(Debug)]
pub struct RekeyRows {
    /// Column `record`.
    pub record: Vec<u8>,
    /// Column `signature`.
    pub signature: [u8; 64],
    /// The rows of `rekey_wrap`, in ascending order of readers.
    pub wraps: Vec<Wrap>,
    /// The new key.
    pub key: NetworkKey,
}

/// A new key that can be accepted with [`KeyRing::take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The key.
    pub key: NetworkKey,
    /// The members that received it.
    pub members: Members,
    /// The time of the rekey, by the owner's clock.
    pub made: UnixTime,
}

/// The reason why no new key can be created.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RekeyError {
    /// There is no member, more than [`MAX_MEMBERS`], a duplicate, a number above the highest, or the owner is missing.
    #[error("a rekey is for 1 to 1024 nodes, each once, with the network's owner")]
    Members,
    /// A field has no canonical form, or the generation is not the next one.
    #[error("a number of the rekey is out of range")]
    Field,
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// The reason why a new key from the database is rejected.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RekeyRejection {
    /// The bytes are not a record.
    #[error("its record is not valid")]
    Malformed,
    /// The signature does not match, because another key signed the record or it was changed.
    #[error("the network's owner has not signed it")]
    Signature,
    /// The record belongs to another network.
    #[error("it is of another network")]
    Network,
    /// The generation is not the next one, but older, repeated, or further ahead.
    #[error("it is not the next one")]
    Order,
    /// The new key is not for this node.
    #[error("it was made without this node, which was removed from the network")]
    NotAMember,
    /// The wrap is missing, or its hash differs from the one in the record.
    #[error("the wrapped key is not the one that was signed")]
    Wrap,
    /// The wrap does not open, because it was made with another key or for another network.
    #[error("the wrapped key does not open with this node's keys")]
    Key,
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

impl Rekey {
    fn encode(&self) -> Option<Encoder> {
        let mut out = Encoder::new(KIND);
        out.tag(&self.network)?;
        out.i32(self.generation.0);
        out.u64(self.made.0);
        out.i32(self.highest.0);
        self.in_range().then_some(out)
    }

    fn decode(from: &mut Decoder<'_>) -> Option<Self> {
        from.expect(KIND)?;
        let rekey = Self {
            network: from.tag()?,
            generation: Generation(from.i32()?),
            made: UnixTime(from.u64()?),
            highest: NodeId(from.i32()?),
        };
        rekey.in_range().then_some(rekey)
    }

    fn in_range(&self) -> bool {
        self.generation > Generation::FIRST && NodeId::OWNER <= self.highest
    }

    fn fits(&self, members: &[(NodeId, [u8; 32])]) -> bool {
        (1..=MAX_MEMBERS).contains(&members.len())
            && members.is_sorted_by(|(a, _), (b, _)| a < b)
            && members.first().is_some_and(|(lowest, _)| lowest.0 >= 0)
            && members.last().is_some_and(|(last, _)| *last <= self.highest)
            && members.iter().any(|(member, _)| *member == NodeId::OWNER)
    }
}

impl RekeyRecord {
    /// Encodes the record in its signed form.
    ///
    /// # Errors
    /// Fails if a field is out of range.
    pub fn encode(&self) -> Result<Vec<u8>, RekeyError> {
        if !self.rekey.fits(&self.members) {
            return Err(RekeyError::Members);
        }
        let mut out = self.rekey.encode().ok_or(RekeyError::Field)?;
        out.i32(i32::try_from(self.members.len()).map_err(|_| RekeyError::Members)?);
        out.wraps(&self.members);
        Ok(out.done())
    }

    /// Parses a record strictly, so that encoding the result gives the same bytes.
    ///
    /// # Errors
    /// Returns [`RekeyRejection::Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, RekeyRejection> {
        Self::decode(Decoder::new(bytes)).ok_or(RekeyRejection::Malformed)
    }

    fn decode(mut from: Decoder<'_>) -> Option<Self> {
        let rekey = Rekey::decode(&mut from)?;
        let count = usize::try_from(from.i32()?).ok().filter(|count| *count <= MAX_MEMBERS)?;
        let members = from.wraps(count)?;
        from.end()?;
        rekey.fits(&members).then_some(Self { rekey, members })
    }
}

/// Returns the data to which a wrap is bound: the record, the owner's keys and the reader. The hashes of wraps cannot
/// be included.
fn wrap_info(rekey: &Rekey, owner: &NodePublic, reader: NodeId) -> Option<Vec<u8>> {
    let mut info = rekey.encode()?;
    info.fixed(WRAPPED);
    info.fixed(&owner.fingerprint().0);
    info.i32(reader.0);
    Some(info.done())
}

/// Creates the key after `current`, wrapped to the members and signed by the owner.
///
/// # Errors
/// Fails if the members or a field are invalid, or the library fails.
pub fn make(
    rekey: Rekey,
    keys: &NodeKeys,
    current: &NetworkKey,
    members: &[(NodeId, &SealPublic)],
    random: &mut Random,
) -> Result<RekeyRows, RekeyError> {
    let key = current.successor(random).filter(|key| key.generation() == rekey.generation);
    let key = key.ok_or(RekeyError::Field)?;
    let owner = keys.public(NodeId::OWNER).map_err(|_| CryptoError)?;
    let psk = current.rekey_key()?;
    let mut wraps = Vec::with_capacity(members.len().min(MAX_MEMBERS));
    for (member, public) in members {
        let info = wrap_info(&rekey, &owner, *member).ok_or(RekeyError::Field)?;
        let wrapped = wrap::wrap(&key.encode(), public.as_bytes(), &psk, &info, random);
        let (enc, sealed) = wrapped.ok_or(CryptoError)?;
        wraps.push(Wrap { reader: *member, enc, sealed });
    }
    wraps.sort_by_key(|wrap| wrap.reader);
    let members = wraps.iter().map(|wrap| (wrap.reader, wrap.hash())).collect();
    let record = RekeyRecord { rekey, members }.encode()?;
    let signature = keys.signing().sign(&[SIGNED, &record].concat())?;
    Ok(RekeyRows { record, signature, wraps, key })
}

/// Checks a record and opens the reader's wrap. The caller must have compared the keys of the `owner` with its pins.
///
/// # Errors
/// Each check has its own error.
pub fn accept(
    reader: Reader<'_>,
    ring: &KeyRing,
    network: &str,
    owner: &NodePublic,
    (record, signature): (&[u8], &[u8]),
    wrap: Option<&Wrap>,
) -> Result<Renewal, RekeyRejection> {
    if !owner.signed(&[SIGNED, record].concat(), signature) {
        return Err(RekeyRejection::Signature);
    }
    let RekeyRecord { rekey, members } = RekeyRecord::parse(record)?;
    if rekey.network != network {
        return Err(RekeyRejection::Network);
    }
    if Some(rekey.generation) != ring.generation().next() {
        return Err(RekeyRejection::Order);
    }
    let own = members.iter().find(|(member, _)| *member == reader.id());
    let (_, hash) = own.ok_or(RekeyRejection::NotAMember)?;
    let wrap = wrap.filter(|wrap| wrap.hash() == *hash).ok_or(RekeyRejection::Wrap)?;
    let info = wrap_info(&rekey, owner, reader.id()).ok_or(RekeyRejection::Malformed)?;
    let psk = ring.newest().rekey_key()?;
    let opened = wrap::unwrap(reader.seal.as_bytes(), &psk, &info, &wrap.enc, &wrap.sealed);
    let key = opened.as_deref().and_then(|bytes| NetworkKey::decode(bytes));
    let key = key.filter(|key| key.generation() == rekey.generation).ok_or(RekeyRejection::Key)?;
    let members = Members::new(rekey.highest, members.iter().map(|(member, _)| *member));
    Ok(Renewal { key, members, made: rekey.made })
}

#[cfg(test)]
mod tests {
    use adit_engine::Instant;

    use super::*;
    use crate::key::AuditorKey;

    type Edit<T> = fn(&mut T);

    fn random(seed: u8) -> Random {
        Random::new([seed; 32])
    }

    fn first() -> NetworkKey {
        NetworkKey::generate(&mut random(1))
    }

    fn keys(seed: u8) -> NodeKeys {
        NodeKeys::generate(&mut random(seed)).unwrap()
    }

    fn public(node: i32) -> NodePublic {
        keys(node as u8 + 10).public(NodeId(node)).unwrap()
    }

    fn auditor() -> AuditorKey {
        AuditorKey::generate(&first(), &mut random(9))
    }

    fn rekey(generation: i32) -> Rekey {
        Rekey {
            network: "t1".into(),
            generation: Generation(generation),
            made: UnixTime(1_795_000_000),
            highest: NodeId(4),
        }
    }

    /// Gives nodes 1 and 3 and the auditor the key after `current`; node 2 was removed.
    fn rekey_rows(current: &NetworkKey) -> RekeyRows {
        let (one, three, auditor) = (public(1), public(3), auditor().public().unwrap());
        let members =
            [(NodeId(1), &one.seal), (NodeId::AUDITOR, &auditor), (NodeId(3), &three.seal)];
        let next = current.generation().0 + 1;
        make(rekey(next), &keys(11), current, &members, &mut random(5)).unwrap()
    }

    /// The arguments with which node 3 accepts a rekey.
    struct AcceptArguments {
        ring: KeyRing,
        tag: &'static str,
        owner: NodePublic,
        me: i32,
        keys: NodeKeys,
        record: Vec<u8>,
        signature: Vec<u8>,
        wrap: Option<Wrap>,
    }

    impl AcceptArguments {
        fn new() -> Self {
            let RekeyRows { record, signature, wraps, .. } = rekey_rows(&first());
            let wrap = wraps.into_iter().find(|wrap| wrap.reader == NodeId(3));
            Self {
                ring: first().into(),
                tag: "t1",
                owner: public(1),
                me: 3,
                keys: keys(13),
                record,
                signature: signature.to_vec(),
                wrap,
            }
        }

        fn accept(&self) -> Result<Renewal, RekeyRejection> {
            let reader = self.keys.reader(NodeId(self.me));
            let signed = (&self.record[..], &self.signature[..]);
            accept(reader, &self.ring, self.tag, &self.owner, signed, self.wrap.as_ref())
        }

        /// Signs the changed record.
        fn sign(&mut self, record: &RekeyRecord) {
            self.record = record.encode().unwrap();
            let signed = [SIGNED, &self.record].concat();
            self.signature = keys(11).signing().sign(&signed).unwrap().to_vec();
        }
    }

    #[test]
    fn each_member_gets_the_new_key_and_the_auditor_too() {
        let rekeyed = rekey_rows(&first());
        let ring = KeyRing::from(first());
        let signed = (&rekeyed.record[..], &rekeyed.signature[..]);
        let (one, three, auditor) = (keys(11), keys(13), auditor());
        let readers = [auditor.reader(), one.reader(NodeId(1)), three.reader(NodeId(3))];
        for (reader, wrap) in readers.into_iter().zip(&rekeyed.wraps) {
            let renewal = accept(reader, &ring, "t1", &public(1), signed, Some(wrap)).unwrap();
            assert_eq!(renewal.key, rekeyed.key);
            assert_eq!(renewal.key.generation(), Generation(2));
            assert_ne!(renewal.key.as_bytes(), first().as_bytes());
        }
    }

    /// The attacker has the network's previous key, its own keys, and everything that the database ever contained.
    #[test]
    fn a_removed_member_cannot_open_the_new_generation() {
        let rekeyed = rekey_rows(&first());
        for wrap in &rekeyed.wraps {
            let mut attempt = AcceptArguments {
                me: 2,
                keys: keys(12),
                wrap: Some(wrap.clone()),
                ..AcceptArguments::new()
            };
            assert_eq!(attempt.accept(), Err(RekeyRejection::NotAMember));
            // It does not open as another node either, because the attacker does not have that node's keys.
            attempt.me = wrap.reader.0;
            assert_eq!(attempt.accept(), Err(RekeyRejection::Key));
        }
        let secret = rekeyed.key.as_bytes();
        let all = rekeyed.wraps.iter().flat_map(|wrap| [&wrap.enc, &wrap.sealed]);
        for bytes in all.chain([&rekeyed.record]) {
            assert!(!bytes.windows(8).any(|window| secret.windows(8).any(|part| part == window)));
        }
    }

    /// Tests each check of `accept`, with everything else correct.
    #[test]
    fn each_check_refuses_alone() {
        assert!(AcceptArguments::new().accept().is_ok());
        let cases: [(RekeyRejection, Edit<AcceptArguments>); 15] = [
            (RekeyRejection::Signature, |t| t.signature[0] ^= 1),
            (RekeyRejection::Signature, |t| t.signature.truncate(63)),
            // The database or another node signs with its own key.
            (RekeyRejection::Signature, |t| t.owner = keys(13).public(NodeId(1)).unwrap()),
            (RekeyRejection::Signature, |t| {
                t.signature = keys(11).signing().sign(&t.record).unwrap().to_vec();
            }),
            (RekeyRejection::Malformed, |t| {
                t.record.push(0);
                let signed = [SIGNED, &t.record[..]].concat();
                t.signature = keys(11).signing().sign(&signed).unwrap().to_vec();
            }),
            (RekeyRejection::Network, |t| t.tag = "t2"),
            (RekeyRejection::NotAMember, |t| t.me = 2),
            (RekeyRejection::Wrap, |t| t.wrap = None),
            (RekeyRejection::Wrap, |t| t.wrap.as_mut().unwrap().sealed[0] ^= 1),
            (RekeyRejection::Wrap, |t| t.wrap = Some(rekey_rows(&first()).wraps[1].clone())),
            (RekeyRejection::Key, |t| t.keys = keys(12)),
            (RekeyRejection::Key, |t| {
                t.ring = NetworkKey::generate(&mut random(7)).into();
            }),
            // The owner itself puts a wrap under another record.
            (RekeyRejection::Key, |t| {
                let mut record = RekeyRecord::parse(&t.record).unwrap();
                record.rekey.made.0 += 1;
                t.sign(&record);
            }),
            (RekeyRejection::Key, |t| {
                let mut record = RekeyRecord::parse(&t.record).unwrap();
                record.rekey.highest.0 += 1;
                t.sign(&record);
            }),
            (RekeyRejection::Order, |t| {
                let mut record = RekeyRecord::parse(&t.record).unwrap();
                record.rekey.generation.0 += 1;
                t.sign(&record);
            }),
        ];
        for (number, (refusal, alter)) in cases.into_iter().enumerate() {
            let mut attempt = AcceptArguments::new();
            alter(&mut attempt);
            assert_eq!(attempt.accept(), Err(refusal), "case {number}");
        }
    }

    #[test]
    fn a_rekey_shown_again_or_an_older_one_is_refused() {
        let mut attempt = AcceptArguments::new();
        let renewal = attempt.accept().unwrap();
        attempt.ring.take(Instant::default(), renewal.made, renewal);
        assert_eq!(attempt.accept(), Err(RekeyRejection::Order), "the same again");
        let second = rekey_rows(attempt.ring.newest());
        let reader = attempt.keys.reader(NodeId(3));
        let signed = (&second.record[..], &second.signature[..]);
        let accept =
            |ring: &KeyRing| accept(reader, ring, "t1", &public(1), signed, Some(&second.wraps[2]));
        let renewal = accept(&attempt.ring).unwrap();
        // A node that has only the first key must accept both.
        assert_eq!(accept(&KeyRing::from(first())), Err(RekeyRejection::Order));
        attempt.ring.take(Instant::default(), renewal.made, renewal);
        assert_eq!(accept(&attempt.ring), Err(RekeyRejection::Order));
        assert_eq!(attempt.accept(), Err(RekeyRejection::Order), "put back");
        assert_eq!(attempt.ring.generation(), Generation(3));
    }

    /// A current or removed member has the previous key and controls the database, and signs its own new key.
    #[test]
    fn no_other_node_signs_a_rekey() {
        for node in [2, 3] {
            let (own, own_keys) = (public(node), keys(node as u8 + 10));
            let (one, me) = (public(1), public(3));
            let mut members = vec![(NodeId(1), &one.seal), (NodeId(3), &me.seal)];
            if node == 2 {
                members.insert(1, (NodeId(2), &own.seal));
            }
            let rekeyed = make(rekey(2), &own_keys, &first(), &members, &mut random(5)).unwrap();
            let wrap = rekeyed.wraps.into_iter().find(|wrap| wrap.reader == NodeId(3));
            let (record, signature) = (rekeyed.record, rekeyed.signature.to_vec());
            let attempt = AcceptArguments { record, signature, wrap, ..AcceptArguments::new() };
            assert_eq!(attempt.accept(), Err(RekeyRejection::Signature));
        }
    }

    #[test]
    fn a_bit_of_the_record_changed_anywhere_is_refused() {
        for at in 0..AcceptArguments::new().record.len() {
            let mut attempt = AcceptArguments::new();
            attempt.record[at] ^= 1;
            assert_eq!(attempt.accept(), Err(RekeyRejection::Signature), "byte {at}");
        }
    }

    #[test]
    fn a_record_out_of_bounds_is_none() {
        type Alteration = Box<dyn Fn(&mut RekeyRecord)>;

        let good = RekeyRecord::parse(&rekey_rows(&first()).record).unwrap();
        let member = |id| (NodeId(id), [id as u8; 32]);
        let many: Vec<_> = (0..=MAX_MEMBERS as i32).map(member).collect();
        let altered: [(&str, Alteration); 10] = [
            ("tag", Box::new(|r| r.rekey.network = "T".into())),
            ("no tag", Box::new(|r| r.rekey.network.clear())),
            ("generation", Box::new(|r| r.rekey.generation = Generation::FIRST)),
            ("highest", Box::new(|r| r.rekey.highest = NodeId(0))),
            ("no member", Box::new(|r| r.members.clear())),
            (
                "too many",
                Box::new(move |r| (r.rekey.highest, r.members) = (NodeId(9999), many.clone())),
            ),
            ("twice", Box::new(move |r| r.members = vec![member(1), member(1)])),
            ("order", Box::new(move |r| r.members = vec![member(3), member(1)])),
            ("without the owner", Box::new(move |r| r.members = vec![member(3)])),
            ("above the highest", Box::new(move |r| r.members.push(member(5)))),
        ];
        assert_eq!(RekeyRecord::parse(&good.encode().unwrap()), Ok(good.clone()));
        for (what, alter) in altered {
            let mut record = good.clone();
            alter(&mut record);
            assert!(record.encode().is_err(), "{what}");
        }
        let bytes = good.encode().unwrap();
        for len in 0..bytes.len() {
            assert_eq!(RekeyRecord::parse(&bytes[..len]), Err(RekeyRejection::Malformed), "{len}");
        }
        // The count is higher than the number of entries.
        let mut endless = bytes;
        endless.truncate(KIND.len() + 3 + 16);
        endless.extend(i32::MAX.to_be_bytes());
        assert_eq!(RekeyRecord::parse(&endless), Err(RekeyRejection::Malformed));
    }

    #[test]
    fn a_rekey_that_cannot_be_is_not_made() {
        let one = public(1);
        let members = [(NodeId(1), &one.seal)];
        let (own, current) = (keys(11), first());
        let attempt = |rekey, members: &[(NodeId, &SealPublic)]| {
            make(rekey, &own, &current, members, &mut random(5)).map(drop)
        };
        assert_eq!(attempt(rekey(2), &members), Ok(()));
        assert_eq!(attempt(rekey(3), &members), Err(RekeyError::Field));
        assert_eq!(attempt(rekey(2), &[]), Err(RekeyError::Members));
        let without = [(NodeId(3), &one.seal)];
        assert_eq!(attempt(rekey(2), &without), Err(RekeyError::Members));
        let last = NetworkKey::new(Generation(i32::MAX), &[7; 32]);
        assert!(make(rekey(2), &own, &last, &members, &mut random(5)).is_err());
    }
}
