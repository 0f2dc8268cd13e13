//! Signers and changes for roster tests.

use adit_crypto::sha256;
use adit_crypto::sign::SigningKey;
use adit_engine::{Random, UnixTime};

use super::{
    Action, Body, Change, ChangeHash, Changes, Genesis, Insertion, Label, Layer, NodeInfo, Right,
};
use crate::session::{KeyHash, MeshId};

/// The time of all changes.
pub(crate) const NOW: UnixTime = UnixTime(1_800_000_000);

/// A key that signs changes.
pub(crate) struct Signer {
    pub(crate) key: SigningKey,
    pub(crate) hash: KeyHash,
}

impl Signer {
    pub(crate) fn new(seed: u8) -> Self {
        let key = SigningKey::from_seed(&[seed; 32]).unwrap();
        let hash = key.public_hash();
        Self { key, hash }
    }

    pub(crate) fn sign(&self, mesh: &MeshId, body: Body) -> Change {
        Change::sign(mesh, &self.key, body).unwrap()
    }
}

pub(crate) fn genesis(admins: &[Signer], threshold: u8) -> Genesis {
    Genesis {
        name: name("home"),
        admins: admins.iter().map(|admin| admin.hash).collect(),
        threshold,
        ranges: vec!["100.87.0.0/16".parse().unwrap()],
        random: [7; 32],
        layer: Layer::Ip,
    }
}

pub(crate) fn name(text: &str) -> Label {
    Label::new(text).unwrap()
}

/// Returns the key hash of a node without a chain.
pub(crate) fn node_key(number: u8) -> KeyHash {
    sha256(&[b"node", &[number]])
}

pub(crate) fn admit(number: u8) -> Action {
    let node = NodeInfo::named(name(&format!("node{number}")));
    Action::Admit { key: node_key(number), node }
}

pub(crate) fn grant_admin(to: &Signer) -> Action {
    Action::Grant { key: to.hash, right: Right::Admin }
}

/// Signs a change after everything in the set, and adds it.
pub(crate) fn write(changes: &mut Changes, signer: &Signer, action: Action) -> ChangeHash {
    let body = changes.draft(signer.hash, NOW, action).unwrap();
    let change = signer.sign(changes.mesh(), body);
    let hash = change.hash();
    assert_eq!(changes.insert(change), Ok(Insertion::Added(0)));
    hash
}

/// Returns the entries in an order that depends on the seed.
pub(crate) fn shuffled<T: Clone>(entries: &[T], seed: u8) -> Vec<T> {
    let mut random = Random::new([seed; 32]);
    let mut keyed: Vec<_> =
        entries.iter().map(|entry| (random.bytes::<8>(), entry.clone())).collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, entry)| entry).collect()
}
