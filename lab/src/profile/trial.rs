//! The command `profile`: samples one trial of a scenario.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_testbed::sandbox::{self, Entered};

use super::{CALLS, DOT, FLAME, FOLDED, Owner, Recording, differential, graphs};
use crate::plan::{Kind, Plan, Trial};
use crate::record::{Measurement, Point};
use crate::scenario::Runner;
use crate::subject::{self, Subject, Toolchain};

/// Shows where the time goes in one trial of a scenario: a flame graph and a call graph, and the difference to another subject or to an
/// earlier call's graphs. Needs root and perf.
///
/// Example: adit-lab profile single-stream --against adit@HEAD~1
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// Scenario of the plan; `adit-lab list` names them.
    #[arg(default_value = "single-stream")]
    scenario: String,
    /// smoke, standard, full, or the path of a plan's file.
    #[arg(long, default_value = "standard")]
    plan: String,
    /// Point on the scenario's axes, such as clients=20; the first point that fits is taken. Repeatable.
    #[arg(long, value_name = "AXIS=VALUE")]
    point: Vec<String>,
    /// What to sample: adit, adit@REVISION, copy, openvpn, ...; adit if not given.
    #[arg(long)]
    subject: Option<Subject>,
    /// Also draw the difference to another subject, or to the folder of an earlier call.
    #[arg(long, value_name = "SUBJECT|DIR")]
    against: Option<String>,
    /// Length of each window of the trial, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Folder for the graphs, which go into a folder named after the subject.
    #[arg(long, default_value = "profile")]
    out: PathBuf,
}

/// The other side of the difference.
enum ComparisonBase {
    Subject(Subject),
    Folder(PathBuf),
}

impl ComparisonBase {
    fn parse(text: &str) -> Result<Self> {
        let folder = PathBuf::from(text);
        if folder.join(FOLDED).is_file() {
            return Ok(Self::Folder(folder));
        }
        let subject = text.parse().map_err(|error: String| {
            format!("--against {text}: no folder with {FOLDED}, and {error}")
        });
        Ok(Self::Subject(subject?))
    }
}

/// Samples the trial and draws the graphs.
///
/// # Errors
/// The arguments name nothing that can be sampled, the process does not run as root, perf is missing, or the trial
/// failed.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let against = arguments.against.as_deref().map(ComparisonBase::parse).transpose()?;
    let other = match &against {
        Some(ComparisonBase::Subject(other)) => Some(other),
        _ => None,
    };
    let trials = trials(arguments, other)?;
    let subjects: Vec<Subject> = trials.iter().filter_map(|trial| trial.subject.clone()).collect();
    // The sandbox has no network, which a build may need.
    subject::prepare(&subjects)?;
    let sandbox = match sandbox::enter()? {
        Entered::Inside(sandbox) => sandbox,
        Entered::Ended(code) => return Ok(code),
    };
    let toolchain = Toolchain::new(&sandbox, &subjects)?;
    for subject in &subjects {
        toolchain.available(subject).map_err(|why| Failure(format!("{subject}: {why}")))?;
    }
    let mut runner = Runner::new(sandbox, toolchain);
    let mut folders = Vec::new();
    for trial in &trials {
        let folder = arguments.out.join(name(trial));
        let measurement = sample(&mut runner, trial, &folder)?;
        println!("{}: {}", shown(trial), folder.display());
        println!("  {FLAME}, {CALLS}, {DOT}, {FOLDED}");
        println!("  while sampled: {}", figures(&measurement));
        for why in &measurement.invalid {
            println!("  in a run this trial would not count: {why}");
        }
        folders.push(folder);
    }
    let before = match against {
        Some(ComparisonBase::Folder(folder)) => Some(folder),
        _ => folders.get(1).cloned(),
    };
    if let (Some(before), Some(after)) = (before, folders.first()) {
        let out = after.join("difference.svg");
        differential(&before, after, &out)?;
        println!("difference to {}: {}", before.display(), out.display());
    }
    println!("$ {}", std::env::args().collect::<Vec<_>>().join(" "));
    Ok(ExitCode::SUCCESS)
}

/// Returns the requested trial, and the same trial of the other subject.
fn trials(arguments: &Arguments, other: Option<&Subject>) -> Result<Vec<Trial>> {
    let mut plan = Plan::load(&arguments.plan)?;
    plan.only(std::slice::from_ref(&arguments.scenario))?;
    let scenario = plan.scenarios.first().context("a plan without scenarios")?;
    let name = &scenario.name;
    ensure(scenario.kind != Kind::Instructions, || {
        format!(
            "{name}: instructions are counted by callgrind, not timed; profile in-memory instead"
        )
    })?;
    let wanted = pairs(&arguments.point)?;
    let fits = |point: &Point| wanted.iter().all(|(axis, value)| point.get(axis) == Some(value));
    let found = scenario.points.iter().find(|(point, _)| fits(point));
    let Some((point, settings)) = found else {
        let all: Vec<String> = scenario.points.iter().map(|(point, _)| point.to_string()).collect();
        let (asked, all) = (arguments.point.join(" "), all.join("; "));
        return Err(Failure(format!("{name}: no point has {asked}; there are: {all}")));
    };
    let mut settings = settings.clone();
    settings.length = Duration::from_secs(arguments.seconds);
    if !scenario.kind.has_subjects() {
        let given = arguments.subject.as_ref().or(other);
        return match given {
            Some(subject) => Err(Failure(format!(
                "{name}: it measures the engines inside this program; {subject} takes no part. --against takes the \
                 folder of an earlier call"
            ))),
            None => Ok(vec![scenario.trial(point, &settings, None, 1)]),
        };
    }
    let subject = arguments.subject.clone().unwrap_or(Subject::ADIT);
    ensure(other != Some(&subject), || format!("--against {subject}: that is the same"))?;
    let subjects = std::iter::once(&subject).chain(other);
    subjects
        .map(|subject| {
            Owner::of(subject)?;
            Ok(scenario.trial(point, &settings, Some(subject), 1))
        })
        .collect()
}

/// Parses pairs of `axis=value`.
fn pairs(texts: &[String]) -> Result<Vec<(&str, &str)>> {
    texts
        .iter()
        .map(|text| text.split_once('=').context(format!("--point {text}: write AXIS=VALUE")))
        .collect()
}

/// Returns the name of a folder; the slashes of a revision are replaced.
fn name(trial: &Trial) -> String {
    trial.key.subject.replace('/', "_")
}

/// Formats `single-stream clients=1 link=offload adit`.
fn shown(trial: &Trial) -> String {
    let point = trial.key.point.to_string();
    let parts = [trial.key.scenario.as_str(), &point, &trial.key.subject];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Runs the trial while perf samples.
fn sample(runner: &mut Runner, trial: &Trial, out: &Path) -> Result<Measurement> {
    let owner = trial.subject.as_ref().map_or(Ok(Owner::Runner), Owner::of)?;
    fs::create_dir_all(out).context(out.display())?;
    // Put this outside the sandbox, whose files are in memory, because it can grow to a gigabyte.
    let files = tempfile::Builder::new().prefix("recording-").tempdir_in(out)?;
    let file = files.path().join("perf.data");
    let recording = Recording::start(&file)?;
    let measurement = runner.run(trial)?;
    recording.stop()?;
    graphs(&file, &owner, out)
        .map_err(|failure| Failure(format!("{}: {failure}", shown(trial))))?;
    Ok(measurement)
}

/// Returns the figures of the trial, slowed down by the sampling.
fn figures(measurement: &Measurement) -> String {
    let known = crate::metric::ALL.iter();
    let figures = known.filter_map(|metric| {
        let value = measurement.values.get(metric.name)?;
        Some(format!("{} {value:.*}", metric.title, metric.digits))
    });
    figures.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn asked(line: &str, other: Option<&Subject>) -> Result<Vec<Trial>> {
        let words = std::iter::once("profile").chain(line.split_whitespace());
        trials(&Line::try_parse_from(words).unwrap().arguments, other)
    }

    #[test]
    fn against_takes_a_folder_of_before_or_a_subject() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let failure = ComparisonBase::parse(path).err().unwrap();
        assert!(failure.0.contains(FOLDED) && failure.0.contains("adit@REVISION"), "{failure}");
        fs::write(folder.path().join(FOLDED), "a 1\n").unwrap();
        assert!(matches!(ComparisonBase::parse(path), Ok(ComparisonBase::Folder(_))));
        let parsed = ComparisonBase::parse("openvpn");
        assert!(
            matches!(parsed, Ok(ComparisonBase::Subject(subject)) if subject == Subject::OPENVPN)
        );
    }

    #[test]
    fn a_trial_is_that_of_the_plan_with_longer_windows() {
        let found = asked("--seconds 7", Some(&Subject::OPENVPN)).unwrap();
        let names: Vec<&str> = found.iter().map(|trial| trial.key.subject.as_str()).collect();
        assert_eq!(names, ["adit", "openvpn"]);
        let trial = &found[0];
        assert_eq!((trial.key.scenario.as_str(), trial.kind), ("single-stream", Kind::Throughput));
        assert_eq!(trial.settings.length, Duration::from_secs(7));
        let found = asked("many-clients --point clients=20 --subject openvpn", None).unwrap();
        assert_eq!((found.len(), found[0].settings.clients), (1, 20));
        assert_eq!(found[0].subject, Some(Subject::OPENVPN));
        assert_eq!(asked("handshakes", None).unwrap()[0].subject, None);
    }

    #[test]
    fn what_cannot_be_sampled_is_refused_with_a_way_out() {
        let cases = [
            ("no-such", "single-stream, single-stream-wire"),
            ("instructions", "profile in-memory"),
            ("many-clients --point clients=7", "clients=50"),
            ("many-clients --point seven", "AXIS=VALUE"),
            ("in-memory --subject openvpn", "openvpn takes no part"),
            ("--subject bare", "no program"),
        ];
        for (line, said) in cases {
            let failure = asked(line, None).unwrap_err();
            assert!(failure.0.contains(said), "{line}: {failure}");
        }
        assert!(asked("", Some(&Subject::ADIT)).unwrap_err().0.contains("the same"));
        assert!(asked("handshakes", Some(&Subject::Tinc(subject::Tinc::V1_0))).is_err());
    }
}
