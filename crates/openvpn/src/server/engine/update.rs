//! Updates of connected clients when the options for all of them change (PUSH_UPDATE).

use adit_engine::{Instant, PeerId};

use super::control::{report_control_message, terminated};
use super::{Out, ServerEngine};
use crate::negotiate::{IvProto, PeerInfo, build_push_update, updates};
use crate::server::client::Stage;
use crate::server::config::ReloadableConfig;
use crate::server::event::ServerEvent;
use crate::server::push::{Recipient, push_bundles, pushed_options};

impl ServerEngine {
    /// Changes the options to push, the client limit and the reserved addresses. Connected clients
    /// that support PUSH_UPDATE get the options that can change within a session at once. Other
    /// options, and options for other clients, take effect at the next connection.
    pub fn set_offer(&mut self, now: Instant, offer: ReloadableConfig, out: &mut Out) {
        let changed = self.config.push != offer.push;
        self.config.push = offer.push;
        self.config.max_clients = offer.max_clients;
        self.pool.reserve(&offer.leases);
        if !changed {
            return;
        }
        let connected: Vec<PeerId> = self.clients().map(|info| info.peer).collect();
        for peer in connected {
            self.update(now, peer, out);
        }
    }

    fn update(&mut self, now: Instant, peer: PeerId, out: &mut Out) {
        let Some(client) = self.clients.get(&peer) else { return };
        let Some(connected) = client.connected() else { return };
        let info = PeerInfo::from_entries(&connected.info.peer_info);
        if !info.proto().has(IvProto::PUSH_UPDATE) {
            return;
        }
        let to = Recipient {
            peer,
            grant: &connected.grant,
            lease: connected.lease,
            cipher: connected.info.cipher,
            framing: connected.framing,
            info: &info,
        };
        let options = pushed_options(&self.config, &to);
        let changes = updates(&connected.options, &options);
        if changes.is_empty() {
            return;
        }
        let token = self.token_text(connected);
        let push = push_bundles(&options, token.as_ref().map(|text| text.as_str()));
        let (Ok(messages), Ok(push)) = (build_push_update(&changes), push) else {
            let text = "the new options are too long to be pushed; the client keeps what it has";
            out.event(ServerEvent::Warning(Some(peer), text.into()));
            return;
        };
        self.step(now, peer, out, |client, _, _| {
            if let Stage::Connected(connected) = &mut client.stage {
                (connected.options, connected.push) = (options, push);
            }
            for message in &messages {
                client.control_channel.send_message(terminated(message))?;
            }
            Ok(Vec::new())
        });
        if let Some(client) = self.clients.get(&peer) {
            messages
                .into_iter()
                .for_each(|message| report_control_message(peer, client, message, out));
        }
    }
}
