//! A client after suspend, from reading the clock to the first packet of the next attempt.

mod slept;

use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use adit_engine::Target;
use adit_openvpn::client::{ClientConfig, Remote};
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{ClientTls, ClientTlsOptions, CommonTlsOptions, Pem};
use adit_runtime::authorize::CertificateOnly;
use adit_runtime::driver::{Dialled, Endpoint};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::*;

/// The variable that is set in the process that runs only this test.
const ALONE: &str = "ADIT_TEST_ALONE";

fn tls() -> ClientTls {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "test CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    let (issuer, own) = (Issuer::new(params, key), KeyPair::generate().unwrap());
    let cert = CertificateParams::default().signed_by(&own, &issuer).unwrap().pem();
    let common = CommonTlsOptions {
        ca: Some(Pem::new("ca", ca.as_bytes())),
        cert: Some(Pem::new("cert", cert.as_bytes())),
        key: Some(Pem::new("key", own.serialize_pem().as_bytes())),
        ..CommonTlsOptions::default()
    };
    ClientTls::new(ClientTlsOptions { common }).unwrap()
}

/// Counts lost attempts, and ends the client on request.
struct Watched {
    lost: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
}

impl Hooks for Watched {
    fn event(&mut self, event: &ClientEvent) {
        if let ClientEvent::Restarting(_) = event {
            self.lost.fetch_add(1, SeqCst);
        }
    }

    fn dialled(&mut self, _: &Dialled) {}

    fn dial_failed(&mut self, reason: &str) {
        panic!("{reason}");
    }

    fn plan(&mut self, _: &TunnelConfig) -> Result<(HostPlan, Vec<String>), Fault> {
        Ok((HostPlan { device: Device::Null, ..HostPlan::default() }, Vec::new()))
    }

    fn up(&mut self, _: &TunnelConfig, _: &HostReport<'_>) {}

    fn tick(&mut self, _: &Traffic) -> Next {
        if self.end.load(SeqCst) { Next::End } else { Next::GoOn }
    }
}

/// Checks a client whose attempt has failed and that waits an hour before the next one.
fn waits_and_wakes() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = Target {
        host: "127.0.0.1".into(),
        port: server.local_addr().unwrap().port(),
        ..Target::default()
    };
    let mut config = ClientConfig::new(Settings::default(), tls(), vec![Remote { target }]);
    config.connect_retry = (Duration::from_secs(3600), Duration::from_secs(3600));
    config.server_poll_timeout = Duration::from_secs(1);
    let (lost, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut watched = Watched { lost: Arc::clone(&lost), end: Arc::clone(&end) };
    let client = std::thread::spawn(move || {
        adit_runtime::async_runtime().unwrap().block_on(async {
            let options = options(config, Device::Null, Duration::from_millis(500));
            Client::open(options).unwrap().run(&mut watched).await.unwrap()
        })
    });
    let heard = |limit: Duration| {
        server.set_read_timeout(Some(limit)).unwrap();
        server.recv_from(&mut [0; 2048]).is_ok()
    };
    assert!(heard(Duration::from_secs(30)), "the first attempt");
    while lost.load(SeqCst) == 0 {
        heard(Duration::from_millis(50));
    }
    // Receive the packets in flight.
    while heard(Duration::from_millis(100)) {}
    assert!(!heard(Duration::from_secs(2)), "it waits");
    // This is shorter than the wait, which is not over yet.
    adit_runtime::clock::advance_for_test(Duration::from_secs(600));
    assert!(heard(Duration::from_secs(30)), "it dials when the machine wakes up");
    end.store(true, SeqCst);
    assert_eq!(client.join().unwrap(), EndReason::Asked);
}

fn options(config: ClientConfig, device: Device, tick: Duration) -> Options {
    Options {
        engine: config.into(),
        dial: DialSettings::default(),
        listen: None,
        device,
        early: None,
        persist_tun: true,
        control: None,
        metrics: None,
        allow_recursive: false,
        allow_names: false,
        copies_tos: false,
        tick,
        gate: None,
        commands: None,
        authorizer: Arc::new(CertificateOnly),
        scripts: None,
    }
}

#[test]
fn a_client_that_waits_dials_at_once_when_the_machine_wakes_up() {
    if std::env::var_os(ALONE).is_some() {
        return waits_and_wakes();
    }
    // The test advances the clock of the whole process.
    let name = "client::tests::a_client_that_waits_dials_at_once_when_the_machine_wakes_up";
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{errors}");
}
