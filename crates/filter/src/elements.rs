//! Elements of named sets that are added, are deleted or expire while the rules are in force.
//!
//! These changes survive a reload: elements that were added stay in the set of the same name until they expire. For
//! elements in the file, the new file decides.

mod saved;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use crate::Nanos;
use crate::ruleset::{Element, Family, Kind, Lifetime, Members, Range, Set};

pub(crate) use saved::SavedElements;

/// The maximum number of elements that are added while rules are in force, in all sets together.
pub const MAX_ADDED: usize = 262_144;
/// The maximum number of expired elements that one sweep removes.
const MAX_EXPIRED: usize = 16_384;

/// The identity of a set: the family and the name of its table, and its own name.
pub(crate) type SetName = (Family, String, String);

/// The first value of each part.
pub(crate) type Key = Box<[u128]>;

/// The reason why elements could not be changed. None of them is changed then.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ElementError {
    /// The element to delete does not exist.
    Missing(Element),
    /// The element overlaps an existing one.
    Overlaps(Element),
    /// The set has as many elements as its `size` allows.
    Full(u64),
    /// All sets together have the maximum number of added elements.
    TooMany,
    /// The rules in force have changed since the command was prepared.
    Changed,
}

impl fmt::Display for ElementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(_) => write!(f, "there is no such element"),
            Self::Overlaps(_) => write!(f, "it overlaps with an element that is there"),
            Self::Full(size) => write!(f, "the set is full: its size is {size}"),
            Self::TooMany => write!(f, "{MAX_ADDED} elements were added: that is the most"),
            Self::Changed => write!(f, "other rules are in force by now"),
        }
    }
}

impl std::error::Error for ElementError {}

/// The kind of change to elements.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// Elements are added. An existing element gets the specified timeout, if there is one.
    Add,
    /// Elements are deleted.
    Delete,
}

/// The totals of all sets, and the number of refused changes.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct ElementTotals {
    /// Elements that were added while rules were in force.
    pub added: u64,
    /// Changes that were refused for lack of space.
    pub refused: u64,
    /// Elements that expired.
    pub expired: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Expiry {
    Never,
    /// This long after the rules came into force, while the clock is not yet known.
    After(u64),
    At(Nanos),
}

#[derive(Clone, Debug)]
struct Entry {
    /// The end of the range, for keys of one part only.
    last: u128,
    timeout: Option<u64>,
    end: Expiry,
    added: bool,
    comment: Option<Box<str>>,
}

/// The elements of one set.
#[derive(Debug, Default)]
pub(crate) struct State {
    key: Vec<Kind>,
    interval: bool,
    auto_merge: bool,
    timeouts: bool,
    timeout: Option<u64>,
    size: Option<u64>,
    all: BTreeMap<Key, Entry>,
    /// The expiry times of elements, in order.
    due: BTreeSet<(Nanos, Key)>,
    /// Some elements wait for the first known time.
    waiting: bool,
    added: usize,
    /// The previous entries of the current change.
    journal: Vec<(Key, Option<Entry>)>,
}

/// The elements of all sets with changes.
#[derive(Debug, Default)]
pub(crate) struct Elements {
    sets: HashMap<SetName, State>,
    refused: u64,
    expired: u64,
}

/// The changes of keys: the end of the range, or `None` for a removed key.
pub(crate) type Delta = Vec<(Key, Option<u128>)>;

/// Returns whether elements of this set may change while it is in force.
pub(crate) fn may_change(set: &Set) -> bool {
    set.name.is_some() && fixed(set).is_none()
}

/// Returns the reason why the elements of a set cannot be changed while it is in force.
pub(crate) fn fixed(set: &Set) -> Option<&'static str> {
    if set.map {
        Some("is a map: maps change with a reload only")
    } else if set.constant {
        Some("is constant: it changes with a reload only")
    } else if set.interval && set.key.len() > 1 {
        Some("has ranges of several fields: it changes with a reload only")
    } else if !matches!(set.members, Members::Fixed(_)) {
        Some("has the addresses of clients")
    } else {
        None
    }
}

impl Elements {
    /// Returns whether the elements of this set were changed, or may expire.
    pub(crate) fn knows(&self, name: &SetName) -> bool {
        self.sets.contains_key(name)
    }

    pub(crate) fn totals(&self) -> ElementTotals {
        let added = self.sets.values().map(|state| state.added).fold(0, usize::saturating_add);
        ElementTotals { added: added as u64, refused: self.refused, expired: self.expired }
    }

    /// Adopts the sets of new rules: added elements stay in sets of the same name and type, if they fit. Other sets are
    /// dropped.
    pub(crate) fn adopt<'a>(&mut self, sets: impl Iterator<Item = (SetName, &'a Set)>) {
        let mut before = std::mem::take(&mut self.sets);
        for (name, set) in sets.filter(|(_, set)| may_change(set)) {
            let old = before.remove(&name);
            let kept = old.filter(|old| {
                old.key == set.key && old.interval == set.interval && old.timeouts == set.timeouts
            });
            if set.timeouts || kept.as_ref().is_some_and(|old| old.added > 0) {
                let mut state = State::of(set);
                if let Some(old) = kept {
                    state.inherit(old);
                }
                self.sets.insert(name, state);
            }
        }
    }

    /// Changes a set, either completely or not at all. Returns the number of changed elements, and the changes.
    pub(crate) fn change(
        &mut self,
        name: SetName,
        set: &Set,
        change: Change,
        elements: Vec<Element>,
        now: Nanos,
    ) -> Result<(usize, Delta), ElementError> {
        let room = MAX_ADDED.saturating_sub(self.totals().added as usize);
        let state = self.sets.entry(name).or_insert_with(|| State::of(set));
        state.start(now);
        let most = state.added.saturating_add(room);
        let mut changed = 0usize;
        let mut done = Ok(());
        for element in elements {
            let one = match change {
                Change::Add => state.add(element, now, most),
                Change::Delete => state.delete(element),
            };
            match one {
                Ok(did) => changed = changed.saturating_add(usize::from(did)),
                Err(error) => {
                    done = Err(error);
                    break;
                }
            }
        }
        match done {
            Ok(()) => Ok((changed, state.commit())),
            Err(error) => {
                state.roll_back();
                if matches!(error, ElementError::Full(_) | ElementError::TooMany) {
                    self.refused = self.refused.saturating_add(1);
                }
                Err(error)
            }
        }
    }

    /// Removes expired elements. Returns the changes of each set, and whether more have expired.
    pub(crate) fn expire(&mut self, now: Nanos) -> (Vec<(SetName, Delta)>, bool) {
        let (mut all, mut left) = (Vec::new(), MAX_EXPIRED);
        for (name, state) in &mut self.sets {
            state.start(now);
            while left > 0 && state.due.first().is_some_and(|(end, _)| *end <= now) {
                let Some((_, key)) = state.due.first().cloned() else { break };
                state.set(key, None);
                left = left.saturating_sub(1);
            }
            let delta = state.commit();
            if !delta.is_empty() {
                all.push((name.clone(), delta));
            }
        }
        let expired = MAX_EXPIRED.saturating_sub(left) as u64;
        self.expired = self.expired.saturating_add(expired);
        (all, left == 0)
    }

    /// Returns the elements of a set, in order; `None` if they have not changed since the file was read.
    pub(crate) fn list(&self, name: &SetName, now: Nanos) -> Option<Vec<Element>> {
        let state = self.sets.get(name)?;
        Some(state.all.iter().map(|(key, entry)| state.element(key, entry, now)).collect())
    }

    /// Returns the keys of a set and the ends of their ranges.
    pub(crate) fn keys(&self, name: &SetName) -> impl Iterator<Item = (&Key, u128)> {
        let all = self.sets.get(name).into_iter().flat_map(|state| &state.all);
        all.map(|(key, entry)| (key, entry.last))
    }
}

impl State {
    fn of(set: &Set) -> Self {
        let mut state = Self {
            key: set.key.clone(),
            interval: set.interval,
            auto_merge: set.auto_merge,
            timeouts: set.timeouts,
            timeout: set.timeout,
            size: set.size,
            ..Self::default()
        };
        if let Members::Fixed(elements) = &set.members {
            for element in elements {
                let (key, mut entry) = state.entry(element.clone());
                entry.added = false;
                state.waiting |= entry.end != Expiry::Never;
                state.all.insert(key, entry);
            }
        }
        state
    }

    /// Creates the entry of an added element.
    fn entry(&self, element: Element) -> (Key, Entry) {
        let lifetime = element.lifetime.as_deref();
        let timeout = lifetime.and_then(|life| life.timeout).or(self.timeout);
        let left = lifetime.and_then(|life| life.expires).or(timeout);
        let entry = Entry {
            last: element.key.first().map_or(0, |range| range.last),
            timeout,
            end: left.map_or(Expiry::Never, Expiry::After),
            added: true,
            comment: element.comment.map(String::into_boxed_str),
        };
        (element.key.iter().map(|range| range.first).collect(), entry)
    }

    fn element(&self, key: &Key, entry: &Entry, now: Nanos) -> Element {
        let range = |(part, first): (usize, &u128)| match part {
            0 if self.key.len() == 1 => Range { first: *first, last: entry.last },
            _ => Range::single(*first),
        };
        let expires = match entry.end {
            Expiry::Never => None,
            Expiry::After(left) => Some(left),
            // An expired element that still exists is about to be removed.
            Expiry::At(end) => Some((end.since(now).as_nanos() as u64).max(1)),
        };
        let timeout = entry.timeout;
        let lifetime = expires.map(|_| Box::new(Lifetime { timeout, expires }));
        let comment = entry.comment.as_deref().map(str::to_owned);
        Element {
            key: key.iter().enumerate().map(range).collect(),
            verdict: None,
            lifetime,
            comment,
        }
    }

    /// Sets the expiry of elements that were loaded with the rules.
    fn start(&mut self, now: Nanos) {
        if !std::mem::take(&mut self.waiting) {
            return;
        }
        for (key, entry) in &mut self.all {
            if let Expiry::After(left) = entry.end {
                let end = Nanos(now.0.saturating_add(left));
                entry.end = Expiry::At(end);
                self.due.insert((end, key.clone()));
            }
        }
    }

    /// Inserts or removes the entry of a key, and records the previous entry.
    fn set(&mut self, key: Key, entry: Option<Entry>) {
        let added =
            |entry: &Option<Entry>| usize::from(entry.as_ref().is_some_and(|one| one.added));
        let now = added(&entry);
        if let Some(Entry { end: Expiry::At(end), .. }) = &entry {
            self.due.insert((*end, key.clone()));
        }
        let before = match entry {
            Some(entry) => self.all.insert(key.clone(), entry),
            None => self.all.remove(&key),
        };
        if let Some(Entry { end: Expiry::At(end), .. }) = &before {
            let same = matches!(self.all.get(&key), Some(Entry { end: Expiry::At(now), .. }) if now == end);
            if !same {
                self.due.remove(&(*end, key.clone()));
            }
        }
        self.added = self.added.saturating_sub(added(&before)).saturating_add(now);
        self.journal.push((key, before));
    }

    fn commit(&mut self) -> Delta {
        let mut keys: Vec<Key> = self.journal.drain(..).map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys.dedup();
        let end = |key: Key| {
            let last = self.all.get(&key).map(|entry| entry.last);
            (key, last)
        };
        keys.into_iter().map(end).collect()
    }

    fn roll_back(&mut self) {
        for (key, before) in std::mem::take(&mut self.journal).into_iter().rev() {
            self.set(key, before);
        }
        self.journal.clear();
    }

    /// Returns the one-part elements that overlap a range.
    fn crossing(&self, range: Range) -> Vec<(Key, Entry)> {
        if self.key.len() != 1 {
            return Vec::new();
        }
        let top: Key = [range.last].into();
        let below = self.all.range(..=top).rev();
        let crossing = below.take_while(|(_, entry)| entry.last >= range.first);
        crossing.map(|(key, entry)| (key.clone(), entry.clone())).collect()
    }

    fn add(&mut self, element: Element, now: Nanos, most: usize) -> Result<bool, ElementError> {
        let (key, mut entry) = self.entry(element.clone());
        if let Expiry::After(left) = entry.end {
            entry.end = Expiry::At(Nanos(now.0.saturating_add(left)));
        }
        if let Some(known) = self.all.get(&key)
            && known.last == entry.last
        {
            // As in the kernel, a specified timeout renews the element's.
            if element.lifetime.is_none() {
                return Ok(false);
            }
            let comment = entry.comment.take().or_else(|| known.comment.clone());
            let added = known.added;
            self.set(key, Some(Entry { comment, added, ..entry }));
            return Ok(true);
        }
        let mut range = Range { first: key.first().copied().unwrap_or(0), last: entry.last };
        let crossing = self.crossing(range);
        let mut key = key;
        if !crossing.is_empty() {
            if !self.auto_merge {
                return Err(ElementError::Overlaps(element));
            }
            if crossing
                .iter()
                .any(|(key, one)| key.first() <= Some(&range.first) && range.last <= one.last)
            {
                return Ok(false);
            }
            for (other, one) in crossing {
                range.first = range.first.min(other.first().copied().unwrap_or(range.first));
                range.last = range.last.max(one.last);
                self.set(other, None);
            }
            (key, entry.last) = ([range.first].into(), range.last);
        }
        if self.size.is_some_and(|size| self.all.len() as u64 >= size) {
            return Err(ElementError::Full(self.size.unwrap_or(0)));
        }
        if self.added >= most {
            return Err(ElementError::TooMany);
        }
        self.set(key, Some(entry));
        Ok(true)
    }

    fn delete(&mut self, element: Element) -> Result<bool, ElementError> {
        let (key, entry) = self.entry(element.clone());
        if self.all.get(&key).is_some_and(|known| known.last == entry.last) {
            self.set(key, None);
            return Ok(true);
        }
        // A part of a merged range is removed and the rest stays.
        let range = Range { first: key.first().copied().unwrap_or(0), last: entry.last };
        let within = self.crossing(range).into_iter().find(|(key, one)| {
            key.first() <= Some(&range.first) && range.last <= one.last && self.auto_merge
        });
        let Some((whole, one)) = within else { return Err(ElementError::Missing(element)) };
        let first = whole.first().copied().unwrap_or(0);
        self.set(whole, None);
        if let Some(last) = range.first.checked_sub(1).filter(|last| first <= *last) {
            self.set([first].into(), Some(Entry { last, ..one.clone() }));
        }
        if let Some(first) = range.last.checked_add(1).filter(|first| *first <= one.last) {
            self.set([first].into(), Some(one));
        }
        Ok(true)
    }

    /// Takes over the elements that were added to the set of the previous rules, and the expiry of elements that are in
    /// both.
    fn inherit(&mut self, old: Self) {
        for (key, entry) in old.all {
            let known = self.all.get(&key).filter(|known| known.last == entry.last);
            let (known, ends) =
                (known.is_some(), known.is_some_and(|one| one.end != Expiry::Never));
            if ends && let Expiry::At(_) = entry.end {
                let added = false;
                self.set(key, Some(Entry { added, ..entry }));
                continue;
            }
            if known || !entry.added {
                continue;
            }
            let range = Range { first: key.first().copied().unwrap_or(0), last: entry.last };
            let full = self.size.is_some_and(|size| self.all.len() as u64 >= size);
            if self.crossing(range).is_empty() && !full {
                self.set(key, Some(entry));
            }
        }
        self.journal.clear();
    }
}
