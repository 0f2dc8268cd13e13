//! `adit mesh ping`.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use adit_runtime::control::{MeshPong, Request, Response};
use adit_runtime::fault::Fault;
use clap::Args;
use serde::Serialize;

use super::{MeshSelector, show, unexpected};
use crate::{note, print, print_json};

/// The time limit for establishing a session with the node.
const CONNECT: Duration = Duration::from_secs(10);

/// The time limit for each answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How often to check whether an answer has arrived. The node itself measures the time.
const LOOK: Duration = Duration::from_millis(20);

/// The pause between two pings.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// The node's name, or the beginning of its key's hash
    #[arg(value_name = "NAME")]
    name: String,

    /// The number of pings
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

/// The pings and their answers.
#[derive(Debug, Serialize)]
struct Outcome {
    name: String,
    sent: u32,
    answers: Vec<Answer>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Answer {
    rtt_ms: f64,
    route: String,
    via: Option<String>,
}

pub(super) fn run(options: &Ping) -> Result<ExitCode, Fault> {
    let mut outcome = Outcome { name: options.name.clone(), sent: 0, answers: Vec::new() };
    for number in 0..options.count {
        if number > 0 {
            sleep(PAUSE);
        }
        outcome.sent = outcome.sent.saturating_add(1);
        match one(options)? {
            Some(answer) => {
                if !options.json {
                    print(&line(&options.name, &answer));
                }
                outcome.answers.push(answer);
            }
            None if options.json => {}
            None => print(&format!("no answer from {}\n", options.name)),
        }
    }
    if options.json {
        print_json(&outcome)?;
    } else if outcome.answers.is_empty() {
        note(&format!(
            "adit: {} does not answer: it may be off, or no relay has a session with it; see adit mesh path {}\n",
            options.name, options.name
        ));
    } else if outcome.sent > 1 {
        print(&summary(&outcome));
    }
    let is_reached = !outcome.answers.is_empty();
    Ok(if is_reached { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ask(options: &Ping, ping: Option<u64>) -> Result<MeshPong, Fault> {
    match options.here.ask(&Request::MeshPing { name: options.name.clone(), ping })? {
        Response::MeshPong(pong) => Ok(*pong),
        _ => Err(unexpected()),
    }
}

/// Sends one ping, once there is a session, and waits for the answer.
fn one(options: &Ping) -> Result<Option<Answer>, Fault> {
    let began = Instant::now();
    let mut ping = None;
    loop {
        let pong = ask(options, ping)?;
        if let (Some(rtt_ms), Some(route)) = (pong.rtt_ms, pong.route) {
            return Ok(Some(Answer { rtt_ms, route, via: pong.via }));
        }
        ping = ping.or(pong.ping);
        let patience = if show::is_reached(&pong.peer) { ANSWER } else { CONNECT };
        if began.elapsed() > patience {
            return Ok(None);
        }
        sleep(LOOK);
    }
}

fn line(name: &str, answer: &Answer) -> String {
    let path = match (answer.route.as_str(), &answer.via) {
        ("direct", Some(to)) => format!("direct, {to}"),
        ("relay", Some(relay)) => format!("through {relay}"),
        (other, _) => other.to_owned(),
    };
    format!("answer from {name} in {:.1} ms: {path}\n", answer.rtt_ms)
}

fn summary(outcome: &Outcome) -> String {
    let all = || outcome.answers.iter().map(|answer| answer.rtt_ms);
    let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    format!(
        "{} of {} answered, in {least:.1} to {most:.1} ms\n",
        outcome.answers.len(),
        outcome.sent
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_shows_its_path() {
        let direct =
            Answer { rtt_ms: 14.25, route: "direct".into(), via: Some("203.0.113.7:1194".into()) };
        assert_eq!(
            line("laptop", &direct),
            "answer from laptop in 14.2 ms: direct, 203.0.113.7:1194\n"
        );
        let relayed = Answer { rtt_ms: 30.0, route: "relay".into(), via: Some("hub".into()) };
        assert_eq!(line("laptop", &relayed), "answer from laptop in 30.0 ms: through hub\n");
        let outcome = Outcome { name: "laptop".into(), sent: 3, answers: vec![relayed, direct] };
        assert_eq!(summary(&outcome), "2 of 3 answered, in 14.2 to 30.0 ms\n");
    }
}
