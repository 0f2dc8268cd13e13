use super::*;
use crate::roster::testing::{Signer, admit, genesis, grant_admin, write};
use crate::roster::{Genesis, MemoryDirectory};

const START: Instant = Instant::from_nanos(1_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);

/// A node without sessions.
struct TestNode {
    now: Instant,
    changes: Changes,
    sync: DirectorySync,
    signers: BTreeSet<KeyHash>,
}

impl TestNode {
    fn new(changes: &Changes, signers: &[&Signer]) -> Self {
        let mut sync = DirectorySync::new(START, &[0; 32], changes);
        sync.connected(START);
        let signers = signers.iter().map(|signer| signer.hash).collect();
        Self { now: START, changes: changes.clone(), sync, signers }
    }

    /// Passes requests to the directory until there are none left. Returns the number of requests.
    fn pump(&mut self, directory: &mut MemoryDirectory) -> usize {
        for count in 0..2000 {
            let Some(request) = self.sync.request(self.now, &self.changes, &self.signers) else {
                return count;
            };
            let Ok(answer) = request.perform(directory);
            for change in self.sync.answer(self.now, answer, &self.changes) {
                let mut added = Vec::new();
                let _ = self.changes.insert_into(change, &mut added);
                self.sync.added(self.now, &added, &self.changes);
            }
        }
        panic!("requests without end");
    }

    fn pump_after(&mut self, time: Duration, directory: &mut MemoryDirectory) -> usize {
        self.now = self.now + time;
        self.pump(directory)
    }

    fn write(&mut self, signer: &Signer, number: u8) -> ChangeHash {
        let hash = write(&mut self.changes, signer, admit(number));
        self.sync.added(self.now, &[hash], &self.changes);
        hash
    }

    fn lacks(&self) -> Option<usize> {
        self.sync.lacks(self.now, &self.changes)
    }
}

/// Returns two admins, and a set in which both have a chain.
fn mesh() -> ([Signer; 2], Changes) {
    let admins = [Signer::new(1), Signer::new(2)];
    let mut changes = Changes::new(genesis(&admins[..1], 1)).unwrap();
    write(&mut changes, &admins[0], grant_admin(&admins[1]));
    (admins, changes)
}

#[test]
fn nodes_without_sessions_have_the_same_changes_through_a_directory() {
    let (admins, changes) = mesh();
    let mut one = TestNode::new(&changes, &[&admins[0]]);
    let mut other = TestNode::new(&changes, &[&admins[1]]);
    let mut directory = MemoryDirectory::default();
    one.pump(&mut directory);
    for n in 0..100 {
        one.write(&admins[0], n);
        other.write(&admins[1], 100 + n);
    }
    one.pump(&mut directory);
    other.pump(&mut directory);
    one.sync.news(START + SECOND);
    one.pump(&mut directory);
    other.sync.news(START + SECOND);
    other.pump(&mut directory);
    assert_eq!(one.changes.digest(), other.changes.digest());
    assert_eq!((one.changes.len(), one.sync.rows()), (201, 201));
    for node in [&mut one, &mut other] {
        node.pump_after(SUMMARY_INTERVAL, &mut directory);
        let counters = node.sync.counters();
        assert_eq!((counters.mismatches, counters.withheld, counters.invalid), (0, 0, 0));
        assert_eq!(node.lacks(), Some(0));
    }
    assert_eq!(one.sync.counters().appended, 101);
}

#[test]
fn a_node_appends_no_chain_of_another_signer_and_says_what_is_missing() {
    let (admins, changes) = mesh();
    let mut node = TestNode::new(&changes, &[&admins[1]]);
    let mut directory = MemoryDirectory::default();
    assert_eq!(node.lacks(), None, "nothing was read");
    node.pump(&mut directory);
    assert_eq!(directory.read(0), Ok(Vec::new()));
    assert_eq!(node.lacks(), Some(0), "the grace");
    node.pump_after(GRACE, &mut directory);
    assert_eq!((node.lacks(), node.sync.counters().withheld), (Some(1), 1));
    node.sync.disconnected();
    assert_eq!(node.lacks(), None, "without a connection");
}

#[test]
fn a_lost_notification_is_made_up_for_by_the_interval() {
    let (admins, changes) = mesh();
    let mut one = TestNode::new(&changes, &[&admins[0]]);
    let mut other = TestNode::new(&changes, &[]);
    let mut directory = MemoryDirectory::default();
    one.pump(&mut directory);
    other.pump(&mut directory);
    one.write(&admins[0], 1);
    one.pump(&mut directory);
    assert_eq!(other.pump_after(READ_INTERVAL - SECOND, &mut directory), 0);
    other.pump_after(SECOND, &mut directory);
    assert_eq!(other.changes.digest(), one.changes.digest());
}

#[test]
fn news_are_read_at_once_and_floods_of_them_at_intervals() {
    let (admins, changes) = mesh();
    let mut directory = MemoryDirectory::default();
    let mut node = TestNode::new(&changes, &[&admins[0]]);
    node.pump(&mut directory);
    node.now = node.now + NEWS_INTERVAL;
    node.sync.news(node.now);
    // A notification arrives during the read that an earlier one triggered.
    let request = node.sync.request(node.now, &node.changes, &node.signers).unwrap();
    let Ok(answer) = request.perform(&mut directory);
    (0..100).for_each(|_| node.sync.news(node.now));
    node.sync.answer(node.now, answer, &node.changes);
    assert_eq!(node.pump(&mut directory), 0);
    assert_eq!(node.pump_after(NEWS_INTERVAL, &mut directory), 1);
    assert_eq!(node.pump_after(NEWS_INTERVAL, &mut directory), 0);
}

#[test]
fn a_removed_entry_is_noticed_and_appended_again_by_its_signer() {
    let (admins, changes) = mesh();
    let mut node = TestNode::new(&changes, &[&admins[0]]);
    let mut directory = MemoryDirectory::default();
    node.write(&admins[0], 1);
    node.pump(&mut directory);
    directory.remove(&admins[0].hash, 2).unwrap();
    node.pump_after(SUMMARY_INTERVAL, &mut directory);
    let counters = node.sync.counters();
    assert_eq!((counters.mismatches, counters.withheld, counters.appended), (1, 1, 3));
    assert_eq!(directory.read(0).unwrap().len(), 2);
    node.pump_after(SUMMARY_INTERVAL, &mut directory);
    assert_eq!((node.sync.counters().mismatches, node.lacks()), (1, Some(0)));
}

#[test]
fn a_directory_that_goes_back_is_read_again_although_its_places_were_seen() {
    let (admins, changes) = mesh();
    let mut one = TestNode::new(&changes, &[&admins[0]]);
    let mut other = TestNode::new(&changes, &[&admins[1]]);
    let mut directory = MemoryDirectory::default();
    one.pump(&mut directory);
    let before = directory.clone();
    other.write(&admins[1], 1);
    other.pump(&mut directory);
    one.pump_after(READ_INTERVAL, &mut directory);
    // A backup is restored, and a new change takes the number of the lost one.
    directory = before;
    one.write(&admins[0], 2);
    one.pump(&mut directory);
    other.pump_after(SUMMARY_INTERVAL, &mut directory);
    assert_eq!(other.sync.counters().mismatches, 1);
    assert_eq!(other.changes.digest(), one.changes.digest());
    assert_eq!(directory.read(0).unwrap().len(), 3, "the lost one is there again");
}

#[test]
fn entries_that_are_no_change_of_their_signer_and_number_are_counted_and_slow_reading_down() {
    let (admins, changes) = mesh();
    let change = changes.in_causal_order()[0].encode();
    let mut elsewhere =
        Changes::new(Genesis { random: [8; 32], ..genesis(&admins[..1], 1) }).unwrap();
    let hash = write(&mut elsewhere, &admins[0], admit(1));
    let foreign = elsewhere.get(&hash).unwrap().encode();
    let mut forged = change.clone();
    *forged.last_mut().unwrap() ^= 1;
    for (signer, number, bytes) in [
        (admins[0].hash, 1, foreign),
        (admins[0].hash, 1, forged),
        (admins[0].hash, 2, change.clone()),
        (admins[1].hash, 1, change.clone()),
        (admins[0].hash, 1, Vec::new()),
    ] {
        let mut directory = MemoryDirectory::default();
        directory.put(signer, number, bytes);
        let bare = Changes::new(changes.genesis().clone()).unwrap();
        let mut node = TestNode::new(&bare, &[]);
        node.pump(&mut directory);
        assert_eq!((node.changes.len(), node.sync.counters().invalid), (0, 1));
        assert_eq!(node.sync.invalid_rows(), 1);
        directory.put(admins[0].hash, 1, change.clone());
        node.sync.news(node.now + NEWS_INTERVAL);
        node.pump(&mut directory);
        assert_eq!(node.changes.len(), 0, "reading pauses");
        node.pump_after(INVALID_PAUSE, &mut directory);
        assert_eq!(node.changes.len(), 1);
    }
}

#[test]
fn an_entry_out_of_order_is_not_used() {
    let (_, changes) = mesh();
    let bare = Changes::new(changes.genesis().clone()).unwrap();
    let mut node = TestNode::new(&bare, &[]);
    let change = changes.in_causal_order()[0];
    let bytes = change.encode();
    let entry = Entry { place: 7, signer: change.signer(), number: 1, bytes };
    let again = Entry { place: 6, ..entry.clone() };
    node.sync.request(START, &bare, &node.signers).unwrap();
    let new = node.sync.answer(START, Answer::Entries(vec![entry, again]), &bare);
    assert_eq!((new.len(), node.sync.counters().invalid), (1, 1));
}

#[test]
fn an_entry_in_the_way_of_a_change_is_a_conflict_and_its_change_proves_a_fork() {
    let (admins, changes) = mesh();
    let mut copy = changes.clone();
    let (mut one, mut directory) =
        (TestNode::new(&changes, &[&admins[0]]), MemoryDirectory::default());
    one.pump(&mut directory);
    // The same key is used on another machine, which reaches the directory first.
    let hash = write(&mut copy, &admins[0], admit(9));
    let theirs = copy.get(&hash).unwrap().encode();
    one.write(&admins[0], 1);
    one.write(&admins[0], 2);
    let request = one.sync.request(one.now, &one.changes, &one.signers).unwrap();
    directory.put(admins[0].hash, 2, theirs);
    let Ok(answer) = request.perform(&mut directory);
    let new = one.sync.answer(one.now, answer, &one.changes);
    assert_eq!(new.iter().map(Change::hash).collect::<Vec<_>>(), [hash]);
    for change in new {
        one.changes.insert(change).unwrap();
    }
    assert_eq!(one.changes.forks().count(), 1);
    one.pump(&mut directory);
    one.pump_after(GRACE + SUMMARY_INTERVAL, &mut directory);
    assert_eq!((one.lacks(), one.sync.conflicts(&one.changes)), (Some(0), 2));
}

#[test]
fn what_the_directory_takes_and_does_not_show_is_not_appended_without_end() {
    let (admins, changes) = mesh();
    let mut node = TestNode::new(&changes, &[&admins[0]]);
    let mut appends = 0;
    for _ in 0..100 {
        let Some(request) = node.sync.request(node.now, &node.changes, &node.signers) else {
            break;
        };
        let answer = match request {
            Request::Read { .. } => Answer::Entries(Vec::new()),
            Request::Summarize { .. } => Answer::Summary(Vec::new()),
            Request::Append { .. } => {
                appends += 1;
                Answer::Appended(Append::Added)
            }
        };
        node.sync.answer(node.now, answer, &node.changes);
    }
    assert_eq!(appends, 1);
    assert_eq!(node.sync.request(node.now, &node.changes, &node.signers), None);
}

#[test]
fn a_refused_append_is_tried_again_later() {
    let (admins, changes) = mesh();
    let mut node = TestNode::new(&changes, &[&admins[0]]);
    let mut directory = MemoryDirectory::default();
    for answer in [Answer::Entries(Vec::new()), Answer::Summary(Vec::new()), Answer::Refused] {
        node.sync.request(node.now, &node.changes, &node.signers).unwrap();
        node.sync.answer(node.now, answer, &node.changes);
    }
    node.pump(&mut directory);
    assert_eq!((node.sync.counters().refused, directory.read(0).unwrap().len()), (1, 0));
    node.pump_after(RETRY, &mut directory);
    assert_eq!(directory.read(0).unwrap().len(), 1);
}

#[test]
fn an_answer_after_the_connection_ended_is_of_no_request() {
    let (admins, changes) = mesh();
    let mut directory = MemoryDirectory::default();
    let mut one = TestNode::new(&changes, &[&admins[0]]);
    one.pump(&mut directory);
    let bare = Changes::new(changes.genesis().clone()).unwrap();
    let mut node = TestNode::new(&bare, &[]);
    let request = node.sync.request(START, &bare, &node.signers).unwrap();
    assert_eq!(node.sync.request(START, &bare, &node.signers), None, "one at a time");
    node.sync.disconnected();
    let Ok(answer) = request.perform(&mut directory);
    assert!(node.sync.answer(START, answer, &bare).is_empty());
    assert_eq!(node.sync.request(START, &bare, &node.signers), None, "not connected");
    node.sync.connected(START);
    node.pump(&mut directory);
    assert_eq!(node.changes.len(), 1);
}

#[test]
fn entries_beyond_the_bound_are_used_and_not_remembered() {
    let (admins, changes) = mesh();
    let mut directory = MemoryDirectory::default();
    for number in 0..MAX_ROWS as u32 {
        directory.put([9; 32], number, Vec::new());
    }
    directory.put(admins[0].hash, 1, changes.in_causal_order()[0].encode());
    let bare = Changes::new(changes.genesis().clone()).unwrap();
    let mut node = TestNode::new(&bare, &[]);
    for _ in 0..=MAX_ROWS / MAX_READ {
        node.pump_after(INVALID_PAUSE, &mut directory);
    }
    assert_eq!((node.sync.rows(), node.sync.counters().full), (MAX_ROWS, 1));
    assert_eq!(node.changes.len(), 1);
    assert_eq!(node.sync.counters().mismatches, 0, "it cannot be compared");
}

#[test]
fn changes_that_found_no_place_are_read_again() {
    let (admins, mut changes) = mesh();
    write(&mut changes, &admins[1], admit(1));
    let mut directory = MemoryDirectory::default();
    for change in changes.in_causal_order() {
        directory.put(change.signer(), change.body().number, change.encode());
    }
    let bare = Changes::new(changes.genesis().clone()).unwrap();
    let mut node = TestNode::new(&bare, &[]);
    // The node drops what it reads at first.
    node.sync.request(START, &bare, &node.signers).unwrap();
    let Ok(entries) = directory.read(0);
    assert_eq!(node.sync.answer(START, Answer::Entries(entries), &bare).len(), 2);
    node.pump(&mut directory);
    assert_eq!(node.changes.digest(), changes.digest());
    assert_eq!(node.sync.counters().mismatches, 0);
}

#[test]
fn an_operator_compares_at_once_and_not_without_end() {
    let (admins, changes) = mesh();
    let mut node = TestNode::new(&changes, &[&admins[0]]);
    let mut directory = MemoryDirectory::default();
    node.pump(&mut directory);
    node.sync.check(node.now);
    assert_eq!(node.pump(&mut directory), 0);
    assert_eq!(node.pump_after(CHECK_INTERVAL, &mut directory), 1);
    assert_eq!(node.pump_after(CHECK_INTERVAL, &mut directory), 0);
}
