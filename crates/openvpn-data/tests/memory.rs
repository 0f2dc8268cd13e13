//! Tests of the memory that a data plane keeps for removed peers. They run alone in their process, because they read the memory in use by
//! all threads.

mod common;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use adit_dataplane::Relay;
use adit_engine::PeerId;
use adit_engine::command::KeySlot;
use adit_openvpn::data_format::Command;
use adit_openvpn_data::LoopbackPlane;
use common::{End, key, link, spec};

/// A margin for the headers of the allocator's blocks, whose sizes differ from the requested ones.
const MARGIN: usize = 512;

/// Waits until the other thread, which has started the test, waits for its end. What it allocates before that is in use as well.
fn wait_for_harness() {
    let own = fs::read_link("/proc/thread-self").unwrap();
    let waits = |task: PathBuf| {
        own.ends_with(task.file_name().unwrap())
            || fs::read_to_string(task.join("stat")).is_ok_and(|stat| stat.contains(") S "))
    };
    while !fs::read_dir("/proc/self/task").unwrap().all(|task| waits(task.unwrap().path())) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Adds peers with keys and routes, and removes them again.
fn come_and_go(end: &mut End, ids: std::ops::Range<u32>) {
    for id in ids.clone() {
        let link = link((id % 250) as u8, 1000 + (id % 1000) as u16);
        end.apply(Command::AdmitLink(link));
        end.apply(Command::AddPeer(PeerId(id), spec(link)));
        end.apply(Command::InstallKey(PeerId(id), KeySlot::Primary, key(1, 0, true)));
        let [_, high, middle, low] = id.to_be_bytes();
        let own = format!("10.{high}.{middle}.{low}/32").parse().unwrap();
        let behind = format!("fd00:{id:x}::/64").parse().unwrap();
        end.apply(Command::SetRoutes(PeerId(id), vec![own, behind]));
    }
    for id in ids {
        end.apply(Command::DismissLink(link((id % 250) as u8, 1000 + (id % 1000) as u16)));
        end.apply(Command::DelPeer(PeerId(id)));
    }
    while end.upcalls.drain_silently(|_| ()) {}
    end.memory.plane().release_memory();
}

#[test]
fn nothing_of_peers_that_have_gone_stays_in_memory_however_many_they_were() {
    wait_for_harness();
    let mut end = End::new(Relay::Kernel, false);
    come_and_go(&mut end, 0..2);
    let Some(before) = adit_linux::memory::in_use() else { return };
    let mut after = before;
    for ids in [2..300, 40_000..40_300] {
        come_and_go(&mut end, ids);
        after = adit_linux::memory::in_use().unwrap();
        assert!(after <= before + MARGIN, "{before} bytes before, {after} bytes after");
    }
    // Shows that the measurement would detect bytes that are not freed.
    let kept = vec![1_u8; 2 * MARGIN];
    assert!(adit_linux::memory::in_use().unwrap() > after + MARGIN);
    drop(kept);
}
