use adit_engine::{Instant, Link, PeerId};
use adit_openvpn::server::ServerEvent;

use super::Sessions;
use adit_runtime::log::{Kind, LogDecision, LogLimiter, Source};

/// Returns whether the limits of the event's source allow it to be logged. In either style its lines count as one.
pub(super) fn is_logged(
    repeats: &mut LogLimiter,
    now: Instant,
    event: &ServerEvent,
    sessions: &Sessions,
) -> bool {
    let stranger = |link: &Link| Source::Unauthenticated(link.remote().ip());
    let client = |peer: &PeerId| match sessions.get(*peer) {
        Some(session) => Source::Client(session.info.identity.common_name.clone()),
        None => Source::Pending,
    };
    let (source, kind, text) = match event {
        // These events cause no lines.
        ServerEvent::Addresses(_)
        | ServerEvent::ChallengeResponse { .. }
        | ServerEvent::Ending(_)
        | ServerEvent::Resumed(..)
        | ServerEvent::StationForgotten(_) => return true,
        ServerEvent::Accepted(link) => (stranger(link), Kind::Accepted, ""),
        ServerEvent::HandshakeStarted(link, _) => (stranger(link), Kind::HandshakeStarted, ""),
        ServerEvent::HandshakeFailed(link, reason) => {
            (stranger(link), Kind::HandshakeFailed, &*reason.to_string())
        }
        ServerEvent::Refused(link, _, reason) => {
            (stranger(link), Kind::Refused, &*reason.to_string())
        }
        ServerEvent::Unauthentic(link) => (stranger(link), Kind::Unauthentic, ""),
        ServerEvent::UsedElsewhere(used) => {
            (Source::Client(used.name.clone()), Kind::Warning, "used from two addresses")
        }
        ServerEvent::ClientUp(info) => {
            (Source::Client(info.identity.common_name.clone()), Kind::Session, "")
        }
        ServerEvent::ClientDown(peer, ..) => (client(peer), Kind::Session, ""),
        ServerEvent::Told { name, .. } => (Source::Client(name.clone()), Kind::Activity, ""),
        ServerEvent::Floated(peer, _)
        | ServerEvent::Reverified(peer, ..)
        | ServerEvent::Rekeyed(peer, _)
        | ServerEvent::Path(peer, _) => (client(peer), Kind::Activity, ""),
        ServerEvent::Note(Some(peer), text) => (client(peer), Kind::Activity, text.as_str()),
        // These events are not caused by a peer.
        ServerEvent::Note(None, _) => return true,
        ServerEvent::Warning(Some(peer), text) => (client(peer), Kind::Warning, text.as_str()),
        ServerEvent::Warning(None, text) => (Source::Server, Kind::Warning, text.as_str()),
    };
    repeats.count(now, &source, kind, text) == LogDecision::Log
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use adit_openvpn::Reason;
    use adit_openvpn::packet::SessionId;
    use adit_openvpn::server::ClientInfo;
    use adit_openvpn::tls::{CertificateError, CertificateProblem, PeerIdentity, TlsError};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
    use tracing_subscriber::registry::Registry;

    use super::*;
    use crate::compat_log;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);
    const PEER: PeerId = PeerId(3);
    /// The maximum number of lines of one event in OpenVPN's style: a session's start with the peer information.
    const LINES_PER_EVENT: usize = 16;

    /// Counts lines.
    #[derive(Clone, Default)]
    struct Count(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn link(address: &str) -> Link {
        let address: std::net::IpAddr = address.parse().unwrap();
        Link::datagram(Default::default(), None, (address, 4000).into())
    }

    fn identity() -> PeerIdentity {
        PeerIdentity { common_name: "alice".into(), ..PeerIdentity::default() }
    }

    pub(crate) fn info() -> ClientInfo {
        ClientInfo {
            peer: PEER,
            session: 0,
            identity: identity(),
            username: None,
            link: link("192.0.2.1"),
            ipv4: Some([10, 8, 0, 2].into()),
            ipv6: None,
            networks: Vec::new(),
            cipher: adit_openvpn::negotiate::DataCipher::Aead(adit_crypto::Cipher::Aes256Gcm),
            peer_info: Vec::new(),
            tls: "TLSv1.3".into(),
            since: Default::default(),
            check: false,
            handshake: Default::default(),
        }
    }

    /// Returns the lines that 5000 rounds of events cause in either style, in one period and at its end.
    fn lines(events: impl Fn(u16) -> Vec<ServerEvent>) -> [usize; 2] {
        [false, true].map(|stock| {
            let count = Count::default();
            tracing::subscriber::with_default(Registry::default().with(count.clone()), || {
                let (mut repeats, mut sessions) = (LogLimiter::default(), Sessions::default());
                sessions.record(NOW, &ServerEvent::ClientUp(Box::new(info())));
                for event in (0..5000).flat_map(&events) {
                    if !is_logged(&mut repeats, NOW, &event, &sessions) {
                        continue;
                    }
                    let style = compat_log::Style { usage_checked: true, tls_auth: true };
                    if stock {
                        compat_log::server_event(&event, &sessions, style);
                    } else {
                        super::super::log_events::log_event(&event, &sessions);
                    }
                }
                let later = NOW + adit_runtime::log::limiter::PERIOD;
                repeats.overdue(later).iter().for_each(|left| tracing::warn!("{left}"));
            });
            count.0.load(Ordering::Relaxed)
        })
    }

    #[test]
    fn one_client_makes_so_many_lines_whatever_it_does() {
        let made = lines(|n| {
            let text = format!("ignored control message '{n}'");
            vec![
                ServerEvent::Floated(PEER, link("192.0.2.2")),
                ServerEvent::Reverified(PEER, Box::new(identity()), "TLSv1.3".into()),
                ServerEvent::Rekeyed(PEER, 1),
                ServerEvent::Note(Some(PEER), text.clone()),
                ServerEvent::Warning(Some(PEER), text.clone()),
                ServerEvent::Told {
                    peer: PEER,
                    link: link("192.0.2.1"),
                    name: "alice".into(),
                    message: text,
                },
                ServerEvent::ClientUp(Box::new(info())),
                ServerEvent::ClientDown(PEER, Reason::RemoteExit, Default::default()),
            ]
        });
        let events = [Kind::Activity, Kind::Session, Kind::Warning].map(Kind::limit);
        let most = events.iter().sum::<u32>() as usize * LINES_PER_EVENT;
        assert!(made.iter().all(|lines| (1..=most).contains(lines)), "{made:?} of {most}");
    }

    #[test]
    fn strangers_of_one_site_make_so_many_lines_in_either_style() {
        let expired = |n: u16| {
            let problem = CertificateProblem::Expired;
            let (subject, detail) = (format!("CN={n}"), "it is expired".into());
            Reason::Tls(TlsError::Certificate(Box::new(CertificateError {
                problem,
                subject,
                detail,
            })))
        };
        let sources: [fn(u16) -> String; 3] = [
            |n| format!("2001:db8:1:2::{n:x}"),
            |n| format!("2001:db8:1:{n:x}::1"),
            |_| "192.0.2.1".into(),
        ];
        for source in sources {
            let made = lines(|n| {
                let link = link(&source(n));
                vec![
                    ServerEvent::Accepted(link),
                    ServerEvent::HandshakeStarted(link, SessionId([1; 8])),
                    ServerEvent::HandshakeFailed(link, expired(n)),
                    ServerEvent::Refused(link, Box::new(identity()), expired(n)),
                    ServerEvent::Unauthentic(link),
                ]
            });
            let kinds = [
                Kind::Accepted,
                Kind::HandshakeStarted,
                Kind::HandshakeFailed,
                Kind::Refused,
                Kind::Unauthentic,
            ];
            // The limit of a site is twice that of a network.
            let events = 2 * kinds.map(Kind::limit).iter().sum::<u32>() as usize;
            let most = events * 6 + adit_runtime::log::limiter::SUMMARY_LINES + 1;
            assert!(made.iter().all(|lines| (1..=most).contains(lines)), "{made:?} of {most}");
        }
    }

    /// A failure has three lines in OpenVPN's style. Either all of them are logged, or none.
    #[test]
    fn the_lines_of_a_failure_are_limited_as_one() {
        let failed = |_| vec![ServerEvent::HandshakeFailed(link("192.0.2.1"), Reason::Crypto)];
        let [friendly, stock] = lines(failed);
        // Each style also has a line that counts the suppressed ones.
        assert_eq!((friendly, stock), (2, 4));
    }
}
