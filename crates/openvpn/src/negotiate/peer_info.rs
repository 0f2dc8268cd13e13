use std::fmt;

use adit_crypto::Cipher;

use super::DataCipher;

/// The maximum length of a peer's peer info, in bytes; OpenVPN's own buffers end at 2048.
pub const MAX_PEER_INFO: usize = 4096;
/// The maximum number of lines of peer info that are kept.
const MAX_ENTRIES: usize = 64;

/// `IV_PROTO`: the capabilities of a peer, one bit each.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct IvProto(pub u32);

impl IvProto {
    /// The peer accepts a peer-id and DATA_V2.
    pub const DATA_V2: Self = Self(1 << 1);
    /// The peer wants pushed options, so the server need not wait for PUSH_REQUEST.
    pub const REQUEST_PUSH: Self = Self(1 << 2);
    /// The peer derives data keys with the TLS exporter.
    pub const TLS_EKM: Self = Self(1 << 3);
    /// The peer understands keywords in AUTH_PENDING.
    pub const AUTH_PENDING: Self = Self(1 << 4);
    /// The peer negotiates the cipher without a server.
    pub const P2P_NCP: Self = Self(1 << 5);
    /// The peer supports `dns` in its first form.
    pub const DNS: Self = Self(1 << 6);
    /// The peer supports EXIT on the control channel, and `protocol-flags`.
    pub const CC_EXIT: Self = Self(1 << 7);
    /// The peer supports AUTH_FAILED,TEMP.
    pub const AUTH_FAIL_TEMP: Self = Self(1 << 8);
    /// The peer supports dynamic tls-crypt for rekeys.
    pub const DYN_TLS_CRYPT: Self = Self(1 << 9);
    /// The peer supports the epoch data format.
    pub const DATA_EPOCH: Self = Self(1 << 10);
    /// The peer supports `dns` in its second form.
    pub const DNS_V2: Self = Self(1 << 11);
    /// The peer supports PUSH_UPDATE.
    pub const PUSH_UPDATE: Self = Self(1 << 12);

    /// Returns the capabilities that this implementation announces as a client;
    /// [`Self::REQUEST_PUSH`] and [`Self::PUSH_UPDATE`] only with `pull`.
    pub const fn ours(pull: bool) -> Self {
        let base = Self::DATA_V2.0
            | Self::TLS_EKM.0
            | Self::AUTH_PENDING.0
            | Self::DNS.0
            | Self::DNS_V2.0
            | Self::CC_EXIT.0
            | Self::AUTH_FAIL_TEMP.0
            | Self::DYN_TLS_CRYPT.0
            | Self::DATA_EPOCH.0;
        let pulling = Self::REQUEST_PUSH.0 | Self::PUSH_UPDATE.0;
        Self(if pull { base | pulling } else { base })
    }

    /// Returns the capabilities that this implementation announces in point-to-point mode, as
    /// OpenVPN 2.7 does.
    pub const fn between_two() -> Self {
        Self(
            Self::DATA_V2.0
                | Self::TLS_EKM.0
                | Self::P2P_NCP.0
                | Self::DNS.0
                | Self::CC_EXIT.0
                | Self::DYN_TLS_CRYPT.0
                | Self::DATA_EPOCH.0,
        )
    }

    /// Returns the same capabilities with or without dynamic tls-crypt.
    pub(crate) const fn offering(self, dynamic_tls_crypt: bool) -> Self {
        if dynamic_tls_crypt { self } else { Self(self.0 & !Self::DYN_TLS_CRYPT.0) }
    }

    /// Returns whether all bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The information about ourselves in key method 2.
#[derive(Copy, Clone, Debug)]
pub struct LocalInfo<'a> {
    /// `data-ciphers`.
    pub ciphers: &'a [DataCipher],
    /// Whether options will be pulled.
    pub pull: bool,
    /// The largest `tun-mtu` that the server may push (`IV_MTU`).
    pub max_mtu: u16,
    /// Whether dynamic tls-crypt is offered.
    pub dynamic_tls_crypt: bool,
    /// The version of adit, such as `0.1.0`.
    pub version: &'a str,
    /// `push-peer-info`: include information that negotiation does not need.
    pub full: bool,
    /// `setenv` of `UV_*` and of some of OpenVPN's own variables. As in OpenVPN, those of front ends (`IV_GUI_VER`,
    /// `IV_SSO`) are sent even without `full`.
    pub extra: &'a [(String, String)],
}

/// The variables of a front end that a client sends even without `push-peer-info`.
const ALWAYS_SENT: [&str; 2] = ["IV_GUI_VER", "IV_SSO"];

/// Returns whether `setenv` puts a variable into the peer info.
pub(crate) fn is_peer_info(name: &str) -> bool {
    name.starts_with("UV_") || name == "IV_PLAT_VER" || ALWAYS_SENT.contains(&name)
}

impl LocalInfo<'_> {
    /// Returns the peer info string: lines `NAME=value`, each terminated by a newline.
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
        // A server of version 2.4 only understands IV_NCP, which announces both of these ciphers.
        if [Cipher::Aes256Gcm, Cipher::Aes128Gcm]
            .iter()
            .all(|c| self.ciphers.contains(&(*c).into()))
        {
            let _ = writeln!(out, "IV_NCP=2");
        }
        let _ = writeln!(out, "IV_CIPHERS={}", ciphers.join(":"));
        let proto = IvProto::ours(self.pull).offering(self.dynamic_tls_crypt);
        let _ = writeln!(out, "IV_PROTO={}", proto.0);
        // We understand the "not compressed" forms, so that a server may request them.
        let _ = writeln!(out, "IV_LZO_STUB=1\nIV_COMP_STUB=1\nIV_COMP_STUBv2=1");
        if self.full {
            let _ = writeln!(out, "IV_SSL=rustls/aws-lc-rs");
        }
        for (name, value) in self.extra {
            let sent = self.full || ALWAYS_SENT.contains(&name.as_str());
            if sent && is_name(name) && !value.chars().any(char::is_control) {
                let _ = writeln!(out, "{name}={value}");
            }
        }
        out
    }
}

/// The information that a peer gives about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerInfo {
    entries: Vec<(String, String)>,
    skipped: usize,
}

/// The reason why a peer info string is refused. The fault is the peer's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BadPeerInfo {
    /// The string is longer than [`MAX_PEER_INFO`].
    TooLong,
    /// The string contains a NUL or another control character except newline.
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
    /// Parses the lines. Lines that are not `NAME=value` with a plain name are left out and
    /// counted.
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

    /// Makes the information from the result of [`Self::entries`].
    pub fn from_entries(entries: &[(String, String)]) -> Self {
        Self { entries: entries.to_vec(), skipped: 0 }
    }

    /// Returns the lines in order.
    pub fn entries(&self) -> &[(String, String)] {
        &self.entries
    }

    /// Returns the number of lines that were left out.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Returns the first value with that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.entries.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns `IV_PROTO`; no bits are set if it is missing or malformed.
    pub fn proto(&self) -> IvProto {
        IvProto(self.get("IV_PROTO").and_then(|value| value.parse().ok()).unwrap_or(0))
    }

    /// Returns the names in `IV_CIPHERS`. If it is missing, returns those that `IV_NCP=2` implies,
    /// or none for a peer that cannot negotiate.
    pub fn ciphers(&self) -> Vec<&str> {
        if let Some(list) = self.get("IV_CIPHERS") {
            return list.split(':').filter(|name| !name.is_empty()).collect();
        }
        match self.get("IV_NCP").and_then(|value| value.parse::<u32>().ok()) {
            Some(level) if level >= 2 => vec!["AES-256-GCM", "AES-128-GCM"],
            _ => Vec::new(),
        }
    }

    /// Returns `IV_MTU`: the largest `tun-mtu` that may be pushed.
    pub fn max_mtu(&self) -> Option<u16> {
        self.get("IV_MTU")?.parse().ok()
    }
}

/// Returns whether this is an `IV_`, `UV_` or other name: letters, digits and underscores, at most
/// 64.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ours_reads_back_and_promises_what_we_do() {
        let ciphers = [Cipher::Aes256Gcm, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];
        let ciphers = ciphers.map(DataCipher::Aead);
        let extra = [("UV_SITE", "a b"), ("UV_BAD", "a\nb"), ("IV_SSO", "webauth")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let local = LocalInfo {
            dynamic_tls_crypt: true,
            ciphers: &ciphers,
            pull: true,
            max_mtu: 1600,
            version: "0.1.0",
            full: true,
            extra: &extra,
        };
        let info = PeerInfo::parse(&local.encode()).unwrap();
        assert_eq!(info.skipped(), 0);
        // The bits of openvpn 2.6, and those for the DNS settings and PUSH_UPDATE of 2.7.
        assert_eq!(info.get("IV_PROTO"), Some("8158"));
        assert_eq!(info.ciphers(), ["AES-256-GCM", "AES-128-GCM", "CHACHA20-POLY1305"]);
        assert_eq!(info.max_mtu(), Some(1600));
        assert_eq!(info.get("UV_SITE"), Some("a b"));
        assert_eq!(info.get("UV_BAD"), None);
        assert!(info.proto().has(IvProto::TLS_EKM) && info.proto().has(IvProto::DATA_EPOCH));
        let quiet = LocalInfo { full: false, ..local }.encode();
        assert!(!quiet.contains("UV_") && !quiet.contains("IV_SSL"), "{quiet}");
        assert!(quiet.contains("IV_SSO=webauth\n"), "{quiet}");
        let alone = LocalInfo { pull: false, ..local }.encode();
        assert!(!PeerInfo::parse(&alone).unwrap().proto().has(IvProto::REQUEST_PUSH));
    }

    #[test]
    fn old_peers() {
        // Version 2.4.
        let info = PeerInfo::parse("IV_VER=2.4.12\nIV_PLAT=linux\nIV_PROTO=2\nIV_NCP=2\n").unwrap();
        assert_eq!(info.ciphers(), ["AES-256-GCM", "AES-128-GCM"]);
        assert!(info.proto().has(IvProto::DATA_V2) && !info.proto().has(IvProto::REQUEST_PUSH));
        // Version 2.3, or a peer without any peer info.
        let info = PeerInfo::parse("").unwrap();
        assert!(info.ciphers().is_empty());
        assert_eq!(info.proto(), IvProto(0));
    }

    #[test]
    fn what_does_not_belong_there_is_left_out() {
        let info = PeerInfo::parse("IV_VER=1\nno value\n=x\nA B=1\n1A=2\nIV_A=b=c\r\n").unwrap();
        assert_eq!(info.entries(), [("IV_VER".into(), "1".into()), ("IV_A".into(), "b=c".into())]);
        assert_eq!(info.skipped(), 4);
        assert_eq!(PeerInfo::parse("IV_VER=1\0"), Err(BadPeerInfo::ControlCharacter));
        assert_eq!(PeerInfo::parse("IV_VER=\x1b[1m"), Err(BadPeerInfo::ControlCharacter));
        assert_eq!(PeerInfo::parse(&"a".repeat(MAX_PEER_INFO + 1)), Err(BadPeerInfo::TooLong));
        let many: String = (0..200).map(|n| format!("N{n}=1\n")).collect();
        let info = PeerInfo::parse(&many).unwrap();
        assert_eq!((info.entries().len(), info.skipped()), (MAX_ENTRIES, 200 - MAX_ENTRIES));
        assert_eq!(PeerInfo::parse("IV_PROTO=99999999999\n").unwrap().proto(), IvProto(0));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,200}|[A-Z_=\\n0-9:]{0,200}") {
            if let Ok(info) = PeerInfo::parse(&text) {
                let _ = (info.proto(), info.ciphers(), info.max_mtu());
            }
        }
    }
}
