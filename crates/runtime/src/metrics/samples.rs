//! Values of metrics, and their text in the OpenMetrics format.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use super::table::{ALL, Kind, Metric};

/// The upper bounds of the buckets of a [`Durations`], in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A text format.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics, version 1.0.
    OpenMetrics,
    /// The older format of Prometheus, version 0.0.4. The name of a family is that of its samples, and there are no units.
    Prometheus,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durations {
    /// The last bucket has no upper bound.
    buckets: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Durations {
    /// Counts a duration.
    pub fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = BOUNDS.iter().take_while(|bound| seconds > **bound).count();
        if let Some(bucket) = self.buckets.get_mut(at) {
            *bucket = bucket.saturating_add(1);
        }
        self.sum = self.sum.saturating_add(duration);
    }

    /// Returns the histogram with its bounds.
    fn histogram(&self) -> Histogram {
        Histogram {
            bounds: BOUNDS.to_vec(),
            buckets: self.buckets.to_vec(),
            sum: self.sum.as_secs_f64(),
        }
    }
}

/// The numbers of observations in each bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    /// The upper bounds of all buckets but the last.
    pub(super) bounds: Vec<f64>,
    /// The number of observations in each bucket alone.
    pub(super) buckets: Vec<u64>,
    /// The sum of all observations.
    pub(super) sum: f64,
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Integer(u64),
    Real(f64),
    Histogram(Histogram),
}

/// The samples of one scrape, by metric.
#[derive(Debug, Default)]
pub struct Samples {
    families: BTreeMap<usize, Vec<(Vec<String>, Value)>>,
}

impl Samples {
    /// Adds an integer. The labels have the order of the table.
    pub fn count<const N: usize>(
        &mut self,
        metric: &'static Metric,
        labels: [&str; N],
        value: u64,
    ) {
        self.add(metric, &labels, Value::Integer(value));
    }

    /// Adds a real number.
    pub fn real<const N: usize>(&mut self, metric: &'static Metric, labels: [&str; N], value: f64) {
        self.add(metric, &labels, Value::Real(value));
    }

    /// Adds a histogram of durations.
    pub fn durations<const N: usize>(
        &mut self,
        metric: &'static Metric,
        labels: [&str; N],
        value: &Durations,
    ) {
        self.add(metric, &labels, Value::Histogram(value.histogram()));
    }

    pub(super) fn histogram<const N: usize>(
        &mut self,
        metric: &'static Metric,
        labels: [&str; N],
        value: Histogram,
    ) {
        self.add(metric, &labels, Value::Histogram(value));
    }

    fn add(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let position = ALL.iter().position(|known| std::ptr::eq(*known, metric));
        let Some(position) = position else { return };
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.families.entry(position).or_default().push((labels, value));
    }

    /// Returns whether a metric has a sample, for tests.
    pub fn has(&self, metric: &'static Metric) -> bool {
        ALL.iter()
            .position(|known| std::ptr::eq(*known, metric))
            .is_some_and(|position| self.families.contains_key(&position))
    }

    /// Formats all samples in the OpenMetrics text format.
    pub fn text(&self) -> String {
        self.text_as(Format::OpenMetrics)
    }

    /// Formats all samples.
    pub(super) fn text_as(&self, format: Format) -> String {
        let samples: usize = self.families.values().map(Vec::len).sum();
        let mut text = String::with_capacity(samples.saturating_mul(80));
        // Writing to a String cannot fail.
        let _ = self.write(&mut text, format);
        text
    }

    fn write(&self, out: &mut String, format: Format) -> fmt::Result {
        let open = format == Format::OpenMetrics;
        for (position, samples) in &self.families {
            let Some(metric) = ALL.get(*position) else { continue };
            let (name, kind) = match metric.kind {
                kind if open => (metric.name.to_owned(), kind),
                Kind::Info => (metric.sample_name(), Kind::Gauge),
                kind => (metric.sample_name(), kind),
            };
            writeln!(out, "# HELP {name} {}", metric.help)?;
            writeln!(out, "# TYPE {name} {}", kind.name())?;
            if open && !metric.unit.is_empty() {
                writeln!(out, "# UNIT {name} {}", metric.unit)?;
            }
            for (labels, value) in samples {
                sample(out, metric, labels, value)?;
            }
        }
        if open {
            out.push_str("# EOF\n");
        }
        Ok(())
    }
}

fn sample(out: &mut String, metric: &Metric, labels: &[String], value: &Value) -> fmt::Result {
    let pairs: Vec<(&str, &str)> =
        metric.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
    let histogram = match value {
        Value::Integer(_) | Value::Real(_) => {
            out.push_str(metric.name);
            out.push_str(metric.kind.suffix());
            write_labels(out, &pairs)?;
            return match value {
                Value::Integer(value) => writeln!(out, " {value}"),
                Value::Real(value) => writeln!(out, " {value}"),
                Value::Histogram(_) => Ok(()),
            };
        }
        Value::Histogram(histogram) => histogram,
    };
    debug_assert_eq!(metric.kind, Kind::Histogram, "{}", metric.name);
    let mut total: u64 = 0;
    let bounds = histogram.bounds.iter().map(|bound| format!("{bound:?}"));
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(&histogram.buckets) {
        total = total.saturating_add(*count);
        write!(out, "{}_bucket", metric.name)?;
        let with_bound: Vec<(&str, &str)> =
            pairs.iter().copied().chain([("le", bound.as_str())]).collect();
        write_labels(out, &with_bound)?;
        writeln!(out, " {total}")?;
    }
    write!(out, "{}_count", metric.name)?;
    write_labels(out, &pairs)?;
    writeln!(out, " {total}")?;
    write!(out, "{}_sum", metric.name)?;
    write_labels(out, &pairs)?;
    writeln!(out, " {}", histogram.sum)
}

/// Writes `{name="value",...}`, or nothing without labels.
pub(super) fn write_labels(out: &mut String, labels: &[(&str, &str)]) -> fmt::Result {
    for (at, (name, value)) in labels.iter().enumerate() {
        out.push_str(if at == 0 { "{" } else { "," });
        write!(out, "{name}=\"")?;
        for c in value.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                // A name comes from a certificate, and may end up on a terminal.
                c if c.is_control() => out.push('\u{fffd}'),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    if !labels.is_empty() {
        out.push('}');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    #[test]
    fn the_text_has_help_type_unit_and_samples() {
        let mut samples = Samples::default();
        samples.count(&table::REKEYS, ["success"], 3);
        samples.count(&table::PATH_MTU, ["a\"b\\c\nd\u{1b}[2J"], 1500);
        samples.real(&table::PROCESS_CPU, [], 1.5);
        let expected = "\
# HELP adit_path_mtu_bytes The largest IP packet that the path to the peer carries unfragmented.
# TYPE adit_path_mtu_bytes gauge
# UNIT adit_path_mtu_bytes bytes
adit_path_mtu_bytes{peer=\"a\\\"b\\\\c\\nd\u{fffd}[2J\"} 1500
# HELP adit_rekeys Renegotiations of data keys that ended.
# TYPE adit_rekeys counter
adit_rekeys_total{result=\"success\"} 3
# HELP process_cpu_seconds CPU time of the process.
# TYPE process_cpu_seconds counter
# UNIT process_cpu_seconds seconds
process_cpu_seconds_total 1.5
# EOF
";
        assert_eq!(samples.text(), expected);
    }

    #[test]
    fn the_older_format_declares_the_names_of_the_samples() {
        let mut samples = Samples::default();
        samples.count(&table::BUILD, ["1", "abc"], 1);
        samples.real(&table::PROCESS_CPU, [], 1.5);
        let expected = "\
# HELP adit_build_info The version of the program, and the commit of its source, which only packages know.
# TYPE adit_build_info gauge
adit_build_info{version=\"1\",revision=\"abc\"} 1
# HELP process_cpu_seconds_total CPU time of the process.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
";
        assert_eq!(samples.text_as(Format::Prometheus), expected);
    }

    #[test]
    fn a_histogram_is_cumulative_and_has_count_and_sum() {
        let mut durations = Durations::default();
        for ms in [1, 2, 100, 60_000] {
            durations.record(Duration::from_millis(ms));
        }
        let mut samples = Samples::default();
        samples.durations(&table::AUTH_DURATION, ["authorize"], &durations);
        let text = samples.text();
        for line in [
            "adit_auth_duration_seconds_bucket{kind=\"authorize\",le=\"0.001\"} 1\n",
            "adit_auth_duration_seconds_bucket{kind=\"authorize\",le=\"0.005\"} 2\n",
            "adit_auth_duration_seconds_bucket{kind=\"authorize\",le=\"0.1\"} 3\n",
            "adit_auth_duration_seconds_bucket{kind=\"authorize\",le=\"10.0\"} 3\n",
            "adit_auth_duration_seconds_bucket{kind=\"authorize\",le=\"+Inf\"} 4\n",
            "adit_auth_duration_seconds_count{kind=\"authorize\"} 4\n",
            "adit_auth_duration_seconds_sum{kind=\"authorize\"} 60.103\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
