//! Our form of a certificate's name equals that of openvpn, which operators copy into
//! `verify-x509-name`.

use std::fs::File;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::support::*;
use adit_openvpn::tls::NameType;

struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn openvpn(dir: &Path, log: &str, args: &[&str]) -> Peer {
    let child = Command::new("openvpn")
        .args(["--dev", "null", "--proto", "udp", "--ca", "ca", "--cert", "crt", "--key", "key"])
        .args(["--verb", "3"])
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(File::create(dir.join(log)).unwrap())
        .spawn()
        .expect("the tests need stock openvpn (apt install openvpn)");
    Peer(child)
}

#[test]
fn subjects_read_as_in_openvpns_log() {
    let subject = "/C=US/ST=Cal, \"if\"/L=San\\+Fran;<b>=x/O=Back\\\\slash #h/OU=one/OU=two+street=multi\
                   /GN=Given/SN=Sur/serialNumber=77/UID=uid1/DC=example/title=tab\there\
                   /emailAddress=a@b.c/1.3.6.1.4.1.55555.1=custom/CN=Tést Näme";
    let ext = SERVER_EXT.replace("serverAuth", "serverAuth,clientAuth");
    let pair = ca().issue(subject, Kind::P256, &ext, &[]);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (name, text) in [("ca", &ca().pair.cert), ("crt", &pair.cert), ("key", &pair.key)] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let local = ["--local", "127.0.0.1", "--lport", &port];
    let _server = openvpn(dir, "server", &[&["--tls-server", "--dh", "none"], &local[..]].concat());
    let _client =
        openvpn(dir, "client", &["--tls-client", "--nobind", "--remote", "127.0.0.1", &port]);
    let until = Instant::now() + Duration::from_secs(20);
    let shown = loop {
        let log = std::fs::read_to_string(dir.join("client")).unwrap();
        if let Some((_, rest)) = log.split_once("VERIFY OK: depth=0, ") {
            break rest.lines().next().unwrap().to_owned();
        }
        assert!(Instant::now() < until, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut common = options(ca(), None);
    common.verify.name = Some((shown.clone(), NameType::Subject));
    let identity = client_verdict(common, &pair.cert, &pair.key).unwrap();
    assert_eq!(identity.subject, shown);
    assert!(shown.contains("tab\\09here") && shown.contains("Back\\\\slash"), "{shown}");
}
