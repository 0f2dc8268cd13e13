//! iperf3, the usual tool for such measurements.

use std::net::IpAddr;
use std::time::Duration;

use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::net::Namespace;
use adit_testbed::process::Daemon;
use serde_json::Value;

use super::{Edge, Measured, Window};
use crate::record::Flow;

/// The time limit for the server to listen, and for the client beyond the test's own time.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs one TCP stream with iperf3 from `from` to `to`, whose server listens at `address`, and returns the receiver's
/// figure. With `reverse` the data flows the other way, over a connection that `from` still makes. Warm-up and length
/// are rounded up to whole seconds, the only unit that iperf3 accepts; the edges are approximate.
///
/// # Errors
/// iperf3 is missing, failed or took too long; the error includes its output.
pub fn iperf3(
    from: &Namespace,
    to: &Namespace,
    address: IpAddr,
    window: &Window,
    reverse: bool,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<Measured> {
    let whole =
        |time: Duration| Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0));
    let (warmup, length) = (whole(window.warmup), whole(window.length).max(Duration::from_secs(1)));
    let address = address.to_string();
    let mut command = to.command("iperf3");
    command.args(["--server", "--one-off", "--forceflush", "--bind", &address]);
    let mut server = Daemon::spawn("iperf3's server", command)?;
    server.wait_for("listening", LIMIT)?;
    let mut command = from.command("iperf3");
    command.args(["--client", &address, "--json", "--time", &length.as_secs().to_string()]);
    command.args(["--omit", &warmup.as_secs().to_string(), "--connect-timeout", "10000"]);
    if reverse {
        command.arg("--reverse");
    }
    let mut client = Daemon::spawn("iperf3's client", command)?;
    std::thread::sleep(warmup);
    edge(Edge::Begin)?;
    std::thread::sleep(length);
    edge(Edge::End)?;
    let status = client.wait_exit(LIMIT)?;
    // The log is complete when its thread has read the pipe to the end, which happens soon.
    let report =
        whole_report(&client).ok_or_else(|| client.failure(&format!("ended with {status}")))?;
    let (bytes, seconds) = figures(&report).map_err(|why| client.failure(&why.0))?;
    let name = if reverse { "down" } else { "up" }.to_owned();
    let mut measured = Measured { seconds, ..Measured::default() };
    if bytes == 0 {
        measured.invalid.push(format!("flow {name} carried nothing"));
    }
    measured.flows.push(Flow { name, bytes, start: 0.0, coverage: 1.0 });
    Ok(measured)
}

/// Returns bytes and seconds by the receiver's count, from a client that ran with JSON output and has ended.
///
/// # Errors
/// The client failed; the error includes its output.
pub fn iperf3_figures(client: &Daemon) -> Result<(u64, f64)> {
    figures(&whole_report(client).context("it gave no report")?)
}

/// Returns the client's output, once all of it has been read from the pipe.
fn whole_report(client: &Daemon) -> Option<Value> {
    let mut tries = (0..100).map(|_| serde_json::from_str(&client.log()).ok());
    tries.find_map(|report| {
        if report.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        report
    })
}

/// Returns bytes and seconds by the receiver's count.
fn figures(report: &Value) -> Result<(u64, f64)> {
    if let Some(error) = report.get("error").and_then(Value::as_str) {
        return Err(Failure(error.to_owned()));
    }
    let at = |pointer: &str| report.pointer(pointer).context(format!("no {pointer} in its report"));
    let bytes = at("/end/sum_received/bytes")?.as_u64().context("its bytes are no count")?;
    let seconds = at("/end/sum_received/seconds")?.as_f64().context("its seconds are no number")?;
    Ok((bytes, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_receivers_figures_and_not_the_senders() {
        let report = r#"{"end":{"sum_sent":{"bytes":900,"seconds":2.0},"sum_received":{"bytes":800,"seconds":2.5}}}"#;
        assert_eq!(figures(&serde_json::from_str(report).unwrap()).unwrap(), (800, 2.5));
    }

    #[test]
    fn says_what_iperf3_says() {
        let report = r#"{"start":{},"error":"unable to connect to server: Connection refused"}"#;
        let failure = figures(&serde_json::from_str(report).unwrap()).unwrap_err();
        assert!(failure.0.contains("Connection refused"));
        assert!(figures(&Value::Null).unwrap_err().0.contains("sum_received"));
    }
}
