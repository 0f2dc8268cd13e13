//! Counting the instructions of benchmarks under callgrind. Unlike times, the counts are exactly reproducible.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::piece::{COUNTED, Piece};

/// The conditions that must be the same for counts to be comparable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// The version of rustc.
    pub compiler: String,
    /// The target, such as `x86_64-unknown-linux-gnu`.
    pub target: String,
    /// The version of valgrind. It emulates a CPU and thereby decides which code the crypto library selects.
    pub valgrind: String,
    /// The version of the C library, whose `memcpy` is part of every benchmark.
    pub libc: String,
    /// The widest vectors that valgrind can emulate on this CPU: `avx2`, `avx` or `none`.
    pub vectors: String,
}

impl Conditions {
    /// Returns the conditions of this program on this machine.
    ///
    /// # Errors
    /// Valgrind is not installed.
    pub fn here() -> Result<Self, String> {
        let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
        let vectors = if has("avx2") {
            "avx2"
        } else if has("avx") {
            "avx"
        } else {
            "none"
        };
        let libc = said("getconf", &["GNU_LIBC_VERSION"]).unwrap_or_else(|_| "unknown".into());
        Ok(Self {
            compiler: env!("ADIT_RUSTC").to_owned(),
            target: env!("ADIT_TARGET").to_owned(),
            valgrind: said("valgrind", &["--version"])?,
            libc,
            vectors: vectors.to_owned(),
        })
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compiler, target, valgrind, libc, vectors } = self;
        write!(f, "{compiler}; {target}; {valgrind}; {libc}; {vectors}")
    }
}

/// Returns, by name, the number of instructions that one run of each benchmark takes, for a program that has the
/// command `piece NAME --times N`.
///
/// # Errors
/// Valgrind is not installed, or the program failed under it.
pub fn instruction_counts(
    binary: &Path,
    pieces: &[&'static Piece],
) -> Result<BTreeMap<String, u64>, String> {
    let count = |piece: &&'static Piece| Ok((piece.name.to_owned(), count(binary, piece)?));
    pieces.iter().map(count).collect()
}

fn count(binary: &Path, piece: &Piece) -> Result<u64, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let counted = count_into(binary, piece, &folder.path().join("callgrind.out"));
    let total =
        counted.map_err(|error| format!("counting the instructions of {}: {error}", piece.name))?;
    Ok(total / u64::from(piece.times))
}

fn count_into(binary: &Path, piece: &Piece, out: &Path) -> Result<u64, String> {
    let mut out_file = std::ffi::OsString::from("--callgrind-out-file=");
    out_file.push(out);
    let mut command = valgrind();
    command.args(["--tool=callgrind", "--quiet"]).arg(out_file);
    command.arg(format!("--toggle-collect=*{COUNTED}*")).arg(binary);
    command.args(["piece", piece.name, "--times", &piece.times.to_string()]);
    let output = command.output().map_err(|error| missing("valgrind", &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind: {}: {}", output.status, said.trim()));
    }
    let text = fs::read_to_string(out).map_err(|error| format!("{}: {error}", out.display()))?;
    total(&text).filter(|total| *total > 0).ok_or_else(|| {
        format!("callgrind saw no function called {COUNTED}: is {} stripped?", binary.display())
    })
}

/// Returns the sum of all instructions in callgrind's output.
fn total(text: &str) -> Option<u64> {
    if !text.lines().any(|line| line == "events: Ir") {
        return None;
    }
    text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}

/// Creates a valgrind command whose environment is the same on all machines: only a fixed `PATH`, and a fixed
/// directory.
fn valgrind() -> Command {
    let mut command = Command::new("valgrind");
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir("/");
    command
}

fn said(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| missing(program, &error))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn missing(program: &str, error: &std::io::Error) -> String {
    format!("{program}: {error}; install it: apt-get install {program}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_callgrinds_output() {
        let text =
            "version: 1\ncreator: callgrind-3.19.0\nevents: Ir\n\nfn=(1) a\n3 20\n\ntotals: 4711\n";
        assert_eq!(total(text), Some(4711));
        assert_eq!(total(&text.replace("totals: 4711", "")), None);
        assert_eq!(total(&text.replace("events: Ir", "events: Ir Dr")), None, "not one number");
    }
}
