//! A link that hands out one profile once, over https.
//!
//! The answer follows OpenVPN's `webauth.md`: a link `openvpn://import-profile/https://...` makes an app fetch the profile, which has the type
//! `application/x-openvpn-profile`. Apps and browsers ask the user about a certificate that they do not trust.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use adit_crypto::constant_time_eq;
use adit_engine::{Rate, TokenBucket};
use adit_pki::{Profile, web_certificate};
use adit_runtime::clock::now;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::netinfo;
use adit_runtime::paths::Paths;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use super::init::pki_fault;
use super::settings::Settings;

/// How long a link is valid.
pub const LIFETIME: Duration = Duration::from_secs(600);

/// The port of a link, if none is given.
const PORT: u16 = 8443;
/// The maximum number of connections at the same time. Further ones are closed.
const MAX_CONNECTIONS: usize = 16;
/// The rate of new connections, each of which costs a TLS handshake. Those beyond it are closed.
const CONNECTIONS: Rate = Rate::one_in(Duration::from_millis(100), 30);
/// The time limit for a connection.
const CONNECTION_LIMIT: Duration = Duration::from_secs(15);
/// The pause after a failure to accept a connection, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The maximum size of a request's head, in bytes. Hyper accepts no smaller limit.
const MAX_HEAD: usize = 8192;
/// The maximum number of fields in a request's head.
const MAX_FIELDS: usize = 64;
/// The length of the secret in a link, in bytes.
const TOKEN: usize = 16;
/// The lifetime of a certificate that is made for one link, in days.
const CERTIFICATE_DAYS: u32 = 1;

/// The address and the certificate of a link.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// The address and port to listen on; `None`: port 8443 of every address.
    pub listen: Option<SocketAddr>,
    /// The files of the certificate chain and its key, in PEM; `None`: a certificate is made for this link.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// A link that is open but not served yet.
pub struct ProfileLink {
    listener: std::net::TcpListener,
    tls: Arc<ServerConfig>,
    token: Zeroizing<String>,
    url: Zeroizing<String>,
    fingerprint: Option<String>,
}

/// How a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The profile was fetched from this address.
    Fetched(SocketAddr),
    /// A fetch from this address broke off, so it is unknown who has the profile.
    BrokenOff(SocketAddr),
    /// The profile was not fetched in time.
    Expired,
    /// A signal ended the link before the profile was fetched.
    Interrupted,
}

/// The answers of a link.
struct Page {
    token: Zeroizing<String>,
    profile: Bytes,
    disposition: HeaderValue,
    /// Whether the profile was handed out.
    used: AtomicBool,
    /// Requests without the secret.
    wrong: AtomicU64,
}

impl ProfileLink {
    /// Opens the port and prepares the certificate, before a profile is made.
    ///
    /// # Errors
    /// Fails if the port is in use, or the certificate cannot be read or made.
    pub fn open(paths: &Paths, options: &LinkOptions) -> Result<Self, Fault> {
        let host = Settings::read(&paths.settings_file())?.host;
        let any: IpAddr = if netinfo::has_ipv6() {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let listen = options.listen.unwrap_or(SocketAddr::new(any, PORT));
        let listener = std::net::TcpListener::bind(listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| {
                Fault::environment(format!(
                    "TCP port {} on {}: {error}; choose another with --listen",
                    listen.port(),
                    listen.ip()
                ))
            })?;
        let (chain, key, fingerprint) = certificate(&host, options.certificate.as_ref())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault::ours(format!("TLS: {error}")))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| Fault::operator(format!("the certificate cannot be used: {error}")))?;
        let mut random = adit_runtime::random::generator()?;
        let mut secret = Zeroizing::new([0; TOKEN]);
        random.fill(&mut *secret);
        let token = Zeroizing::new(URL_SAFE_NO_PAD.encode(*secret));
        let port = listener.local_addr().map_or(listen.port(), |address| address.port());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let url = Zeroizing::new(format!("https://{host}:{port}/{}", &*token));
        Ok(Self { listener, tls: Arc::new(tls), token, url, fingerprint })
    }

    /// Returns the link for a browser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the link that makes OpenVPN Connect import the profile.
    pub fn import_url(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("openvpn://import-profile/{}", &*self.url))
    }

    /// Returns the SHA-256 of the certificate that was made for this link.
    pub fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// Serves the profile until it was fetched, the link has expired or a signal ends it. Returns how it ended, and the number of requests without the secret.
    ///
    /// # Errors
    /// Fails if the system does not allow it.
    pub fn serve(self, profile: &Profile) -> Result<(LinkEnd, u64), Fault> {
        let cannot = |error: std::io::Error| Fault::environment(format!("cannot serve: {error}"));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(self.listener).map_err(cannot)?;
            let page = Arc::new(Page::new(self.token, profile)?);
            let acceptor = TlsAcceptor::from(self.tls);
            let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
            let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
            let mut hang_up = signal(SignalKind::hangup()).map_err(cannot)?;
            let interrupted = AtomicBool::new(false);
            let expired = async {
                tokio::select! {
                    () = sleep(LIFETIME) => return,
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
                interrupted.store(true, Ordering::Relaxed);
            };
            let end = match serve_until(&listener, &acceptor, &page, expired).await {
                LinkEnd::Expired if interrupted.load(Ordering::Relaxed) => LinkEnd::Interrupted,
                end => end,
            };
            Ok((end, page.wrong.load(Ordering::Relaxed)))
        })
    }
}

type Certificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, Option<String>);

/// Reads a certificate chain and its key, or makes a certificate for `host`.
fn certificate(host: &str, files: Option<&(PathBuf, PathBuf)>) -> Result<Certificate, Fault> {
    let (cert, key) = match files {
        Some((cert, key)) => {
            let read = |path: &PathBuf| {
                std::fs::read(path)
                    .map(Zeroizing::new)
                    .map_err(|e| file_fault("cannot read", path, &e))
            };
            (read(cert)?, read(key)?)
        }
        None => {
            let made = web_certificate(host, CERTIFICATE_DAYS, SystemTime::now());
            let (cert, key) = made.map_err(pki_fault)?;
            (Zeroizing::new(cert.into_bytes()), Zeroizing::new(key.as_bytes().to_vec()))
        }
    };
    let wrong = |what: &str, error: rustls::pki_types::pem::Error| {
        let path = files.map(|(cert, key)| if what == "key" { key } else { cert });
        let path = path.map(|path| format!("{}: ", path.display())).unwrap_or_default();
        Fault::operator(format!("{path}no {what} in PEM: {error}"))
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert).collect();
    let chain = chain.map_err(|error| wrong("certificate", error))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| wrong("key", error))?;
    let fingerprint = chain.first().filter(|_| files.is_none()).map(|cert| {
        let bytes = adit_crypto::sha256(&[cert]);
        bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
    });
    Ok((chain, key, fingerprint))
}

impl Page {
    fn new(token: Zeroizing<String>, profile: &Profile) -> Result<Self, Fault> {
        // A client's name has no character that would need quoting.
        let disposition = format!("attachment; filename=\"{}\"", profile.file_name());
        Ok(Self {
            token,
            profile: Bytes::copy_from_slice(profile.text().as_bytes()),
            disposition: HeaderValue::try_from(disposition)
                .map_err(|error| Fault::ours(format!("the file's name: {error}")))?,
            used: AtomicBool::new(false),
            wrong: AtomicU64::new(0),
        })
    }

    /// Returns the answer to a request, and whether it is the one that hands out the profile. A used link is answered like a wrong one.
    fn answer(&self, method: &Method, path: &str) -> (Response<Full<Bytes>>, bool) {
        let token = path.strip_prefix('/').unwrap_or_default();
        if !constant_time_eq(token.as_bytes(), self.token.as_bytes()) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
            return (refusal(StatusCode::NOT_FOUND), false);
        }
        // An app may ask for the head first.
        let hands_out = match *method {
            Method::GET if !self.used.swap(true, Ordering::AcqRel) => true,
            Method::HEAD if !self.used.load(Ordering::Acquire) => false,
            Method::GET | Method::HEAD => return (refusal(StatusCode::NOT_FOUND), false),
            _ => return (refusal(StatusCode::METHOD_NOT_ALLOWED), false),
        };
        let mut response = Response::new(Full::new(self.profile.clone()));
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-openvpn-profile"));
        fields.insert(CONTENT_DISPOSITION, self.disposition.clone());
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        (response, hands_out)
    }
}

fn refusal(status: StatusCode) -> Response<Full<Bytes>> {
    let text = Bytes::from_static(b"This link is not valid, or not any more.\n");
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response
}

/// Serves the page until the profile was handed out or `expired` is ready. A transfer that has begun by then is completed.
async fn serve_until(
    listener: &TcpListener,
    acceptor: &TlsAcceptor,
    page: &Arc<Page>,
    expired: impl Future<Output = ()>,
) -> LinkEnd {
    let (ended, mut ends) = mpsc::channel(1);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let pace = TokenBucket::new();
    tokio::pin!(expired);
    loop {
        tokio::select! {
            biased;
            Some(end) = ends.recv() => return end,
            () = &mut expired => break,
            accepted = listener.accept() => {
                let Ok((stream, from)) = accepted else {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let place = Arc::clone(&places).try_acquire_owned();
                let Ok(place) = place else { continue };
                if !pace.take(now(), 1, CONNECTIONS) {
                    continue;
                }
                let (acceptor, page, ended) = (acceptor.clone(), Arc::clone(page), ended.clone());
                tokio::spawn(async move {
                    let end = connection(&acceptor, stream, from, &page).await;
                    drop(place);
                    if let Some(end) = end {
                        // The receiver waits for it.
                        let _ = ended.send(end).await;
                    }
                });
            }
        }
    }
    drop(ended);
    if page.used.swap(true, Ordering::AcqRel)
        && let Some(end) = ends.recv().await
    {
        return end;
    }
    LinkEnd::Expired
}

/// Serves one connection. Returns the end of the link if this connection handed out the profile.
async fn connection(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    from: SocketAddr,
    page: &Page,
) -> Option<LinkEnd> {
    let hands_out = AtomicBool::new(false);
    let served = async {
        let stream = acceptor.accept(stream).await.ok()?;
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            let (response, out) = page.answer(request.method(), request.uri().path());
            hands_out.fetch_or(out, Ordering::AcqRel);
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let mut builder = http1::Builder::new();
        builder
            .keep_alive(false)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_FIELDS)
            .timer(TokioTimer::new());
        builder.serve_connection(TokioIo::new(stream), service).await.ok()
    };
    let complete = matches!(timeout(CONNECTION_LIMIT, served).await, Ok(Some(())));
    let end = if complete { LinkEnd::Fetched(from) } else { LinkEnd::BrokenOff(from) };
    hands_out.load(Ordering::Acquire).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{self, ClientRequest};
    use crate::testing;

    fn profile(paths: &Paths) -> Profile {
        let wanted = ClientRequest { name: "phone".into(), ..ClientRequest::default() };
        clients::add(paths, &wanted).unwrap().profile
    }

    /// Each answer differs from the right one in one respect.
    #[test]
    fn only_the_secret_gets_the_profile_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, _) = testing::server(&dir);
        let page = Page::new(Zeroizing::new("SECRET".into()), &profile(&paths)).unwrap();
        let ask = |method: Method, path: &str| {
            let (response, hands_out) = page.answer(&method, path);
            (response.status().as_u16(), hands_out)
        };
        for wrong in ["/", "", "/SECRE", "/SECRETX", "/secret", "/SECRET/", "SECRET/x"] {
            assert_eq!(ask(Method::GET, wrong), (404, false), "{wrong}");
        }
        assert_eq!(page.wrong.load(Ordering::Relaxed), 7);
        assert_eq!(ask(Method::POST, "/SECRET"), (405, false));
        assert_eq!(ask(Method::HEAD, "/SECRET"), (200, false), "it uses nothing up");
        let (response, hands_out) = page.answer(&Method::GET, "/SECRET");
        assert!(hands_out && response.status().is_success());
        assert_eq!(response.headers()[CONTENT_TYPE], "application/x-openvpn-profile");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        assert_eq!(ask(Method::GET, "/SECRET"), (404, false));
        assert_eq!(ask(Method::HEAD, "/SECRET"), (404, false));
    }

    #[tokio::test]
    async fn a_link_that_is_not_used_in_time_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, _) = testing::server(&dir);
        let options = LinkOptions { listen: "127.0.0.1:0".parse().ok(), certificate: None };
        let link = ProfileLink::open(&paths, &options).unwrap();
        assert!(link.url().starts_with("https://h:") && link.token.len() == 22);
        assert!(link.import_url().starts_with("openvpn://import-profile/https://h:"));
        assert_eq!(link.fingerprint().unwrap().len(), 95);
        let other = ProfileLink::open(&paths, &options).unwrap();
        assert_ne!(*link.token, *other.token);
        assert_ne!(link.fingerprint(), other.fingerprint());
        let page = Arc::new(Page::new(link.token, &profile(&paths)).unwrap());
        let listener = TcpListener::from_std(link.listener).unwrap();
        let acceptor = TlsAcceptor::from(link.tls);
        let end = serve_until(&listener, &acceptor, &page, std::future::ready(())).await;
        assert_eq!(end, LinkEnd::Expired);
        assert_eq!(page.answer(&Method::GET, &format!("/{}", &*page.token)).0.status(), 404);
    }

    #[test]
    fn a_certificate_that_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, _) = testing::server(&dir);
        let file = dir.path().join("x.pem");
        std::fs::write(&file, "no certificate").unwrap();
        let options = LinkOptions {
            listen: "127.0.0.1:0".parse().ok(),
            certificate: Some((file.clone(), file)),
        };
        let fault = ProfileLink::open(&paths, &options).map(drop).unwrap_err().to_string();
        assert!(fault.contains("x.pem"), "{fault}");
    }
}
