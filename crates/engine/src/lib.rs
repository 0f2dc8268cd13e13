//! The vocabulary of sans-IO protocol engines.
//!
//! An engine is a state machine: it takes bytes, time and answers through [`Engine::handle`], and produces ordered
//! [`Output`]s. It owns no clock, socket, thread or global random generator, so a test can run hours of protocol in
//! milliseconds and a run can be repeated from its seed.

#![forbid(unsafe_code)]

mod address_quota;
pub mod auth;
pub mod command;
mod link;
mod network;
mod outbox;
mod peer_addresses;
mod random;
mod secret_bytes;
mod time;
mod token_bucket;
mod vlan;

pub use address_quota::AddressQuota;
pub use auth::{CertificateFacts, Identity, MAX_GROUPS, is_group_name};
pub use command::{Command, DataFormat, Notice, PeerId};
pub use link::{Family, Link, SocketId, Target, Transport};
pub use network::Network;
pub use outbox::{Outbox, Output};
pub use peer_addresses::PeerAddresses;
pub use random::{Random, Seed};
pub use secret_bytes::SecretBytes;
pub use time::{Instant, UnixTime};
pub use token_bucket::{Rate, TokenBucket};
pub use vlan::{VlanAccept, VlanId, Vlans};

/// One protocol, client or server, without I/O.
pub trait Engine {
    /// The type of the engine's reports in addition to packets: sessions that begin and end, configuration to apply,
    /// reasons.
    type Event;
    /// The data format of the protocol.
    type Format: DataFormat;

    /// Handles one input and appends its outputs to `out`, in the order in which they must be performed.
    ///
    /// It returns no error: a peer that misbehaves causes an event and a [`Command::DelPeer`], and never affects the
    /// others.
    fn handle(
        &mut self,
        now: Instant,
        input: Input<'_, Self::Format>,
        out: &mut Outbox<Self::Event, Self::Format>,
    );

    /// Returns when to call again with [`Input::Tick`], and why (for logs and `status`).
    fn deadline(&self) -> Option<(Instant, &'static str)>;

    /// Returns only the time of [`Engine::deadline`], cheap enough to query after each packet.
    fn due(&self) -> Option<Instant> {
        self.deadline().map(|(at, _)| at)
    }
}

/// An input of an engine.
#[derive(Debug)]
pub enum Input<'a, F: DataFormat> {
    /// Time has passed.
    Tick,
    /// A control packet arrived. The engine may decrypt it in place.
    ControlPacket(Link, &'a mut [u8]),
    /// A [`Output::Dial`] succeeded.
    LinkUp(Link),
    /// A [`Output::Dial`] failed; the text is for the log.
    DialFailed(String),
    /// A stream ended, or a datagram socket broke.
    LinkDown(Link),
    /// The data plane sent a notice.
    Notice(Notice<F>),
    /// The response to an [`Output::AuthRequest`].
    AuthResponse(auth::RequestId, auth::Response),
}
