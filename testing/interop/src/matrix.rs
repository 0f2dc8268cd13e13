//! Defines the dimensions of the combinations, which combinations make sense, and a set of cases in which every pair of
//! values occurs at least once.

use crate::pairwise;
use crate::pki::PkiTool;

/// The programs at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roles {
    /// adit is the server of an openvpn client.
    AditServes,
    /// openvpn is the server of adit.
    OpenVpnServes,
    /// adit at both ends.
    AditBoth,
    /// openvpn at both ends, which shows that the testbed itself works.
    OpenVpnBoth,
}

impl Roles {
    /// Returns the roles as a part of the names of tests.
    pub fn name(self) -> &'static str {
        match self {
            Self::AditServes => "adit-serves-openvpn",
            Self::OpenVpnServes => "openvpn-serves-adit",
            Self::AditBoth => "adit-serves-adit",
            Self::OpenVpnBoth => "openvpn-serves-openvpn",
        }
    }
}

/// The protection of the control channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapping {
    /// Nothing.
    None,
    /// `tls-auth` with key directions.
    TlsAuth,
    /// `tls-auth` without a direction.
    TlsAuthBidirectional,
    /// `tls-crypt`.
    TlsCrypt,
    /// `tls-crypt-v2`.
    TlsCryptV2,
}

/// The TLS version that the ends negotiate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// TLS 1.2, set by `tls-version-max` at one end.
    V12,
    /// TLS 1.3, the default.
    V13,
}

/// One combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The programs at both ends.
    pub roles: Roles,
    /// The control channel's wrapping.
    pub wrapping: Wrapping,
    /// The data channel's cipher.
    pub cipher: &'static str,
    /// The TLS version.
    pub tls: Tls,
    /// Whether the outer transport is IPv6.
    pub outer_v6: bool,
    /// Whether the client, not the server, initiates the rekeys.
    pub client_rekeys: bool,
    /// Loss on the veth pair in each direction, in percent.
    pub loss: u32,
    /// The tool that created the certificates.
    pub pki_tool: PkiTool,
}

const ROLES: [Roles; 3] = [Roles::AditServes, Roles::OpenVpnServes, Roles::AditBoth];
const WRAPPINGS: [Wrapping; 5] = [
    Wrapping::None,
    Wrapping::TlsAuth,
    Wrapping::TlsAuthBidirectional,
    Wrapping::TlsCrypt,
    Wrapping::TlsCryptV2,
];
const CIPHERS: [&str; 4] = ["AES-128-GCM", "AES-192-GCM", "AES-256-GCM", "CHACHA20-POLY1305"];
const TLS: [Tls; 2] = [Tls::V13, Tls::V12];
const LOSSES: [u32; 2] = [0, 2];
const PKI_TOOLS: [PkiTool; 2] = [PkiTool::OpenSslEc, PkiTool::EasyRsa];

/// The number of values of each dimension, in the order of [`Case`].
const SIZES: [usize; 8] =
    [ROLES.len(), WRAPPINGS.len(), CIPHERS.len(), TLS.len(), 2, 2, LOSSES.len(), PKI_TOOLS.len()];

impl Case {
    fn of(
        [roles, wrapping, cipher, tls, outer, rekeys, loss, pki_tool]: [usize; SIZES.len()],
    ) -> Self {
        Self {
            roles: ROLES[roles],
            wrapping: WRAPPINGS[wrapping],
            cipher: CIPHERS[cipher],
            tls: TLS[tls],
            outer_v6: outer == 1,
            client_rekeys: rekeys == 1,
            loss: LOSSES[loss],
            pki_tool: PKI_TOOLS[pki_tool],
        }
    }

    /// Returns a plain case with the given roles, to be varied.
    pub fn plain(roles: Roles) -> Self {
        Self { roles, wrapping: Wrapping::TlsCrypt, ..Self::of([0, 0, 2, 0, 0, 0, 0, 0]) }
    }

    /// Returns the case's name, which is the argument to run it alone.
    pub fn name(&self) -> String {
        format!("{}/{}", self.roles.name(), self.what())
    }

    /// Returns the name without the roles.
    pub fn what(&self) -> String {
        let wrapping = match self.wrapping {
            Wrapping::None => "bare",
            Wrapping::TlsAuth => "tls-auth",
            Wrapping::TlsAuthBidirectional => "tls-auth-bidirectional",
            Wrapping::TlsCrypt => "tls-crypt",
            Wrapping::TlsCryptV2 => "tls-crypt-v2",
        };
        let cipher = self.cipher.to_lowercase();
        let tls = if self.tls == Tls::V12 { "tls1.2" } else { "tls1.3" };
        let outer = if self.outer_v6 { "udp6" } else { "udp4" };
        let rekeys = if self.client_rekeys { "client-rekeys" } else { "server-rekeys" };
        let pki_tool = if self.pki_tool == PkiTool::EasyRsa { "easy-rsa" } else { "openssl-ec" };
        let loss = self.loss;
        format!("{wrapping}/{cipher}/{tls}/{outer}/{rekeys}/{pki_tool}/loss{loss}")
    }
}

/// Returns a small set of cases that contains every pair of values of any two dimensions.
pub fn pairwise() -> Vec<Case> {
    let choices = pairwise::covering_array(&SIZES, |_| true).into_iter();
    choices
        .filter_map(|choice| <[usize; SIZES.len()]>::try_from(choice).ok())
        .map(Case::of)
        .collect()
}

/// Returns the cases for another version of openvpn, whose data keys may come from the older derivation: each wrapping,
/// and both TLS versions.
pub fn versions(roles: Roles) -> Vec<Case> {
    let plain = Case::plain(roles);
    vec![
        Case { wrapping: Wrapping::None, tls: Tls::V12, ..plain },
        Case { wrapping: Wrapping::TlsAuth, cipher: "AES-128-GCM", outer_v6: true, ..plain },
        Case { loss: 2, client_rekeys: true, ..plain },
        Case {
            wrapping: Wrapping::TlsCryptV2,
            cipher: "CHACHA20-POLY1305",
            client_rekeys: true,
            ..plain
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_values_stands_in_some_cell() {
        let cases = pairwise();
        for cipher in CIPHERS {
            for wrapping in WRAPPINGS {
                assert!(cases.iter().any(|c| c.cipher == cipher && c.wrapping == wrapping));
            }
            for roles in ROLES {
                assert!(cases.iter().any(|c| c.cipher == cipher && c.roles == roles));
            }
        }
        for roles in ROLES {
            for loss in LOSSES {
                for tls in TLS {
                    assert!(cases.iter().any(|c| c.roles == roles && c.loss == loss));
                    assert!(cases.iter().any(|c| c.roles == roles && c.tls == tls));
                }
            }
        }
    }

    #[test]
    fn the_set_is_small_and_names_are_unique() {
        let cases = pairwise();
        assert!(cases.len() <= 24, "{} cases", cases.len());
        let mut names: Vec<String> = cases.iter().map(Case::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }
}
