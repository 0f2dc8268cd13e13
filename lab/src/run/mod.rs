//! Runs the trials of a plan, one after another. Each trial adds a line to `trials.jsonl`.

mod folder;
mod list;
mod progress;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::net::VETH;
use adit_testbed::sandbox::{self, Entered, Sandbox};

pub use self::list::run as list;

use self::folder::Folder;
use self::progress::Progress;
use crate::measure::foreign::{self, Processors};
use crate::plan::{Plan, Trial};
use crate::record::{Measurement, Outcome, Record};
use crate::report::manifest::{Manifest, PlanEntry, SubjectEntry, now_ms, offload_lines};
use crate::scenario::Runner;
use crate::subject::Toolchain;
use crate::testbed::{LinkMode, Testbed};

/// What to run.
///
/// Example: adit-lab run smoke
#[derive(clap::Args)]
pub struct Arguments {
    /// A plan's name (adit-lab list), such as smoke (under 2 minutes) or standard (under 20), or the path of a plan's file
    #[arg(required_unless_present = "resume")]
    plan: Option<String>,
    /// Folder for the results; a new folder under lab-results/ if not given
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue the run in this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["plan", "out", "rounds", "seed", "only"])]
    resume: Option<PathBuf>,
    /// Rounds of every scenario, instead of the plan's
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seed of the order of trials, instead of the plan's or the clock's
    #[arg(long)]
    seed: Option<u64>,
    /// Only the scenario of this name; repeatable
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
}

/// Runs the plan and writes the report.
///
/// # Errors
/// The plan or the folder cannot be used, the process does not run as root, or the results cannot be written. A trial
/// that fails is a line in the results, not an error.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (entry, resumed) = match &arguments.resume {
        Some(dir) => (Manifest::read(dir)?.plan, Some(dir.clone())),
        None => (asked(arguments)?, None),
    };
    let plan = plan_of(&entry)?;
    // Do this outside the sandbox, which has no network, because building a revision may download its dependencies.
    crate::subject::prepare(&plan.subjects())?;
    let sandbox = match sandbox::enter()? {
        Entered::Ended(code) => return Ok(code),
        Entered::Inside(sandbox) => sandbox,
    };
    let folder = match resumed {
        Some(dir) => Folder::open(dir)?,
        None => Folder::create(arguments.out.clone(), &plan.name)?,
    };
    execute(&plan, entry, &folder, sandbox)
}

/// Returns the plan that the arguments select, as recorded in the manifest.
fn asked(arguments: &Arguments) -> Result<PlanEntry> {
    let name = arguments.plan.as_deref().unwrap_or_default();
    let plan = Plan::load(name)?;
    // By default the seed comes from the clock, so that the order differs between runs. It is recorded, so that the
    // order can be repeated.
    let seed = arguments.seed.or(plan.seed).unwrap_or_else(now_ms);
    Ok(PlanEntry {
        name: name.to_owned(),
        text: plan.text,
        rounds: arguments.rounds,
        seed: Some(seed),
        only: arguments.only.clone(),
    })
}

fn plan_of(entry: &PlanEntry) -> Result<Plan> {
    let mut plan = Plan::parse(&entry.name, &entry.text)?;
    if !entry.only.is_empty() {
        plan.only(&entry.only)?;
    }
    if let Some(rounds) = entry.rounds {
        plan.rounds = rounds;
        plan.scenarios.iter_mut().for_each(|scenario| scenario.rounds = rounds);
    }
    plan.seed = entry.seed.or(plan.seed);
    Ok(plan)
}

fn execute(plan: &Plan, entry: PlanEntry, folder: &Folder, sandbox: Sandbox) -> Result<ExitCode> {
    let trials = plan.trials();
    let done = folder.records()?;
    let toolchain = Toolchain::new(&sandbox, &plan.subjects())?;
    let mut manifest = manifest(plan, entry, &trials, &toolchain, folder)?;
    manifest.write(folder.path())?;
    let dir = folder.path().display();
    eprintln!("results in {dir}; if this is interrupted: adit-lab run --resume {dir}");
    for (name, subject) in &manifest.subjects {
        if let Some(why) = &subject.skipped {
            eprintln!("without {name}: {why}");
        }
    }
    let left: Vec<&Trial> = trials.iter().filter(|trial| !done.contains(&trial.key)).collect();
    let mut progress = Progress::new(trials.len(), left.len());
    let mut runner = Runner::new(sandbox, toolchain);
    let mut failed = 0;
    for trial in left {
        progress.begin(trial);
        let record = one(&mut runner, trial, &manifest);
        progress.end(&record);
        failed += usize::from(matches!(record.outcome, Outcome::Failed(_)));
        folder.append(&record)?;
    }
    progress.finish();
    for (name, configs) in runner.into_configs() {
        manifest.subjects.entry(name).or_default().configs = configs;
    }
    manifest.finished_ms = Some(now_ms());
    manifest.write(folder.path())?;
    crate::report::write(folder.path())?;
    println!("{}", crate::report::headline(folder.path())?);
    println!("{dir}/report.html   for the browser\n{dir}/report.md     for the terminal");
    if failed > 0 {
        eprintln!("{failed} trials failed: {dir}/report.md names them");
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a new run's manifest, or the interrupted run's.
fn manifest(
    plan: &Plan,
    entry: PlanEntry,
    trials: &[Trial],
    toolchain: &Toolchain,
    folder: &Folder,
) -> Result<Manifest> {
    let mut subjects = std::collections::BTreeMap::new();
    for subject in plan.subjects() {
        let entry = match toolchain.available(&subject) {
            Ok(version) => SubjectEntry { version, ..SubjectEntry::default() },
            Err(why) => SubjectEntry { skipped: Some(why), ..SubjectEntry::default() },
        };
        subjects.insert(subject.to_string(), entry);
    }
    if folder.is_resumed() {
        let manifest = Manifest::read(folder.path())?;
        for (name, before) in &manifest.subjects {
            let now =
                subjects.get(name).map(|subject| subject.version.as_str()).unwrap_or_default();
            if before.version != now {
                let was = &before.version;
                return Err(Failure(format!("{name} was {was:?} and is {now:?}: start a new run")));
            }
        }
        return Ok(manifest);
    }
    let a_a_rounds = trials.iter().filter(|trial| trial.a_a).count() / 2;
    let a_a_rounds = u32::try_from(a_a_rounds).context("A/A rounds")?;
    let mut manifest =
        Manifest::begin(entry, plan.seed.unwrap_or_default(), plan.rounds, a_a_rounds);
    manifest.trials_planned = trials.len();
    manifest.subjects = subjects;
    for mode in [LinkMode::Offload, LinkMode::WireGro, LinkMode::Wire] {
        let used =
            trials.iter().any(|trial| trial.key.point.get("link") == Some(&mode.to_string()));
        if used {
            manifest.links.insert(mode.to_string(), flags(mode)?);
        }
    }
    Ok(manifest)
}

/// Returns the flags of one end of the veth pair in this mode, as `ethtool -k` prints them.
fn flags(mode: LinkMode) -> Result<String> {
    let testbed = Testbed::pair(mode)?;
    Ok(offload_lines(&testbed.server.run("ethtool", &["-k", VETH])?))
}

/// Runs a trial and records the activity of other programs meanwhile. Instruction counts do not depend on it.
fn watched(runner: &mut Runner, trial: &Trial) -> Result<Measurement> {
    if trial.subject.is_none() {
        return runner.run(trial);
    }
    let pressure = foreign::pressure();
    let before = Processors::look();
    let mut measurement = runner.run(trial)?;
    measurement.pressure = pressure;
    if let (Some(before), Some(after)) = (before, Processors::look()) {
        measurement.foreign = after.foreign_since(before);
    }
    Ok(measurement)
}

fn one(runner: &mut Runner, trial: &Trial, manifest: &Manifest) -> Record {
    let (started_ms, started) = (now_ms(), Instant::now());
    let subject = trial.subject.as_ref().map(ToString::to_string);
    let skipped = subject.and_then(|name| manifest.subjects.get(&name)?.skipped.clone());
    let outcome = match skipped {
        Some(why) => Outcome::Skipped(why),
        None => match watched(runner, trial) {
            Ok(measurement) => Outcome::Measured(measurement),
            Err(failure) => Outcome::Failed(failure.to_string()),
        },
    };
    Record {
        key: trial.key.clone(),
        kind: trial.kind.to_string(),
        a_a: trial.a_a,
        started_ms,
        seconds: started.elapsed().as_secs_f64(),
        outcome,
    }
}
