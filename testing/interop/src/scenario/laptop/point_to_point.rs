//! Tests of a point-to-point tunnel with the laptop as one end. The other end waits at the server's address.

use std::fs;

use super::Control::{Fails, Passes};
use super::links::{LINK, OLD_NETWORK};
use super::{Client, DROP_IN, Keys, Laptop, Scenario, Setup};
use crate::failure::Result;
use crate::laptop::{Access, Internet, WEB};
use crate::pki::PkiTool;

/// The scenarios of this module.
pub(super) const SCENARIOS: &[Scenario] = &[
    ("point-to-point-link-flap", DROP_IN, Fails(LINK), |laptop| flap(laptop, Keys::Tls, true)),
    ("point-to-point-link-flap-static-key", DROP_IN, Fails(LINK), |laptop| {
        flap(laptop, Keys::Static, true)
    }),
    ("point-to-point-link-flap-one-route", DROP_IN, Passes, |laptop| {
        flap(laptop, Keys::Tls, false)
    }),
    ("point-to-point-link-flap-one-route-static-key", DROP_IN, Passes, |laptop| {
        flap(laptop, Keys::Static, false)
    }),
    ("point-to-point-change-of-network", DROP_IN, Fails(OLD_NETWORK), |laptop| {
        change_network(laptop, Keys::Tls, true)
    }),
    ("point-to-point-change-of-network-static-key", DROP_IN, Fails(OLD_NETWORK), |laptop| {
        change_network(laptop, Keys::Static, true)
    }),
    ("point-to-point-new-address", DROP_IN, Fails(IGNORED), |laptop| {
        new_address(laptop, Keys::Tls)
    }),
    ("point-to-point-new-address-static-key", DROP_IN, Passes, |laptop| {
        new_address(laptop, Keys::Static)
    }),
];

const IGNORED: &str =
    "ignores the other end's packets from another address until the session is given up";

/// The ends' addresses in the tunnel.
const FAR: &str = "10.73.0.1";
const NEAR: &str = "10.73.0.2";

impl Laptop<'_> {
    /// Writes the configuration of the end that waits, and returns that of the laptop. The tunnel takes all traffic, or
    /// only that for the host outside.
    pub(super) fn make_point_to_point(
        &self,
        internet: &Internet,
        setup: Setup,
        keys: Keys,
    ) -> Result<String> {
        let pki = &self.env.pki;
        let path = |name: &str| pki.file(PkiTool::OpenSslEc, name).display().to_string();
        let (ca, secret) = (path("ca.crt"), pki.wrapping_key("static.key").display().to_string());
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
        let routes = if setup.full {
            "redirect-gateway def1\n".to_owned()
        } else {
            format!("route {WEB} 255.255.255.255\n")
        };
        let host = setup.host;
        Ok(format!("{common}nobind\nremote {host} 1194\nifconfig {NEAR} {FAR}\n{routes}{near}"))
    }
}

fn setup(keys: Keys, full: bool) -> Setup {
    Setup { point_to_point: Some(keys), full, ..Setup::default() }
}

/// The interface is down for three seconds.
fn flap(laptop: &Laptop<'_>, keys: Keys, full: bool) -> Result<String> {
    laptop.connect(setup(keys, full))?.flap(Access::Home)
}

/// From home to the café, so that the other end sees another address.
fn change_network(laptop: &Laptop<'_>, keys: Keys, full: bool) -> Result<String> {
    laptop.connect(setup(keys, full))?.change(Access::Home, Access::Cafe)
}

/// DHCP gives another address on the same link. Because of the NAT, the other end sees another port.
fn new_address(laptop: &Laptop<'_>, keys: Keys) -> Result<String> {
    laptop.connect(setup(keys, false))?.renumber()
}
