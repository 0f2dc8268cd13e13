//! A tunnel between two points, of which the laptop is one: the other end waits at the server's address.

use std::fs;

use super::Control::{Fails, Passes};
use super::links::{LINK, OLD_NETWORK};
use super::{Client, DROP_IN, Day, Keys, Scene, Setup};
use crate::failure::Result;
use crate::laptop::{Access, Internet, WEB};
use crate::pki::Maker;

/// The scenes of this module.
pub(super) const SCENES: &[Scene] = &[
    ("points-link-flap", DROP_IN, Fails(LINK), |day| flap(day, Keys::Tls, true)),
    ("points-link-flap-static-key", DROP_IN, Fails(LINK), |day| flap(day, Keys::Static, true)),
    ("points-link-flap-one-route", DROP_IN, Passes, |day| flap(day, Keys::Tls, false)),
    ("points-link-flap-one-route-static-key", DROP_IN, Passes, |day| {
        flap(day, Keys::Static, false)
    }),
    ("points-elsewhere", DROP_IN, Fails(OLD_NETWORK), |day| elsewhere(day, Keys::Tls, true)),
    ("points-elsewhere-static-key", DROP_IN, Fails(OLD_NETWORK), |day| {
        elsewhere(day, Keys::Static, true)
    }),
    ("points-new-address", DROP_IN, Fails(IGNORED), |day| new_address(day, Keys::Tls)),
    ("points-new-address-static-key", DROP_IN, Passes, |day| new_address(day, Keys::Static)),
];

const IGNORED: &str =
    "ignores the other end's packets from another address until the session is given up";

/// The ends' addresses in the tunnel.
const FAR: &str = "10.73.0.1";
const NEAR: &str = "10.73.0.2";

impl Day<'_> {
    /// Writes the config of the end that waits, and returns that of the laptop. The tunnel takes all traffic, or what is
    /// for the host outside.
    pub(super) fn make_points(
        &self,
        internet: &Internet,
        setup: Setup,
        keys: Keys,
    ) -> Result<String> {
        let pki = &self.bench.pki;
        let path = |name: &str| pki.file(Maker::OpenSslEc, name).display().to_string();
        let (ca, secret) = (path("ca.crt"), pki.wrap("static.key").display().to_string());
        let (far, near) = match keys {
            Keys::Static => {
                let cipher = "cipher AES-256-CBC";
                (format!("secret {secret} 0\n{cipher}\n"), format!("secret {secret} 1\n{cipher}\n"))
            }
            Keys::Tls => {
                let ours = |name: &str| {
                    let (cert, key) = (path(&format!("{name}.crt")), path(&format!("{name}.key")));
                    format!("ca {ca}\ncert {cert}\nkey {key}\ntls-crypt {secret}\n")
                };
                (
                    format!("tls-server\ndh none\n{}", ours("server")),
                    format!("tls-client\nremote-cert-tls server\n{}", ours("client")),
                )
            }
        };
        let offload = if self.client == Client::Openvpn { "disable-dco\n" } else { "" };
        let common = format!("dev tun\nproto udp4\nverb 3\nping 10\nping-restart 60\n{offload}");
        let conf = format!("{common}port 1194\nfloat\nifconfig {FAR} {NEAR}\n{far}");
        fs::write(self.folder.join("server.conf"), conf)?;
        internet.share_vps()?;
        let routes = match setup.full {
            true => "redirect-gateway def1\n".to_owned(),
            false => format!("route {WEB} 255.255.255.255\n"),
        };
        let host = setup.host;
        Ok(format!("{common}nobind\nremote {host} 1194\nifconfig {NEAR} {FAR}\n{routes}{near}"))
    }
}

fn setup(keys: Keys, full: bool) -> Setup {
    Setup { points: Some(keys), full, ..Setup::default() }
}

/// The interface is down for three seconds.
fn flap(day: &Day<'_>, keys: Keys, full: bool) -> Result<String> {
    day.connect(setup(keys, full))?.flap(Access::Home)
}

/// From home to the café: the other end sees another address.
fn elsewhere(day: &Day<'_>, keys: Keys, full: bool) -> Result<String> {
    day.connect(setup(keys, full))?.change(Access::Home, Access::Cafe)
}

/// DHCP gives another address on the same link: behind the NAT, the other end sees another port.
fn new_address(day: &Day<'_>, keys: Keys) -> Result<String> {
    day.connect(setup(keys, false))?.renumber()
}
