//! Tests of a database as the directory: nodes that share only the database, outages, the rights of a node's role, and a database that
//! withholds changes.

mod tls;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::super::Scenario;
use super::testbed::{LIMIT, Machine, MeshTestbed, Nat, add_to_internet};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::postgres::{Cluster, Options, StopMode};
use crate::wait::until;

pub(super) use tls::tls;

/// The role that owns the database, and the database's name.
const OWNER: &str = "admin";
const PASSWORD: &str = "Very5ecret-of-the-owner";

/// The minimum time between two full reads.
const REREAD: Duration = Duration::from_secs(30);

/// Counts the changes.
const COUNT: &str = "SELECT count(*) FROM adit_mesh.change";

/// A mesh, and a database that its machines reach.
struct DirectoryTestbed {
    bed: MeshTestbed,
    cluster: Cluster,
    _database: Namespace,
    address: IpAddr,
    /// The parameters of its URL.
    parameters: String,
    folder: PathBuf,
}

impl DirectoryTestbed {
    /// Starts a hub, two other nodes, and a database that no node uses yet.
    fn new(scenario: &Scenario<'_>) -> Result<Self> {
        // TLS has a separate test.
        Self::with(scenario, Options::default(), "sslmode=disable")
    }

    /// Does the same as [`Self::new`], with these options of the database and parameters of its URL.
    fn with(scenario: &Scenario<'_>, options: Options<'_>, parameters: &str) -> Result<Self> {
        let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
        bed.join_all()?;
        let database = Namespace::new("database")?;
        let address = add_to_internet(&bed, &database, 99)?;
        let folder = scenario.folder().to_owned();
        let options = Options { namespace: Some(&database), ..options };
        let cluster = Cluster::start(&folder.join("pg"), &options)?;
        cluster.create(OWNER, PASSWORD, "CREATEROLE")?;
        let parameters = parameters.to_owned();
        Ok(Self { bed, cluster, _database: database, address, parameters, folder })
    }

    fn machine(&self, at: usize) -> &Machine {
        &self.bed.machines[at]
    }

    /// Returns the URL of the owner.
    fn url(&self) -> String {
        self.url_with(&self.parameters)
    }

    fn url_with(&self, parameters: &str) -> String {
        format!("postgres://{OWNER}:{PASSWORD}@{}/{OWNER}?{parameters}", self.address)
    }

    /// Makes the database a machine's directory, with the owner's role, and restarts the node.
    fn init(&mut self, at: usize) -> Result<String> {
        let url = self.url();
        let done = self.machine(at).json(&["directory", "postgres", &url, "--init"])?;
        self.restart(at)?;
        Ok(done["role"].as_str().context("a role")?.to_owned())
    }

    /// Makes the role of a machine by the owner's, with the password in a file. Returns it, and the URL with both.
    fn make_role(&self, at: usize) -> Result<(String, String)> {
        let (name, url) = (&self.machine(at).name, self.url());
        let file = self.passfile().to_string_lossy().into_owned();
        let words = ["directory", "postgres", &url, "--init", "--node", name, "--passfile", &file];
        let done = self.machine(0).json(&words)?;
        let role = done["role"].as_str().context("a role")?.to_owned();
        let (address, parameters) = (self.address, &self.parameters);
        let url = format!("postgres://{role}@{address}/{OWNER}?{parameters}&passfile={file}");
        Ok((role, url))
    }

    /// Makes the database the directory of a machine by the URL of its role, and restarts its node.
    fn use_role(&mut self, at: usize, url: &str) -> Result<()> {
        self.machine(at).mesh(&["directory", "postgres", url])?;
        std::fs::remove_file(self.passfile())?;
        self.restart(at)
    }

    fn passfile(&self) -> PathBuf {
        self.folder.join("node.pass")
    }

    /// Keeps a machine's node from having sessions, over UDP and over TCP.
    fn cut_off(&self, at: usize) -> Result<()> {
        let rules = "table inet cut { \
            chain input { type filter hook input priority -300; udp dport 1194 drop; tcp dport 443 drop; }; \
            chain output { type filter hook output priority -300; udp sport 1194 drop; tcp dport 443 drop; }; }";
        self.machine(at).space.run("nft", &[rules]).map(drop)
    }

    fn restart(&mut self, at: usize) -> Result<()> {
        self.bed.stop(at)?;
        self.bed.up(at)?;
        self.wait_until_complete(at)
    }

    fn status(&self, at: usize) -> Result<Value> {
        self.machine(at).json(&["directory", "status"])
    }

    fn wait_for(&self, at: usize, what: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
        let what = format!("{}: {what}", self.machine(at).name);
        until(&what, LIMIT, || Ok(is(&self.status(at)?)))
    }

    fn wait_until_complete(&self, at: usize) -> Result<()> {
        self.wait_for(at, "the directory is complete", |status| {
            status["lacks"] == 0 && status["entries"] == status["changes"]
        })
    }

    /// Changes the groups of the first machine, from the hub.
    fn set_group(&self, group: &str) -> Result<()> {
        let name = &self.machine(1).name;
        self.machine(0).mesh(&["set", name, "--group", group]).map(drop)
    }

    /// Waits until a machine knows a group of the first one.
    fn wait_for_group(&self, at: usize, group: &str) -> Result<()> {
        let what = format!("{} has heard of {group}", self.machine(at).name);
        until(&what, LIMIT, || self.knows(at, group))
    }

    fn knows(&self, at: usize, group: &str) -> Result<bool> {
        let status = self.machine(at).json(&["status"])?;
        let own = status["groups"].to_string();
        let peers = status["peers"].as_array().cloned().unwrap_or_default();
        let name = self.machine(1).name.as_str();
        let peer = peers.iter().find(|peer| peer["name"] == name);
        let groups = peer.map_or(own, |peer| peer["groups"].to_string());
        Ok(groups.contains(group))
    }

    /// Returns how often a machine has noticed that the directory's entries changed.
    fn mismatches(&self) -> Result<u64> {
        let of = |at: usize| self.status(at)?["mismatches"].as_u64().context("a number");
        Ok(of(1)? + of(0)?)
    }

    fn sql(&self, sql: &str) -> Result<String> {
        self.cluster.sql(OWNER, sql)
    }
}

/// Nodes without sessions learn of changes from the database, even after an outage. A node's role can only append its own changes.
pub(super) fn directory(scenario: &Scenario<'_>) -> Result<String> {
    let mut all = DirectoryTestbed::new(scenario)?;
    all.sql("CREATE SCHEMA adit_mesh")?;
    let foreign = all.machine(0).refused(&["directory", "postgres", &all.url(), "--init"])?;
    ensure(foreign.contains("is not a mesh's directory"), || foreign.clone())?;
    all.sql("DROP SCHEMA adit_mesh")?;
    let hub_role = all.init(0)?;
    let shown = all.machine(0).mesh(&["status"])?;
    ensure(shown.contains("directory  postgres://11.0.0.99:5432/admin"), || shown.clone())?;
    // The owner creates the second machine's role. The third machine creates its own.
    let (role, own) = all.make_role(1)?;
    let foreign = all.machine(2).refused(&["directory", "postgres", &own])?;
    ensure(foreign.contains("is not made for this node"), || foreign.clone())?;
    all.use_role(1, &own)?;
    all.init(2)?;
    (0..3).try_for_each(|at| all.cut_off(at))?;
    all.set_group("web")?;
    (1..3).try_for_each(|at| all.wait_for_group(at, "web"))?;
    // During an outage, each node continues with its own file. Afterwards the directory gets the changes that it missed.
    all.cluster.stop_service(StopMode::Fast)?;
    all.bed.wait_for_line(1, "the node continues with its own file")?;
    all.set_group("db")?;
    ensure(all.knows(0, "db")? && !all.knows(2, "db")?, || "no outage".into())?;
    all.cluster.resume_service()?;
    (1..3).try_for_each(|at| all.wait_for_group(at, "db"))?;
    for at in 0..3 {
        all.wait_until_complete(at)?;
        let log = all.bed.log(at)?;
        ensure(!log.contains("lacks") && !log.contains("are gone"), || {
            format!("a warning: {log}")
        })?;
        ensure(!log.contains(PASSWORD), || "a password is in the log".into())?;
    }
    refuses_more_than_appending(&all, &role, &hub_role)?;
    all.machine(1).mesh(&["directory", "file"])?;
    all.bed.stop(1)?;
    all.bed.up(1)?;
    let status = all.machine(1).mesh(&["directory", "status"])?;
    ensure(status.contains("the node's own file"), || status.clone())?;
    Ok(format!("{} changes through the database alone", all.sql(COUNT)?))
}

/// Tries everything that a node's role must not do.
fn refuses_more_than_appending(all: &DirectoryTestbed, role: &str, hub: &str) -> Result<()> {
    let admin = "(SELECT signer FROM adit_mesh.change WHERE number = 1 LIMIT 1)";
    let next = format!(
        "(SELECT overlay(bytes PLACING decode(lpad(to_hex(number + 1), 8, '0'), 'hex') FROM 35) FROM adit_mesh.change \
         WHERE signer = {admin} ORDER BY number DESC LIMIT 1)"
    );
    let last = format!("(SELECT max(number) FROM adit_mesh.change WHERE signer = {admin})");
    let append = |of: &str, number: &str, bytes: &str| {
        format!("SELECT adit_mesh.append({of}, {number}, {bytes})")
    };
    let owner =
        all.sql("SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'adit_mesh'")?;
    let attempts = [
        (role, "UPDATE adit_mesh.change SET bytes = bytes".to_owned(), "permission denied"),
        (role, "DELETE FROM adit_mesh.change".into(), "permission denied"),
        (role, "TRUNCATE adit_mesh.change".into(), "permission denied"),
        (role, "INSERT INTO adit_mesh.change (signer, number, bytes) SELECT signer, number + 9, bytes \
                FROM adit_mesh.change LIMIT 1".into(), "permission denied"),
        (role, "UPDATE adit_mesh.signer SET role = session_user".into(), "permission denied"),
        (role, "UPDATE adit_mesh.mesh SET version = 2".into(), "permission denied"),
        (role, "DROP SCHEMA adit_mesh CASCADE".into(), "must be owner"),
        (role, "CREATE TABLE adit_mesh.mine (x int)".into(), "permission denied"),
        (role, format!("SET ROLE {owner}"), "permission denied"),
        (role, append(admin, &format!("{last} + 1"), &next), "does not append the changes of that signer"),
        (hub, append(admin, &format!("{last} + 2"), &next), "no change of that signer and number"),
        (hub, append(admin, &format!("{last} + 1"), "'\\x0201'"), "144 to 4096 bytes"),
        (hub, append(admin, &format!("{last} + 1"), "decode(repeat('02', 4097), 'hex')"), "144 to 4096 bytes"),
        (hub, append(admin, &format!("{last} + 1"), "decode(repeat('02', 200), 'hex')"), "no change of that signer"),
    ];
    let before =
        all.sql("SELECT sha256(string_agg(bytes, '' ORDER BY place)) FROM adit_mesh.change")?;
    for (as_role, sql, reason) in &attempts {
        match all.cluster.sql_as(as_role, OWNER, sql) {
            Ok(said) => return Err(format!("{sql}: it succeeded: {said}").into()),
            Err(failure) => {
                ensure(failure.to_string().contains(reason), || format!("{sql}: {failure}"))?;
            }
        }
    }
    // A signer of the node's role that has used up its changes for the day.
    let object = "('\\x0201'::bytea || decode(repeat('00', 32), 'hex') || decode(lpad(to_hex(n), 8, '0'), 'hex') \
        || decode(repeat('00', 110), 'hex'))";
    let zeros = "sha256(decode(repeat('00', 32), 'hex'))";
    let prepare = format!("INSERT INTO adit_mesh.signer (signer, role) VALUES ({zeros}, '{role}')");
    all.sql(&prepare)?;
    let appended = |n: u32| {
        let sql = format!(
            "SELECT result FROM adit_mesh.append({zeros}, {n}, (SELECT {object} FROM (SELECT {n} AS n) x))"
        );
        all.cluster.sql_as(role, OWNER, &sql)
    };
    for (number, result) in [(2, "gap"), (1, "added"), (1, "known")] {
        let said = appended(number)?;
        ensure(said == result, || format!("{number}: {said}, and not {result}"))?;
    }
    let fill = format!(
        "INSERT INTO adit_mesh.change (signer, number, bytes) SELECT {zeros}, n, {object} FROM generate_series(2, 4096) n"
    );
    all.sql(&fill)?;
    let limit = appended(4097).err().context("no limit")?.to_string();
    ensure(limit.contains("4096 changes within a day"), || limit.clone())?;
    all.sql(&format!("DELETE FROM adit_mesh.change WHERE signer = {zeros}"))?;
    all.sql(&format!("DELETE FROM adit_mesh.signer WHERE signer = {zeros}"))?;
    let after =
        all.sql("SELECT sha256(string_agg(bytes, '' ORDER BY place)) FROM adit_mesh.change")?;
    ensure(before == after, || "a row was changed".into())?;
    let kinds = all.cluster.sql_as(
        role,
        OWNER,
        "SELECT DISTINCT kind FROM adit_mesh.changes ORDER BY 1",
    )?;
    ensure(kinds == "admit\nset-names", || format!("kinds: {kinds}"))
}

/// Nodes notice, warn of and restore entries that the database's owner removes, replaces or replays.
pub(super) fn withholds(scenario: &Scenario<'_>) -> Result<String> {
    let mut all = DirectoryTestbed::new(scenario)?;
    (0..2).try_for_each(|at| all.init(at).map(drop))?;
    all.set_group("one")?;
    (0..2).try_for_each(|at| all.wait_until_complete(at))?;
    let whole = all.sql(COUNT)?;
    // Remove the last change. The second machine has it from its neighbour. Stop the signer, which could append the
    // change again before the second machine notices.
    all.bed.stop(0)?;
    all.sql(
        "DELETE FROM adit_mesh.change WHERE place = (SELECT max(place) FROM adit_mesh.change)",
    )?;
    all.wait_for(1, "a missing entry is noticed", |status| {
        status["mismatches"] == 1 && status["withheld"] == 1
    })?;
    all.bed.wait_for_line(1, "entries are gone or replaced")?;
    all.bed.wait_for_line(1, "the directory lacks 1 changes that neighbours have")?;
    all.bed.up(0)?;
    (0..2).try_for_each(|at| all.wait_until_complete(at))?;
    ensure(all.sql(COUNT)? == whole, || "it was not appended again".into())?;
    // Restore a backup from before another change, so places are assigned twice.
    all.sql(
        "CREATE TABLE copy AS SELECT signer, number, bytes FROM adit_mesh.change ORDER BY place",
    )?;
    all.set_group("two")?;
    all.wait_for_group(1, "two")?;
    (0..2).try_for_each(|at| all.wait_until_complete(at))?;
    let before = all.mismatches()?;
    let whole = all.sql(COUNT)?;
    all.sql(
        "TRUNCATE adit_mesh.change RESTART IDENTITY; \
         INSERT INTO adit_mesh.change (signer, number, bytes) SELECT signer, number, bytes FROM copy",
    )?;
    // A full read happens at most twice a minute. After one node has restored the entry, the other may not see a difference.
    let is_noticed = || Ok(all.mismatches()? > before);
    until("the replayed entries are noticed", LIMIT + REREAD, is_noticed)?;
    // Requesting the status makes a node compare.
    let is_healed = || Ok(all.mismatches()? > before && all.sql(COUNT)? == whole);
    until("the newer change is appended again", LIMIT + REREAD, is_healed)?;
    (0..2).try_for_each(|at| all.wait_until_complete(at))?;
    // An old change under the next number blocks a new one until the owner removes it.
    all.sql(
        "INSERT INTO adit_mesh.change (signer, number, bytes) SELECT signer, number + 1, bytes \
         FROM adit_mesh.change ORDER BY number DESC LIMIT 1",
    )?;
    all.set_group("three")?;
    all.wait_for_group(1, "three")?;
    for at in 0..2 {
        // A node that has not read everything again since the copy was restored compares the entries first.
        until("the invalid entry is noticed", LIMIT + REREAD, || {
            let status = all.status(at)?;
            Ok(status["invalid_entries"] == 1 && status["conflicts"] == 1)
        })?;
        let warnings = all.machine(at).json(&["status"])?["warnings"].to_string();
        ensure(warnings.contains("1 entries that are not valid changes"), || warnings.clone())?;
    }
    let url = all.url();
    let done = all.machine(0).json(&["directory", "postgres", &url, "--init"])?;
    ensure(done["removed"] == 1 && done["appended"] == 1, || format!("repaired: {done}"))?;
    for at in 0..2 {
        until("the directory is repaired", LIMIT + REREAD, || {
            let status = all.status(at)?;
            let is_whole = status["lacks"] == 0 && status["conflicts"] == 0;
            Ok(is_whole && status["invalid_entries"] == 0)
        })?;
    }
    Ok("removed, replayed and forged entries were noticed and healed".into())
}
