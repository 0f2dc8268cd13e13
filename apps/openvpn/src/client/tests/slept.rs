//! A live session on a machine that is suspended for longer than `ping-restart`. A client with a real device and rules
//! runs in one namespace, and a server in another one, in a process whose clock is not advanced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;

use adit_engine::Transport;
use adit_engine::command::Keepalive;
use adit_linux::net::{Address, Route};
use adit_linux::netns::NetNs;
use adit_openvpn::server::{Network4, ServerConfig, ServerEvent};
use adit_openvpn::tls::{ServerTls, ServerTlsOptions};
use adit_testbed::needs_root;
use adit_testbed::wait::{ScaledInstant, until};

use super::*;
use adit_openvpn_service::{Listener, MacLimits, Service, SocketTuning};
use adit_runtime::host::Redirect;

/// The variable with the role of a process and the folder with the certificates.
const PART: &str = "ADIT_TEST_PART";
const FOLDER: &str = "ADIT_TEST_FOLDER";

/// The server's address, behind the router, so that it is reached by the default route.
const SERVER: &str = "198.51.100.7:1194";
/// The server's address in the tunnel.
const INSIDE: &str = "10.9.0.1";
const OUTSIDE: &str = "203.0.113.99";

/// The keepalive that the server pushes.
const KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_secs(10), timeout: Duration::from_secs(60) };

fn common(folder: &Path, name: &str) -> CommonTlsOptions {
    let pem = |file: String| Some(Pem::new("pem", fs::read(folder.join(file)).unwrap()));
    CommonTlsOptions {
        ca: pem("ca.crt".into()),
        cert: pem(format!("{name}.crt")),
        key: pem(format!("{name}.key")),
        ..CommonTlsOptions::default()
    }
}

fn write_certificates(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "test CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(folder.join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let cert = params.signed_by(&key, &issuer).unwrap();
        fs::write(folder.join(format!("{name}.crt")), cert.pem()).unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

/// Serves until it is killed.
struct Serves(PathBuf);

impl adit_openvpn_service::Hooks for Serves {
    fn event(&mut self, _: &ServerEvent) {}

    fn reload(&mut self, _: &adit_openvpn_service::Handle) -> Result<Option<ServerTls>, Fault> {
        Ok(None)
    }

    fn serving(&mut self, _: Option<&str>, _: &[Endpoint]) {
        fs::write(self.0.join("serving"), "").unwrap();
    }
}

fn serve(folder: &Path) {
    let tls = ServerTlsOptions { common: common(folder, "server"), ..Default::default() };
    let net = format!("{INSIDE}/24");
    let network = Network4::subnet(
        net.parse().unwrap(),
        "10.9.0.2".parse().unwrap(),
        "10.9.0.254".parse().unwrap(),
    );
    let engine = ServerConfig {
        settings: Settings::default(),
        tls: ServerTls::new(tls).unwrap(),
        network4: Some(network),
        network6: None,
        push: Vec::new(),
        push_keepalive: Some(KEEPALIVE),
        max_clients: 10,
        duplicate_cn: false,
        leases: Vec::new(),
        force_cookie: false,
        authorize: false,
        checks: Default::default(),
        compress_migrate: false,
        vlans: None,
    };
    let listener =
        Listener { bind: SERVER.parse().unwrap(), v6only: false, transport: Transport::Udp };
    let options = adit_openvpn_service::Options {
        engine,
        listeners: vec![listener],
        host: HostPlan { addresses: vec![net.parse().unwrap()], ..HostPlan::default() },
        authorizer: Arc::new(CertificateOnly),
        relay: Relay::Kernel,
        filter: None,
        mac_limits: MacLimits::default(),
        control: None,
        metrics: None,
        socket: SocketTuning::default(),
        port_share: None,
        hand_over: Default::default(),
        workers: 1,
    };
    let mut hooks = Serves(folder.to_owned());
    adit_runtime::async_runtime().unwrap().block_on(async {
        Service::start(options).await.unwrap().run(&mut hooks).await.unwrap();
    });
}

/// The client's events.
#[derive(Clone, Default)]
struct Seen {
    ups: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
    /// The routes of unmarked packets at each dial after the first session.
    ways: Arc<Mutex<Vec<String>>>,
}

impl Hooks for Seen {
    fn event(&mut self, _: &ClientEvent) {}

    fn dialled(&mut self, _: &Dialled) {
        if self.ups.load(SeqCst) > 0 {
            self.ways.lock().unwrap().push(way());
        }
    }

    fn dial_failed(&mut self, reason: &str) {
        panic!("{reason}");
    }

    fn plan(&mut self, tunnel: &TunnelConfig) -> Result<(HostPlan, Vec<String>), Fault> {
        let mut redirect = Redirect::parse(["def1"]).unwrap();
        redirect.gateway4 = tunnel.gateway4;
        let plan = HostPlan {
            addresses: tunnel.ipv4.into_iter().map(Into::into).collect(),
            redirect: Some(redirect),
            remote: tunnel.remote,
            policy: true,
            ..HostPlan::default()
        };
        Ok((plan, Vec::new()))
    }

    fn up(&mut self, _: &TunnelConfig, _: &HostReport<'_>) {
        self.ups.fetch_add(1, SeqCst);
    }

    fn tick(&mut self, _: &Traffic) -> Next {
        if self.end.load(SeqCst) { Next::End } else { Next::GoOn }
    }
}

/// Returns the route that the kernel chooses for another program's packet.
fn way() -> String {
    let output = Command::new("ip").args(["route", "get", OUTSIDE]).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Returns whether the server answers through the tunnel.
fn answered() -> bool {
    let mut ping = Command::new("ping");
    ping.args(["-c", "1", "-W", "1", INSIDE]).stdout(Stdio::null()).stderr(Stdio::null());
    ping.status().unwrap().success()
}

fn dial(folder: &Path) {
    let server: SocketAddr = SERVER.parse().unwrap();
    let target = Target { host: server.ip().to_string(), port: server.port(), ..Target::default() };
    let tls = ClientTls::new(ClientTlsOptions { common: common(folder, "client") }).unwrap();
    let mut config = ClientConfig::new(Settings::default(), tls, vec![Remote { target }]);
    // If a session ended for any reason other than suspend, the next one would not begin within this test.
    config.connect_retry = (Duration::from_secs(3600), Duration::from_secs(3600));
    let seen = Seen::default();
    let mut hooks = seen.clone();
    let client = std::thread::spawn(move || {
        adit_runtime::async_runtime().unwrap().block_on(async {
            // The suspend is noticed before the server's silence. In the reverse order, the silence ends the wait for
            // the next session.
            let options = options(config, Device::Tun(None), Duration::from_millis(50));
            Client::open(options).unwrap().run(&mut hooks).await.unwrap()
        })
    });
    let limit = Duration::from_secs(30);
    until("the first session", limit, || Ok(seen.ups.load(SeqCst) == 1 && answered())).unwrap();
    assert!(way().contains("dev tun0"), "{}", way());
    // Shorter than the server's timeout, so the session continues.
    adit_runtime::clock::advance_for_test(KEEPALIVE.timeout / 2);
    std::thread::sleep(Duration::from_secs(3));
    assert!(answered());
    assert_eq!(seen.ups.load(SeqCst), 1);
    // One night.
    adit_runtime::clock::advance_for_test(Duration::from_secs(8 * 3600));
    let woke = ScaledInstant::now();
    let dialled = || format!("dialled by {:?}", seen.ways.lock().unwrap());
    until("the second session", limit, || Ok(seen.ups.load(SeqCst) == 2))
        .unwrap_or_else(|failure| panic!("{failure}: {}", dialled()));
    until("an answer in it", limit, || Ok(answered())).unwrap();
    let took = woke.elapsed();
    println!("back after {} ms", took.as_millis());
    assert!(took <= Duration::from_secs(3), "back after {} ms", took.as_millis());
    let ways = std::mem::take(&mut *seen.ways.lock().unwrap());
    assert_eq!(ways.len(), 1, "{ways:?}");
    assert!(ways.iter().all(|way| way.contains("dev tun0")), "{ways:?}");
    seen.end.store(true, SeqCst);
    assert_eq!(client.join().unwrap(), EndReason::Asked);
}

/// A process that ends with the test.
struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates the client's namespace with a default route, and the server's behind it.
fn networks() -> (NetNs, NetNs) {
    let (near, far) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    near.connect("eth0", &far, "eth0").unwrap();
    near.configure(async |net| {
        let link = net.link("eth0").await.unwrap().index;
        net.add_address(&Address::new(link, "192.0.2.2/24".parse().unwrap())).await.unwrap();
        let router = "192.0.2.1".parse().unwrap();
        net.add_route(&Route::via("0.0.0.0/0".parse().unwrap(), router)).await.unwrap();
    })
    .unwrap();
    far.configure(async |net| {
        let link = net.link("eth0").await.unwrap().index;
        net.add_address(&Address::new(link, "192.0.2.1/24".parse().unwrap())).await.unwrap();
        net.add_address(&Address::new(1, "198.51.100.7/32".parse().unwrap())).await.unwrap();
    })
    .unwrap();
    (near, far)
}

#[test]
fn a_session_that_slept_past_ping_restart_is_back_at_once_with_its_routes() {
    if let Some(part) = std::env::var_os(PART) {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        return if part == "server" { serve(&folder) } else { dial(&folder) };
    }
    needs_root!();
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let (near, far) = networks();
    let name = "client::tests::slept::\
                a_session_that_slept_past_ping_restart_is_back_at_once_with_its_routes";
    let part = |ns: &NetNs, part: &str| {
        let mut command = ns.command(std::env::current_exe().unwrap()).unwrap();
        command.args(["--exact", name, "--nocapture"]);
        command.env(PART, part).env(FOLDER, folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut server = Part(part(&far, "server").spawn().unwrap());
    let limit = Duration::from_secs(30);
    until("the server serves", limit, || Ok(folder.path().join("serving").exists()))
        .unwrap_or_else(|failure| panic!("{failure}: {:?}", server.0.try_wait()));
    let output = part(&near, "client").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{errors}");
}
