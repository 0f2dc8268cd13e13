//! The requests about clients: whether a client may have a session or keep it, and with which parameters.
//!
//! ```text
//! tls-crypt-v2 key ──► VerifyKey ──► TLS
//!
//! key message ──► Authorize ──► addresses ──► Connect ──► session, keys, options
//!                     │                          │
//!                     └──────── AUTH_FAILED ◄────┘
//!
//! in a session: key message ──► Authorize ──► next key
//! ```
//!
//! A client gets no option, address, token or key before every response has accepted it. In a renegotiation, the former
//! key stays in use until the response arrives, and a rejection ends the session.

use std::time::Duration;

use adit_engine::auth::{Connecting, KeyMetadata, Rejection, TokenFacts, TokenState};
use adit_engine::{Identity, Instant, PeerId, auth};
use ipnet::Ipv6Net;
use zeroize::Zeroizing;

use super::admission::{auth_failed, our_keys, without_own};
use super::control::report_control_message;
use super::{Disconnect, Out, ServerEngine};
use crate::data_format::{Command, Output};
use crate::keys::Metadata;
use crate::negotiate::{ControlMessage, IvProto, PeerInfo};
use crate::reason::Reason;
use crate::server::auth_token::{Token, TokenPolicy};
use crate::server::client::{
    AuthorizingClient, NegotiatedClient, Reauthorization, Reservation, Stage,
};
use crate::server::event::ServerEvent;
use crate::server::push::{ifconfig4, ifconfig6_net};
use crate::tls::{PeerIdentity, TlsSession};

/// The maximum length of a user name that names a session, in bytes.
const MAX_NAME: usize = 128;

/// The maximum length of a text for a client, in bytes. It fits into one message of OpenVPN's control channel.
const MAX_TEXT: usize = 1000;

/// The user name and password of a key message.
pub(super) struct Login {
    pub(super) username: Option<String>,
    pub(super) password: Option<Zeroizing<String>>,
}

impl ServerEngine {
    /// Asks for the authorization of a client whose key message has been read, or accepts the client.
    pub(super) fn negotiated(
        &mut self,
        now: Instant,
        peer: PeerId,
        mut negotiated: NegotiatedClient,
        password: Option<Zeroizing<String>>,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let proto = negotiated.peer_info.proto();
        let checks = &self.config.checks;
        if checks.require_username && negotiated.username.is_none() {
            return self.refuse(now, peer, proto, Reason::NoUsername, out);
        }
        let long = |name: &String| name.len() > MAX_NAME;
        if checks.username_as_common_name && negotiated.username.as_ref().is_some_and(long) {
            return self.refuse(now, peer, proto, Reason::UsernameTooLong, out);
        }
        let login = Login { username: negotiated.username.clone(), password };
        let token = self.check_token(now, &login, None)?;
        if let Some((state, found)) = token {
            if let Some(reason) = self.token_refusal(state) {
                return self.refuse(now, peer, proto, reason, out);
            }
            negotiated.token = found.filter(|_| state == TokenState::Authenticated);
        }
        let (authorize, connect) = (self.config.authorize, self.config.checks.connect);
        let identity = if authorize || connect {
            let about = (&negotiated.identity, &negotiated.peer_info);
            let tls = negotiated.tls.clone();
            self.identity(peer, about, login, token, tls)
        } else {
            None
        };
        if !authorize {
            negotiated.about = identity.map(without_password);
            return self.authorized(now, peer, negotiated, auth::ClientParams::default(), out);
        }
        let Some(identity) = identity else { return Ok(()) };
        negotiated.about = connect.then(|| without_password(identity.clone()));
        let question = auth::Request::Authorize(identity);
        self.ask(now, peer, (negotiated, None), question, out);
        Ok(())
    }

    /// Describes a client for a request.
    pub(super) fn identity(
        &self,
        peer: PeerId,
        (identity, peer_info): (&PeerIdentity, &PeerInfo),
        login: Login,
        token: Option<(TokenState, Option<Token>)>,
        tls: String,
    ) -> Option<Box<Identity>> {
        let client = self.clients.get(&peer)?;
        let (negotiation, link) =
            (client.control_channel.negotiation(), client.control_channel.link);
        let policy = self.config.checks.tokens.as_ref();
        let facts = |(state, token): (TokenState, Option<Token>)| TokenFacts {
            session_id: token.map(|token| token.session_id()).unwrap_or_default(),
            state,
            external: policy.is_some_and(|policy| policy.external),
        };
        let token = token.map(facts);
        let mut identity = Identity {
            common_name: identity.common_name.clone(),
            serial: identity.serial.clone(),
            fingerprint: identity.fingerprint.clone(),
            username: login.username,
            password: login.password,
            address: Some(link.remote().ip()),
            certificates: self.config.settings.certificates_of(negotiation.tls()),
            peer_info: peer_info.entries().to_vec(),
            session: client.number,
            key_id: negotiation.key_id,
            renegotiation: client.connected().is_some(),
            check: negotiation.tls().is_check(),
            local: link.local(),
            remote: Some(link.remote()),
            stream: link.is_stream(),
            tls_crypt_v2_metadata: client.control_channel.key_metadata().map(key_metadata),
            token,
            tls,
            exported_key: self.exported_key(negotiation.tls()),
        };
        // A token that replaces the password must not be taken for one.
        if identity.has_valid_token() {
            identity.password = None;
        }
        Some(Box::new(identity))
    }

    /// Returns the secret of the session that the configuration wants for plugins.
    fn exported_key(&self, tls: &TlsSession) -> Option<Zeroizing<Vec<u8>>> {
        let wanted = self.config.checks.exported_key.as_ref()?;
        let mut key = Zeroizing::new(vec![0; wanted.length]);
        tls.export(wanted.label.as_bytes(), &mut key).ok()?;
        Some(key)
    }

    /// Sends a request about a client that has no session yet.
    fn ask(
        &mut self,
        now: Instant,
        peer: PeerId,
        (negotiated, reservation): (NegotiatedClient, Option<Reservation>),
        question: auth::Request,
        out: &mut Out,
    ) {
        let request = self.new_request(peer);
        let until = now + self.config.settings.hand_window;
        if let Some(client) = self.clients.get_mut(&peer) {
            let waiting = AuthorizingClient { request, until, negotiated, reservation };
            client.requested = true;
            client.stage = Stage::Authorizing(Box::new(waiting));
            out.push(Output::AuthRequest(request, question));
        }
    }

    pub(super) fn new_request(&mut self, peer: PeerId) -> auth::RequestId {
        let request = auth::RequestId(self.next_ticket);
        self.next_ticket = self.next_ticket.wrapping_add(1);
        self.by_ticket.insert(request, peer);
        request
    }

    /// Continues with a client that is authorized: reserves its addresses and asks for its parameters, or gives it a
    /// session.
    fn authorized(
        &mut self,
        now: Instant,
        peer: PeerId,
        mut negotiated: NegotiatedClient,
        mut grant: auth::ClientParams,
        out: &mut Out,
    ) -> Result<(), Reason> {
        if let Some(name) = grant.session.as_mut().and_then(|session| session.name.take()) {
            negotiated.identity.common_name = name;
        }
        if self.config.checks.username_as_common_name
            && let Some(username) = &negotiated.username
        {
            negotiated.identity.common_name.clone_from(username);
        }
        let Some(mut identity) = negotiated.about.take().filter(|_| self.config.checks.connect)
        else {
            return self.promote(now, peer, negotiated, (grant, None), out);
        };
        let (name, check) = (negotiated.identity.common_name.clone(), identity.check);
        let grant = if check { without_own(grant) } else { grant };
        let lease = match self.reserve(now, peer, (&name, check), &grant, out) {
            Ok(lease) => lease,
            Err(reason) => {
                let proto = negotiated.peer_info.proto();
                return self.refuse(now, peer, proto, reason, out);
            }
        };
        identity.common_name = name;
        let network4 = self.config.network4.as_ref();
        let ipv6: Option<Ipv6Net> = ifconfig6_net(&self.config, &grant, lease);
        let connecting = Connecting {
            identity: *identity,
            params: grant.clone(),
            ipv4: lease.ipv4,
            ipv6,
            netmask_or_far_end: ifconfig4(network4, &grant, lease).map(|(_, other)| other),
        };
        let question = auth::Request::Connect(Box::new(connecting));
        let reservation = Some(Reservation { grant, lease });
        self.ask(now, peer, (negotiated, reservation), question, out);
        Ok(())
    }

    /// Processes the response to a request.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        request: auth::RequestId,
        response: auth::Response,
        out: &mut Out,
    ) {
        let Some(&peer) = self.by_ticket.get(&request) else { return };
        let Some(client) = self.clients.get_mut(&peer).filter(|c| c.waits_for(request)) else {
            self.by_ticket.remove(&request);
            return;
        };
        if let auth::Response::Pending { timeout, info } = response {
            return self.extend(now, peer, timeout, info, out);
        }
        self.by_ticket.remove(&request);
        if let Stage::VerifyingKey(_) = client.stage {
            return self.key_verified(now, peer, response, out);
        }
        if let Stage::Connected(connected) = &mut client.stage {
            if let Some(mac) = connected.stations.remove(&request) {
                let allowed = matches!(response, auth::Response::Accept(_));
                return out.plane(Command::AllowStation(peer, mac, allowed));
            }
            if let Some(again) = connected.reauthorization.take() {
                self.reauthorized(now, peer, again, response, out);
            }
            return;
        }
        let stage = std::mem::replace(&mut client.stage, Stage::Negotiating);
        let Stage::Authorizing(waiting) = stage else { return };
        let AuthorizingClient { negotiated, reservation, .. } = *waiting;
        let proto = negotiated.peer_info.proto();
        let result = match rejection(response) {
            Ok(grant) if reservation.is_none() => {
                self.authorized(now, peer, negotiated, grant, out)
            }
            Ok(grant) => self.promote(now, peer, negotiated, (grant, reservation), out),
            Err(reason) => {
                self.cancel(peer, &negotiated, reservation);
                self.refuse(now, peer, proto, reason, out)
            }
        };
        self.step(now, peer, out, |_, _, _| result.map(|()| Vec::new()));
    }

    /// Gives a request more time, and tells the client.
    fn extend(
        &mut self,
        now: Instant,
        peer: PeerId,
        timeout: Duration,
        info: Option<String>,
        out: &mut Out,
    ) {
        let settings = &self.config.settings;
        let longest = settings.hand_window.max(settings.renegotiation.after / 2);
        let timeout = timeout.min(longest);
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let (until, proto) = match &mut client.stage {
            Stage::Authorizing(waiting) => {
                (&mut waiting.until, waiting.negotiated.peer_info.proto())
            }
            Stage::Connected(connected) => {
                let proto = PeerInfo::from_entries(&connected.info.peer_info).proto();
                let Some(again) = &mut connected.reauthorization else { return };
                (&mut again.until, proto)
            }
            _ => return,
        };
        *until = (*until).max(now + timeout);
        // An older client does not know keywords, and waits for its own time.
        let announced = proto.has(IvProto::AUTH_PENDING).then_some(timeout);
        let pending = ControlMessage::AuthPending(announced);
        let info = info.map(|text| ControlMessage::InfoPre(printable(&text)));
        let messages: Vec<ControlMessage> = [Some(pending), info].into_iter().flatten().collect();
        self.step(now, peer, out, |client, _, _| {
            for message in &messages {
                client.control_channel.send_message(message.encode())?;
            }
            Ok(Vec::new())
        });
        if let Some(client) = self.clients.get(&peer) {
            for message in &messages {
                report_control_message(peer, client, message.to_string(), out);
            }
        }
    }

    /// Processes the key message of a renegotiation. The client must be the same as before.
    pub(super) fn renegotiated(
        &mut self,
        now: Instant,
        peer: PeerId,
        (identity, tls): (PeerIdentity, String),
        login: Login,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        let Stage::Connected(connected) = &client.stage else { return Ok(()) };
        let cipher = connected.data.schedule.cipher();
        let former = &connected.info;
        // Compare the certificate itself, not only its name, because the authorization request
        // was about this certificate.
        // The client may send the name that it was given with its token (`auth-token-user`).
        let same_user =
            login.username == former.username || login.username == connected.sent_username;
        if former.identity.fingerprint != identity.fingerprint || !same_user {
            let reason = Reason::Protocol("another identity in a renegotiation");
            let reason = client.control_channel.reject(now, reason)?;
            return self.handle_event(now, peer, crate::session::Event::Failed(reason), out);
        }
        let session = connected.token.as_ref().map(|token| token.token);
        let peer_info = PeerInfo::from_entries(&former.peer_info);
        let identity =
            PeerIdentity { common_name: former.identity.common_name.clone(), ..identity };
        let link = client.control_channel.link;
        let ours = our_keys(&mut self.random, &self.config.settings, link, Some(cipher));
        client.control_channel.send_keys(ours)?;
        let token = self.check_token(now, &login, session.as_ref())?;
        if let Some(reason) = token.and_then(|(state, _)| self.token_refusal(state)) {
            self.expel(now, peer, reason, out);
            return Ok(());
        }
        if !self.config.checks.reauthorize {
            out.event(ServerEvent::Reverified(peer, Box::new(identity), tls));
            self.rekeyed(now, peer, out)?;
            return self.renew_token(now, peer, out);
        }
        let about = (&identity, &peer_info);
        let question = self.identity(peer, about, login, token, tls.clone());
        let Some(question) = question else { return Ok(()) };
        let request = self.new_request(peer);
        let until = now + self.config.settings.hand_window;
        if let Some(client) = self.clients.get_mut(&peer)
            && let Stage::Connected(connected) = &mut client.stage
        {
            connected.reauthorization = Some(Reauthorization { request, until, identity, tls });
            out.push(Output::AuthRequest(request, auth::Request::Authorize(question)));
        }
        Ok(())
    }

    /// Installs the key of a renegotiation that was accepted, or ends the session.
    fn reauthorized(
        &mut self,
        now: Instant,
        peer: PeerId,
        again: Reauthorization,
        response: auth::Response,
        out: &mut Out,
    ) {
        match rejection(response) {
            Ok(_) => {
                let identity = Box::new(again.identity);
                out.event(ServerEvent::Reverified(peer, identity, again.tls));
                let result = self.rekeyed(now, peer, out);
                let result = result.and_then(|()| self.renew_token(now, peer, out));
                self.step(now, peer, out, |_, _, _| result.map(|()| Vec::new()));
            }
            Err(reason) => self.expel(now, peer, reason, out),
        }
    }

    /// Forgets a renegotiation that failed while its authorization was pending.
    pub(super) fn forget_reauthorization(&mut self, peer: PeerId) {
        if let Some(client) = self.clients.get_mut(&peer)
            && client.control_channel.has_failed()
            && let Stage::Connected(connected) = &mut client.stage
            && let Some(again) = connected.reauthorization.take()
        {
            self.by_ticket.remove(&again.request);
        }
    }

    /// Ends the session of a client that is not authorized any more.
    fn expel(&mut self, now: Instant, peer: PeerId, reason: Reason, out: &mut Out) {
        let Some(client) = self.clients.get(&peer) else { return };
        let Some(connected) = client.connected() else { return };
        let proto = PeerInfo::from_entries(&connected.info.peer_info).proto();
        let message = ControlMessage::AuthFailed(auth_failed(&reason, proto));
        self.end_with(now, peer, &message, reason, out);
    }

    /// Ends a client whose request was not answered in time.
    pub(super) fn unanswered(&mut self, now: Instant, peer: PeerId, out: &mut Out) {
        let connected = self.clients.get(&peer).is_some_and(|client| client.connected().is_some());
        if connected {
            let reason = Reason::AuthorizationTimeout;
            self.disconnect(now, peer, Disconnect::Restart, reason, out);
        } else {
            self.remove(peer, Reason::AuthorizationTimeout, out);
        }
    }

    /// Checks the token that a client sent instead of a password. In a session, the token must be one of the session's.
    /// Returns `None` if the server issues no tokens.
    fn check_token(
        &self,
        now: Instant,
        login: &Login,
        session: Option<&Token>,
    ) -> Result<Option<(TokenState, Option<Token>)>, Reason> {
        let Some(policy) = &self.config.checks.tokens else { return Ok(None) };
        let Some(password) = login.password.as_ref().filter(|text| TokenPolicy::is_token(text))
        else {
            return Ok(Some((TokenState::Initial, None)));
        };
        let username = login.username.as_deref().unwrap_or_default();
        let (state, token) = policy.verify(password, username, self.clock.at(now))?;
        let foreign = session.zip(token.as_ref()).is_some_and(|(a, b)| a.session != b.session);
        Ok(Some(if foreign { (TokenState::Invalid, None) } else { (state, token) }))
    }

    /// Returns why a client with such a token is refused. With `external-auth`, the other checks decide.
    fn token_refusal(&self, state: TokenState) -> Option<Reason> {
        let external = self.config.checks.tokens.as_ref().is_some_and(|policy| policy.external);
        match state {
            TokenState::Initial | TokenState::Authenticated => None,
            _ if external => None,
            TokenState::Expired | TokenState::ExpiredEmptyUser => Some(Reason::TokenExpired),
            TokenState::Invalid | TokenState::AuthenticatedEmptyUser => Some(Reason::TokenInvalid),
        }
    }

    /// Takes a client's response to a challenge.
    pub(super) fn challenge_response(
        &mut self,
        now: Instant,
        peer: PeerId,
        text: String,
        out: &mut Out,
    ) {
        let asked = self.config.authorize;
        let Some(client) = self.clients.get_mut(&peer) else { return };
        if !asked || !matches!(client.stage, Stage::Authorizing(_) | Stage::Connected(_)) {
            // The response may be a secret.
            let text = "ignored CR_RESPONSE: no challenge is open";
            return self.report(now, peer, out, ServerEvent::Note, || text.into());
        }
        if !client.budget.may_respond(now) {
            self.counters.messages_excess += 1;
            return;
        }
        out.event(ServerEvent::ChallengeResponse { session: client.number, text });
    }
}

/// Returns the parameters of an accepted client, or the reason why it was rejected.
pub(super) fn rejection(response: auth::Response) -> Result<auth::ClientParams, Reason> {
    match response {
        auth::Response::Accept(grant) => Ok(grant),
        auth::Response::Reject(Rejection { log, peer }) => {
            let peer = peer.map(|text| printable(&text));
            Err(Reason::Rejected(Rejection { log, peer }))
        }
        auth::Response::Later(text) => Err(Reason::RejectedForNow(text)),
        auth::Response::Pending { .. } | auth::Response::Credentials { .. } => {
            Err(Reason::Rejected("the response does not fit the request".into()))
        }
    }
}

/// Makes a text fit for a control message: one line, and not too long.
fn printable(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars().map(|c| if c.is_control() { '_' } else { c }) {
        if line.len().saturating_add(c.len_utf8()) > MAX_TEXT {
            break;
        }
        line.push(c);
    }
    line
}

fn without_password(mut identity: Box<Identity>) -> Box<Identity> {
    identity.password = None;
    identity
}

fn key_metadata(metadata: &Metadata) -> KeyMetadata {
    match metadata {
        Metadata::User(content) => KeyMetadata { kind: 0, content: content.clone() },
        Metadata::Timestamp(time) => KeyMetadata { kind: 1, content: time.to_be_bytes().to_vec() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_for_a_client_is_one_message() {
        assert_eq!(printable("CRV1:R,E:id:dXNlcg==:PIN?"), "CRV1:R,E:id:dXNlcg==:PIN?");
        assert_eq!(printable("a\nAUTH_OK\0b\u{1b}"), "a_AUTH_OK_b_");
        assert_eq!(printable(&"ä".repeat(MAX_TEXT)).len(), MAX_TEXT);
    }
}
