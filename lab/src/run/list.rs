//! Lists plans, kinds with their axes, and subjects.

use std::collections::BTreeMap;
use std::process::ExitCode;

use adit_testbed::failure::Result;

use crate::plan::{Axis, KINDS, PRESETS, Plan};
use crate::subject::{Subject, here};

/// Prints plans, kinds and subjects.
///
/// # Errors
/// A built-in plan is malformed.
pub fn run() -> Result<ExitCode> {
    println!("Plans (adit-lab run NAME):\n");
    for (name, text) in PRESETS {
        let plan = Plan::parse(name, text)?;
        println!("  {name:10} {}", plan.about);
        println!("  {:10} {} trials", "", plan.trials().len());
        let scenarios: Vec<&str> = plan.scenarios.iter().map(|s| s.name.as_str()).collect();
        println!("  {:10} {}\n", "", scenarios.join(", "));
    }
    println!("Kinds of scenario for a plan of your own (docs/lab.md), with their axes:\n");
    let mut axes = BTreeMap::new();
    for kind in KINDS {
        println!("  {:13} {}", kind.name, kind.what);
        let names: Vec<&str> = kind.axes.iter().map(|axis| axis.name()).collect();
        if !names.is_empty() {
            println!("  {:13} {}", "", names.join(", "));
        }
        axes.extend(kind.axes.iter().map(|axis: &Axis| axis.described()));
    }
    println!("\nAxes:\n");
    for (name, values) in axes {
        println!("  {name:13} {values}");
    }
    println!("\nPieces:\n\n  {}", crate::bench::piece_names().join(", "));
    println!("\nSubjects:\n");
    for subject in Subject::named() {
        let name = subject.to_string();
        match here(&subject) {
            Ok(version) => println!("  {name:13} {version}"),
            Err(why) => println!("  {name:13} NOT HERE: {why}"),
        }
    }
    println!("  {:13} adit of that git revision, built on the side", "adit@REVISION");
    Ok(ExitCode::SUCCESS)
}
