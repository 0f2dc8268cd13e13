//! The socket of the interface: its password, and programs that listen themselves.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::Scenario;
use super::{SOON, Talk};
use crate::case::{READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Result, ensure};
use crate::net::Pair;
use crate::wait::until;

/// The password of the interface, and its address in a TCP port of the loopback interface.
pub(in crate::scenario) fn password(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let (path, file) = (folder.join("management"), folder.join("password"));
    std::fs::write(&file, "secret\n")?;
    let mut configs = scenario.configs();
    configs.server(&format!("management {} unix {}", path.display(), file.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut talk = Talk::connect(&path)?;
    talk.send("signal SIGTERM")?;
    talk.wait("ENTER PASSWORD:ERROR: bad password")?;
    talk.send("secret")?;
    talk.wait("ENTER PASSWORD:SUCCESS: password is correct")?;
    talk.wait(">INFO:")?;
    ensure(server.ended()?.is_none(), || server.failure("it obeyed without the password").0)?;
    // Three wrong passwords end the conversation.
    talk.send("quit")?;
    let mut guesser = Talk::connect(&path)?;
    for _ in 0..3 {
        guesser.send("guess")?;
    }
    until("the guesser is disconnected", SOON, || Ok(guesser.read().is_err()))?;
    Ok(String::new())
}

/// A program that listens is connected to, and its end is the end of the client.
pub(in crate::scenario) fn program_that_listens(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let path = folder.join("program");
    let listener = std::os::unix::net::UnixListener::bind(&path)?;
    let mut configs = scenario.configs();
    configs.client(&format!("management {} unix\nmanagement-client", path.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    let (stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut talk =
        Talk { stream, bytes: Vec::new(), lines: VecDeque::new(), transcript: Vec::new() };
    talk.wait(">INFO:")?;
    client.wait_for(READY, SETUP_LIMIT)?;
    let state = talk.ask("state")?;
    ensure(state.concat().contains(",CONNECTED,SUCCESS,"), || format!("{state:?}"))?;
    drop(talk);
    let status = client.wait_exit(SOON)?;
    ensure(status.success(), || client.failure(&format!("it ended by {status}")).0)?;
    ensure(path.exists(), || "the program's socket is gone".to_owned())?;
    Ok(String::new())
}
