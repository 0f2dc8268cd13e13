//! The token host's own process.

use std::process::ExitCode;
use std::sync::OnceLock;

use adit_linux::channel::Channel;
use zeroize::Zeroizing;

use super::NAME;
use super::modules::Modules;
use super::protocol::{MESSAGE_LIMIT, Message, NumberedRequest, OpenRequest, Reply, Request};
use crate::host_process;

/// The channel to the network process. It is global because the thread with the modules' output uses it too.
static CHANNEL: OnceLock<Channel> = OnceLock::new();

pub(super) fn main() -> ExitCode {
    host_process::main(NAME, run)
}

pub(super) fn run() -> Result<(), String> {
    let channel = host_process::enter(c"adit-tokens")?;
    let channel = CHANNEL.get_or_init(|| channel);
    // A module may fork, but not because of this process, which is new and has no threads yet.
    host_process::capture_output(line).map_err(|e| format!("cannot start: {e}"))?;
    host_process::end_with_network_process(channel).map_err(|e| format!("cannot start: {e}"))?;
    let mut host = Host { modules: None, user: None, group: None };
    while let Some(bytes) = host_process::next(channel, MESSAGE_LIMIT)? {
        let bytes = Zeroizing::new(bytes);
        let NumberedRequest { id, request } =
            serde_json::from_slice(&bytes).map_err(|e| format!("invalid request: {e}"))?;
        let reply = host.process(request);
        send(channel, &Message::Reply { id, reply });
    }
    if let Some(modules) = host.modules {
        modules.close();
    }
    Ok(())
}

fn send(channel: &Channel, message: &Message) {
    // All replies are bounded far below the limit of a message.
    let bytes = serde_json::to_vec(message).unwrap_or_default();
    host_process::send(channel, &bytes);
}

/// Sends a line for the log. It is dropped if the network process does not read.
fn line(text: String) {
    let Some(channel) = CHANNEL.get() else { return };
    let text = text.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    if let Ok(bytes) = serde_json::to_vec(&Message::Line(text)) {
        let _ = channel.send(&bytes, &[]);
    }
}

struct Host {
    modules: Option<Modules>,
    user: Option<String>,
    group: Option<String>,
}

impl Host {
    fn process(&mut self, request: Request) -> Reply {
        let Some(modules) = &mut self.modules else {
            // The network process names files only while it is trusted: once, at the beginning.
            return match request {
                Request::Open(request) => self.open(request),
                _ => Reply::Failed("token host: the first request loads no modules".into()),
            };
        };
        match request {
            Request::Open(_) => Reply::Failed("token host: the modules are loaded".into()),
            Request::BecomeUser => {
                match host_process::become_user(self.user.as_deref(), self.group.as_deref()) {
                    Ok(()) => Reply::Done,
                    Err(reason) => Reply::Failed(format!("token host: {reason}")),
                }
            }
            Request::Scan => modules.scan(),
            Request::Certificate(number) => modules.certificate(number),
            Request::Login { token, pin, by_hand } => modules.login(&token, pin, by_hand),
            Request::Use { token, id } => modules.choose(token, id),
            Request::Sign { mechanism, data } => modules.sign(mechanism, &data),
        }
    }

    fn open(&mut self, request: OpenRequest) -> Reply {
        let OpenRequest { modules, pin_cache, user, group } = request;
        (self.user, self.group) = (user, group);
        match Modules::load(modules, pin_cache) {
            Ok(modules) => {
                self.modules = Some(modules);
                Reply::Done
            }
            Err(reason) => Reply::Failed(reason),
        }
    }
}
