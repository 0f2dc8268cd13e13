use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{ClientName, PkiError, disk};

/// The transport of a profile, as `proto` spells it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// UDP over any address family that the host's name resolves to.
    #[default]
    Udp,
    /// UDP over IPv4 only.
    Udp4,
    /// UDP over IPv6 only.
    Udp6,
    /// TCP over any address family that the host's name resolves to.
    Tcp,
}

impl Proto {
    fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Udp4 => "udp4",
            Self::Udp6 => "udp6",
            Self::Tcp => "tcp",
        }
    }
}

/// The address of the server in new profiles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// A DNS name or an address; IPv6 without brackets.
    pub host: String,
    /// UDP or TCP port.
    pub port: u16,
    /// Transport.
    pub proto: Proto,
    /// Additional ports of the same host, in the order in which clients try them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<Endpoint>,
}

/// A port of the server's host.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// UDP or TCP port.
    pub port: u16,
    /// Transport.
    pub proto: Proto,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self { port: 1194, proto: Proto::Udp }
    }
}

impl Remote {
    /// Refuses a host that is not a single word in a profile.
    pub(crate) fn check(&self) -> Result<(), PkiError> {
        let allowed =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_' | '%');
        if self.host.is_empty() || self.host.len() > 255 || !self.host.chars().all(allowed) {
            return Err(PkiError::BadSetting(
                "host",
                format!(
                    "{:?} is neither a DNS name nor an address; write it as in vpn.example.org, \
                     192.0.2.1 or 2001:db8::1",
                    self.host.chars().take(80).collect::<String>()
                ),
            ));
        }
        if self.port == 0 || self.further.iter().any(|end| end.port == 0) {
            return Err(PkiError::BadSetting("port", "0 is no port; 1194 is the usual one".into()));
        }
        Ok(())
    }
}

/// A complete profile: a client's, with the only copy of its private key, or that of a user without a certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Profile {
    text: Zeroizing<String>,
    name: ClientName,
}

// Written by hand because the profile holds a private key.
impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The contents of a profile.
pub(crate) struct ProfileContent<'a> {
    pub name: &'a ClientName,
    /// The servers, in the order in which clients try them; at least one.
    pub remotes: &'a [Remote],
    pub server_name: &'a str,
    pub ca: &'a str,
    /// The client's certificate and private key; `None` for a user who logs in without them.
    pub pair: Option<(&'a str, &'a str)>,
    pub tls_crypt_v2: &'a str,
    /// Further lines.
    pub options: &'a [&'a str],
}

impl Remote {
    /// Returns the lines of a profile that name the server.
    pub fn lines(&self) -> Vec<String> {
        remote_lines(std::slice::from_ref(self))
    }
}

/// How long a server may be silent before the client tries the next one: how long users wait where a network blocks UDP. (openvpn's default
/// is two minutes.)
const PATIENCE: &str = "server-poll-timeout 10";

fn remote_lines(remotes: &[Remote]) -> Vec<String> {
    let mut lines = Vec::new();
    for remote in remotes {
        if lines.is_empty() {
            lines.push(format!("proto {}", remote.proto.name()));
            lines.push(format!("remote {} {}", remote.host, remote.port));
        } else {
            lines.push(format!("remote {} {} {}", remote.host, remote.port, remote.proto.name()));
        }
        for end in &remote.further {
            lines.push(format!("remote {} {} {}", remote.host, end.port, end.proto.name()));
        }
    }
    let has_choice = remotes.len() > 1 || remotes.iter().any(|remote| !remote.further.is_empty());
    if has_choice {
        lines.push(PATIENCE.to_owned());
    }
    lines
}

impl Profile {
    pub(crate) fn new(content: &ProfileContent<'_>) -> Self {
        let mut text = Zeroizing::new(String::with_capacity(16 * 1024));
        text.push_str("client\ndev tun\n");
        for line in remote_lines(content.remotes) {
            text.push_str(&line);
            text.push('\n');
        }
        for line in [
            "resolv-retry infinite".to_owned(),
            "nobind".into(),
            "persist-key".into(),
            "persist-tun".into(),
            "remote-cert-tls server".into(),
            format!("verify-x509-name {} name", content.server_name),
            "tls-version-min 1.2".into(),
            // All builds of 2.5 and later have both; openvpn refuses to start with a cipher that its build lacks.
            "data-ciphers AES-256-GCM:AES-128-GCM".into(),
            "verb 3".into(),
        ]
        .into_iter()
        .chain(content.options.iter().map(ToString::to_string))
        {
            text.push_str(&line);
            text.push('\n');
        }
        let pair = content.pair.into_iter().flat_map(|(cert, key)| [("cert", cert), ("key", key)]);
        let first = std::iter::once(("ca", content.ca)).chain(pair);
        for (tag, content) in first.chain([("tls-crypt-v2", content.tls_crypt_v2)]) {
            for piece in ["<", tag, ">\n", content.trim(), "\n</", tag, ">\n"] {
                text.push_str(piece);
            }
        }
        Self { text, name: content.name.clone() }
    }

    /// Returns the text, to print or to save.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns `NAME.ovpn`.
    pub fn file_name(&self) -> String {
        format!("{}.ovpn", self.name)
    }

    /// Writes the profile to `path` with mode 0600.
    pub fn save(&self, path: &Path) -> Result<(), PkiError> {
        disk::write_private(path, self.text.as_bytes())
    }
}
