//! The steps from the key exchange to a session, and the session's later keys.

use adit_engine::command::Float;
use adit_engine::{Instant, PeerId};

use super::{Out, PeerEngine, Session};
use crate::client::ClientEvent;
use crate::data_format::Command;
use crate::p2p::negotiate::agree;
use crate::reason::Reason;
use crate::session::{Agreement, ControlChannel, DataChannel, PeerTerms, all_routes};

/// The TLS exporter label of the peer-id. Both ends write the peer-id into their packets.
const PEER_ID_LABEL: &[u8] = b"EXPORTER-OpenVPN-p2p-peerid";
/// The peer-id without an exporter: "vpn".
const FIXED_PEER_ID: u32 = 0x0076_706e;

impl PeerEngine {
    /// Turns a handshake into the session, which replaces any previous session.
    pub(super) fn admit(&mut self, now: Instant, at: usize, out: &mut Out) -> Result<(), Reason> {
        if self.keeps_session() {
            return Err(Reason::Protocol("another session of the other end (single-session)"));
        }
        // The steps that can fail come first, while there is nothing to undo yet.
        let role = self.config.tls.role();
        let settings = &self.config.settings;
        let Some(attempt) = self.attempts.get_mut(at) else { return Ok(()) };
        let control_channel = &mut attempt.control_channel;
        let negotiation = control_channel.negotiation();
        let remote = negotiation.remote_keys().ok_or(Reason::Protocol("no keys"))?;
        let identity = negotiation.tls().peer().cloned().unwrap_or_default();
        let tls = negotiation.tls().description();
        let agreed = match agree(role, settings, remote)? {
            Ok(agreed) => agreed,
            Err(problem) => {
                out.event(ClientEvent::Warning(problem.to_string()));
                return Err(Reason::Protocol("data channel cipher negotiation failed"));
            }
        };
        let keys = control_channel.data_keys(agreed.exporter)?;
        let wire_id =
            if agreed.data_v2 { Some(wire_id(control_channel, agreed.exporter)?) } else { None };
        if agreed.wrap_renegotiations {
            control_channel.wrap_renegotiations();
        }
        let attempt = self.attempts.remove(at);
        // This handshake authenticated; the others are obsolete.
        self.attempts.clear();
        let mut control_channel = attempt.control_channel;
        let certificates = settings.certificates_of(control_channel.negotiation().tls());
        control_channel.establish(self.config.settings.tran_window);
        let link = control_channel.link;
        if let Some(responder) = &mut self.responder {
            responder.refund(link);
        }
        let peer = self.next_peer;
        self.next_peer = PeerId(1_u32.saturating_sub(peer.0));
        out.event(ClientEvent::Authenticated { server: identity.clone(), tls, certificates });
        let agreement = Agreement {
            terms: PeerTerms {
                peer,
                link,
                wire_id,
                float: Float::if_allowed(
                    !link.is_stream()
                        && (settings.float || self.config.remote_policy.remotes.is_empty()),
                ),
                framing: settings.framing,
                protection: agreed.cipher.protection(&settings.auth, agreed.epoch),
                channel_of: None,
                vlan: None,
            },
            routes: all_routes(),
            keys,
            exporter: agreed.exporter,
            inactive: settings.limits.inactive,
            // `session-timeout` is counted from the start of the engine, not of a session.
            timeout: None,
        };
        let data = DataChannel::establish(now, agreement, settings, &mut self.random, out);
        let former = self.session.replace(Session {
            control_channel,
            data,
            exit_by_control: agreed.exit_by_control,
            identity,
        });
        self.remotes.succeeded();
        let mut tunnel = self.config.tunnel_addrs.tunnel();
        tunnel.peer = Some(peer);
        tunnel.mtu = Some(self.config.settings.tun_mtu);
        tunnel.cipher = Some(agreed.cipher);
        tunnel.remote = Some(link.remote());
        out.event(ClientEvent::Up(Box::new(tunnel)));
        if let Some(former) = &former {
            out.plane(Command::DelPeer(former.data.peer));
        }
        self.taken(link, former.map(|former| former.control_channel.link), out);
        Ok(())
    }

    /// Returns whether the session may not be replaced (`single-session`).
    pub(super) fn keeps_session(&self) -> bool {
        self.config.settings.single_session && self.session.is_some()
    }

    pub(super) fn send_keys_in_session(&mut self) -> Result<(), Reason> {
        let Some(session) = &self.session else { return Ok(()) };
        let (link, cipher) = (session.control_channel.link, session.data.schedule.cipher());
        let keys = self.our_keys(link, Some(cipher));
        let Some(session) = &mut self.session else { return Ok(()) };
        session.control_channel.send_keys(keys)
    }

    /// Checks that a renegotiation has authenticated the session's own peer. If not, and if the
    /// session continues, returns the fault to report.
    pub(super) fn check_identity(&mut self, now: Instant) -> Result<Option<Reason>, Reason> {
        let Some(session) = &mut self.session else { return Ok(None) };
        let identity = session.control_channel.negotiation().tls().peer();
        let fingerprint = identity.map_or("", |identity| &identity.fingerprint);
        if fingerprint == session.identity.fingerprint {
            return Ok(None);
        }
        let reason = Reason::Protocol("another certificate in a renegotiation");
        session.control_channel.reject(now, reason).map(Some)
    }

    /// Processes a completed renegotiation.
    pub(super) fn rekeyed(&mut self, now: Instant, out: &mut Out) -> Result<(), Reason> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let tls = session.control_channel.negotiation().tls();
        let identity = tls.peer().cloned().unwrap_or_default();
        out.event(ClientEvent::Reverified { server: identity, tls: tls.description() });
        let (role, random) = (self.config.tls.role(), &mut self.random);
        let control_channel = &mut session.control_channel;
        let key_id = session.data.rekey(now, role, control_channel, random, out)?;
        let cipher = session.data.schedule.cipher();
        out.event(ClientEvent::Rekeyed { key_id, cipher });
        Ok(())
    }
}

/// Returns the peer-id of a session, the same in both directions.
fn wire_id(control_channel: &ControlChannel, exporter: bool) -> Result<u32, Reason> {
    if !exporter {
        return Ok(FIXED_PEER_ID);
    }
    let mut id = [0; 4];
    let [_, three @ ..] = &mut id;
    control_channel.negotiation().tls().export(PEER_ID_LABEL, three)?;
    Ok(u32::from_be_bytes(id))
}
