//! Tests that the tables contain the tunnel's packets according to the network's policy.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use super::super::{Scenario, ScenarioFn};
use super::flow::{self, reassemble, sha256, unhex};
use super::testbed::{ADMIN, LIMIT, Plan, PostgresTestbed};
use crate::failure::{Failure, Result, ensure};
use crate::net::{Namespace, ip};
use crate::process::{Daemon, output};
use crate::traffic::{ping, tcp};

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("ping", pings),
    ("every-packet-is-a-row", every_packet_is_a_row),
    ("tcp-is-in-the-rows", tcp_is_in_the_rows),
    ("policies", policies),
    ("subnets", subnets),
    ("ten-nodes", ten_nodes),
    ("idle-nodes", idle_nodes),
];

const UDP: u16 = 4100;
const TCP: u16 = 4101;

/// Checks that five pings are answered.
fn answered(bed: &PostgresTestbed, from: usize, to: IpAddr) -> Result<()> {
    let answers = ping(&bed.node(from)?.space, to, 56, 5)?;
    // More than five replies arrive if the first ones were late.
    ensure(answers >= 5, || bed.failure_with_logs(&format!("{answers} of 5 answers from {to}")))
}

fn pings(scenario: &Scenario<'_>) -> Result<String> {
    let bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    for (from, to) in [(0, 1), (1, 0)] {
        answered(&bed, from, bed.node(to)?.v4()?)?;
        answered(&bed, from, bed.node(to)?.v6()?)?;
    }
    // Both ends of every ping, each from its own stream.
    for (from, to) in [(0, 1), (1, 0)] {
        let (from, to) = (bed.node(from)?, bed.node(to)?);
        for (source, target, proto) in [(from.v4()?, to.v4()?, 1), (from.v6()?, to.v6()?, 58)] {
            let rows = bed.number(&format!(
                "SELECT count(*) FROM adit.log WHERE \"from\" = '{}' AND \"to\" = '{}' AND proto = {proto} \
                 AND src = '{source}' AND dst = '{target}' AND len BETWEEN 84 AND 104",
                from.name, to.name
            ))?;
            // Five requests and five answers.
            ensure(rows >= 10, || format!("{rows} rows from {source} to {target}"))?;
        }
    }
    Ok(format!("{} rows", bed.number("SELECT count(*) FROM adit.packet")?))
}

/// Returns the packets of one protocol and port in the tables from the first node to the second, in hexadecimal and in
/// order.
fn packets(bed: &PostgresTestbed, proto: u8, port: u16) -> Result<Vec<Vec<u8>>> {
    let said = bed.sql(&format!(
        "SELECT encode(payload, 'hex') FROM adit.packet WHERE proto = {proto} AND dport = {port} ORDER BY seq"
    ))?;
    Ok(said.lines().map(unhex).collect())
}

fn every_packet_is_a_row(scenario: &Scenario<'_>) -> Result<String> {
    let bed =
        PostgresTestbed::new(scenario, 2, &Plan { init: &["--audit", "full"], ..Plan::default() })?;
    let mut told = Vec::new();
    for (address, header) in [(bed.node(1)?.v4()?, 20), (bed.node(1)?.v6()?, 40)] {
        let arrived = all_in_time(&bed, address, 2000)?;
        let rows = bed.number(&format!(
            "SELECT count(*) FROM adit.packet WHERE proto = 17 AND dport = {UDP}"
        ))?;
        ensure(arrived.len() == 2000 && rows == 2000, || {
            bed.failure_with_logs(&format!(
                "{} of 2000 datagrams arrived, {rows} rows",
                arrived.len()
            ))
        })?;
        let whole: Vec<u8> = arrived.iter().flatten().copied().collect();
        let hashed = sha256(&whole)?;
        let in_the_table = bed.sql(&format!(
            "SELECT encode(sha256(string_agg(substr(payload, {}), ''::bytea ORDER BY seq)), 'hex') FROM adit.packet \
             WHERE proto = 17 AND dport = {UDP}",
            header + 9
        ))?;
        ensure(hashed == in_the_table, || format!("{hashed} arrived, {in_the_table} in the rows"))?;
        ensure(
            arrived.iter().zip(0..).all(|(got, number)| *got == flow::content(number, 1400)),
            || "other datagrams arrived than were sent".to_owned(),
        )?;
        told.push(hashed.get(..12).unwrap_or_default().to_owned());
    }
    // The columns describe the packets.
    let wrong = bed.number(
        "SELECT count(*) FROM adit.packet WHERE len <> octet_length(payload) \
         OR (family(src) = 4 AND host(src) <> concat_ws('.', get_byte(payload, 12), get_byte(payload, 13), \
             get_byte(payload, 14), get_byte(payload, 15)))",
    )?;
    ensure(wrong == 0, || format!("{wrong} rows say something else than their packets"))?;
    Ok(format!("4000 datagrams, SHA-256 {}", told.join(" and ")))
}

/// Sends datagrams until all of them arrive, into empty tables. Rows that are read too late are not delivered, and the
/// receiver counts them. In that case the machine is busy, and all datagrams are sent again.
fn all_in_time(bed: &PostgresTestbed, address: IpAddr, count: u32) -> Result<Vec<Vec<u8>>> {
    const ATTEMPTS: u32 = 5;
    let late = || -> Result<u64> {
        let to = bed.node(1)?;
        Ok(to.count("n1", "/received/drops/expired")?
            + to.count("n1", "/received/drops/skipped")?)
    };
    let target = SocketAddr::new(address, UDP);
    for attempt in 1..=ATTEMPTS {
        bed.sql("DO $$ DECLARE t text; BEGIN FOR t IN SELECT relname FROM pg_class WHERE relname ~ '^packet_[0-9]+_[0-9]+$' \
                 LOOP EXECUTE format('DELETE FROM adit.%I', t); END LOOP; END $$")?;
        let before = late()?;
        let (from, to) = (&bed.node(0)?.space, &bed.node(1)?.space);
        let arrived = bed.blame(flow::datagrams(from, to, target, count, 1400))?;
        let missing = u64::from(count).saturating_sub(arrived.len() as u64);
        if missing == 0 {
            return Ok(arrived);
        }
        let late = late()? - before;
        ensure(late == missing && attempt < ATTEMPTS, || {
            bed.failure_with_logs(&format!(
                "{missing} of {count} datagrams are missing, {late} came too late"
            ))
        })?;
    }
    Err("no attempt was made".into())
}

fn tcp_is_in_the_rows(scenario: &Scenario<'_>) -> Result<String> {
    let bed =
        PostgresTestbed::new(scenario, 2, &Plan { init: &["--audit", "full"], ..Plan::default() })?;
    let (from, to) = (bed.node(0)?, bed.node(1)?);
    let target = SocketAddr::new(to.v4()?, TCP);
    let size = 6_000_000;
    let arrived = bed.blame(flow::stream(&from.space, &to.space, target, size))?;
    ensure(arrived == flow::blob(size), || "other bytes arrived than were sent".to_owned())?;
    let rows = packets(&bed, 6, TCP)?;
    let logged = reassemble(rows.iter().cloned());
    let (ours, theirs) = (sha256(&arrived)?, sha256(&logged)?);
    ensure(ours == theirs, || {
        format!(
            "{} bytes arrived ({ours}), the rows make {} ({theirs})",
            arrived.len(),
            logged.len()
        )
    })?;
    exported(&bed, scenario, &ours)?;
    iperf(&bed)?;
    bed.all_accounted(0, 1)?;
    Ok(format!("{} rows of one flow, SHA-256 {}", rows.len(), ours.get(..12).unwrap_or_default()))
}

/// Runs iperf3 through the tunnel for a second.
fn iperf(bed: &PostgresTestbed) -> Result<()> {
    let mut command = bed.node(1)?.space.command("iperf3");
    command.args(["--server", "--one-off", "--forceflush"]);
    let mut server = Daemon::spawn("iperf3's server", command)?;
    server.wait_for("listening", LIMIT)?;
    let mut command = bed.node(0)?.space.command("iperf3");
    command.args(["--client", &bed.node(1)?.v4()?.to_string(), "--time", "1"]);
    bed.blame(output(command)).map(drop)
}

/// `export` writes files that other programs can read. tcpdump shows the same flow.
fn exported(bed: &PostgresTestbed, scenario: &Scenario<'_>, hash: &str) -> Result<()> {
    let file = scenario.folder().join("flow.pcapng");
    let path = file.display().to_string();
    bed.node(1)?.adit(&["export", "--since", "1h", "--pcapng", &path])?;
    let mut command = Command::new("tcpdump");
    command.args(["-r", &path, "-n", "-x", &format!("tcp dst port {TCP}")]);
    // Lines of hexadecimal words with their offset before them; a line without one begins a packet.
    let said = output(command)?;
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for line in said.lines() {
        match line.trim_start().strip_prefix("0x").and_then(|line| line.split_once(':')) {
            Some((_, words)) => {
                let bytes = unhex(&words.replace(' ', ""));
                packets.last_mut().map(|packet| packet.extend(bytes)).unwrap_or_default();
            }
            None => packets.push(Vec::new()),
        }
    }
    let found = sha256(&reassemble(packets.into_iter()))?;
    ensure(found == hash, || format!("the exported flow's SHA-256 is {found} instead of {hash}"))
}

/// Every policy, each with one of the durabilities. Checks the contents of the columns, and how the leaf is kept.
fn policies(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::bare(scenario, 2, &crate::postgres::Options::default())?;
    for (audit, durability, shown) in [
        ("full", "volatile", "len sport dport proto src dst"),
        ("headers", "strict", "len sport dport proto src dst"),
        ("metadata", "relaxed", "len"),
        ("none", "strict", ""),
        ("headers", "volatile", "len sport dport proto src dst"),
        ("full", "relaxed", "len sport dport proto src dst"),
    ] {
        let what = format!("{audit}, {durability}");
        let init = ["--audit", audit, "--durability", durability];
        bed.found(&Plan { init: &init, ..Plan::default() })?;
        bed.up()?;
        for (from, to) in [(0, 1), (1, 0)] {
            answered(&bed, from, bed.node(to)?.v6()?)?;
        }
        let (from, to) = (&bed.node(0)?.space, &bed.node(1)?.space);
        let arrived = all_in_time(&bed, bed.node(1)?.v4()?, 300)?;
        let same = arrived.iter().zip(0..).all(|(got, number)| *got == flow::content(number, 1400));
        ensure(arrived.len() == 300 && same, || {
            bed.failure_with_logs(&format!("{what}: {} of 300 datagrams", arrived.len()))
        })?;
        tcp(from, to, bed.node(1)?.v4()?, 1_000_000)
            .map_err(|failure| Failure(format!("{what}: {failure}")))?;
        columns(&bed, &what, shown)?;
        let kept = bed.sql(
            "SELECT DISTINCT relpersistence FROM pg_class WHERE relname ~ '^packet_[0-9]+_[0-9]+$'",
        )?;
        let wanted = if durability == "volatile" { "u" } else { "p" };
        ensure(kept == wanted, || format!("{what}: leaves of persistence {kept}"))?;
        // Checks for an unchanged IPv4 packet, with its version and its own length.
        let clear = bed.number(
            "SELECT count(*) FROM adit.packet WHERE substr(payload, 1, 2) = '\\x4500' \
             AND get_byte(payload, 2) * 256 + get_byte(payload, 3) = octet_length(payload)",
        )?;
        ensure((clear > 0) == (audit == "full"), || {
            format!("{what}: {clear} packets in the clear")
        })?;
        for node in &mut bed.nodes {
            let status = node.status()?;
            for (key, value) in [("audit", audit), ("durability", durability)] {
                let said = status.get(key).and_then(serde_json::Value::as_str);
                ensure(said == Some(value), || format!("status says {key} {said:?}, not {value}"))?;
            }
            node.stop()?;
        }
        forget(&bed)?;
    }
    Ok("six of them".into())
}

/// Checks that each of the columns in `shown` has a value in some row, and that the others are always null.
fn columns(bed: &PostgresTestbed, what: &str, shown: &str) -> Result<()> {
    for column in ["len", "sport", "dport", "proto", "src", "dst"] {
        let filled =
            bed.number(&format!("SELECT count(*) FROM adit.packet WHERE {column} IS NOT NULL"))?;
        let wanted = shown.split(' ').any(|name| name == column);
        ensure((filled > 0) == wanted, || format!("{what}: {filled} rows show {column}"))?;
    }
    Ok(())
}

/// Drops the network and the nodes' files, for the next one.
fn forget(bed: &PostgresTestbed) -> Result<()> {
    bed.sql(
        "DROP SCHEMA adit CASCADE; DO $$ DECLARE r text; BEGIN FOR r IN SELECT rolname FROM pg_roles WHERE rolname ~ '^adit_' \
         LOOP EXECUTE format('DROP OWNED BY %I; DROP ROLE %I', r, r); END LOOP; END $$",
    )?;
    for node in &bed.nodes {
        fs::remove_dir_all(&node.dir)?;
        fs::create_dir(&node.dir)?;
    }
    Ok(())
}

/// Hosts behind the nodes, without the tunnel in their configuration.
fn subnets(scenario: &Scenario<'_>) -> Result<String> {
    let each: &[&[&str]] = &[
        &["--route", "10.77.1.0/24", "--route", "fd77:1::/64"],
        &["--route", "10.77.2.0/24", "--route", "fd77:2::/64"],
    ];
    let bed = PostgresTestbed::new(scenario, 2, &Plan { each, ..Plan::default() })?;
    let hosts = [behind(&bed, 0, 1)?, behind(&bed, 1, 2)?];
    for (host, other) in hosts.iter().zip([2, 1]) {
        for target in [format!("10.77.{other}.2"), format!("fd77:{other}::2")] {
            let answers = ping(host, target.parse().map_err(|_| "an address")?, 56, 5)?;
            ensure(answers >= 5, || {
                bed.failure_with_logs(&format!("{answers} of 5 answers from {target}"))
            })?;
        }
    }
    let rows = bed.number(
        "SELECT count(*) FROM adit.log WHERE src << '10.77.1.0/24' AND dst << '10.77.2.0/24'",
    )?;
    ensure(rows >= 10, || format!("{rows} rows between the hosts"))?;
    // The receiver drops packets of a host that is in no registered network.
    ip(Some(&hosts[0]), ["addr add 10.78.9.9/32 dev port".to_owned()].into_iter())?;
    let spoofed = hosts[0].run("ping", &["-c", "2", "-W", "1", "-I", "10.78.9.9", "10.77.2.2"]);
    ensure(spoofed.is_err(), || "an address of no network was answered".to_owned())?;
    let dropped = bed.node(1)?.dropped("n1")? + sender_drops(&bed)?;
    ensure(dropped > 0, || "nobody counts the packets of an address of no network".to_owned())?;
    Ok(format!("{rows} rows, {dropped} from elsewhere dropped"))
}

/// Returns the number of packets that the first node has not sent, for any reason.
fn sender_drops(bed: &PostgresTestbed) -> Result<u64> {
    let status = bed.node(0)?.status()?;
    let text = status.to_string();
    // Add up all numbers under objects called `drops`, anywhere in the report.
    let mut total = 0;
    let mut rest = text.as_str();
    while let Some((_, after)) = rest.split_once("\"drops\":{") {
        let (inner, tail) = after.split_once('}').unwrap_or((after, ""));
        total += inner.split([':', ',']).filter_map(|word| word.parse::<u64>().ok()).sum::<u64>();
        rest = tail;
    }
    Ok(total)
}

/// Creates a host behind a node, with the node as its router.
fn behind(bed: &PostgresTestbed, node: usize, number: u8) -> Result<Namespace> {
    let host = Namespace::new("behind")?;
    let router = &bed.node(node)?.space;
    let link = format!("link add inside type veth peer name port netns {}", host.name());
    let inside = [
        link,
        format!("addr add 10.77.{number}.1/24 dev inside"),
        format!("addr add fd77:{number}::1/64 dev inside nodad"),
        "link set inside up".to_owned(),
    ];
    ip(Some(router), inside.into_iter())?;
    let port = [
        format!("addr add 10.77.{number}.2/24 dev port"),
        format!("addr add fd77:{number}::2/64 dev port nodad"),
        "link set port up".to_owned(),
        format!("route add default via 10.77.{number}.1"),
        format!("-6 route add default via fd77:{number}::1"),
    ];
    let (v4, v6): (Vec<_>, Vec<_>) = port.into_iter().partition(|line| !line.starts_with("-6"));
    ip(Some(&host), v4.into_iter())?;
    for line in v6 {
        let words: Vec<&str> = line.split(' ').collect();
        host.run("ip", &words)?;
    }
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        router.handle()?.set_sysctl(key, "1")?;
    }
    crate::net::wait_for_carriers(&[router, &host])?;
    Ok(host)
}

fn ten_nodes(scenario: &Scenario<'_>) -> Result<String> {
    let bed = PostgresTestbed::new(
        scenario,
        10,
        &Plan { init: &["--durability", "relaxed"], ..Plan::default() },
    )?;
    let addresses: Vec<_> =
        bed.nodes.iter().map(super::testbed::Node::v4).collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        let mesh: Vec<_> = bed
            .nodes
            .iter()
            .map(|node| {
                let addresses = &addresses;
                scope.spawn(move || {
                    for address in addresses.iter().filter(|other| node.v4().ok() != Some(**other))
                    {
                        let answers = ping(&node.space, *address, 56, 3)?;
                        ensure(answers >= 3, || {
                            format!("{answers} of 3 answers from {address} at {}", node.name)
                        })?;
                    }
                    Ok(())
                })
            })
            .collect();
        mesh.into_iter().try_for_each(|node| {
            node.join().unwrap_or_else(|_| Err(Failure::from("a thread that pings panicked")))
        })
    })
    .map_err(|failure: Failure| Failure(bed.failure_with_logs(&failure.0)))?;
    let streams = bed.number("SELECT count(DISTINCT stream) FROM adit.packet")?;
    ensure(streams == 90, || format!("{streams} of 90 streams have rows"))?;
    Ok("90 ordered pairs, 270 pings".into())
}

/// Idle nodes are not woken by the traffic of a busy pair.
fn idle_nodes(scenario: &Scenario<'_>) -> Result<String> {
    let bed = PostgresTestbed::new(
        scenario,
        5,
        &Plan { init: &["--durability", "relaxed"], ..Plan::default() },
    )?;
    let read = |node: &super::testbed::Node, what: &str| -> Result<u64> {
        Ok(node.status()?.get(what).and_then(serde_json::Value::as_u64).unwrap_or(0))
    };
    // By then startup and its pings have finished.
    std::thread::sleep(Duration::from_secs(3));
    let idle = bed.nodes.get(2..).unwrap_or_default();
    let before = idle.iter().map(|node| read(node, "notifications")).sum::<Result<u64>>()?;
    let (from, to) = (bed.node(0)?, bed.node(1)?);
    let busy_before = read(to, "notifications")?;
    tcp(&from.space, &to.space, to.v4()?, 6_000_000)?;
    let heard = read(to, "notifications")? - busy_before;
    let after = idle.iter().map(|node| read(node, "notifications")).sum::<Result<u64>>()?;
    ensure(heard > 0 && after == before, || {
        format!("the busy node heard {heard} notifications, three idle ones {}", after - before)
    })?;
    let connections = bed.cluster.number(
        ADMIN,
        "SELECT max(c) FROM (SELECT count(*) c FROM pg_stat_activity WHERE usename ~ 'node' GROUP BY usename) x",
    )?;
    ensure(connections <= 4, || format!("a node has {connections} connections"))?;
    Ok(format!("{heard} notifications for the busy one, none for three idle ones"))
}
