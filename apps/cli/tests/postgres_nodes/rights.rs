//! Tests of admission, and of each role's privileges, which the database enforces, not adit. The command itself creates the networks in a
//! temporary cluster.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use adit_testbed::postgres::Cluster;

use crate::database::{ADIT, cluster, good, invitation, postgres, refused, text};

const VERIFIER: &str = "'SCRAM-SHA-256$4096:' || repeat('a', 22) || '==$' || repeat('b', 43) || '=:' || repeat('c', 43) || '='";

/// The tables that only functions of the schema write.
const TABLES: [&str; 10] = [
    "network",
    "settings",
    "node",
    "invitation",
    "stream",
    "leaf",
    "epoch",
    "wrap",
    "rekey",
    "rekey_wrap",
];

/// A rekey with values of the right lengths. A node may not perform it.
const REKEY: &str = "adit.rekey(2, 'r', 's', '{1}', '{e}', '{s}', '{1}', ARRAY[repeat('m', 32)::bytea], repeat('m', 32)::bytea)";
const CHANGE: &str = "SELECT adit.change_settings(2, 1, 1400, 'full', 'strict', 1, 1, NULL, repeat('a', 32)::bytea, repeat('b', 64)::bytea)";

/// A cluster, a role that may only create roles, and a network `vpn` of the nodes hub, a and b.
struct Net {
    // This field is first, so that the cluster ends before its directory is removed.
    cluster: Cluster,
    folder: tempfile::TempDir,
}

fn adit(arguments: &[&str]) -> Output {
    let mut command = postgres();
    command.args(arguments);
    // No node runs here unless a test starts one.
    if matches!(arguments.first(), Some(&"init" | &"invite")) {
        command.arg("--offline");
    }
    command.output().unwrap()
}

/// Creates a network with one node, hub, in `dir`.
fn init(url: &str, dir: &str, more: &[&str]) -> Output {
    let words = ["init", url, "--network", "10.9.0.0/24", "--name", "hub", "--dir", dir];
    adit(&[&words, more].concat())
}

impl Net {
    fn new() -> Option<Self> {
        let (folder, cluster) = cluster()?;
        cluster.create("vpn", "secret", "CREATEROLE").unwrap();
        let net = Self { cluster, folder };
        let url = net.cluster.socket_url("vpn", "vpn");
        let printed = net.done(&[
            "init",
            &url,
            "--network",
            "10.9.0.0/24",
            "--network6",
            "fd09::/64",
            "--name",
            "hub",
            "--route",
            "192.168.7.0/24",
            "--auditor",
            &net.path("auditor"),
            "--dir",
            &net.path("hub"),
        ]);
        net.done(&["join", &invitation(&printed), "--name", "a", "--dir", &net.path("a")]);
        let printed = net.done(&["invite", "--dir", &net.path("hub")]);
        net.done(&["join", &invitation(&printed), "--name", "b", "--dir", &net.path("b")]);
        Some(net)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn done(&self, arguments: &[&str]) -> String {
        good(arguments, &adit(arguments))
    }

    fn refused(&self, arguments: &[&str], said: &str) {
        refused(arguments, &adit(arguments), said);
    }

    fn sql(&self, sql: &str) -> String {
        self.cluster.sql("vpn", sql).unwrap()
    }

    fn stream(&self, from: &str, to: &str) -> String {
        self.sql(&format!(
            "SELECT s.id FROM adit.stream s JOIN adit.node f ON f.id = sender JOIN adit.node t ON t.id = receiver
             WHERE f.name = '{from}' AND t.name = '{to}'"
        ))
        .trim()
        .to_owned()
    }

    /// Waits until no session of a role is left. A server process ends some time after its client, and until then
    /// counts towards the few sessions of an invitation.
    fn idle(&self, role: &str) {
        let count = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'");
        let limit = std::time::Duration::from_secs(10);
        adit_testbed::wait::until("the role is idle", limit, || Ok(self.sql(&count).trim() == "0"))
            .unwrap();
    }

    fn sql_as(&self, role: &str, sql: &str) -> Result<String, String> {
        let ran = || self.cluster.sql_as(role, "vpn", sql).map_err(|failure| failure.0);
        match ran() {
            Err(said) if said.contains("too many connections for role") => {
                self.idle(role);
                ran()
            }
            done => done,
        }
    }

    /// Checks that each of these statements works for the role.
    fn may(&self, role: &str, all: &[String]) {
        for sql in all {
            if let Err(said) = self.sql_as(role, sql) {
                panic!("{role}: {sql}: {said}");
            }
        }
    }

    /// Checks that each of these statements is refused for the role, with its error code.
    fn may_not(&self, role: &str, all: &[(String, &str)]) {
        for (sql, code) in all {
            match self.sql_as(role, sql) {
                Ok(rows) => panic!("{role} may: {sql}: {rows}"),
                Err(said) => assert!(said.contains(code), "{role}: {sql}: {said}"),
            }
        }
    }
}

/// Returns the table or view of a leaf of the stream's sender.
fn named(kind: &str, stream: &str, no: u32) -> String {
    format!("{kind}_{}_{no}", stream.parse::<u32>().unwrap() / 65_536)
}

fn open_epoch(stream: &str, readers: &str) -> String {
    format!(
        "SELECT adit.open_epoch({stream}, 1, 1, 1, true, 'r', 's', '{readers}',
             array_fill('e'::bytea, ARRAY[cardinality('{readers}'::int[])]), array_fill('s'::bytea, ARRAY[cardinality('{readers}'::int[])]))"
    )
}

fn insert(leaf: &str, stream: &str) -> String {
    format!(
        "INSERT INTO adit.{leaf} (seq, stream, epoch, tag, payload) VALUES (1, {stream}, 1, 't', 'p')"
    )
}

#[test]
fn a_node_does_what_is_its_own_and_the_database_refuses_the_rest() {
    let Some(net) = Net::new() else { return };
    let (hub, a, b) = ("adit_vpn_node_hub", "adit_vpn_node_a", "adit_vpn_node_b");
    let [hub_a, a_hub, a_b, b_a, hub_b] =
        [("hub", "a"), ("a", "hub"), ("a", "b"), ("b", "a"), ("hub", "b")]
            .map(|(f, t)| net.stream(f, t));
    let (leaf, inbox) =
        (|stream: &str| named("packet", stream, 1), |stream: &str| named("inbox", stream, 1));
    net.may(
        hub,
        &[
            open_epoch(&hub_a, "{0,1,2}"),
            open_epoch(&hub_b, "{0,1,3}"),
            insert(&leaf(&hub_a), &hub_a),
            insert(&leaf(&hub_b), &hub_b),
        ],
    );
    net.may(b, &[open_epoch(&b_a, "{0,2,3}")]);

    // Operations that the role needs.
    net.may(a, &[
        open_epoch(&a_hub, "{0,1,2}"),
        open_epoch(&a_b, "{0,2,3}"),
        insert(&leaf(&a_hub), &a_hub),
        format!("COPY adit.{} (seq, stream, epoch, len, sport, dport, proto, flags, src, dst, tag, chain, payload) FROM STDIN", leaf(&a_hub)),
        format!("SELECT seq, ts, payload FROM adit.{}", inbox(&hub_a)),
        format!("SELECT seq FROM adit.newest({hub_a}, 1, 0, 9, NULL, 5)"),
        "SELECT last_value FROM adit.bell_2; SELECT nextval('adit.bell_1'), pg_notify('adit_1', '131073.1')".into(),
        "SELECT * FROM adit.resume(1)".into(),
        "SELECT * FROM adit.expire()".into(),
        "SELECT * FROM adit.usage()".into(),
        "SELECT tag, mac FROM adit.network".into(),
        "SELECT name, sign_key FROM adit.node".into(),
        "LISTEN adit_2; NOTIFY adit_1, '1.1'".into(),
        "SELECT held_by FROM adit.begin_writing()".into(),
    ]);
    let seen = |sql: &str| net.cluster.sql_as(a, "vpn", sql).unwrap().trim().to_owned();
    assert_eq!(seen("SELECT adit.me()"), "2");
    assert_eq!(
        seen(&format!("SELECT count(*), min(stream) FROM adit.{}", inbox(&hub_a))),
        format!("1|{hub_a}")
    );
    assert_eq!(seen(&format!("SELECT count(*) FROM adit.{}", inbox(&a_hub))), "0");
    assert_eq!(seen(&format!("SELECT last_seq FROM adit.resume(1) WHERE stream = {a_hub}")), "1");

    // The role does not see rows of other nodes.
    assert_eq!(seen("SELECT count(*) FROM adit.stream"), "4");
    assert_eq!(seen(&format!("SELECT count(*) FROM adit.stream WHERE id = {hub_b}")), "0");
    assert_eq!(seen("SELECT count(*) FROM adit.leaf"), "3");
    assert_eq!(seen("SELECT count(*) FROM adit.epoch"), "4");
    assert_eq!(seen("SELECT count(*), min(reader), max(reader) FROM adit.wrap"), "4|2|2");
    assert_eq!(net.sql("SELECT count(*) FROM adit.wrap").trim(), "15");

    let denied = |sql: String| (sql, "42501");
    let mut all = vec![
        // Access to others' streams, and any operation except appending to its own, is refused.
        denied(insert(&leaf(&hub_a), &hub_a)),
        denied(insert(&leaf(&hub_b), &hub_b)),
        (insert(&leaf(&a_hub), &hub_a), "23514"),
        (insert(&leaf(&a_hub), &b_a), "23514"),
        denied(format!(
            "INSERT INTO adit.{} (seq, ts, stream, epoch, tag, payload) VALUES (2, now(), {a_hub}, 1, 't', 'p')",
            leaf(&a_hub)
        )),
        denied(format!(
            "COPY adit.{} (seq, ts, stream, epoch, tag, payload) FROM STDIN",
            leaf(&a_hub)
        )),
        denied(insert("packet", &a_hub)),
        denied(format!("SELECT * FROM adit.{}", leaf(&a_hub))),
        denied(format!("SELECT * FROM adit.{}", leaf(&hub_b))),
        denied(format!(
            "INSERT INTO adit.{} (seq, stream, epoch, tag, payload) VALUES (2, {hub_a}, 1, 't', 'p')",
            inbox(&hub_a)
        )),
        denied(format!("DELETE FROM adit.{}", inbox(&hub_a))),
        denied("SELECT last_value FROM adit.bell_1".into()),
        denied(format!("SELECT * FROM adit.newest({hub_b}, 1, 0, 9, NULL, 5)")),
        denied(format!("SELECT * FROM adit.newest({a_hub}, 1, 0, 9, NULL, 5)")),
        denied("SELECT setval('adit.bell_2', 9)".into()),
        denied("SELECT adit.size(l) FROM adit.leaf l".into()),
        denied("SELECT * FROM adit.packet".into()),
        denied("SELECT * FROM adit.log".into()),
        denied("SELECT * FROM adit.invitation".into()),
        // Functions for other roles, or with other nodes' arguments, are refused.
        denied(open_epoch(&hub_a, "{1,2}").replace(", 1, 1, 1,", ", 2, 1, 2,")),
        (open_epoch(&a_hub, "{1,3}").replace(", 1, 1, 1,", ", 2, 1, 2,"), "22023"),
        (open_epoch(&a_hub, "{1,2}").replace(", 1, 1, 1,", ", 2, 3, 2,"), "22023"),
        (open_epoch(&a_hub, "{0,0,0,1,2}").replace(", 1, 1, 1,", ", 2, 1, 2,"), "22023"),
        (open_epoch(&a_hub, "{1,2}"), "23505"),
        denied("SELECT adit.resume(2)".into()),
        denied("SELECT adit.resume(99)".into()),
        denied(format!("SELECT adit.invite({VERIFIER}, '1 hour', 'k', NULL, 1)")),
        denied("SELECT adit.remove(3, NULL)".into()),
        denied("SELECT adit.begin_rekey()".into()),
        denied(format!("SELECT {REKEY}")),
        denied("SELECT adit.check_invitation()".into()),
        denied(CHANGE.into()),
        denied("SELECT adit.reserve('c', '{}')".into()),
        denied(format!("SELECT adit.register(2, {VERIFIER}, 'a', 'b', 'c')")),
        denied("SELECT adit.forget_invitations()".into()),
        denied("SELECT adit.ask(repeat('a', 1216)::bytea, repeat('b', 32)::bytea)".into()),
        denied("SELECT * FROM adit.answered()".into()),
        denied("SELECT adit.rules(true)".into()),
        denied("SELECT adit.check_subnets('{}')".into()),
        denied("SELECT adit.free_address('10.9.0.0/24', '{}')".into()),
        // The role cannot assume other roles.
        denied("SET ROLE adit_vpn_owner".into()),
        denied("SET ROLE adit_vpn_node_hub".into()),
        denied("SET SESSION AUTHORIZATION adit_vpn_node_hub".into()),
        denied("ALTER ROLE adit_vpn_node_hub PASSWORD 'x'".into()),
        denied("CREATE ROLE intruder".into()),
        denied("GRANT adit_vpn_auditors TO adit_vpn_node_a".into()),
        // The role cannot create or change objects.
        denied("CREATE TABLE adit.more (n int)".into()),
        denied("CREATE FUNCTION adit.me2() RETURNS int LANGUAGE sql AS 'SELECT 1'".into()),
        denied("CREATE SCHEMA more".into()),
        denied(format!("CREATE TABLE public.leaf () INHERITS (adit.{})", leaf(&a_hub))),
        denied(format!(
            "CREATE TRIGGER t BEFORE INSERT ON adit.{} FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            leaf(&a_hub)
        )),
        denied(format!("CREATE RULE r AS ON INSERT TO adit.{} DO INSTEAD NOTHING", leaf(&a_hub))),
        denied("BEGIN; LOCK TABLE adit.node IN SHARE ROW EXCLUSIVE MODE".into()),
        denied("SELECT FROM adit.network FOR UPDATE".into()),
    ];
    let leaves = [leaf(&a_hub), leaf(&hub_a), leaf(&hub_b)];
    let rows = ["packet"].into_iter().chain(leaves.iter().map(String::as_str));
    for table in TABLES.into_iter().chain(rows) {
        for sql in [
            format!("DELETE FROM adit.{table}"),
            format!("TRUNCATE adit.{table}"),
            format!("DROP TABLE adit.{table} CASCADE"),
            format!("ALTER TABLE adit.{table} ADD more int"),
            format!("ALTER TABLE adit.{table} DISABLE ROW LEVEL SECURITY"),
        ] {
            all.push(denied(sql));
        }
    }
    for (table, column) in [
        ("network", "tag"),
        ("settings", "audit"),
        ("node", "sign_key"),
        ("stream", "sender"),
        ("leaf", "durable"),
        ("epoch", "record"),
        ("wrap", "sealed"),
        ("rekey", "record"),
        ("rekey_wrap", "sealed"),
    ] {
        all.push(denied(format!("UPDATE adit.{table} SET {column} = {column}")));
    }
    for stream in [&a_hub, &hub_a] {
        all.push(denied(format!("UPDATE adit.{} SET seq = 7", leaf(stream))));
    }
    for table in TABLES {
        all.push(denied(format!("INSERT INTO adit.{table} DEFAULT VALUES")));
    }
    net.may_not(a, &all);

    // The role's own objects with our names do not confuse the functions.
    let disguise = "CREATE TEMP TABLE node AS SELECT 1 AS id, session_user::name AS role, true AS may_invite, NULL::timestamptz AS removed;
        CREATE FUNCTION pg_temp.rules(boolean) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        SET search_path = pg_temp, adit, pg_catalog; ";
    assert!(seen(&format!("{disguise} SELECT adit.me()")).ends_with('2'));
    net.may_not(
        a,
        &[denied(format!("{disguise} SELECT adit.invite({VERIFIER}, '1 hour', 'k', NULL, 1)"))],
    );

    // No leaf within the retention was dropped, and none of these attempts changed anything.
    assert_eq!(seen("SELECT count(*) FROM adit.expire()"), "0");
    assert_eq!(net.sql("SELECT count(*) FROM adit.packet").trim(), "3");

    // PostgreSQL reports a grant of another role's privilege only with a warning.
    net.may(a, &[format!("GRANT ALL ON adit.{} TO PUBLIC", inbox(&hub_a))]);
    let others = format!("SELECT has_table_privilege('{b}', 'adit.{}', 'INSERT')", inbox(&hub_a));
    assert_eq!(net.sql(&others).trim(), "f");

    // An auditor can read everything and write nothing.
    net.sql("CREATE ROLE alice LOGIN; GRANT adit_vpn_auditors TO alice");
    let audited = |sql: &str| net.cluster.sql_as("alice", "vpn", sql).unwrap().trim().to_owned();
    assert_eq!(audited("SELECT count(*) FROM adit.packet"), "3");
    assert_eq!(audited("SELECT count(*) FROM adit.log WHERE \"from\" = 'hub'"), "2");
    assert_eq!(audited("SELECT count(*) FROM adit.wrap"), "15");
    net.may_not(
        "alice",
        &[
            denied(insert(&leaf(&a_hub), &a_hub)),
            denied("DELETE FROM adit.packet".into()),
            denied("SELECT adit.expire()".into()),
            denied(format!("SELECT adit.invite({VERIFIER}, '1 hour', 'k', NULL, 1)")),
        ],
    );

    // After the node's removal, its sessions have no privileges, and it cannot open new ones.
    let remove = format!("\\! {ADIT} postgres remove a --dir {} >/dev/null", net.path("hub"));
    let script = format!(
        "SELECT 'before', count(*) FROM adit.{0};\n{remove}\nSELECT 'leaf', count(*) FROM adit.{0};\nINSERT INTO adit.{1} (seq, stream, epoch, \
         tag, payload) VALUES (9, {a_hub}, 1, 't', 'p');\nSELECT 'node', count(*) FROM adit.node;\nSELECT 'resume' FROM adit.resume(1);\n",
        inbox(&hub_a),
        leaf(&a_hub)
    );
    let file = net.path("script");
    std::fs::write(&file, script).unwrap();
    let mut psql = net.cluster.psql(a, "vpn");
    psql.args(["--set", "ON_ERROR_STOP=0", "--no-align", "--tuples-only", "--file", "-"])
        .stdin(std::fs::File::open(&file).unwrap());
    let said = text(&psql.output().unwrap());
    assert!(said.contains("before|1"), "{said}");
    assert_eq!(said.matches("permission denied").count(), 4, "{said}");
    assert_eq!(net.sql("SELECT count(*) FROM adit.packet").trim(), "3");
    let failure = net.cluster.sql_as(a, "vpn", "SELECT 1").unwrap_err().0;
    assert!(failure.contains("not permitted to log in"), "{failure}");
    net.refused(&["remove", "nobody", "--dir", &net.path("hub")], "no node called \"nobody\"");
    net.refused(&["remove", "hub", "--dir", &net.path("b")], "may not remove");
}

#[test]
fn an_invitation_lets_one_node_in_and_does_nothing_else() {
    let Some(net) = Net::new() else { return };
    net.refused(
        &["invite", "--dir", &net.path("a")],
        "may not invite others: run invite on the machine that ran init",
    );
    let url = invitation(&net.done(&["invite", "--valid", "5m", "--dir", &net.path("hub")]));
    let guest = net.sql("SELECT role FROM adit.invitation WHERE node IS NULL").trim().to_owned();
    let other = invitation(&net.done(&["invite", "--dir", &net.path("hub")]));

    let register = |id: &str| {
        format!(
            "SELECT adit.register({id}, {VERIFIER}, repeat('a', 32)::bytea, repeat('b', 1216)::bytea, repeat('c', 32)::bytea)"
        )
    };
    let reserve = |name: &str, subnets: &str| format!("SELECT adit.reserve({name}, {subnets})");
    net.may(
        &guest,
        &[
            "SELECT tag, mac FROM adit.network".into(),
            format!("BEGIN; {}; ROLLBACK", reserve("'c'", "'{192.168.8.0/24,fd77::/48}'")),
        ],
    );
    // psql fetches the reserved number.
    let ready = "BEGIN; SELECT id FROM adit.reserve('c', '{}') \\gset\n";
    let own = || register(":id");
    let mut refused = vec![
        ("SELECT * FROM adit.node".to_owned(), "42501"),
        ("SELECT * FROM adit.stream".to_owned(), "42501"),
        ("SELECT * FROM adit.invitation".to_owned(), "42501"),
        ("SELECT * FROM adit.packet".to_owned(), "42501"),
        ("SELECT adit.me()".to_owned(), "42501"),
        ("SELECT adit.usage()".to_owned(), "42501"),
        ("SELECT * FROM adit.questions()".to_owned(), "42501"),
        ("SELECT adit.answer('x', 'x', 'x', 'x')".to_owned(), "42501"),
        ("SELECT adit.ask('a', 'b')".to_owned(), "22023"),
        ("SELECT adit.expire()".to_owned(), "42501"),
        ("SELECT adit.resume(1)".to_owned(), "42501"),
        ("SELECT adit.remove(2, NULL)".to_owned(), "42501"),
        ("SELECT adit.begin_rekey()".to_owned(), "42501"),
        (format!("SELECT {REKEY}"), "42501"),
        ("SELECT * FROM adit.rekey".to_owned(), "42501"),
        ("SELECT * FROM adit.rekey_wrap".to_owned(), "42501"),
        (CHANGE.to_owned(), "42501"),
        (format!("SELECT adit.invite({VERIFIER}, '1 hour', 'k', NULL, 1)"), "42501"),
        ("UPDATE adit.settings SET audit = 'full'".to_owned(), "42501"),
        ("SELECT * FROM adit.settings".to_owned(), "42501"),
        ("SET ROLE adit_vpn_nodes".to_owned(), "42501"),
        ("CREATE TABLE adit.more (n int)".to_owned(), "42501"),
        // It cannot use others' reservations, or its own twice.
        (register("1"), "42501"),
        (register("99"), "42501"),
        (format!("BEGIN; {}; {}", reserve("'c'", "'{}'"), reserve("'d'", "'{}'")), "42501"),
        // A password in the clear, and keys of other lengths, are refused.
        (format!("{ready} {}", own().replace(VERIFIER, "'geheim'")), "22023"),
        (format!("{ready} {}", own().replace(VERIFIER, "NULL")), "22023"),
        (format!("{ready} {}", own().replace("32", "33")), "22023"),
        (format!("{ready} {}", own().replace("1216", "1215")), "22023"),
        (format!("{ready} {}", own().replace("repeat('c', 32)::bytea", "NULL")), "22023"),
        (format!("{ready} {0}; {0}", own()), "23505"),
    ];
    for name in
        ["''", "NULL", "'A'", "'a b'", "'a-b'", "'a''b'", "'a\"b'", "repeat('a', 25)", "E'a\\nb'"]
    {
        refused.push((reserve(name, "'{}'"), "22023"));
    }
    refused.push((reserve("'hub'", "'{}'"), "23505"));
    for (subnets, code) in [
        ("NULL", "22023"),
        ("'{NULL}'", "22023"),
        ("'{{192.168.8.0/24}}'::cidr[] || '{{192.168.9.0/24}}'::cidr[]", "22023"),
        ("'{0.0.0.0/0}'", "22023"),
        ("'{0.0.0.0/1}'", "22023"),
        ("'{::/0}'", "22023"),
        ("'{2000::/3}'", "22023"),
        ("'{127.0.0.0/8}'", "22023"),
        ("'{169.254.1.0/24}'", "22023"),
        ("'{224.0.0.0/8}'", "22023"),
        ("'{fe80::/64}'", "22023"),
        ("'{10.0.0.0/8}'", "22023"),
        ("'{10.9.0.0/24}'", "22023"),
        ("'{10.9.0.1/32}'", "22023"),
        ("'{fd09::1/128}'", "22023"),
        ("'{192.168.8.0/24,192.168.8.0/25}'", "22023"),
        ("'{192.168.7.0/24}'", "23505"),
        ("'{192.168.7.3/32}'", "23505"),
        ("'{192.168.0.0/16}'", "23505"),
        ("(SELECT array_agg(('192.168.100.' || n)::cidr) FROM generate_series(1, 65) n)", "22023"),
    ] {
        refused.push((reserve("'c'", subnets), code));
    }
    net.may_not(&guest, &refused);

    // A second node with the same name or subnet is refused with a message, and the invitation stays valid.
    let join = |url: &str, more: &[&str]| {
        let mut all = vec!["join", url];
        all.extend(more);
        net.idle(&guest);
        adit(&all)
    };
    let dir = net.path("c");
    let said = text(&join(&url, &["--name", "a", "--dir", &dir]));
    assert!(said.contains("there is a node called a"), "{said}");
    let said = text(&join(&url, &["--name", "c", "--route", "192.168.7.0/25", "--dir", &dir]));
    assert!(said.contains("another node has registered 192.168.7.0/25"), "{said}");
    assert!(!Path::new(&dir).join("postgres/vpn/node.key").exists());
    let said = text(&join(&url, &["--name", "c", "--route", "192.168.8.0/24", "--dir", &dir]));
    assert!(
        said.contains("This machine is c in the network vpn, with 10.9.0.4/24 and fd09::4/64"),
        "{said}"
    );

    // The invitation has been used.
    let said = text(&join(&url, &["--name", "d", "--dir", &net.path("d")]));
    assert!(said.contains("it was used, is too old"), "{said}");
    assert!(!Path::new(&net.path("d")).join("postgres").exists());
    // The machine is already in the network.
    let said = text(&join(&other, &["--name", "d", "--dir", &dir]));
    assert!(said.contains("--network-name"), "{said}");
    // The token is for another network's key, or a row was altered.
    net.sql("UPDATE adit.network SET network4 = '10.8.0.0/24'");
    let said = text(&join(&other, &["--name", "d", "--dir", &net.path("d")]));
    assert!(said.contains("it was altered"), "{said}");
    net.sql("UPDATE adit.network SET network4 = '10.9.0.0/24'");
    // A damaged token, and no token.
    let cut = &other[..other.len() - 1];
    assert!(text(&join(cut, &[])).contains("damaged"));
    assert!(text(&join(other.split('#').next().unwrap(), &[])).contains("not an invitation"));
    // The invitation has expired.
    net.sql("UPDATE adit.invitation SET until = now() - interval '1 s' WHERE node IS NULL");
    let said = text(&join(&other, &["--name", "d", "--dir", &net.path("d")]));
    assert!(said.contains("used up or too old"), "{said}");

    // Expired rows are removed together with their roles.
    net.done(&["expire", "--dir", &net.path("hub")]);
    assert_eq!(net.sql("SELECT count(*) FROM adit.invitation").trim(), "0");
    assert_eq!(
        net.sql("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'adit\\_vpn\\_join\\_%'").trim(),
        "0"
    );
}

#[test]
fn init_asks_for_no_more_than_it_needs_and_can_be_repeated() {
    let Some((folder, cluster)) = cluster() else { return };
    let dir = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = |role: &str, database: &str, more: &[&str]| {
        let url = cluster.socket_url(role, database);
        let mut all = vec!["init", &url, "--network", "10.9.0.0/24", "--name", "hub"];
        all.extend(more);
        adit(&all)
    };
    cluster.create("vpn", "secret", "NOCREATEROLE").unwrap();
    let said = text(&run("vpn", "vpn", &["--dir", &dir("x")]));
    assert!(said.contains("ALTER ROLE \"vpn\" CREATEROLE"), "{said}");
    cluster.create("other", "secret", "CREATEROLE").unwrap();
    let said = text(&run("other", "vpn", &["--dir", &dir("x")]));
    assert!(said.contains("GRANT CREATE ON DATABASE \"vpn\" TO \"other\""), "{said}");
    let said = text(&run("other", "nosuch", &["--dir", &dir("x")]));
    assert!(said.contains("createdb nosuch"), "{said}");
    cluster.sql("vpn", "ALTER ROLE vpn CREATEROLE").unwrap();

    // The SQL is printed without being executed.
    let would = run("vpn", "vpn", &["--dir", &dir("x"), "--dry-run"]);
    assert!(
        would.status.success()
            && text(&would).contains("CREATE SCHEMA adit AUTHORIZATION adit_vpn_owner")
    );
    assert_eq!(
        cluster
            .sql("vpn", "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'adit%'")
            .unwrap()
            .trim(),
        "0"
    );
    assert!(!Path::new(&dir("x")).exists());

    // A failure in the middle leaves no rows, roles or files.
    let said = text(&run(
        "vpn",
        "vpn",
        &["--dir", &dir("x"), "--route", "10.9.0.128/25", "--auditor", &dir("key")],
    ));
    assert!(said.contains("overlaps the network itself"), "{said}");
    let said = text(&run("vpn", "vpn", &["--dir", &dir("x"), "--tablespace", "nosuch; x\""]));
    assert!(said.contains("nosuch; x"), "{said}");
    assert_eq!(
        cluster
            .sql("vpn", "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'adit%'")
            .unwrap()
            .trim(),
        "0"
    );
    assert!(
        !Path::new(&dir("key")).exists()
            && !Path::new(&dir("x")).join("postgres/vpn/node.toml").exists()
    );

    let said = text(&run("vpn", "vpn", &["--dir", &dir("x")]));
    assert!(said.contains("adit postgres join -") && said.contains("  postgres://"), "{said}");
    // Repeating the command changes nothing. With other options, or from another machine, it is refused. The latter
    // message explains how to join.
    let said = text(&run("vpn", "vpn", &["--dir", &dir("x")]));
    assert!(said.contains("nothing was changed"), "{said}");
    let said = text(&run("vpn", "vpn", &["--dir", &dir("x"), "--audit", "full"]));
    assert!(
        said.contains("--audit differs") && said.contains("adit postgres set --audit"),
        "{said}"
    );
    let said = text(&run("vpn", "vpn", &["--dir", &dir("y")]));
    assert!(said.contains("adit postgres invite"), "{said}");
    // The network is from another version.
    cluster.sql("vpn", "UPDATE adit.network SET version = 99").unwrap();
    let said = text(&run("vpn", "vpn", &["--dir", &dir("x")]));
    assert!(said.contains("has version 99, and this adit supports 2"), "{said}");
    // A schema with this name belongs to another user.
    cluster.sql("other", "CREATE SCHEMA adit").unwrap();
    let said = text(&run("other", "other", &["--dir", &dir("z")]));
    assert!(said.contains("not a network's"), "{said}");
}

/// Starts a session of a node that writes until it is killed. An earlier session may still be ending.
fn writing(net: &Net, role: &str) -> Child {
    let begun = std::time::Instant::now();
    loop {
        let (mut child, said) =
            session(net, role, "SELECT 'held', held_by FROM adit.begin_writing()");
        if said == "held|" {
            return child;
        }
        assert!(begun.elapsed().as_secs() < 30, "{role}: {said}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Starts a session that holds a shared lock on every advisory lock number that a stream of a small network could use.
fn locking(net: &Net, role: &str) -> Child {
    let locks =
        "SELECT count(pg_advisory_lock_shared(1633970548, n)) FROM generate_series(1, 500) n";
    let (child, said) = session(net, role, locks);
    assert_eq!(said, "500", "{role}");
    child
}

/// Starts a session that executes this SQL and stays open. Returns it with the result.
fn session(net: &Net, role: &str, sql: &str) -> (Child, String) {
    let mut psql = net.cluster.psql(role, "vpn");
    psql.args([
        "--no-align",
        "--tuples-only",
        "--command",
        sql,
        "--command",
        "SELECT pg_sleep(60)",
    ]);
    let mut child = psql.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

#[test]
fn locks_of_a_stranger_neither_stop_a_node_nor_let_two_sessions_write() {
    let Some(net) = Net::new() else { return };
    net.sql("CREATE ROLE stranger LOGIN; GRANT CONNECT ON DATABASE vpn TO stranger");
    let mut strangers = [locking(&net, "stranger"), locking(&net, "stranger")];
    let holder = |role: &str| {
        let sql = "SELECT held_by FROM adit.begin_writing()";
        net.cluster.sql_as(role, "vpn", sql).unwrap().trim().to_owned()
    };
    let a = "adit_vpn_node_a";
    assert_eq!(holder(a), "", "a session writes in spite of the locks");
    let mut first = writing(&net, a);
    // Another session queues for the lock number that the first session drew, and stays silent.
    let drawn = net.sql("SELECT lock FROM adit.writer WHERE node = 2").trim().to_owned();
    let mut waits = net.cluster.psql("stranger", "vpn");
    waits.args(["--command", &format!("SELECT pg_advisory_lock({drawn}), pg_sleep(60)")]);
    let mut waits = waits.spawn().unwrap();
    let second = holder(a);
    let pid = net.sql(&format!("SELECT usename FROM pg_stat_activity WHERE pid = {second}"));
    assert_eq!(pid.trim(), a, "the second session learns which one writes");
    assert_eq!(holder("adit_vpn_node_b"), "", "another node writes beside it");
    net.sql(&format!("SELECT pg_terminate_backend({second})"));
    first.wait().unwrap();
    let begun = std::time::Instant::now();
    while !holder(a).is_empty() {
        assert!(begun.elapsed().as_secs() < 30, "the killed session still writes");
    }
    net.may_not(
        "stranger",
        &[
            ("SELECT adit.begin_writing()".into(), "42501"),
            ("SELECT * FROM adit.writing".into(), "42501"),
        ],
    );
    net.may_not(
        a,
        &[
            ("SELECT * FROM adit.writer".into(), "42501"),
            ("SELECT * FROM adit.writing".into(), "42501"),
        ],
    );
    for psql in strangers.iter_mut().chain([&mut waits]) {
        psql.kill().unwrap();
        psql.wait().unwrap();
    }
}

#[test]
fn a_database_of_its_own_is_closed_to_other_roles_and_a_shared_one_is_not() {
    let Some((folder, cluster)) = cluster() else { return };
    let dir = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    cluster.sql("postgres", "CREATE ROLE stranger LOGIN").unwrap();
    for (database, table) in [("own", false), ("shared", true)] {
        cluster.create(database, "secret", "CREATEROLE").unwrap();
        if table {
            cluster.sql(database, "CREATE TABLE public.others (n int)").unwrap();
        }
        let url = cluster.socket_url(database, database);
        let made = init(&url, &dir(database), &[]);
        assert!(made.status.success(), "{}", text(&made));
        let said = text(&made);
        let warned =
            said.contains(&format!("REVOKE CONNECT ON DATABASE \"{database}\" FROM PUBLIC"));
        assert_eq!(warned, table, "{said}");
        assert_eq!(cluster.sql_as("stranger", database, "SELECT 1").is_ok(), table, "{database}");
        let joined = adit(&["join", &invitation(&said), "--name", "a", "--dir", &dir("a")]);
        assert!(joined.status.success(), "{}", text(&joined));
    }
}

#[test]
fn one_stream_that_floods_sweeps_out_itself_and_not_the_others() {
    let Some(net) = Net::new() else { return };
    let (a_hub, b_hub) = (net.stream("a", "hub"), net.stream("b", "hub"));
    let open = |stream: &str, no: u32| {
        open_epoch(stream, "{1}").replace(", 1, 1, 1,", &format!(", {no}, {no}, {no},"))
    };
    let fill = |stream: &str, no: u32, rows: u32| {
        format!(
            "INSERT INTO adit.{} (seq, stream, epoch, tag, payload) \
             SELECT {no}, {stream}, {no}, 't', convert_to(repeat('x', 7000), 'UTF8') FROM generate_series(1, {rows})",
            named("packet", stream, no)
        )
    };
    // The quiet stream sends first, so by age alone its leaf would be dropped first.
    net.may("adit_vpn_node_b", &[open(&b_hub, 1), fill(&b_hub, 1, 10), open(&b_hub, 2)]);
    for no in 1..=4 {
        net.may("adit_vpn_node_a", &[open(&a_hub, no), fill(&a_hub, no, 200)]);
    }
    net.sql("UPDATE adit.settings SET retention_bytes = 4000000");
    let dropped = net.done(&["expire", "--dir", &net.path("hub")]);
    let dropped: Vec<_> = dropped
        .lines()
        .filter_map(|line| line.strip_prefix("dropped ")?.split(',').next())
        .collect();
    assert_eq!(dropped, ["packet_2_1", "packet_2_2"]);
    assert_eq!(
        net.sql(&format!("SELECT count(*) FROM adit.wrap WHERE stream = {a_hub}")).trim(),
        "2"
    );
    assert_eq!(
        net.sql(&format!("SELECT count(*) FROM adit.epoch WHERE stream = {a_hub}")).trim(),
        "4"
    );

    // Rows that are too old are dropped however few there are, except those in a leaf that its sender has open.
    net.sql("UPDATE adit.settings SET retention_age = '0', retention_bytes = 1000000000");
    let mut held = writing(&net, "adit_vpn_node_a");
    // Another role's locks protect nothing, and neither do the sender's own locks that are not in the table.
    net.sql("CREATE ROLE stranger LOGIN; GRANT CONNECT ON DATABASE vpn TO stranger");
    let mut alien = locking(&net, "stranger");
    let mut other = locking(&net, "adit_vpn_node_b");
    net.done(&["expire", "--dir", &net.path("hub")]);
    for psql in [&mut held, &mut alien, &mut other] {
        psql.kill().unwrap();
        psql.wait().unwrap();
    }
    let left = net.sql("SELECT sender, no FROM adit.leaf WHERE dropped IS NULL ORDER BY 1, 2");
    assert_eq!(left.trim(), "2|4");

    // Records of dropped leaves are removed after a day, except the newest.
    net.sql("UPDATE adit.leaf SET dropped = dropped - interval '2 days'");
    net.done(&["expire", "--dir", &net.path("hub")]);
    let left = net.sql("SELECT sender, no FROM adit.leaf ORDER BY 1, 2");
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["2|4", "3|2"]);
}

#[test]
fn a_sender_that_never_begins_a_new_leaf_is_made_to() {
    let Some(net) = Net::new() else { return };
    let (a_hub, b_hub) = (net.stream("a", "hub"), net.stream("b", "hub"));
    let (a, b) = ("adit_vpn_node_a", "adit_vpn_node_b");
    net.may(b, &[open_epoch(&b_hub, "{1}"), insert("packet_3_1", &b_hub)]);
    net.may(
        a,
        &[
            open_epoch(&a_hub, "{1}"),
            format!(
                "INSERT INTO adit.packet_2_1 (seq, stream, epoch, tag, payload) SELECT n, {a_hub}, 1, 't', \
                 convert_to(repeat('x', 7000), 'UTF8') FROM generate_series(1, 8500) n"
            ),
        ],
    );
    net.sql("UPDATE adit.settings SET retention_bytes = 64000000");
    // The leaf is open and locked, so it cannot be dropped. The others must not be dropped in its place.
    let mut held = writing(&net, a);
    net.done(&["expire", "--dir", &net.path("hub")]);
    held.kill().unwrap();
    let _ = held.wait();
    let left = net.sql("SELECT sender FROM adit.leaf WHERE dropped IS NULL");
    assert_eq!(left.trim(), "3");
    let next = |no: &str| open_epoch(&a_hub, "{1}").replace(", 1, 1, 1,", no);
    net.may_not(a, &[(next(", 2, 1, 9000,"), "22023")]);
    net.may(a, &[next(", 2, 2, 9000,"), insert("packet_2_2", &a_hub)]);
}

#[test]
fn a_sender_goes_on_behind_everything_that_it_may_have_sent() {
    let Some(net) = Net::new() else { return };
    let stream = net.stream("a", "hub");
    let a = "adit_vpn_node_a";
    let resume = || {
        let sql = "SELECT stream, last_seq, last_epoch, last_leaf FROM adit.resume(1)";
        net.cluster.sql_as(a, "vpn", sql).unwrap().trim().to_owned()
    };
    assert_eq!(resume(), format!("{stream}|0|0|0"));
    // The record of an epoch counts even if it has no packets.
    net.may(a, &[open_epoch(&stream, "{1}").replace(", 1, 1, 1,", ", 1, 1, 7,")]);
    assert_eq!(resume(), format!("{stream}|6|1|1"));
    let put = format!(
        "INSERT INTO adit.packet_2_1 (seq, stream, epoch, tag, chain, payload) VALUES (8, {stream}, 1, 't', 'c', 'p'), \
         (9, {stream}, 1, 't', NULL, 'p')"
    );
    net.may(a, &[put]);
    assert_eq!(resume(), format!("{stream}|9|1|1"));
    // The leaf was dropped, no matter by which role.
    net.sql("DROP TABLE adit.packet_2_1 CASCADE");
    assert_eq!(resume(), format!("{stream}|6|1|1"));
    // A crash of the database emptied the leaf. The sent numbers are unknown, so the next number is much higher.
    net.may(a, &[open_epoch(&stream, "{1}").replace(", 1, 1, 1, true", ", 2, 2, 10, false")]);
    net.may(a, &[insert("packet_2_2", &stream).replace("(1,", "(12,")]);
    assert_eq!(resume(), format!("{stream}|12|2|2"));
    net.sql("TRUNCATE adit.packet_2_2");
    assert_eq!(resume(), format!("{stream}|{}|2|2", 9 + (1_u64 << 40)));
}

#[test]
fn a_full_network_says_so_and_leaves_nothing_behind() {
    let Some((folder, cluster)) = cluster() else { return };
    cluster.create("vpn", "secret", "CREATEROLE").unwrap();
    let dir = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let url = cluster.socket_url("vpn", "vpn");
    let printed =
        adit(&["init", &url, "--network", "10.9.0.0/30", "--name", "hub", "--dir", &dir("hub")]);
    let joined = adit(&["join", &invitation(&text(&printed)), "--name", "a", "--dir", &dir("a")]);
    assert!(text(&joined).contains("10.9.0.2/30"), "{}", text(&joined));
    let more = invitation(&text(&adit(&["invite", "--dir", &dir("hub")])));
    let full = adit(&["join", &more, "--name", "b", "--dir", &dir("b")]);
    assert!(!full.status.success() && text(&full).contains("no free address"), "{}", text(&full));
    assert!(!Path::new(&dir("b")).join("postgres/vpn/node.key").exists());
    assert_eq!(cluster.sql("vpn", "SELECT count(*) FROM adit.node").unwrap().trim(), "2");
}

#[test]
fn a_superuser_may_make_a_network_whose_leaves_lie_in_a_tablespace() {
    let Some((folder, cluster)) = cluster() else { return };
    cluster.create("vpn", "secret", "").unwrap();
    let space = cluster.socket_folder().join("space");
    std::fs::create_dir(&space).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(cluster.data()).unwrap());
    std::os::unix::fs::chown(&space, Some(owner), Some(owner)).unwrap();
    cluster
        .sql("vpn", &format!("CREATE TABLESPACE \"my space\" LOCATION '{}'", space.display()))
        .unwrap();
    let dir = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let url = cluster.socket_url("postgres", "vpn");
    let made = init(&url, &dir("hub"), &["--tablespace", "my space"]);
    assert!(made.status.success(), "{}", text(&made));
    let joined = adit(&["join", &invitation(&text(&made)), "--name", "a", "--dir", &dir("a")]);
    assert!(joined.status.success(), "{}", text(&joined));
    cluster
        .sql_as(
            "adit_vpn_node_hub",
            "vpn",
            &open_epoch("(SELECT min(id) FROM adit.stream WHERE sender = 1)", "{1,2}"),
        )
        .unwrap();
    let found = "SELECT count(*) FROM pg_class c JOIN pg_tablespace t ON t.oid = reltablespace WHERE spcname = 'my space'";
    // The leaf has only an index, and no TOAST table for values that would be too long for a page.
    assert_eq!(cluster.sql("vpn", found).unwrap().trim(), "2");
    let plain = "SELECT string_agg(DISTINCT attstorage::text, '') FROM pg_attribute WHERE attnum > 0 AND attrelid IN \
                 (SELECT inhrelid FROM pg_inherits)";
    assert_eq!(cluster.sql("vpn", plain).unwrap().trim(), "p");
}

#[test]
fn epochs_are_limited_in_rate_and_their_keys_count_in_the_retention() {
    let Some(net) = Net::new() else { return };
    let (stream, a) = (net.stream("a", "hub"), "adit_vpn_node_a");
    let open = |first: u32, last: u32, leaf: u32| {
        format!(
            "SELECT count(adit.open_epoch({stream}, n, {leaf}, n, true, convert_to(repeat('r', 4000), 'UTF8'), 's', '{{1}}', \
             ARRAY[convert_to(repeat('e', 4000), 'UTF8')], ARRAY['s'::bytea])) FROM generate_series({first}, {last}) n"
        )
    };
    let keys = || net.sql("SELECT keys FROM adit.usage()").trim().parse::<u64>().unwrap();
    assert_eq!(keys(), 0);
    net.may(a, &[open(1, 60, 1)]);
    net.may_not(a, &[(open(61, 61, 1), "53400")]);
    assert!((480_000..540_000).contains(&keys()), "{}", keys());
    // A new leaf is independent, and so is the next minute.
    net.may(a, &[open(61, 61, 2)]);
    net.sql("UPDATE adit.epoch SET opened = opened - interval '1 minute'");
    net.may(a, &[open(62, 62, 2)]);
    // There are few rows and many keys, so the leaf with the keys is dropped.
    net.sql("UPDATE adit.settings SET retention_bytes = 300000");
    let dropped = net.done(&["expire", "--dir", &net.path("hub")]);
    assert!(dropped.contains("dropped packet_2_1,"), "{dropped}");
    assert!((16_000..20_000).contains(&keys()), "{}", keys());
    net.sql("UPDATE adit.settings SET retention_bytes = 1000000000");
    // The exit code is 1, because the node is not running.
    let shown = text(&adit(&["status", "--json", "--dir", &net.path("hub")]));
    assert!(shown.contains("\"key_bytes\": 1") || shown.contains("\"key_bytes\":1"), "{shown}");
    // Records of dropped leaves are kept for a day, up to a maximum number.
    net.sql(
        "INSERT INTO adit.leaf (sender, no, durable, closed, dropped) SELECT 2, n, true, now(), now() FROM generate_series(3, 290) n; \
         INSERT INTO adit.epoch SELECT stream, n + 100, n, first_seq, opened, record, signature \
         FROM adit.epoch, generate_series(3, 290) n WHERE no = 61",
    );
    net.done(&["expire", "--dir", &net.path("hub")]);
    let left = net.sql("SELECT count(DISTINCT leaf) FROM adit.epoch e JOIN adit.leaf l ON l.no = e.leaf WHERE l.dropped IS NOT NULL");
    assert_eq!(left.trim(), "256");
}

#[test]
fn the_log_of_a_hundred_nodes_is_read_with_the_servers_default_settings() {
    let Some(net) = Net::new() else { return };
    let settings = net.sql("SHOW max_locks_per_transaction; SHOW max_connections");
    assert_eq!(settings.split_whitespace().collect::<Vec<_>>(), ["64", "100"]);
    // Create 17 leaves for each of 100 nodes, in transactions with as many leaves as a server with these settings can
    // create at once.
    for first in (1001..=1100).step_by(5) {
        net.sql(&format!(
            "DO $$ BEGIN FOR s IN {first}..{first} + 4 LOOP FOR n IN 1..17 LOOP \
             EXECUTE format('CREATE TABLE adit.packet_%s_%s () INHERITS (adit.packet)', s, n); \
             EXECUTE format('CREATE INDEX ON adit.packet_%s_%s (stream, seq)', s, n); \
             END LOOP; END LOOP; END $$"
        ));
    }
    net.sql("CREATE ROLE alice LOGIN; GRANT adit_vpn_auditors TO alice");
    let read = |sql: &str| net.cluster.sql_as("alice", "vpn", sql).unwrap().trim().to_owned();
    assert_eq!(
        read("SELECT count(*) FROM pg_inherits WHERE inhparent = 'adit.packet'::regclass"),
        "1700"
    );
    assert_eq!(read("SELECT count(*) FROM adit.log WHERE ts > now() - interval '1 hour'"), "0");
}

/// Returns the generation of the network's key that a node's own `status` has verified.
fn generation(net: &Net, node: &str) -> i64 {
    // No node runs here, so `status` fails, but still reports what it has read.
    let output = adit(&["status", "--json", "--dir", &net.path(node)]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let generation = said.pointer("/database/key_generation").and_then(|value| value.as_i64());
    generation.unwrap_or_else(|| panic!("{}", text(&output)))
}

#[test]
fn a_rekey_reaches_each_member_and_no_one_else() {
    let Some(net) = Net::new() else { return };
    let hub = net.path("hub");
    let macs = || net.sql("SELECT mac FROM adit.network UNION ALL SELECT mac FROM adit.node");
    let (before, open) = (macs(), invitation(&net.done(&["invite", "--dir", &hub])));
    net.refused(&["rekey", "--dir", &net.path("a")], "only the node that created the network");
    let said = net.done(&["rekey", "--dir", &hub]);
    assert!(said.contains("generation 2, for: hub, a, b, and the auditor."), "{said}");
    assert!(macs().lines().zip(before.lines()).all(|(now, before)| now != before));
    for node in ["hub", "a", "b"] {
        assert_eq!(generation(&net, node), 2, "{node}");
    }
    // Each node can read its own wrap. Auditors can read all.
    let seen = |role: &str| net.sql_as(role, "SELECT count(*), min(reader) FROM adit.rekey_wrap");
    assert_eq!(seen("adit_vpn_node_a").unwrap().trim(), "1|2");
    net.sql("CREATE ROLE alice LOGIN; GRANT adit_vpn_auditors TO alice");
    assert_eq!(seen("alice").unwrap().trim(), "4|0");
    let url = net.cluster.socket_url("alice", "vpn");
    net.done(&["verify", "--url", &url, "--key", &net.path("auditor")]);

    // An earlier invitation and its role do not get the new key.
    let said = text(&adit(&["join", &open, "--name", "c", "--dir", &net.path("c")]));
    assert!(said.contains("has got a new key since this invitation was made"), "{said}");
    let kept = "SELECT count(*) FROM adit.invitation WHERE num_nonnulls(key, offline, asked, proof, enc, sealed) > 0";
    assert_eq!(net.sql(kept).trim(), "0");
    // A later invitation does, and its node starts with that key.
    let fresh = invitation(&net.done(&["invite", "--dir", &hub]));
    net.done(&["join", &fresh, "--name", "c", "--dir", &net.path("c")]);
    assert_eq!(generation(&net, "c"), 2);

    // A removed node is left out, and cannot open the later keys in the database.
    let said = net.done(&["remove", "b", "--dir", &hub]);
    assert!(said.contains("generation 3, for: hub, a, c, and the auditor."), "{said}");
    assert_eq!((generation(&net, "a"), generation(&net, "c")), (3, 3));
    assert_eq!(net.sql("SELECT count(*) FROM adit.rekey_wrap WHERE reader = 3").trim(), "1");
    net.sql("UPDATE adit.node SET removed = NULL WHERE name = 'b'");
    net.sql("ALTER ROLE adit_vpn_node_b LOGIN; GRANT adit_vpn_nodes TO adit_vpn_node_b");
    let output = adit(&["status", "--json", "--dir", &net.path("b")]);
    assert!(text(&output).contains("made without this node"), "{}", text(&output));
    net.refused(&["rekey", "--dir", &hub], "node b is not trusted");
    net.sql("UPDATE adit.node SET removed = now() WHERE name = 'b'");

    // Rows that were restored from before a rekey, and a record that the database has altered, are rejected.
    let altered = "UPDATE adit.rekey SET record = set_byte(record, 20, get_byte(record, 20) # 1) WHERE generation = 2";
    net.sql(altered);
    net.refused(
        &["rekey", "--dir", &hub],
        "generation 2 is not accepted: the network's owner has not signed it",
    );
    net.sql(altered);
    net.sql("UPDATE adit.rekey_wrap SET sealed = set_byte(sealed, 3, get_byte(sealed, 3) # 1) WHERE reader = 1");
    net.refused(&["rekey", "--dir", &hub], "the wrapped key is not the one that was signed");
    net.sql("UPDATE adit.rekey_wrap SET sealed = set_byte(sealed, 3, get_byte(sealed, 3) # 1) WHERE reader = 1");
    net.sql("CREATE TABLE public.kept AS SELECT * FROM adit.rekey_wrap WHERE generation = 3");
    net.sql("CREATE TABLE public.kept_record AS SELECT * FROM adit.rekey WHERE generation = 3; DELETE FROM adit.rekey WHERE generation = 3");
    net.refused(&["rekey", "--dir", &hub], "the database has no record that leads there");
    net.sql("INSERT INTO adit.rekey SELECT * FROM public.kept_record; INSERT INTO adit.rekey_wrap SELECT * FROM public.kept");
    let said = net.done(&["rekey", "--dir", &hub]);
    assert!(said.contains("generation 4"), "{said}");
    // The files of this machine are unchanged, because its node takes keys from the database.
    assert!(!Path::new(&hub).join("postgres/vpn/network.keys").exists());
}

/// The transaction fails in the middle, after the record and before the wraps.
#[test]
fn a_rekey_that_is_killed_leaves_the_former_key() {
    let Some(net) = Net::new() else { return };
    let limit = std::time::Duration::from_secs(30);
    let count = |what: &str, sql: &str| {
        adit_testbed::wait::until(what, limit, || Ok(net.sql(sql).trim() == "1")).unwrap();
    };
    let mut holder = net.cluster.psql("postgres", "vpn");
    holder.args([
        "--command",
        "BEGIN; LOCK TABLE adit.rekey_wrap IN EXCLUSIVE MODE",
        "--command",
        "SELECT pg_sleep(60)",
    ]);
    let mut holder = holder.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let of_table = "SELECT count(*) FROM pg_locks WHERE relation = 'adit.rekey_wrap'::regclass AND";
    count("the table is locked", &format!("{of_table} mode = 'ExclusiveLock' AND granted"));
    let hub = net.path("hub");
    let mut rekey = Command::new(ADIT);
    rekey.args(["postgres", "rekey", "--dir", &hub]).env("HOME", "/nonexistent");
    let mut rekey = rekey.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    count("the rekey waits", &format!("{of_table} NOT granted"));
    rekey.kill().unwrap();
    rekey.wait().unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    net.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()");
    let hub_role = "SELECT CASE WHEN count(*) = 0 THEN 1 END FROM pg_stat_activity WHERE usename = 'adit_vpn_node_hub'";
    count("the server has noticed", hub_role);
    assert_eq!(net.sql("SELECT count(*) FROM adit.rekey").trim(), "0");
    assert_eq!((generation(&net, "hub"), generation(&net, "a")), (1, 1));
    let said = net.done(&["rekey", "--dir", &hub]);
    assert!(said.contains("generation 2"), "{said}");
    assert_eq!((generation(&net, "hub"), generation(&net, "a")), (2, 2));
}
