//! The bare forwarding loop, without control thread, privileges or checks. It joins two TAP devices until the program
//! is killed, and filters by the rules of a file if one is given.
//!
//! Example: join private public packaging/examples/simple-fw.nft

use std::error::Error;
use std::sync::Arc;

use adit_bridge::{Bridge, Policy, Port};
use adit_filter::{Filter, Firewall, firewall, lang};
use adit_linux::tun::TunOffloads;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [a, b, rest @ ..] = arguments.as_slice() else {
        return Err("name two TAP devices to be made, and a rule file if there is one".into());
    };
    let policy = match rest.first() {
        None => Policy::Relay,
        Some(path) => {
            let text = std::fs::read_to_string(path)?;
            let rules =
                lang::parse(path, &text, &mut |_| Err(std::io::ErrorKind::Unsupported.into()))?;
            let limits = firewall::Limits::default();
            // A fixed seed suffices for a tool that is not exposed to attackers; elsewhere it is random.
            Policy::Filter(Firewall::new(Filter::compile(rules)?, limits, [7; 16]))
        }
    };
    let offloads = match std::env::var_os("ADIT_DISABLE") {
        Some(_) => TunOffloads::NONE,
        None => TunOffloads::ALL,
    };
    let ports = [Port::tap(a, 1, offloads)?, Port::tap(b, 1, offloads)?];
    let bridge = Arc::new(Bridge::start(ports, &policy, 1, || Ok(()))?);
    println!("{} and {} are joined", bridge.ports()[0].name, bridge.ports()[1].name);
    loop {
        std::thread::park();
    }
}
