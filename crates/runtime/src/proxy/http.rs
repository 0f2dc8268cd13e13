//! HTTP's CONNECT (RFC 9110, 9.3.6) with Basic (RFC 7617) and Digest authentication (RFC 7616).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::AsyncWriteExt;
use zeroize::Zeroizing;

use super::digest::{Challenge, Offer, offer};
use super::{Login, Wire, read};

/// The maximum length of a response's status line and headers in bytes.
const MAX_ANSWER: usize = 8192;
/// The length of our nonces in bytes.
const NONCE: usize = 16;

/// `http-proxy` with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProxy {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The credentials.
    pub login: Option<Login>,
    /// The authentication scheme.
    pub scheme: Scheme,
    /// `http-proxy-option VERSION`.
    pub version: String,
    /// `http-proxy-option AGENT`.
    pub agent: Option<String>,
    /// `http-proxy-option CUSTOM-HEADER`, as names and values.
    pub headers: Vec<(String, String)>,
}

/// The last argument of `http-proxy`: the authentication scheme.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Basic, with the first request.
    #[default]
    Basic,
    /// `auto`: a scheme that the proxy offers. Basic is the last choice, because it reveals the password to anyone who
    /// listens.
    Auto,
    /// `auto-nct`: a scheme that the proxy offers, but never Basic.
    Hidden,
}

/// The authentication that an HTTP proxy demands, for use on another connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Basic, with the password itself.
    Basic,
    /// Digest, with the proxy's challenge.
    Digest(Challenge),
}

impl HttpProxy {
    /// Requests a connection. Returns `Some` if the proxy demands authentication first.
    pub(super) async fn pass(
        &self,
        wire: &mut impl Wire,
        to: (&str, u16),
        wanted: Option<&Authentication>,
    ) -> Result<Option<Authentication>, String> {
        let request = self.request(to, wanted)?;
        wire.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
        let answer = answer(wire).await?;
        let basic = self.login.is_some() && self.scheme == Scheme::Basic;
        match parse_answer(&answer)? {
            Verdict::Open => Ok(None),
            Verdict::Unknown(_) if wanted.is_some() || basic => {
                Err("it refuses user name or password (407)".into())
            }
            Verdict::Unknown(offer) => self.choose(offer).map(Some),
        }
    }

    /// Chooses one of the offered authentication schemes.
    fn choose(&self, offer: Offer) -> Result<Authentication, String> {
        if self.login.is_none() {
            return Err("it asks for a user name and a password (407): give http-proxy a file with both, or \
                        write http-proxy-user-pass"
                .into());
        }
        match (offer.digest, offer.basic, self.scheme) {
            (Some(challenge), ..) => Ok(Authentication::Digest(challenge)),
            (None, true, Scheme::Basic | Scheme::Auto) => Ok(Authentication::Basic),
            (None, true, Scheme::Hidden) => Err("it takes the password in clear text only (Basic), which \
                                                 auto-nct forbids: write auto, if you trust the way to it"
                .into()),
            (None, false, _) => Err(format!(
                "it asks for authentication by {} (407), and Digest and Basic are what there is here: put a \
                 proxy on this machine that knows it (cntlm)",
                crate::log::clean(&offer.names.join(", "))
            )),
        }
    }

    fn request(
        &self,
        (host, port): (&str, u16),
        wanted: Option<&Authentication>,
    ) -> Result<Zeroizing<String>, String> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let mut lines = Zeroizing::new(format!("CONNECT {host}:{port} HTTP/{}\r\n", self.version));
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            lines.push_str(&format!("Host: {host}:{port}\r\n"));
        }
        if let Some(agent) = &self.agent {
            lines.push_str(&format!("User-Agent: {agent}\r\n"));
        }
        for (name, value) in &self.headers {
            lines.push_str(&format!("{name}: {value}\r\n"));
        }
        let early = (self.scheme == Scheme::Basic).then_some(&Authentication::Basic);
        if let (Some(login), Some(wanted)) = (&self.login, wanted.or(early)) {
            let value = match wanted {
                Authentication::Basic => basic(login),
                Authentication::Digest(challenge) => {
                    let random = crate::random::bytes::<NONCE>().map_err(|e| e.to_string())?;
                    challenge.answer(login, &format!("{host}:{port}"), &random)
                }
            };
            lines.push_str("Proxy-Authorization: ");
            lines.push_str(&value);
            lines.push_str("\r\n");
        }
        lines.push_str("\r\n");
        Ok(lines)
    }
}

fn basic(Login { username, password }: &Login) -> Zeroizing<String> {
    let pair = Zeroizing::new(format!("{username}:{}", password.as_str()));
    let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
    Zeroizing::new(format!("Basic {}", encoded.as_str()))
}

/// Reads the proxy's response up to the empty line, byte by byte, because the bytes after it belong to the tunnel.
async fn answer(wire: &mut impl Wire) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") && !bytes.ends_with(b"\n\n") {
        if bytes.len() >= MAX_ANSWER {
            return Err(format!("an answer of more than {MAX_ANSWER} bytes"));
        }
        bytes.extend(read::<1>(wire).await?);
    }
    Ok(bytes)
}

/// The meaning of a response.
enum Verdict {
    /// The proxy has connected to the server.
    Open,
    /// The proxy demands authentication.
    Unknown(Offer),
}

fn parse_answer(answer: &[u8]) -> Result<Verdict, String> {
    let text = String::from_utf8_lossy(answer);
    let line = text.lines().next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let code = words.next().and_then(|word| word.parse::<u16>().ok());
    match code.filter(|_| http) {
        Some(200..=299) => Ok(Verdict::Open),
        Some(407) => Ok(Verdict::Unknown(offer(&text))),
        Some(_) => Err(format!("it says \"{}\"", crate::log::clean(line))),
        None => Err("it is not an HTTP proxy".into()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    fn proxy(login: Option<Login>) -> HttpProxy {
        HttpProxy {
            host: "proxy".into(),
            port: 8080,
            login,
            scheme: Scheme::Basic,
            version: "1.0".into(),
            agent: Some("test".into()),
            headers: vec![("X-A".into(), "b".into())],
        }
    }

    /// Returns the proxy's input and the result, for a response that is followed by a byte of the tunnel.
    async fn pass(
        proxy: HttpProxy,
        answer: &[u8],
    ) -> (String, Result<Option<Authentication>, String>, Vec<u8>) {
        again(proxy, None, answer).await
    }

    async fn again(
        proxy: HttpProxy,
        wanted: Option<&Authentication>,
        answer: &[u8],
    ) -> (String, Result<Option<Authentication>, String>, Vec<u8>) {
        let (mut near, mut far) = tokio::io::duplex(1 << 14);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let outcome = proxy.pass(&mut near, ("vpn.example", 443), wanted).await;
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
        drop(near);
        let mut got = String::new();
        far.read_to_string(&mut got).await.unwrap();
        (got, outcome, rest)
    }

    #[tokio::test]
    async fn asks_for_the_server_by_name_and_leaves_the_tunnels_bytes() {
        let login = Login { username: "ann".into(), password: Zeroizing::new("se:cret".into()) };
        let ok = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nT";
        let (got, outcome, rest) = pass(proxy(Some(login)), ok).await;
        assert_eq!(
            got,
            "CONNECT vpn.example:443 HTTP/1.0\r\nHost: vpn.example:443\r\nUser-Agent: test\r\n\
             X-A: b\r\nProxy-Authorization: Basic YW5uOnNlOmNyZXQ=\r\n\r\n"
        );
        assert_eq!((outcome, rest), (Ok(None), b"T".to_vec()));
    }

    #[tokio::test]
    async fn refusals_say_what_to_do() {
        let answers: [(&[u8], &str); 5] = [
            (b"HTTP/1.1 407 Auth\r\n\r\n", "http-proxy-user-pass"),
            (b"HTTP/1.1 403 No\x1b[2J\r\n\r\n", "403 No\\x1b"),
            (b"SSH-2.0-x\n\n", "is not an HTTP proxy"),
            (b"HTTP/1.1 200 OK\r\n", "closed the connection"),
            (&[b'a'; 9000], "more than 8192"),
        ];
        for (answer, expected) in answers {
            let (_, outcome, _) = pass(proxy(None), answer).await;
            let problem = outcome.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }

    fn ann() -> Option<Login> {
        Some(Login { username: "ann".into(), password: Zeroizing::new("secret".into()) })
    }

    const DIGEST: &[u8] = b"HTTP/1.1 407 x\r\nProxy-Authenticate: Basic realm=\"r\"\r\n\
          Proxy-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\"\r\n\r\n";
    const BASIC: &[u8] = b"HTTP/1.1 407 x\r\nProxy-Authenticate: Basic realm=\"r\"\r\n\r\n";

    #[tokio::test]
    async fn auto_shows_nothing_before_it_is_asked_and_then_no_more_than_it_must() {
        let auto = |scheme| HttpProxy { scheme, ..proxy(ann()) };
        for scheme in [Scheme::Auto, Scheme::Hidden] {
            let (got, outcome, _) = pass(auto(scheme), DIGEST).await;
            assert!(!got.contains("Proxy-Authorization"), "{got}");
            let wanted = outcome.unwrap().unwrap();
            assert!(matches!(wanted, Authentication::Digest(_)), "{wanted:?}");
            let ok = b"HTTP/1.1 200 OK\r\n\r\n";
            let (got, outcome, _) = again(auto(scheme), Some(&wanted), ok).await;
            assert!(got.contains("Proxy-Authorization: Digest username=\"ann\""), "{got}");
            assert!(got.contains("uri=\"vpn.example:443\"") && !got.contains("secret"), "{got}");
            assert_eq!(outcome, Ok(None));
            let (_, outcome, _) = again(auto(scheme), Some(&wanted), DIGEST).await;
            assert!(outcome.unwrap_err().contains("refuses user name"));
        }
        let (_, outcome, _) = pass(auto(Scheme::Auto), BASIC).await;
        let wanted = outcome.unwrap().unwrap();
        let (got, ..) = again(auto(Scheme::Auto), Some(&wanted), b"HTTP/1.1 200 OK\r\n\r\n").await;
        assert!(got.contains("Proxy-Authorization: Basic "), "{got}");
        let (_, outcome, _) = pass(auto(Scheme::Hidden), BASIC).await;
        assert!(outcome.unwrap_err().contains("auto-nct"));
    }

    #[tokio::test]
    async fn what_cannot_be_answered_is_named() {
        let ntlm = b"HTTP/1.1 407 x\r\nProxy-Authenticate: NTLM\r\n\r\n";
        let auto = HttpProxy { scheme: Scheme::Auto, ..proxy(ann()) };
        let (_, outcome, _) = pass(auto, ntlm).await;
        let problem = outcome.unwrap_err();
        assert!(problem.contains("by NTLM") && problem.contains("cntlm"), "{problem}");
        let nobody = HttpProxy { scheme: Scheme::Auto, ..proxy(None) };
        let (_, outcome, _) = pass(nobody, DIGEST).await;
        assert!(outcome.unwrap_err().contains("http-proxy-user-pass"));
    }

    /// A challenge of NTLM that was too long wrote beyond a buffer. Here no such challenge is read.
    #[tokio::test]
    async fn cve_2026_11771_challenges_of_ntlm_are_refused_unread() {
        for challenge in ["", " ====", " TlRMTVNTUAACAAAA", &format!(" {}", "A".repeat(2000))] {
            let answer = format!("HTTP/1.1 407 x\r\nProxy-Authenticate: NTLM{challenge}\r\n\r\n");
            let auto = HttpProxy { scheme: Scheme::Auto, ..proxy(ann()) };
            let (_, outcome, _) = pass(auto, answer.as_bytes()).await;
            let problem = outcome.unwrap_err();
            assert!(problem.contains("(407)") && problem.contains("cntlm"), "{problem}");
        }
    }

    #[test]
    fn an_ipv6_literal_stands_in_brackets() {
        let request = proxy(None).request(("2001:db8::1", 443), None).unwrap();
        assert!(request.starts_with("CONNECT [2001:db8::1]:443 HTTP/1.0\r\n"));
    }
}
