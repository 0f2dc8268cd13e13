//! `adit postgres demo`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use adit_app_postgres::demo::{self, CommandOutput, DemoEnvironment, Progress, Report};
use adit_app_server::demo::check_machine;
use adit_runtime::demo::DemoOptions;
use adit_runtime::fault::Fault;

use crate::args::Demo;
use crate::demo::ProgressDisplay;
use crate::text::{bytes, row, table};
use crate::{note, print, print_json};

/// The number of characters of a token that are shown, because a token is secret and longer than a
/// line.
const TOKEN_SHOWN: usize = 10;
/// The width of a terminal without the margin.
const WIDTH: usize = 72;

pub(super) fn run(options: &Demo) -> Result<ExitCode, Fault> {
    let program = std::env::current_exe()
        .map_err(|error| Fault::environment(format!("cannot find this program: {error}")))?;
    let told =
        DemoOptions { hold: options.hold, duration: Duration::from_secs(options.seconds), program };
    check_machine()?;
    let mut screen = ProgressDisplay::new(options.json);
    let quiet = options.json && !std::io::stderr().is_terminal();
    let mut printed = Ok(());
    let ended = demo::run(&told, &mut |progress| match &progress {
        Progress::Step(step) => screen.show(step),
        Progress::Command(_) if quiet => {}
        Progress::Command(shown) => {
            screen.clear();
            note(&typed(shown));
        }
        Progress::Figures(report) if options.json => printed = print_json(report),
        Progress::Figures(report) => print(&figures(report)),
        Progress::Running(holding) => {
            screen.clear();
            note(&exploration_help(holding));
        }
    });
    screen.clear();
    ended.and(printed)?;
    Ok(ExitCode::SUCCESS)
}

/// Formats a command and its output, separated from the demo's own lines.
fn typed(shown: &CommandOutput) -> String {
    let output: String = shown
        .output
        .trim_end()
        .lines()
        .map(|line| format!("      {}", short(line)))
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    format!("\n    {}\n{output}\n", wrapped(&short(&shown.command)).replace('\n', "\n    "))
}

/// Breaks a long command into several lines in shell syntax.
fn wrapped(command: &str) -> String {
    let mut lines = vec![String::new()];
    for (at, part) in command.split(" --").enumerate() {
        let option = if at == 0 { part.to_owned() } else { format!("--{part}") };
        match lines.last_mut() {
            Some(line) if at == 0 || line.len() + option.len() < WIDTH => {
                line.push_str(if at == 0 { "" } else { " " });
                line.push_str(&option);
            }
            _ => lines.push(format!("        {option}")),
        }
    }
    lines.join(" \\\n")
}

/// Shortens the token in a line.
fn short(line: &str) -> String {
    let Some(at) = line.find("#adit") else { return line.to_owned() };
    let (before, token) = line.split_at(at);
    let length = token
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '#' | '-' | '_')))
        .unwrap_or(token.len());
    let rest = token.get(length..).unwrap_or_default();
    format!("{before}{}...{rest}", token.get(..TOKEN_SHOWN.min(length)).unwrap_or_default())
}

fn exploration_help(holding: &DemoEnvironment) -> String {
    let [east, west] = &holding.namespaces;
    let [at_east, at_west] = holding.addresses;
    let folder = holding.folder.display();
    format!(
        "\nEverything is up until Ctrl-C. From another terminal, as root:\n\
         \x20 ip netns exec {east} ping {at_west}\n\
         \x20 ip netns exec {west} ping {at_east}\n\
         \x20 psql -h {} -U postgres {}     then: SELECT * FROM adit.log;\n\
         \x20 adit postgres tail --dir {folder}/{}\n\
         Logs and files: {folder}\n",
        holding.socket.display(),
        holding.database,
        holding.names[1]
    )
}

fn figures(report: &Report) -> String {
    let mut rows = vec![
        row(["", "Mb/s", "CPU-s per Gb", ""]),
        row(["", "", "sending node", "receiving node"]),
    ];
    for transfer in &report.transfers {
        rows.push(vec![
            format!("TCP {} -> {}", transfer.from, transfer.to),
            format!("{:.0}", transfer.megabits_per_second),
            format!("{:.3}", transfer.sender_cpu_per_gigabit),
            format!("{:.3}", transfer.receiver_cpu_per_gigabit),
        ]);
    }
    let slow = if cfg!(debug_assertions) {
        "This build is not optimised; a release build is several times faster.\n"
    } else {
        ""
    };
    let [one, other] = report.memory;
    format!(
        "\n{}\nround trip  p50 {:.2} ms, p99 {:.2} ms ({} samples, idle)\n\
         database    {}, {} rows, {}\n\
         own memory  {} and {} (private; the program itself is shared)\n{slow}",
        table(&rows),
        report.round_trip_p50 * 1e3,
        report.round_trip_p99 * 1e3,
        report.round_trips,
        report.database,
        report.rows,
        bytes(report.bytes),
        bytes(one),
        bytes(other)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_app_postgres::demo::Transfer;

    #[test]
    fn the_figures_fit_a_terminal() {
        let transfer = |from, to| Transfer {
            from,
            to,
            megabits_per_second: 641.3,
            sender_cpu_per_gigabit: 1.0712,
            receiver_cpu_per_gigabit: 0.9698,
        };
        let report = Report {
            database: "PostgreSQL 15.18".into(),
            transfers: vec![transfer("east", "west"), transfer("west", "east")],
            round_trip_p50: 1.9e-3,
            round_trip_p99: 4e-3,
            round_trips: 512,
            rows: 1_234_567,
            bytes: 912_000_000,
            memory: [31_100_000, 32_000_000],
        };
        let text = figures(&report);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for said in ["641", "1.071", "p50 1.90 ms", "1234567 rows", "31.1 MB"] {
            assert!(text.contains(said), "{said} is missing in {text}");
        }
    }

    #[test]
    fn a_token_is_not_shown_whole() {
        let line = "adit postgres join 'postgres://db/vpn#adit1-abcdef-0123' --name x";
        assert_eq!(short(line), "adit postgres join 'postgres://db/vpn#adit1-abc...' --name x");
        assert_eq!(short("nothing to hide #1"), "nothing to hide #1");
        let long = format!("adit postgres init {} --network 10.9.0.0/24 --name x", "u".repeat(70));
        assert_eq!(
            wrapped(&long).split(" \\\n        ").last(),
            Some("--network 10.9.0.0/24 --name x")
        );
        let shown = CommandOutput { command: line.into(), output: "a\nb\n".into() };
        assert!(typed(&shown).ends_with("x\n      a\n      b\n\n"), "{}", typed(&shown));
    }
}
