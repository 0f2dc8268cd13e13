//! Interoperability of our wrapping with a running `openvpn`. Its server answers our reset, we open
//! the answer, and it acknowledges the next packet that we wrap. The test runs on loopback, without
//! a TUN device.
//!
//! It is skipped if `openvpn` is not installed.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_crypto::Digest;
use adit_engine::UnixTime;
use adit_openvpn::keys::{ClientKey, Direction, Metadata, ServerKey, StaticKey};
use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::wrap::{WrapConfig, Wrapper};

const OURS: SessionId = SessionId(*b"adit-sid");

struct Stock {
    process: Child,
    folder: PathBuf,
    socket: UdpSocket,
}

impl Drop for Stock {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Stock {
    /// Starts a server with this key file. Returns `None` if `openvpn` is not installed.
    fn start(name: &str, key: &str, options: &[&str]) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("adit-wrap-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let identity = rcgen::generate_simple_self_signed(vec!["server".to_owned()]).unwrap();
        write(&folder, "cert.pem", &identity.cert.pem());
        write(&folder, "key.pem", &identity.signing_key.serialize_pem());
        write(&folder, "wrap.key", key);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // The port was free a moment ago. OpenVPN has no option to choose a port and report it.
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let spawned = Command::new("openvpn")
            .args([
                "--tls-server",
                "--dev",
                "null",
                "--dh",
                "none",
                "--proto",
                "udp4",
                "--verb",
                "4",
            ])
            .args(["--local", "127.0.0.1", "--port", &port.to_string(), "--ca", "cert.pem"])
            .args(["--cert", "cert.pem", "--key", "key.pem"])
            .args(options)
            .current_dir(&folder)
            .stdout(fs::File::create(folder.join("log")).unwrap())
            .stderr(Stdio::null())
            .spawn();
        let process = match spawned {
            Ok(process) => process,
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
                eprintln!("no openvpn in the PATH: nothing was tested");
                return None;
            }
        };
        socket.connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Some(Self { process, folder, socket })
    }

    /// Sends one packet repeatedly, each time wrapped again, until `wanted` accepts an answer.
    fn exchange(
        &self,
        wrapper: &mut Wrapper,
        control: &Control<'_>,
        wanted: impl Fn(&Control<'_>) -> bool,
    ) -> Seen {
        for _ in 0..50 {
            let mut packet = Vec::new();
            wrapper.seal(control, now(), &mut packet).unwrap();
            let mut heard = self.socket.send(&packet).map(|_| 0);
            let mut buf = [0; 2048];
            while heard.is_ok() {
                heard = self.socket.recv(&mut buf);
                let Ok(len) = heard else { continue };
                let opened = wrapper.open(&mut buf[..len]).expect("stock's packet opens");
                if wanted(&opened) {
                    return Seen {
                        session: opened.session,
                        message: opened.message,
                        payload: opened.payload.to_vec(),
                    };
                }
            }
            // Until the server listens, sending or receiving fails at once.
            if heard.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        panic!("stock did not answer {control:?}; it said:\n{log}");
    }
}

struct Seen {
    session: SessionId,
    message: Option<u32>,
    payload: Vec<u8>,
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
}

fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}

/// Exchanges a reset, its answer, a message, and its acknowledgement.
fn talk(name: &str, key: &str, options: &[&str], config: &WrapConfig) {
    let Some(stock) = Stock::start(name, key, options) else { return };
    let mut wrapper = Wrapper::client(config).unwrap();
    let v2 = matches!(config, WrapConfig::TlsCryptV2Client { .. });
    let reset = Control {
        opcode: if v2 { Opcode::HardResetClientV3 } else { Opcode::HardResetClientV2 },
        key_id: 0,
        session: OURS,
        acks: Acks::NONE,
        remote: None,
        message: Some(0),
        payload: &[],
    };
    let answer = stock.exchange(&mut wrapper, &reset, |control| {
        control.opcode == Opcode::HardResetServerV2
            && control.remote == Some(OURS)
            && control.acks.iter().any(|id| id == 0)
    });
    assert_eq!(answer.message, Some(0));
    assert!(matches!(answer.payload[..], [] | [0, 1, 0, 2, 0, 1]), "{:?}", answer.payload);

    let message = Control {
        opcode: if v2 { Opcode::ControlWkcV1 } else { Opcode::ControlV1 },
        acks: Acks::from_slice(&[0]).unwrap(),
        remote: Some(answer.session),
        message: Some(1),
        // The start of a TLS record that is never completed.
        payload: &[0x16, 3, 1, 2, 0, 1, 0, 1],
        ..reset
    };
    let acknowledged = stock.exchange(&mut wrapper, &message, |control| {
        control.remote == Some(OURS) && control.acks.iter().any(|id| id == 1)
    });
    assert_eq!(acknowledged.session, answer.session);
}

fn key() -> StaticKey {
    StaticKey::generate(|bytes| bytes.iter_mut().zip(7_u8..=255).for_each(|(b, n)| *b = n))
}

#[test]
fn none() {
    talk("none", "", &[], &WrapConfig::None);
}

#[test]
fn tls_auth_in_each_direction() {
    use Direction::{Inverse, Normal};
    let text = key().to_text();
    let cases = [
        ("auth-sha1", "SHA1", Digest::Sha1, &["0"][..], Some(Inverse)),
        ("auth-sha512", "SHA512", Digest::Sha512, &["1"][..], Some(Normal)),
        ("auth-md5", "MD5", Digest::Md5, &[][..], None),
    ];
    for (name, auth, digest, direction, ours) in cases {
        let options = [&["--auth", auth, "--tls-auth", "wrap.key"][..], direction].concat();
        let config = WrapConfig::TlsAuth { key: key(), direction: ours, digest };
        talk(name, &text, &options, &config);
    }
}

#[test]
fn tls_crypt() {
    let config = WrapConfig::TlsCrypt { key: key() };
    talk("crypt", &key().to_text(), &["--tls-crypt", "wrap.key"], &config);
}

#[test]
fn tls_crypt_v2_with_keys_that_we_made() {
    let server = ServerKey::generate(|bytes| bytes.fill(0x5a));
    let user = Metadata::User(b"made by adit".to_vec());
    for (name, metadata) in [("v2-none", None), ("v2-user", Some(&user))] {
        let key = server.client_key(key(), metadata).unwrap();
        let key = ClientKey::parse(&key.to_pem()).unwrap();
        let config = WrapConfig::TlsCryptV2Client { key };
        talk(name, &server.to_pem(), &["--tls-crypt-v2", "wrap.key"], &config);
    }
}
