//! `tls-crypt-v2-verify`: whether the key that a client brought is accepted.
//!
//! The request is about a client whose key is authentic and that has proved its address, by returning a cookie or with
//! a stream. TLS does not begin before the response, and a client whose key is rejected gets no reply.

use adit_engine::{Instant, PeerId, auth};

use super::authorization::{Login, rejection};
use super::{Out, ServerEngine};
use crate::data_format::Output;
use crate::negotiate::PeerInfo;
use crate::packet::Control;
use crate::reason::Reason;
use crate::server::client::{HeldPacket, KeyVerification, Stage};
use crate::tls::PeerIdentity;

/// The maximum number of keys that are verified at a time. It leaves most of the open requests to other clients.
pub(super) const MAX_VERIFICATIONS: usize = 256;

/// The number of free places that entitle a network to one more verification.
pub(super) const FREE_PER_VERIFICATION: usize = 7;

/// The maximum number of a client's packets that wait for the response, in addition to the first. TLS's first message
/// takes two packets or three.
const MAX_HELD: usize = 4;

/// The maximum length of a packet that waits, in bytes. OpenVPN's control packets are shorter.
const MAX_HELD_LEN: usize = 2048;

impl ServerEngine {
    /// Asks whether the key that a client brought is accepted. Returns false if there is nothing to ask.
    pub(super) fn verify_key(&mut self, peer: PeerId, first: &Control<'_>, out: &mut Out) -> bool {
        let Some(client) = self.clients.get(&peer).filter(|_| self.config.checks.verify_key) else {
            return false;
        };
        if client.control_channel.key_metadata().is_none() {
            return false;
        }
        if !self.verifications.take(client.control_channel.link.remote().ip()) {
            self.counters.handshakes_refused += 1;
            self.remove(peer, Reason::TooManyHandshakes, out);
            return true;
        }
        let unknown = (&PeerIdentity::default(), &PeerInfo::default());
        let login = Login { username: None, password: None };
        let identity = self.identity(peer, unknown, login, None, String::new());
        let request = self.new_request(peer);
        if let (Some(client), Some(identity)) = (self.clients.get_mut(&peer), identity) {
            let verification =
                KeyVerification { request, first: HeldPacket::new(first), more: Vec::new() };
            client.stage = Stage::VerifyingKey(Box::new(verification));
            out.push(Output::AuthRequest(request, auth::Request::VerifyKey(identity)));
        }
        self.schedule(peer);
        true
    }

    /// Keeps a packet of a client whose key is being verified. Returns false if no verification is in progress.
    pub(super) fn hold_packet(&mut self, peer: PeerId, packet: &[u8]) -> bool {
        let Some(client) = self.clients.get_mut(&peer) else { return false };
        let Stage::VerifyingKey(verification) = &mut client.stage else { return false };
        if verification.more.len() < MAX_HELD && packet.len() <= MAX_HELD_LEN {
            verification.more.push(packet.to_vec());
        } else {
            // The client sends it again.
            self.counters.held_excess += 1;
        }
        true
    }

    /// Continues with a client whose key was verified, or ends it without a reply.
    pub(super) fn key_verified(
        &mut self,
        now: Instant,
        peer: PeerId,
        response: auth::Response,
        out: &mut Out,
    ) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let verification = match std::mem::replace(&mut client.stage, Stage::Negotiating) {
            Stage::VerifyingKey(verification) => verification,
            other => {
                client.stage = other;
                return;
            }
        };
        self.verifications.release(client.control_channel.link.remote().ip());
        if let Err(reason) = rejection(response) {
            return self.remove(peer, reason, out);
        }
        let KeyVerification { first, more, .. } = *verification;
        self.start(now, peer, &first.control(), out);
        for mut packet in more {
            self.session_frame(now, peer, &mut packet, out);
        }
    }
}
