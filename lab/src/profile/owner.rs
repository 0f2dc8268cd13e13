//! The processes of a recording whose stacks are kept.

use std::collections::BTreeSet;

use adit_testbed::failure::{Context, Result, ensure};

use crate::subject::{Bridging, Joint, Subject, Tinc};

/// The processes that are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// This process itself, for measurements in memory.
    Runner,
    /// All processes that ran a program with this name, with all their threads, whatever their names.
    Program(&'static str),
}

impl Owner {
    /// Returns the programs of a subject.
    ///
    /// # Errors
    /// The subject has none.
    pub fn of(subject: &Subject) -> Result<Self> {
        Ok(Self::Program(match subject {
            Subject::Bare | Subject::Wired(Joint::Kernel | Joint::KernelRules) => {
                return Err(
                    "a cable or the kernel's bridge is no program that could be sampled".into()
                );
            }
            Subject::Copy | Subject::Bridge(Bridging::Plain | Bridging::PlainThreads) => "adit-lab",
            Subject::Bridge(_) | Subject::Wired(Joint::Adit) => "adit",
            // The owner of a mixed pair is the server.
            Subject::Vpn(vpn) => vpn.server.name(),
            Subject::Database(scheme) if scheme.is_adit() => "adit",
            Subject::Database(_) => "adit-lab",
            // adit runs by this name as well.
            Subject::Tinc(Tinc::V1_0 | Tinc::Adit | Tinc::AditChaCha20 | Tinc::AditServes) => {
                "tincd"
            }
            Subject::Tinc(Tinc::V1_1 | Tinc::TincServes) | Subject::Nebula => {
                return Err("a program of a private root runs under its linker's name".into());
            }
            Subject::WireguardGo => "wireguard-go",
            Subject::Mesh => "adit",
        }))
    }

    /// Returns the ids of its processes, for `perf script --pid`, from the output of `perf script --show-task-events`.
    pub(super) fn pids(&self, tasks: &str) -> Result<String> {
        let program = match self {
            Self::Runner => return Ok(std::process::id().to_string()),
            Self::Program(program) => *program,
        };
        // `adit-lab 41/41 5.0: PERF_RECORD_COMM exec: adit:41/41`; without `exec` a thread named itself.
        let started = tasks.lines().filter_map(|line| {
            let (_, what) = line.split_once("PERF_RECORD_COMM exec: ")?;
            let (name, process) = what.trim_end().rsplit_once(':')?;
            (name == program).then_some(process.split_once('/')?.0)
        });
        let pids: BTreeSet<u32> =
            started.map(|pid| pid.parse().context("perf script")).collect::<Result<_>>()?;
        ensure(!pids.is_empty(), || format!("the trial started no {program}"))?;
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        Ok(pids.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASKS: &str = "\
adit-lab 1/1 5.0: PERF_RECORD_FORK(41:41):(1:1)
adit-lab 41/41 5.1: PERF_RECORD_COMM exec: adit:41/41
adit 41/43 5.2: PERF_RECORD_COMM: plane-0:41/43
adit-lab 50/50 5.3: PERF_RECORD_COMM exec: adit-lab:50/50
adit-lab 60/60 5.4: PERF_RECORD_COMM exec: adit:60/60
relay 1/7 5.5: PERF_RECORD_COMM: adit:1/7
adit 60/60 5.6: cpu-clock: 
";

    #[test]
    fn processes_are_told_apart_by_what_they_executed() {
        let adit = Owner::of(&Subject::ADIT).unwrap();
        assert_eq!(adit.pids(TASKS).unwrap(), "41,60");
        assert_eq!(Owner::of(&Subject::Copy).unwrap().pids(TASKS).unwrap(), "50");
        let failure = Owner::of(&Subject::Tinc(Tinc::V1_0)).unwrap().pids(TASKS).unwrap_err();
        assert!(failure.0.contains("tincd"), "{failure}");
    }

    #[test]
    fn what_runs_in_memory_is_this_process_and_a_cable_is_none() {
        assert_eq!(Owner::Runner.pids("").unwrap(), std::process::id().to_string());
        assert!(Owner::of(&Subject::Bare).is_err());
    }
}
