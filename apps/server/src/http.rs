//! HTTP requests to a provider of single sign-on or to a webhook: one connection for each, with bounds on what the other end
//! sends. Redirects are not followed.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::helper::files;
use adit_runtime::paths::Paths;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT,
};
use hyper::http::request::Builder;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
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
/// The time limit for connecting to one address of the other end.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// The maximum number of addresses that are tried.
const MAX_ADDRESSES: usize = 4;
/// The maximum length of a secret in a file, in bytes.
const MAX_SECRET: usize = 4096;

/// Sends requests.
pub(crate) struct HttpClient {
    tls: TlsConnector,
    requests: Semaphore,
    /// The time limit for a request.
    pub(crate) limit: Duration,
}

/// An answer with any status except a redirect.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Ends the task of a connection on drop.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Parses a URL, which must be a plain https URL.
pub(crate) fn https_url(text: &str) -> Result<Uri, String> {
    let url = http_url(text)?;
    if url.scheme_str() != Some("https") {
        return Err(format!("{text:?} is not an https URL"));
    }
    Ok(url)
}

/// Parses a URL, which must be a plain https or http URL.
pub(crate) fn http_url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|_| format!("{text:?} is not a URL"))?;
    if !matches!(url.scheme_str(), Some("https" | "http")) {
        return Err(format!("{text:?} is not an https URL"));
    }
    let authority = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if authority.is_empty() || authority.contains('@') {
        return Err(format!("{text:?} has no host, or a user name"));
    }
    Ok(url)
}

/// Returns whether a URL names this machine.
pub(crate) fn is_loopback(url: &Uri) -> bool {
    let host = host_of(url);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns the name or address in a URL.
fn host_of(url: &Uri) -> &str {
    let host = url.host().unwrap_or_default();
    // An IPv6 address is in brackets only in a URL.
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Reads the authorities that sign the certificate of `whose`: those in a PEM file, or those of this machine.
pub(crate) fn authorities(
    paths: &Paths,
    file: Option<&Path>,
    whose: &str,
) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    match file {
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            roots.add_parsable_certificates(found);
        }
        Some(path) => {
            let text = read(paths, path)?;
            let found = CertificateDer::pem_slice_iter(&text).flatten();
            roots.add_parsable_certificates(found);
        }
    }
    if roots.is_empty() {
        return Err(Fault::operator(match file {
            Some(path) => format!("{}: there is no certificate in PEM format", path.display()),
            None => format!(
                "this machine has no certificate authorities for the {whose}: apt-get install ca-certificates, or \
                 name a file in ca-file"
            ),
        }));
    }
    Ok(roots)
}

/// Reads the secret in the first line of a file. A relative path is relative to the settings file.
pub(crate) fn read_secret(paths: &Paths, path: &Path) -> Result<Zeroizing<String>, Fault> {
    secret(read(paths, path)?).map_err(|why| Fault::operator(format!("{}: {why}", path.display())))
}

fn read(paths: &Paths, path: &Path) -> Result<Vec<u8>, Fault> {
    let path = paths.config.join(path);
    files::contents(&path).map_err(|error| file_fault("cannot read", &path, &error))
}

fn secret(text: Vec<u8>) -> Result<Zeroizing<String>, String> {
    let text = Zeroizing::new(text);
    let text = std::str::from_utf8(&text).map_err(|_| "the secret is not text".to_owned())?;
    let line = text.lines().next().unwrap_or_default().trim();
    if line.is_empty() || line.len() > MAX_SECRET {
        return Err(format!("the first line must be the secret, up to {MAX_SECRET} bytes"));
    }
    Ok(Zeroizing::new(line.to_owned()))
}

impl HttpClient {
    pub(crate) fn new(roots: RootCertStore) -> Result<Self, Fault> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault::ours(format!("TLS: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            requests: Semaphore::new(MAX_REQUESTS),
            limit: REQUEST_LIMIT,
        })
    }

    pub(crate) async fn get(&self, url: &Uri) -> Result<Answer, String> {
        self.send(url, builder(url, Method::GET), String::new()).await
    }

    /// Sends a form, with a user name and password if `basic` is given.
    pub(crate) async fn post_form(
        &self,
        url: &Uri,
        form: &[(&str, &str)],
        basic: Option<(&str, &str)>,
    ) -> Result<Answer, String> {
        let fields = form.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        let body = fields.collect::<Vec<_>>().join("&");
        let mut request =
            builder(url, Method::POST).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some((user, password)) = basic {
            let pair = Zeroizing::new(format!("{}:{}", encoded(user), encoded(password)));
            let value = format!("Basic {}", STANDARD.encode(pair.as_bytes()));
            request = request.header(AUTHORIZATION, value);
        }
        self.send(url, request, body).await
    }

    /// Sends a JSON object, with a further field in the head if one is given.
    pub(crate) async fn post_json(
        &self,
        url: &Uri,
        object: String,
        field: Option<&(HeaderName, HeaderValue)>,
    ) -> Result<Answer, String> {
        let mut request = builder(url, Method::POST).header(CONTENT_TYPE, "application/json");
        if let Some((name, value)) = field {
            request = request.header(name, value);
        }
        self.send(url, request, object).await
    }

    async fn send(&self, url: &Uri, request: Builder, body: String) -> Result<Answer, String> {
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| format!("the request is not valid: {error}"))?;
        let sent = async {
            let _place = self.requests.acquire().await.map_err(|error| error.to_string())?;
            self.connect(url, request).await
        };
        match timeout(self.limit, sent).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {} s", self.limit.as_secs())),
        }
    }

    async fn connect(&self, url: &Uri, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let host = host_of(url);
        if url.scheme_str() == Some("http") {
            return exchange(connect(host, url.port_u16().unwrap_or(80)).await?, request).await;
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("{host} is neither a name nor an address"))?;
        let stream = connect(host, url.port_u16().unwrap_or(443)).await?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| error.to_string())?;
        exchange(stream, request).await
    }
}

/// Begins a request.
fn builder(url: &Uri, method: Method) -> Builder {
    let host = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
    Request::builder()
        .method(method)
        .uri(url.path_and_query().map_or("/", |path| path.as_str()))
        .header(HOST, host)
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("adit/", env!("CARGO_PKG_VERSION")))
}

/// Sends a request on a connection, and reads the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Answer, String> {
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
        assert!(http_url("http://a/").is_ok() && http_url("ftp://a").is_err());
        assert!(http_url("http://u@a/").is_err());
    }

    #[test]
    fn a_url_of_this_machine_is_known() {
        let loopback = |url: &str| is_loopback(&http_url(url).unwrap());
        for url in ["http://127.0.0.1:1/", "http://[::1]/", "http://localhost:8080/x"] {
            assert!(loopback(url), "{url}");
        }
        for url in ["http://192.0.2.1/", "http://127.0.0.1.example.net/", "http://localhost.a/"] {
            assert!(!loopback(url), "{url}");
        }
    }

    #[test]
    fn a_form_keeps_every_value_apart() {
        assert_eq!(encoded("a b&c=d+é%"), "a%20b%26c%3Dd%2B%C3%A9%25");
        assert_eq!(encoded("aZ09-._~"), "aZ09-._~");
    }
}
