//! Client and server engines on a simulated network.

mod support;

use std::time::Duration;

use adit_openvpn::session::{Renegotiation, Settings};
use adit_sim::{Impairment, Loss};
use support::{World, client_config, server_config};

const SECOND: Duration = Duration::from_secs(1);

fn rough(loss: f64) -> Impairment {
    Impairment {
        loss: Loss::Random(loss),
        duplicate: 0.05,
        reorder: 0.1,
        reorder_by: Duration::from_millis(60),
        delay: Duration::from_millis(25),
        jitter: Duration::from_millis(10),
    }
}

#[test]
fn a_client_connects_and_gets_its_options() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(SECOND, |w| w.is_up(c)), "{:?}\n{:?}", w.events, w.clients[c].events);
}

#[test]
fn handshakes_complete_within_a_minute_in_a_thousand_bad_networks() {
    let mut slow = Vec::new();
    for seed in 0..1000 {
        let loss = f64::from((seed % 11) as u32) / 100.0;
        let mut w = World::new(server_config(Settings::default()), seed);
        let c = w.connect(client_config(Settings::default()), rough(loss), seed);
        if !w.run(60 * SECOND, |w| w.is_up(c)) {
            slow.push((seed, loss));
        }
    }
    assert!(slow.is_empty(), "not up after 60 s: {slow:?}");
}
