//! The trains of packets that a running adit reports.

use std::collections::BTreeMap;
use std::process::Command;

use adit_testbed::failure::{Context, Result};
use adit_testbed::process::output;
use serde_json::Value;

/// Histograms by their names, `sent` and `received`: how many trains had at least this many packets.
pub(super) type Trains = BTreeMap<String, BTreeMap<u32, u64>>;

/// Returns the trains since the start of the instance whose name begins like this. `status` is the command for the status of all
/// instances.
///
/// # Errors
/// There is no such instance.
pub(super) fn of(mut status: Command, instance: &str) -> Result<Trains> {
    status.arg("--json");
    let reports: Vec<Value> = serde_json::from_str(&output(status)?).context("adit's status")?;
    let is_wanted = |report: &&Value| {
        report
            .get("instance")
            .and_then(Value::as_str)
            .is_some_and(|name| name.starts_with(instance))
    };
    let report = reports.iter().find(is_wanted).context("adit's status lacks the server")?;
    let trains = report.get("trains").context("adit's status has no trains")?;
    let histogram = |key: &str| -> Result<(String, BTreeMap<u32, u64>)> {
        let counts = trains.get(key).cloned().unwrap_or_default();
        let counts = serde_json::from_value(counts).context(format!("trains {key}"))?;
        Ok((key.to_owned(), counts))
    };
    ["sent", "received"].into_iter().map(histogram).collect()
}
