//! HTTP's CONNECT (RFC 9110, 9.3.6), with Basic authentication (RFC 7617).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::AsyncWriteExt;
use zeroize::Zeroizing;

use super::{Login, Wire, read};

/// Longest answer that is read: status line and headers.
const MAX_ANSWER: usize = 8192;

/// `http-proxy` with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProxy {
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// For Basic authentication.
    pub login: Option<Login>,
    /// `http-proxy-option VERSION`.
    pub version: String,
    /// `http-proxy-option AGENT`.
    pub agent: Option<String>,
    /// `http-proxy-option CUSTOM-HEADER`: names and values.
    pub headers: Vec<(String, String)>,
}

impl HttpProxy {
    pub(super) async fn pass(
        &self,
        wire: &mut impl Wire,
        host: &str,
        port: u16,
    ) -> Result<(), String> {
        let request = self.request(host, port);
        wire.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
        let answer = answer(wire).await?;
        judge(&answer, self.login.is_some())
    }

    fn request(&self, host: &str, port: u16) -> Zeroizing<String> {
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
        if let Some(Login { username, password }) = &self.login {
            let pair = Zeroizing::new(format!("{username}:{}", password.as_str()));
            let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
            lines.push_str(&format!("Proxy-Authorization: Basic {}\r\n", encoded.as_str()));
        }
        lines.push_str("\r\n");
        lines
    }
}

/// The proxy's answer up to the empty line. Byte by byte: nothing behind it may be taken away, and it comes once.
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

fn judge(answer: &[u8], authenticated: bool) -> Result<(), String> {
    let text = String::from_utf8_lossy(answer);
    let line = text.lines().next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let code = words.next().and_then(|word| word.parse::<u16>().ok());
    match code.filter(|_| http) {
        Some(200..=299) => Ok(()),
        Some(407) if authenticated => Err("it refuses user name or password (407)".into()),
        Some(407) => Err("it asks for a user name and a password (407): give http-proxy a file \
                          with both, or write http-proxy-user-pass"
            .into()),
        Some(_) => Err(format!("it says \"{}\"", crate::log::clean(line))),
        None => Err("it does not speak HTTP".into()),
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
            version: "1.0".into(),
            agent: Some("test".into()),
            headers: vec![("X-A".into(), "b".into())],
        }
    }

    /// What the proxy got, and what became of it, with an answer and a byte of the tunnel behind it.
    async fn pass(proxy: HttpProxy, answer: &[u8]) -> (String, Result<(), String>, Vec<u8>) {
        let (mut near, mut far) = tokio::io::duplex(1 << 14);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let outcome = proxy.pass(&mut near, "vpn.example", 443).await;
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
        assert_eq!((outcome, rest), (Ok(()), b"T".to_vec()));
    }

    #[tokio::test]
    async fn refusals_say_what_to_do() {
        let answers: [(&[u8], &str); 5] = [
            (b"HTTP/1.1 407 Auth\r\n\r\n", "http-proxy-user-pass"),
            (b"HTTP/1.1 403 No\x1b[2J\r\n\r\n", "403 No\\x1b"),
            (b"SSH-2.0-x\n\n", "does not speak HTTP"),
            (b"HTTP/1.1 200 OK\r\n", "closed the connection"),
            (&[b'a'; 9000], "more than 8192"),
        ];
        for (answer, expected) in answers {
            let (_, outcome, _) = pass(proxy(None), answer).await;
            let problem = outcome.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn an_ipv6_literal_stands_in_brackets() {
        let request = proxy(None).request("2001:db8::1", 443);
        assert!(request.starts_with("CONNECT [2001:db8::1]:443 HTTP/1.0\r\n"));
    }
}
