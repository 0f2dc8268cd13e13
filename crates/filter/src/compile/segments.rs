//! Sets of numbers as sorted, disjoint ranges.

use crate::ruleset::Range;

/// Returns the greatest number of this many bits.
pub(crate) fn greatest(bits: u8) -> u128 {
    u128::MAX.checked_shr(128u32.saturating_sub(u32::from(bits))).unwrap_or(0)
}

/// Sorts ranges, and merges those that overlap or touch.
pub(crate) fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.retain(|range| range.first <= range.last);
    ranges.sort_unstable();
    let mut merged: Vec<Range> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.first <= last.last.saturating_add(1) => {
                last.last = last.last.max(range.last);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns all numbers from 0 to `greatest` that are not in `ranges`, which must be merged.
pub(crate) fn complement(ranges: &[Range], greatest: u128) -> Vec<Range> {
    let mut left = Vec::with_capacity(ranges.len().saturating_add(1));
    let mut from = Some(0u128);
    for range in ranges {
        if let Some(first) = from
            && first < range.first
        {
            left.push(Range { first, last: range.first.saturating_sub(1).min(greatest) });
        }
        from = range.last.checked_add(1).filter(|next| *next <= greatest);
        if from.is_none() {
            break;
        }
    }
    if let Some(first) = from {
        left.push(Range { first, last: greatest });
    }
    left
}

/// Returns the intersection of two merged lists.
pub(crate) fn intersection(one: &[Range], other: &[Range]) -> Vec<Range> {
    let (mut ones, mut others) = (one.iter().peekable(), other.iter().peekable());
    let mut both = Vec::new();
    while let (Some(a), Some(b)) = (ones.peek(), others.peek()) {
        let (first, last) = (a.first.max(b.first), a.last.min(b.last));
        if first <= last {
            both.push(Range { first, last });
        }
        if a.last < b.last {
            ones.next();
        } else {
            others.next();
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(first: u128, last: u128) -> Range {
        Range { first, last }
    }

    fn ranges() -> impl Strategy<Value = Vec<Range>> {
        prop::collection::vec((0u128..=70, 0u128..=70).prop_map(|(a, b)| range(a, b)), 0..8)
    }

    fn has(ranges: &[Range], value: u128) -> bool {
        ranges.iter().any(|range| range.contains(value))
    }

    #[test]
    fn the_ends_of_the_numbers_do_not_overflow() {
        let all = [range(0, u128::MAX)];
        assert_eq!(merged(vec![range(5, u128::MAX), range(0, 4)]), all);
        assert_eq!(complement(&all, u128::MAX), []);
        assert_eq!(complement(&[], u128::MAX), all);
        assert_eq!((greatest(8), greatest(128), greatest(0)), (255, u128::MAX, 0));
    }

    proptest! {
        #[test]
        fn they_are_what_they_are_called(a in ranges(), b in ranges(), value in 0u128..=63) {
            let (one, other) = (merged(a.clone()), merged(b));
            prop_assert_eq!(has(&one, value), has(&a, value));
            prop_assert!(one.windows(2).all(|pair| pair[0].last + 1 < pair[1].first));
            prop_assert_eq!(has(&complement(&one, 63), value), !has(&one, value));
            let both = intersection(&one, &other);
            prop_assert_eq!(has(&both, value), has(&one, value) && has(&other, value));
        }
    }
}
