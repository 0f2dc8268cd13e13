//! The memory that a server keeps for clients that have left. This test runs alone in its process,
//! because it measures the memory of all threads.

mod support;

use std::time::Duration;

use adit_engine::Transport;
use adit_openvpn::server::ServerConfig;
use adit_openvpn::session::{Renegotiation, Settings};
use adit_sim::Impairment;
use support::{PlaneModel, World, client_config, server_config};

/// The number of concurrent clients.
const CLIENTS: usize = 60;
/// The tolerance in bytes of heap, because of block headers and because block sizes differ from the
/// requested sizes.
const MARGIN: usize = 512;

/// Connects clients over both transports, lets them rekey and disconnects them. Afterwards only the
/// server can have memory left for them.
fn come_and_go(w: &mut World, clients: usize, seed: u64) {
    for n in 0..clients {
        let mut config = client_config(Settings::default());
        if n % 2 == 1 {
            config.remotes[0].target.transport = Transport::Tcp;
        }
        w.connect(config, Impairment::default(), seed);
    }
    let all_have_rekeyed = |w: &World| (0..clients).all(|n| w.rekeys(n) > 0);
    assert!(w.run(Duration::from_secs(100), all_have_rekeyed), "{:?}", w.events.last());
    assert_eq!(w.server.clients().count(), clients);
    (0..clients).for_each(|n| w.cut(n));
    assert_eq!((w.server.clients().count(), w.server.handshakes()), (0, 0));
    w.clients = Vec::new();
    w.events = Vec::new();
    w.hung_up = Vec::new();
    w.asked = Vec::new();
    w.plane = PlaneModel::default();
    // After this time, the budgets of unauthenticated senders are full again.
    w.now = w.now + Duration::from_secs(100);
    w.server.release_memory(w.now);
}

#[test]
fn nothing_of_clients_that_have_gone_stays_in_memory_however_many_they_were() {
    let (after, earliest) = (Duration::from_secs(30), Duration::from_secs(30));
    let renegotiation = Renegotiation { after, earliest, ..Renegotiation::default() };
    let settings = Settings { renegotiation, ..Settings::default() };
    // All clients have the same name, as with `duplicate-cn`.
    let config = ServerConfig { duplicate_cn: true, ..server_config(settings) };
    let mut w = World::new(config, 1);
    // Connect one client over each transport. Afterwards the libraries have made their one-time
    // allocations, and the entry that is kept on purpose (the address of a name) exists.
    come_and_go(&mut w, 2, 2);
    let Some(before) = adit_linux::memory::in_use() else { return };
    let mut after = before;
    for round in 3..5 {
        come_and_go(&mut w, CLIENTS, round);
        after = adit_linux::memory::in_use().expect("it was known before");
        assert!(after <= before + MARGIN, "{before} bytes before, {after} bytes after");
    }
    // Check that the measurement detects remaining bytes.
    let kept = vec![1_u8; 2 * MARGIN];
    assert!(adit_linux::memory::in_use().expect("known") > after + MARGIN);
    drop(kept);
}
