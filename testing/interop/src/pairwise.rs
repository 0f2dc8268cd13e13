//! Small sets of combinations that contain every pair of values of any two dimensions.

/// One value, by its index, for each dimension.
pub type Choice = Vec<usize>;

/// Returns a set of choices that covers every pair that occurs in any allowed choice. `sizes` are the numbers of
/// values.
///
/// The set is the same on every machine, and not minimal: the greedy algorithm uses at most a few choices more.
pub fn covering_array(sizes: &[usize], allowed: impl Fn(&Choice) -> bool) -> Vec<Choice> {
    let mut all = product(sizes);
    all.retain(|choice| allowed(choice));
    let mut missing = pairs(sizes, &all);
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let covers = |choice: &Choice| missing.iter().filter(|pair| pair.is_in(choice)).count();
        // Among equally good choices, a pseudo-random one is taken, so that the rest of its values varies too.
        let Some(best) = all.iter().max_by_key(|choice| (covers(choice), lot(choice))) else {
            break;
        };
        missing.retain(|pair| !pair.is_in(best));
        chosen.push(best.clone());
    }
    chosen
}

fn lot(choice: &Choice) -> usize {
    choice.iter().fold(7, |lot: usize, value| (lot ^ value).wrapping_mul(0x9e37_79b9) % 1_000_003)
}

/// A value of one dimension together with a value of another.
#[derive(Debug, PartialEq, Eq)]
struct ValuePair {
    one: (usize, usize),
    other: (usize, usize),
}

impl ValuePair {
    fn is_in(&self, choice: &Choice) -> bool {
        choice[self.one.0] == self.one.1 && choice[self.other.0] == self.other.1
    }
}

fn product(sizes: &[usize]) -> Vec<Choice> {
    let mut all = vec![Choice::new()];
    for size in sizes {
        all = all
            .into_iter()
            .flat_map(|choice| (0..*size).map(move |value| [&choice[..], &[value]].concat()))
            .collect();
    }
    all
}

fn pairs(sizes: &[usize], all: &[Choice]) -> Vec<ValuePair> {
    let mut pairs = Vec::new();
    for (a, size_a) in sizes.iter().enumerate() {
        for (b, size_b) in sizes.iter().enumerate().skip(a + 1) {
            for one in 0..*size_a {
                for other in 0..*size_b {
                    pairs.push(ValuePair { one: (a, one), other: (b, other) });
                }
            }
        }
    }
    // A pair that no combination allows cannot be required.
    pairs.retain(|pair| all.iter().any(|choice| pair.is_in(choice)));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_pair_is_there_and_no_forbidden_choice() {
        // The last value of the first dimension is allowed only with the first value of the second.
        let allowed = |choice: &Choice| choice[0] != 2 || choice[1] == 0;
        let sizes = [3, 4, 2, 2];
        let chosen = covering_array(&sizes, allowed);
        assert!(chosen.iter().all(allowed));
        assert!(chosen.len() <= 16, "{} choices", chosen.len());
        for pair in pairs(&sizes, &product(&sizes)) {
            let possible =
                product(&sizes).iter().any(|choice| allowed(choice) && pair.is_in(choice));
            assert_eq!(possible, chosen.iter().any(|choice| pair.is_in(choice)), "{pair:?}");
        }
    }
}
