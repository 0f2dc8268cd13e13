//! The metrics of the process itself.

use std::fs;

use adit_linux::clock;
use rustix::process::{Resource, getrlimit};

use super::samples::Samples;
use super::table;

/// Adds the `process_*` metrics. Those that need /proc are left out without it, as after `chroot`.
pub(super) fn measure(samples: &mut Samples, started: u64) {
    samples.count(&table::PROCESS_START, [], started);
    if let Some(busy) = clock::process_cpu() {
        samples.real(&table::PROCESS_CPU, [], busy.as_secs_f64());
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (metric, field) in
        [(&table::PROCESS_VIRTUAL, "VmSize:"), (&table::PROCESS_MEMORY, "RssAnon:")]
    {
        if let Some(kib) = field_of(&status, field) {
            samples.count(metric, [], kib.saturating_mul(1024));
        }
    }
    if let Some(threads) = field_of(&status, "Threads:") {
        samples.count(&table::PROCESS_THREADS, [], threads);
    }
    if let Ok(list) = fs::read_dir("/proc/self/fd") {
        // The listing itself uses one.
        samples.count(&table::PROCESS_FDS, [], (list.count() as u64).saturating_sub(1));
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        samples.count(&table::PROCESS_MAX_FDS, [], limit);
    }
}

/// Returns the number in a line of `/proc/self/status`.
fn field_of(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::table::ALL;
    use super::*;

    #[test]
    fn all_metrics_of_the_process_are_known() {
        let mut samples = Samples::default();
        measure(&mut samples, 7);
        let process = ALL.iter().filter(|metric| metric.name.starts_with("process_"));
        for metric in process {
            assert!(samples.has(metric), "{}", metric.name);
        }
        let status = "VmSize:\t  100 kB\nRssAnon:\t x kB\nThreads:\t3\n";
        let fields = ["VmSize:", "RssAnon:", "Threads:", "VmRSS:"];
        assert_eq!(fields.map(|field| field_of(status, field)), [Some(100), None, Some(3), None]);
    }
}
