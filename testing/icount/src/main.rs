//! `adit-icount`: counts the instructions of parts of the data path and compares them with the accepted baseline.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use adit_icount::count::{Conditions, instruction_counts};
use adit_icount::gate::{Baseline, Verdict};
use adit_icount::piece::{self, Piece};

const USAGE: &str = "adit-icount list                      what there is
adit-icount piece NAME --times N      do a piece's work, to be counted
adit-icount check FILE                fail if more instructions are taken than FILE has accepted
adit-icount accept FILE               count and write FILE";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["list"] => {
            piece::ALL.iter().for_each(|piece| println!("{:18} {}", piece.name, piece.what));
            Ok(ExitCode::SUCCESS)
        }
        ["piece", name, "--times", times] => run(name, times),
        ["check", file] => check(Path::new(file)),
        ["accept", file] => accept(Path::new(file)),
        _ => Err(format!("usage:\n{USAGE}")),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("adit-icount: {error}");
        ExitCode::FAILURE
    })
}

fn run(name: &str, times: &str) -> Result<ExitCode, String> {
    let times = times.parse().map_err(|_| format!("--times {times}: not a number"))?;
    piece::run(piece::find(name)?, times).map(|()| ExitCode::SUCCESS)
}

/// Counts the instructions of this program.
fn counts() -> Result<std::collections::BTreeMap<String, u64>, String> {
    let this: PathBuf =
        env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let pieces: Vec<&'static Piece> = piece::ALL.iter().collect();
    instruction_counts(&this, &pieces)
}

fn check(file: &Path) -> Result<ExitCode, String> {
    let name = file.display();
    let text = fs::read_to_string(file)
        .map_err(|error| format!("{name}: {error}; make gate-accept writes it"))?;
    let baseline = Baseline::read(&text).map_err(|error| format!("{name}: {error}"))?;
    let verdict = match baseline.differs(&Conditions::here()?) {
        Some(why) => Verdict::Skipped(why),
        None => baseline.judge(&counts()?),
    };
    match verdict {
        Verdict::Passed(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Verdict::Skipped(why) => {
            println!("gate skipped: {why}");
            // `make test` collects the names of skipped checks in this file.
            if let Some(path) = env::var_os("ADIT_SKIPPED") {
                let told = "gate: counts were accepted with another compiler or valgrind\n";
                let file = fs::File::options().append(true).create(true).open(path);
                file.and_then(|mut file| file.write_all(told.as_bytes()))
                    .map_err(|error| format!("ADIT_SKIPPED: {error}"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Verdict::Failed(text) => Err(format!("\n{text}")),
    }
}

fn accept(file: &Path) -> Result<ExitCode, String> {
    let text = Baseline::write(&Conditions::here()?, &counts()?);
    fs::write(file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
