//! `tincd` of adit and of tinc 1.1 as the two nodes of a net: packets both ways, scripts, and requests by the other one's program.

use std::fs;

use super::super::Scenario;
use super::SOON;
use super::commands::End;
use super::programs::Programs;
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::Pair;
use crate::process::Daemon;
use crate::wait::until;

/// Writes the files of the nodes alice and bob, of which the first one connects to the other. Their subnets are 10.9.0.1 and 10.9.0.2, and
/// their addresses 192.0.2.1 and 192.0.2.2.
pub(super) fn connect(ours: &End<'_>, theirs: &End<'_>) -> Result<()> {
    for (end, name, number) in [(ours, "alice", 1), (theirs, "bob", 2)] {
        end.done(&format!("init {name}"), "")?;
        end.done(&format!("add Subnet 10.9.0.{number}"), "")?;
        end.done(&format!("add Address 192.0.2.{number}"), "")?;
        let up = format!(
            "#!/bin/sh\nip link set $INTERFACE up\nip addr add 10.9.0.{number}/24 dev $INTERFACE\n"
        );
        file::write(end.folder.join("tinc-up"), &up, 0o755)?;
        file::write(end.folder.join("host-up"), "#!/bin/sh\necho $NODE > up\n", 0o755)?;
    }
    let (one, other) = (ours.done("export", "")?.out, theirs.done("export", "")?.out);
    ours.done("import", &other)?;
    theirs.done("import", &one)?;
    ours.done("add ConnectTo bob", "")?;
    Ok(())
}

/// Runs both daemons, and sends packets through the tunnel.
pub(super) fn daemon(scenario: &Scenario<'_>) -> Result<String> {
    let Some(real) = Programs::real() else { return Ok("skipped".to_owned()) };
    let (adit, _) = Programs::of_adit(scenario)?;
    let pair = Pair::new()?;
    let folder = |name: &str| scenario.folder().join(name);
    let end = |namespace, program, name: &str| End { namespace, program, folder: folder(name) };
    let ours = end(&pair.server, adit.tinc, "alice");
    let theirs = end(&pair.client, real.tinc.clone(), "bob");
    connect(&ours, &theirs)?;
    // The last script runs even if another one does not end.
    file::write(ours.folder.join("host-down"), "#!/bin/sh\nexec sleep 20\n", 0o755)?;
    file::write(ours.folder.join("tinc-down"), "#!/bin/sh\necho $INTERFACE > down\n", 0o755)?;
    // The process that faces the network can't read it, and so can't look for scripts.
    file::set_mode(&ours.folder, 0o700)?;
    let tincd_of_adit = end(&pair.server, adit.tincd, "alice");
    let mut adit = Daemon::spawn("adit", tincd_of_adit.command(&ours.folder, "-D -d 3")?)?;
    let real_tincd = end(&pair.client, real.tincd, "bob");
    let real_daemon = Daemon::spawn("tincd", real_tincd.command(&theirs.folder, "-D -d 5")?)?;
    adit.wait_for("Ready", SOON)?;
    for (end, to) in [(&ours, "10.9.0.2"), (&theirs, "10.9.0.1")] {
        until("a ping through the tunnel", SOON, || {
            Ok(end.namespace.run("ping", &["-c", "1", "-W", "1", "-s", "1300", to]).is_ok())
        })?;
    }
    until("datagrams pass", SOON, || {
        Ok(ours.done("info bob", "")?.out.contains("directly with UDP"))
    })?;
    adit.wait_for("Fixing PMTU of bob to 1439", SOON)?;
    let log = real_daemon.log();
    let mut probes = log.lines().filter_map(|line| line.split("Got UDP probe request ").nth(1));
    let first = probes.find(|probe| !probe.starts_with("18 ")).unwrap_or_default();
    ensure(first.starts_with("1439 "), || format!("the search began with another length: {log}"))?;
    until("the script ran", SOON, || {
        Ok(fs::read_to_string(ours.folder.join("up")).is_ok_and(|text| text == "bob\n"))
    })?;
    // The other one's program understands the answers.
    let real_tinc = end(&pair.server, real.tinc, "alice");
    for words in [
        "dump nodes",
        "dump edges",
        "dump subnets",
        "dump connections",
        "dump graph",
        "info bob",
        "reload",
        "purge",
    ] {
        let (one, other) = (ours.run(words, "")?, real_tinc.run(words, "")?);
        ensure(one.code == Some(0) && other.code == Some(0), || {
            format!("{words}: {one:?} {other:?}")
        })?;
    }
    real_tinc.done("stop", "")?;
    until("the daemon ends", SOON, || Ok(!ours.folder.join("pid").exists()))?;
    let gone = fs::read_dir(&ours.folder)
        .context("folder")?
        .flatten()
        .all(|entry| entry.file_name() != "pid.socket");
    ensure(gone, || "the control socket remains".to_owned())?;
    adit.wait_for("the scripts took too long", SOON)?;
    let down = fs::read_to_string(ours.folder.join("down")).context("tinc-down")?;
    ensure(!down.trim().is_empty(), || "tinc-down does not know the interface".to_owned())?;
    Ok("packets both ways, by UDP".to_owned())
}
