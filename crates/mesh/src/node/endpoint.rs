//! The addresses at which a node may be reached, signed by the node itself:
//!
//! ```text
//! version 1 | public key 32 | sequence 8 | number of candidates 1 | candidate * | signature 64
//! ```
//!
//! An endpoint goes only to peers and to nodes that ask for it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use std::collections::BTreeMap;

use adit_crypto::sha256;
use adit_crypto::sign::{PUBLIC_LEN, SIGNATURE_LEN, SigningKey, verify};

use crate::path::{Candidate, MAX_CANDIDATES};
use crate::session::{KeyHash, MeshId};
use crate::wire::{DecodeError, Decoder};

/// The number of endpoints that a node remembers.
const MAX_ENDPOINTS: usize = 4096;

const VERSION: u8 = 1;
const DOMAIN: &[u8] = b"adit-mesh/1 endpoint";

/// A node's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) node: KeyHash,
    /// A newer endpoint has a higher number.
    pub(super) sequence: u64,
    pub(super) candidates: Vec<Candidate>,
    encoded: Vec<u8>,
}

impl Endpoint {
    /// Signs the addresses of the key's owner, at most [`MAX_CANDIDATES`].
    pub(super) fn sign(
        mesh: &MeshId,
        key: &SigningKey,
        sequence: u64,
        mut candidates: Vec<Candidate>,
    ) -> Option<Self> {
        candidates.truncate(MAX_CANDIDATES);
        let public = key.public();
        let mut encoded = vec![VERSION];
        encoded.extend(public);
        encoded.extend(sequence.to_be_bytes());
        encoded.push(u8::try_from(candidates.len()).ok()?);
        candidates.iter().for_each(|candidate| candidate.encode(&mut encoded));
        let signature = key.sign(&signed(mesh, &encoded)).ok()?;
        encoded.extend(signature);
        Some(Self { node: sha256(&[&public]), sequence, candidates, encoded })
    }

    /// Decodes an endpoint with a valid signature.
    pub(super) fn decode(mesh: &MeshId, bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some((body, signature)) = bytes.split_last_chunk::<SIGNATURE_LEN>() else {
            return Err(DecodeError::Truncated);
        };
        let mut from = Decoder::new(body);
        let version = from.u8()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let public: [u8; PUBLIC_LEN] = from.array()?;
        let sequence = from.u64()?;
        let count = usize::from(from.u8()?);
        if count > MAX_CANDIDATES {
            return Err(DecodeError::TooManyCandidates(count));
        }
        let mut candidates = Vec::new();
        for _ in 0..count {
            candidates.push(Candidate::decode(&mut from)?);
        }
        from.end()?;
        if !verify(&public, &signed(mesh, body), signature) {
            return Err(DecodeError::Signature);
        }
        let encoded = bytes.to_vec();
        Ok(Self { node: sha256(&[&public]), sequence, candidates, encoded })
    }

    /// Returns the bytes with the signature.
    pub(super) fn encoded(&self) -> &[u8] {
        &self.encoded
    }
}

fn signed(mesh: &MeshId, body: &[u8]) -> Vec<u8> {
    [DOMAIN, mesh, body].concat()
}

/// The newest known endpoint of each node.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    by_node: BTreeMap<KeyHash, Endpoint>,
}

impl Endpoints {
    /// Stores an endpoint in place of the known one. If there is no room, evicts the oldest one of a node that is not `needed`. Returns
    /// whether it was stored.
    pub(super) fn put(&mut self, endpoint: Endpoint, needed: impl Fn(&KeyHash) -> bool) -> bool {
        let is_known = self.by_node.contains_key(&endpoint.node);
        if !is_known && self.by_node.len() >= MAX_ENDPOINTS {
            let others = self.by_node.values().filter(|known| !needed(&known.node));
            let Some(oldest) = others.min_by_key(|known| known.sequence).map(|known| known.node)
            else {
                return false;
            };
            self.by_node.remove(&oldest);
        }
        self.by_node.insert(endpoint.node, endpoint);
        true
    }

    /// Returns whether an endpoint is newer than the known one.
    pub(super) fn is_newer(&self, endpoint: &Endpoint) -> bool {
        let known = self.by_node.get(&endpoint.node);
        known.is_none_or(|known| endpoint.sequence > known.sequence)
    }

    /// Returns whether an endpoint differs from the known one.
    pub(super) fn differs(&self, endpoint: &Endpoint) -> bool {
        self.by_node.get(&endpoint.node) != Some(endpoint)
    }

    pub(super) fn get(&self, node: &KeyHash) -> Option<&Endpoint> {
        self.by_node.get(node)
    }

    /// Forgets the nodes for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(&KeyHash) -> bool) {
        self.by_node.retain(|node, _| keep(node));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.by_node.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::CandidateKind;

    const MESH: MeshId = [5; 16];

    fn endpoint(sequence: u64) -> Endpoint {
        let key = SigningKey::from_seed(&[1; 32]).unwrap();
        let at = |n: u8| Candidate::new(([192, 0, 2, n], 1194).into(), CandidateKind::Own).unwrap();
        Endpoint::sign(&MESH, &key, sequence, vec![at(1), at(2)]).unwrap()
    }

    #[test]
    fn an_endpoint_is_decoded_as_it_was_encoded() {
        let endpoint = endpoint(7);
        assert_eq!(Endpoint::decode(&MESH, endpoint.encoded()), Ok(endpoint));
    }

    #[test]
    fn an_endpoint_with_a_changed_byte_or_of_another_mesh_is_refused() {
        let endpoint = endpoint(7);
        assert_eq!(Endpoint::decode(&[6; 16], endpoint.encoded()), Err(DecodeError::Signature));
        for at in 0..endpoint.encoded().len() {
            let mut bytes = endpoint.encoded().to_vec();
            bytes[at] ^= 1;
            assert!(Endpoint::decode(&MESH, &bytes).is_err(), "{at}");
        }
    }

    #[test]
    fn only_a_newer_endpoint_replaces_the_known_one() {
        let mut endpoints = Endpoints::default();
        assert!(endpoints.is_newer(&endpoint(7)) && endpoints.put(endpoint(7), |_| true));
        assert!(!endpoints.is_newer(&endpoint(7)) && !endpoints.is_newer(&endpoint(6)));
        assert!(!endpoints.differs(&endpoint(7)) && endpoints.differs(&endpoint(6)));
        assert!(endpoints.is_newer(&endpoint(8)) && endpoints.put(endpoint(8), |_| true));
        assert_eq!(endpoints.get(&endpoint(1).node).unwrap().sequence, 8);
    }

    #[test]
    fn the_oldest_endpoint_of_a_node_that_is_not_needed_makes_room() {
        let of = |number: usize| {
            let mut node = [7; 32];
            node[..8].copy_from_slice(&number.to_be_bytes());
            Endpoint { node, sequence: 10_000 - number as u64, ..endpoint(1) }
        };
        let mut endpoints = Endpoints::default();
        assert!((0..MAX_ENDPOINTS).all(|n| endpoints.put(of(n), |_| false)));
        assert!(!endpoints.put(of(MAX_ENDPOINTS), |_| true), "all are needed");
        let oldest = of(MAX_ENDPOINTS - 1).node;
        assert!(endpoints.put(of(MAX_ENDPOINTS), |node| *node == oldest));
        assert_eq!(endpoints.iter().count(), MAX_ENDPOINTS);
        assert!(endpoints.get(&oldest).is_some());
        assert!(endpoints.get(&of(MAX_ENDPOINTS - 2).node).is_none());
        assert!(endpoints.put(of(0), |_| true), "one that is known");
    }
}
