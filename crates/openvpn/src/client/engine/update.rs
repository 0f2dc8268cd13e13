//! Options that change within a session (PUSH_UPDATE).

use adit_engine::Instant;
use adit_engine::command::Keepalive;

use super::pull::{pushed_mtu, tunnel_config};
use super::{ClientEngine, Out, State};
use crate::client::event::ClientEvent;
use crate::data_format::Command;
use crate::negotiate::{
    Change, PushAssembler, PushPart, PushedOption, PushedOptions, apply_update,
};
use crate::session::{Settings, inner_mtu};

/// The options pushed to a session, and the update in progress.
pub(super) struct OptionUpdates {
    options: Vec<PushedOption>,
    settings: Settings,
    assembler: PushAssembler<Change>,
}

impl OptionUpdates {
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn new(options: Vec<PushedOption>, settings: Settings) -> Self {
        Self { options, settings, assembler: PushAssembler::default() }
    }
}

impl ClientEngine {
    /// Processes a part of an update. After the last part, either the whole update takes effect, or
    /// none of it does and the session restarts.
    pub(super) fn push_update(&mut self, now: Instant, part: &str, out: &mut Out) {
        let State::Up(tunnel) = &mut self.state else {
            let note = "an update of options is left out: there are none yet";
            return out.event(ClientEvent::Note(note.into()));
        };
        let part = PushPart::lex(part);
        out.event(ClientEvent::Pushed(format!("PUSH_UPDATE,{part}")));
        let update = match tunnel.update.assembler.add(part) {
            Ok(None) => return,
            Ok(Some(update)) => update,
            Err(error) => return self.lost(now, error.into(), out),
        };
        let filters = &self.config.pull_filters;
        let applied =
            apply_update(&tunnel.update.options, &update, filters).and_then(|(options, notes)| {
                Ok((PushedOptions::parse(&options, filters)?, options, notes))
            });
        let (pushed, options, notes) = match applied {
            Ok(applied) => applied,
            Err(error) => return self.lost(now, error.into(), out),
        };
        // The notes about the full set of options were reported when the options arrived.
        notes.into_iter().for_each(|note| out.event(ClientEvent::Note(note)));
        let state = &mut tunnel.update;
        state.options = options;
        let keepalive = Keepalive {
            interval: pushed.ping.unwrap_or(self.config.keepalive.interval),
            timeout: pushed.ping_timeout.unwrap_or(self.config.keepalive.timeout),
        };
        if keepalive != state.settings.keepalive {
            state.settings.keepalive = keepalive;
            out.plane(Command::SetKeepalive(tunnel.data.peer, keepalive));
        }
        let mtu = pushed_mtu(&self.config.settings, &pushed);
        let link = tunnel.control_channel.link;
        let protection = tunnel.data.schedule.protection();
        if mtu != state.settings.tun_mtu {
            state.settings.tun_mtu = mtu;
            out.plane(Command::SetMtu(
                tunnel.data.peer,
                inner_mtu(&state.settings, link, protection),
            ));
        }
        let config =
            tunnel_config(tunnel.data.peer, tunnel.data.schedule.cipher(), link, mtu, pushed);
        out.event(ClientEvent::Updated(Box::new(config)));
    }
}
