//! The tokens that clients get (`auth-gen-token`).

use adit_engine::{Instant, PeerId};
use zeroize::Zeroizing;

use super::control::report_control_message;
use super::{Out, ServerEngine};
use crate::reason::Reason;
use crate::server::auth_token::{SESSION_ID_LEN, Token, TokenPolicy};
use crate::server::client::{ClientToken, ConnectedClient, NegotiatedClient, Stage};
use crate::server::push::push_bundles;

impl ServerEngine {
    /// Makes the token for a client that gets a session. A client that came with a valid token gets one of the same
    /// session, whose lifetime goes on.
    pub(super) fn new_token(
        &mut self,
        now: Instant,
        negotiated: &NegotiatedClient,
    ) -> Result<Option<(ClientToken, Zeroizing<String>)>, Reason> {
        let Some(username) = &negotiated.username else { return Ok(None) };
        let Some(policy) = &self.config.checks.tokens else { return Ok(None) };
        let renewed = self.clock.at(now);
        let token = match &negotiated.token {
            Some(former) => Token { renewed, ..*former },
            None => {
                let session: [u8; SESSION_ID_LEN] = self.random.bytes();
                Token { session, initial: renewed, renewed }
            }
        };
        let text = token.encode(&policy.key, username)?;
        let renew_at = self.next_renewal(now, policy);
        Ok(Some((ClientToken { token, renew_at }, text)))
    }

    /// Returns when a token is renewed if no renegotiation does it before.
    fn next_renewal(&self, now: Instant, policy: &TokenPolicy) -> Option<Instant> {
        let rekeying = self.config.settings.renegotiation.after;
        let sooner = rekeying.is_zero() || policy.renewal < rekeying;
        (sooner && !policy.renewal.is_zero()).then(|| now + policy.renewal)
    }

    /// Sends a connected client its next token.
    pub(super) fn renew_token(
        &mut self,
        now: Instant,
        peer: PeerId,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let renewed = self.clock.at(now);
        let Some(policy) = &self.config.checks.tokens else { return Ok(()) };
        let renew_at = self.next_renewal(now, policy);
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        let Stage::Connected(connected) = &mut client.stage else { return Ok(()) };
        let (Some(token), Some(username)) = (&mut connected.token, &connected.info.username) else {
            return Ok(());
        };
        *token = ClientToken { token: Token { renewed, ..token.token }, renew_at };
        let text = token.token.encode(&policy.key, username)?;
        if let Ok(push) = push_bundles(&connected.options, Some(text.as_str())) {
            connected.push = push;
        }
        let message = Zeroizing::new(format!("PUSH_REPLY,auth-token {}\0", *text));
        client.control_channel.send_message(message.as_bytes().to_vec())?;
        report_control_message(peer, client, "PUSH_REPLY,auth-token".into(), out);
        Ok(())
    }

    /// Returns the text of a client's current token.
    pub(super) fn token_text(&self, connected: &ConnectedClient) -> Option<Zeroizing<String>> {
        let policy = self.config.checks.tokens.as_ref()?;
        let (token, username) = (connected.token.as_ref()?, connected.info.username.as_ref()?);
        token.token.encode(&policy.key, username).ok()
    }
}
