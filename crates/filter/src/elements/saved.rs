//! Elements that continue in another process of the same machine, such as a newer version of the program: as after a
//! reload, those that were added, and the remaining times of those in the file.

use serde::{Deserialize, Serialize};

use super::{Elements, Entry, Expiry, MAX_ADDED, SetName, State};
use crate::Nanos;
use crate::ruleset::{Family, Kind};

/// The changed elements of all sets, for another process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedElements {
    sets: Vec<SavedSet>,
    refused: u64,
    expired: u64,
}

/// The elements of a set, with what must be equal in both rule sets.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSet {
    family: Family,
    table: String,
    name: String,
    key: Vec<Kind>,
    interval: bool,
    timeouts: bool,
    elements: Vec<SavedElement>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedElement {
    /// The first value of each part.
    key: Vec<u128>,
    /// The end of the range, for keys of one part.
    last: u128,
    timeout: Option<u64>,
    /// The time at which it expires, by the machine's clock.
    end: Option<Nanos>,
    added: bool,
    comment: Option<String>,
}

impl Elements {
    /// Returns the elements that a reload would keep.
    pub(crate) fn save(&mut self, now: Nanos) -> SavedElements {
        let mut saved =
            SavedElements { refused: self.refused, expired: self.expired, ..Default::default() };
        for ((family, table, name), state) in &mut self.sets {
            state.start(now);
            let kept = state.all.iter().filter(|(_, one)| one.added || one.end != Expiry::Never);
            let elements = kept.map(|(key, one)| SavedElement {
                key: key.to_vec(),
                last: one.last,
                timeout: one.timeout,
                end: match one.end {
                    Expiry::Never => None,
                    Expiry::After(left) => Some(Nanos(now.0.saturating_add(left))),
                    Expiry::At(end) => Some(end),
                },
                added: one.added,
                comment: one.comment.as_deref().map(str::to_owned),
            });
            saved.sets.push(SavedSet {
                family: *family,
                table: table.clone(),
                name: name.clone(),
                key: state.key.clone(),
                interval: state.interval,
                timeouts: state.timeouts,
                elements: elements.collect(),
            });
        }
        saved
    }

    /// Restores the elements of another process, which [`Elements::adopt`] then adds to the sets of this process's rules.
    /// Leaves out those that have expired, and added ones beyond [`MAX_ADDED`]. Returns the number of added ones, without
    /// those that have expired.
    pub(crate) fn restore(saved: SavedElements, now: Nanos) -> (Self, u64) {
        let SavedElements { sets, refused, expired } = saved;
        let mut all = Self { refused, expired, ..Self::default() };
        let (mut added, mut room) = (0u64, MAX_ADDED);
        for set in sets {
            let SavedSet { family, table, name, key, interval, timeouts, elements } = set;
            let mut state = State { key, interval, timeouts, ..State::default() };
            for element in elements {
                if element.end.is_some_and(|end| end <= now) {
                    all.expired = all.expired.saturating_add(1);
                    continue;
                }
                let count = usize::from(element.added);
                added = added.saturating_add(count as u64);
                if room >= count && element.fits(&state) {
                    room = room.saturating_sub(count);
                    state.added = state.added.saturating_add(count);
                    let (key, entry) = element.into_entry();
                    state.all.insert(key, entry);
                }
            }
            let name: SetName = (family, table, name);
            all.sets.insert(name, state);
        }
        (all, added)
    }
}

impl SavedElement {
    /// Returns whether a set can have this element.
    fn fits(&self, set: &State) -> bool {
        let top = |kind: &Kind| u128::MAX.checked_shr(128u32.saturating_sub(kind.bits().into()));
        let narrow = |kind: &Kind, value: u128| top(kind).is_some_and(|top| value <= top);
        let first = self.key.first().copied();
        let range = first.is_some_and(|first| first <= self.last);
        let single = first == Some(self.last) || (set.interval && set.key.len() == 1);
        self.key.len() == set.key.len()
            && set.key.iter().zip(&self.key).all(|(kind, value)| narrow(kind, *value))
            && set.key.first().is_some_and(|kind| narrow(kind, self.last))
            && range
            && single
            && (self.end.is_none() || set.timeouts)
    }

    fn into_entry(self) -> (super::Key, Entry) {
        let entry = Entry {
            last: self.last,
            timeout: self.timeout,
            end: self.end.map_or(Expiry::Never, Expiry::At),
            added: self.added,
            comment: self.comment.map(String::into_boxed_str),
        };
        (self.key.into_boxed_slice(), entry)
    }
}
