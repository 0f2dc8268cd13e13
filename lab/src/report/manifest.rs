//! `manifest.json`: everything about a run except its trials, such as the plan, the machine and the versions.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use adit_testbed::failure::{Context, Result};
use serde::{Deserialize, Serialize};

/// The manifest's name in a run's folder.
pub const FILE: &str = "manifest.json";

/// The data needed to judge and repeat a run. Missing fields are read as empty, so old runs remain readable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// The plan.
    pub plan: PlanEntry,
    /// The seed of the order of the trials and of all other random choices.
    pub seed: u64,
    /// The intended number of measurements of each point with each subject.
    pub rounds: u32,
    /// The number of rounds in which a subject was run against itself.
    pub a_a_rounds: u32,
    /// The number of trials in the whole run; 0 if it was not recorded. A run with fewer lines is unfinished.
    pub trials_planned: usize,
    /// The command line that repeats this run.
    pub command: String,
    /// Unix time in milliseconds.
    pub started_ms: u64,
    /// Unix time in milliseconds; `None` while the run is unfinished.
    pub finished_ms: Option<u64>,
    /// The source from which the lab and adit were built.
    pub source: Option<Revision>,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The versions of the tools that measured, by the name of the tool.
    pub tools: BTreeMap<String, String>,
    /// For each subject by name, the measured version, or the reason why it was not measured.
    pub subjects: BTreeMap<String, SubjectEntry>,
    /// For each link mode by name, the flags as `ethtool -k` printed them.
    pub links: BTreeMap<String, String>,
}

/// The complete plan, so the folder is all that is needed to repeat the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanEntry {
    /// `smoke`, `standard`, `full`, or the file's name.
    pub name: String,
    /// The TOML as read.
    pub text: String,
    /// The number of rounds of every scenario, if given on the command line.
    pub rounds: Option<u32>,
    /// The seed, from the command line, the plan or the clock.
    pub seed: Option<u64>,
    /// The scenarios to which the command line restricted the plan; all if empty.
    pub only: Vec<String>,
}

/// A revision of the source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Revision {
    /// The full hash of the commit.
    pub hash: String,
    /// Whether files differed from the commit.
    pub dirty: bool,
}

/// The properties of the machine that affect the figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The kernel release, such as `6.18.5`.
    pub kernel: String,
    /// The model name that the processor reports.
    pub cpu: String,
    /// Those of [`CPU_FLAGS`] that the processor has.
    pub cpu_flags: Vec<String>,
    /// The number of logical processors that are online.
    pub cores: usize,
    /// The memory in KiB.
    pub memory_kib: u64,
}

/// One subject in the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubjectEntry {
    /// The version that it reports; empty for the bare link.
    pub version: String,
    /// The `(name, text)` pair of each configuration, exactly as it was used.
    pub configs: Vec<(String, String)>,
    /// The reason why it was not measured, and what to install.
    pub skipped: Option<String>,
}

/// The features of the processor that determine the speed of a VPN.
pub const CPU_FLAGS: &[&str] =
    &["aes", "avx2", "avx512f", "vaes", "vpclmulqdq", "pclmulqdq", "sha_ni", "hypervisor"];

impl Manifest {
    /// Returns the manifest of a run that begins now on this machine. The caller adds subjects and links as they become
    /// known.
    pub fn begin(plan: PlanEntry, seed: u64, rounds: u32, a_a_rounds: u32) -> Self {
        Self {
            plan,
            seed,
            rounds,
            a_a_rounds,
            command: repeatable(&command_line(std::env::args_os()), seed),
            started_ms: now_ms(),
            source: Revision::here(),
            machine: Machine::here(),
            tools: tools(),
            ..Self::default()
        }
    }

    /// Reads `DIR/manifest.json`.
    ///
    /// # Errors
    /// The file is missing or is not a manifest.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let text = std::fs::read_to_string(&path)
            .context(format!("{}: this is no folder of a run", path.display()))?;
        serde_json::from_str(&text).context(path.display())
    }

    /// Writes `DIR/manifest.json` atomically, as indented JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_string_pretty(self).context("the manifest")? + "\n";
        let whole = path.with_extension("json.new");
        std::fs::write(&whole, text).context(whole.display())?;
        std::fs::rename(&whole, &path).context(path.display())
    }
}

impl Revision {
    /// Returns the revision of the git tree that contains the working directory; `None` outside of a git tree or
    /// without git.
    pub fn here() -> Option<Self> {
        Self::of(Path::new("."))
    }

    fn of(folder: &Path) -> Option<Self> {
        let git = |arguments: &[&str]| {
            let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
            output
                .status
                .success()
                .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let hash = git(&["rev-parse", "--verify", "HEAD"])?;
        let dirty = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        Some(Self { hash, dirty })
    }
}

impl Machine {
    /// Reads this machine's description from `/proc`.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut machine = Self::from_proc(&read("/proc/cpuinfo"), &read("/proc/meminfo"));
        read("/proc/sys/kernel/osrelease").trim().clone_into(&mut machine.kernel);
        machine
    }

    fn from_proc(cpuinfo: &str, meminfo: &str) -> Self {
        let field = |name: &str| {
            let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            let mut values =
                lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
            values.next()
        };
        // ARM kernels report no model name, but have "Features" and "CPU part".
        let flags: Vec<&str> =
            field("flags").or(field("Features")).unwrap_or_default().split(' ').collect();
        let memory = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        Self {
            kernel: String::new(),
            cpu: field("model name").or(field("CPU part")).unwrap_or("unknown").to_owned(),
            cpu_flags: CPU_FLAGS
                .iter()
                .filter(|flag| flags.contains(flag))
                .map(|&flag| flag.to_owned())
                .collect(),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_kib: memory
                .and_then(|text| text.split_whitespace().next()?.parse().ok())
                .unwrap_or_default(),
        }
    }
}

/// Returns the first line of each tool's version output; tools that are not installed are absent.
pub fn tools() -> BTreeMap<String, String> {
    let asked: [(&str, &[&str]); 5] = [
        ("iperf3", &["--version"]),
        ("ip", &["-V"]),
        ("ethtool", &["--version"]),
        ("perf", &["--version"]),
        ("valgrind", &["--version"]),
    ];
    let answers = asked.iter().filter_map(|(tool, arguments)| {
        let output = Command::new(tool).args(*arguments).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find(|line| !line.trim().is_empty())?;
        Some(((*tool).to_owned(), line.trim().to_owned()))
    });
    answers.collect()
}

/// Returns the lines of `ethtool -k` about the offloads of a link.
pub fn offload_lines(ethtool: &str) -> String {
    const OF_NOTE: &[&str] = &[
        "rx-checksumming",
        "tx-checksumming",
        "scatter-gather",
        "tcp-segmentation-offload",
        "generic-segmentation-offload",
        "generic-receive-offload",
        "tx-udp-segmentation",
        "rx-udp-gro-forwarding",
    ];
    let lines = ethtool.lines().map(str::trim);
    let noted =
        lines.filter(|line| line.split_once(':').is_some_and(|(name, _)| OF_NOTE.contains(&name)));
    noted.collect::<Vec<_>>().join("\n")
}

/// Returns a command line that repeats the run in the same order.
fn repeatable(command: &str, seed: u64) -> String {
    if command.contains("--seed") { command.to_owned() } else { format!("{command} --seed {seed}") }
}

/// Returns a command line for a shell, with quotes around each word that needs them.
pub fn command_line(words: impl IntoIterator<Item = OsString>) -> String {
    let words = words.into_iter().map(|word| {
        let word = word.to_string_lossy().into_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns Unix time in milliseconds.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_missing_fields_are_empty() {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::begin(PlanEntry::default(), 7, 5, 3);
        manifest.subjects.insert(
            "openvpn".into(),
            SubjectEntry {
                version: "2.6.14".into(),
                configs: vec![("server.conf".into(), "dev tun\n".into())],
                skipped: None,
            },
        );
        manifest.write(dir.path()).unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap(), manifest);

        std::fs::write(dir.path().join(FILE), r#"{"seed": 9, "future": true}"#).unwrap();
        let old = Manifest::read(dir.path()).unwrap();
        assert_eq!(old, Manifest { seed: 9, ..Manifest::default() });
    }

    #[test]
    fn a_folder_without_a_manifest_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let failure = Manifest::read(dir.path()).unwrap_err().to_string();
        assert!(failure.contains("manifest.json: this is no folder of a run"), "{failure}");
    }

    #[test]
    fn the_machine_is_read_from_proc() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC 9555\nflags\t\t: fpu aes avx512f vaes lm\n\n\
                       processor\t: 1\nmodel name\t: AMD EPYC 9555\nflags\t\t: fpu aes avx512f vaes lm\n";
        let machine = Machine::from_proc(cpuinfo, "MemTotal:        8039312 kB\nMemFree: 1 kB\n");
        assert_eq!(machine.cpu, "AMD EPYC 9555");
        assert_eq!(machine.cpu_flags, ["aes", "avx512f", "vaes"]);
        assert_eq!((machine.cores, machine.memory_kib), (2, 8_039_312));
        assert!(Machine::here().cores >= 1);
    }

    #[test]
    fn a_revision_knows_whether_files_differ_and_is_absent_outside() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Revision::of(dir.path()), None);
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(dir.path()).args(["-c", "user.name=t", "-c", "user.email=t@t"]);
            assert!(git.args(arguments).output().unwrap().status.success(), "git {arguments:?}");
        };
        git(&["init", "-q"]);
        std::fs::write(dir.path().join("a"), "1").unwrap();
        git(&["add", "a"]);
        git(&["commit", "-q", "-m", "a"]);
        let clean = Revision::of(dir.path()).unwrap();
        assert!(!clean.dirty && clean.hash.len() == 40, "{clean:?}");
        std::fs::write(dir.path().join("a"), "2").unwrap();
        assert!(Revision::of(dir.path()).unwrap().dirty);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let words = ["adit-lab", "run", "my plan.toml", "it's", "--seed=7"].map(OsString::from);
        assert_eq!(command_line(words), r"adit-lab run 'my plan.toml' 'it'\''s' --seed=7");
    }

    #[test]
    fn only_the_offloads_of_note_are_kept() {
        let told = "Features for veth0:\nrx-checksumming: on\ntx-checksumming: on\n\ttx-checksum-ipv4: off [fixed]\n\
                    generic-receive-offload: off\ntx-udp-segmentation: on\nhighdma: on\n";
        let kept = "rx-checksumming: on\ntx-checksumming: on\ngeneric-receive-offload: off\ntx-udp-segmentation: on";
        assert_eq!(offload_lines(told), kept);
    }
}
