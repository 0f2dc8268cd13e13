//! Tests of a hostile database: an attacker with write access to every table delivers nothing, and honest packets still arrive.

use std::net::SocketAddr;
use std::time::Instant;

use super::super::{Scenario, ScenarioFn};
use super::faults::{Both, flows, lost};
use super::flow;
use super::testbed::{ADMIN, LIMIT, Plan, PostgresTestbed, until};
use crate::failure::{Failure, Result, ensure};
use crate::process::Daemon;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("altered-rows", altered_rows),
    ("inserted-rows", inserted_rows),
    ("forged-epochs", forged_epochs),
    ("swapped-keys", swapped_keys),
    ("forged-policy", forged_policy),
    ("locks", locks),
];

/// Changes to rows by their port, before they are stored. Port 5009 is left unchanged, 5008 is stored twice.
const ALTER: &str = "
CREATE FUNCTION public.alter_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    CASE NEW.dport
        WHEN 5001 THEN NEW.payload := set_byte(NEW.payload, 3, get_byte(NEW.payload, 3) # 1);
        WHEN 5002 THEN NEW.tag := set_byte(NEW.tag, 0, get_byte(NEW.tag, 0) # 128);
        WHEN 5003 THEN NEW.seq := NEW.seq + 7;
        WHEN 5004 THEN RETURN NULL;
        WHEN 5005 THEN NEW.src := '10.9.0.77';
        WHEN 5006 THEN NEW.epoch := NEW.epoch + 1;
        WHEN 5007 THEN NEW.dport := 5009;
        ELSE NULL;
    END CASE;
    RETURN NEW;
END $$;
CREATE FUNCTION public.repeat_rows() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    IF NEW.dport = 5008 AND pg_trigger_depth() = 1 THEN
        EXECUTE format('INSERT INTO adit.%I SELECT $1.*', TG_TABLE_NAME) USING NEW;
        NEW.seq := NEW.seq + 100000;
        EXECUTE format('INSERT INTO adit.%I SELECT $1.*', TG_TABLE_NAME) USING NEW;
    END IF;
    RETURN NULL;
END $$;
DO $$ DECLARE t text; BEGIN
    FOR t IN SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^packet_[0-9]+_[0-9]+$' LOOP
        EXECUTE format('CREATE TRIGGER a BEFORE INSERT ON adit.%I FOR EACH ROW EXECUTE FUNCTION public.alter_rows()', t);
        EXECUTE format('CREATE TRIGGER b AFTER INSERT ON adit.%I FOR EACH ROW EXECUTE FUNCTION public.repeat_rows()', t);
    END LOOP;
END $$";

const EACH: u32 = 40;

fn altered_rows(scenario: &Scenario<'_>) -> Result<String> {
    let bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    bed.sql(ALTER)?;
    let (one, two) = (bed.node(0)?, bed.node(1)?);
    let address = two.v4()?;
    let ports: Vec<u16> = (5001..=5009).collect();
    let counts = std::thread::scope(|scope| {
        let flows: Vec<_> = ports
            .iter()
            .map(|port| {
                let target = SocketAddr::new(address, *port);
                scope.spawn(move || flow::datagrams(&one.space, &two.space, target, EACH, 600))
            })
            .collect();
        let join = |flow: std::thread::ScopedJoinHandle<'_, Result<Vec<Vec<u8>>>>| {
            flow.join().unwrap_or_else(|_| Err(Failure::from("a traffic thread panicked")))
        };
        flows.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    for (port, arrived) in ports.iter().zip(&counts) {
        let wanted = if *port >= 5008 { EACH as usize } else { 0 };
        let honest =
            arrived.iter().zip(0..).all(|(got, number)| *got == flow::content(number, 600));
        ensure(arrived.len() == wanted && honest, || {
            bed.failure_with_logs(&format!(
                "port {port}: {} of {EACH} datagrams, {wanted} expected",
                arrived.len()
            ))
        })?;
    }
    // 5001, 5002, 5003, 5005, 5006 and 5007, and the second copies of 5008.
    let dropped = two.dropped("n1")?;
    ensure(dropped >= u64::from(EACH) * 6, || {
        format!("only {dropped} rows are counted as dropped")
    })?;
    Ok(format!("{dropped} rows dropped, {EACH} of {EACH} honest ones delivered"))
}

/// Two sessions of another role hold the advisory locks that could be taken by number. Restarted nodes still send, one of them after a
/// kill, and a copy of a node's files still waits for the original.
fn locks(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    bed.sql(&format!("CREATE ROLE stranger LOGIN; GRANT CONNECT ON DATABASE {ADMIN} TO stranger"))?;
    let hold = "SELECT count(pg_advisory_lock_shared(1633970548, n)) FROM generate_series(1, 2000) n; SELECT pg_sleep(300)";
    let mut strangers = Vec::new();
    for _ in 0..2 {
        let mut psql = bed.cluster.psql("stranger", ADMIN);
        psql.args(["--command", hold]);
        strangers.push(Daemon::spawn("stranger", psql)?);
    }
    until("both sessions of the stranger hold locks", LIMIT, || {
        let held = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ShareLock'";
        Ok(bed.number(held)? == 2)
    })?;
    for at in [0, 1] {
        let node = bed.node_mut(at)?;
        node.kill()?;
        node.spawn()?;
        node.wait_up()?;
    }
    bed.reach(0, 1)?;
    bed.reach(1, 0)?;
    Ok("both nodes send despite 2000 locks of two sessions".into())
}

/// Returns SQL that does `what` to the newest leaf of the first of two nodes, `LEAF`, and `OTHER` of the second;
/// `STREAM` is the number of the stream from the first to the second, `TOP` its greatest seq.
fn at_leaf(bed: &PostgresTestbed, what: &str) -> Result<String> {
    let leaf = |from: &str| {
        bed.sql(&format!(
            "SELECT l.sender, max(l.no) FROM adit.leaf l JOIN adit.node f ON f.id = l.sender WHERE f.name = '{from}' GROUP BY 1"
        ))
    };
    let there = leaf("n1")?;
    let stream = bed.number(
        "SELECT s.id FROM adit.stream s JOIN adit.node f ON f.id = s.sender JOIN adit.node t ON t.id = s.receiver \
         WHERE f.name = 'n1' AND t.name = 'n2'",
    )?;
    let table = |text: &str| format!("adit.packet_{}", text.replace('|', "_"));
    let top =
        bed.number(&format!("SELECT max(seq) FROM {} WHERE seq < 1000000000000", table(&there)))?;
    bed.sql(
        &what
            .replace("LEAF", &table(&there))
            .replace("OTHER", &table(&leaf("n2")?))
            .replace("STREAM", &stream.to_string())
            .replace("TOP", &top.to_string()),
    )
}

const WAKE: &str = "SELECT pg_notify('adit_2', 'STREAM.1'), pg_notify('adit_2', 'STREAM.999999'), pg_notify('adit_2', ''), \
                    pg_notify('adit_2', '-1.-1'), pg_notify('adit_2', repeat('9', 7000)), pg_notify('adit_nodes', 'x')";

const COLUMNS: &str =
    "stream, epoch, len, sport, dport, proto, flags, src, dst, tag, chain, payload";

fn inserted_rows(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let both = Both::start(&bed)?;
    let begun = Instant::now();
    flows(&bed)?;
    let attacks = [
        // Unchanged copies; then old rows under new numbers, where the sender will write next.
        "INSERT INTO LEAF SELECT * FROM (SELECT * FROM LEAF ORDER BY seq DESC LIMIT 200) x".to_owned(),
        format!("INSERT INTO LEAF (seq, {COLUMNS}) SELECT TOP + row_number() OVER (), {COLUMNS} FROM (SELECT * FROM LEAF LIMIT 500) x"),
        format!("INSERT INTO LEAF (seq, {COLUMNS}) SELECT TOP + 600 - row_number() OVER (), {COLUMNS} FROM (SELECT * FROM LEAF LIMIT 500) x"),
        // Rows of the other end, reflected to it.
        format!(
            "INSERT INTO LEAF (seq, {COLUMNS}) SELECT TOP + row_number() OVER (), {} FROM (SELECT * FROM OTHER LIMIT 500) x",
            COLUMNS.replacen("stream", "STREAM", 1)
        ),
        // A flood.
        "INSERT INTO LEAF (seq, stream, epoch, tag, payload) SELECT TOP + n, STREAM, 1, decode(repeat('ab', 16), 'hex'), \
         decode(repeat('cd', 60), 'hex') FROM generate_series(1, 20000) n".to_owned(),
        // Rows that no sender writes. They come last, because no number follows the highest one.
        "INSERT INTO LEAF (seq, stream, epoch, len, sport, dport, proto, flags, src, dst, tag, chain, payload) VALUES \
         (TOP + 1, STREAM, 1, -5, -1, 70000, -1, -1, '::', '0.0.0.0/0', '', '', ''), \
         (TOP + 2, STREAM, 2147483647, 2147483647, NULL, NULL, NULL, NULL, NULL, NULL, '\\x00', NULL, decode(repeat('00', 7000), 'hex')), \
         (-9223372036854775808, STREAM, -1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, decode(repeat('00', 16), 'hex'), NULL, '\\x45'), \
         (9223372036854775807, STREAM, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, decode(repeat('00', 16), 'hex'), NULL, '\\x45'), \
         (TOP + 3, STREAM, 0, 20, NULL, NULL, NULL, NULL, 'fe80::/64', NULL, decode(repeat('00', 2000), 'hex'), decode(repeat('00', 2000), 'hex'), '\\x45')".to_owned(),
    ];
    for (number, attack) in attacks.iter().enumerate() {
        at_leaf(&bed, attack)?;
        at_leaf(&bed, WAKE)?;
        flows(&bed)?;
        // A new connection brings no new warning.
        if number == 0 {
            bed.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename ~ '_node_n2'",
            )?;
            flows(&bed)?;
        }
    }
    // A sender that connects again does not trust the highest number either.
    bed.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename ~ '_node_n1'")?;
    flows(&bed)?;
    bed.node_mut(0)?.running()?.wait_for("it continues after its own", LIMIT)?;
    let both = both.finish(&bed, u32::MAX)?;
    let dropped = bed.node(1)?.dropped("n1")?;
    ensure(dropped >= 500, || format!("only {dropped} rows are counted as dropped"))?;
    let node = bed.node_mut(1)?;
    node.running()?.wait_for("forged rows dropped", LIMIT)?;
    let warnings = node.running()?.log().matches("forged rows dropped").count();
    let minutes = begun.elapsed().as_secs() / 60;
    ensure(warnings as u64 <= 1 + minutes, || format!("{warnings} warnings"))?;
    Ok(format!("{dropped} rows dropped, {}", lost(both)))
}

fn forged_epochs(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    bed.sql("CREATE TABLE public.honest AS SELECT no FROM adit.epoch")?;
    let before = bed.number("SELECT count(*) FROM public.honest")?;
    ensure(before >= 2, || format!("{before} epochs"))?;
    // An old record under a new number; one with another signature; one with another node's signature; and no record at
    // all. All have wraps.
    for (number, record, signature) in [
        (1000, "record", "signature"),
        (1001, "record", "set_byte(signature, 5, get_byte(signature, 5) # 1)"),
        (1002, "set_byte(record, 9, get_byte(record, 9) # 1)", "signature"),
        (1003, "''", "''"),
        (1004, "decode(repeat('7f', 4000), 'hex')", "decode(repeat('7f', 64), 'hex')"),
    ] {
        bed.sql(&format!(
            "INSERT INTO adit.epoch SELECT stream, no + {number}, leaf, first_seq, opened, {record}, {signature} \
             FROM (SELECT DISTINCT ON (stream) * FROM adit.epoch WHERE no IN (SELECT no FROM public.honest) \
                   ORDER BY stream, no DESC) e; \
             INSERT INTO adit.wrap SELECT stream, epoch + {number}, reader, enc, sealed FROM adit.wrap \
             WHERE epoch IN (SELECT no FROM public.honest)"
        ))?;
        at_leaf(
            &bed,
            &format!(
                "INSERT INTO LEAF (seq, {COLUMNS}) SELECT TOP + row_number() OVER (), {} FROM (SELECT * FROM LEAF LIMIT 50) x",
                COLUMNS.replacen("epoch", &format!("epoch + {number}"), 1)
            ),
        )?;
        at_leaf(&bed, WAKE)?;
    }
    flows(&bed)?;
    // The same for a node that starts and reads them.
    let node = bed.node_mut(1)?;
    node.kill()?;
    node.spawn()?;
    node.wait_up()?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    flows(&bed)?;
    let both = both.finish(&bed, u32::MAX)?;
    Ok(format!("next to {before} honest ones; {}", lost(both)))
}

fn swapped_keys(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    bed.sql("CREATE TABLE public.kept AS SELECT * FROM adit.node")?;
    let restart = |bed: &mut PostgresTestbed| -> Result<()> {
        let node = bed.node_mut(1)?;
        node.kill()?;
        node.spawn()
    };
    for change in [
        "sign_key = (SELECT sign_key FROM public.kept WHERE name = 'n2')",
        "seal_key = (SELECT seal_key FROM public.kept WHERE name = 'n2')",
        "subnets = '{10.50.0.0/16}'",
        "address4 = '10.9.0.200'",
    ] {
        bed.sql(&format!("UPDATE adit.node SET {change} WHERE name = 'n1'; NOTIFY adit_nodes"))?;
        let at = bed.node_mut(1)?;
        at.running()?.wait_for_any(&["n1"], LIMIT)?;
        restart(&mut bed)?;
        bed.blame(until("the second node refuses the first", LIMIT, || {
            let Ok(status) = bed.node(1)?.status() else { return Ok(false) };
            // The first node has created the network. Without its keys a node that starts cannot check the settings.
            let status = status.to_string();
            Ok(status.contains("\"refused\":\"") || status.contains("not trusted"))
        }))?;
        bed.sql("UPDATE adit.node n SET sign_key = k.sign_key, seal_key = k.seal_key, subnets = k.subnets, \
                 address4 = k.address4 FROM public.kept k WHERE k.id = n.id; NOTIFY adit_nodes")?;
        bed.blame(bed.reach(0, 1))?;
    }
    // A node that was not admitted.
    bed.sql(
        "INSERT INTO adit.node (id, name, role, address4, subnets, sign_key, seal_key, mac) \
         SELECT 3, 'evil', 'evil', '10.9.0.66', '{10.9.0.1/32,10.60.0.0/16}', sign_key, seal_key, mac FROM adit.node WHERE name = 'n1'; \
         NOTIFY adit_nodes",
    )?;
    std::thread::sleep(std::time::Duration::from_millis(500));
    bed.reach(0, 1)?;
    let routes = bed.node(1)?.space.run("ip", &["route"])?;
    ensure(!routes.contains("10.60.") && !routes.contains("10.50."), || {
        format!("routes: {routes}")
    })?;
    Ok("refused until they were right again".into())
}

/// The database claims that everything must be written in the clear.
fn forged_policy(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed =
        PostgresTestbed::new(scenario, 2, &Plan { init: &["--audit", "none"], ..Plan::default() })?;
    let forge =
        "UPDATE adit.settings SET audit = 'full', durability = 'volatile'; NOTIFY adit_nodes";
    bed.sql(forge)?;
    // Neither a running node nor a starting one accepts it.
    let told = bed.node_mut(0)?.running()?.wait_for_any(&["not trusted"], LIMIT)?;
    let node = bed.node_mut(1)?;
    node.kill()?;
    node.spawn()?;
    node.running()?.wait_for_any(&["not trusted"], LIMIT)?;
    let mut pings = bed.node(0)?.space.command("ping");
    pings.args(["-c", "3", "-i", "0.2", "-W", "1", &bed.node(1)?.v4()?.to_string()]);
    let _ = pings.output()?;
    let shown =
        bed.number("SELECT count(*) FROM adit.packet WHERE len IS NOT NULL OR src IS NOT NULL")?;
    ensure(shown == 0, || bed.failure_with_logs(&format!("{shown} rows show what they must not")))?;
    bed.sql("UPDATE adit.settings SET audit = 'none', durability = 'strict'; NOTIFY adit_nodes")?;
    bed.reach(0, 1)?;
    Ok(told.chars().skip(20).take(80).collect())
}
