//! The running server, as far as commands concern it.

use std::time::Duration;

use adit_openvpn::server::Disconnect;
use adit_openvpn_service::{Handle, Selector, Sessions};

use super::super::server::status_of;
use super::session::{Reply, Request};

/// The time after which a request that the server does not answer fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running server.
#[derive(Clone)]
pub(crate) struct ServerProgram(pub(crate) Handle);

impl ServerProgram {
    /// Answers a request of a management client.
    pub(super) async fn answer(&self, request: Request) -> Reply {
        let answer = tokio::time::timeout(PATIENCE, self.ask(request)).await;
        answer.unwrap_or(Reply::Unavailable)
    }

    async fn ask(&self, request: Request) -> Reply {
        let reason = "killed by the management interface";
        let (selector, disconnect, reason) = match request {
            Request::Status(version) => return self.visit(move |all| status(all, version)).await,
            Request::LoadStats | Request::Clients => return self.visit(load).await,
            Request::KillName(name) => {
                (Selector::Name(name), Disconnect::Restart, reason.to_owned())
            }
            Request::KillAddress(address) => {
                (Selector::Address(address), Disconnect::Restart, reason.to_owned())
            }
            Request::KillSession { number, halt, reason } => {
                let disconnect = if halt { Disconnect::Halt } else { Disconnect::Restart };
                (Selector::Session(number), disconnect, reason)
            }
        };
        let ended = self.0.disconnect(selector, disconnect, reason).await;
        ended.map_or(Reply::Unavailable, Reply::Killed)
    }

    async fn visit(&self, read: impl FnOnce(&Sessions) -> Reply + Send + 'static) -> Reply {
        self.0.visit(read).await.unwrap_or(Reply::Unavailable)
    }
}

fn status(sessions: &Sessions, version: u8) -> Reply {
    Reply::Status(status_of(sessions, version))
}

fn load(sessions: &Sessions) -> Reply {
    let (mut received, mut sent) = (0_u64, 0_u64);
    for session in sessions.iter() {
        received = received.saturating_add(session.counters.rx_bytes);
        sent = sent.saturating_add(session.counters.tx_bytes);
    }
    Reply::Load { clients: sessions.len(), received, sent }
}
