//! Tests of a network after its creation: its settings, its auditor, and reused names. They run the command itself in a temporary cluster,
//! without a running node.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};

use adit_testbed::postgres::Cluster;

use crate::database::{ADIT, cluster, good, invitation, postgres, refused, text};

/// A cluster, and a network `vpn` of the node hub.
struct Net {
    // This field is first, so that the cluster ends before its directory is removed.
    cluster: Cluster,
    folder: tempfile::TempDir,
    /// The URL for the next node.
    url: String,
}

impl Net {
    fn new() -> Option<Self> {
        let (folder, cluster) = cluster()?;
        cluster.create("vpn", "secret", "CREATEROLE").unwrap();
        let url = cluster.socket_url("vpn", "vpn");
        let mut net = Self { cluster, folder, url };
        let words = ["--network", "10.9.0.0/24", "--name", "hub", "--offline"];
        let printed = net.done("hub", &[&["init", &net.url], &words[..]].concat());
        net.url = invitation(&printed);
        Some(net)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs `adit postgres` as a node.
    fn adit(&self, node: &str, words: &[&str]) -> Output {
        postgres().args(words).args(["--dir", &self.path(node)]).output().unwrap()
    }

    fn done(&self, node: &str, words: &[&str]) -> String {
        good(words, &self.adit(node, words))
    }

    fn refused(&self, node: &str, words: &[&str], said: &str) {
        refused(words, &self.adit(node, words), said);
    }

    /// Returns the output of `status`, which fails while the node is not running.
    fn status(&self, node: &str) -> String {
        text(&self.adit(node, &["status"]))
    }

    fn sql(&self, sql: &str) -> String {
        self.cluster.sql("vpn", sql).unwrap().trim().to_owned()
    }

    /// Joins a machine, and creates an invitation for the next one.
    fn join(&mut self, dir: &str, name: &str) -> String {
        let said = self.done(dir, &["join", &self.url, "--name", name]);
        self.url = invitation(&self.done("hub", &["invite", "--offline"]));
        said
    }
}

/// As if a newer version of adit had changed the database.
#[test]
fn a_network_of_a_newer_version_is_named_as_such() {
    let Some(net) = Net::new() else { return };
    let version = net.sql("UPDATE adit.network SET version = version + 1 RETURNING version - 1");
    let sentence = format!("and this adit supports {}", version.lines().next().unwrap());
    for words in
        [&["status"][..], &["verify"], &["invite"], &["rekey"], &["set", "--retention", "2GB"]]
    {
        net.refused("hub", words, &sentence);
    }
    net.sql("UPDATE adit.network SET version = version - 1");
    net.done("hub", &["verify"]);
}

#[test]
fn the_owner_changes_the_settings_and_the_database_does_not() {
    let Some(mut net) = Net::new() else { return };
    net.join("a", "a");
    let said = net.done("hub", &["set", "--retention", "2GB", "--audit", "none"]);
    for line in [
        "Settings 2 of the network vpn:",
        "audit: headers -> none",
        "retention: 1000 MB -> 2000 MB",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(net.status("a").contains("settings 2: durability strict, audit none"));
    assert!(net.status("a").contains("of at most 2 GB"));
    assert!(net.done("hub", &["set", "--retention", "2GB"]).contains("Nothing was changed"));
    net.refused("hub", &["set"], "choose a setting");
    net.refused("hub", &["set", "--packet-size", "100"], "between 1280 and 7900");
    net.refused("a", &["set", "--retention", "3GB"], "only node 1");
    // If a node's files are changed so that it appears to be the owner, the database and the signature contradict this.
    let file = net.path("a") + "/postgres/vpn/node.toml";
    let settings = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, settings.replace("node = 2", "node = 1")).unwrap();
    net.refused("a", &["set", "--retention", "3GB"], "has not signed");
    std::fs::write(&file, settings).unwrap();
    let as_node = "SELECT adit.change_settings(3, 1, 1400, 'full', 'strict', 1, 1, NULL, repeat('a', 32)::bytea, repeat('b', 64)::bytea)";
    let said = net.cluster.sql_as("adit_vpn_node_a", "vpn", as_node).unwrap_err().0;
    assert!(said.contains("42501"), "{said}");

    // No node accepts settings that the database invents or reverts, and the owner does not sign settings based on
    // them.
    net.sql("CREATE TABLE kept AS SELECT * FROM adit.settings");
    for (forgery, hub, other) in [
        (
            "UPDATE adit.settings SET audit = 'full' WHERE serial = 2",
            "row 2 is not the one that was seen before",
            "has not signed row 2",
        ),
        ("DELETE FROM adit.settings WHERE serial = 2", "row 2 was seen before", ""),
        ("DELETE FROM adit.settings WHERE serial = 1", "row 1 is missing", "row 1 is missing"),
        (as_node, "row 2 is not the one", "row 2 is not the one"),
    ] {
        net.sql(forgery);
        net.refused("hub", &["set", "--retention", "3GB"], hub);
        assert!(net.status("hub").contains(hub), "{forgery}: {}", net.status("hub"));
        // A node that has not run yet can only check the signatures.
        assert!(net.status("a").contains(other), "{forgery}: {}", net.status("a"));
        net.sql("DELETE FROM adit.settings; INSERT INTO adit.settings SELECT * FROM kept");
    }
    let said = net.done("hub", &["set", "--durability", "relaxed", "--retention-age", "36h"]);
    assert!(said.contains("Settings 3") && said.contains("30 days -> 36 hours"), "{said}");
    net.done("hub", &["expire"]);

    // Repeating `init` changes nothing. With other settings, it refers to the command that changes them.
    let admin = net.cluster.socket_url("vpn", "vpn");
    let again = ["init", &admin, "--network", "10.9.0.0/24", "--name", "hub"];
    net.done("hub", &again);
    net.refused("hub", &[&again[..], &["--retention", "9GB"]].concat(), "adit postgres set");
    let key = net.path("key");
    net.refused("hub", &[&again[..], &["--auditor", &key]].concat(), "adit postgres auditor add");
}

#[test]
fn an_auditor_comes_and_goes() {
    let Some(mut net) = Net::new() else { return };
    net.join("a", "a");
    let key = net.path("key");
    net.refused("hub", &["auditor", "remove"], "the network has no auditor");
    net.refused("a", &["auditor", "add", &key], "only node 1");
    assert!(!std::path::Path::new(&key).exists());
    let said = net.done("hub", &["auditor", "add", &key]);
    assert!(said.contains("auditor: none -> ") && said.contains(&key), "{said}");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(net.status("a").contains(", with an auditor"));
    net.refused("hub", &["auditor", "add", &net.path("other")], "the network has an auditor");
    assert!(!std::path::Path::new(&net.path("other")).exists());
    // The key file opens the log, which is still empty.
    net.sql("CREATE ROLE alice LOGIN; GRANT adit_vpn_auditors TO alice");
    let url = net.cluster.socket_url("alice", "vpn");
    let said = text(
        &Command::new(ADIT)
            .args(["postgres", "verify", "--url", &url, "--key", &key])
            .output()
            .unwrap(),
    );
    assert!(said.contains("nothing found"), "{said}");

    assert!(net.done("hub", &["auditor", "remove"]).contains("adit postgres rekey -n vpn"));
    assert!(!net.status("a").contains("auditor"));
    net.refused("hub", &["auditor", "add", &key], "cannot write the auditor's key");
    assert!(net.status("a").contains("settings 3: "), "{}", net.status("a"));
    net.done("hub", &["auditor", "add", &net.path("other")]);
    assert!(net.status("a").contains("settings 4: ") && net.status("a").contains("an auditor"));
}

#[test]
fn a_removed_node_stays_away_and_its_name_and_address_are_free() {
    let Some(mut net) = Net::new() else { return };
    net.join("a", "a");
    assert!(net.join("b", "b").contains("10.9.0.3/24"));
    net.sql("CREATE TABLE before AS SELECT * FROM adit.node");
    net.done("hub", &["remove", "b", "--yes", "--keep-key"]);
    let flip = "UPDATE adit.node SET removed = NULL WHERE id = 3";
    net.sql(flip);
    assert!(net.status("a").contains("b is not trusted: its MAC is wrong"), "{}", net.status("a"));
    net.sql("UPDATE adit.node SET removed = now() WHERE id = 3");
    assert!(!net.status("a").contains("b is not trusted"), "{}", net.status("a"));
    // The database cannot present a current node as removed either.
    net.sql("UPDATE adit.node SET removed = now() WHERE id = 2");
    assert!(net.status("hub").contains("a is not trusted"), "{}", net.status("hub"));
    net.sql("UPDATE adit.node SET removed = NULL WHERE id = 2");

    // The node gets the same name and address, with a new number, role and keys.
    assert!(net.join("again", "b").contains("10.9.0.3/24"));
    let rows = "SELECT id, name, role, host(address4), coalesce(label, '-'), removed IS NULL FROM adit.node WHERE name = 'b' ORDER BY id";
    assert_eq!(
        net.sql(rows),
        "3|b|adit_vpn_node_b|10.9.0.3|b#3|f\n4|b|adit_vpn_node_b-4|10.9.0.3|-|t"
    );
    let status = net.status("again");
    assert!(status.contains("node b (number 4)") && status.contains("hub"), "{status}");
    net.refused("c", &["join", &net.url.clone(), "--name", "b"], "there is a node called b");
    net.done("hub", &["remove", "b", "--yes", "--keep-key"]);
    assert!(net.join("third", "b").contains("10.9.0.3/24"));
    assert_eq!(net.sql("SELECT role FROM adit.node WHERE id = 5"), "adit_vpn_node_b-5");
    // A small network can replace its nodes repeatedly.
    for _ in 0..4 {
        net.done("hub", &["remove", "b", "--yes", "--keep-key"]);
        std::fs::remove_dir_all(net.path("third")).unwrap();
        assert!(net.join("third", "b").contains("10.9.0.3/24"));
    }
    net.refused("hub", &["remove", "nobody", "--yes"], "no node called \"nobody\"");
}

/// Starts a session of a role that sleeps for this long.
fn sleeping_session(net: &Net, role: &str, seconds: u32) -> Child {
    let mut psql = net.cluster.psql(role, "vpn");
    psql.args(["--command", &format!("SELECT pg_sleep({seconds})")]);
    psql.stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn join_waits_for_sessions_of_an_attempt_before() {
    let Some(net) = Net::new() else { return };
    let role = net.sql("SELECT role FROM adit.invitation");
    let mut held = [sleeping_session(&net, &role, 3), sleeping_session(&net, &role, 3)];
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'");
    let limit = std::time::Duration::from_secs(10);
    adit_testbed::wait::until("both are there", limit, || Ok(net.sql(&count) == "2")).unwrap();
    let said = net.done("a", &["join", &net.url, "--name", "a"]);
    assert!(said.contains("the invitation's sessions are in use"), "{said}");
    assert!(said.contains("This machine is a in the network vpn"), "{said}");
    for psql in &mut held {
        assert!(psql.wait().unwrap().success());
    }
}
