//! Updates of connected clients when the options for all of them change (PUSH_UPDATE).

use std::collections::HashMap;
use std::mem;

use adit_engine::{Instant, PeerId};

use super::control::{report_control_message, terminated};
use super::{Out, ServerEngine};
use crate::data_format::Command;
use crate::negotiate::{IvProto, PeerInfo, build_push_update, updates};
use crate::server::client::Stage;
use crate::server::config::{ClientUpdate, ReloadableConfig};
use crate::server::event::ServerEvent;
use crate::server::push::{Recipient, push_bundles, pushed_options};

impl ServerEngine {
    /// Changes the options to push, the client limit, the reserved addresses, and the parameters of
    /// single clients, which apply to their sessions at once. Connected clients that support
    /// PUSH_UPDATE get the options that can change within a session at once. Other
    /// options, and options for other clients, take effect at the next connection.
    pub fn set_offer(&mut self, now: Instant, offer: ReloadableConfig, out: &mut Out) {
        let changed = self.config.push != offer.push;
        self.config.push = offer.push;
        self.config.max_clients = offer.max_clients;
        self.pool.reserve(&offer.leases);
        if !changed && offer.clients.is_empty() {
            return;
        }
        let connected: Vec<PeerId> = self.clients().map(|info| info.peer).collect();
        for peer in &connected {
            self.update_params(*peer, &offer.clients, out);
        }
        for peer in connected {
            self.update(now, peer, out);
        }
    }

    /// Replaces the parameters of one client.
    fn update_params(
        &mut self,
        peer: PeerId,
        updates: &HashMap<String, ClientUpdate>,
        out: &mut Out,
    ) {
        let client = self.clients.get_mut(&peer);
        let Some(Stage::Connected(connected)) = client.map(|client| &mut client.stage) else {
            return;
        };
        // A check has no networks, and ends soon.
        let Some(new) = updates.get(&connected.info.identity.common_name) else { return };
        if connected.info.check {
            return;
        }
        connected.grant.push_remove.clone_from(&new.push_remove);
        if connected.rates != new.rates {
            connected.rates = new.rates;
            out.plane(Command::SetRates(peer, new.rates));
        }
        if connected.grant.iroutes == new.iroutes {
            return;
        }
        connected.grant.iroutes.clone_from(&new.iroutes);
        let (identity, grant) = (connected.info.identity.clone(), connected.grant.clone());
        let (own, former) = (connected.lease.prefixes(), mem::take(&mut connected.prefixes));
        self.release_prefixes(peer, &former);
        let prefixes = self.own((peer, &identity), own.clone(), &grant, out);
        out.plane(Command::SetRoutes(peer, prefixes.clone()));
        let client = self.clients.get_mut(&peer);
        if let Some(Stage::Connected(connected)) = client.map(|client| &mut client.stage) {
            let behind = prefixes.iter().filter(|prefix| !own.contains(prefix));
            connected.info.networks = behind.copied().collect();
            connected.prefixes = prefixes;
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
