//! Tests of properties that hold for every set of changes.

use adit_engine::Random;
use proptest::prelude::*;

use super::*;
use crate::roster::Change;

const ADMINS: u8 = 3;
const SIGNERS: usize = 6;

/// Signers that write to several copies of the set, which are merged now and then.
struct Scenario {
    random: Random,
    signers: Vec<Signer>,
    copies: Vec<Changes>,
    /// Whether only the most senior admin revokes and replaces keys (other than its own), without approvals.
    orderly: bool,
}

impl Scenario {
    fn new(seed: u64, threshold: u8, orderly: bool) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_be_bytes());
        let signers: Vec<_> = (1..=SIGNERS as u8 + 2).map(Signer::new).collect();
        let genesis = genesis(&signers[..usize::from(ADMINS)], threshold);
        let copies = vec![Changes::new(genesis).unwrap(); 3];
        Self { random: Random::new(bytes), signers, copies, orderly }
    }

    fn below(&mut self, limit: usize) -> usize {
        let [byte] = self.random.bytes();
        usize::from(byte) % limit
    }

    fn action(&mut self, copy: usize, signer: usize) -> Action {
        let node = self.below(6) as u8;
        let other = self.below(self.signers.len());
        let text = format!("name{}", self.below(4));
        let last = [7, self.below(3) as u8 + 1];
        let describe = |info: &mut NodeInfo| {
            info.name = name(&text);
            info.ipv4 = Some([100, 87, 1, last[1]].into());
            info.subnets = [format!("10.{}.0.0/16", last[1]).parse().unwrap()].into();
        };
        let kind = self.below(16);
        let (changes, target) = (&self.copies[copy], &self.signers[other]);
        let mut ends = changes.in_causal_order();
        ends.retain(|change| change.signer() == target.hash);
        let last = ends.get(self.random.bytes::<1>()[0] as usize % (ends.len() + 1));
        let last = last.map(|change| change.hash());
        let may_end = !self.orderly || (signer == 0 && other != 0);
        match kind {
            0..5 => admit_as(node, describe),
            5 => set_names(node, describe),
            6 if may_end => revoke(node_key(node), None),
            7 | 8 if may_end => revoke(target.hash, last),
            9 if may_end => {
                Action::Rotate(Rotation { old: target.hash, new: self.signers[7].hash, last })
            }
            10 => grant_admin(target),
            11 => grant_inviter(target, inviter()),
            12 if !self.orderly => Action::SetThreshold(1 + node % 2),
            13 => Action::SetPolicy([node; 32]),
            _ => {
                let all = changes.in_causal_order();
                let chosen = self.random.bytes::<1>()[0] as usize;
                all.get(chosen % all.len().max(1))
                    .map_or(admit(node), |it| Action::Approve(it.hash()))
            }
        }
    }

    /// One signer writes, or two copies are merged. Signers that write to several copies fork their chains.
    fn step(&mut self) {
        let (one, other) = (self.below(3), self.below(3));
        if self.below(4) == 0 {
            let from = self.copies[other].clone();
            self.copies[one].merge(&from);
            return;
        }
        let signer = self.below(self.signers.len());
        // Mostly, each signer writes in one copy only.
        let copy = if self.below(12) == 0 { one } else { signer % 3 };
        let action = self.action(copy, signer);
        let (changes, signer) = (&mut self.copies[copy], &self.signers[signer]);
        if let Ok(body) = changes.draft(signer.hash, NOW, action) {
            // A key without a right cannot begin a chain.
            let _ = changes.insert(signer.sign(&changes.mesh().clone(), body));
        }
    }

    fn run(mut self, steps: usize) -> Self {
        (0..steps).for_each(|_| self.step());
        self
    }

    fn union(&self) -> Changes {
        let mut all = self.copies[0].clone();
        self.copies[1..].iter().for_each(|copy| all.merge(copy));
        all
    }

    fn empty(&self) -> Changes {
        Changes::new(self.copies[0].genesis().clone()).unwrap()
    }
}

fn owned(changes: &Changes) -> Vec<Change> {
    changes.in_causal_order().into_iter().cloned().collect()
}

fn merged(one: &Changes, other: &Changes) -> Changes {
    let mut all = one.clone();
    all.merge(other);
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_roster_depends_on_the_set_alone(seed: u64, threshold in 1..=ADMINS) {
        let scenario = Scenario::new(seed, threshold, false).run(90);
        let union = scenario.union();
        let expected = roster(&union);
        for shuffle in 0..4 {
            let mut other = scenario.empty();
            for change in shuffled(&owned(&union), shuffle) {
                prop_assert!(other.insert(change).is_ok());
            }
            prop_assert_eq!(other.digest(), union.digest());
            prop_assert_eq!(&roster(&other), &expected);
        }
    }

    #[test]
    fn merging_is_commutative_associative_and_idempotent(seed: u64, threshold in 1..=ADMINS) {
        let scenario = Scenario::new(seed, threshold, false).run(60);
        let [a, b, c] = scenario.copies.try_into().unwrap();
        let same = |one: &Changes, other: &Changes| {
            one.digest() == other.digest() && roster(one) == roster(other)
        };
        prop_assert!(same(&merged(&a, &b), &merged(&b, &a)));
        prop_assert!(same(&merged(&merged(&a, &b), &c), &merged(&a, &merged(&b, &c))));
        prop_assert!(same(&merged(&a, &a), &a));
        prop_assert!(same(&merged(&merged(&a, &b), &b), &merged(&a, &b)));
    }

    /// A revocation is undone only by a concurrent one of its signer or of an admin who approved it. If only the most
    /// senior admin revokes, no revocation is ever undone, whatever else arrives, including forks of its own chain.
    #[test]
    fn a_revoked_key_never_comes_back(seed: u64) {
        let scenario = Scenario::new(seed, 1, true).run(90);
        let mut changes = scenario.empty();
        let mut revoked = BTreeSet::new();
        for change in owned(&scenario.union()) {
            changes.insert(change).unwrap();
            let now = roster(&changes);
            prop_assert!(now.revoked().is_superset(&revoked));
            prop_assert!(now.members().all(|member| !revoked.contains(&member.key)));
            revoked.extend(now.revoked());
        }
    }

    #[test]
    fn neighbours_that_exchange_what_they_lack_have_the_same_roster(seed: u64) {
        let scenario = Scenario::new(seed, 1, false).run(60);
        let [mut a, mut b, _] = scenario.copies.try_into().unwrap();
        for _ in 0..3 {
            let to_b: Vec<_> = a.after(&b.heads(), &b.missing()).into_iter().cloned().collect();
            to_b.into_iter().for_each(|change| { b.insert(change).unwrap(); });
            let to_a: Vec<_> = b.after(&a.heads(), &a.missing()).into_iter().cloned().collect();
            to_a.into_iter().for_each(|change| { a.insert(change).unwrap(); });
        }
        prop_assert_eq!(a.digest(), b.digest());
        prop_assert_eq!(roster(&a), roster(&b));
    }
}

/// The scenarios really contain the cases that the properties concern.
#[test]
fn scenarios_have_forks_revocations_and_conflicts() {
    let (mut forks, mut revoked, mut admins, mut conflicts, mut voided) = (0, 0, 0, 0, 0);
    for seed in 0..40 {
        let union = Scenario::new(seed, 1, false).run(90).union();
        let roster = roster(&union);
        forks += union.forks().count();
        revoked += roster.revoked().len();
        admins += roster.admins().len();
        for warning in roster.warnings() {
            conflicts += usize::from(matches!(warning, Warning::Name { .. }));
            voided +=
                usize::from(matches!(warning, Warning::Ignored { reason: Refusal::Ended, .. }));
        }
    }
    let least = [forks, revoked, admins, conflicts, voided].into_iter().min();
    assert!(least > Some(8), "{forks} {revoked} {admins} {conflicts} {voided}");
}
