//! The order of hooks that concern the same client or address.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Hands out turns. Turns of the same key come one after the other, in the order in which they were taken; turns of
/// different keys do not wait for each other. The table has an entry for each key with an open turn, of which each
/// session has a few.
#[derive(Debug)]
pub(super) struct Turns<K>(Arc<Mutex<Table<K>>>);

#[derive(Debug)]
struct Table<K> {
    /// The number of the last turn of each key, and the end of that turn.
    last: HashMap<K, (u64, oneshot::Receiver<()>)>,
    next: u64,
}

/// A place in the order. The next turn of the same key begins when it is dropped.
#[derive(Debug)]
pub(super) struct Turn<K: Clone + Eq + Hash> {
    key: K,
    number: u64,
    previous: Option<oneshot::Receiver<()>>,
    /// Dropped together with the turn, which is what the next one waits for.
    _end: oneshot::Sender<()>,
    table: Arc<Mutex<Table<K>>>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Table { last: HashMap::new(), next: 0 })))
    }
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// Takes the next turn of a key.
    pub(super) fn take(&self, key: K) -> Turn<K> {
        let (end, ended) = oneshot::channel();
        let mut table = lock(&self.0);
        let number = table.next;
        table.next = table.next.wrapping_add(1);
        let previous = table.last.insert(key.clone(), (number, ended)).map(|(_, ended)| ended);
        drop(table);
        Turn { key, number, previous, _end: end, table: Arc::clone(&self.0) }
    }

    /// Returns the number of keys with an open turn.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.0).last.len()
    }
}

impl<K: Clone + Eq + Hash> Turn<K> {
    /// Waits until the previous turn of the key has ended.
    pub(super) async fn begin(&mut self) {
        if let Some(previous) = &mut self.previous {
            // The other end is dropped, never used.
            let _ = previous.await;
        }
        self.previous = None;
    }
}

impl<K: Clone + Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        if table.last.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            table.last.remove(&self.key);
        }
        if table.last.is_empty() {
            table.last.shrink_to_fit();
        }
    }
}

fn lock<K>(table: &Mutex<Table<K>>) -> MutexGuard<'_, Table<K>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns whether a turn can begin now.
    fn may_begin(turn: &mut Turn<&str>) -> bool {
        let mut begin = std::pin::pin!(turn.begin());
        begin.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn turns_of_a_key_come_in_order_and_others_do_not_wait() {
        let turns = Turns::default();
        let (mut first, mut second) = (turns.take("a"), turns.take("a"));
        let (mut third, mut other) = (turns.take("a"), turns.take("b"));
        assert!(may_begin(&mut other) && may_begin(&mut first));
        assert!(!may_begin(&mut second), "the first is open");
        drop(first);
        assert!(may_begin(&mut second));
        assert!(!may_begin(&mut third), "the second is open");
        drop(second);
        assert!(may_begin(&mut third));
        assert_eq!(turns.len(), 2);
        drop((third, other));
        assert_eq!(turns.len(), 0, "nothing is kept of keys without a turn");
    }
}
