//! What a server keeps of clients that have gone. Alone in its process: it looks at what all threads have in use.

mod support;

use std::time::Duration;

use adit_engine::Transport;
use adit_openvpn::server::ServerConfig;
use adit_openvpn::session::{Renegotiation, Settings};
use adit_sim::Impairment;
use support::{PlaneModel, World, client_config, server_config};

/// Clients at once.
const CLIENTS: usize = 60;
/// Bytes of the heap that may differ: headers of blocks, which are of other sizes than were asked for.
const MARGIN: usize = 512;

/// Clients come by either transport, renegotiate their keys and go, and nothing of them is left outside of the server.
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
    // What is held against strangers is forgotten by then.
    w.now = w.now + Duration::from_secs(100);
    w.server.release_memory(w.now);
}

#[test]
fn nothing_of_clients_that_have_gone_stays_in_memory_however_many_they_were() {
    let (after, earliest) = (Duration::from_secs(30), Duration::from_secs(30));
    let renegotiation = Renegotiation { after, earliest, ..Renegotiation::default() };
    let settings = Settings { renegotiation, ..Settings::default() };
    // All of one name, as with `duplicate-cn`.
    let config = ServerConfig { duplicate_cn: true, ..server_config(settings) };
    let mut w = World::new(config, 1);
    // One of each transport: what libraries make once, they have made then, and what is remembered on purpose (the
    // certificates whose signature is right, the address of a name) is there.
    come_and_go(&mut w, 2, 2);
    let Some(before) = adit_linux::memory::in_use() else { return };
    let mut after = before;
    for round in 3..5 {
        come_and_go(&mut w, CLIENTS, round);
        after = adit_linux::memory::in_use().expect("it was known before");
        assert!(after <= before + MARGIN, "{before} bytes before, {after} bytes after");
    }
    // Bytes that stay would be seen.
    let kept = vec![1_u8; 2 * MARGIN];
    assert!(adit_linux::memory::in_use().expect("known") > after + MARGIN);
    drop(kept);
}
