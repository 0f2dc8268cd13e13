//! An OpenID Connect provider with the device flow, whose users, keys and mistakes a test chooses. Its failures are panics.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Map, Value, json};

/// The client that the provider knows.
pub const CLIENT: &str = "adit";
/// The maximum size of a request.
const MAX_REQUEST: usize = 64 * 1024;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What the user of a login has done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Nothing yet.
    Waiting,
    /// Logged in.
    Approved,
    /// Refused.
    Denied,
    /// Let the time pass.
    Expired,
}

/// How the provider fails.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// It redirects every request to itself.
    Redirect,
    /// Its answers have megabytes.
    Huge,
    /// It accepts connections and says nothing.
    Silence,
    /// It answers 503.
    Unavailable,
    /// It answers with something else than JSON.
    Nonsense,
}

/// The behaviour of a provider.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// What the users of all logins do.
    pub approval: Approval,
    /// Claims that replace those of the ID token; `null` removes one.
    pub claims: Value,
    /// The same for the head of the token.
    pub head: Value,
    /// The same for the metadata.
    pub metadata: Value,
    /// Whether the URL contains the code.
    pub complete_url: bool,
    /// The seconds between two questions.
    pub interval: u64,
    /// The seconds that a login may take.
    pub lifetime: u64,
    /// The number of questions that are answered with `slow_down`.
    pub slow_down: u32,
    /// Whether a bit of each signature is wrong.
    pub wrong_signature: bool,
    /// The secret that the client must send.
    pub secret: Option<String>,
    /// How every request fails.
    pub mistake: Option<Mistake>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            approval: Approval::Waiting,
            claims: json!({}),
            head: json!({}),
            metadata: json!({}),
            complete_url: true,
            interval: 1,
            lifetime: 120,
            slow_down: 0,
            wrong_signature: false,
            secret: None,
            mistake: None,
        }
    }
}

/// A running provider. It ends on drop.
pub struct IdentityProvider {
    shared: Arc<Shared>,
    certificate: String,
}

struct Shared {
    issuer: String,
    state: Mutex<State>,
    ended: AtomicBool,
}

struct State {
    behaviour: Behaviour,
    key: SigningKey,
    keys_made: u32,
    logins: u32,
    requests: Vec<String>,
}

enum SigningKey {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
}

impl SigningKey {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::Ec(_) => "ES256",
        }
    }

    fn sign(&self, text: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, text, &mut signature).unwrap();
                signature
            }
            Self::Ec(key) => key.sign(&random, text).unwrap().as_ref().to_vec(),
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Rsa(key) => {
                // SEQUENCE { INTEGER modulus, INTEGER exponent }, where the modulus has 2048 bits after a zero.
                let der = key.public_key().as_ref();
                json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": kid,
                    "n": encode(&der[9..265]), "e": encode(&der[267..]) })
            }
            Self::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": kid,
                    "x": encode(&point[1..33]), "y": encode(&point[33..]) })
            }
        }
    }
}

impl IdentityProvider {
    /// Serves on a listener, whose address is also the provider's name.
    pub fn start(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![address.ip().to_string()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .unwrap();
        let state = State {
            behaviour: Behaviour::default(),
            key: SigningKey::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()),
            keys_made: 1,
            logins: 0,
            requests: Vec::new(),
        };
        let shared = Arc::new(Shared {
            issuer: format!("https://{address}"),
            state: Mutex::new(state),
            ended: AtomicBool::new(false),
        });
        let (serving, config) = (Arc::clone(&shared), Arc::new(config));
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            while !serving.ended.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(POLL_INTERVAL);
                    continue;
                };
                let (shared, config) = (Arc::clone(&serving), Arc::clone(&config));
                // A client that goes away is no failure of the test.
                thread::spawn(move || drop(serve(stream, config, &shared)));
            }
        });
        Self { shared, certificate: certificate.pem() }
    }

    /// Returns its URL, which is also its name.
    pub fn issuer(&self) -> &str {
        &self.shared.issuer
    }

    /// Returns the certificate that a client must trust, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Changes its behaviour.
    pub fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.state().behaviour);
    }

    /// Signs with a new key of another kind from now on, and publishes only that.
    pub fn rotate_key(&self) {
        let mut state = self.shared.state();
        state.key =
            SigningKey::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap());
        state.keys_made += 1;
    }

    /// Returns how many requests had this path so far.
    pub fn requests(&self, path: &str) -> usize {
        let state = self.shared.state();
        state.requests.iter().filter(|request| request.split(' ').next() == Some(path)).count()
    }

    /// Returns all requests so far, each as its path, its credentials and its form or object.
    pub fn log(&self) -> Vec<String> {
        self.shared.state().requests.clone()
    }
}

impl Drop for IdentityProvider {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &Request) -> (u16, Vec<u8>) {
        let mut state = self.state();
        state.requests.push(format!("{} {} {}", request.path, request.credentials, request.form));
        let behaviour = state.behaviour.clone();
        match behaviour.mistake {
            Some(Mistake::Redirect) => return (302, Vec::new()),
            Some(Mistake::Huge) => return (200, vec![b' '; 4 << 20]),
            Some(Mistake::Unavailable) => return (503, b"busy".to_vec()),
            Some(Mistake::Nonsense) => return (200, b"<html>".to_vec()),
            Some(Mistake::Silence) | None => {}
        }
        let (status, value) = match request.path.as_str() {
            "/.well-known/openid-configuration" => (200, self.metadata(&behaviour)),
            "/keys" => {
                let kid = format!("key-{}", state.keys_made);
                // A client must skip keys that it does not know.
                let other = json!({ "kty": "unknown", "kid": kid });
                (200, json!({ "keys": [other, state.key.jwk(&kid)] }))
            }
            // It is also the webhook of a server.
            "/hook" => (200, json!({})),
            "/device" | "/token" if !request.proves(&behaviour) => {
                (401, json!({ "error": "invalid_client" }))
            }
            "/device" => {
                state.logins += 1;
                let mut answer = json!({ "device_code": format!("device-{}", state.logins),
                    "user_code": "ABCD-EFGH", "verification_uri": format!("{}/go", self.issuer),
                    "expires_in": behaviour.lifetime, "interval": behaviour.interval });
                if behaviour.complete_url {
                    answer["verification_uri_complete"] =
                        format!("{}/go?login={}", self.issuer, state.logins).into();
                }
                (200, answer)
            }
            "/token" => self.token(&mut state, &behaviour),
            _ => (404, json!({ "error": "not_found" })),
        };
        (status, value.to_string().into_bytes())
    }

    fn metadata(&self, behaviour: &Behaviour) -> Value {
        let issuer = &self.issuer;
        let metadata = json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys"),
            "token_endpoint": format!("{issuer}/token"),
            "device_authorization_endpoint": format!("{issuer}/device") });
        merged(metadata, &behaviour.metadata)
    }

    fn token(&self, state: &mut State, behaviour: &Behaviour) -> (u16, Value) {
        if let Some(left) = state.behaviour.slow_down.checked_sub(1) {
            state.behaviour.slow_down = left;
            return (400, json!({ "error": "slow_down" }));
        }
        let refused = |error: &str| (400, json!({ "error": error }));
        match behaviour.approval {
            Approval::Waiting => refused("authorization_pending"),
            Approval::Denied => refused("access_denied"),
            Approval::Expired => refused("expired_token"),
            Approval::Approved => {
                let token = id_token(&self.issuer, state, behaviour);
                (200, json!({ "id_token": token, "access_token": "x", "token_type": "Bearer" }))
            }
        }
    }
}

fn id_token(issuer: &str, state: &State, behaviour: &Behaviour) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let head = json!({ "alg": state.key.algorithm(), "typ": "JWT",
        "kid": format!("key-{}", state.keys_made) });
    let claims = json!({ "iss": issuer, "aud": CLIENT, "sub": "248289761001", "iat": now,
        "exp": now + 300, "preferred_username": "alice" });
    let parts = [merged(head, &behaviour.head), merged(claims, &behaviour.claims)];
    let signed = parts.map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let mut signature = state.key.sign(signed.as_bytes());
    if behaviour.wrong_signature {
        signature[7] ^= 1;
    }
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Replaces members of an object.
fn merged(object: Value, changes: &Value) -> Value {
    let mut object: Map<String, Value> = serde_json::from_value(object).unwrap();
    for (name, value) in changes.as_object().into_iter().flatten() {
        if value.is_null() {
            object.remove(name);
        } else {
            object.insert(name.clone(), value.clone());
        }
    }
    Value::Object(object)
}

struct Request {
    path: String,
    /// The user name and password, or other credentials as sent.
    credentials: String,
    form: String,
}

impl Request {
    fn read(stream: &mut impl Read) -> Option<Self> {
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let so_far = String::from_utf8_lossy(&text).into_owned();
            if let Some((head, body)) = so_far.split_once("\r\n\r\n") {
                let field = |name: &str| {
                    let mut lines = head.lines().skip(1).filter_map(|line| line.split_once(": "));
                    lines
                        .find(|(field, _)| field.eq_ignore_ascii_case(name))
                        .map(|(_, value)| value)
                };
                let length =
                    field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
                if body.len() >= length {
                    let path = head.split(' ').nth(1)?.to_owned();
                    let sent = field("authorization").unwrap_or_default();
                    let credentials = match sent.strip_prefix("Basic ") {
                        Some(basic) => String::from_utf8(STANDARD.decode(basic).ok()?).ok()?,
                        None => sent.to_owned(),
                    };
                    return Some(Self { path, credentials, form: body.to_owned() });
                }
            }
            let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
            text.extend_from_slice(&buffer[..count]);
            if text.len() > MAX_REQUEST {
                return None;
            }
        }
    }

    /// Returns whether the request is from the client.
    fn proves(&self, behaviour: &Behaviour) -> bool {
        let field = |name: &str| {
            let mut fields = self.form.split('&').filter_map(|field| field.split_once('='));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value)
        };
        let in_form = behaviour.metadata.get("token_endpoint_auth_methods_supported").is_some();
        field("client_id") == Some(CLIENT)
            && match &behaviour.secret {
                None => true,
                Some(secret) if in_form => field("client_secret") == Some(secret),
                Some(secret) => self.credentials == format!("{CLIENT}:{secret}"),
            }
    }
}

fn serve(stream: TcpStream, config: Arc<ServerConfig>, shared: &Shared) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let Some(request) = Request::read(&mut stream) else { return Ok(()) };
    let silent = shared.state().behaviour.mistake == Some(Mistake::Silence);
    let (status, body) = shared.answer(&request);
    while silent && !shared.ended.load(Ordering::Relaxed) {
        thread::sleep(POLL_INTERVAL);
    }
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nLocation: {}/\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        shared.issuer,
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)?;
    stream.conn.send_close_notify();
    stream.flush()
}
