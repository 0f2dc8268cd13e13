//! `adit demo`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use adit_app_server::demo::{self, DemoEnvironment, DemoReport, Progress};
use adit_runtime::demo::{DemoOptions, Step};
use adit_runtime::fault::Fault;

use crate::args::Demo;
use crate::text::{bytes, row, table};
use crate::{note, print, print_json};

/// The number of cells in the progress bar.
const BAR: usize = 24;

pub(crate) fn run(options: &Demo) -> Result<ExitCode, Fault> {
    let program = std::env::current_exe()
        .map_err(|error| Fault::environment(format!("cannot find this program: {error}")))?;
    let told =
        DemoOptions { hold: options.hold, duration: Duration::from_secs(options.seconds), program };
    let mut screen = ProgressDisplay::new(options.json);
    let mut printed = Ok(());
    let ended = demo::run(&told, &mut |progress| match &progress {
        Progress::Figures(report) if options.json => printed = print_json(report),
        Progress::Figures(report) => print(&figures(report)),
        Progress::Step(step) => screen.show(step),
        Progress::Running(holding) => {
            screen.clear();
            note(&exploration_help(holding));
        }
    });
    screen.clear();
    ended.and(printed)?;
    Ok(ExitCode::SUCCESS)
}

/// The progress display on stderr. On a terminal it is one line that is updated.
pub(crate) struct ProgressDisplay {
    terminal: bool,
    quiet: bool,
    stage: String,
    open: bool,
}

impl ProgressDisplay {
    pub(crate) fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, quiet: quiet && !terminal, stage: String::new(), open: false }
    }

    pub(crate) fn show(&mut self, step: &Step) {
        if self.quiet {
            return;
        }
        match step {
            Step::Stage(what) => {
                self.stage.clone_from(what);
                if self.terminal {
                    note(&format!("\r\x1b[K... {what}"));
                    self.open = true;
                }
            }
            Step::Done(result) => {
                self.clear();
                note(&format!("ok  {}: {result}\n", self.stage));
            }
            Step::Bulk(share, rate) => {
                if self.terminal {
                    let bar = bar(*share);
                    note(&format!("\r\x1b[K... {:<22} {bar} {rate:>6.0} Mb/s", self.stage));
                    self.open = true;
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.open) {
            note("\r\x1b[K");
        }
    }
}

fn bar(share: f64) -> String {
    // The result is within 0..=BAR, because the share is within 0..=1.
    let full = ((share.clamp(0.0, 1.0) * BAR as f64).round() as usize).min(BAR);
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full))
}

fn exploration_help(holding: &DemoEnvironment) -> String {
    let first = |addresses: &[std::net::IpAddr]| {
        addresses.first().map(ToString::to_string).unwrap_or_default()
    };
    let DemoEnvironment { server, client, folder, .. } = holding;
    let (at_server, at_client) =
        (first(&holding.server_addresses), first(&holding.client_addresses));
    let folder = folder.display();
    format!(
        "\nEverything is up until Ctrl-C. From another terminal, as root:\n\
         \x20 ip netns exec {client} ping {at_server}\n\
         \x20 ip netns exec {server} ping {at_client}\n\
         \x20 nsenter --net=/run/netns/{client}     a shell inside\n\
         \x20 adit status --dir {folder}/server\n\
         Logs and keys: {folder}\n"
    )
}

/// The advice after the demo.
const NEXT: &str = "\nNext: a server on this machine, with a profile for a laptop:\n  \
    sudo adit server up --client laptop\nThen, on the laptop, or with any OpenVPN client:\n  \
    sudo adit connect laptop.ovpn\n";

fn figures(report: &DemoReport) -> String {
    let mut rows = vec![
        row(["", "", "Mb/s", "CPU-s per Gb", "", "lost"]),
        row(["", "", "", "server", "client", ""]),
    ];
    for transfer in &report.transfers {
        let to = if transfer.from == "client" { "server" } else { "client" };
        rows.push(vec![
            transfer.protocol.into(),
            format!("{} -> {to}", transfer.from),
            format!("{:.0}", transfer.megabits_per_second),
            format!("{:.3}", transfer.server_cpu_per_gigabit),
            format!("{:.3}", transfer.client_cpu_per_gigabit),
            match transfer.protocol {
                "UDP" => format!("{:.1} %", transfer.lost * 100.0),
                _ => String::new(),
            },
        ]);
    }
    let slow = if cfg!(debug_assertions) {
        "This build is not optimised; a release build is several times faster.\n"
    } else {
        ""
    };
    format!(
        "\n{}\nround trip  p50 {:.0} us, p99 {:.0} us ({} samples, idle)\n\
         own memory  server {}, client {} (private; the program itself is shared)\n{slow}",
        table(&rows),
        report.round_trip_p50 * 1e6,
        report.round_trip_p99 * 1e6,
        report.round_trips,
        bytes(report.server_memory),
        bytes(report.client_memory)
    ) + NEXT
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_app_server::demo::Transfer;

    #[test]
    fn the_figures_fit_a_terminal() {
        let transfer = |protocol, from| Transfer {
            protocol,
            from,
            megabits_per_second: 9421.7,
            server_cpu_per_gigabit: 0.0712,
            client_cpu_per_gigabit: 0.0698,
            lost: 0.004,
        };
        let report = DemoReport {
            transfers: vec![transfer("TCP", "client"), transfer("UDP", "server")],
            round_trip_p50: 61e-6,
            round_trip_p99: 140e-6,
            round_trips: 12_345,
            server_memory: 6_100_000,
            client_memory: 5_900_000,
            ..DemoReport::default()
        };
        let text = figures(&report);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for said in ["9422", "0.071", "0.4 %", "p50 61 us", "6.1 MB"] {
            assert!(text.contains(said), "{said} is missing in {text}");
        }
    }

    #[test]
    fn the_bar_never_overflows() {
        for share in [-1.0, 0.0, 0.5, 1.0, 7.0, f64::NAN] {
            assert_eq!(bar(share).len(), BAR + 2);
        }
    }
}
