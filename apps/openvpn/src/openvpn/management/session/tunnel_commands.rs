//! The commands that concern the tunnel, its servers or its clients.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::super::status::{Status, Totals};
use super::super::clients::{ClientKey, ClientVerdict};
use super::super::input::Command;
use super::super::question::{ProxyChoice, RemoteChoice};
use super::{Action, Block, Mode, Request, Session};
use crate::client::ClientCommand;

/// The maximum length of a text for a client that must authenticate further. It must fit into a control message.
const MAX_EXTRA: usize = 1000;

impl Session {
    /// Carries out a command about servers or clients.
    pub(super) fn tunnel_command(&mut self, command: &Command) -> Result<(), String> {
        let server = self.settings.mode == Mode::Server;
        match command.name.as_str() {
            "status" => {
                let version = match command.get(0) {
                    Some(text) => {
                        text.parse::<u8>().ok().filter(|version| (1..=3).contains(version))
                    }
                    None => Some(self.settings.status_version),
                };
                let version = version.ok_or("ERROR: bad status format version number")?;
                if server {
                    self.request(Request::Status(version));
                } else {
                    self.own_status(version);
                }
            }
            "load-stats" => {
                if server {
                    self.request(Request::LoadStats);
                } else {
                    let Totals { link_read, link_written, .. } = self.totals;
                    self.line(&format!(
                        "SUCCESS: nclients=0,bytesin={link_read},bytesout={link_written}"
                    ));
                }
            }
            "nclients" => {
                if server {
                    self.request(Request::Clients);
                } else {
                    self.line("SUCCESS: nclients=0");
                }
            }
            "kill" => {
                command.need(1, false)?;
                self.of_server("kill")?;
                let request = killed(command.arg(0))?;
                self.request(request);
            }
            "client-kill" => {
                command.need(1, true)?;
                let number = number(command.arg(0), "CID")?;
                self.of_server("client-kill")?;
                let message = command.arg(1);
                let (word, reason) = message.split_once(',').unwrap_or((message, ""));
                let (halt, reason) = (word == "HALT", reason.to_owned());
                self.request(Request::KillSession { number, halt, reason });
            }
            "remote" => {
                command.need(1, true)?;
                self.remote(command)?;
            }
            "remote-entry-count" => {
                self.of_client("remote-entry-count")?;
                self.line(&self.settings.remotes.len().to_string());
                self.line("END");
            }
            "remote-entry-get" => {
                command.need(1, true)?;
                self.of_client("remote-entry-get")?;
                self.remote_entries(command);
            }
            "pkcs11-id-count" => {
                self.line(&format!(">PKCS11ID-COUNT:{}", self.identities.len()));
            }
            "pkcs11-id-get" => {
                command.need(1, false)?;
                let number = command.arg(0).parse::<usize>().unwrap_or(0);
                let identity = self.identities.get(number).map_or_else(String::new, |identity| {
                    format!(", ID:'{}', BLOB:'{}'", identity.id, identity.blob)
                });
                self.line(&format!(">PKCS11ID-ENTRY:'{number}'{identity}"));
            }
            "rsa-sig" | "pk-sig" | "certificate" | "client-auth" => {
                if command.name == "client-auth" {
                    command.need(2, false)?;
                    self.client_key(command)?;
                } else if !self.questions.wants_lines(&command.name) {
                    let name = &command.name;
                    return Err(format!("ERROR: The {name} command is not currently available"));
                }
                let block = Block {
                    command: command.clone(),
                    lines: Vec::new(),
                    bytes: 0,
                    too_long: false,
                };
                if let Some(talk) = &mut self.conversation {
                    talk.block = Some(block);
                }
            }
            "client-auth-nt" => {
                command.need(2, false)?;
                let key = self.client_key(command)?;
                let done = self.clients.decide(key, ClientVerdict::Accept(Vec::new()));
                self.done("client-auth", done);
            }
            "client-deny" => {
                command.need(3, true)?;
                let key = self.client_key(command)?;
                let (log, peer) = (command.arg(2).to_owned(), command.get(3).map(str::to_owned));
                let done = self.clients.decide(key, ClientVerdict::Deny { log, peer });
                self.done(&command.name, done);
            }
            "client-pending-auth" => {
                command.need(4, false)?;
                let key = self.client_key(command)?;
                let seconds = number(command.arg(3), "TIMEOUT")?;
                self.pending_auth(key, command.arg(2), Duration::from_secs(seconds));
            }
            "cr-response" => {
                command.need(1, false)?;
                if self.settings.mode != Mode::Client {
                    // In openvpn's spelling.
                    return Err(not_here("cr-repsonse"));
                }
                let response = ClientCommand::Respond(command.arg(0).to_owned());
                self.actions.push_back(Action::Client(response));
                self.line("SUCCESS: command succeeded");
            }
            "proxy" => {
                command.need(1, true)?;
                self.proxy(command)?;
            }
            _ => return Err("ERROR: unknown command, enter 'help' for more options".into()),
        }
        Ok(())
    }

    /// Returns the client and the key that a verdict is about.
    fn client_key(&self, command: &Command) -> Result<ClientKey, String> {
        let key = (number(command.arg(0), "CID")?, number(command.arg(1), "KID")?);
        if self.settings.mode == Mode::Server && self.settings.client_auth {
            return Ok(key);
        }
        let name = &command.name;
        Err(not_here(name.strip_suffix("-nt").unwrap_or(name)))
    }

    fn pending_auth(&mut self, key: ClientKey, extra: &str, time: Duration) {
        let fits = extra.len() <= MAX_EXTRA && !extra.is_empty();
        if fits && self.clients.extend(key, time, Some(extra.to_owned())) {
            self.line("SUCCESS: client-pending-auth command succeeded");
        } else {
            self.line(
                "ERROR: client-pending-auth command failed. Extra parameter might be too long",
            );
        }
    }

    fn done(&mut self, name: &str, done: bool) {
        let (head, end) = if done { ("SUCCESS", "succeeded") } else { ("ERROR", "failed") };
        self.line(&format!("{head}: {name} command {end}"));
    }

    /// Handles the end of the lines after a command.
    pub(super) fn finish(&mut self, block: Block) {
        let name = block.command.name.as_str();
        if name == "client-auth" {
            let verdict = ClientVerdict::Accept(block.lines);
            let key = self.client_key(&block.command);
            let done = !block.too_long && key.is_ok_and(|key| self.clients.decide(key, verdict));
            return self.done(name, done);
        }
        let done = !block.too_long && self.questions.take_lines(name, block.lines);
        // openvpn has other names here than for the commands.
        let name = match name {
            "pk-sig" => "pk-sign",
            "rsa-sig" => "rsa-sign",
            other => other,
        };
        self.done(name, done);
    }

    fn of_server(&self, name: &str) -> Result<(), String> {
        if self.settings.mode == Mode::Server { Ok(()) } else { Err(not_here(name)) }
    }

    fn of_client(&self, name: &str) -> Result<(), String> {
        if self.settings.mode == Mode::Server { Err(not_here(name)) } else { Ok(()) }
    }

    pub(super) fn request(&mut self, request: Request) {
        if let Some(talk) = &mut self.conversation {
            talk.waits = Some(request.clone());
            self.actions.push_back(Action::Ask(request));
        }
    }

    pub(super) fn own_status(&mut self, version: u8) {
        let status = match self.settings.mode {
            Mode::Server => Status::Server(Vec::new()),
            Mode::Client | Mode::PointToPoint => Status::Client(self.totals),
        };
        let text = status.text(version, adit_runtime::clock::unix_time().0);
        text.lines().for_each(|line| self.line(line));
    }

    fn remote(&mut self, command: &Command) -> Result<(), String> {
        self.of_client("remote")?;
        let choice = match (command.arg(0), command.get(1), command.get(2)) {
            ("ACCEPT", None, None) => Some(RemoteChoice::Accept),
            ("SKIP", count, None) => {
                let count = count.map_or(Some(1), |count| count.parse::<usize>().ok());
                count.filter(|count| *count > 0).map(RemoteChoice::Skip)
            }
            ("MOD", Some(host), Some(port)) if !host.is_empty() => {
                let port = port.parse::<u16>().ok().filter(|port| *port > 0);
                port.map(|port| RemoteChoice::Modify(host.to_owned(), port))
            }
            _ => None,
        };
        let chosen = choice.is_some_and(|choice| self.questions.choose(choice));
        let reply = if chosen {
            "SUCCESS: remote command succeeded"
        } else {
            "ERROR: remote command failed"
        };
        self.line(reply);
        Ok(())
    }

    fn proxy(&mut self, command: &Command) -> Result<(), String> {
        self.of_client("proxy")?;
        let port = command.get(2).and_then(|port| port.parse::<u16>().ok());
        let port = port.filter(|port| *port > 0);
        let host = command.get(1).filter(|host| !host.is_empty()).map(str::to_owned);
        let choice = match (command.arg(0), host.zip(port)) {
            ("NONE", _) => Some(ProxyChoice::None),
            ("HTTP", Some((host, port))) => {
                let hidden = command.get(3) == Some("nct");
                Some(ProxyChoice::Http { host, port, hidden })
            }
            ("SOCKS", Some((host, port))) => Some(ProxyChoice::Socks { host, port }),
            _ => None,
        };
        let chosen = choice.is_some_and(|choice| self.questions.choose_proxy(choice));
        let reply =
            if chosen { "SUCCESS: proxy command succeeded" } else { "ERROR: proxy command failed" };
        self.line(reply);
        Ok(())
    }

    fn remote_entries(&mut self, command: &Command) {
        let count = self.settings.remotes.len();
        let (from, to) = match (command.arg(0), command.get(1)) {
            ("all", _) => (0, count),
            (from, to) => {
                let from = from.parse::<usize>().unwrap_or(usize::MAX);
                let to = to.map(|to| to.parse::<usize>().unwrap_or(0));
                (from, to.unwrap_or(from.saturating_add(1)).min(count))
            }
        };
        for at in from..to {
            let Some((host, port, protocol)) = self.settings.remotes.get(at) else { break };
            self.line(&format!("{at},{host},{port},{protocol},enabled"));
        }
        self.line("END");
    }
}

/// Parses the argument of `kill`.
fn killed(text: &str) -> Result<Request, String> {
    // A common name may contain colons too, but openvpn takes the text for an address then.
    let Some((host, port)) = text.rsplit_once(':') else {
        return Ok(Request::KillName(text.to_owned()));
    };
    if host.is_empty() || port.is_empty() {
        return Err("ERROR: kill parse".into());
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse().map_err(|_| {
        let first = host.split(':').next().unwrap_or_default();
        format!("ERROR: error parsing IP address: {first}")
    })?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| {
        let port = text.rsplit(':').next().unwrap_or_default();
        format!("ERROR: port number is out of range: {port}")
    })?;
    Ok(Request::KillAddress(SocketAddr::new(ip, port)))
}

/// Parses the number of a client or a key.
fn number(text: &str, name: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("ERROR: cannot parse {name}"))
}

fn not_here(name: &str) -> String {
    format!("ERROR: The '{name}' command is not supported by the current daemon mode")
}
