//! Tests of a token that a program gives its client.

use super::Scenario;
use super::server_hooks::{PASSWORD, login, meanwhile, read, script};
use crate::case::{SETUP_LIMIT, rekeys};
use crate::failure::{Result, ensure};
use crate::peer::Program;
use crate::wait::until;

/// `client-connect` pushes a token, with which the client authenticates in renegotiations. The check of passwords gets it.
pub(super) fn of_client_connect(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let check = script(
        scenario,
        "check",
        "{ read -r name; read -r password; } < \"$1\"\nprintf '%s\\n' \"$password\" >> $OUT/passwords",
    )?;
    let connect = script(scenario, "connect", "echo 'push \"auth-token granted\"' > \"$1\"")?;
    configs.server(&format!(
        "script-security 2\nauth-user-pass-verify {check} via-file\nclient-connect {connect}\nreneg-sec 5\nhand-window 4"
    ));
    configs.client(&login(scenario, PASSWORD)?);
    configs.client("reneg-sec 0");
    let tunnel = scenario.tunnel(&configs)?;
    until("the keys are renegotiated twice", SETUP_LIMIT, || Ok(rekeys(&tunnel.server) >= 2))
        .map_err(|f| meanwhile(&tunnel.server.failure(&f.0).0, &tunnel.client))?;
    tunnel.ping_all(4)?;
    let passwords = read(scenario, "passwords");
    let mut lines = passwords.lines();
    ensure(lines.next() == Some(PASSWORD), || format!("not the password: {passwords}"))?;
    let tokens = lines.filter(|line| *line == "granted").count();
    ensure(tokens >= 2, || tunnel.client.failure(&format!("not the token: {passwords}")).0)?;
    let ends = [(scenario.server, &tunnel.server), (scenario.client, &tunnel.client)];
    for (program, daemon) in ends.iter().filter(|(program, _)| matches!(program, Program::Adit(_)))
    {
        let hidden = !daemon.log().contains("granted");
        ensure(hidden, || {
            daemon.failure(&format!("{}: the token is in the log", program.label())).0
        })?;
    }
    Ok(format!("{tokens} renegotiations"))
}
