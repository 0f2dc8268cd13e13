//! The crowd of clients against the servers themselves: adit's and, where it is installed, openvpn's.
//!
//! It enters a private world, which the usual harness cannot.

use std::process::ExitCode;
use std::time::Duration;

use adit_lab::bed::{Bed, LinkMode};
use adit_lab::record::Measurement;
use adit_lab::storm::scene::{Scene, program};
use adit_lab::storm::schedule::{burst, steady};
use adit_lab::subject::{Kit, Subject};
use adit_testbed::failure::{Result, ensure};
use adit_testbed::world::{self, Entered, World};

const SUBJECTS: [Subject; 2] = [Subject::Adit(None), Subject::Openvpn];

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        adit_testbed::skip::skip("the_crowd_comes_up", adit_testbed::skip::NEEDS_ROOT);
        return ExitCode::SUCCESS;
    }
    let outcome = world::enter().and_then(|entered| match entered {
        Entered::Ended(code) => Ok(code),
        Entered::Inside(world) => all(&world).map(|()| ExitCode::SUCCESS),
    });
    outcome.unwrap_or_else(|failure| {
        eprintln!("FAILED: {failure}");
        ExitCode::FAILURE
    })
}

fn all(world: &World) -> Result<()> {
    let kit = Kit::new(world, &SUBJECTS)?;
    for subject in &SUBJECTS {
        match program(&kit, subject) {
            Err(why) => adit_testbed::skip::skip(
                &format!("the_crowd_comes_up: {subject}"),
                &why.to_string(),
            ),
            Ok(_) => {
                the_crowd_comes_up(&kit, subject)?;
                println!("passed: the_crowd_comes_up: {subject}");
            }
        }
    }
    Ok(())
}

/// Twenty clients of five hosts, each with an address of its own and all that it should be told; more than there are
/// places; and all once more after they vanished.
fn the_crowd_comes_up(kit: &Kit, subject: &Subject) -> Result<()> {
    let bed = Bed::pair(LinkMode::Offload)?;
    let scene = Scene::set(kit, &bed, subject, 5, 4)?;
    let patience = Duration::from_secs(10);
    let come = |schedule: Vec<Duration>| -> Result<()> {
        let (ran, cpu) = scene.costed(|crowd| crowd.run(schedule, patience))?;
        let log = || scene.server.daemon().failure("its log").0;
        ensure(ran.up() == ran.arrivals.len(), || format!("{ran:?}\n{}", log()))?;
        ensure(cpu > 0.0 && ran.cpu > 0.0, || format!("nothing costs nothing: {cpu} {ran:?}"))?;
        let mut measurement = Measurement::default();
        let findings = scene.check(&ran, &mut measurement)?;
        let clean = findings.misconfigured.is_empty() && findings.duplicates.is_empty();
        let (each, up) = (findings.looked_at == ran.up(), scene.crowd.applied()?.len());
        ensure(each && up == 20 && clean, || format!("{subject}: {findings:#?}\n{}", log()))
    };
    come(burst(20))?;
    come(steady(40.0, Duration::from_millis(750)))?;
    let gone = scene.crowd.vanish()?;
    ensure(gone >= 20, || format!("{gone} clients vanished"))?;
    come(burst(20))?;
    let left = scene.crowd.leave()?;
    ensure(left == 20, || format!("{left} clients left"))
}
