//! The plugin host's own process.

use std::io;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use adit_linux::channel::Channel;
use adit_linux::plugin::{self, LogLevel};

use super::calls::PluginSet;
use super::protocol::{
    MESSAGE_LIMIT, Message, NumberedRequest, OpenRequest, Outcome, Processed, Request,
};
use super::{NAME, background};
use crate::host_process;

/// The channel to the network process. It is global because plugins' log messages have no other context.
static CHANNEL: OnceLock<Channel> = OnceLock::new();

/// The level of a plugin's debug messages.
const DEBUG_VERB: u64 = 7;

pub(super) fn main() -> ExitCode {
    host_process::main(NAME, run)
}

pub(super) fn run() -> Result<(), String> {
    let channel = host_process::enter(c"adit-plugins")?;
    let channel = CHANNEL.get_or_init(|| channel);
    plugin::log_to(|level, text| match level {
        LogLevel::Error => line(0, 1, text.to_owned()),
        LogLevel::Warning => line(1, 1, text.to_owned()),
        LogLevel::Note => line(2, 1, text.to_owned()),
        LogLevel::Debug => line(2, DEBUG_VERB, text.to_owned()),
    });
    let mut host = Host { plugins: None, user: None, group: None };
    while let Some(bytes) = host_process::next(channel, MESSAGE_LIMIT)? {
        let NumberedRequest { id, request } =
            serde_json::from_slice(&bytes).map_err(|e| format!("invalid request: {e}"))?;
        let result = host.process(id, request);
        send(&Message::Processed { id, result });
    }
    if let Some(plugins) = &mut host.plugins {
        plugins.close();
    }
    Ok(())
}

/// Sends a message that must arrive, and waits for a network process that reads slowly.
fn send(message: &Message) {
    let Some(channel) = CHANNEL.get() else { return };
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    if bytes.len() > MESSAGE_LIMIT {
        let long = Outcome::refused("the answer of the plugins is too long");
        let short = match message {
            Message::Processed { id, .. } => {
                Message::Processed { id: *id, result: Processed::Called(long) }
            }
            Message::Answer { id, .. } => Message::Answer { id: *id, outcome: long },
            Message::Pending { .. } | Message::Line { .. } => return,
        };
        bytes = serde_json::to_vec(&short).unwrap_or_default();
    }
    host_process::send(channel, &bytes);
}

/// Sends a line for the log. It is dropped if the network process does not read, because a plugin must not wait for the
/// log. Takes no locks, because a process that a plugin forked may call it.
fn line(level: u8, verb: u64, text: String) {
    let Some(channel) = CHANNEL.get() else { return };
    let text = text.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    if let Ok(bytes) = serde_json::to_vec(&Message::Line { level, verb, text }) {
        let _ = channel.send(&bytes, &[]);
    }
}

struct Host {
    plugins: Option<PluginSet>,
    user: Option<String>,
    group: Option<String>,
}

impl Host {
    fn process(&mut self, id: u64, request: Request) -> Processed {
        let Some(plugins) = &mut self.plugins else {
            // The network process names files only while it is trusted: once, at the beginning.
            return match request {
                Request::Open(request) => self.open(*request),
                _ => Processed::Failed("plugin host: the first request opens no plugins".into()),
            };
        };
        match request {
            Request::Open(_) => Processed::Failed("plugin host: the plugins are open".into()),
            Request::BecomeUser { env } => {
                match host_process::become_user(self.user.as_deref(), self.group.as_deref()) {
                    Ok(()) => opened(plugins.user_changed(&env), plugins),
                    Err(reason) => Processed::Failed(format!("plugin host: {reason}")),
                }
            }
            Request::Reopen { env } => opened(plugins.reopen(&env), plugins),
            Request::Call(call) => plugins.call(id, *call),
            Request::Poll { call } => plugins.poll(call),
            Request::Cancel { call } => {
                drop(plugins.deferred().remove(call));
                Processed::Done
            }
            Request::EndClient { client } => {
                plugins.end_client(client);
                Processed::Done
            }
        }
    }

    fn open(&mut self, mut request: OpenRequest) -> Processed {
        (self.user, self.group) = (request.user.take(), request.group.take());
        if let Some(directory) = &request.directory
            && let Err(e) = std::env::set_current_dir(directory)
        {
            return Processed::Failed(format!("cd: cannot enter '{}': {e}", directory.display()));
        }
        let plugins = match PluginSet::open(request, line) {
            Ok(plugins) => plugins,
            Err(reason) => return Processed::Failed(reason),
        };
        // Plugins that fork at their start have done so, without threads that their children would lack.
        // This fails only for a group leader, which a newly started process is not.
        let _ = nix::unistd::setsid();
        let deferred = Arc::clone(plugins.deferred());
        let print = |text: String| line(2, 1, format!("plugin: {text}"));
        let started = match CHANNEL.get() {
            Some(channel) => background::start(channel, deferred, send, print),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        let plugins = self.plugins.insert(plugins);
        opened(started.map_err(|e| format!("plugin host: cannot start: {e}")), plugins)
    }
}

fn opened(result: Result<(), String>, plugins: &PluginSet) -> Processed {
    match result {
        Ok(()) => Processed::Opened { mask: plugins.mask() },
        Err(reason) => Processed::Failed(reason),
    }
}
