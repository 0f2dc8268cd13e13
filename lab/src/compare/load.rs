//! Reads two runs, and finds reasons why their comparison may be doubtful.

use std::path::Path;

use adit_testbed::failure::{Context, Result};

use crate::record::{Record, TRIALS};
use crate::report::Manifest;
use crate::stats::{Summary, summarise};
use crate::subject::has_adit;

/// A run as read from its folder.
pub(super) struct Run {
    /// The manifest; `None` if it is missing or unreadable.
    pub(super) manifest: Option<Manifest>,
    pub(super) summary: Summary,
    /// The number of lines that are not records. A run that is killed leaves an incomplete line.
    pub(super) torn: usize,
}

impl Run {
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(TRIALS);
        let text = std::fs::read(&path)
            .context(format!("{}: name the folder that `adit-lab run` wrote", path.display()))?;
        Ok(Self::of(&String::from_utf8_lossy(&text), Manifest::read(dir).ok()))
    }

    pub(super) fn of(trials: &str, manifest: Option<Manifest>) -> Self {
        let lines = trials.lines().filter(|line| !line.trim().is_empty());
        let read: Vec<Option<Record>> = lines.map(|line| serde_json::from_str(line).ok()).collect();
        let torn = read.iter().filter(|record| record.is_none()).count();
        let records: Vec<Record> = read.into_iter().flatten().collect();
        Self { manifest, summary: summarise(&records), torn }
    }
}

/// Returns the differences between the runs other than the build.
pub(super) fn differences(a: &Run, b: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, run) in [("A", a), ("B", b)] {
        if run.torn > 0 {
            warnings.push(format!("{name}: {} lines of trials.jsonl are no records", run.torn));
        }
        warnings.extend(run.summary.warnings.iter().map(|warning| format!("{name}: {warning}")));
    }
    match (&a.manifest, &b.manifest) {
        (Some(a), Some(b)) => warnings.extend(manifests(a, b)),
        _ => warnings.push(
            "a manifest.json is missing or unreadable: whether both ran on the same machine is unknown".into(),
        ),
    }
    warnings
}

fn manifests(a: &Manifest, b: &Manifest) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            warnings.push(format!("the {what} differs: {a} in A, {b} in B"));
        }
    };
    differ("CPU", a.machine.cpu.clone(), b.machine.cpu.clone());
    differ("number of cores", a.machine.cores.to_string(), b.machine.cores.to_string());
    differ("kernel", a.machine.kernel.clone(), b.machine.kernel.clone());
    differ("plan", a.plan.name.clone(), b.plan.name.clone());
    differ("number of rounds", a.rounds.to_string(), b.rounds.to_string());
    for (name, before) in a.subjects.iter().filter(|(name, _)| !has_adit(name)) {
        if let Some(after) = b.subjects.get(name) {
            differ(&format!("version of {name}"), before.version.clone(), after.version.clone());
        }
    }
    if a.plan.name == b.plan.name && a.plan.text != b.plan.text {
        warnings.push(format!("the text of the plan {} differs", a.plan.name));
    }
    if a.machine.cpu_flags != b.machine.cpu_flags {
        warnings.push("the abilities of the CPU differ".into());
    }
    for (mode, _) in
        a.links.iter().filter(|(mode, flags)| b.links.get(*mode).is_some_and(|f| f != *flags))
    {
        warnings.push(format!("the offload flags of link mode {mode} differ"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_apart_from_the_build_is_told() {
        let mut a = Manifest::default();
        a.machine.cpu = "EPYC".into();
        a.plan.name = "smoke".into();
        let mut b = a.clone();
        assert!(manifests(&a, &b).is_empty());
        b.machine.cpu = "Xeon".into();
        b.plan.text = "rounds = 9".into();
        let expected =
            ["the CPU differs: EPYC in A, Xeon in B", "the text of the plan smoke differs"];
        assert_eq!(manifests(&a, &b), expected);
    }

    #[test]
    fn half_a_line_is_counted_and_no_manifest_is_told() {
        let a = Run::of("{\"key\":{\"scen", None);
        let b = Run::of("\n", None);
        assert_eq!((a.torn, b.torn), (1, 0));
        let warnings = differences(&a, &b);
        assert!(
            warnings[0].starts_with("A: 1 lines") && warnings[1].contains("manifest.json"),
            "{warnings:?}"
        );
    }
}
