//! The client pool against real servers: adit's and, if installed, openvpn's.
//!
//! It enters a sandbox, which the default test harness does not support.

use std::process::ExitCode;
use std::time::Duration;

use adit_lab::handshake_load::load_generator::{LoadGenerator, program};
use adit_lab::handshake_load::schedule::{burst, steady};
use adit_lab::record::Measurement;
use adit_lab::subject::{Subject, Toolchain};
use adit_lab::testbed::{LinkMode, Testbed};
use adit_testbed::failure::{Result, ensure};
use adit_testbed::sandbox::{self, Entered, Sandbox};

const SUBJECTS: [Subject; 2] = [Subject::ADIT, Subject::OPENVPN];

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        adit_testbed::skip::skip("clients_connect", adit_testbed::skip::NEEDS_ROOT);
        return ExitCode::SUCCESS;
    }
    let outcome = sandbox::enter().and_then(|entered| match entered {
        Entered::Ended(code) => Ok(code),
        Entered::Inside(sandbox) => all(&sandbox).map(|()| ExitCode::SUCCESS),
    });
    outcome.unwrap_or_else(|failure| {
        eprintln!("FAILED: {failure}");
        ExitCode::FAILURE
    })
}

fn all(sandbox: &Sandbox) -> Result<()> {
    let toolchain = Toolchain::new(sandbox, &SUBJECTS)?;
    for subject in &SUBJECTS {
        match program(&toolchain, subject) {
            Err(why) => {
                adit_testbed::skip::skip(&format!("clients_connect: {subject}"), &why);
            }
            Ok(_) => {
                clients_connect(&toolchain, subject)?;
                println!("passed: clients_connect: {subject}");
            }
        }
    }
    Ok(())
}

/// Connects twenty clients on five hosts, each with a separate address and the expected configuration; then more than
/// there are slots; then all again after they vanished.
fn clients_connect(toolchain: &Toolchain, subject: &Subject) -> Result<()> {
    let testbed = Testbed::pair(LinkMode::Offload)?;
    let load = LoadGenerator::set(toolchain, &testbed, subject, 5, 4)?;
    let timeout = Duration::from_secs(10);
    let come = |schedule: Vec<Duration>| -> Result<()> {
        let (ran, cpu) = load.measure_cpu(|pool| pool.run(schedule, timeout))?;
        let log = || load.server.daemon().failure("its log").0;
        ensure(ran.up() == ran.arrivals.len(), || format!("{ran:?}\n{}", log()))?;
        ensure(cpu > 0.0 && ran.cpu > 0.0, || format!("nothing costs nothing: {cpu} {ran:?}"))?;
        let mut measurement = Measurement::default();
        let findings = load.check(&ran, &mut measurement)?;
        let clean = findings.misconfigured.is_empty() && findings.duplicates.is_empty();
        let (each, up) = (findings.looked_at == ran.up(), load.pool.applied()?.len());
        ensure(each && up == 20 && clean, || format!("{subject}: {findings:#?}\n{}", log()))
    };
    come(burst(20))?;
    come(steady(40.0, Duration::from_millis(750)))?;
    let gone = load.pool.drop_all()?;
    ensure(gone >= 20, || format!("{gone} clients vanished"))?;
    come(burst(20))?;
    let left = load.pool.disconnect_all()?;
    ensure(left == 20, || format!("{left} clients left"))
}
