//! Drives a client and a server engine over two UDP sockets on the loopback address, until the tunnel is up.
//!
//! ```text
//! cargo run -p adit-openvpn --example two_sockets
//! ```
//!
//! The engines do no I/O: the driver below gives them packets and the time, and performs their outputs in order. Packets
//! inside the tunnel are the data plane's task: its commands are printed here.

use std::error::Error;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use adit_engine::{Engine, Input, Instant, Link, Outbox, Output, SocketId, Target, UnixTime};
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent, Remote};
use adit_openvpn::server::{Network4, ServerConfig, ServerEngine, ServerEvent};
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{
    ClientTls, ClientTlsOptions, CommonTlsOptions, Pem, ServerTls, ServerTlsOptions,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

fn main() -> Result<(), Box<dyn Error>> {
    let authority = Authority::new()?;
    let (began, unix) = (std::time::Instant::now(), SystemTime::UNIX_EPOCH.elapsed()?.as_secs());

    let tls = ServerTls::new(ServerTlsOptions {
        common: authority.issue("server")?,
        ..Default::default()
    })?;
    let config = ServerConfig {
        settings: Settings::default(),
        tls,
        network4: Some(Network4::subnet(
            "10.9.0.1/24".parse()?,
            "10.9.0.2".parse()?,
            "10.9.0.9".parse()?,
        )),
        network6: None,
        push: vec!["route 10.77.0.0 255.255.0.0".into()],
        push_keepalive: None,
        max_clients: 10,
        duplicate_cn: false,
        leases: Vec::new(),
        force_cookie: false,
        authorize: false,
        checks: Default::default(),
        compress_migrate: false,
        vlans: None,
    };
    let engine = ServerEngine::new(config, seed()?, now(began), UnixTime(unix))?;
    let mut server = Driver::new("server", engine, began)?;

    let address = server.socket.local_addr()?;
    let target =
        Target { host: address.ip().to_string(), port: address.port(), ..Target::default() };
    let tls = ClientTls::new(ClientTlsOptions { common: authority.issue("alice")? })?;
    let config = ClientConfig::new(Settings::default(), tls, vec![Remote { target }]);
    let engine = ClientEngine::new(config, seed()?, now(began), UnixTime(unix));
    let mut client = Driver::new("client", engine, began)?;

    loop {
        for event in server.turn()? {
            if let ServerEvent::ClientUp(info) = event {
                println!("server: {} is up", info.identity.common_name);
            }
        }
        for event in client.turn()? {
            if let ClientEvent::Up(config) = event {
                println!("client: up with {:?}, routes {:?}", config.ipv4, config.routes4);
                return Ok(());
            }
        }
    }
}

/// An engine with its socket and clock.
struct Driver<E: Engine> {
    name: &'static str,
    engine: E,
    socket: UdpSocket,
    began: std::time::Instant,
}

impl<E: Engine> Driver<E> {
    fn new(name: &'static str, engine: E, began: std::time::Instant) -> std::io::Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(5)))?;
        Ok(Self { name, engine, socket, began })
    }

    /// Gives the engine one packet, or the time if it is due, and returns its events.
    fn turn(&mut self) -> Result<Vec<E::Event>, Box<dyn Error>> {
        let (mut out, mut events) = (Outbox::new(), Vec::new());
        let mut buffer = [0; 2048];
        match self.socket.recv_from(&mut buffer) {
            Ok((len, from)) => {
                let input = Input::ControlPacket(link(from), &mut buffer[..len]);
                self.engine.handle(now(self.began), input, &mut out);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        if self.engine.due().is_some_and(|due| due <= now(self.began)) {
            self.engine.handle(now(self.began), Input::Tick, &mut out);
        }
        while let Some(output) = out.pop() {
            match output {
                Output::Send(to, packet) => drop(self.socket.send_to(&packet, to.remote())?),
                Output::Dial(Target { host, port, .. }) => {
                    let link = link(SocketAddr::new(host.parse()?, port));
                    self.engine.handle(now(self.began), Input::LinkUp(link), &mut out);
                }
                Output::Plane(command) => println!("{}: to the data plane: {command:?}", self.name),
                Output::Event(event) => events.push(event),
                Output::Hangup(_) | Output::AuthRequest(..) => {}
            }
        }
        Ok(events)
    }
}

fn link(remote: SocketAddr) -> Link {
    Link::datagram(SocketId(0), None, remote)
}

fn now(began: std::time::Instant) -> Instant {
    Instant::from_nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn seed() -> Result<[u8; 32], String> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| error.to_string())?;
    Ok(seed)
}

/// A certificate authority for two certificates.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Result<Self, rcgen::Error> {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::default());
        params.distinguished_name.push(DnType::CommonName, "example CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    fn issue(&self, name: &str) -> Result<CommonTlsOptions, rcgen::Error> {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::default());
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(CommonTlsOptions {
            ca: Some(Pem::new("ca", self.certificate.as_bytes())),
            cert: Some(Pem::new("cert", certificate.as_bytes())),
            key: Some(Pem::new("key", key.serialize_pem().as_bytes())),
            ..CommonTlsOptions::default()
        })
    }
}
