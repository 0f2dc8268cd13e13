//! `adit mesh approve`: admits or refuses waiting nodes after the operator has compared their keys.

use std::collections::BTreeSet;
use std::io;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use adit_runtime::control::{MeshJoiner, MeshToken, Request, Response};
use adit_runtime::fault::Fault;
use clap::Args;

use super::{MeshSelector, show, unexpected};
use crate::text::span;
use crate::{note, print, print_json};

/// How often to check whether a node waits.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct Approve {
    /// The name of the node, or the beginning of its key's hash
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Refuse the node, and do not admit its key later
    #[arg(long, requires = "name")]
    refuse: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

pub(super) fn run(options: &Approve) -> Result<ExitCode, Fault> {
    match &options.name {
        None => {
            let waiting = show::report(&options.here)?.waiting;
            if options.json {
                print_json(&waiting)?;
            } else if waiting.is_empty() {
                print("no node waits for approval\n");
            } else {
                waiting.iter().for_each(|joiner| print(&paragraph(joiner)));
            }
        }
        Some(name) => {
            let joiner = decide(&options.here, name, options.refuse)?;
            if options.json {
                print_json(&joiner)?;
            } else {
                print(&decided(&joiner, options.refuse));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn paragraph(joiner: &MeshJoiner) -> String {
    format!(
        "{} has waited for {}; its key is\n  {}\n",
        joiner.name,
        span(joiner.waits_s),
        joiner.fingerprint
    )
}

fn decided(joiner: &MeshJoiner, is_refused: bool) -> String {
    if is_refused {
        format!("{} is refused\n", joiner.name)
    } else {
        format!("{} is admitted, and joins within seconds\n", joiner.name)
    }
}

fn decide(here: &MeshSelector, name: &str, refuse: bool) -> Result<MeshJoiner, Fault> {
    match here.ask(&Request::MeshApprove { name: name.to_owned(), refuse })? {
        Response::MeshJoiner(joiner) => Ok(joiner),
        _ => Err(unexpected()),
    }
}

/// Prompts for each node that joins with a token, until the token is used up or has expired.
pub(super) fn at_the_prompt(
    here: &MeshSelector,
    token: &MeshToken,
    uses: u32,
) -> Result<ExitCode, Fault> {
    print("Waiting for its request. After Ctrl-C, use adit mesh approve\n");
    let mut left = uses;
    let mut asked = BTreeSet::new();
    while left > 0 && crate::text::now() <= token.until {
        let waiting = show::report(here)?.waiting;
        let next = waiting
            .into_iter()
            .find(|joiner| joiner.invitation == token.invitation && !asked.contains(&joiner.key));
        let Some(joiner) = next else {
            sleep(LOOK);
            continue;
        };
        asked.insert(joiner.key.clone());
        print(&paragraph(&joiner));
        note("Does the machine itself show this key, and do you admit it? [y/N] ");
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer);
        read.map_err(|error| Fault::environment(format!("cannot read the answer: {error}")))?;
        let refuse = !is_yes(&answer);
        // The node may have given up by now, and another one may follow.
        match decide(here, &joiner.key, refuse) {
            Ok(joiner) => print(&decided(&joiner, refuse)),
            Err(fault) => note(&format!("adit: {fault}\n")),
        }
        left = left.saturating_sub(u32::from(!refuse));
    }
    Ok(ExitCode::SUCCESS)
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_admits() {
        assert!(["y\n", "yes\n", " Y \n"].into_iter().all(is_yes));
        assert!(!["", "\n", "n\n", "yep\n", "no, yes\n"].into_iter().any(is_yes));
    }

    #[test]
    fn a_waiting_node_is_shown_with_its_key() {
        let joiner = MeshJoiner {
            name: "laptop".into(),
            fingerprint: "0123 4567".into(),
            waits_s: 5,
            ..MeshJoiner::default()
        };
        assert_eq!(paragraph(&joiner), "laptop has waited for 5 s; its key is\n  0123 4567\n");
    }
}
