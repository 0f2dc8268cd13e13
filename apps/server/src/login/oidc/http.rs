//! The requests to a provider: one connection for each, over TLS, with bounds on what the provider sends. Redirects are not
//! followed.

use std::sync::Arc;
use std::time::Duration;

use adit_runtime::fault::Fault;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

/// The maximum size of an answer's body, in bytes. The largest are key sets with certificates.
const MAX_BODY: usize = 256 * 1024;
/// The maximum size of an answer's head, in bytes.
const MAX_HEAD: usize = 32 * 1024;
/// The maximum number of fields in an answer's head.
const MAX_FIELDS: usize = 64;
/// The maximum number of requests at the same time. Further ones wait.
const MAX_REQUESTS: usize = 16;
/// The time limit for a request, in which it may also wait for others.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// The time limit for connecting to one of the provider's addresses.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// The maximum number of addresses that are tried.
const MAX_ADDRESSES: usize = 4;

/// Sends requests to a provider.
pub(super) struct HttpClient {
    tls: TlsConnector,
    requests: Semaphore,
    /// The time limit for a request.
    pub(super) limit: Duration,
}

/// An answer with any status except a redirect.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// Ends the task of a connection on drop.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Parses a URL of a provider, which must be a plain https URL.
pub(crate) fn https_url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|_| format!("{text:?} is not a URL"))?;
    if url.scheme_str() != Some("https") {
        return Err(format!("{text:?} is not an https URL"));
    }
    let authority = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if authority.is_empty() || authority.contains('@') {
        return Err(format!("{text:?} has no host, or a user name"));
    }
    Ok(url)
}

impl HttpClient {
    pub(super) fn new(roots: RootCertStore) -> Result<Self, Fault> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault::ours(format!("TLS to the provider: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            requests: Semaphore::new(MAX_REQUESTS),
            limit: REQUEST_LIMIT,
        })
    }

    pub(super) async fn get(&self, url: &Uri) -> Result<Answer, String> {
        self.send(url, Method::GET, String::new(), None).await
    }

    /// Sends a form, with a user name and password if `basic` is given.
    pub(super) async fn post(
        &self,
        url: &Uri,
        form: &[(&str, &str)],
        basic: Option<(&str, &str)>,
    ) -> Result<Answer, String> {
        let fields = form.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        let body = fields.collect::<Vec<_>>().join("&");
        let basic = basic.map(|(user, password)| {
            let pair = Zeroizing::new(format!("{}:{}", encoded(user), encoded(password)));
            format!("Basic {}", STANDARD.encode(pair.as_bytes()))
        });
        self.send(url, Method::POST, body, basic).await
    }

    async fn send(
        &self,
        url: &Uri,
        method: Method,
        body: String,
        authorization: Option<String>,
    ) -> Result<Answer, String> {
        let host = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("adit/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| format!("the request is not valid: {error}"))?;
        let sent = async {
            let _place = self.requests.acquire().await.map_err(|error| error.to_string())?;
            self.exchange(url, request).await
        };
        match timeout(self.limit, sent).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {} s", self.limit.as_secs())),
        }
    }

    async fn exchange(&self, url: &Uri, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let host = url.host().unwrap_or_default();
        // An IPv6 address is in brackets only in a URL.
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("{host} is neither a name nor an address"))?;
        let stream = connect(host, url.port_u16().unwrap_or(443)).await?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| error.to_string())?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD).max_headers(MAX_FIELDS);
        let shaken = builder.handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(|error| error.to_string())?;
        let _connection = Connection(tokio::spawn(async move {
            // The error is also that of the request.
            let _ = connection.await;
        }));
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        if status.is_redirection() {
            return Err(format!("it redirects ({status}), which is not followed"));
        }
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| format!("the answer cannot be read: {error}"))?;
        Ok(Answer { status, body: body.to_bytes() })
    }
}

/// Connects to the first address that answers.
async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let found = lookup_host((host, port)).await.map_err(|error| format!("{host}: {error}"))?;
    let mut last = format!("{host} has no address");
    for address in found.take(MAX_ADDRESSES) {
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = format!("{address}: {error}"),
            Err(_) => last = format!("{address} does not answer"),
        }
    }
    Err(last)
}

/// Encodes a value of a form.
fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_https_urls_are_taken() {
        for url in ["https://sso.example.net", "https://[2001:db8::1]:8443/realms/a?b=c"] {
            assert!(https_url(url).is_ok(), "{url}");
        }
        for url in
            ["", "/x", "sso.example.net", "http://a/", "https://", "https://u:p@a/", "ftp://a"]
        {
            assert!(https_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_form_keeps_every_value_apart() {
        assert_eq!(encoded("a b&c=d+é%"), "a%20b%26c%3Dd%2B%C3%A9%25");
        assert_eq!(encoded("aZ09-._~"), "aZ09-._~");
    }
}
