//! The order in which the trials of a plan run.
//!
//! The trials run in rounds, and each round contains all trials of all scenarios in a shuffled order. A drift of the
//! machine then affects all subjects alike, and appears as noise between the rounds of a row instead of a difference
//! between rows.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Kind, Plan, Scenario, Settings};
use crate::record::{Point, TrialKey};
use crate::subject::Subject;

/// A trial to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// The name of the trial in the results.
    pub key: TrialKey,
    /// The kind of the trial.
    pub kind: Kind,
    /// The subject; `None` for kinds that measure adit's own engines.
    pub subject: Option<Subject>,
    /// The position on the axes.
    pub settings: Settings,
    /// Whether this is an A/A trial, which runs a subject against itself.
    pub a_a: bool,
}

impl Plan {
    /// Returns all trials in the order in which they run. The same plan with the same seed gives the same order.
    pub fn trials(&self) -> Vec<Trial> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed.unwrap_or_default());
        let mut all = Vec::new();
        let own = self.scenarios.iter().map(|scenario| scenario.rounds);
        let rounds = own.chain(self.a_a.iter().map(|_| self.rounds)).max().unwrap_or(0);
        for round in 1..=rounds {
            let takes_part = |scenario: &&Scenario| round <= scenario.rounds;
            let mut these: Vec<Trial> = self
                .scenarios
                .iter()
                .filter(takes_part)
                .flat_map(|scenario| scenario.round(round))
                .collect();
            these.extend(self.a_a_trials(round));
            shuffle(&mut these, &mut random);
            all.extend(these);
        }
        all
    }

    /// Returns the trials of a subject against itself. A round has two sides, `#a` and `#b`, which are as far apart as
    /// those of any other pair.
    fn a_a_trials(&self, round: u32) -> Vec<Trial> {
        let Some(a_a) = self.a_a.as_ref().filter(|_| round <= self.rounds) else {
            return Vec::new();
        };
        let scenario = self.scenarios.iter().find(|scenario| scenario.name == a_a.scenario);
        let Some((scenario, (point, settings))) =
            scenario.and_then(|s| Some((s, s.points.first()?)))
        else {
            return Vec::new();
        };
        let side = |side| {
            let mut trial = scenario.trial(point, settings, Some(&a_a.subject), round);
            trial.key.subject = format!("{}#{side}", a_a.subject);
            trial.a_a = true;
            trial
        };
        ["a", "b"].map(side).into()
    }
}

impl Scenario {
    fn round(&self, round: u32) -> Vec<Trial> {
        let mut all = Vec::new();
        for (point, settings) in &self.points {
            if self.kind.has_subjects() {
                let subjects = self.subjects.iter();
                all.extend(subjects.map(|s| self.trial(point, settings, Some(s), round)));
            } else {
                all.push(self.trial(point, settings, None, round));
            }
        }
        all
    }

    /// Returns a trial of the scenario at one of its points.
    pub fn trial(
        &self,
        point: &Point,
        settings: &Settings,
        subject: Option<&Subject>,
        round: u32,
    ) -> Trial {
        let name = subject.map_or_else(|| "adit".to_owned(), Subject::to_string);
        Trial {
            key: TrialKey {
                scenario: self.name.clone(),
                point: point.clone(),
                subject: name,
                round,
            },
            kind: self.kind,
            subject: subject.cloned(),
            settings: settings.clone(),
            a_a: false,
        }
    }
}

/// Shuffles the items (Fisher and Yates).
fn shuffle<T>(items: &mut [T], random: &mut ChaCha8Rng) {
    for last in (1..items.len()).rev() {
        // The modulo bias of a 64-bit number is negligible here.
        let other = usize::try_from(random.next_u64() % (last as u64 + 1)).unwrap_or(last);
        items.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PLAN: &str = "name = \"x\"\nrounds = 3\na-a = { scenario = \"latency\", subject = \"adit\" }\n\
        [[scenario]]\nkind = \"latency\"\nsubjects = [\"bare\", \"adit\", \"openvpn\"]\nlink = [\"offload\", \"wire\"]\n\
        [[scenario]]\nkind = \"handshakes\"\nrounds = 1\n";

    #[test]
    fn whole_rounds_in_shuffled_order_with_a_pair_of_the_same_in_each() {
        let trials = Plan::parse("x", PLAN).unwrap().trials();
        assert_eq!(trials.len(), 6 + 7 + 6 + 6);
        let rounds: Vec<u32> = trials.iter().map(|trial| trial.key.round).collect();
        assert!(rounds.is_sorted(), "one round after the other");
        for round in 1..=3 {
            let sides = trials.iter().filter(|trial| trial.a_a && trial.key.round == round);
            assert_eq!(sides.count(), 2, "round {round}");
        }
        let pair = |(first, second): (&Trial, &Trial)| first.a_a && second.a_a;
        let apart = trials.iter().zip(&trials[1..]).filter(|two| !pair(*two)).count();
        assert!(apart > trials.len() - 4, "the sides are not run back to back each time");
        let order = |round| -> Vec<String> {
            let these = trials.iter().filter(|trial| trial.key.round == round);
            these.map(|trial| format!("{} {}", trial.key.point, trial.key.subject)).collect()
        };
        assert_ne!(order(2), order(3), "each round has an order of its own");
        let sorted = |round| order(round).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(sorted(2), sorted(3), "and the same trials");
    }

    #[test]
    fn every_trial_has_a_key_of_its_own_and_the_order_repeats() {
        let plan = Plan::parse("x", PLAN).unwrap();
        let keys: BTreeSet<TrialKey> = plan.trials().into_iter().map(|trial| trial.key).collect();
        assert_eq!(keys.len(), plan.trials().len());
        assert_eq!(plan.trials(), plan.trials());
        let other = Plan { seed: Some(2), ..plan.clone() };
        assert_ne!(plan.trials(), other.trials(), "another seed, another order");
    }

    #[test]
    fn shuffling_reaches_every_order() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut seen = BTreeSet::new();
        for _ in 0..200 {
            let mut items = [1, 2, 3];
            shuffle(&mut items, &mut random);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 6);
    }
}
