//! The commands that concern the conversation, the log and the process.

use adit_openvpn::config::AuthRetry;
use adit_runtime::log;
use adit_runtime::signals::Signal;

use super::super::help;
use super::super::history::HISTORY;
use super::super::input::Command;
use super::super::question::{NEEDOK, NEEDSTR};
use super::{Action, Session, VERSION};
use crate::client::ClientCommand;

impl Session {
    /// Carries out a command.
    ///
    /// # Errors
    /// Returns the reply to a command that is wrong.
    pub(super) fn command(&mut self, command: &Command) -> Result<(), String> {
        match command.name.as_str() {
            "exit" | "quit" => {
                if let Some(talk) = &mut self.conversation {
                    talk.closing = true;
                }
            }
            "help" => help::lines(self.settings.banner).iter().for_each(|line| self.line(line)),
            "version" => self.version(command),
            "pid" => self.line(&format!("SUCCESS: pid={}", std::process::id())),
            "state" => self.history(command, Kind::State)?,
            "log" | "echo" => {
                command.need(1, true)?;
                let kind = if command.name == "log" { Kind::Log } else { Kind::Echo };
                self.history(command, kind)?;
            }
            "bytecount" => {
                command.need(1, false)?;
                self.bytecount(command.arg(0));
            }
            "verb" => self.verb(command)?,
            "mute" => self.mute(command)?,
            "net" => {
                self.line("ERROR: Sorry, this command is currently only implemented on Windows");
            }
            "test" => {
                command.need(1, false)?;
                self.test(command.arg(0).parse().unwrap_or(0));
            }
            "env-filter" => {
                let level = command.arg(0).parse::<u8>().unwrap_or(0);
                if let Some(talk) = &mut self.conversation {
                    talk.env_filter = level;
                }
                self.line(&format!("SUCCESS: env_filter_level={level}"));
            }
            "hold" => self.hold(command)?,
            "signal" => {
                command.need(1, false)?;
                self.signal(command.arg(0))?;
            }
            "username" | "password" => {
                command.need(2, false)?;
                let (kind, value) = (command.arg(0), command.arg(1));
                let reply = self.questions.enter(&command.name, kind, value);
                self.line(&reply);
            }
            "needok" | "needstr" => {
                command.need(2, false)?;
                let what = if command.name == "needok" { NEEDOK } else { NEEDSTR };
                let reply = self.questions.enter(what, command.arg(0), command.arg(1));
                self.line(&reply);
            }
            "forget-passwords" => {
                self.actions.push_back(Action::Client(ClientCommand::ForgetLogin));
                self.line("SUCCESS: Passwords were forgotten");
            }
            "auth-retry" => self.auth_retry(command)?,
            _ => return self.tunnel_command(command),
        }
        Ok(())
    }

    fn version(&mut self, command: &Command) {
        match command.get(0) {
            Some(version) => {
                if let Some(talk) = &mut self.conversation {
                    talk.version = version.parse().unwrap_or(1);
                }
            }
            None => {
                let banner = self.settings.banner;
                self.line(&format!("OpenVPN Version: {banner}"));
                self.line(&format!("Management Version: {VERSION}"));
                self.line("END");
            }
        }
    }

    fn bytecount(&mut self, seconds: &str) {
        let every = seconds.parse::<u32>().unwrap_or(0);
        if let Some(talk) = &mut self.conversation {
            talk.bytecount = (every > 0).then_some((every, every));
        }
        self.line("SUCCESS: bytecount interval changed");
    }

    fn verb(&mut self, command: &Command) -> Result<(), String> {
        let Some(text) = command.get(0) else {
            self.line(&format!("SUCCESS: verb={}", log::verbosity().0));
            return Ok(());
        };
        let level = text.parse::<u8>().ok().filter(|level| *level <= 15);
        log::set_verb(level.ok_or("ERROR: verb level is out of range")?);
        self.line("SUCCESS: verb level changed");
        Ok(())
    }

    fn mute(&mut self, command: &Command) -> Result<(), String> {
        let Some(text) = command.get(0) else {
            self.line(&format!("SUCCESS: mute={}", log::verbosity().1.unwrap_or(0)));
            return Ok(());
        };
        let limit = text.parse::<u32>().map_err(|_| "ERROR: mute level is out of range")?;
        log::set_mute(Some(limit).filter(|limit| *limit > 0));
        self.line("SUCCESS: mute level changed");
        Ok(())
    }

    /// Writes lines for a test of the client. It ends early if the client does not read them.
    fn test(&mut self, count: usize) {
        for n in 0..count {
            if self.talk().is_none_or(|talk| talk.overflown) {
                return;
            }
            self.line(&format!(
                "[{n}] The purpose of this command is to generate large amounts of output."
            ));
        }
    }

    fn hold(&mut self, command: &Command) -> Result<(), String> {
        match command.get(0) {
            None => self.line(&format!("SUCCESS: hold={}", u8::from(self.settings.hold))),
            Some("on") => {
                self.settings.hold = true;
                self.line("SUCCESS: hold flag set to ON");
            }
            Some("off") => {
                self.settings.hold = false;
                self.line("SUCCESS: hold flag set to OFF");
            }
            Some("release") => {
                self.questions.release();
                self.line("SUCCESS: hold release succeeded");
            }
            Some(_) => return Err("ERROR: bad hold command parameter".into()),
        }
        Ok(())
    }

    fn signal(&mut self, name: &str) -> Result<(), String> {
        let signal = match name {
            "SIGTERM" => Signal::Terminate,
            "SIGINT" => Signal::Interrupt,
            "SIGHUP" => Signal::Hangup,
            "SIGUSR1" => Signal::User1,
            "SIGUSR2" => Signal::User2,
            _ => return Err(format!("ERROR: signal '{name}' is not a known signal type")),
        };
        // As in openvpn, only signals that end the program end a hold.
        let ends = matches!(signal, Signal::Terminate | Signal::Interrupt);
        if let Some(hold) = self.questions.hold().filter(|_| !ends) {
            self.line(&format!("ERROR: signal '{name}' is currently ignored"));
            self.line(&hold);
            return Ok(());
        }
        self.line(&format!("SUCCESS: signal {name} thrown"));
        self.actions.push_back(Action::Signal(signal));
        Ok(())
    }

    fn auth_retry(&mut self, command: &Command) -> Result<(), String> {
        const NAMES: [(&str, AuthRetry); 3] = [
            ("none", AuthRetry::None),
            ("nointeract", AuthRetry::NoInteract),
            ("interact", AuthRetry::Interact),
        ];
        let Some(name) = command.get(0) else {
            let current = |(_, retry): &&(&str, AuthRetry)| *retry == self.settings.auth_retry;
            let name = NAMES.iter().find(current).map_or("none", |(name, _)| name);
            self.line(&format!("SUCCESS: auth-retry={name}"));
            return Ok(());
        };
        let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, retry)| *retry);
        let Some(retry) = known else {
            self.line("--auth-retry method must be 'interact', 'nointeract', or 'none'");
            return Err("ERROR: bad auth-retry parameter".into());
        };
        self.settings.auth_retry = retry;
        self.actions.push_back(Action::Client(ClientCommand::AuthRetry(retry)));
        self.line("SUCCESS: auth-retry parameter changed");
        Ok(())
    }

    /// Handles `state`, `log` and `echo`.
    fn history(&mut self, command: &Command, kind: Kind) -> Result<(), String> {
        let (mut real_time, mut shown) = (None, None);
        if kind == Kind::State && command.get(0).is_none() {
            shown = Some(1);
        }
        for index in 0..2 {
            match command.get(index) {
                None => break,
                Some("on") => real_time = Some(true),
                Some("off") => real_time = Some(false),
                Some("all") => shown = Some(usize::MAX),
                Some(count) => {
                    let count = count.parse::<usize>().ok().filter(|count| *count > 0);
                    shown = Some(count.ok_or_else(|| {
                        let name = &command.name;
                        format!("ERROR: {name} parameter must be 'on' or 'off' or some number n or 'all'")
                    })?);
                }
            }
        }
        if let Some(on) = real_time {
            self.set_real_time(kind, on);
            let word = if on { "ON" } else { "OFF" };
            let name = &command.name;
            self.line(&format!("SUCCESS: real-time {name} notification set to {word}"));
        }
        if let Some(count) = shown {
            let lines = match kind {
                Kind::State => self.states.last(count.min(HISTORY)),
                Kind::Echo => self.echoes.last(count.min(HISTORY)),
                Kind::Log => self.log.last(count),
            };
            lines.iter().for_each(|line| self.line(line));
            self.line("END");
        }
        Ok(())
    }

    fn set_real_time(&mut self, kind: Kind, on: bool) {
        let total = self.log.total();
        let Some(talk) = &mut self.conversation else { return };
        match kind {
            Kind::State => talk.state = on,
            Kind::Echo => talk.echo = on,
            Kind::Log => {
                talk.log_seen = on.then_some(total);
                self.log.set_live(on);
            }
        }
    }
}

/// A kind of history.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    State,
    Log,
    Echo,
}
