//! The owner of each prefix. Prefixes are tunnel addresses and the networks behind clients (`iroute`).

use std::collections::HashMap;

use adit_engine::{MAX_GROUPS, PeerAddresses, PeerId, auth};
use ipnet::IpNet;

use super::{Out, ServerEngine};
use crate::data_format::Command;
use crate::server::client::Stage;
use crate::server::event::ServerEvent;
use crate::tls::PeerIdentity;

/// The owners of prefixes. A prefix has one owner, so the data plane, which uses the longest match, never has to choose
/// between two equal ones.
#[derive(Debug, Default)]
pub(super) struct RouteOwnership(HashMap<IpNet, PeerId>);

impl RouteOwnership {
    /// Shrinks the table to its contents.
    pub(super) fn release_memory(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Records the prefixes of a client whose session began in another process.
    pub(super) fn restore(&mut self, peer: PeerId, prefixes: &[IpNet]) {
        self.0.extend(prefixes.iter().map(|prefix| (*prefix, peer)));
    }

    fn release(&mut self, peer: PeerId, prefixes: &[IpNet]) {
        for prefix in prefixes {
            if self.0.get(prefix) == Some(&peer) {
                self.0.remove(prefix);
            }
        }
    }
}

impl ServerEngine {
    /// Gives a new client its own addresses and the networks behind it. If two clients name the same network, the newest owns it, as in
    /// OpenVPN. A client cannot take another client's address in this way. Returns the prefixes that the client owns: its routes in the
    /// data plane.
    pub(super) fn own(
        &mut self,
        (peer, identity): (PeerId, &PeerIdentity),
        addresses: Vec<IpNet>,
        grant: &auth::ClientParams,
        out: &mut Out,
    ) -> Vec<IpNet> {
        let (name, behind) = (identity.common_name.as_str(), &grant.iroutes);
        let mut all = addresses;
        for prefix in &all {
            self.take_over(peer, name, *prefix, out);
        }
        for prefix in behind {
            let held = self.ownership.0.get(prefix).copied().filter(|owner| *owner != peer);
            if let Some(owner) = held.filter(|owner| self.is_address_of(*owner, prefix)) {
                let text = format!(
                    "iroute {prefix} of {name} has no effect: it is the tunnel address of {}",
                    self.name_of(owner)
                );
                out.event(ServerEvent::Warning(Some(peer), text));
                continue;
            }
            if !all.contains(prefix) {
                self.take_over(peer, name, *prefix, out);
                all.push(*prefix);
            }
        }
        out.event(addresses_of(peer, identity, grant, all.clone()));
        all
    }

    /// Releases the prefixes that a client owned.
    pub(super) fn release_prefixes(&mut self, peer: PeerId, prefixes: &[IpNet]) {
        self.ownership.release(peer, prefixes);
    }

    fn take_over(&mut self, peer: PeerId, new: &str, prefix: IpNet, out: &mut Out) {
        let Some(former) = self.ownership.0.insert(prefix, peer) else { return };
        if former == peer {
            return;
        }
        let name = self.name_of(former);
        if let Some(client) = self.clients.get_mut(&former)
            && let Stage::Connected(connected) = &mut client.stage
        {
            connected.prefixes.retain(|other| *other != prefix);
            let (identity, left) = (&connected.info.identity, connected.prefixes.clone());
            out.event(addresses_of(former, identity, &connected.grant, left.clone()));
            out.plane(Command::SetRoutes(former, left));
            let text = format!("{prefix} was behind {name} and is behind {new} from now on");
            out.event(ServerEvent::Warning(Some(peer), text));
        }
    }

    fn is_address_of(&self, peer: PeerId, prefix: &IpNet) -> bool {
        let connected = self.clients.get(&peer).and_then(|client| client.connected());
        connected.is_some_and(|connected| connected.lease.prefixes().contains(prefix))
    }

    pub(super) fn name_of(&self, peer: PeerId) -> String {
        let connected = self.clients.get(&peer).and_then(|client| client.connected());
        connected.map(|c| c.info.identity.common_name.clone()).unwrap_or_default()
    }
}

pub(super) fn addresses_of(
    peer: PeerId,
    identity: &PeerIdentity,
    grant: &auth::ClientParams,
    prefixes: Vec<IpNet>,
) -> ServerEvent {
    let mut groups: Vec<String> = Vec::new();
    for group in grant.groups.iter().chain(&identity.units).take(MAX_GROUPS) {
        if !groups.contains(group) {
            groups.push(group.clone());
        }
    }
    let name = identity.common_name.clone();
    ServerEvent::Addresses(Box::new(PeerAddresses { peer, name, groups, prefixes }))
}
