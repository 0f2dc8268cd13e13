//! The rules of a bridge, and their file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_bridge::Policy;
use adit_filter::lang::Summary;
use adit_filter::{Firewall, Nanos};
use adit_linux::clock;

use adit_runtime::control::{FlowTotals, Request, Response};
use adit_runtime::fault::Fault;
use adit_runtime::filter::LiveFilter;
use adit_runtime::metrics::Samples;

/// The current rules.
pub(super) struct Rules {
    file: PathBuf,
    live: LiveFilter,
}

impl Rules {
    /// Reads the rules, and compiles them for this number of workers.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not a valid rule set.
    pub(crate) fn open(file: PathBuf, workers: usize) -> Result<Self, Fault> {
        // The absolute path remains valid after a change of directory.
        let file = std::path::absolute(&file).unwrap_or(file);
        let live = LiveFilter::open(&file, Some(workers))?;
        Ok(Self { file, live })
    }

    /// Returns the policy that evaluates frames.
    pub(crate) fn policy(&self) -> Policy {
        Policy::Filter(Arc::clone(self.firewall()))
    }

    /// Returns the firewall that evaluates frames.
    pub(crate) fn firewall(&self) -> &Arc<Firewall> {
        self.live.firewall()
    }

    /// Adds verdicts and the counters of rules to the samples.
    pub(crate) fn measure(&self, samples: &mut Samples) {
        self.live.measure(samples);
    }

    /// Returns the file that contains the rules.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the number of rules.
    pub(crate) fn count(&self) -> usize {
        self.in_force().rules
    }

    fn in_force(&self) -> Summary {
        Summary::of(self.firewall().filter().ruleset())
    }

    /// Returns a summary for the log.
    pub(crate) fn summary(&self) -> String {
        let file = self.file.display();
        let Summary { rules, sees, drops, .. } = self.in_force();
        let s = if rules == 1 { "" } else { "s" };
        if sees == [false; 2] {
            format!("forwarding everything: no chain in {file} has a hook")
        } else if drops {
            format!("forwarding only what the {rules} rule{s} in {file} let pass")
        } else {
            format!("forwarding what the {rules} rule{s} in {file} do not drop")
        }
    }

    /// Returns the kinds of traffic that pass unfiltered, in a bridge that forwards frames.
    pub(crate) fn unfiltered_traffic(&self) -> Option<String> {
        (!self.firewall().filter().sees_frames()).then(|| {
            format!(
                "{}: no bridge table: frames that are no IP pass without a rule: ARP, PPPoE, MPLS and all others",
                self.file.display()
            )
        })
    }

    /// Reads the file again, and replaces all rules atomically.
    ///
    /// # Errors
    /// See [`Self::open`]. After an error, the current rules stay in force.
    pub(crate) fn reload(&mut self) -> Result<usize, Fault> {
        self.live.reread()?;
        Ok(self.count())
    }

    /// Warns if SIGHUP could not read the rule file again, once privileges have been dropped.
    pub(crate) fn warn_if_unreadable(&self) {
        if let Err(error) = adit_runtime::helper::files::open(&self.file) {
            tracing::warn!(
                "{} can no longer be read without the dropped privileges ({error}): for a reload make it readable, or \
                 send the rules with `adit filter reload FILE`",
                self.file.display()
            );
        }
    }

    /// Returns the totals of the connection table.
    pub(crate) fn connections(&self) -> FlowTotals {
        self.live.connections()
    }

    /// Answers the requests of `adit filter`. Returns `None` for any other request.
    pub(crate) fn answer(&mut self, request: &Request) -> Option<Response> {
        self.live.answer(request)
    }

    /// Logs the packets of `log` rules. Call it about once a second.
    pub(crate) fn tick(&mut self) {
        self.live.tick();
    }

    /// Removes expired flows. Returns true if there are more.
    pub(crate) fn sweep(&self) -> bool {
        self.firewall().sweep(Nanos(clock::boottime()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_a_part_of_the_connections() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fw.nft");
        std::fs::write(
            &file,
            "table inet t { chain c { type filter hook forward priority 0; } }\n",
        )
        .unwrap();
        let rules = Rules::open(file, 3).unwrap();
        assert_eq!(rules.firewall().tracker().limits().shards, 3);
    }

    #[test]
    fn what_no_rule_sees_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fw.nft");
        let table = |family: &str| {
            format!("table {family} t {{ chain c {{ type filter hook forward priority 0; }} }}\n")
        };
        for (text, said) in [
            (table("inet"), true),
            (table("bridge"), false),
            (table("inet") + &table("bridge"), false),
            (table("inet") + "table bridge u { }\n", true),
        ] {
            std::fs::write(&file, &text).unwrap();
            let rules = Rules::open(file.clone(), 1).unwrap();
            let unseen = rules.unfiltered_traffic();
            assert_eq!(
                unseen.is_some_and(|text| text.contains("ARP, PPPoE, MPLS")),
                said,
                "{text}"
            );
        }
    }
}
