//! Tests of a server that filters the traffic through the tunnel.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Scenario, ping_until};
use crate::case::{READY, SETUP_LIMIT, dial, inner_addrs, inner_addrs_on, serve};
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, Pair, Star};
use crate::peer::Program;
use crate::process::{Daemon, output, run};
use crate::traffic::{Stream, ping, silent, tcp};
use crate::wait::ScaledInstant;

const SOON: Duration = Duration::from_secs(10);

/// Staff may print and ping the server; all other traffic is denied and logged.
const RULES: &str = r#"table inet vpn {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ct state invalid drop
        ip saddr @group:staff ip daddr @client:printer tcp dport 4001 counter accept
        ip saddr @group:staff ip daddr 10.88.0.1 icmp type echo-request counter accept
        ip saddr @group:staff udp dport 4000 counter accept
        ip saddr @group:staff ip daddr 10.88.0.1 tcp dport 4001 counter accept
        tcp dport 9 counter reject with tcp reset
        iifname "host" ip daddr @group:printers icmp type echo-request accept
        log prefix "denied: " group 7 counter
    }
}
"#;

/// Creates a certificate of the test's authority with a unit, in `folder`.
fn printer(scenario: &Scenario<'_>, folder: &Path) -> Result<()> {
    let path = |name: &str| folder.join(name).display().to_string();
    #[rustfmt::skip]
    run("openssl", &[
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
        &path("printer.key"), "-out", &path("printer.csr"), "-subj", "/OU=printers/CN=printer",
    ])?;
    #[rustfmt::skip]
    run("openssl", &[
        "x509", "-req", "-set_serial", "77", "-days", "365", "-in", &path("printer.csr"), "-CA",
        &scenario.pki("ca.crt"), "-CAkey", &scenario.pki("ca.key"), "-extfile", &scenario.pki("client.ext"),
        "-extensions", "leaf", "-out", &path("printer.crt"),
    ])?;
    Ok(())
}

/// Runs `adit filter WORDS` for this server.
struct Steering {
    adit: PathBuf,
    name: String,
}

impl Steering {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.adit);
        command.arg("filter").args(words);
        command
    }

    fn show(&self) -> Result<String> {
        output(self.command(&["show", &self.name, "--flows"]))
    }

    fn reload(&self, file: &Path) -> Result<String> {
        output(self.command(&["reload", &self.name, &file.display().to_string()]))
    }
}

/// The first of two clients may reach the second, but not the reverse. Rules are replaced under traffic, and denied packets are captured.
pub(super) fn client_groups(scenario: &Scenario<'_>) -> Result<String> {
    let Program::Adit(adit) = scenario.server else { return Err("adit serves here".into()) };
    let path = |name: &str| scenario.folder().join(name);
    printer(scenario, scenario.folder())?;
    fs::create_dir_all(path("ccd"))?;
    fs::write(path("ccd/client"), "ifconfig-push 10.88.0.10 255.255.255.0\nfilter-group staff\n")?;
    fs::write(path("ccd/printer"), "ifconfig-push 10.88.0.20 255.255.255.0\n")?;
    fs::write(path("rules.nft"), RULES)?;
    let mut configs = scenario.configs();
    configs.server(&format!("client-to-client\nclient-config-dir {}", path("ccd").display()));
    configs.server(&format!("cd {}\nsetenv opt filter rules.nft", scenario.folder().display()));
    // A configuration like the client's, with another certificate.
    let own = |name: &str| scenario.pki(name);
    let second = configs
        .client
        .replace(&own("client.crt"), &path("printer.crt").display().to_string())
        .replace(&own("client.key"), &path("printer.key").display().to_string());
    fs::write(path("server.conf"), &configs.server)?;
    fs::write(path("client.conf"), &configs.client)?;
    fs::write(path("printer.conf"), &second)?;

    let star = Star::new(2)?;
    let [staff, print] = star.clients.as_slice() else { return Err("two were asked for".into()) };
    let mut server =
        Daemon::spawn("server", scenario.server.command(&star.server, &path("server.conf")))?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut clients = Vec::new();
    for (namespace, config) in [(staff, "client.conf"), (print, "printer.conf")] {
        let mut client = Daemon::spawn(config, scenario.client.command(namespace, &path(config)))?;
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
        clients.push(client);
    }
    let address = |text: &str| text.parse::<IpAddr>().context(text);
    let [at_server, at_staff, at_printer] =
        [address("10.88.0.1")?, address("10.88.0.10")?, address("10.88.0.20")?];
    ensure(inner_addrs(print)?.v4 == at_printer, || "the printer's address".to_owned())?;
    ping_until(staff, at_server, SOON).map_err(|e| format!("{e}\n{}", server.failure("denied")))?;
    ping_until(&star.server, at_printer, SOON)?;
    tcp(staff, print, at_printer, 2_000_000)?;
    // The stream is merged on its way in, and evaluated in its merged form.
    tcp(staff, &star.server, at_server, 5_000_000)?;
    // A fragmented packet is evaluated when it is complete, and forwarded as fragments.
    ensure(ping(staff, at_server, 4000, 2)? == 2, || server.failure("no large pings").0)?;
    for (from, to) in [(staff, at_server), (staff, at_printer), (&star.server, at_staff)] {
        is_refused(from, to)?;
    }
    for (from, to) in [(staff, at_printer), (print, at_staff), (print, at_server)] {
        ensure(silent(from, to)?, || format!("{to} answers {}", from.name()))?;
    }
    ensure(silent(&star.server, at_staff)?, || "staff answers the server".to_owned())?;

    let steering = Steering { adit: adit.clone(), name: format!("openvpn-{}", server.pid()) };
    let shown = steering.show()?;
    for said in ["# @group:staff: 10.88.0.10/32", "# @client:printer: 10.88.0.20/32", "# tcp"] {
        ensure(shown.contains(said), || format!("{said} is missing: {shown}"))?;
    }
    reloads_under_traffic(&steering, scenario.folder(), [&star.server, staff], at_server)?;
    let captured = denied_is_captured(&steering, &path("denied.pcapng"), || {
        silent(print, at_server).map(drop)
    })?;

    // A file with a mistake changes nothing, and the message names the line.
    fs::write(path("wrong.nft"), "table inet t {\n  chain c { tcp dprot 1 accept }\n}\n")?;
    let refused = steering.reload(&path("wrong.nft"));
    ensure(refused.as_ref().is_err_and(|failure| failure.0.contains("wrong.nft:2:")), || {
        format!("{refused:?}")
    })?;
    ensure(ping(staff, at_server, 56, 2)? == 2, || "the rules are gone".to_owned())?;

    // After it has left, a client is in no set.
    for client in &mut clients {
        client.stop()?;
    }
    server.stop()?;
    Ok(captured)
}

/// Checks that a client that is refused with a reset notices at once.
fn is_refused(from: &Namespace, to: IpAddr) -> Result<()> {
    let connected = from
        .thread(move || Ok(TcpStream::connect_timeout(&SocketAddr::new(to, 9), SOON).map(drop)))?;
    let connected = connected.join().unwrap_or_else(|_| Err("a thread panicked".into()))?;
    ensure(connected.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused), || {
        format!("{to} from {}: {connected:?}", from.name())
    })
}

/// Replaces the rules twenty times while datagrams pass. A flow that both rule sets accept loses none.
fn reloads_under_traffic(
    steering: &Steering,
    folder: &Path,
    [server, client]: [&Namespace; 2],
    at_server: IpAddr,
) -> Result<()> {
    let other = folder.join("other.nft");
    fs::write(&other, RULES.replace("counter accept", "accept"))?;
    let stream = Stream::start(client, server, at_server, 1400)?;
    for round in 0..20 {
        let file = if round % 2 == 0 { other.clone() } else { folder.join("rules.nft") };
        steering.reload(&file)?;
        std::thread::sleep(Duration::from_millis(50));
    }
    let delivery = stream.finish()?;
    ensure(delivery.sent > 100 && delivery.received == delivery.sent, || {
        format!("{} of {} datagrams passed during reloads", delivery.received, delivery.sent)
    })
}

/// Rules for frames that accept only what IPv4 needs.
const FRAMES: &str = r#"table bridge lan {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ether type arp accept
        ct state established accept
        ip protocol icmp icmp type echo-request accept
        tcp dport 4001 ct state new accept
    }
}
"#;

/// A TAP device over TCP. Frames of one family pass, whole and fragmented; those of the other family do not.
pub(super) fn frames_over_tcp(scenario: &Scenario<'_>) -> Result<String> {
    let rules = scenario.folder().join("rules.nft");
    fs::write(&rules, FRAMES)?;
    let mut configs = scenario.configs();
    for (text, proto) in
        [(&mut configs.server, "proto tcp4-server"), (&mut configs.client, "proto tcp4-client")]
    {
        *text = text.replace("dev tun\n", "dev tap\n").replace("proto udp4", proto);
        *text = text.replace("explicit-exit-notify 1", "");
    }
    configs.server(&format!("filter {}", rules.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    let ends = [
        (&pair.server, inner_addrs_on(&pair.server, "tap0")?),
        (&pair.client, inner_addrs_on(&pair.client, "tap0")?),
    ];
    for ((from, _), (to, inner)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        ping_until(from, inner.v4, SOON)?;
        ensure(ping(from, inner.v4, 3000, 2)? == 2, || server.failure("no large pings").0)?;
        tcp(from, to, inner.v4, 2_000_000)?;
        let v6 = inner.v6.context("no IPv6 inside")?;
        ensure(silent(from, v6)?, || format!("{v6} answers"))?;
    }
    client.stop()?;
    server.stop()?;
    Ok(String::new())
}

/// Captures while `act` causes denied packets; returns a short description of the capture.
fn denied_is_captured(
    steering: &Steering,
    file: &Path,
    act: impl Fn() -> Result<()>,
) -> Result<String> {
    let shown = file.display().to_string();
    let command = steering.command(&["capture", &shown, &steering.name, "--group", "7"]);
    let mut capture = Daemon::spawn("capture", command)?;
    // The file's header is written when the capture starts.
    let last = ScaledInstant::now() + SOON;
    while fs::metadata(file).map_or(0, |data| data.len()) == 0 {
        ensure(ScaledInstant::now() < last, || capture.failure("no capture began").0)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    act()?;
    std::thread::sleep(Duration::from_millis(300));
    capture.signal(Signal::SIGINT)?;
    capture.wait_exit(SOON)?;
    let bytes = fs::read(file)?;
    ensure(bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]), || "it is no pcapng".to_owned())?;
    let has = |word: &[u8]| bytes.windows(word.len()).any(|window| window == word);
    ensure(has(b"denied: (rule ") && has(b"tun0"), || capture.failure("nothing was captured").0)?;
    let Ok(read) =
        run("tshark", &["-r", &shown, "-T", "fields", "-e", "ip.src", "-e", "frame.comment"])
    else {
        let why = "tshark is not installed";
        adit_testbed::skip::skip("filter: a capture is read by tshark", why);
        return Ok(why.to_owned());
    };
    let lines =
        read.lines().filter(|line| line.starts_with("10.88.0.20") && line.contains("denied:"));
    let count = lines.count();
    ensure(count >= 2, || format!("two denied pings were expected: {read}"))?;
    Ok(format!("tshark reads {count} denied packets"))
}
