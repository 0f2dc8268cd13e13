//! The desk of a daemon: `start`, `restart` and `stop`, exit codes, and programs that follow its log, packets and counters. adit's program
//! works with the daemon of tinc 1.1, and tinc's with adit's.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::Scenario;
use super::super::metrics::check_if_possible;
use super::SOON;
use super::commands::End;
use super::daemon::connect;
use super::programs::Programs;
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, Pair};
use crate::peer::Program;
use crate::process::Daemon;
use crate::wait::until;

/// Command lines that both programs refuse with the same code, or accept, without a daemon.
const CODES: &[&str] = &[
    "frobnicate",
    "--nonsense pid",
    "-x pid",
    "-n",
    "get",
    "set",
    "set x",
    "del",
    "dump",
    "dump nodes edges",
    "dump edges nodes",
    "debug",
    "disconnect",
    "info",
    "info a b",
    "purge x",
    "stop x",
    "log 1 2",
    "pcap 1 2",
    "pid x",
    "top x",
    "fsck x",
    "invite",
    "join a b",
    "sign a b",
    "verify",
    "network a b",
    "export x",
    "import x",
    "edit",
    "reload x",
    "retry x",
    "version x",
    "version",
    "--version",
    "--help",
    "help",
    "top",
    "restart --nonsense",
    "start --nonsense",
];

/// The lists of a running daemon, whose rows do not depend on the time.
const LISTS: &[&str] =
    &["dump edges", "dump subnets", "dump connections", "dump graph", "dump digraph"];

/// The port for metrics.
const METRICS: u16 = 9190;

/// Length of the header of a pcap file, and of that of a packet in it, bytes.
const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;

/// Ends a program that the test started.
struct Ends(Child);

impl Ends {
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.0.id()).context("pid")?;
        kill(Pid::from_raw(pid), signal).context("signal")
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a daemon in the background even if the test fails.
struct Stops<'a>(&'a End<'a>);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        let _ = self.0.run("stop", "");
    }
}

/// `adit tinc start` returns when the daemon is up or says why it is not, and every mistake in a command line has tinc's exit code.
pub(super) fn start(scenario: &Scenario<'_>) -> Result<String> {
    let Some(real) = Programs::real() else { return Ok("skipped".to_owned()) };
    let Program::Adit(adit) = Program::adit()? else { return Ok("no adit".to_owned()) };
    let namespace = Namespace::new("tinc")?;
    let end =
        |program| End { namespace: &namespace, program, folder: scenario.folder().join("net") };
    // The program finds its daemon whatever its own name is.
    let link = scenario.folder().join("tinc");
    symlink(&adit, &link)?;
    let (ours, theirs) = (end(vec![link.into()]), end(real.tinc));
    ours.done("init alice", "")?;
    for words in CODES {
        let (one, other) = (ours.run(words, "")?, theirs.run(words, "")?);
        ensure(one.code == other.code && one.code.is_some(), || {
            format!("tinc {words}:\nadit {one:?}\ntinc {other:?}")
        })?;
    }
    for words in ["set DeviceType dummy", "set AddressFamily ipv4", "set AutoConnect no"] {
        ours.done(words, "")?;
    }
    let _stops = Stops(&ours);
    // A mistake in the files ends the start, and reaches the terminal.
    let conf = fs::read_to_string(ours.folder.join("tinc.conf"))?;
    fs::write(ours.folder.join("tinc.conf"), format!("{conf}Mode = ring\n"))?;
    let ran = ours.run("start", "")?;
    let named = ran.notes.contains("FOLDER/tinc.conf:") && ran.notes.contains("Mode");
    ensure(ran.code == Some(1) && named, || format!("a start that fails: {ran:?}"))?;
    ensure(!ours.folder.join("pid").exists(), || "the pid file remains".to_owned())?;
    fs::write(ours.folder.join("tinc.conf"), conf)?;
    // The daemon is up when the command returns.
    ours.done("start -d 2", "")?;
    let first = theirs.done("pid", "")?.out;
    ensure(first == ours.done("pid", "")?.out, || format!("pid {first}"))?;
    for end in [&ours, &theirs] {
        let ran = end.done("start", "")?;
        let running = format!("A tincd is already running with pid {}.\n", first.trim());
        ensure(ran.notes == running, || format!("a second start: {ran:?}"))?;
    }
    ours.done("restart", "")?;
    let second = theirs.done("pid", "")?.out;
    ensure(second != first, || format!("{second} after {first}"))?;
    theirs.done("stop", "")?;
    until("the daemon ends", SOON, || Ok(!ours.folder.join("pid").exists()))?;
    // Without a daemon, a restart is a start, and says so in the same words.
    let ran = ours.done("restart", "")?;
    ensure(ran.notes.starts_with("Could not open pid file FOLDER/pid: "), || format!("{ran:?}"))?;
    ours.done("stop", "")?;
    ensure(!ours.folder.join("pid").exists(), || "stop returned before the end".to_owned())?;
    Ok(format!("{} exit codes", CODES.len()))
}

/// Follows the log and the packets of both daemons with the other one's program, and compares lists.
pub(super) fn followers(scenario: &Scenario<'_>) -> Result<String> {
    let Some(Programs { tinc, tincd }) = Programs::real() else {
        return Ok("skipped".to_owned());
    };
    let (programs, adit) = Programs::of_adit(scenario)?;
    let pair = Pair::new()?;
    let end = |namespace, program, name: &str| End {
        namespace,
        program,
        folder: scenario.folder().join(name),
    };
    let ours = end(&pair.server, programs.tinc.clone(), "alice");
    let theirs = end(&pair.client, tinc.clone(), "bob");
    connect(&ours, &theirs)?;
    // The numbers in a graph of this weight have more digits than tinc's precision.
    for end in [&ours, &theirs] {
        end.done("set Weight 37", "")?;
    }
    let line = format!("-D --metrics 127.0.0.1:{METRICS}");
    let adits = end(&pair.server, programs.tincd, "alice").command(&ours.folder, &line)?;
    let mut daemon = Daemon::spawn("adit", adits)?;
    let real = end(&pair.client, tincd, "bob").command(&theirs.folder, "-D")?;
    let _real = Daemon::spawn("tincd", real)?;
    daemon.wait_for("Ready", SOON)?;
    let ping = |count: &str| {
        let words = ["-q", "-c", count, "-i", "0.002", "-W", "1", "-s", "1200", "10.9.0.2"];
        pair.server.run("ping", &words)
    };
    until("a ping through the tunnel", SOON, || Ok(ping("1").is_ok()))?;
    // Each program at the other one's daemon.
    let at_ours = end(&pair.server, tinc, "alice");
    let at_theirs = end(&pair.client, programs.tinc, "bob");
    let seen = compare(&ours, &at_ours, &theirs).map_err(|failure| daemon.failure(&failure.0))?;
    let followers =
        [(&at_ours, "tinc at adit", "Trying to connect to"), (&at_theirs, "adit at tinc", "Got ")];
    for (follower, name, _) in followers {
        packets(follower, scenario.folder(), &ping).context(name)?;
    }
    stopped_reader(&at_ours, &pair.server, &adit, &ping)
        .map_err(|failure| daemon.failure(&failure.0))?;
    measured(&pair.server)?;
    let shown = [ours.done("top", "")?.out, ours.done("top --json", "")?.out];
    let [page, json] = shown;
    ensure(page.contains("\nbob ") && json.contains("\"name\": \"bob\""), || page + &json)?;
    for (follower, name, line) in followers {
        lines(follower, line).context(name)?;
    }
    at_ours.done("stop", "")?;
    Ok(seen)
}

/// Both daemons list the same net, and both programs print the same about adit's.
fn compare(ours: &End<'_>, at_ours: &End<'_>, theirs: &End<'_>) -> Result<String> {
    let sorted = |end: &End<'_>, words: &str| -> Result<Vec<String>> {
        let text = end.done(words, "")?.out;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    };
    for words in LISTS {
        // The way to a node may change between two commands.
        until(&format!("both programs print the same: {words}"), SOON, || {
            Ok(sorted(ours, words)? == sorted(at_ours, words)?)
        })?;
    }
    for words in ["dump edges", "dump subnets"] {
        until("both daemons know the same net", SOON, || {
            Ok(sorted(at_ours, words)? == sorted(theirs, words)?)
        })?;
    }
    // Rows of nodes have times and counters, and each daemon calls itself MYSELF.
    let names = |end: &End<'_>| -> Result<Vec<String>> {
        let rows = sorted(end, "dump reachable nodes")?;
        let word = |row: &String| row.split(' ').next().map(str::to_owned);
        Ok(rows.iter().filter_map(word).collect())
    };
    let [one, other] = [names(ours)?, names(theirs)?];
    ensure(one == ["alice", "bob"] && one == other, || format!("{one:?} {other:?}"))?;
    // The connection is the same one, but for its ends and the numbers of sockets.
    let connection = |end: &End<'_>| -> Result<String> {
        let rows = sorted(end, "dump connections")?;
        let row = rows.into_iter().find(|row| !row.starts_with('<')).context("no connection")?;
        let words: Vec<&str> = row.split(' ').collect();
        let kept = words.iter().enumerate().filter(|(at, _)| ![0, 2, 4, 8].contains(at));
        Ok(kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" "))
    };
    let (one, other) = (connection(ours)?, connection(theirs)?);
    ensure(one == other, || format!("connections: adit {one}\ntinc {other}"))?;
    Ok(one)
}

/// `pcap` prints frames with the pings in both directions.
fn packets(
    follower: &End<'_>,
    folder: &Path,
    ping: &impl Fn(&str) -> Result<String>,
) -> Result<()> {
    let path = folder.join("packets");
    let mut command = follower.command(&follower.folder, "pcap")?;
    command.stdin(Stdio::null()).stdout(File::create(&path)?).stderr(Stdio::null());
    let _pcap = Ends(command.spawn().context("pcap")?);
    let (there, back) = ([10, 9, 0, 1, 10, 9, 0, 2], [10, 9, 0, 2, 10, 9, 0, 1]);
    until("both directions of a ping", SOON, || {
        ping("1")?;
        let bytes = fs::read(&path)?;
        let frames = frames(&bytes);
        let has = |ends: &[u8]| frames.iter().any(|frame| pinged(frame) == Some(ends));
        Ok(has(&there) && has(&back))
    })
}

/// Returns the addresses of both ends in the frame of a ping or its answer.
fn pinged(frame: &[u8]) -> Option<&[u8]> {
    let ip = frame.get(14..34)?;
    let is_icmp = frame.get(12..14)? == [8, 0] && ip.get(9) == Some(&1);
    ip.get(12..20).filter(|_| is_icmp)
}

/// Returns the packets in a pcap file, the last of which may be incomplete.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    let mut rest = file.get(FILE_HEADER..).unwrap_or_default();
    while let Some((header, more)) = rest.split_at_checked(PACKET_HEADER) {
        let len = header.get(8..12).and_then(|len| len.try_into().ok()).map(u32::from_ne_bytes);
        let len = usize::try_from(len.unwrap_or(0)).unwrap_or(0);
        let Some((frame, more)) = more.split_at_checked(len) else { break };
        frames.push(frame);
        rest = more;
    }
    frames
}

/// `log` prints a line of a level that the daemon itself does not log. The daemon connects again meanwhile.
fn lines(follower: &End<'_>, line: &str) -> Result<()> {
    let mut log = Daemon::spawn("log", follower.command(&follower.folder, "log 5")?)?;
    until("a line of the log", SOON, || {
        for node in ["alice", "bob"] {
            follower.run(&format!("disconnect {node}"), "")?;
        }
        follower.done("retry", "")?;
        Ok(log.wait_for(line, Duration::from_millis(500)).is_ok())
    })
}

/// A program that does not read packets loses them. The daemon counts them, and nothing else waits.
fn stopped_reader(
    follower: &End<'_>,
    namespace: &Namespace,
    adit: &Path,
    ping: &impl Fn(&str) -> Result<String>,
) -> Result<()> {
    let mut command = follower.command(&follower.folder, "pcap")?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut pcap = Ends(command.spawn().context("pcap")?);
    // It has asked for packets when the first one arrives.
    let mut first = [0; FILE_HEADER + PACKET_HEADER];
    let mut out = pcap.0.stdout.take().context("stdout")?;
    let pinging = std::thread::scope(|scope| {
        let reading = scope.spawn(|| out.read_exact(&mut first));
        until("the first packet", SOON, || {
            ping("1")?;
            Ok(reading.is_finished())
        })
    });
    pinging?;
    pcap.signal(Signal::SIGSTOP)?;
    let adit = adit.to_string_lossy();
    until("dropped copies are counted", SOON, || {
        ping("500")?;
        let status = namespace.run(&adit, &["status", "--json"])?;
        Ok(status.contains("\"packet-copies-not-read\""))
    })?;
    follower.done("pid", "")?;
    pcap.signal(Signal::SIGCONT)
}

/// Metrics have adit's names.
fn measured(namespace: &Namespace) -> Result<()> {
    let read = || -> Result<String> {
        let mut tcp = TcpStream::connect(("127.0.0.1", METRICS))?;
        tcp.set_read_timeout(Some(SOON))?;
        tcp.write_all(
            b"GET /metrics HTTP/1.1\r\nHost: adit\r\nAccept: text/plain\r\nConnection: close\r\n\r\n",
        )?;
        let mut text = String::new();
        tcp.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = namespace.thread(read)?.join().map_err(|_| "the scrape panicked")??;
    let (_, text) = text.split_once("\r\n\r\n").context("no head")?;
    check_if_possible(text)?;
    for line in [
        "adit_tinc_nodes 2\n",
        "adit_tinc_sessions{cipher=\"ChaCha20-Poly1305\"} 1\n",
        "adit_tinc_sessions{cipher=\"AES-256-GCM\"} 0\n",
        "adit_tinc_learned_keys_total 0\n",
        "adit_tinc_name_conflict 0\n",
        "adit_rekeys_total{result=\"success\"} ",
        "adit_rekeys_total{result=\"failure\"} 0\n",
        "adit_handshake_duration_seconds_count ",
        "adit_queue_length{queue=\"connections\"} 1\n",
        "adit_queue_length{queue=\"handshakes\"} 0\n",
        "adit_worker_busy_seconds_total{worker=\"0\"} ",
        "adit_peer_last_seen_timestamp_seconds{peer=\"bob\"} ",
        "adit_peer_round_trip_seconds{peer=\"bob\"} ",
        "adit_path_mtu_bytes{peer=\"bob\"} ",
        "adit_peer_received_packets_total{peer=\"bob\"} ",
        "adit_peer_sent_bytes_total{peer=\"bob\"} ",
        "adit_handshakes_total{result=\"success\",reason=\"\"} ",
        "adit_dropped_packets_total{direction=\"both\",reason=\"packet-copies-not-read\"} ",
        "adit_build_info{",
    ] {
        ensure(text.contains(line), || format!("no {line}: {text}"))?;
    }
    let connected =
        text.lines().find(|line| line.starts_with("adit_peers_connected{server=\"tinc-"));
    ensure(connected.is_some_and(|line| line.ends_with(" 1")), || text.to_owned())
}
