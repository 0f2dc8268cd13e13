//! The Debian packages.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use super::{Case, Machine, OLDER, VERSION, ensure_same};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::Pair;
use crate::process::Daemon;
use crate::traffic::ping;
use crate::wait::until;

/// The time within which a server or a client is up.
const SOON: Duration = Duration::from_secs(30);

/// Files that each installation has.
const INSTALLED: [&str; 10] = [
    "usr/bin/adit",
    "usr/lib/systemd/system/adit-server.service",
    "usr/lib/sysusers.d/adit.conf",
    "usr/share/man/man1/adit-server.1.gz",
    "usr/share/man/man5/server.toml.5.gz",
    "usr/share/bash-completion/completions/adit",
    "usr/share/fish/vendor_completions.d/adit.fish",
    "usr/share/doc/adit/docs/guides/server.md",
    "usr/share/doc/adit/packaging/metrics/dashboard.json",
    "usr/share/doc/adit/packaging/examples/simple-fw.nft",
];

/// From the package to the first client in two commands, an upgrade under a running server, removal, and purge.
pub(super) fn install_upgrade_purge(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    let (before, users) = (machine.files()?, machine.users()?);
    machine.dpkg("--install", &[case.deb("adit", OLDER)?])?;
    for file in INSTALLED {
        machine.expect_file(file, true)?;
    }
    let packed = machine.run("dpkg", &["--verify", "adit"])?;
    ensure(packed.is_empty(), || format!("not as packed: {packed}"))?;

    let pair = Pair::new()?;
    pair.server.run("ip", &["route", "add", "default", "via", "192.0.2.2"])?;
    let up = machine.command(&pair.server, "adit", &["server", "up", "--client", "laptop"]);
    let mut server = Daemon::spawn("adit server up", up)?;
    server.wait_for("Self-test passed", SOON)?;
    ensure_user(&machine, server.pid())?;
    let dial = machine.command(&pair.client, "adit", &["connect", "/laptop.ovpn"]);
    let mut client = Daemon::spawn("adit connect", dial)?;
    let inside = server_address(&machine.root)?;
    let answers = || Ok(ping(&pair.client, inside, 56, 1)? == 1);
    until("the first client", SOON, answers).map_err(|e| client.failure(&e.0))?;

    // An upgrade leaves settings and keys alone. Here it does not restart the server, because no systemd runs.
    let state = state(&machine)?;
    let printed = machine.dpkg("--install", &[case.deb("adit", VERSION)?])?;
    for process in ["adit server up --client laptop", "adit connect /laptop.ovpn"] {
        let sentence = format!("keeps the version before until it is restarted: {process}");
        ensure(printed.matches(&sentence).count() == 1, || format!("not told once: {printed}"))?;
    }
    let version = machine.run("dpkg-query", &["--show", "--showformat=${Version}", "adit"])?;
    ensure(version == VERSION, || format!("installed is {version}"))?;
    ensure(self::state(&machine)? == state, || "the upgrade changed settings or keys".into())?;
    ensure(answers()?, || server.failure("the upgrade disturbed the server").0)?;
    client.stop()?;
    server.stop()?;

    machine.run("dpkg", &["--remove", "adit"])?;
    machine.expect_file("usr/bin/adit", false)?;
    ensure(self::state(&machine)? == state, || "the removal changed settings or keys".into())?;
    let link = machine.path("etc/systemd/system/multi-user.target.wants/adit-server.service");
    symlink("/lib/systemd/system/adit-server.service", link)?;
    machine.run("dpkg", &["--purge", "adit"])?;
    fs::remove_file(machine.path("laptop.ovpn"))?;
    ensure_same(&before, &machine.files()?)?;
    ensure(machine.users()? == users, || "the purge left a user".into())?;
    Ok(String::new())
}

/// The commands of a guide, in its order, and a text that each prints.
const UNINSTALL: [(&str, &str); 4] = [
    ("sudo systemctl disable --now adit-server", "Removed"),
    ("sudo dpkg --purge adit-openvpn", "Removing 'diversion of /usr/sbin/openvpn"),
    ("sudo dpkg --remove adit", "Removing adit"),
    ("sudo dpkg --purge adit", "Purging configuration files for adit"),
];

/// The guide to uninstalling adit, word for word: settings and keys stay until the purge, after which nothing is left.
pub(super) fn uninstall(case: &Case<'_>) -> Result<String> {
    let page = "docs/guides/uninstall.md";
    let text = fs::read_to_string(page).context(page)?;
    let commands = text.lines().filter_map(|line| line.trim_start().strip_prefix("$ "));
    let known = UNINSTALL.iter().map(|(command, _)| *command);
    ensure(commands.eq(known), || format!("{page} has other commands than the test"))?;
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    let sudo = machine.path("usr/local/bin/sudo");
    file::write(&sudo, "#!/bin/sh\nexec \"$@\"\n", 0o755)?;
    let (before, users) = (machine.files()?, machine.users()?);

    let packages = [case.deb("adit", VERSION)?, case.deb("adit-openvpn", VERSION)?];
    machine.dpkg("--install", &packages)?;
    machine.run("adit", &["server", "init", "--host", "192.0.2.1"])?;
    machine.run("systemctl", &["enable", "adit-server"])?;
    let link = "etc/systemd/system/multi-user.target.wants/adit-server.service";
    machine.expect_file(link, true)?;
    let state = state(&machine)?;
    for (command, expected) in UNINSTALL {
        let printed = match machine.run("sh", &["-c", command]) {
            // No systemd runs here that could stop anything. The case services removes the package under one.
            Err(failure) if command.contains("--now") => failure.0,
            other => other?,
        };
        ensure(printed.contains(expected), || format!("$ {command}\n{printed}"))?;
        match command {
            "sudo systemctl disable --now adit-server" => machine.expect_file(link, false)?,
            "sudo dpkg --remove adit" => {
                machine.expect_file("usr/bin/adit", false)?;
                ensure(self::state(&machine)? == state, || "settings or keys have changed".into())?;
            }
            _ => {}
        }
    }
    ensure_same(&before, &machine.files()?)?;
    ensure(machine.users()? == users, || "the purge left a user".into())?;
    Ok(String::new())
}

/// Checks that a server's process belongs to the user that the package made.
fn ensure_user(machine: &Machine, pid: u32) -> Result<()> {
    let users = machine.users()?;
    let id = users.lines().find_map(|line| line.strip_prefix("adit:x:")?.split(':').next());
    let id = id.context("no user adit")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let owner = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let owner = owner.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    ensure(owner == id, || format!("the server runs as {owner}, and adit is {id}"))
}

/// Returns the address inside the tunnel of the server in a root, which is the first one of its network.
pub(super) fn server_address(root: &Path) -> Result<IpAddr> {
    let settings = fs::read_to_string(root.join("etc/adit/server.toml"))?;
    let network = settings.lines().find_map(|line| line.strip_prefix("network = \""));
    let network = network.and_then(|rest| rest.split_once(".0/")).context("no network")?;
    format!("{}.1", network.0).parse().context(network.0)
}

/// Returns the settings, and a key.
fn state(machine: &Machine) -> Result<Vec<String>> {
    ["etc/adit/server.toml", "var/lib/adit/pki/private/ca.key", "var/lib/adit/pki/clients.json"]
        .iter()
        .map(|name| fs::read_to_string(machine.path(name)).context(name))
        .collect()
}

/// A program, units and a user that were made by hand: the package keeps all of them and says what to do.
pub(super) fn over_an_installation_by_hand(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    machine.run("useradd", &["--system", "adit"])?;
    for folder in ["etc/adit", "var/lib/adit", "usr/local/bin"] {
        fs::create_dir_all(machine.path(folder))?;
    }
    let by_hand = "#!/bin/sh\necho by hand\n";
    for program in ["usr/bin/adit", "usr/local/bin/adit"] {
        file::write(machine.path(program), by_hand, 0o755)?;
    }
    let unit = "etc/systemd/system/adit-server.service";
    let files = [("etc/adit/server.toml", "# mine\n"), (unit, "[Service]\nExecStart=/bin/true\n")];
    for (file, content) in files {
        fs::write(machine.path(file), content)?;
    }
    let (users, before) = (machine.users()?, machine.files()?);
    let printed = machine.dpkg("--install", &[case.deb("adit", VERSION)?])?;
    for sentence in [
        "kept the /usr/bin/adit that was installed by hand as /var/backups/adit.by-hand",
        "/usr/local/bin/adit, installed by hand, hides /usr/bin/adit: remove it",
        "adit-server.service hides /usr/lib/systemd/system/adit-server.service: move your changes",
    ] {
        ensure(printed.contains(sentence), || format!("no \"{sentence}\" in: {printed}"))?;
    }
    ensure(machine.users()? == users, || "another user was made".into())?;
    let kept = "var/backups/adit.by-hand";
    for (file, content) in files.iter().chain(&[("usr/local/bin/adit", by_hand), (kept, by_hand)]) {
        let now = fs::read_to_string(machine.path(file)).context(file)?;
        ensure(now == *content, || format!("{file} has changed"))?;
    }
    // A second installation, now over the package's own program, keeps nothing and need not.
    let printed = machine.dpkg("--install", &[case.deb("adit", VERSION)?])?;
    ensure(!printed.contains("kept"), || format!("not by hand: {printed}"))?;
    // The purge removes state, but neither what else was made by hand nor the user.
    machine.run("dpkg", &["--purge", "adit"])?;
    ensure(machine.users()? == users, || "the purge removed a user that was made by hand".into())?;
    let mut expected = before;
    for gone in ["etc/adit/", "etc/adit/server.toml", "var/lib/adit/", "usr/bin/adit"] {
        expected.remove(gone);
    }
    expected.insert(kept.into());
    ensure_same(&expected, &machine.files()?)?;
    Ok(String::new())
}

/// adit-openvpn takes the place of Debian's program, and gives it back.
pub(super) fn openvpn_replaced(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    let program = || machine.run("openvpn", &["--version"]);
    // openvpn 2.6 ends with 1 after its version.
    let version = || program().unwrap_or_else(|failure| failure.0);
    ensure(!version().contains("adit"), || "the root has another openvpn".into())?;
    let before = machine.files()?;
    let alone = machine.dpkg("--install", &[case.deb("adit-openvpn", VERSION)?]);
    ensure(alone.is_err_and(|failure| failure.0.contains("depends on adit")), || {
        "adit-openvpn was configured without adit".into()
    })?;
    machine.run("dpkg", &["--purge", "adit-openvpn"])?;
    ensure(!version().contains("adit"), || "a failed installation left adit in place".into())?;
    for older in [OLDER, VERSION] {
        let packages = [case.deb("adit", older)?, case.deb("adit-openvpn", older)?];
        machine.dpkg("--install", &packages)?;
        ensure(version().contains("OpenVPN 2.6.14 adit-"), || format!("not adit: {}", version()))?;
        machine.expect_file("usr/sbin/openvpn.distrib", true)?;
    }
    machine.run("dpkg", &["--remove", "adit-openvpn"])?;
    ensure(!version().contains("adit"), || "openvpn is not back".into())?;
    machine.expect_file("usr/sbin/openvpn.distrib", false)?;
    machine.run("dpkg", &["--purge", "adit-openvpn", "adit"])?;
    ensure_same(&before, &machine.files()?)?;
    Ok(String::new())
}
