//! `verify`, `export` and `tail`: commands that read the log of packets.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use adit_app_postgres::log::{self, ExportOptions, ExportReport, LogAccess, TailOptions};
use adit_runtime::fault::Fault;
use clap::{Args, ValueHint};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::NodeSelector;
use super::members::SecretWord;
use crate::{note, print};

/// The reader of the log, and the streams to read.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// The database URL of a role that may read all tables, to use instead of this machine's node; - reads it from
    /// stdin
    #[arg(long, value_name = "URL")]
    pub url: Option<SecretWord>,

    /// The file with the auditor's key, from `init --auditor`
    #[arg(long, value_name = "FILE", requires = "url", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,

    /// Read only packets from this node
    #[arg(long, value_name = "NODE")]
    pub from: Option<String>,

    /// Read only packets to this node
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,

    /// Read only the stream with this number
    #[arg(long, value_name = "NUMBER")]
    pub stream: Option<i32>,
}

impl LogArgs {
    fn access(self, here: &NodeSelector) -> Result<LogAccess, Fault> {
        let access = match self.url {
            Some(url) => LogAccess::of_auditor(&url.read()?, self.key)?,
            None => LogAccess::of_node(&here.paths()?)?,
        };
        Ok(access.restricted_to(self.from, self.to, self.stream))
    }
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub log: LogArgs,

    #[command(flatten)]
    pub here: NodeSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The start: 10m, 2h or 3d ago, or a time such as 2026-05-01T10:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: i64,

    /// The end, in the same form [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub until: Option<i64>,

    /// The file for the packets, as pcapng; - for stdout
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub pcapng: PathBuf,

    #[command(flatten)]
    pub log: LogArgs,

    #[command(flatten)]
    pub here: NodeSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// The number of packets to print, counted from the last one
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    pub lines: u32,

    /// Continue with new packets
    #[arg(short, long)]
    pub follow: bool,

    #[command(flatten)]
    pub log: LogArgs,

    /// The name of the network on this machine, if it is in several
    #[arg(long, value_name = "NAME")]
    pub network_name: Option<String>,

    /// Use files below this directory instead of in /etc/adit, /var/lib/adit and /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// Parses a time into microseconds since 1970.
fn moment(text: &str) -> Result<i64, String> {
    const BAD: &str = "write a time like 10m, 2h, 3d or 2026-05-01T10:00:00Z";
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        return i64::try_from(time.unix_timestamp_nanos() / 1000).map_err(|_| BAD.into());
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).ok_or(BAD)?;
    let (number, unit) = text.split_at(end);
    let unit: i64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(BAD.into()),
    };
    let ago = number.parse::<u32>().map_err(|_| BAD)?;
    let now = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
    let now = i64::try_from(now).map_err(|_| BAD)?;
    Ok(now.saturating_sub(i64::from(ago).saturating_mul(unit).saturating_mul(1_000_000)))
}

pub(super) fn verify(options: Verify) -> Result<ExitCode, Fault> {
    let access = options.log.access(&options.here)?;
    let verified = log::verify(&access, &mut |line| print(&format!("{line}\n")))?;
    let all = verified.all;
    let rows = if all.rows == 1 { "row" } else { "rows" };
    let streams = if verified.streams == 1 { "stream" } else { "streams" };
    let of = format!("{} {rows} of {} {streams}", all.rows, verified.streams);
    print(&match all.findings {
        0 => format!("{of}: nothing found.\n"),
        1 => format!("{of}: 1 finding.\n"),
        found => format!("{of}: {found} findings.\n"),
    });
    Ok(if all.findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn export(options: Export) -> Result<ExitCode, Fault> {
    let access = options.log.access(&options.here)?;
    let wanted = ExportOptions { since: options.since, until: options.until.unwrap_or(i64::MAX) };
    let mut say = |line: &str| note(&format!("{line}\n"));
    let stdout = options.pcapng.as_os_str() == "-";
    let done = if stdout {
        log::export(&access, wanted, &mut io::stdout().lock(), &mut say)?
    } else {
        let path = options.pcapng.display();
        let file = File::create(&options.pcapng);
        let mut file =
            file.map_err(|error| Fault::operator(format!("cannot write {path}: {error}")))?;
        let done = log::export(&access, wanted, &mut file, &mut say)?;
        file.flush().map_err(|error| Fault::environment(format!("writing {path}: {error}")))?;
        done
    };
    note(&format!("{}\n", summary(done)));
    Ok(ExitCode::SUCCESS)
}

/// Summarizes the written and omitted packets in one line.
fn summary(done: ExportReport) -> String {
    let mut words = format!("{} packets", done.proven + done.claimed + done.headers);
    for (count, what) in [
        (done.claimed, "not proven, because a key is missing"),
        (done.headers, "only headers, because their packets are sealed"),
    ] {
        if count > 0 {
            words.push_str(&format!(", {count} of them {what}"));
        }
    }
    if done.sealed > 0 {
        words.push_str(&format!("; left out: {} sealed", done.sealed));
    }
    if done.forged > 0 {
        let forged = done.forged;
        words.push_str(&format!("; left out: {forged} not as sent (see adit postgres verify)"));
    }
    if done.expired > 0 {
        words.push_str(&format!("; leaves that expired meanwhile: {}", done.expired));
    }
    words.push('.');
    words
}

pub(super) fn tail(options: Tail) -> Result<ExitCode, Fault> {
    let here = NodeSelector { network_name: options.network_name, dir: options.dir };
    let access = options.log.access(&here)?;
    let wanted = TailOptions { lines: options.lines, follow: options.follow };
    log::tail(&access, wanted, &mut io::stdout().lock(), &mut |line| note(&format!("{line}\n")))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_so_long_ago() {
        assert_eq!(moment("1970-01-01T00:00:01Z"), Ok(1_000_000));
        assert_eq!(moment("1970-01-01T01:00:00+01:00"), Ok(0));
        let (minutes, hours) = (moment("60m").unwrap(), moment("1h").unwrap());
        assert!(hours.abs_diff(minutes) < 60_000_000);
        assert!(moment("2d").unwrap() < hours);
        for bad in ["", "10", "m", "10 m", "-5m", "10w", "10mm", "yesterday", "10é", "99999999999d"]
        {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_was_left_out_is_said() {
        let done = ExportReport { proven: 3, ..ExportReport::default() };
        assert_eq!(summary(done), "3 packets.");
        let done = ExportReport { headers: 2, sealed: 4, forged: 1, ..ExportReport::default() };
        assert_eq!(
            summary(done),
            "2 packets, 2 of them only headers, because their packets are sealed; left out: 4 sealed; left out: 1 not as sent (see \
             adit postgres verify)."
        );
    }
}
