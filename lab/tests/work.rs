//! The traffic generators between two namespaces joined by a veth pair.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use adit_lab::work::{
    Echo, Edge, Limit, Measured, Route, Search, Sizes, Window, echo_latency, iperf3, requests,
    tcp_bulk, udp_open_loop, udp_search, unreachable,
};
use adit_testbed::failure::{Result, ensure};
use adit_testbed::net::{End, Namespace, Pair, VETH};
use adit_testbed::sandbox::{Entered, enter};

type Check = fn(&Pair) -> Result<()>;

const CHECKS: &[(&str, Check)] = &[
    ("one_bulk_flow_each_way", one_bulk_flow_each_way),
    ("twenty_bulk_flows_share_the_window", twenty_bulk_flows_share_the_window),
    ("iperf3_tells_the_receivers_figure", iperf3_tells_the_receivers_figure),
    ("requests_are_answered", requests_are_answered),
    ("an_open_loop_loses_nothing_and_counts_right", an_open_loop_loses_nothing_and_counts_right),
    ("large_datagrams_come_in_fragments", large_datagrams_come_in_fragments),
    ("echoes_come_back_also_under_load", echoes_come_back_also_under_load),
    ("a_search_finds_a_limited_rate", a_search_finds_a_limited_rate),
    ("a_dead_path_is_named", a_dead_path_is_named),
    (SLOW, a_silent_path_fails_in_ten_seconds),
];

/// Waits for a limit of 10 s, so it runs only on request.
const SLOW: &str = "a_silent_path_fails_in_ten_seconds";

/// The arguments select checks by parts of their names.
fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        for (name, _) in CHECKS {
            adit_testbed::skip::skip(name, adit_testbed::skip::NEEDS_ROOT);
        }
        return ExitCode::SUCCESS;
    }
    match enter() {
        Ok(Entered::Inside(_)) => {}
        Ok(Entered::Ended(code)) => return code,
        Err(failure) => {
            eprintln!("{failure}");
            return ExitCode::FAILURE;
        }
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| match wanted.as_slice() {
        [] => name != SLOW,
        parts => parts.iter().any(|part| name.contains(part)),
    };
    let mut failed = false;
    for (name, check) in CHECKS.iter().filter(|(name, _)| wanted(name)) {
        let begun = Instant::now();
        let result = Pair::new().and_then(|pair| check(&pair));
        let seconds = begun.elapsed().as_secs_f64();
        match &result {
            Ok(()) => println!("test {name} ... ok ({seconds:.1} s)"),
            Err(failure) => println!("test {name} ... FAILED\n    {failure}"),
        }
        failed |= result.is_err();
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns whether a trial was declared invalid because this machine was busy. On a busy machine that is correct and
/// not a defect: the counts must still be consistent.
fn by_a_busy_machine(reason: &str) -> bool {
    reason.starts_with("the flows' starts lie") || reason.starts_with("the generator ")
}

const fn window(warmup: u64, length: u64) -> Window {
    Window { warmup: Duration::from_millis(warmup), length: Duration::from_millis(length) }
}

fn nothing(_: Edge) -> Result<()> {
    Ok(())
}

/// Returns `count` flows from the client, then as many from the server.
fn routes(pair: &Pair, count: usize, v6: bool) -> (Vec<Route<'_>>, Vec<Route<'_>>) {
    let route = |direction: &str, from: End, to: End, number: usize| Route {
        name: format!("{direction} {number}"),
        from: pair.namespace(from),
        to: pair.namespace(to),
        to_address: to.outer(v6),
    };
    let up = (1..=count).map(|number| route("up", End::Client, End::Server, number));
    let down = (1..=count).map(|number| route("down", End::Server, End::Client, number));
    (up.collect(), down.collect())
}

/// Returns whether the machine did not disturb the trial; fails if the trial is invalid for any other reason.
fn good(measured: &Measured, flows: usize) -> Result<bool> {
    let defect = measured.invalid.iter().find(|reason| !by_a_busy_machine(reason));
    ensure(defect.is_none(), || measured.invalid.join("; "))?;
    let busy = measured.flows.iter().filter(|flow| flow.bytes > 0).count();
    ensure(busy == flows && measured.mbps() > 0.0, || format!("{busy} of {flows} carried bytes"))?;
    Ok(measured.invalid.is_empty())
}

fn one_bulk_flow_each_way(pair: &Pair) -> Result<()> {
    for v6 in [false, true] {
        let (up, down) = routes(pair, 1, v6);
        for routes in [up, down] {
            let mut edges = Vec::new();
            let measured = tcp_bulk(&routes, &window(50, 250), &mut |edge| {
                edges.push(edge);
                Ok(())
            })?;
            good(&measured, 1)?;
            ensure(edges == [Edge::Begin, Edge::End], || format!("{edges:?}"))?;
            let coverage = measured.coverage();
            ensure(coverage > 0.0 && coverage < 1.0, || format!("coverage {coverage}"))?;
        }
    }
    let failure = tcp_bulk(&routes(pair, 1, false).0, &window(0, 5000), &mut |_| Err("no".into()));
    ensure(failure.is_err_and(|f| f.0 == "no"), || "an edge's failure was swallowed".into())
}

fn twenty_bulk_flows_share_the_window(pair: &Pair) -> Result<()> {
    let (mut both, down) = routes(pair, 20, false);
    both.extend(down);
    // If other work keeps a flow from running for half a second, a longer window must suffice.
    let mut measured = tcp_bulk(&both, &window(100, 500), &mut nothing)?;
    if measured.flows.iter().any(|flow| flow.bytes == 0) {
        measured = tcp_bulk(&both, &window(100, 5000), &mut nothing)?;
    }
    good(&measured, 40)?;
    let (up, down) = (measured.mbps_of("up"), measured.mbps_of("down"));
    ensure(up > 0.0 && down > 0.0, || format!("up {up}, down {down}"))?;
    ensure((up + down - measured.mbps()).abs() < 1e-6, || "the parts are not the whole".into())?;
    let jain = measured.jain();
    ensure(jain > 1.0 / 40.0 && jain <= 1.0, || format!("Jain's index {jain}"))
}

fn iperf3_tells_the_receivers_figure(pair: &Pair) -> Result<()> {
    for reverse in [false, true] {
        let address = End::Server.outer(false);
        let mut edges = 0;
        let measured =
            iperf3(&pair.client, &pair.server, address, &window(0, 1000), reverse, &mut |_| {
                edges += 1;
                Ok(())
            })?;
        good(&measured, 1)?;
        ensure(edges == 2 && measured.seconds > 0.5, || format!("{edges}, {measured:?}"))?;
    }
    Ok(())
}

fn requests_are_answered(pair: &Pair) -> Result<()> {
    let (routes, _) = routes(pair, 5, false);
    let (measured, times) = requests(&routes, &window(50, 300), 16 << 10, &mut nothing)?;
    good(&measured, 5)?;
    let bytes: u64 = measured.flows.iter().map(|flow| flow.bytes).sum();
    // At each edge, each flow may have one partial response.
    let whole = times.count * (16 << 10);
    ensure(times.count > 0 && bytes.abs_diff(whole) <= 10 * (16 << 10), || {
        format!("{} responses, {bytes} bytes", times.count)
    })
}

fn an_open_loop_loses_nothing_and_counts_right(pair: &Pair) -> Result<()> {
    for (v6, flows, sizes) in
        [(false, 1, Sizes::Fixed(64)), (true, 3, Sizes::Fixed(64)), (false, 3, Sizes::Imix)]
    {
        let (routes, _) = routes(pair, flows, v6);
        let window = window(50, 500);
        let udp = udp_open_loop(&routes, &window, 1000.0, sizes, &mut nothing)?;
        let undisturbed = good(&udp.measured, flows)?;
        let counts = (udp.duplicated, udp.reordered, udp.received + udp.lost, udp.latency.count);
        let right = counts == (0, 0, udp.sent, udp.received) && udp.sent <= 500;
        // A sender that a busy machine starts a moment late sends a few less.
        let whole = udp.sent >= 490 && (udp.received, udp.refused) == (udp.sent, 0);
        ensure(right && (whole || !undisturbed), || format!("{udp:?}"))?;
    }
    Ok(())
}

fn large_datagrams_come_in_fragments(pair: &Pair) -> Result<()> {
    let (_, routes) = routes(pair, 2, false);
    let udp = udp_open_loop(&routes, &window(50, 200), 500.0, Sizes::Jumbo, &mut nothing)?;
    let undisturbed = good(&udp.measured, 2)?;
    ensure(udp.received > 0 && udp.received == udp.sent, || format!("{udp:?}"))?;
    ensure(udp.received >= 98 || !undisturbed, || format!("{udp:?}"))
}

fn echoes_come_back_also_under_load(pair: &Pair) -> Result<()> {
    let address = End::Server.outer(false);
    let (client, server) = (&pair.client, &pair.server);
    let begun = Instant::now();
    let idle = echo_latency(client, server, address, 500.0, &window(20, 200))?;
    // A busy machine makes the window longer, never shorter.
    let most = begun.elapsed().as_secs_f64() * 500.0 + 1.0;
    let possible = idle.count >= 50 && idle.count as f64 <= most;
    ensure(idle.lost == 0 && possible, || format!("{idle:?}, {most:.0} at most"))?;
    let (up, _) = routes(pair, 2, false);
    let echo = Echo::start(client, server, address, 500.0)?;
    let measured = tcp_bulk(&up, &window(50, 200), &mut |edge| {
        echo.edge(edge);
        Ok(())
    })?;
    let loaded = echo.finish()?;
    good(&measured, 2)?;
    ensure(loaded.lost == 0 && loaded.count > 0, || format!("{loaded:?}"))
}

const LIMITED: f64 = 20_000.0;

fn a_search_finds_a_limited_rate(pair: &Pair) -> Result<()> {
    let nft = |rule: &[&str]| pair.server.run("nft", rule);
    nft(&["add", "table", "inet", "limited"])?;
    nft(&["add", "chain", "inet", "limited", "input", "{ type filter hook input priority 0 ; }"])?;
    let rule = format!(
        "iifname {VETH} meta l4proto udp limit rate over {LIMITED}/second burst 500 packets drop"
    );
    nft(&["add", "rule", "inet", "limited", "input", &rule])?;
    let (routes, _) = routes(pair, 2, false);
    let (probe, confirm) = (Duration::from_millis(150), Duration::from_millis(300));
    let search = Search { first_pps: 8_000.0, probe, confirm, ..Search::at(0.005) };
    let found = udp_search(&routes, Sizes::Fixed(512), &search)?;
    let factor = found.pps / LIMITED;
    // On a busy machine the generator itself may fall short, and reports it.
    let lowest = if found.limit == Limit::Loss { 0.5 } else { 0.0 };
    ensure(factor > lowest && factor < 1.5 && found.mbps > 0.0, || format!("{found:?}"))
}

/// Applies this verdict on the hosts to packets from the veth pair, until the table is deleted.
fn obstruct(hosts: &[&Namespace], verdict: &str) -> Result<()> {
    for host in hosts {
        host.run("nft", &["add", "table", "inet", "dead"])?;
        let chain = "{ type filter hook input priority 0 ; }";
        host.run("nft", &["add", "chain", "inet", "dead", "input", chain])?;
        let rule = format!("iifname {VETH} {verdict}");
        host.run("nft", &["add", "rule", "inet", "dead", "input", &rule])?;
    }
    Ok(())
}

fn a_dead_path_is_named(pair: &Pair) -> Result<()> {
    let hosts = [&pair.server, &pair.client];
    obstruct(&hosts, "meta l4proto udp drop")?;
    let (up, down) = routes(pair, 2, false);
    let silent = unreachable(&up, Duration::from_millis(250))?;
    ensure(silent == ["up 1", "up 2"], || format!("{silent:?}"))?;
    let udp = udp_open_loop(&down, &window(10, 100), 1000.0, Sizes::Fixed(64), &mut nothing)?;
    ensure(udp.received == 0 && udp.lost == udp.sent, || format!("{udp:?}"))?;
    let named = udp.measured.invalid.iter().any(|why| why == "no flow carried anything");
    ensure(named, || format!("{:?}", udp.measured.invalid))?;
    for host in hosts {
        host.run("nft", &["delete", "table", "inet", "dead"])?;
    }
    let silent = unreachable(&up, Duration::from_secs(30))?;
    ensure(silent.is_empty(), || format!("{silent:?}"))?;
    obstruct(&[&pair.server], "meta l4proto tcp reject with tcp reset")?;
    let failure = tcp_bulk(&up, &window(10, 100), &mut nothing).err();
    let failure = failure.map_or(String::new(), |failure| failure.0);
    let named = failure.contains("flow up ") && failure.contains("refused");
    ensure(named, || format!("a refused connection's failure: {failure}"))
}

fn a_silent_path_fails_in_ten_seconds(pair: &Pair) -> Result<()> {
    obstruct(&[&pair.server], "meta l4proto tcp drop")?;
    let failure = tcp_bulk(&routes(pair, 2, false).0, &window(10, 100), &mut nothing).err();
    let failure = failure.map_or(String::new(), |failure| failure.0);
    let named = failure.contains("flow up 1") && failure.contains("in 10 s");
    ensure(named, || format!("a silent path's failure: {failure}"))
}
