//! Tests of machines that an operator must approve, and of pings.

use super::super::Scenario;
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::wait::until;

/// A machine waits, shows its key, and joins under the token's name when it is approved. A refused one leaves nothing behind. A ping shows
/// the path, and fails without an answer.
pub(super) fn approval(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    bed.found()?;
    let taken = bed.machines[0].refused(&["invite", "hub"])?;
    ensure(taken.contains("another member has the name hub"), || taken.clone())?;
    let none = bed.machines[0].refused(&["approve", "laptop"])?;
    ensure(none.contains("no node of this name waits"), || none.clone())?;

    let token = bed.invite(&["laptop", "--approve"])?;
    bed.begin_to_join(1, &token)?;
    bed.wait_for_line(1, "waiting for approval at hub")?;
    let waiting = bed.machines[0].json(&["approve"])?;
    ensure(waiting[0]["name"] == "laptop", || format!("{waiting}"))?;
    let key = waiting[0]["fingerprint"].as_str().context("a fingerprint")?.to_owned();
    ensure(key.len() == 39, || format!("the key is {key}"))?;
    bed.wait_for_line(1, &key)?;
    let status = bed.machines[0].mesh(&["status"])?;
    ensure(status.contains("waiting    laptop for"), || status.clone())?;
    let members = bed.machines[0].mesh(&["peers"])?;
    ensure(!members.contains("laptop"), || members.clone())?;
    bed.machines[0].mesh(&["approve", "laptop"])?;
    bed.wait_for_line(1, "joined home")?;
    bed.wait_for_line(1, "hub: connected")?;

    let answers = bed.machines[0].mesh(&["ping", "laptop", "--count", "2"])?;
    ensure(answers.matches("answer from laptop").count() == 2, || answers.clone())?;
    let answers = bed.machines[0].json(&["ping", "laptop", "--count", "1"])?;
    ensure(answers["answers"][0]["route"] == "direct", || format!("{answers}"))?;

    let token = bed.invite(&["--approve"])?;
    bed.begin_to_join(2, &token)?;
    bed.wait_for_line(2, "waiting for approval at hub")?;
    bed.machines[0].mesh(&["approve", "node3", "--refuse"])?;
    bed.wait_for_line(2, "operator refused this node")?;
    bed.ended(2)?;
    ensure(!bed.machines[2].dir.join("data").exists(), || "a refused node left files".into())?;

    bed.kill(1)?;
    let gone = || Ok(bed.machines[0].json(&["status"])?["peers"][0]["route"] != "direct");
    until("the session is lost", LIMIT, gone)?;
    let silent = bed.machines[0].refused(&["ping", "laptop", "--count", "1"])?;
    ensure(silent.contains("laptop does not answer"), || silent.clone())?;
    Ok("approved under the token's name, and refused".into())
}
