//! The engines with client events: the client itself, and either end of a point-to-point tunnel.

use adit_engine::{Engine, Instant, UnixTime};
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent};
use adit_openvpn::data_format::{OpenVpn, Outbox};
use adit_openvpn::negotiate::ControlMessage;
use adit_openvpn::p2p::{PeerConfig, PeerEngine, StaticConfig, StaticEngine};

use super::ClientCommand;

/// The engines that a [`super::Client`] drives.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A client of a server.
    Client(Box<ClientConfig>),
    /// Point-to-point, with a static key.
    Static(Box<StaticConfig>),
    /// Point-to-point, with TLS.
    Peer(Box<PeerConfig>),
}

impl Kind {
    /// Returns the name of the role in `adit status`.
    pub(super) fn role(&self) -> &'static str {
        match self {
            Self::Client(_) => "client",
            Self::Static(_) | Self::Peer(_) => "peer",
        }
    }

    /// Returns the cipher, if none is negotiated.
    pub(super) fn fixed_cipher(&self) -> &'static str {
        match self {
            Self::Static(config) => config.suite.cipher.map_or("none", |cipher| cipher.name()),
            Self::Client(_) | Self::Peer(_) => "",
        }
    }
}

impl From<ClientConfig> for Kind {
    fn from(config: ClientConfig) -> Self {
        Self::Client(Box::new(config))
    }
}

type Out = Outbox<ClientEvent>;

/// The interface of all client engines.
pub(super) trait DrivenEngine: Engine<Event = ClientEvent, Format = OpenVpn> {
    /// Handles a change of the wall clock.
    fn set_unix_time(&mut self, now: Instant, unix_time: UnixTime);
    /// Restarts the engine.
    fn restart(&mut self, now: Instant, out: &mut Out);
    /// Handles a change of the path to the other end. `stale` is true if the stream's own address
    /// no longer exists.
    fn path_changed(&mut self, now: Instant, stale: bool, out: &mut Out);
    /// Ends the engine for good.
    fn shutdown(&mut self, now: Instant, out: &mut Out);
    /// Carries out a command, if the engine knows passwords.
    fn command(&mut self, now: Instant, command: ClientCommand, out: &mut Out) {
        let _ = (now, command, out);
    }
}

macro_rules! drives {
    ($($engine:ty { $($more:item)* })*) => {$(
        impl DrivenEngine for $engine {
            fn set_unix_time(&mut self, now: Instant, unix_time: UnixTime) {
                self.set_unix_time(now, unix_time);
            }

            fn restart(&mut self, now: Instant, out: &mut Out) {
                self.restart(now, out);
            }

            fn path_changed(&mut self, now: Instant, stale: bool, out: &mut Out) {
                self.path_changed(now, stale, out);
            }

            fn shutdown(&mut self, now: Instant, out: &mut Out) {
                self.shutdown(now, out);
            }

            $($more)*
        }
    )*};
}

drives! {
    ClientEngine {
        fn command(&mut self, now: Instant, command: ClientCommand, out: &mut Out) {
            match command {
                ClientCommand::ForgetLogin => self.forget_login(),
                ClientCommand::AuthRetry(retry) => self.set_auth_retry(retry),
                ClientCommand::Respond(text) => {
                    let response = ControlMessage::ChallengeResponse(text);
                    if !self.say(now, &response, out) {
                        tracing::warn!("cr-response: there is no server to respond to");
                    }
                }
            }
        }
    }
    StaticEngine {}
    PeerEngine {}
}
