//! Combinations of transports, wrappings, credentials, packet formats, devices and address families, covered pairwise
//! and with either program at either end. Each tunnel carries traffic, rekeys, survives a move of the client where it
//! can, and recovers after either end was killed.

mod run;

use crate::matrix::{Roles, Wrapping};
use crate::pairwise;

pub use run::run;

/// The transport of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A stream.
    Tcp,
}

/// The credentials that the ends authenticate each other with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credentials {
    /// Certificates of one authority.
    Certificates,
    /// Certificates known by fingerprint, without an authority.
    Fingerprint,
    /// A shared key, point to point and without TLS.
    StaticKey,
}

/// The protection of data packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// AES-256-GCM.
    AesGcm,
    /// ChaCha20-Poly1305.
    ChaCha20,
    /// AES-256-CBC with HMAC-SHA256, for older peers.
    Cbc,
}

/// The kind of the tunnel's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// IP packets.
    Tun,
    /// Ethernet frames.
    Tap,
}

/// One combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// The programs at both ends.
    pub roles: Roles,
    /// UDP or TCP.
    pub transport: Transport,
    /// The control channel's wrapping.
    pub wrapping: Wrapping,
    /// Certificates or a static key.
    pub credentials: Credentials,
    /// The data channel's packets.
    pub data: Data,
    /// TUN or TAP.
    pub device: Device,
    /// Whether the outer transport is IPv6.
    pub outer_v6: bool,
}

const ROLES: [Roles; 2] = [Roles::AditServes, Roles::OpenVpnServes];
const TRANSPORTS: [Transport; 2] = [Transport::Udp, Transport::Tcp];
const WRAPPINGS: [Wrapping; 4] =
    [Wrapping::None, Wrapping::TlsAuth, Wrapping::TlsCrypt, Wrapping::TlsCryptV2];
const CREDENTIALS: [Credentials; 3] =
    [Credentials::Certificates, Credentials::Fingerprint, Credentials::StaticKey];
const DATA: [Data; 3] = [Data::AesGcm, Data::ChaCha20, Data::Cbc];
const DEVICES: [Device; 2] = [Device::Tun, Device::Tap];

/// The number of values of each dimension, in the order of [`Mode`].
const SIZES: [usize; 7] = [
    ROLES.len(),
    TRANSPORTS.len(),
    WRAPPINGS.len(),
    CREDENTIALS.len(),
    DATA.len(),
    DEVICES.len(),
    2,
];

impl Mode {
    fn of([roles, transport, wrapping, credentials, data, device, outer]: [usize; 7]) -> Self {
        Self {
            roles: ROLES[roles],
            transport: TRANSPORTS[transport],
            wrapping: WRAPPINGS[wrapping],
            credentials: CREDENTIALS[credentials],
            data: DATA[data],
            device: DEVICES[device],
            outer_v6: outer == 1,
        }
    }

    /// Returns whether the combination is possible. A static key replaces TLS, so there is no control channel to wrap,
    /// and no AEAD.
    fn exists(&self) -> bool {
        self.credentials != Credentials::StaticKey
            || (self.wrapping == Wrapping::None && self.data == Data::Cbc)
    }

    /// Returns the mode's name, which is the argument to run it alone.
    pub fn name(&self) -> String {
        let transport = match self.transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        let outer = if self.outer_v6 { 6 } else { 4 };
        let wrapping = match self.wrapping {
            Wrapping::None => "bare",
            Wrapping::TlsAuth | Wrapping::TlsAuthBidirectional => "tls-auth",
            Wrapping::TlsCrypt => "tls-crypt",
            Wrapping::TlsCryptV2 => "tls-crypt-v2",
        };
        let credentials = match self.credentials {
            Credentials::Certificates => "certificates",
            Credentials::Fingerprint => "fingerprint",
            Credentials::StaticKey => "static-key",
        };
        let data = self.data.cipher().to_lowercase();
        let device = self.device.name();
        let roles = self.roles.name();
        format!("mode/{roles}/{device}/{transport}{outer}/{wrapping}/{credentials}/{data}")
    }
}

impl Data {
    /// Returns the cipher's name in configuration files.
    pub fn cipher(self) -> &'static str {
        match self {
            Self::AesGcm => "AES-256-GCM",
            Self::ChaCha20 => "CHACHA20-POLY1305",
            Self::Cbc => "AES-256-CBC",
        }
    }
}

impl Device {
    /// Returns the kind's name in configuration files, which is also the prefix of the interface's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Tap => "tap",
        }
    }
}

/// Returns a small set of modes that contains every pair of values that can be combined.
pub fn pairwise() -> Vec<Mode> {
    let mode = |choice: &pairwise::Choice| <[usize; 7]>::try_from(&choice[..]).ok().map(Mode::of);
    let exists = |choice: &pairwise::Choice| mode(choice).is_some_and(|mode| mode.exists());
    pairwise::covering_array(&SIZES, exists).iter().filter_map(mode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_small_and_every_mode_exists() {
        let modes = pairwise();
        assert!((12..=20).contains(&modes.len()), "{} modes", modes.len());
        assert!(modes.iter().all(Mode::exists));
        let mut names: Vec<String> = modes.iter().map(Mode::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), modes.len());
    }

    #[test]
    fn every_way_is_tried_with_adit_in_either_part() {
        let modes = pairwise();
        for roles in ROLES {
            let of = |what: &dyn Fn(&Mode) -> bool| {
                assert!(modes.iter().any(|mode| mode.roles == roles && what(mode)));
            };
            for transport in TRANSPORTS {
                of(&|mode| mode.transport == transport);
            }
            for credentials in CREDENTIALS {
                of(&|mode| mode.credentials == credentials);
            }
            for device in DEVICES {
                of(&|mode| mode.device == device);
            }
            for data in DATA {
                of(&|mode| mode.data == data);
            }
        }
    }
}
