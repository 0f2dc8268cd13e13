use adit_engine::Instant;
use adit_openvpn::server::ServerEvent;

use super::Sessions;
use super::log_limits::is_logged;
use adit_runtime::log::{LogLimiter, bytes};
use adit_runtime::say;

/// The log of a server that another process runs: its events in plain words, limited by source.
#[derive(Debug, Default)]
pub struct EventLog {
    sessions: Sessions,
    limiter: LogLimiter,
}

impl EventLog {
    /// Logs an event, unless its source has caused too many lines.
    pub fn log(&mut self, now: Instant, event: &ServerEvent) {
        if is_logged(&mut self.limiter, now, event, &self.sessions) {
            log_event(event, &self.sessions);
        }
        self.sessions.record(now, event);
    }

    /// Logs how many lines were left out. Call it about once a second.
    pub fn tick(&mut self, now: Instant) {
        log_overdue(&mut self.limiter, now);
    }
}

/// Logs how many lines the limits have left out.
pub(super) fn log_overdue(limiter: &mut LogLimiter, now: Instant) {
    for suppressed in limiter.overdue(now) {
        match suppressed.kind {
            Some(kind) => say!(kind.verb(), "{suppressed}"),
            None => tracing::warn!("{suppressed}"),
        }
    }
}

/// Logs an event in plain words: the client, the event and the reason.
pub(super) fn log_event(event: &ServerEvent, sessions: &Sessions) {
    let label = |peer: &adit_engine::PeerId| {
        sessions.get(*peer).map_or_else(|| format!("peer {}", peer.0), |session| session.label())
    };
    match event {
        ServerEvent::Accepted(link) => say!(4, "{}: TCP connection accepted", link.remote()),
        ServerEvent::HandshakeStarted(link, _) => say!(4, "{}: handshake started", link.remote()),
        ServerEvent::Addresses(_) | ServerEvent::Ending(_) | ServerEvent::StationForgotten(_) => {}
        ServerEvent::Told { link, message, .. } => {
            say!(4, "{}: sent '{}'", link.remote(), without_token(message));
        }
        ServerEvent::Resumed(info, _) => {
            let (name, from) = (&info.identity.common_name, info.link.remote());
            say!(3, "{name}: session {} from {from} continues in this process", info.session);
        }
        ServerEvent::ClientUp(info) => {
            let inside = [info.ipv4.map(|ip| ip.to_string()), info.ipv6.map(|ip| ip.to_string())];
            let inside: Vec<String> = inside.into_iter().flatten().collect();
            let what = if info.check { "connection check" } else { "connected" };
            say!(
                1,
                "{}: {what} from {} (session {}): {}, {}, {}",
                info.identity.common_name,
                info.link.remote(),
                info.peer.0,
                inside.join(" and "),
                info.cipher.name(),
                info.tls
            );
        }
        ServerEvent::ClientDown(peer, reason, counters) => say!(
            1,
            "{}: disconnected (session {}): {reason}; {} received, {} sent",
            label(peer),
            peer.0,
            bytes(counters.rx_bytes),
            bytes(counters.tx_bytes)
        ),
        // The self-test connects to every listener, receives an answer and disconnects.
        ServerEvent::HandshakeFailed(link, reason)
            if link.is_stream() && link.remote().ip().to_canonical().is_loopback() =>
        {
            say!(4, "{}: handshake failed: {reason}", link.remote());
        }
        ServerEvent::HandshakeFailed(link, reason) => {
            tracing::warn!("{}: handshake failed: {reason}", link.remote().ip());
        }
        ServerEvent::Refused(link, identity, reason) => {
            let address = link.remote().ip();
            match identity.common_name.as_str() {
                "" => tracing::warn!("{address}: authentication failed: {reason}"),
                name => tracing::warn!("{name} ({address}): authentication failed: {reason}"),
            }
        }
        ServerEvent::Unauthentic(link) => {
            say!(2, "{}: packets failed authentication: another key, or a scanner", link.remote());
        }
        ServerEvent::UsedElsewhere(used) => tracing::warn!(
            "{}: two devices use this profile: {} and {} ({}): give each a profile of its own",
            used.name,
            used.former,
            used.newer,
            times(used.count)
        ),
        ServerEvent::Floated(peer, link) => say!(1, "{}: moved to {}", label(peer), link.remote()),
        ServerEvent::Reverified(peer, _, tls) => say!(4, "{}: {tls}", label(peer)),
        ServerEvent::Rekeyed(peer, key_id) => {
            say!(3, "{}: new data key ({key_id})", label(peer));
        }
        // The response may be a secret.
        ServerEvent::ChallengeResponse { .. } => {}
        ServerEvent::Note(peer, text) => match peer {
            Some(peer) => say!(2, "{}: {text}", label(peer)),
            None => say!(2, "{text}"),
        },
        ServerEvent::Path(peer, path) => {
            say!(3, "{}: {path}", label(peer));
        }
        ServerEvent::Warning(peer, text) => match peer {
            Some(peer) => tracing::warn!("{}: {text}", label(peer)),
            None => tracing::warn!("{text}"),
        },
    }
}

/// Removes a token from a control message, because it is equivalent to a password.
pub(crate) fn without_token(message: &str) -> String {
    let hidden = |option: &str| match option.strip_prefix("auth-token ") {
        Some(_) => "auth-token [hidden]".to_owned(),
        None => option.to_owned(),
    };
    message.split(',').map(hidden).collect::<Vec<_>>().join(",")
}

/// Formats `once`, `3 times`.
fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_clients_stay_out_of_the_log() {
        let message = "PUSH_REPLY,ping 10,auth-token SESS_ID_x/y+z==,peer-id 1";
        let shown = without_token(message);
        assert_eq!(shown, "PUSH_REPLY,ping 10,auth-token [hidden],peer-id 1");
        assert_eq!(without_token("PUSH_REPLY,ping 10"), "PUSH_REPLY,ping 10");
    }
}
