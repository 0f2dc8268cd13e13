//! A server whose management client decides about its clients (`management-client-auth`).

use std::path::Path;

use super::super::Scenario;
use super::{SOON, Shown, Talk, plain, same};
use crate::case::{Configs, READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::Daemon;
use crate::wait::until;

/// The variables that differ from run to run.
const CHANGING: [&str; 10] = [
    "bytes_received",
    "bytes_sent",
    "daemon_pid",
    "daemon_start_time",
    "time_ascii",
    "time_duration",
    "time_unix",
    "tls_serial",
    "trusted_port",
    "untrusted_port",
];

/// The management clients of both ends.
struct Talks {
    server: Talk,
    client: Talk,
}

/// A conversation about clients. It may not depend on how long it takes.
type Conversation = fn(&mut Talks) -> Result<()>;

/// Passwords, challenges, single sign-on, addresses, and the ends of sessions.
pub(in crate::scenario) fn client_auth(scenario: &Scenario<'_>) -> Result<String> {
    compare(scenario, "", "", sessions)
}

/// A renegotiation is accepted, and the next one is denied.
pub(in crate::scenario) fn renegotiation(scenario: &Scenario<'_>) -> Result<String> {
    compare(scenario, "reneg-sec 14 12", "reneg-sec 0", renegotiations)
}

/// Compares what the management client of openvpn and that of adit see.
fn compare(
    scenario: &Scenario<'_>,
    server: &str,
    client: &str,
    conversation: Conversation,
) -> Result<String> {
    let mut configs = scenario.configs();
    // The client connects again before the server misses it.
    configs.server = configs.server.replace("keepalive 2 20", "keepalive 10 120");
    configs.server("management-client-auth\ndisable-dco\nsetenv SITE north\npush \"echo hello\"");
    configs.server("route 10.77.0.0 255.255.0.0");
    configs.server(server);
    configs.client(
        "management-hold\nmanagement-query-passwords\nauth-user-pass\nauth-retry interact\n\
         disable-dco\npush-peer-info\nsetenv IV_SSO webauth,openurl,crtext\nsetenv UV_SITE south\n\
         connect-retry 1 1",
    );
    configs.client(client);
    let run = |server: &Program, name: &str| talked(scenario, server, &configs, name, conversation);
    let of_openvpn = run(&Program::OpenVpn, "openvpn")?;
    let of_adit = run(scenario.server, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

fn talked(
    scenario: &Scenario<'_>,
    server: &Program,
    configs: &Configs,
    name: &str,
    conversation: Conversation,
) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let (at_server, at_client) = (folder.join("server.sock"), folder.join("client.sock"));
    let mut configs = configs.clone();
    configs.server(&format!("management {} unix", at_server.display()));
    configs.client(&format!("management {} unix", at_client.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, scenario.client)?;
    let run = || -> Result<Shown> {
        let (server, client) = (Talk::connect(&at_server)?, Talk::connect(&at_client)?);
        let mut talks = Talks { server, client };
        let end = conversation(&mut talks);
        let seen = talks.server.transcript.join("\n");
        end.map_err(|e| format!("{e}\nthe server's management client saw:\n{seen}"))?;
        Ok(shown(&talks.server, &folder))
    };
    let shown = run().map_err(|e| format!("{name}: {e}\n{}", ends(&client, &server)))?;
    client.stop()?;
    Ok(shown)
}

fn ends(client: &Daemon, server: &Daemon) -> String {
    format!("{}\n{}", client.failure(""), server.failure(""))
}

/// Returns a conversation without what differs from run to run. The ends of attempts that were denied are at the end,
/// because openvpn keeps such a client until its time is over or it connects again.
fn shown(talk: &Talk, folder: &Path) -> Shown {
    let folder = folder.display().to_string();
    let mut lines: Shown =
        talk.transcript.iter().map(|line| shown_line(&line.replace(&folder, "@"))).collect();
    let mut denied = Vec::new();
    while let Some(at) = lines.windows(2).position(|pair| {
        matches!(pair, [first, second] if first.starts_with(">CLIENT:DISCONNECT,") && second == ">CLIENT:ENV,END")
    }) {
        denied.push(lines.remove(at));
        lines.remove(at);
    }
    denied.sort();
    lines.extend(denied);
    lines
}

fn shown_line(line: &str) -> String {
    let variable = line.strip_prefix(">CLIENT:ENV,").and_then(|rest| rest.split_once('='));
    match variable {
        Some((name, _)) if CHANGING.contains(&name) => format!(">CLIENT:ENV,{name}=#"),
        Some(_) => line.to_owned(),
        None => plain(line),
    }
}

impl Talks {
    /// Releases the client, and lets it hear of states.
    fn begin(&mut self) -> Result<()> {
        self.client.wait(">HOLD:")?;
        for command in ["state on", "hold off", "hold release"] {
            self.client.ask(command)?;
        }
        Ok(())
    }

    /// Enters the client's password when it is asked for.
    fn log_in(&mut self, password: &str) -> Result<()> {
        self.client.wait(">PASSWORD:Need")?;
        self.client.send("username Auth \"al ice\"")?;
        self.client.send(&format!("password Auth \"{password}\""))
    }

    /// Waits for a request about a client. Returns its numbers.
    fn asked(&mut self, kind: &str) -> Result<String> {
        let head = format!(">CLIENT:{kind},");
        let asked = self.server.wait(&head)?;
        self.server.wait(">CLIENT:ENV,END")?;
        Ok(asked.trim_start_matches(&head).replace(',', " "))
    }

    /// Waits for a notification with variables.
    fn told(&mut self, kind: &str) -> Result<()> {
        self.server.wait(&format!(">CLIENT:{kind},"))?;
        self.server.wait(">CLIENT:ENV,END").map(drop)
    }

    /// Waits until a session or an attempt has ended.
    fn left(&mut self, session: &str) -> Result<()> {
        let end = format!(">CLIENT:DISCONNECT,{session}");
        until(&end, SOON, || {
            self.server.read()?;
            let lines = &self.server.transcript;
            let at = lines.iter().position(|line| *line == end);
            let rest = at.and_then(|at| lines.get(at..)).unwrap_or_default();
            Ok(rest.iter().any(|line| line == ">CLIENT:ENV,END"))
        })
    }

    /// Sends a command about a client, with lines, and waits for its success.
    fn decide(&mut self, command: &str, lines: &[&str]) -> Result<()> {
        self.server.send(command)?;
        for line in lines {
            self.server.send(line)?;
        }
        let reply = self.server.wait_any(&["SUCCESS:", "ERROR:"])?;
        ensure(reply.starts_with("SUCCESS:"), || format!("{command}: {reply}"))
    }

    /// Sends a command that fails.
    fn fails(&mut self, command: &str) -> Result<()> {
        self.server.send(command)?;
        self.server.wait("ERROR:").map(drop)
    }

    /// Waits until the client is connected and the management client of the server knows it. Returns the client's state.
    fn connected(&mut self) -> Result<String> {
        let state = self.client.wait_state("CONNECTED")?;
        self.told("ESTABLISHED")?;
        Ok(state)
    }

    /// Waits until the client hears why its password was refused.
    fn refused(&mut self, text: &str) -> Result<()> {
        let refused = self.client.wait(">PASSWORD:Verification Failed")?;
        ensure(refused.contains(text), || format!("the client was told {refused}"))
    }
}

fn sessions(talks: &mut Talks) -> Result<()> {
    // A second factor, and options for the client.
    talks.begin()?;
    talks.log_in("se\\\"cr$t `ä")?;
    let key = talks.asked("CONNECT")?;
    talks.decide(&format!("client-pending-auth {key} \"CR_TEXT:R,E:Your PIN\" 30"), &[])?;
    talks.client.wait(">INFOMSG:CR_TEXT:R,E:Your PIN")?;
    talks.client.ask("cr-response MTIzNA==")?;
    talks.told("CR_RESPONSE")?;
    for wrong in ["client-auth-nt 77 1", "client-deny 0 77 x", "client-pending-auth 77 1 x 30"] {
        talks.fails(wrong)?;
    }
    let options = [
        "push \"route 10.99.0.0 255.255.0.0\"",
        "iroute 10.77.1.0 255.255.255.0",
        "iroute 10.77.2.9",
        "iroute-ipv6 fd77::/64",
        "END",
    ];
    talks.decide(&format!("client-auth {key}"), &options)?;
    talks.connected()?;
    // The verdict comes twice.
    talks.decide(&format!("client-auth-nt {key}"), &[])?;
    // The client connects again, and is denied with a text, and then with a challenge.
    talks.client.ask("forget-passwords")?;
    talks.client.ask("signal SIGUSR1")?;
    talks.log_in("wrong")?;
    let key = talks.asked("CONNECT")?;
    talks.decide(&format!("client-deny {key} \"bad day\" \"come back later\""), &[])?;
    talks.refused("come back later")?;
    talks.log_in("right")?;
    let key = talks.asked("CONNECT")?;
    let challenge = "CRV1:R,E:Om01u7Fh4LrGBS7u:YWxpY2U=:Please enter token PIN";
    talks.decide(&format!("client-deny {key} challenge \"{challenge}\""), &[])?;
    talks.refused(challenge)?;
    talks.log_in("CRV1::Om01u7Fh4LrGBS7u::8675309")?;
    // Single sign-on, in both forms.
    let key = talks.asked("CONNECT")?;
    let url = "https://example.org/login?a=1&b=2";
    for method in ["WEB_AUTH:hidden:", "WEB_AUTH::", "OPEN_URL:"] {
        talks.decide(&format!("client-pending-auth {key} {method}{url} 30"), &[])?;
        talks.client.wait(&format!(">INFOMSG:{method}{url}"))?;
    }
    talks.decide(&format!("client-auth-nt {key}"), &[])?;
    talks.connected()?;
    // It is killed, and connects again.
    let session = key.split(' ').next().unwrap_or_default().to_owned();
    talks.decide(&format!("client-kill {session}"), &[])?;
    talks.left(&session)?;
    talks.fails(&format!("client-kill {session}"))?;
    // It does not use the answer to the challenge again. Now it gets an address.
    talks.log_in("right")?;
    let key = talks.asked("CONNECT")?;
    let options = ["ifconfig-push 10.88.0.50 255.255.255.0", "END"];
    talks.decide(&format!("client-auth {key}"), &options)?;
    let connected = talks.connected()?;
    ensure(connected.contains(",10.88.0.50,"), || connected.clone())?;
    // The server ends. By then, the attempts that were denied have ended too.
    let attempts = ["1", "2"].map(|session| talks.left(session));
    attempts.into_iter().collect::<Result<()>>()?;
    talks.server.send("signal SIGTERM")?;
    talks.left("4")
}

fn renegotiations(talks: &mut Talks) -> Result<()> {
    talks.begin()?;
    talks.log_in("secret")?;
    let key = talks.asked("CONNECT")?;
    talks.decide(&format!("client-auth-nt {key}"), &[])?;
    talks.connected()?;
    for _ in 0..2 {
        let key = talks.asked("REAUTH")?;
        talks.decide(&format!("client-auth-nt {key}"), &[])?;
    }
    Ok(())
}
