//! The order and the colours of subjects and points, the same everywhere.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::record::Point;
use crate::subject::Subject;

/// Compares two subjects: bounds come first, then adit, then its peers, then unknown subjects.
pub(super) fn subjects(a: &str, b: &str) -> Ordering {
    let place = |name: &str| name.parse::<Subject>().ok();
    match (place(a), place(b)) {
        (Some(x), Some(y)) => x.cmp(&y),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Compares two values: link modes by how much the kernel may hand over in one piece, numbers by size, all others
/// alphabetically.
pub(super) fn values(a: &str, b: &str) -> Ordering {
    const LINKS: [&str; 3] = ["offload", "wire-gro", "wire"];
    let link = |value: &str| LINKS.iter().position(|link| *link == value);
    if let (Some(x), Some(y)) = (link(a), link(b)) {
        return x.cmp(&y);
    }
    match (leading_number(a), leading_number(b)) {
        (Some(x), Some(y)) => x.total_cmp(&y).then_with(|| a.cmp(b)),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Compares two points, axis by axis.
pub(super) fn points(a: &Point, b: &Point) -> Ordering {
    for (axis, value) in &a.0 {
        let Some(other) = b.get(axis) else { return Ordering::Greater };
        let order = values(value, other);
        if order != Ordering::Equal {
            return order;
        }
    }
    a.0.len().cmp(&b.0.len())
}

/// Returns the number that a value begins with: 0.1 of `0.1%`.
pub(super) fn leading_number(value: &str) -> Option<f64> {
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    value.get(..end)?.parse().ok()
}

/// The number of colours that the page has for subjects.
pub(super) const STYLES: usize = 12;

/// The colour of a bound. It belongs to no subject.
pub(super) const BOUND: usize = STYLES;

/// The subjects with fixed colours, so that two reports look alike.
const KNOWN: [&str; 10] = [
    "bare",
    "copy",
    "adit",
    "adit-tcp",
    "openvpn",
    "openvpn-tcp",
    "tinc",
    "wireguard-go",
    "adit/openvpn",
    "openvpn/adit",
];

/// Returns the colour of each subject. Those that are not in [`KNOWN`] share the remaining colours in rotation.
pub(super) fn styles(subjects: &[String]) -> BTreeMap<String, usize> {
    let known = |name: &String| KNOWN.iter().position(|known| known == name);
    let mut others = (KNOWN.len()..STYLES).cycle();
    let style = |name: &String| (name.clone(), known(name).or_else(|| others.next()).unwrap_or(0));
    subjects.iter().map(style).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_come_first_and_strangers_last() {
        let mut names =
            ["zerotier", "wireguard-go", "openvpn", "adit@f00", "adit-tcp", "adit", "copy", "bare"];
        names.sort_by(|a, b| subjects(a, b));
        assert_eq!(
            names,
            ["bare", "copy", "adit", "adit@f00", "adit-tcp", "openvpn", "wireguard-go", "zerotier"]
        );
    }

    #[test]
    fn values_stand_by_size() {
        let mut sizes = ["1400", "64", "imix", "512", "5%", "0.1%"];
        sizes.sort_by(|a, b| values(a, b));
        assert_eq!(sizes, ["0.1%", "5%", "64", "512", "1400", "imix"]);
        let mut links = ["wire", "offload", "wire-gro"];
        links.sort_by(|a, b| values(a, b));
        assert_eq!(links, ["offload", "wire-gro", "wire"]);
    }

    #[test]
    fn a_colour_belongs_to_a_subject() {
        let names = ["adit", "adit@1", "adit@2", "openvpn"].map(str::to_owned);
        let all = styles(&names);
        assert_eq!(all.into_values().collect::<Vec<_>>(), [2, 10, 11, 4]);
        assert_eq!(styles(&names[3..])["openvpn"], 4);
    }
}
