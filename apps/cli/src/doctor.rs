//! `adit doctor`.

use std::process::ExitCode;

use adit_app_server::doctor::{Finding, Level, examine};
use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;

use crate::args::Doctor;
#[cfg(feature = "mesh")]
use crate::mesh::doctor::examine as examine_meshes;
use crate::text::wrapped;
use crate::{note, paths, print, print_json};
#[cfg(feature = "tinc")]
use adit_app_tinc::ALL_NETS;

pub(crate) fn run(options: &Doctor) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let mut findings = all(&paths, options);
    if options.fix {
        let mut repaired = false;
        for finding in findings.iter().filter(|finding| finding.fixable) {
            if let Some(worked) = finding.repair() {
                repaired |= worked;
                let what = if worked { "repaired" } else { "could not repair" };
                note(&format!("{what}: {}\n", finding.what));
            }
        }
        if repaired {
            findings = all(&paths, options);
        }
    }
    if options.json {
        print_json(&findings)?;
    } else {
        findings.iter().for_each(|finding| print(&paragraph(finding)));
        print(&summary(&findings));
    }
    let bad = findings.iter().any(|finding| finding.level == Level::Problem);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Examines this machine, its meshes and its tinc nets.
fn all(paths: &Paths, options: &Doctor) -> Vec<Finding> {
    let mut findings = examine(paths);
    findings.extend(examine_meshes(options.location.dir.as_deref()));
    #[cfg(feature = "tinc")]
    if options.location.dir.is_none() {
        findings.extend(crate::tinc::status::examine(std::path::Path::new(ALL_NETS)));
    }
    findings
}

#[cfg(not(feature = "mesh"))]
fn examine_meshes(_: Option<&std::path::Path>) -> Vec<Finding> {
    Vec::new()
}

/// Formats a finding with its remedies below it.
pub(crate) fn paragraph(finding: &Finding) -> String {
    let mark = match finding.level {
        Level::Fine => "ok",
        Level::Warning => "WARN",
        Level::Problem => "BAD",
    };
    let mut text = wrapped(&format!("{mark:<5}{:<12}", finding.check), &finding.what);
    for line in &finding.remedy {
        text.push_str(&wrapped(&format!("{:17}-> ", ""), line));
    }
    text
}

fn summary(findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let number = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let (problems, warnings) = (count(Level::Problem), count(Level::Warning));
    if problems + warnings == 0 {
        return "\nAll is well.\n".into();
    }
    let fixable = findings.iter().filter(|finding| finding.fixable).count();
    let hint = match fixable {
        0 => String::new(),
        _ => format!("; `adit doctor --fix` repairs {fixable}"),
    };
    format!("\n{}, {}{hint}.\n", number(problems, "problem"), number(warnings, "warning"))
}
