//! A signed change to the roster.
//!
//! ```text
//! kind 2 | algorithm 1 | public key 32 | number 4 | previous 32 | time 8 | count 1, heads 32 each | action | signature 64
//! ```
//!
//! The signature is over `adit-mesh/1`, the kind, the mesh id, and everything from the algorithm to the action. The hash of a change covers
//! the same bytes, so two signatures of one change do not make two changes.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeSet;
use std::sync::Arc;

use adit_crypto::sha256;
use adit_crypto::sign::{PUBLIC_LEN, SIGNATURE_LEN, SigningKey, verify};
use adit_engine::UnixTime;
use ipnet::{IpNet, Ipv4Net};

use super::node::{
    Label, NodeInfo, check_groups, check_subnets, put_groups, put_subnets, read_groups,
    read_subnets, read_time,
};
use super::object::{
    CHANGE, DOMAIN, ObjectError, bits, flag, ipv4_net, open, option, put_bits, put_count,
    put_ipv4_net, put_option, sorted,
};
use crate::session::{KeyHash, MeshId};
use crate::wire::{DecodeError, Decoder};

/// The number of other chains' heads that a change can name.
pub const MAX_HEADS: usize = 64;

/// The signature algorithm Ed25519.
const ED25519: u8 = 1;

/// The SHA-256 that identifies a change.
pub type ChangeHash = [u8; 32];

/// The content of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The number of the change in its signer's chain, from 1.
    pub number: u32,
    /// The hash of the signer's previous change; for number 1, the hash of the genesis.
    pub previous: ChangeHash,
    /// The time of signing, by the signer's clock.
    pub time: UnixTime,
    /// The heads of other chains that the signer has seen since its previous change, at most [`MAX_HEADS`]. Each hash determines a chain
    /// and a number.
    pub heads: BTreeSet<ChangeHash>,
    /// What changes.
    pub action: Action,
}

/// What a change does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Makes a node a member.
    Admit {
        /// The hash of the node's key.
        key: KeyHash,
        /// Its description.
        node: NodeInfo,
    },
    /// Ends a key's membership and rights for good.
    Revoke(Revocation),
    /// Makes the text with this SHA-256 the mesh's policy.
    SetPolicy([u8; 32]),
    /// Gives a key a right.
    Grant {
        /// The hash of the key.
        key: KeyHash,
        /// The right, in place of an earlier one of the same kind.
        right: Right,
    },
    /// Replaces the description of a node.
    SetNames {
        /// The hash of the node's key.
        key: KeyHash,
        /// The new description.
        node: NodeInfo,
    },
    /// Sets the number of admins who must approve important changes.
    SetThreshold(u8),
    /// Replaces a key with another, which takes over its membership and rights.
    Rotate(Rotation),
    /// Approves the change with this hash.
    Approve(ChangeHash),
}

/// The revocation of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The hash of the key.
    pub key: KeyHash,
    /// The last change in the key's chain that counts. `None`: no change counts.
    pub last: Option<ChangeHash>,
    /// Whether the nodes that the key admitted are removed as well.
    pub with_invited: bool,
}

/// The replacement of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The hash of the key that ends.
    pub old: KeyHash,
    /// The hash of the key that takes its place.
    pub new: KeyHash,
    /// The last change in the old key's chain that counts. `None`: no change counts.
    pub last: Option<ChangeHash>,
}

/// What a key may sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// Everything.
    Admin,
    /// The right to admit nodes, within limits.
    Inviter(Inviter),
}

/// The limits of an inviter. Anything not listed is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inviter {
    /// The groups that its nodes may be in, at most [`super::MAX_GROUPS`].
    pub groups: BTreeSet<Label>,
    /// The range of its nodes' IPv4 addresses.
    pub range: Option<Ipv4Net>,
    /// The networks within which its nodes may have subnets, at most [`super::MAX_SUBNETS`].
    pub subnets: BTreeSet<IpNet>,
    /// Whether its nodes may be relays.
    pub relay: bool,
    /// Whether its nodes may be gateways.
    pub gateway: bool,
    /// Whether it may admit OpenVPN apps, as leaves of its own node.
    pub leaves: bool,
    /// The number of nodes that it may admit.
    pub count: u32,
    /// The time until which it may admit nodes.
    pub until: Option<UnixTime>,
}

/// A change whose signature has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Shared between copies, because a node copies its set of changes to try one out.
    unverified: Arc<UnverifiedChange>,
    signer: KeyHash,
    hash: ChangeHash,
}

/// A well-formed change whose signature has not been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnverifiedChange {
    /// The signer's public key.
    pub public: [u8; PUBLIC_LEN],
    /// The content.
    pub body: Body,
    /// The signature.
    pub signature: [u8; SIGNATURE_LEN],
}

impl Change {
    /// Signs a change.
    ///
    /// # Errors
    /// Fails if a field is outside its bounds, or if the cryptographic library fails.
    pub fn sign(mesh: &MeshId, key: &SigningKey, body: Body) -> Result<Self, ObjectError> {
        body.check()?;
        let public = key.public();
        let message = message(mesh, &public, &body);
        let signature = key.sign(&message)?;
        let unverified = Arc::new(UnverifiedChange { public, body, signature });
        Ok(Self { unverified, signer: sha256(&[&public]), hash: sha256(&[&message]) })
    }

    /// Decodes a change and verifies its signature.
    ///
    /// # Errors
    /// Fails if the bytes are not a change, or if its signer did not sign it for this mesh.
    pub fn decode(mesh: &MeshId, bytes: &[u8]) -> Result<Self, ObjectError> {
        UnverifiedChange::decode(bytes)?.verify(mesh)
    }

    /// Encodes the change.
    pub fn encode(&self) -> Vec<u8> {
        self.unverified.encode()
    }

    /// Returns the content.
    pub fn body(&self) -> &Body {
        &self.unverified.body
    }

    /// Returns what the change does.
    pub fn action(&self) -> &Action {
        &self.unverified.body.action
    }

    /// Returns the hash of the signer's key.
    pub fn signer(&self) -> KeyHash {
        self.signer
    }

    /// Returns the hash that identifies the change.
    pub fn hash(&self) -> ChangeHash {
        self.hash
    }
}

impl UnverifiedChange {
    /// Decodes a change. Only the exact output of [`Self::encode`] is accepted.
    ///
    /// # Errors
    /// Fails with the first deviation from the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, ObjectError> {
        let mut from = open(bytes, CHANGE)?;
        let algorithm = from.u8()?;
        if algorithm != ED25519 {
            return Err(ObjectError::Algorithm(algorithm));
        }
        let public = from.array()?;
        let body = Body::read(&mut from)?;
        let signature = from.array()?;
        from.end()?;
        body.check()?;
        Ok(Self { public, body, signature })
    }

    /// Encodes the change.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![CHANGE];
        put_signed(&self.public, &self.body, &mut out);
        out.extend(self.signature);
        debug_assert!(out.len() <= super::MAX_OBJECT, "a change of {} bytes", out.len());
        out
    }

    /// Verifies the signature.
    ///
    /// # Errors
    /// Fails if the signer did not sign the change for this mesh.
    pub fn verify(self, mesh: &MeshId) -> Result<Change, ObjectError> {
        let message = message(mesh, &self.public, &self.body);
        if !verify(&self.public, &message, &self.signature) {
            return Err(ObjectError::Signature);
        }
        let (signer, hash) = (sha256(&[&self.public]), sha256(&[&message]));
        Ok(Change { unverified: Arc::new(self), signer, hash })
    }
}

/// Returns the bytes that are signed and hashed.
fn message(mesh: &MeshId, public: &[u8; PUBLIC_LEN], body: &Body) -> Vec<u8> {
    let mut out = DOMAIN.to_vec();
    out.push(CHANGE);
    out.extend(mesh);
    put_signed(public, body, &mut out);
    out
}

fn put_signed(public: &[u8; PUBLIC_LEN], body: &Body, out: &mut Vec<u8>) {
    out.push(ED25519);
    out.extend(public);
    body.put(out);
}

impl Body {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.number.to_be_bytes());
        out.extend(self.previous);
        out.extend(self.time.0.to_be_bytes());
        put_count(self.heads.len(), out);
        self.heads.iter().for_each(|head| out.extend(head));
        self.action.put(out);
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, ObjectError> {
        Ok(Self {
            number: from.u32()?,
            previous: from.array()?,
            time: read_time(from)?,
            heads: sorted(from, MAX_HEADS, "heads", |from| Ok(from.array()?))?,
            action: Action::read(from)?,
        })
    }

    fn check(&self) -> Result<(), ObjectError> {
        if self.number == 0 {
            return Err(ObjectError::Range(0));
        }
        if self.heads.len() > MAX_HEADS {
            return Err(ObjectError::TooMany(self.heads.len(), "heads"));
        }
        match &self.action {
            Action::Admit { node, .. } | Action::SetNames { node, .. } => node.check(),
            Action::Grant { right: Right::Inviter(limits), .. } => {
                check_groups(&limits.groups)?;
                check_subnets(&limits.subnets)?;
                let canonical = limits.range.is_none_or(|range| range.trunc() == range);
                if canonical { Ok(()) } else { Err(ObjectError::Network) }
            }
            Action::SetThreshold(0) => Err(ObjectError::Range(0)),
            _ => Ok(()),
        }
    }
}

impl Action {
    fn put(&self, out: &mut Vec<u8>) {
        let put_hash = |hash: ChangeHash, out: &mut Vec<u8>| out.extend(hash);
        match self {
            Self::Admit { key, node } => {
                out.push(1);
                out.extend(key);
                node.put(out);
            }
            Self::Revoke(Revocation { key, last, with_invited }) => {
                out.push(2);
                out.extend(key);
                put_option(*last, out, put_hash);
                out.push((*with_invited).into());
            }
            Self::SetPolicy(hash) => {
                out.push(3);
                out.extend(hash);
            }
            Self::Grant { key, right } => {
                out.push(4);
                out.extend(key);
                right.put(out);
            }
            Self::SetNames { key, node } => {
                out.push(5);
                out.extend(key);
                node.put(out);
            }
            Self::SetThreshold(threshold) => out.extend([6, *threshold]),
            Self::Rotate(Rotation { old, new, last }) => {
                out.push(7);
                out.extend(old);
                out.extend(new);
                put_option(*last, out, put_hash);
            }
            Self::Approve(hash) => {
                out.push(8);
                out.extend(hash);
            }
        }
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, ObjectError> {
        Ok(match from.u8()? {
            1 => Self::Admit { key: from.array()?, node: NodeInfo::read(from)? },
            2 => Self::Revoke(Revocation {
                key: from.array()?,
                last: option(from, |from| Ok(from.array()?))?,
                with_invited: flag(from)?,
            }),
            3 => Self::SetPolicy(from.array()?),
            4 => Self::Grant { key: from.array()?, right: Right::read(from)? },
            5 => Self::SetNames { key: from.array()?, node: NodeInfo::read(from)? },
            6 => Self::SetThreshold(from.u8()?),
            7 => Self::Rotate(Rotation {
                old: from.array()?,
                new: from.array()?,
                last: option(from, |from| Ok(from.array()?))?,
            }),
            8 => Self::Approve(from.array()?),
            kind => return Err(DecodeError::Kind(kind).into()),
        })
    }
}

impl Right {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Admin => out.push(1),
            Self::Inviter(limits) => {
                out.push(2);
                put_groups(&limits.groups, out);
                put_option(limits.range, out, put_ipv4_net);
                put_subnets(&limits.subnets, out);
                out.push(limits.relay.into());
                put_bits([limits.gateway, limits.leaves], out);
                out.extend(limits.count.to_be_bytes());
                put_option(limits.until, out, |time, out| out.extend(time.0.to_be_bytes()));
            }
        }
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self, ObjectError> {
        match from.u8()? {
            1 => Ok(Self::Admin),
            2 => {
                let groups = read_groups(from)?;
                let range = option(from, ipv4_net)?;
                let subnets = read_subnets(from)?;
                let relay = flag(from)?;
                let [gateway, leaves] = bits(from)?;
                let count = from.u32()?;
                let until = option(from, read_time)?;
                let limits =
                    Inviter { groups, range, subnets, relay, gateway, leaves, count, until };
                Ok(Self::Inviter(limits))
            }
            kind => Err(DecodeError::Kind(kind).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::{MAX_GROUPS, MAX_LABEL, MAX_OBJECT, MAX_SUBNETS};

    const MESH: MeshId = [7; 16];

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32]).unwrap()
    }

    fn sign(action: Action) -> Result<Change, ObjectError> {
        let body = Body {
            number: 3,
            previous: [1; 32],
            time: UnixTime(1_800_000_000),
            heads: BTreeSet::from([[2; 32], [3; 32]]),
            action,
        };
        Change::sign(&MESH, &key(1), body)
    }

    fn groups(count: usize, len: usize) -> BTreeSet<Label> {
        (0..count).map(|n| Label::new(&format!("{n:0len$}")).unwrap()).collect()
    }

    fn subnets(count: usize) -> BTreeSet<IpNet> {
        (0..count).map(|n| format!("fd00:{n:x}::/32").parse().unwrap()).collect()
    }

    fn largest_node() -> NodeInfo {
        NodeInfo {
            name: Label::new(&"a".repeat(MAX_LABEL)).unwrap(),
            ipv4: Some([100, 87, 0, 1].into()),
            subnets: subnets(MAX_SUBNETS),
            groups: groups(MAX_GROUPS, MAX_LABEL),
            relay: true,
            gateway: true,
            openvpn: true,
            leaf_of: None,
            not_after: Some(UnixTime(5)),
        }
    }

    fn inviter() -> Inviter {
        Inviter {
            groups: groups(2, 4),
            range: Some("100.87.1.0/24".parse().unwrap()),
            subnets: ["10.0.0.0/8".parse().unwrap()].into(),
            relay: true,
            gateway: false,
            leaves: true,
            count: 5,
            until: Some(UnixTime(9)),
        }
    }

    fn leaf() -> NodeInfo {
        let named = NodeInfo::named(Label::new("phone").unwrap());
        NodeInfo { ipv4: Some([100, 87, 0, 7].into()), leaf_of: Some([9; 32]), ..named }
    }

    fn actions() -> Vec<Action> {
        let node = NodeInfo::named(Label::new("web1").unwrap());
        let last = Some([6; 32]);
        vec![
            Action::Admit { key: [4; 32], node: node.clone() },
            Action::Admit { key: [4; 32], node: largest_node() },
            Action::Admit { key: [4; 32], node: leaf() },
            Action::Revoke(Revocation { key: [4; 32], last: None, with_invited: false }),
            Action::Revoke(Revocation { key: [4; 32], last, with_invited: true }),
            Action::SetPolicy([5; 32]),
            Action::Grant { key: [4; 32], right: Right::Admin },
            Action::Grant { key: [4; 32], right: Right::Inviter(inviter()) },
            Action::SetNames { key: [4; 32], node },
            Action::SetThreshold(2),
            Action::Rotate(Rotation { old: [4; 32], new: [5; 32], last }),
            Action::Approve([8; 32]),
        ]
    }

    #[test]
    fn changes_are_decoded_as_they_were_signed_and_from_nothing_else() {
        for action in actions() {
            let change = sign(action).unwrap();
            let mut bytes = change.encode();
            assert_eq!(Change::decode(&MESH, &bytes), Ok(change));
            for len in 0..bytes.len() {
                let cut = UnverifiedChange::decode(&bytes[..len]);
                assert_eq!(cut, Err(DecodeError::Truncated.into()), "{len}");
            }
            bytes.push(0);
            let longer = UnverifiedChange::decode(&bytes);
            assert_eq!(longer, Err(DecodeError::TrailingBytes(1).into()));
        }
    }

    #[test]
    fn what_decodes_after_an_alteration_encodes_to_the_same_bytes_and_is_not_signed() {
        for action in actions() {
            let bytes = sign(action).unwrap().encode();
            for at in 0..bytes.len() {
                for bit in [1, 2, 0x80] {
                    let mut altered = bytes.clone();
                    altered[at] ^= bit;
                    if let Ok(change) = UnverifiedChange::decode(&altered) {
                        assert_eq!(change.encode(), altered, "byte {at}");
                        assert_eq!(change.verify(&MESH), Err(ObjectError::Signature), "byte {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_change_is_for_one_mesh() {
        let bytes = sign(Action::SetThreshold(2)).unwrap().encode();
        assert_eq!(Change::decode(&[8; 16], &bytes), Err(ObjectError::Signature));
    }

    /// A signer can make several signatures of the same bytes.
    #[test]
    fn the_hash_does_not_depend_on_the_signature() {
        let change = sign(Action::SetThreshold(2)).unwrap();
        let mut other = change.clone();
        Arc::make_mut(&mut other.unverified).signature = [0; 64];
        let message = message(&MESH, &other.unverified.public, other.body());
        assert_eq!(sha256(&[&message]), change.hash());
        assert_eq!(change.signer(), key(1).public_hash());
    }

    #[test]
    fn the_largest_change_is_within_the_bound() {
        let body = Body {
            number: u32::MAX,
            previous: [1; 32],
            time: UnixTime(u64::MAX),
            heads: (0..MAX_HEADS).map(|n| [n as u8; 32]).collect(),
            action: Action::Admit { key: [4; 32], node: largest_node() },
        };
        let bytes = Change::sign(&MESH, &key(1), body).unwrap().encode();
        assert_eq!(bytes.len(), 3906);
        assert!(Change::decode(&MESH, &bytes).is_ok());
        let long = [&bytes[..], &[0; MAX_OBJECT]].concat();
        let refused = UnverifiedChange::decode(&long[..MAX_OBJECT + 1]);
        assert_eq!(refused, Err(DecodeError::TooLong(MAX_OBJECT + 1).into()));
    }

    #[test]
    fn each_bound_refuses_alone() {
        let admit = |edit: &dyn Fn(&mut NodeInfo)| {
            let mut node = largest_node();
            edit(&mut node);
            sign(Action::Admit { key: [4; 32], node })
        };
        let grant = |edit: &dyn Fn(&mut Inviter)| {
            let mut limits = inviter();
            edit(&mut limits);
            sign(Action::Grant { key: [4; 32], right: Right::Inviter(limits) })
        };
        let leaf_with = |edit: &dyn Fn(&mut NodeInfo)| {
            let mut node = leaf();
            edit(&mut node);
            sign(Action::Admit { key: [4; 32], node })
        };
        assert!(admit(&|_| {}).is_ok() && grant(&|_| {}).is_ok() && leaf_with(&|_| {}).is_ok());
        let cases = [
            (admit(&|node| node.groups = groups(17, 2)), ObjectError::TooMany(17, "groups")),
            (admit(&|node| node.subnets = subnets(33)), ObjectError::TooMany(33, "subnets")),
            (
                admit(&|node| node.subnets = ["10.0.0.1/8".parse().unwrap()].into()),
                ObjectError::Network,
            ),
            (grant(&|limits| limits.groups = groups(17, 2)), ObjectError::TooMany(17, "groups")),
            (grant(&|limits| limits.subnets = subnets(33)), ObjectError::TooMany(33, "subnets")),
            (
                grant(&|limits| limits.range = Some("10.0.0.1/8".parse().unwrap())),
                ObjectError::Network,
            ),
            (sign(Action::SetThreshold(0)), ObjectError::Range(0)),
            (leaf_with(&|node| node.relay = true), ObjectError::Leaf),
            (leaf_with(&|node| node.gateway = true), ObjectError::Leaf),
            (leaf_with(&|node| node.openvpn = true), ObjectError::Leaf),
            (leaf_with(&|node| node.subnets = subnets(1)), ObjectError::Leaf),
        ];
        for (result, error) in cases {
            assert_eq!(result, Err(error));
        }
        let good = sign(Action::SetThreshold(1)).unwrap().unverified.body.clone();
        let first = Body { number: 0, ..good.clone() };
        assert_eq!(Change::sign(&MESH, &key(1), first), Err(ObjectError::Range(0)));
        let heads = (0..=MAX_HEADS).map(|n| [n as u8; 32]).collect();
        let many = Change::sign(&MESH, &key(1), Body { heads, ..good });
        assert_eq!(many, Err(ObjectError::TooMany(65, "heads")));
    }

    /// Nodes and grants that were signed before leaves existed still decode, and encode to the same bytes.
    #[test]
    fn the_roles_of_a_node_are_the_bits_of_one_byte() {
        let node = NodeInfo { gateway: true, ..NodeInfo::named(Label::new("hub").unwrap()) };
        let mut bytes = sign(Action::Admit { key: [4; 32], node: node.clone() }).unwrap().encode();
        let roles = bytes.len() - 64 - 2;
        assert_eq!(bytes[roles - 5..roles + 2], [b'b', 0, 0, 0, 0, 1, 0]);
        bytes[roles] = 2;
        let Action::Admit { node: read, .. } =
            UnverifiedChange::decode(&bytes).unwrap().body.action
        else {
            panic!("not an admission")
        };
        assert_eq!(read, NodeInfo { gateway: false, openvpn: true, ..node });
        bytes[roles] = 8;
        assert_eq!(UnverifiedChange::decode(&bytes), Err(DecodeError::Kind(8).into()));
        let mut bytes = sign(Action::Admit { key: [4; 32], node: leaf() }).unwrap().encode();
        let roles = bytes.len() - 64 - 2 - 32;
        assert_eq!(bytes[roles..roles + 2], [4, 9]);
        bytes[roles] = 5;
        assert_eq!(UnverifiedChange::decode(&bytes), Err(ObjectError::Leaf));
    }

    #[test]
    fn other_forms_of_the_same_value_are_refused() {
        let bytes = sign(Action::SetThreshold(2)).unwrap().encode();
        let altered = |edit: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = bytes.clone();
            edit(&mut bytes);
            UnverifiedChange::decode(&bytes).unwrap_err()
        };
        let heads = 1 + 1 + 32 + 4 + 32 + 8 + 1;
        assert_eq!(bytes[heads], 2);
        assert_eq!(altered(&|b| b[heads..heads + 32].fill(3)), ObjectError::Unsorted);
        assert_eq!(altered(&|b| b[heads..heads + 32].fill(4)), ObjectError::Unsorted);
        assert_eq!(altered(&|b| b[0] = 1), DecodeError::Kind(1).into());
        assert_eq!(altered(&|b| b[1] = 2), ObjectError::Algorithm(2));
        assert_eq!(altered(&|b| b[heads + 64] = 9), DecodeError::Kind(9).into());
        assert_eq!(altered(&|b| b[heads - 1] = 65), ObjectError::TooMany(65, "heads"));
        let revoke = Revocation { key: [4; 32], last: None, with_invited: false };
        let mut bytes = sign(Action::Revoke(revoke)).unwrap().encode();
        bytes[heads + 64 + 1 + 32] = 2;
        assert_eq!(UnverifiedChange::decode(&bytes), Err(DecodeError::Kind(2).into()));
    }
}
