//! `adit postgres set` and `adit postgres auditor`, which change the network's settings.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use adit_app_postgres::{Audit, Durability, SettingsChange, SettingsChanged};
use adit_runtime::fault::Fault;
use clap::{Args, Subcommand, ValueHint};

use super::NodeSelector;
use crate::args::time;
use crate::print;

/// The settings that can be changed later, which `init` and `set` accept.
#[derive(Debug, Args)]
pub(crate) struct NetworkSettings {
    /// The contents that a role with access to the tables can read: full, headers, metadata or none [default of init:
    /// headers]
    #[arg(long, value_name = "POLICY")]
    pub audit: Option<Audit>,

    /// How durable a stored packet is: strict (flushed), relaxed (flushed a moment later) or volatile (lost if the
    /// database crashes) [default of init: strict]
    #[arg(long, value_name = "WHEN")]
    pub durability: Option<Durability>,

    /// The maximum total size of the kept packets of all nodes [default of init: 1GB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub retention: Option<i64>,

    /// How long packets are kept [default of init: 30d]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub retention_age: Option<Duration>,

    /// The maximum size of an IP packet in a row in bytes [default of init: 7900]
    #[arg(long, value_name = "BYTES")]
    pub packet_size: Option<usize>,
}

impl NetworkSettings {
    /// Returns the requested change.
    pub(crate) fn change(&self) -> SettingsChange {
        SettingsChange {
            audit: self.audit,
            durability: self.durability,
            retention_bytes: self.retention,
            retention_age: self.retention_age,
            packet_size: self.packet_size,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    #[command(flatten)]
    pub settings: NetworkSettings,

    #[command(flatten)]
    pub here: NodeSelector,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Auditor {
    /// Create an auditor's key, to which each new epoch's key is wrapped from now on
    #[command(after_help = "Example:
  sudo adit postgres auditor add auditor.key

The key does not open packets that were sent before.")]
    Add(AddAuditor),

    /// Stop wrapping keys to the auditor, who can still read earlier packets
    #[command(after_help = "Example:
  sudo adit postgres auditor remove

The auditor keeps the network's key; `adit postgres rekey` replaces it.")]
    Remove(RemoveAuditor),
}

#[derive(Debug, Args)]
pub(crate) struct AddAuditor {
    /// The new file for the key, which only the auditor should have
    #[arg(value_name = "NEWKEYFILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    #[command(flatten)]
    pub here: NodeSelector,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveAuditor {
    #[command(flatten)]
    pub here: NodeSelector,
}

pub(super) fn set(options: &Set) -> Result<ExitCode, Fault> {
    let paths = options.here.paths()?;
    let change = options.settings.change();
    if change == SettingsChange::default() {
        return Err(Fault::operator(
            "choose a setting: --retention, --retention-age, --audit, --durability or --packet-size; adit postgres status shows them",
        ));
    }
    print_changes(paths.name(), &adit_app_postgres::set(&paths, &change)?);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn auditor(verb: &Auditor) -> Result<ExitCode, Fault> {
    match verb {
        Auditor::Add(options) => {
            let paths = options.here.paths()?;
            let changed = adit_app_postgres::add_auditor(&paths, &options.file)?;
            print_changes(paths.name(), &changed);
            print(&format!(
                "The auditor's key is in {}: it opens every packet that is sent from now on, and holds the network's key; take it \
                 off this machine.\n",
                options.file.display()
            ));
        }
        Auditor::Remove(options) => {
            let paths = options.here.paths()?;
            print_changes(paths.name(), &adit_app_postgres::remove_auditor(&paths)?);
            print(&format!(
                "The auditor's file still contains the network's key; to give the network a new one: {}\n",
                paths.command("rekey")
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_changes(network: &str, changed: &SettingsChanged) {
    if changed.changes.is_empty() {
        return print("Nothing was changed.\n");
    }
    print(&format!("Settings {} of the network {network}:\n", changed.serial));
    for (what, from, to) in &changed.changes {
        print(&format!("  {what}: {from} -> {to}\n"));
    }
    print("Running nodes use them within a minute.\n");
}

/// Parses a size such as `64MB`, `1GB` or `512MiB` into bytes.
fn size(text: &str) -> Result<i64, String> {
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit: i64 = match unit {
        "MB" | "M" => 1_000_000,
        "GB" | "G" => 1_000_000_000,
        "TB" | "T" => 1_000_000_000_000,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err("write a size like 500MB, 1GB or 2GiB".into()),
    };
    let size = number.parse::<i64>().ok().and_then(|number| number.checked_mul(unit));
    size.filter(|size| *size > 0).ok_or_else(|| "write a size like 500MB, 1GB or 2GiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!((size("1GB"), size("512MiB")), (Ok(1_000_000_000), Ok(512 << 20)));
        assert_eq!(
            (time("30d"), time("90s")),
            (Ok(Duration::from_secs(2_592_000)), Ok(Duration::from_secs(90)))
        );
        for bad in ["", "1", "GB", "0GB", "-1GB", "1gb", "99999999999999TB", "1.5GB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        for bad in ["", "1", "d", "0s", "-1s", "1w", "99999999999d"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
