//! OpenVPN's own log lines, word for word. Other programs parse them.

use std::net::SocketAddr;

use adit_engine::Transport;
use adit_openvpn::Reason;
use adit_openvpn::packet::SessionId;
use adit_openvpn::server::{ClientInfo, ServerEvent};
use adit_openvpn::tls::{CertificateError, CertificateProblem, PeerIdentity, TlsError};

use crate::Sessions;
use crate::log_events::without_token;
use adit_runtime::driver::{Dialled, Endpoint};
use adit_runtime::say;

/// Formats `[AF_INET]192.0.2.1:1194`, `[AF_INET6]2001:db8::1:1194`.
pub fn address(address: SocketAddr) -> String {
    let ip = address.ip().to_canonical();
    let family = if ip.is_ipv4() { "AF_INET" } else { "AF_INET6" };
    format!("[{family}]{ip}:{}", address.port())
}

/// Formats a client's address as OpenVPN prints it in log lines and status files, without the port for IPv6.
pub fn real(address: SocketAddr) -> String {
    match address.ip().to_canonical() {
        std::net::IpAddr::V4(ip) => format!("{ip}:{}", address.port()),
        std::net::IpAddr::V6(ip) => ip.to_string(),
    }
}

fn udp(address: SocketAddr) -> &'static str {
    if address.is_ipv4() { "UDPv4" } else { "UDPv6" }
}

/// Logs the line about a stream before it is opened.
pub fn dialling(remote: SocketAddr) {
    say!(1, "TCP/UDP: Preserving recently used remote address: {}", address(remote));
    say!(1, "Attempting to establish TCP connection with {}", address(remote));
}

/// Logs the lines about a new client socket.
pub fn dialled(dialled: &Dialled) {
    let remote = dialled.hop;
    let stream = dialled.link.is_stream();
    if stream {
        say!(1, "TCP connection established with {}", address(remote));
    } else {
        say!(1, "TCP/UDP: Preserving recently used remote address: {}", address(remote));
    }
    if let Some((receive, send)) = dialled.buffers {
        say!(3, "Socket Buffers: R=[{receive}->{receive}] S=[{send}->{send}]");
    }
    let protocol = match (stream, remote.is_ipv4()) {
        (false, _) => udp(remote),
        (true, true) => "TCPv4_CLIENT",
        (true, false) => "TCPv6_CLIENT",
    };
    if dialled.bound {
        say!(1, "{protocol} link local (bound): {}", local(dialled.local));
    } else {
        say!(1, "{protocol} link local: (not bound)");
    }
    say!(1, "{protocol} link remote: {}", address(remote));
}

/// Logs the lines about a server's socket.
pub fn listening(endpoint: Endpoint) {
    let bound = endpoint.address;
    let protocol = match (endpoint.transport, bound.is_ipv4()) {
        (Transport::Udp, _) => udp(bound),
        (Transport::Tcp, v4) => {
            say!(1, "Listening for incoming TCP connection on {}", local(bound));
            if v4 { "TCPv4_SERVER" } else { "TCPv6_SERVER" }
        }
    };
    say!(1, "{protocol} link local (bound): {}", local(bound));
    say!(1, "{protocol} link remote: [AF_UNSPEC]");
}

fn local(bound: SocketAddr) -> String {
    if bound.ip().is_unspecified() {
        let family = if bound.is_ipv4() { "AF_INET" } else { "AF_INET6" };
        format!("[{family}][undef]:{}", bound.port())
    } else {
        address(bound)
    }
}

/// Returns a session's first packet; `label` is empty or ends with a space.
pub fn initial_packet(label: impl Fn() -> String, remote: SocketAddr, session: SessionId) {
    say!(3, "{}TLS: Initial packet from {}, {}", label(), address(remote), sid(session));
}

/// Formats `sid=01020304 05060708`.
fn sid(session: SessionId) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (high, low) = session.0.split_at(SessionId::LEN / 2);
    format!("sid={} {}", hex(high), hex(low))
}

/// Logs the line for an ICMP error in reply to a packet to the server.
pub fn unreachable(remote: SocketAddr, errno: i32, descriptor: i32) {
    let name = nix::errno::Errno::from_raw(errno);
    let words = name.desc();
    say!(1, "read {} [{name:?}]: {words} (fd={descriptor},code={errno})", udp(remote));
}

/// Logs a verified chain, starting at its root; `label` is empty or ends with a space.
fn verified(label: &str, peer: &PeerIdentity, usage_checked: bool) {
    if peer.fingerprint.is_empty() {
        // The peer has no certificate.
        return;
    }
    for (issuer, depth) in peer.issuers.iter().zip(1_usize..).collect::<Vec<_>>().into_iter().rev()
    {
        say!(2, "{label}VERIFY OK: depth={depth}, {issuer}");
    }
    if usage_checked {
        say!(2, "{label}VERIFY KU OK");
        say!(2, "{label}VERIFY EKU OK");
    }
    if !peer.weakness.is_empty() {
        tracing::warn!(
            "{label}certificate {}: it has {}, which can be broken; accepted by tls-cert-profile",
            peer.subject,
            peer.weakness
        );
    }
    say!(2, "{label}VERIFY OK: depth=0, {}", peer.subject);
}

/// Formats the session's TLS parameters, the peer's certificate, and the group of the key exchange.
fn control_channel(tls: &str, peer: &PeerIdentity) -> String {
    let (suite, group) = tls.split_once(", group ").unwrap_or((tls, ""));
    let mut text = suite.to_owned();
    if !peer.key.is_empty() {
        text.push_str(&format!(", peer certificate: {}", peer.key));
    }
    match group {
        "" => {}
        "X25519" => text.push_str(", peer temporary key: 253 bits X25519"),
        "secp256r1" => text.push_str(", peer temporary key: 256 bits ECprime256v1"),
        "secp384r1" => text.push_str(", peer temporary key: 384 bits ECsecp384r1"),
        other => text.push_str(&format!(", peer temporary key: {other}")),
    }
    text
}

/// Logs the lines about an authenticated server.
pub fn authenticated(
    server: &PeerIdentity,
    usage_checked: bool,
    tls: &str,
    remote: Option<SocketAddr>,
) {
    verified("", server, usage_checked);
    say!(2, "Control Channel: {}", control_channel(tls, server));
    if let Some(remote) = remote {
        let name = &server.common_name;
        say!(1, "[{name}] Peer Connection Initiated with {}", address(remote));
    }
}

/// Logs the reason for a client's restart, and the signal that OpenVPN would raise for it.
pub fn restarting(reason: &Reason, server: &str, hand_window: u64) {
    match reason {
        Reason::PingRestart => {
            say!(1, "[{server}] Inactivity timeout (--ping-restart), restarting");
        }
        Reason::HandshakeTimeout => {
            say!(
                1,
                "TLS Error: TLS key negotiation failed to occur within {hand_window} seconds (check \
                 your network connectivity)"
            );
            say!(1, "TLS Error: TLS handshake failed");
        }
        Reason::Tls(TlsError::Certificate(error)) => {
            certificate_refused("", error);
            say!(1, "TLS Error: TLS handshake failed");
        }
        Reason::ServerRestart(_) => {
            say!(1, "Connection reset command was pushed by server ('{reason}')");
        }
        Reason::RemoteExit => {
            say!(1, "[{server}] Connection reset, restarting [remote-exit]");
        }
        Reason::AuthFailed(words) | Reason::AuthTokenRefused(words) => {
            let words = if words.is_empty() { String::new() } else { format!(",{words}") };
            say!(1, "AUTH: Received control message: AUTH_FAILED{words}");
        }
        Reason::NoAnswer => say!(1, "Server poll timeout, restarting"),
        Reason::ConnectionReset => say!(1, "Connection reset, restarting [0]"),
        Reason::RestartRequested => {
            return say!(1, "SIGUSR1[hard,] received, process restarting");
        }
        _ => say!(1, "{reason}"),
    }
    say!(1, "SIGUSR1[soft,{}] received, process restarting", restart_cause(reason));
}

/// Returns OpenVPN's name of the cause of a client's restart.
pub fn restart_cause(reason: &Reason) -> &'static str {
    match reason {
        Reason::PingRestart => "ping-restart",
        Reason::HandshakeTimeout | Reason::Tls(TlsError::Certificate(_)) => "tls-error",
        Reason::ServerRestart(_) => "server-pushed-connection-reset",
        Reason::RemoteExit => "remote-exit",
        Reason::NoAnswer => "server_poll",
        Reason::ConnectionReset => "connection-reset",
        Reason::RestartRequested => "SIGUSR1",
        Reason::AuthFailed(_) => "auth-failure",
        Reason::AuthTokenRefused(_) => "auth-failure (auth-token)",
        _ => "connection-failed",
    }
}

/// The options that select a server's log lines.
#[derive(Copy, Clone, Debug)]
pub struct Style {
    /// `remote-cert-tls`.
    pub usage_checked: bool,
    /// `tls-auth`, as opposed to `tls-crypt` or `tls-crypt-v2`.
    pub tls_auth: bool,
}

/// Logs a server's event.
pub fn server_event(event: &ServerEvent, sessions: &Sessions, style: Style) {
    let label = |peer: &adit_engine::PeerId| {
        sessions.get(*peer).map_or_else(
            || format!("peer-id {}", peer.0),
            |session| {
                let info = &session.info;
                format!("{}/{}", info.identity.common_name, real(info.link.remote()))
            },
        )
    };
    match event {
        ServerEvent::Accepted(link) => {
            say!(1, "TCP connection established with {}", address(link.remote()));
        }
        ServerEvent::HandshakeStarted(link, session) => {
            let remote = link.remote();
            let label = || format!("{} ", real(remote));
            initial_packet(label, remote, *session);
        }
        ServerEvent::Addresses(_)
        | ServerEvent::ChallengeResponse { .. }
        | ServerEvent::Ending(_)
        | ServerEvent::StationForgotten(_) => {}
        ServerEvent::Told { peer, link, name, message } => {
            let label = || sessions.get(*peer).map_or_else(|| real(link.remote()), |_| label(peer));
            let message = without_token(message);
            say!(3, "{} SENT CONTROL [{name}]: '{message}' (status=1)", label());
        }
        ServerEvent::Resumed(info, _) => {
            let (name, from) = (&info.identity.common_name, real(info.link.remote()));
            say!(3, "{name}/{from} session continues in this process");
        }
        ServerEvent::ClientUp(info) => client_up(info, style.usage_checked),
        ServerEvent::ClientDown(peer, reason, _) => client_down(&label(peer), reason),
        ServerEvent::HandshakeFailed(link, reason) => {
            let real = real(link.remote());
            match reason {
                // Not logged as the client's failure: programs that ban clients would treat it as one.
                Reason::Shutdown => return,
                Reason::ConnectionReset => {
                    say!(1, "{real} Connection reset, restarting [0]");
                    say!(
                        2,
                        "{real} SIGUSR1[soft,connection-reset] received, client-instance restarting"
                    );
                    return;
                }
                Reason::Tls(TlsError::Certificate(error)) => {
                    certificate_refused(&format!("{real} "), error);
                }
                _ => say!(1, "{real} TLS Error: {reason}"),
            }
            say!(1, "{real} TLS Error: TLS handshake failed");
            say!(2, "{real} SIGUSR1[soft,tls-error] received, client-instance restarting");
        }
        ServerEvent::Refused(link, identity, reason) => {
            let real = real(link.remote());
            verified(&format!("{real} "), identity, style.usage_checked);
            if matches!(reason, Reason::Rejected(_)) {
                // Intrusion prevention programs match this line.
                say!(
                    1,
                    "{real} TLS Auth Error: Auth Username/Password verification failed for peer"
                );
            }
            say!(1, "{real} [{}] refused: {reason}", identity.common_name);
            say!(1, "{real} SIGTERM[soft,delayed-exit] received, client-instance exiting");
        }
        ServerEvent::Unauthentic(link) if style.tls_auth => {
            say!(1, "Authenticate/Decrypt packet error: packet HMAC authentication failed");
            let address = address(link.remote());
            say!(1, "TLS Error: incoming packet authentication failed from {address}");
        }
        ServerEvent::Unauthentic(link) => {
            say!(1, "tls-crypt unwrap error: packet authentication failed");
            say!(1, "TLS Error: tls-crypt unwrapping failed from {}", address(link.remote()));
        }
        ServerEvent::UsedElsewhere(used) => tracing::warn!(
            "{}: two devices use this certificate: {} and {}; give each one of its own, or use duplicate-cn",
            used.name,
            used.former,
            used.newer
        ),
        ServerEvent::Floated(peer, link) => {
            say!(1, "{} peer {} floated to {}", label(peer), peer.0, address(link.remote()));
        }
        ServerEvent::Reverified(peer, identity, tls) => {
            let label = label(peer);
            verified(&format!("{label} "), identity, style.usage_checked);
            say!(2, "{label} Control Channel: {}", control_channel(tls, identity));
        }
        ServerEvent::Rekeyed(peer, key_id) => {
            say!(3, "{} TLS: soft reset, new data channel key {key_id}", label(peer));
        }
        ServerEvent::Note(Some(peer), text) => say!(3, "{} {text}", label(peer)),
        ServerEvent::Note(None, text) => say!(3, "{text}"),
        ServerEvent::Path(peer, path) => {
            say!(3, "{} {path}", label(peer));
        }
        ServerEvent::Warning(Some(peer), text) => tracing::warn!("{} {text}", label(peer)),
        ServerEvent::Warning(None, text) => tracing::warn!("{text}"),
    }
}

/// Logs the lines about a refused certificate: first openvpn's wording, which intrusion prevention programs match, and
/// then the remedy.
fn certificate_refused(label: &str, error: &CertificateError) {
    let CertificateError { problem, subject, detail } = error;
    match problem {
        CertificateProblem::NameMismatch => {
            let wanted = detail.split('"').nth(1).unwrap_or_default();
            say!(1, "{label}VERIFY X509NAME ERROR: {subject}, must be {wanted}");
        }
        CertificateProblem::ExtendedKeyUsage => say!(1, "{label}VERIFY EKU ERROR"),
        CertificateProblem::KeyUsage => say!(1, "{label}VERIFY KU ERROR"),
        _ => {}
    }
    say!(1, "{label}VERIFY ERROR: depth=0, error={}", verify_error(subject, detail));
    say!(1, "{label}VERIFY ERROR: {detail}");
}

/// The prefixes of our messages about certificates, and OpenSSL's text for each.
const OPENSSL_WORDS: &[(&str, &str)] = &[
    ("it, or an intermediate of its chain, is revoked", "certificate revoked"),
    ("it expired", "certificate has expired"),
    ("an intermediate of its chain expired", "certificate has expired"),
    ("it is valid from", "certificate is not yet valid"),
    ("our revocation list expired", "CRL has expired"),
    ("our `crl-verify` file has no list", "unable to get certificate CRL"),
    ("our revocation list is not validly signed", "CRL signature failure"),
    ("its CA is valid from", "certificate has expired"),
    ("it was issued by", "unable to get local issuer certificate"),
    ("its signature is not that of our CA", "certificate signature failure"),
    ("its RSA key has", "EE certificate key too weak"),
    ("its kind of key or signature", "EE certificate key too weak"),
    ("it is signed with", "CA signature digest algorithm too weak"),
    ("its chain is too deep", "certificate chain too long"),
    ("it came with", "certificate chain too long"),
    ("it is a CA's certificate", "invalid CA certificate"),
    ("its extended key usage is for the other role", "unsupported certificate purpose"),
    ("it has a critical extension", "unhandled critical extension"),
];

/// Formats `REASON: SUBJECT` as openvpn writes it.
fn verify_error(subject: &str, detail: &str) -> String {
    let known = OPENSSL_WORDS.iter().find(|(ours, _)| detail.starts_with(ours));
    let words = known.map_or("certificate rejected", |(_, theirs)| theirs);
    if subject.is_empty() { words.to_owned() } else { format!("{words}: {subject}") }
}

fn client_up(info: &ClientInfo, usage_checked: bool) {
    let remote = info.link.remote();
    let real = real(remote);
    let name = &info.identity.common_name;
    let label = format!("{name}/{real}");
    verified(&format!("{real} "), &info.identity, usage_checked);
    for (key, value) in &info.peer_info {
        say!(1, "{real} peer info: {key}={value}");
    }
    say!(2, "{real} Control Channel: {}", control_channel(&info.tls, &info.identity));
    say!(1, "{real} [{name}] Peer Connection Initiated with {}", address(remote));
    let shown = |ip: Option<String>| ip.unwrap_or_else(|| "(Not enabled)".into());
    let (v4, v6) = (info.ipv4.map(|ip| ip.to_string()), info.ipv6.map(|ip| ip.to_string()));
    say!(
        1,
        "{label} MULTI_sva: pool returned IPv4={}, IPv6={}",
        shown(v4.clone()),
        shown(v6.clone())
    );
    for (ip, kind) in [(v4, "IP"), (v6, "IPv6")] {
        if let Some(ip) = ip {
            say!(3, "{label} MULTI: Learn: {ip} -> {label}");
            say!(3, "{label} MULTI: primary virtual {kind} for {label}: {ip}");
        }
    }
    say!(2, "{label} Data Channel: cipher '{}', peer-id: {}", info.cipher.name(), info.peer.0);
}

fn client_down(label: &str, reason: &Reason) {
    // The name may contain slashes; the address does not.
    let name = label.rsplit_once('/').map_or(label, |(name, _)| name);
    match reason {
        Reason::Shutdown => say!(4, "{label} {reason}"),
        Reason::ClientSilent => {
            say!(1, "{label} [{name}] Inactivity timeout (--ping-restart), restarting");
            say!(1, "{label} SIGUSR1[soft,ping-restart] received, client-instance restarting");
        }
        Reason::ConnectionReset => {
            say!(1, "{label} Connection reset, restarting [0]");
            say!(1, "{label} SIGUSR1[soft,connection-reset] received, client-instance restarting");
        }
        Reason::RemoteExit => {
            say!(1, "{label} SIGTERM[soft,remote-exit] received, client-instance exiting");
        }
        _ => {
            say!(1, "{label} {reason}");
            say!(1, "{label} SIGTERM[soft,{}] received, client-instance exiting", reason.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_openvpns_form() {
        assert_eq!(address("192.0.2.1:1194".parse().unwrap()), "[AF_INET]192.0.2.1:1194");
        assert_eq!(address("[2001:db8::1]:1194".parse().unwrap()), "[AF_INET6]2001:db8::1:1194");
        assert_eq!(address("[::ffff:192.0.2.1]:1".parse().unwrap()), "[AF_INET]192.0.2.1:1");
        assert_eq!(real("192.0.2.1:7".parse().unwrap()), "192.0.2.1:7");
        assert_eq!(real("[2001:db8::1]:7".parse().unwrap()), "2001:db8::1");
        assert_eq!(local("0.0.0.0:1194".parse().unwrap()), "[AF_INET][undef]:1194");
    }

    #[test]
    fn a_refused_certificate_has_openvpns_form() {
        let revoked = "it, or an intermediate of its chain, is revoked";
        assert_eq!(verify_error("C=DE, CN=a", revoked), "certificate revoked: C=DE, CN=a");
        assert_eq!(verify_error("", "none came"), "certificate rejected");
        let late = "it expired at 2020-01-01; renew it";
        assert_eq!(verify_error("CN=a", late), "certificate has expired: CN=a");
    }

    #[test]
    fn a_session_id_is_two_words() {
        assert_eq!(
            sid(SessionId([0xec, 0x9a, 1, 0xd9, 0xf, 0x5c, 0xd, 0])),
            "sid=ec9a01d9 0f5c0d00"
        );
    }

    #[test]
    fn the_control_channel_has_openvpns_form() {
        let peer = PeerIdentity {
            key: "256 bits ECprime256v1, signature: ecdsa-with-SHA256".into(),
            ..PeerIdentity::default()
        };
        assert_eq!(
            control_channel("TLSv1.3, cipher TLSv1.3 TLS_AES_256_GCM_SHA384, group X25519", &peer),
            "TLSv1.3, cipher TLSv1.3 TLS_AES_256_GCM_SHA384, peer certificate: 256 bits \
             ECprime256v1, signature: ecdsa-with-SHA256, peer temporary key: 253 bits X25519"
        );
    }

    #[test]
    fn a_reason_becomes_one_word() {}
}
