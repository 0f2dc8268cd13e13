//! The requests about stations behind clients (`learn-address` with a TAP device).

use adit_engine::PeerId;
use adit_engine::auth::{Request, Station};

use super::{Out, ServerEngine};
use crate::data_format::{Command, Output};
use crate::server::client::Stage;

/// The maximum number of open requests about the stations of one client. Beyond this number, a station is refused, and
/// the data plane asks again later.
const MAX_OPEN: usize = 32;

impl ServerEngine {
    /// Asks whether a station behind a client may send frames.
    pub(super) fn station_heard(&mut self, peer: PeerId, mac: [u8; 6], out: &mut Out) {
        let request = self.new_request(peer);
        if let Some(station) = self.station(peer, mac)
            && let Some(client) = self.clients.get_mut(&peer)
            && let Stage::Connected(connected) = &mut client.stage
            && connected.stations.len() < MAX_OPEN
        {
            connected.stations.insert(request, mac);
            return out.push(Output::AuthRequest(request, Request::Learn(station)));
        }
        self.by_ticket.remove(&request);
        out.plane(Command::AllowStation(peer, mac, false));
    }

    /// Returns the station with an address behind a client.
    pub(super) fn station(&self, peer: PeerId, mac: [u8; 6]) -> Option<Station> {
        let client = self.clients.get(&peer)?;
        let vlan = client.connected().and_then(|connected| connected.grant.vlan);
        Some(Station { session: client.number, mac, vlan })
    }
}
