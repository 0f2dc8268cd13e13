//! A first net of tinc: two machines, one of which the other finds by its name.

use super::super::background::prepare;
use super::*;
use crate::wait::until;

/// The page, and the heading of the guide in it.
const PAGE: &str = "docs/tinc.md";
const GUIDE: &str = "## A first net in five minutes\n";

/// The machine on which a command is entered. `Both`: on each.
#[derive(Copy, Clone, PartialEq)]
enum At {
    Alice,
    Bob,
    Both,
}

use At::{Alice, Bob, Both};

/// The commands of the guide in its order, without the remarks behind `#`.
const NET: &[(At, &str, &str)] = &[
    (Alice, "sudo adit tinc -n office init alice", ""),
    (Alice, "sudo adit tinc -n office add Address vpn.example.net", ""),
    (Alice, "sudo adit tinc -n office add Subnet 10.20.0.1", ""),
    (Bob, "sudo adit tinc -n office init bob", ""),
    (Bob, "sudo adit tinc -n office add Subnet 10.20.0.2", ""),
    (Bob, "sudo adit tinc -n office add ConnectTo alice", ""),
    (Alice, "adit tinc -n office export | ssh bob sudo adit tinc -n office import", "1"),
    (Bob, "adit tinc -n office export | ssh alice sudo adit tinc -n office import", "1"),
    (Both, "sudo adit tinc -n office start", ""),
    (Bob, "ping 10.20.0.1", "64 bytes from 10.20.0.1"),
    (Bob, "sudo adit tinc -n office info alice", "directly with UDP"),
    (Both, "sudo adit tinc -n office top", "alice"),
];

/// The commands in the text of the guide.
const IN_TEXT: &[(At, &str)] =
    &[(Both, "sudo adit tinc -n office edit tinc-up"), (Both, "sudo adit tinc -n office fsck")];

/// The guide in the page, word for word.
pub(in super::super::super) fn tinc(scenario: &Scenario<'_>) -> Result<String> {
    let name = "guides/tinc";
    let Some(root) = programs(name, scenario) else { return Ok("SKIPPED".into()) };
    let page = fs::read_to_string(PAGE).context(PAGE)?;
    let guide = page.split_once(GUIDE).and_then(|(_, rest)| rest.split("\n## ").next());
    let guide = guide.context("the page has no such guide")?;
    let commands = guide.lines().filter_map(|line| line.strip_prefix("    "));
    let commands: Vec<&str> =
        commands.map(|line| line.split("  ").next().unwrap_or(line)).collect();
    let known: Vec<&str> = NET.iter().map(|(_, command, _)| *command).collect();
    ensure(commands == known, || format!("{PAGE} has {commands:#?}, and the test {known:#?}"))?;
    for (_, command) in IN_TEXT {
        ensure(guide.contains(&format!("`{command}`")), || format!("{PAGE} has no {command}"))?;
    }
    let script = guide.split_once("```sh\n").and_then(|(_, rest)| rest.split("```").next());
    let script = script.context("no script")?;

    let mut pair = Pair::new()?;
    let [at_alice, at_bob] = prepare(scenario, &mut pair, &root)?;
    settle(&pair.server, &at_alice)?;
    settle(&pair.client, &at_bob)?;
    let desk = |namespace| Desk { namespace, systemd: None, device: None };
    let (alice, bob) = (desk(&pair.server), desk(&pair.client));
    let (before, after) = NET.split_at(8);
    for (at, command, shows) in before {
        let (here, there) = if *at == Bob { (bob, alice) } else { (alice, bob) };
        follow(here, there, command, shows)?;
    }
    // The text of the page is what the operator enters in the editor.
    for (desk, etc, address) in [(alice, &at_alice, "10.20.0.1"), (bob, &at_bob, "10.20.0.2")] {
        fs::write(etc.join("tinc-up.text"), script.replace("10.20.0.1", address))?;
        let editor = "VISUAL='cp /etc/tinc-up.text' ";
        let edit = IN_TEXT.first().map(|(_, command)| *command).unwrap_or_default();
        desk.run(&edit.replace("sudo ", &format!("sudo env {editor}")))?;
        desk.run("sudo adit tinc -n office fsck")?;
    }
    let done = after.iter().try_for_each(|(at, command, shows)| {
        let desks = [(Alice, alice), (Bob, bob)];
        let here = desks.iter().filter(|(machine, _)| at == machine || *at == Both);
        here.clone().try_for_each(|(_, desk)| later(*desk, command, shows))
    });
    for desk in [alice, bob] {
        desk.run("sudo adit tinc -n office stop")?;
    }
    done.map(|()| String::new())
}

/// Runs a command, whose second half is perhaps for the other machine.
fn follow(here: Desk<'_>, there: Desk<'_>, command: &str, shows: &str) -> Result<()> {
    let said = match command.split_once(" | ssh ") {
        None => here.run(command)?,
        Some((first, second)) => {
            let text = here.run(first)?;
            let (_, second) = second.split_once(' ').context("no command")?;
            let mut shell = there.namespace.command("sh");
            shell.args(["-c", &format!("{second} 2>&1")]);
            crate::process::run_with_input(shell, text)?
        }
    };
    ensure(said.contains(shows), || format!("$ {command}\nlacks {shows:?}:\n{said}"))
}

/// Runs a command until it shows a text: connections take a moment.
fn later(desk: Desk<'_>, command: &str, shows: &str) -> Result<()> {
    let once = command.replace("ping ", "ping -c 1 -W 1 ");
    let mut said = String::new();
    until(command, SETUP_LIMIT, || {
        said = desk.run(&once).unwrap_or_else(|failure| failure.0);
        Ok(said.contains(shows))
    })
    .map_err(|e| format!("$ {command}\n{e}\n{said}").into())
}
