//! Tests of admin keys: lost, restored, shared and replaced.

use serde_json::Value;

use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, Machine, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::wait::until;

/// The first machine is lost. Another one restores its key from paper, removes it, and invites a new machine.
pub(super) fn recovered(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    bed.found()?;
    bed.join(1, &["--relay"])?;
    let refused = bed.machines[1].refused(&["admin", "phrase"])?;
    ensure(refused.contains("no key of an admin"), || refused.clone())?;
    let phrase = phrase(&bed.machines[0])?;
    bed.kill(0)?;
    let wrong = phrase.rsplit_once(' ').context("words")?.0;
    let refused = bed.machines[1].refused_with_input(&["admin", "recover"], wrong)?;
    ensure(refused.contains("23 words"), || refused.clone())?;
    let said = bed.machines[1].mesh_with_input(&["admin", "recover"], &phrase)?;
    ensure(said.contains("restart the node"), || said.clone())?;
    bed.stop(1)?;
    bed.up(1)?;
    bed.machines[1].mesh(&["remove", "hub"])?;
    let printed = bed.machines[1].mesh(&["invite"])?;
    let token = printed.lines().find(|line| line.starts_with("adit-mesh1-")).context("a token")?;
    bed.join_with(2, token)?;
    ping_until(&bed.machines[2].space, bed.ipv4(1)?, LIMIT)?;
    let peers = bed.machines[2].mesh(&["peers"])?;
    ensure(!peers.contains("hub"), || format!("the lost machine is still a member: {peers}"))?;
    for at in [1, 2] {
        let log = bed.log(at)?;
        ensure(!log.contains(wrong), || "the phrase is in the log".into())?;
    }
    Ok("restored from paper on another machine".into())
}

/// With two admins, neither can change rights without the other, and a replaced key can no longer sign.
pub(super) fn two_admins(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    bed.join_all()?;
    let second = bed.machines[1].name.clone();
    let third = bed.machines[2].name.clone();
    bed.machines[0].mesh(&["admin", "grant", &second, "--admin"])?;
    // The new threshold itself needs that many admins.
    let said = bed.machines[0].mesh(&["admin", "threshold", "2"])?;
    ensure(said.contains("waits for other admins"), || said.clone())?;
    approve(&bed, 1)?;
    until("both know the threshold", LIMIT, || Ok(shown(&bed.machines[0])?["threshold"] == 2))?;
    bed.machines[0].mesh(&["admin", "grant", &third, "--admin"])?;
    let count = |machine: &Machine| -> Result<usize> {
        Ok(shown(machine)?["admins"].as_array().map_or(0, Vec::len))
    };
    let change = waiting(&bed, 2)?;
    ensure(count(&bed.machines[2])? == 2, || "the change counts without approval".into())?;
    let refused = bed.machines[2].refused(&["admin", "approve", &change])?;
    ensure(refused.contains("no right"), || refused.clone())?;
    approve(&bed, 1)?;
    until("the change counts", LIMIT, || Ok(count(&bed.machines[2])? == 3))?;
    // The first machine's key is replaced with another admin's approval.
    let before = phrase(&bed.machines[0])?;
    bed.machines[0].mesh(&["admin", "rotate"])?;
    approve(&bed, 1)?;
    let replaced =
        || Ok(phrases(&bed.machines[0])?.len() == 1 && phrase(&bed.machines[0])? != before);
    until("the new key is in its place", LIMIT, replaced)?;
    let refused = bed.machines[2].refused_with_input(&["admin", "recover"], &before)?;
    ensure(refused.contains("belongs to no admin"), || refused.clone())?;
    // The new key can sign, and removing an admin takes both.
    let said = bed.machines[0].mesh(&["remove", &third])?;
    ensure(said.contains("waits for other admins"), || said.clone())?;
    approve(&bed, 1)?;
    bed.wait_for_line(2, "this node was removed from the mesh")?;
    Ok("approved by both, and replaced".into())
}

fn shown(machine: &Machine) -> Result<Value> {
    machine.json(&["admin", "show"])
}

/// Waits until a machine knows the change that needs approvals. Returns its hash.
fn waiting(bed: &MeshTestbed, at: usize) -> Result<String> {
    let change = || -> Result<Option<String>> {
        let shown = shown(&bed.machines[at])?;
        let change = shown["waiting"].get(0).and_then(|it| it["change"].as_str());
        Ok(change.map(str::to_owned))
    };
    until("the change arrives", LIMIT, || Ok(change()?.is_some()))?;
    change()?.context("a change")
}

/// Approves the waiting change.
fn approve(bed: &MeshTestbed, at: usize) -> Result<()> {
    let change = waiting(bed, at)?;
    bed.machines[at].mesh(&["admin", "approve", &change[..8]]).map(drop)
}

fn phrases(machine: &Machine) -> Result<Vec<String>> {
    let shown: Value = machine.json(&["admin", "phrase"])?;
    let phrases = shown["phrases"].as_array().context("phrases")?;
    Ok(phrases.iter().filter_map(|phrase| phrase.as_str().map(str::to_owned)).collect())
}

fn phrase(machine: &Machine) -> Result<String> {
    phrases(machine)?.into_iter().next().context("a phrase")
}
