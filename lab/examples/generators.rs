//! Measures the traffic generators and iperf3 on a bare veth pair: the ceiling of everything that the lab measures.
//!
//!     sudo cargo run --release -p adit-lab --example generators

use std::process::ExitCode;
use std::time::Duration;

use adit_lab::work::{
    Edge, Route, Search, Sizes, Window, echo_latency, iperf3, requests, tcp_bulk, udp_open_loop,
    udp_search,
};
use adit_testbed::failure::Result;
use adit_testbed::net::{End, Pair};
use adit_testbed::sandbox::{Entered, enter};

const WINDOW: Window = Window { warmup: Duration::from_secs(1), length: Duration::from_secs(2) };

fn main() -> ExitCode {
    let done = match enter() {
        Ok(Entered::Inside(_)) => measure(),
        Ok(Entered::Ended(code)) => return code,
        Err(failure) => Err(failure),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<()> {
    let pair = Pair::new()?;
    let address = End::Server.outer(false);
    let nothing = &mut |_: Edge| Ok(());
    let routes = |count: usize| -> Vec<Route<'_>> {
        let route = |number: usize| Route {
            name: format!("up {number}"),
            from: &pair.client,
            to: &pair.server,
            to_address: address,
        };
        (1..=count).map(route).collect()
    };
    for round in 1..=3 {
        let own = tcp_bulk(&routes(1), &WINDOW, nothing)?;
        let iperf = iperf3(&pair.client, &pair.server, address, &WINDOW, false, nothing)?;
        println!("round {round}: own {:.0} Mb/s, iperf3 {:.0} Mb/s", own.mbps(), iperf.mbps());
    }
    let many = tcp_bulk(&routes(100), &WINDOW, nothing)?;
    println!(
        "100 flows: {:.0} Mb/s, Jain {:.3}, skew {:.2} %, coverage {:.3}, {:?}",
        many.mbps(),
        many.jain(),
        many.skew * 100.0,
        many.coverage(),
        many.invalid
    );
    for flows in [1, 20] {
        let (_, times) = requests(&routes(flows), &WINDOW, 16 << 10, nothing)?;
        println!(
            "requests over {flows}: {} a second, p50 {:?} ms, p99 {:?} ms",
            times.count / WINDOW.length.as_secs(),
            times.at(0.5),
            times.at(0.99)
        );
    }
    let idle = echo_latency(&pair.client, &pair.server, address, 500.0, &WINDOW)?;
    println!("echo: p50 {:?} ms, p99 {:?} ms, {} lost", idle.at(0.5), idle.at(0.99), idle.lost);
    for pps in [1_000.0, 20_000.0, 100_000.0] {
        let udp = udp_open_loop(&routes(10), &WINDOW, pps, Sizes::Imix, nothing)?;
        println!(
            "UDP at {pps}: offered {:.0}, lost {}, reordered {}, one way p50 {:?} p99 {:?} ms, sender late p50 {:?} p99 {:?} ms {:?}",
            udp.offered_pps,
            udp.lost,
            udp.reordered,
            udp.latency.at(0.5),
            udp.latency.at(0.99),
            udp.lateness.at(0.5),
            udp.lateness.at(0.99),
            udp.measured.invalid
        );
    }
    for loss in [0.0, 0.005] {
        let found = udp_search(&routes(1), Sizes::Fixed(1400), &Search::at(loss))?;
        println!(
            "search at {loss}: {:.0} a second, {:.0} Mb/s, limit {:?}, {} probes",
            found.pps,
            found.mbps,
            found.limit,
            found.probes.len()
        );
        for probe in &found.probes {
            println!("    {:>9.0}  loss {:.4}  kept {}", probe.pps, probe.loss, probe.kept);
        }
    }
    Ok(())
}
