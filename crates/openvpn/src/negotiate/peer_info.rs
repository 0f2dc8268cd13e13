use std::fmt;

use adit_crypto::Cipher;

/// Longest peer info taken from a peer, in bytes; stock's own buffers end at 2048.
pub const MAX_PEER_INFO: usize = 4096;
/// Most lines of peer info kept.
const MAX_ENTRIES: usize = 64;

/// `IV_PROTO`: what a peer can do, one bit each.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct IvProto(pub u32);

impl IvProto {
    /// Takes a peer-id and DATA_V2.
    pub const DATA_V2: Self = Self(1 << 1);
    /// Will ask for its options: the server need not wait for PUSH_REQUEST.
    pub const REQUEST_PUSH: Self = Self(1 << 2);
    /// Data keys by TLS exporter.
    pub const TLS_EKM: Self = Self(1 << 3);
    /// Understands keywords in AUTH_PENDING.
    pub const AUTH_PENDING: Self = Self(1 << 4);
    /// Negotiates the cipher without a server.
    pub const P2P_NCP: Self = Self(1 << 5);
    /// `dns` in its first form.
    pub const DNS: Self = Self(1 << 6);
    /// EXIT on the control channel, and `protocol-flags`.
    pub const CC_EXIT: Self = Self(1 << 7);
    /// AUTH_FAILED,TEMP.
    pub const AUTH_FAIL_TEMP: Self = Self(1 << 8);
    /// Dynamic tls-crypt for rekeys.
    pub const DYN_TLS_CRYPT: Self = Self(1 << 9);
    /// Epoch data format.
    pub const DATA_EPOCH: Self = Self(1 << 10);
    /// `dns` in its second form.
    pub const DNS_V2: Self = Self(1 << 11);
    /// PUSH_UPDATE.
    pub const PUSH_UPDATE: Self = Self(1 << 12);

    /// What this implementation announces as a client; [`Self::REQUEST_PUSH`] only with `pull`.
    pub const fn ours(pull: bool) -> Self {
        let base = Self::DATA_V2.0
            | Self::TLS_EKM.0
            | Self::AUTH_PENDING.0
            | Self::DNS.0
            | Self::CC_EXIT.0
            | Self::AUTH_FAIL_TEMP.0
            | Self::DYN_TLS_CRYPT.0;
        Self(if pull { base | Self::REQUEST_PUSH.0 } else { base })
    }

    /// Whether all bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What we say about ourselves in key method 2.
#[derive(Copy, Clone, Debug)]
pub struct LocalInfo<'a> {
    /// `data-ciphers`.
    pub ciphers: &'a [Cipher],
    /// Whether options will be pulled.
    pub pull: bool,
    /// Largest `tun-mtu` that the server may push (`IV_MTU`).
    pub max_mtu: u16,
    /// The version of ours, such as `0.1.0`.
    pub version: &'a str,
    /// `push-peer-info`: also what is not needed to negotiate.
    pub full: bool,
    /// `setenv UV_*`; sent with `full` only, as stock does.
    pub extra: &'a [(String, String)],
}

impl LocalInfo<'_> {
    /// The peer info string: lines `NAME=value`, each ended by a newline.
    pub fn encode(&self) -> String {
        use fmt::Write as _;
        let mut out = String::new();
        let ciphers: Vec<_> = self.ciphers.iter().map(|cipher| cipher.name()).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "IV_VER=2.6.0_adit-{}", self.version);
        let _ = writeln!(out, "IV_PLAT=linux");
        if self.pull {
            let _ = writeln!(out, "IV_TCPNL=1");
            let _ = writeln!(out, "IV_MTU={}", self.max_mtu);
        }
        // A server of 2.4 knows only IV_NCP, which promises both of these.
        if self.ciphers.contains(&Cipher::Aes256Gcm) && self.ciphers.contains(&Cipher::Aes128Gcm) {
            let _ = writeln!(out, "IV_NCP=2");
        }
        let _ = writeln!(out, "IV_CIPHERS={}", ciphers.join(":"));
        let _ = writeln!(out, "IV_PROTO={}", IvProto::ours(self.pull).0);
        if self.full {
            let _ = writeln!(out, "IV_SSL=rustls/aws-lc-rs");
            for (name, value) in self.extra {
                if is_name(name) && !value.chars().any(char::is_control) {
                    let _ = writeln!(out, "{name}={value}");
                }
            }
        }
        out
    }
}

/// What a peer says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerInfo {
    entries: Vec<(String, String)>,
    skipped: usize,
}

/// Why a peer info string is refused. The peer's fault.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BadPeerInfo {
    /// Longer than [`MAX_PEER_INFO`].
    TooLong,
    /// NUL or another control character besides the newline.
    ControlCharacter,
}

impl fmt::Display for BadPeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the peer sent more peer info than is taken",
            Self::ControlCharacter => "the peer sent peer info with control characters",
        })
    }
}

impl std::error::Error for BadPeerInfo {}

impl PeerInfo {
    /// Parses the lines; those that are not `NAME=value` with a plain name are left out and counted.
    ///
    /// # Errors
    /// [`BadPeerInfo`]
    pub fn parse(text: &str) -> Result<Self, BadPeerInfo> {
        if text.len() > MAX_PEER_INFO {
            return Err(BadPeerInfo::TooLong);
        }
        if text.chars().any(|c| c.is_control() && c != '\n' && c != '\r') {
            return Err(BadPeerInfo::ControlCharacter);
        }
        let mut info = Self::default();
        for line in text.split('\n').map(|line| line.trim_end_matches('\r')) {
            match line.split_once('=') {
                _ if line.is_empty() => {}
                Some((name, value))
                    if is_name(name)
                        && !value.contains('\r')
                        && info.entries.len() < MAX_ENTRIES =>
                {
                    info.entries.push((name.to_owned(), value.to_owned()));
                }
                _ => info.skipped = info.skipped.saturating_add(1),
            }
        }
        Ok(info)
    }

    /// The lines in their order.
    pub fn entries(&self) -> &[(String, String)] {
        &self.entries
    }

    /// How many lines were left out.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// The first value of that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.entries.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// `IV_PROTO`; none of its bits where it is missing or malformed.
    pub fn proto(&self) -> IvProto {
        IvProto(self.get("IV_PROTO").and_then(|value| value.parse().ok()).unwrap_or(0))
    }

    /// Names in `IV_CIPHERS`; those that `IV_NCP=2` stands for where it is missing; empty for a peer
    /// that cannot negotiate.
    pub fn ciphers(&self) -> Vec<&str> {
        if let Some(list) = self.get("IV_CIPHERS") {
            return list.split(':').filter(|name| !name.is_empty()).collect();
        }
        match self.get("IV_NCP").and_then(|value| value.parse::<u32>().ok()) {
            Some(level) if level >= 2 => vec!["AES-256-GCM", "AES-128-GCM"],
            _ => Vec::new(),
        }
    }

    /// `IV_MTU`: the largest `tun-mtu` that may be pushed.
    pub fn max_mtu(&self) -> Option<u16> {
        self.get("IV_MTU")?.parse().ok()
    }
}

/// `IV_`, `UV_` and other names: letters, digits and underscores, at most 64.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}
