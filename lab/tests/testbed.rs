//! Testbeds in a sandbox, one case after the other. Needs root; without it each case is reported as skipped.
//!
//! No result depends on the wall clock: each case waits for the counter or the process state that shows what it
//! asserts.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_lab::measure::{Edge, Meter};
use adit_lab::record::Measurement;
use adit_lab::testbed::{LinkMode, Relay, RelayCounters, Testbed};
use adit_sim::{Impairment, Loss};
use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_testbed::net::Namespace;
use adit_testbed::process::Daemon;
use adit_testbed::sandbox::{self, Entered};
use adit_testbed::traffic::roomy;
use adit_testbed::wait::{ScaledInstant, until};

/// The time limit of each wait for an expected event.
const LIMIT: Duration = Duration::from_secs(20);

type Case = (&'static str, fn() -> Result<()>);

const CASES: &[Case] = &[
    ("a_pair_is_what_its_mode_says", pair_modes),
    ("a_star_reaches_all_its_clients", star),
    ("a_star_is_what_its_mode_says", star_modes),
    ("a_line_without_impairment_passes_everything", line_passes),
    ("a_line_that_loses_all_passes_nothing", line_loses),
    ("a_line_delays_and_can_be_changed_while_it_runs", line_delays),
    ("a_line_passes_single_packets_of_tcp", line_tcp),
    ("a_meter_sees_the_window_and_an_end", meter),
    ("datagrams_dropped_at_full_sockets_are_seen", drops),
];

const MODES: [LinkMode; 3] = [LinkMode::Offload, LinkMode::WireGro, LinkMode::Wire];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| filters.iter().any(|filter| name.contains(filter.as_str()));
    let chosen: Vec<&Case> =
        CASES.iter().filter(|(name, _)| filters.is_empty() || wanted(name)).collect();
    if words.iter().any(|word| word == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if chosen.is_empty() {
        return ExitCode::SUCCESS;
    }
    if !nix::unistd::geteuid().is_root() {
        chosen
            .iter()
            .for_each(|(name, _)| adit_testbed::skip::skip(name, adit_testbed::skip::NEEDS_ROOT));
        return ExitCode::SUCCESS;
    }
    match sandbox::enter() {
        Ok(Entered::Ended(code)) => code,
        Ok(Entered::Inside(_sandbox)) => run(&chosen),
        Err(failure) => {
            eprintln!("no sandbox: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(cases: &[&Case]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for (name, case) in cases {
        let started = Instant::now();
        match case() {
            Ok(()) => println!("test {name} ... ok ({:.1} s)", started.elapsed().as_secs_f64()),
            Err(failure) => {
                code = ExitCode::FAILURE;
                println!("test {name} ... FAILED: {failure}");
            }
        }
    }
    code
}

fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| Failure::from("a thread panicked"))?
}

fn any(like: SocketAddr) -> SocketAddr {
    SocketAddr::new(if like.is_ipv6() { [0; 16].into() } else { [0; 4].into() }, 0)
}

/// Returns the address of a socket in a host, and the thread that owns it; the address is known when this returns.
fn receiver<T: Send + 'static>(
    host: &Namespace,
    address: IpAddr,
    work: impl FnOnce(UdpSocket) -> Result<T> + Send + 'static,
) -> Result<(SocketAddr, JoinHandle<Result<T>>)> {
    let (tell, told) = mpsc::channel();
    let thread = host.thread(move || {
        let socket = UdpSocket::bind(SocketAddr::new(address, 0))?;
        tell.send(socket.local_addr()?).context("nobody sends")?;
        work(socket)
    })?;
    Ok((told.recv().context("the receiver did not come up")?, thread))
}

/// Sends one TCP stream of this many times 64 KiB, and checks that all of it arrives.
fn tcp(from: &Namespace, to: &Namespace, address: IpAddr, chunks: u64) -> Result<()> {
    let (tell, told) = mpsc::channel();
    let server = to.thread(move || {
        let listener = TcpListener::bind(SocketAddr::new(address, 0))?;
        tell.send(listener.local_addr()?).context("the client is gone")?;
        let (mut stream, _) = listener.accept()?;
        Ok(std::io::copy(&mut stream, &mut std::io::sink())?)
    })?;
    let address = told.recv().context("the server did not come up")?;
    let client = from.thread(move || {
        let mut stream = TcpStream::connect(address)?;
        let chunk = vec![7; 1 << 16];
        (0..chunks).try_for_each(|_| stream.write_all(&chunk))?;
        Ok(())
    })?;
    join(client)?;
    let got = join(server)?;
    ensure(got == chunks << 16, || format!("{got} bytes of {chunks} times 64 KiB came"))
}

fn largest(testbed: &Testbed) -> Result<u64> {
    testbed.largest_frame(|| {
        tcp(&testbed.clients[0], &testbed.server, testbed.server_outer(false), 64)
    })
}

fn pair_modes() -> Result<()> {
    for mode in MODES {
        let testbed = Testbed::pair(mode)?;
        let largest = largest(&testbed)?;
        testbed.check_mode(largest)?;
        // Full packets always cross; super-packets only if nothing forbids them.
        let expected = if mode == LinkMode::Offload { 1515..=1 << 17 } else { 1514..=1514 };
        ensure(expected.contains(&largest), || format!("{mode}: a frame of {largest} bytes"))?;
        tcp(&testbed.server, &testbed.clients[0], testbed.client_outer(0, true), 16)?;
        let features = testbed.server.run("ethtool", &["-k", "veth0"])?;
        let gro = features.contains("generic-receive-offload: on");
        ensure(gro == (mode == LinkMode::WireGro), || format!("{mode}: {features}"))?;
        let tso = features.contains("tcp-segmentation-offload: on");
        ensure(tso == (mode == LinkMode::Offload), || format!("{mode}: {features}"))?;
    }
    Ok(())
}

/// Answers datagrams on a detached thread until this process ends.
fn echo(host: &Namespace, address: IpAddr) -> Result<SocketAddr> {
    let (at, _thread) = receiver(host, address, |socket| -> Result<()> {
        let mut buffer = [0; 64];
        loop {
            let (length, from) = socket.recv_from(&mut buffer)?;
            // The sender and its host may already be gone.
            let _ = socket.send_to(&buffer[..length], from);
        }
    })?;
    Ok(at)
}

/// Sends requests to an echo until it answers, for at most `limit`.
fn answers(from: &Namespace, to: SocketAddr, limit: Duration) -> Result<bool> {
    join(from.thread(move || {
        let socket = UdpSocket::bind(any(to))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut buffer = [0; 64];
        let end = ScaledInstant::now() + limit;
        while ScaledInstant::now() < end {
            if socket.send_to(b"hello", to).is_err() {
                std::thread::sleep(Duration::from_millis(20));
            } else if matches!(socket.recv_from(&mut buffer), Ok((5, from)) if from == to) {
                return Ok(true);
            }
        }
        Ok(false)
    })?)
}

fn reaches(from: &Namespace, to: SocketAddr) -> Result<bool> {
    answers(from, to, LIMIT)
}

/// How long an echo must stay silent, on a path on which the others have just answered.
const SILENCE: Duration = Duration::from_millis(800);

fn star() -> Result<()> {
    let testbed = Testbed::star(30, LinkMode::Offload)?;
    ensure(testbed.clients.len() == 30, || format!("{} clients", testbed.clients.len()))?;
    for v6 in [false, true] {
        let server = echo(&testbed.server, testbed.server_outer(v6))?;
        for (n, client) in testbed.clients.iter().enumerate() {
            ensure(reaches(client, server)?, || format!("client {n} does not reach {server}"))?;
        }
        let last = echo(&testbed.clients[29], testbed.client_outer(29, v6))?;
        ensure(reaches(&testbed.server, last)?, || format!("the server does not reach {last}"))?;
        ensure(!answers(&testbed.clients[0], last, SILENCE)?, || {
            format!("clients see each other: {last}")
        })?;
    }
    let error = Testbed::star(251, LinkMode::Offload).err().context("251 clients fit")?.0;
    ensure(error.contains("250"), || error.clone())
}

fn star_modes() -> Result<()> {
    for mode in MODES {
        let testbed = Testbed::star(2, mode)?;
        let largest = largest(&testbed)?;
        testbed.check_mode(largest)?;
        ensure((largest > 1514) == (mode == LinkMode::Offload), || {
            format!("{mode}: a frame of {largest} bytes")
        })?;
        tcp(&testbed.server, &testbed.clients[1], testbed.client_outer(1, true), 16)?;
    }
    Ok(())
}

fn relay(testbed: &Testbed) -> Result<&Relay> {
    testbed.relay().context("a line without a relay")
}

fn agree(c: RelayCounters) -> Result<()> {
    let ends = c.lost + c.overflowed + c.delivered + c.refused + c.under_way;
    ensure(c.sent + c.duplicated == ends, || format!("{c:?}"))
}

/// Sends numbered datagrams from the client and returns those that reached the server, in the order of their arrival.
/// The relay's counters show when none of them is in flight.
fn datagrams(testbed: &Testbed, count: u8) -> Result<Vec<u8>> {
    let at = SocketAddr::new(testbed.server_outer(false), 0);
    let server = join(testbed.server.thread(move || Ok(UdpSocket::bind(at)?))?)?;
    roomy(&server)?;
    let to = server.local_addr()?;
    let [before, _] = relay(testbed)?.counters()?;
    join(testbed.clients[0].thread(move || {
        let socket = UdpSocket::bind(any(to))?;
        (0..count).try_for_each(|n| socket.send_to(&[n], to).map(drop))?;
        Ok(())
    })?)?;
    until("the relay has passed all datagrams", LIMIT, || {
        let [up, _] = relay(testbed)?.counters()?;
        Ok(up.sent >= before.sent + u64::from(count) && up.under_way == 0)
    })?;
    // The socket's buffer contains everything that the relay has written.
    server.set_nonblocking(true)?;
    let (mut got, mut buffer) = (Vec::new(), [0; 8]);
    while let Ok(length) = server.recv(&mut buffer) {
        got.extend(buffer[..length].first());
    }
    Ok(got)
}

fn line_passes() -> Result<()> {
    let testbed = Testbed::line(Default::default(), 1)?;
    let got = datagrams(&testbed, 200)?;
    ensure(got.iter().copied().eq(0..200), || format!("{got:?}"))?;
    for v6 in [false, true] {
        let server = echo(&testbed.server, testbed.server_outer(v6))?;
        ensure(reaches(&testbed.clients[0], server)?, || format!("{server} does not answer"))?;
        let client = echo(&testbed.clients[0], testbed.client_outer(0, v6))?;
        ensure(reaches(&testbed.server, client)?, || format!("{client} does not answer"))?;
    }
    let [up, down] = relay(&testbed)?.counters()?;
    for way in [up, down] {
        agree(way)?;
        let bad = way.lost + way.duplicated + way.reordered + way.refused + way.overflowed;
        ensure(bad == 0, || format!("{way:?}"))?;
    }
    ensure(up.delivered >= 202 && down.delivered >= 2, || format!("{up:?} {down:?}"))?;
    let mut measurement = Measurement::default();
    relay(&testbed)?.put(&mut measurement);
    let count = measurement.latencies.get("relay").context("no lateness")?.count;
    ensure(count >= 204 && measurement.values.contains_key("relay_jitter_ms"), || {
        format!("{measurement:?}")
    })?;
    relay(&testbed)?.reset();
    ensure(relay(&testbed)?.lateness().count < 20, || "the lateness was not forgotten".to_owned())
}

fn line_loses() -> Result<()> {
    let all = Impairment { loss: Loss::Random(1.0), ..Default::default() };
    let testbed = Testbed::line([all, Impairment::default()], 1)?;
    let got = datagrams(&testbed, 100)?;
    ensure(got.is_empty(), || format!("came through: {got:?}"))?;
    let [up, down] = relay(&testbed)?.counters()?;
    ensure(up.lost == up.sent && up.sent >= 100 && up.delivered == 0, || format!("{up:?}"))?;
    ensure(down.lost == 0, || format!("{down:?}"))?;
    agree(up)?;
    let double = Impairment { duplicate: 1.0, ..Default::default() };
    relay(&testbed)?.set_impairment([double, Impairment::default()]);
    let got = datagrams(&testbed, 50)?;
    ensure(got.iter().copied().eq((0..50).flat_map(|n| [n, n])), || format!("{got:?}"))?;
    let [up, _] = relay(&testbed)?.counters()?;
    ensure(up.duplicated >= 50, || format!("{up:?}"))?;
    agree(up)
}

/// Returns the shortest round trip of ping, in milliseconds.
fn ping_ms(testbed: &Testbed) -> Result<f64> {
    let to = testbed.server_outer(false).to_string();
    let said = testbed.clients[0].run("ping", &["-c", "5", "-i", "0.05", "-q", &to])?;
    let times = said.rsplit(" = ").next().unwrap_or_default();
    times.split('/').next().unwrap_or_default().parse().context(said)
}

fn line_delays() -> Result<()> {
    let delay = |ms| Impairment { delay: Duration::from_millis(ms), ..Default::default() };
    let testbed = Testbed::line([delay(20), delay(15)], 1)?;
    let slow = ping_ms(&testbed)?;
    ensure(slow >= 35.0, || format!("a round trip of {slow} ms over 20 and 15 ms"))?;
    let held = Duration::from_millis(40);
    let rough = Impairment { reorder: 0.2, reorder_by: held, ..Default::default() };
    relay(&testbed)?.set_impairment([rough, Impairment::default()]);
    let mut got = datagrams(&testbed, 200)?;
    ensure(!got.is_sorted(), || "nothing was reordered".to_owned())?;
    got.sort_unstable();
    ensure(got.iter().copied().eq(0..200), || format!("reordering lost something: {got:?}"))
}

fn line_tcp() -> Result<()> {
    let testbed = Testbed::line(Default::default(), 1)?;
    let largest = largest(&testbed)?;
    testbed.check_mode(largest)?;
    // A TUN device has no Ethernet header.
    ensure(largest == 1500, || format!("a packet of {largest} bytes"))?;
    tcp(&testbed.server, &testbed.clients[0], testbed.client_outer(0, true), 16)?;
    relay(&testbed)?.counters()?.into_iter().try_for_each(agree)
}

fn drops() -> Result<()> {
    let testbed = Testbed::pair(LinkMode::Offload)?;
    let before = testbed.drops()?;
    for v6 in [false, true] {
        let (end, ended) = mpsc::channel::<()>();
        // It never reads, and ends when the other end of the channel is dropped.
        let (to, server) = receiver(&testbed.server, testbed.server_outer(v6), move |_socket| {
            let _ = ended.recv();
            Ok(())
        })?;
        join(testbed.clients[0].thread(move || {
            let socket = UdpSocket::bind(any(to))?;
            (0..2000).try_for_each(|_| socket.send_to(&[0; 1400], to).map(drop))?;
            Ok(())
        })?)?;
        let least = if v6 { 2000 } else { 1000 };
        // A busy kernel may still be delivering datagrams to the full socket.
        until("the kernel has counted the drops", LIMIT, || {
            Ok(testbed.drops()?.since(before).sockets > least)
        })?;
        let since = testbed.drops()?.since(before);
        drop(end);
        join(server)?;
        ensure(since.tun == 0, || format!("{since:?}"))?;
    }
    Ok(())
}

fn meter() -> Result<()> {
    let testbed = Testbed::star(20, LinkMode::Offload)?;
    let spin = |host: &Namespace| {
        let mut command = host.command("sh");
        command.args(["-c", "while :; do :; done"]);
        Daemon::spawn("spinner", command)
    };
    let sleeper = |host: &Namespace| {
        let mut command = host.command("sleep");
        command.arg("60");
        Daemon::spawn("sleeper", command)
    };
    let server = spin(&testbed.server)?;
    let mut clients = testbed.clients.iter().map(sleeper).collect::<Result<Vec<_>>>()?;
    // Each process is `ip` before it executes the program, and that start must not be in the window.
    until("every host runs its program", LIMIT, || {
        let mut daemons = clients.iter().map(|client| (client, "sleep")).chain([(&server, "sh")]);
        let running = |(daemon, name): (&Daemon, &str)| {
            let path = format!("/proc/{}/comm", daemon.pid());
            std::fs::read_to_string(path).is_ok_and(|text| text.trim_end() == name)
        };
        Ok(daemons.all(running))
    })?;
    let pids = clients.iter().map(Daemon::pid).collect();
    let roles = [("server", vec![server.pid()]), ("client", pids)];
    let mut meter = Meter::start(&roles, &testbed)?;
    std::thread::sleep(Duration::from_millis(150));
    let cpu = || server.cpu_seconds();
    let before = cpu()?;
    meter.edge(Edge::Begin)?;
    let begun = cpu()?;
    let end = ScaledInstant::now() + LIMIT;
    std::thread::sleep(Duration::from_millis(400));
    // At least two of the kernel's ticks, whatever the load of the machine.
    while cpu()? < begun + 0.05 && ScaledInstant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    clients.pop();
    let ending = cpu()?;
    meter.edge(Edge::End)?;
    let after = cpu()?;
    let usage = meter.stop()?;
    let (at_server, at_clients) = (usage.roles["server"], usage.roles["client"]);
    // The kernel's own figures come in hundredths, rounded down.
    let possible = ending - begun - 0.02..=after - before + 0.02;
    ensure(possible.contains(&at_server.cpu()) && at_server.cpu() > 0.0, || {
        format!("{at_server:?}, {possible:?}")
    })?;
    ensure((at_clients.processes, at_clients.ended) == (20, 1), || format!("{at_clients:?}"))?;
    ensure(at_clients.cpu() < 0.1 && at_clients.pss_kib > 0, || format!("{at_clients:?}"))?;
    let times: Vec<f64> = usage.samples.iter().map(|sample| sample.at).collect();
    ensure(times.len() >= 2 && times.is_sorted(), || format!("{times:?}"))?;
    let totals = usage.samples.iter().map(|sample| {
        let server = &sample.processes["server"];
        server.user + server.system
    });
    ensure(totals.is_sorted(), || format!("{:?}", usage.samples))
}
