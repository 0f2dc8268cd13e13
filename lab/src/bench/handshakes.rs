//! Measures handshakes without I/O: two engines exchange packets as fast as possible.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant as Clock, SystemTime, UNIX_EPOCH};

use adit_engine::{Engine, Instant, Link, Target, UnixTime};
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent, Remote};
use adit_openvpn::data_format::{Input, Outbox, Output};
use adit_openvpn::keys::StaticKey;
use adit_openvpn::server::{Network4, ServerConfig, ServerEngine};
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{
    ClientTls, ClientTlsOptions, CommonTlsOptions, Pem, ServerTls, ServerTlsOptions,
};
use adit_openvpn::wrap::WrapConfig;
use adit_testbed::failure::{Context, Failure, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// The cost of one handshake with TLS 1.3, ECDSA P-256 at both ends, tls-crypt and a cookie.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct HandshakeCost {
    /// Milliseconds inside the server's engine.
    pub server_ms: f64,
    /// Milliseconds inside the client's engine.
    pub client_ms: f64,
    /// The number of handshakes a second on one core that runs both ends.
    pub per_second: f64,
}

/// Connects `count` clients, one after the other; they share a name, so each replaces the previous one.
///
/// # Errors
/// `count` is 0 or too large, or a client did not connect.
pub fn measure_handshakes(count: u32) -> Result<HandshakeCost> {
    let warmup = count.div_ceil(10);
    ensure((1..=MOST).contains(&count), || {
        format!("{count} handshakes: 1 to {MOST} can be measured")
    })?;
    let mut bench = Bench::new()?;
    // The first handshakes meet cold caches.
    bench.many(warmup)?;
    bench.spent = EngineTime::default();
    bench.many(count)?;
    let each = |time: Duration| time.as_secs_f64() / f64::from(count);
    let (server, client) = (each(bench.spent.server), each(bench.spent.client));
    Ok(HandshakeCost {
        server_ms: server * 1e3,
        client_ms: client * 1e3,
        per_second: 1.0 / (server + client),
    })
}

/// The maximum number of handshakes in one measurement, about a minute's worth.
const MOST: u32 = 100_000;

/// Time spent inside the engines.
#[derive(Default)]
struct EngineTime {
    server: Duration,
    client: Duration,
}

struct Bench {
    server: ServerEngine,
    config: ClientConfig,
    unix: UnixTime,
    now: Instant,
    next: u32,
    spent: EngineTime,
}

const START: Instant = Instant::from_nanos(1_000_000_000_000);

impl Bench {
    fn new() -> Result<Self> {
        let (server_tls, client_tls) = tls()?;
        let mut byte = 0_u8;
        let key = StaticKey::generate(|bytes| {
            bytes.fill_with(|| {
                byte = byte.wrapping_mul(5).wrapping_add(17);
                byte
            });
        });
        let settings = Settings { wrap: WrapConfig::TlsCrypt { key }, ..Settings::default() };
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?.as_secs();
        let unix = UnixTime(unix);
        let server = server_config(settings.clone(), server_tls)?;
        let server = ServerEngine::new(server, [1; 32], START, unix).context("the server")?;
        let target = Target { host: "vpn.example".into(), port: 1194, ..Target::default() };
        let config = ClientConfig::new(settings, client_tls, vec![Remote { target }]);
        Ok(Self { server, config, unix, now: START, next: 0, spent: EngineTime::default() })
    }

    fn many(&mut self, count: u32) -> Result<()> {
        (0..count).try_for_each(|_| self.one())
    }

    /// Runs one client, from its first packet until it is connected.
    fn one(&mut self) -> Result<()> {
        self.next += 1;
        // The time advances so that no limit on unauthenticated packets applies.
        self.now = self.now + Duration::from_secs(1);
        let mut seed = [2; 32];
        seed.iter_mut().zip(self.next.to_be_bytes()).for_each(|(to, from)| *to = from);
        let mut client = ClientEngine::new(self.config.clone(), seed, self.now, self.unix);
        let [_, a, b, c] = self.next.to_be_bytes();
        let from =
            Link::datagram(Default::default(), None, SocketAddr::from(([10, a, b, c], 40_000)));
        let to = Link::datagram(Default::default(), None, SocketAddr::from(([192, 0, 2, 1], 1194)));
        let mut to_server: VecDeque<Vec<u8>> = VecDeque::new();
        let mut to_client: VecDeque<Vec<u8>> = VecDeque::new();
        let mut up = self.client(&mut client, Input::Tick, to, &mut to_server)?;
        for _ in 0..200 {
            if up {
                return Ok(());
            }
            while let Some(mut frame) = to_server.pop_front() {
                self.server(Input::ControlPacket(from, &mut frame), from, &mut to_client);
            }
            while let Some(mut frame) = to_client.pop_front() {
                up |= self.client(
                    &mut client,
                    Input::ControlPacket(to, &mut frame),
                    to,
                    &mut to_server,
                )?;
            }
            if to_server.is_empty() && !up {
                // Only timers can make progress now, so continue with the earliest one.
                let deadlines = [client.deadline(), self.server.deadline()];
                let next = deadlines.into_iter().flatten().map(|(at, _)| at).min();
                self.now = next.context("both engines wait for ever")?.max(self.now);
                up |= self.client(&mut client, Input::Tick, to, &mut to_server)?;
                self.server(Input::Tick, from, &mut to_client);
            }
        }
        ensure(up, || format!("client {} did not come up", self.next))
    }

    fn server(&mut self, input: Input<'_>, client: Link, send: &mut VecDeque<Vec<u8>>) {
        let mut out = Outbox::new();
        let started = Clock::now();
        self.server.handle(self.now, input, &mut out);
        self.spent.server += started.elapsed();
        while let Some(output) = out.pop() {
            match output {
                // Packets to earlier clients are dropped, because these clients no longer exist.
                Output::Send(link, frame) if link == client => send.push_back(frame),
                _ => {}
            }
        }
    }

    /// Returns true when the client is connected.
    fn client(
        &mut self,
        client: &mut ClientEngine,
        input: Input<'_>,
        server: Link,
        send: &mut VecDeque<Vec<u8>>,
    ) -> Result<bool> {
        let mut out = Outbox::new();
        let started = Clock::now();
        client.handle(self.now, input, &mut out);
        self.spent.client += started.elapsed();
        let (mut up, mut dialled) = (false, false);
        while let Some(output) = out.pop() {
            match output {
                Output::Send(_, frame) => send.push_back(frame),
                Output::Dial(_) => dialled = true,
                Output::Event(ClientEvent::Up(_)) => up = true,
                Output::Event(ClientEvent::Restarting(reason)) => {
                    return Err(Failure(format!("client {}: {reason}", self.next)));
                }
                Output::Event(ClientEvent::Stopped(reason)) => {
                    return Err(Failure(format!("client {}: {reason}", self.next)));
                }
                _ => {}
            }
        }
        if dialled {
            up |= self.client(client, Input::LinkUp(server), server, send)?;
        }
        Ok(up)
    }
}

fn server_config(settings: Settings, tls: ServerTls) -> Result<ServerConfig> {
    let network4 = Network4::subnet(
        "10.9.0.1/16".parse().context("a network")?,
        "10.9.0.2".parse().context("an address")?,
        "10.9.255.254".parse().context("an address")?,
    );
    Ok(ServerConfig {
        settings,
        tls,
        network4: Some(network4),
        network6: None,
        push: Vec::new(),
        push_keepalive: None,
        max_clients: 1024,
        duplicate_cn: false,
        leases: Vec::new(),
        force_cookie: false,
        authorize: false,
        checks: Default::default(),
        compress_migrate: false,
        vlans: None,
    })
}

/// Returns an authority and a certificate for each end, ECDSA P-256 as Easy-RSA and openssl make them.
fn tls() -> Result<(ServerTls, ClientTls)> {
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let ca_key = KeyPair::generate().context("a key")?;
    let mut ca = params("lab CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).context("an authority")?.pem();
    let issuer = Issuer::new(ca, ca_key);
    let common = |name: &str| -> Result<CommonTlsOptions> {
        let key = KeyPair::generate().context("a key")?;
        let certificate = params(name).signed_by(&key, &issuer).context("a certificate")?;
        Ok(CommonTlsOptions {
            ca: Some(Pem::new("ca", ca_pem.as_bytes())),
            cert: Some(Pem::new("cert", certificate.pem().as_bytes())),
            key: Some(Pem::new("key", key.serialize_pem().as_bytes())),
            ..CommonTlsOptions::default()
        })
    };
    let server = ServerTlsOptions { common: common("server")?, ..Default::default() };
    let client = ClientTlsOptions { common: common("client")? };
    Ok((
        ServerTls::new(server).context("the server")?,
        ClientTls::new(client).context("the client")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_comes_up_and_both_ends_are_accounted_for() {
        let cost = measure_handshakes(3).unwrap();
        let together = 1000.0 / (cost.server_ms + cost.client_ms);
        assert!(cost.server_ms > 0.0 && cost.client_ms > 0.0);
        assert!((cost.per_second / together - 1.0).abs() < 1e-9);
    }

    #[test]
    fn no_handshakes_cannot_be_measured() {
        assert!(measure_handshakes(0).unwrap_err().0.contains("1 to"));
    }
}
