//! Fuzzes the roster of a mesh: objects, logs and tokens that can be decoded are encoded to the same bytes again. Other
//! input is a script by which signers add changes to two sets; the merged roster must not depend on the order of
//! merging.
#![cfg_attr(fuzzing, no_main)]

use adit_crypto::sha256;
use adit_crypto::sign::SigningKey;
use adit_engine::UnixTime;
use adit_mesh::roster::{
    Action, Change, ChangeHash, Changes, Genesis, Inviter, Label, Layer, Log, NodeInfo, Revocation,
    Right, Roster, Rotation, UnverifiedChange,
};
use adit_mesh::token::Token;

/// The number of changes in a script.
const STEPS: usize = 12;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    if let Ok(genesis) = Genesis::decode(bytes) {
        assert_eq!(genesis.encode().unwrap(), bytes);
    }
    if let Ok(change) = UnverifiedChange::decode(bytes) {
        assert_eq!(change.encode(), bytes);
    }
    if let Ok(log) = Log::decode(bytes) {
        assert_eq!(log.valid_len + log.torn, bytes.len());
        check(&log.changes);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if text.trim().starts_with("adit-mesh1-") => {
            if let Ok(token) = text.parse::<Token>() {
                assert_eq!(token.to_string(), text.trim());
            }
        }
        _ => script(bytes),
    }
}

fn script(bytes: &[u8]) {
    let keys: Vec<_> = (1..=4).map(|n| SigningKey::from_seed(&[n; 32]).unwrap()).collect();
    let hash_of = |key: &SigningKey| sha256(&[&key.public()]);
    let threshold = bytes.first().map_or(1, |byte| 1 + byte % 2);
    let genesis = Genesis {
        name: Label::new("home").unwrap(),
        admins: keys[..2].iter().map(hash_of).collect(),
        threshold,
        ranges: vec!["100.87.0.0/16".parse().unwrap()],
        random: [0; 32],
        layer: Layer::Ip,
    };
    let mut sets = [Changes::new(genesis.clone()).unwrap(), Changes::new(genesis).unwrap()];
    for step in bytes.chunks_exact(3).take(STEPS) {
        let &[kind, signer, what] = step else { continue };
        let set = usize::from(signer >> 7);
        if kind % 12 == 11 {
            let other = sets[1 - set].clone();
            sets[set].merge(&other);
            continue;
        }
        let key = &keys[usize::from(signer) % keys.len()];
        let target = hash_of(&keys[usize::from(what) % keys.len()]);
        let action = action(&sets[set], kind % 12, what, target);
        let Ok(body) = sets[set].draft(hash_of(key), UnixTime(what.into()), action) else {
            continue;
        };
        let mesh = *sets[set].mesh();
        let _ = sets[set].insert(Change::sign(&mesh, key, body).unwrap());
    }
    let [one, other] = sets;
    let (mut both, mut reversed) = (one.clone(), other.clone());
    both.merge(&other);
    reversed.merge(&one);
    assert_eq!(both.digest(), reversed.digest());
    assert_eq!(check(&both), check(&reversed));
}

fn action(set: &Changes, kind: u8, what: u8, target: [u8; 32]) -> Action {
    let mut node = NodeInfo::named(Label::new(&format!("n{}", what % 3)).unwrap());
    node.ipv4 = Some([100, 87, 0, 1 + what % 3].into());
    node.subnets = [format!("10.{}.0.0/16", what % 3).parse().unwrap()].into();
    let of_target = set.in_causal_order().into_iter().filter(|change| change.signer() == target);
    let chosen: Option<ChangeHash> =
        of_target.take(usize::from(what >> 4)).last().map(Change::hash);
    let key = [what % 8; 32];
    node.openvpn = what & 8 == 8;
    if kind == 1 && what & 16 == 16 {
        node = NodeInfo { ipv4: node.ipv4, leaf_of: Some([what % 4; 32]), ..NodeInfo::named(node.name) };
    }
    match kind {
        0 | 1 => Action::Admit { key, node },
        2 => Action::SetNames { key, node },
        3 => Action::Revoke(Revocation { key, last: None, with_invited: false }),
        4 | 5 => Action::Revoke(Revocation { key: target, last: chosen, with_invited: kind == 5 }),
        6 => Action::Rotate(Rotation { old: target, new: key, last: chosen }),
        7 => Action::Grant { key: target, right: Right::Admin },
        8 => {
            let limits = Inviter {
                groups: [].into(),
                range: Some("100.87.0.0/24".parse().unwrap()),
                subnets: ["10.0.0.0/8".parse().unwrap()].into(),
                relay: false,
                gateway: false,
                leaves: what & 32 == 32,
                count: u32::from(what % 3),
                until: Some(UnixTime(200)),
            };
            Action::Grant { key: target, right: Right::Inviter(limits) }
        }
        9 => Action::SetThreshold(1 + what % 3),
        _ => Action::Approve(chosen.unwrap_or([what; 32])),
    }
}

fn check(changes: &Changes) -> Roster {
    let roster = Roster::evaluate(changes);
    assert!(roster.members().all(|member| !roster.revoked().contains(&member.key)));
    assert!(roster.admins().is_disjoint(roster.revoked()));
    roster
}
