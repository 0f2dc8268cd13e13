use std::fmt;

use crate::data_format::Framing;

/// The parameters of our options string. Key method 2 carries it to the peer. Peers before 2.5
/// compare it with their own and warn about differences, and some take the cipher from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsString<'a> {
    /// Whether we are the TLS server.
    pub server: bool,
    /// Whether we accept the stream's connection instead of dialling it.
    pub listens: bool,
    /// `dev tap`.
    pub ethernet: bool,
    /// Whether packets travel over a stream.
    pub stream: bool,
    /// `tun-mtu`.
    pub tun_mtu: u16,
    /// The name in `cipher`; OpenVPN's default is `BF-CBC`.
    pub cipher: &'a str,
    /// Whether `cipher` is in `data-ciphers` or is the fallback. Only such a cipher is announced.
    pub announce: bool,
    /// The name in `auth`. With an AEAD cipher the string contains `[null-digest]` instead.
    pub auth: &'a str,
    /// The compression framing.
    pub framing: Framing,
    /// Whether packets carry a fragment header.
    pub fragment: bool,
    /// The value to announce as `tun-mtu` instead of [`Self::tun_mtu`].
    pub told_mtu: Option<u16>,
    /// Whether tls-auth is in use.
    pub tls_auth: bool,
    /// `key-direction` of tls-auth.
    pub key_direction: Option<u8>,
}

/// The relevant items of a peer's options string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteOptions {
    items: Vec<(String, String)>,
}

impl RemoteOptions {
    /// Parses the comma-separated items of an options string; excess or overlong items are left
    /// out.
    pub fn parse(text: &str) -> Self {
        let items = text
            .split(',')
            .take(64)
            .filter(|item| item.len() <= 128 && !item.chars().any(char::is_control))
            .map(|item| item.trim())
            .filter(|item| !item.is_empty())
            .map(|item| item.split_once(' ').unwrap_or((item, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Self { items }
    }

    /// Returns the name of the first item that must be the same at both ends and is not (`opt-verify`).
    pub fn mismatch(&self, ours: &Self) -> Option<&'static str> {
        const SAME: [&str; 5] = ["dev-type", "tun-mtu", "comp-lzo", "mtu-dynamic", "key-method"];
        SAME.into_iter().find(|name| self.get(name) != ours.get(name))
    }

    /// Returns the value of an item; empty if it has none.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.items.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns a warning in OpenVPN's wording if the peer's kind of device differs from ours. In
    /// that case we cannot interpret any of its packets.
    pub fn device_mismatch(&self, ethernet: bool) -> Option<String> {
        let (ours, theirs) = (device_type(ethernet), self.get("dev-type")?);
        (theirs != ours).then(|| {
            format!(
                "WARNING: 'dev-type' is used inconsistently, local='dev-type {ours}', \
                 remote='dev-type {theirs}'"
            )
        })
    }

    /// Returns the peer's `cipher`, for negotiation with peers that support no other ("poor man's
    /// NCP").
    pub fn cipher(&self) -> Option<&str> {
        self.get("cipher")
    }
}

impl fmt::Display for OptionsString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = CipherParams::of(self.cipher);
        // OpenVPN writes v4 for IPv6 too. Do the same, so that both ends' strings agree.
        let proto = match (self.stream, self.listens) {
            (false, _) => "UDPv4",
            (true, true) => "TCPv4_SERVER",
            (true, false) => "TCPv4_CLIENT",
        };
        write!(
            f,
            "V4,dev-type {},link-mtu {},tun-mtu {},proto {proto}",
            device_type(self.ethernet),
            self.link_mtu(&shape),
            self.told_mtu.unwrap_or(self.tun_mtu)
        )?;
        if self.framing != Framing::None {
            f.write_str(",comp-lzo")?;
        }
        if self.fragment {
            f.write_str(",mtu-dynamic")?;
        }
        if let Some(direction) = self.key_direction.filter(|_| self.tls_auth) {
            write!(f, ",keydir {direction}")?;
        }
        if self.announce {
            write!(f, ",cipher {}", self.cipher)?;
        }
        let auth = if shape.aead { "[null-digest]" } else { self.auth };
        write!(f, ",auth {auth},keysize {}", shape.key_bits)?;
        if self.tls_auth {
            f.write_str(",tls-auth")?;
        }
        write!(f, ",key-method 2,{}", if self.server { "tls-server" } else { "tls-client" })
    }
}

impl OptionsString<'_> {
    /// Returns the size of the largest packet as old versions of OpenVPN compute it. Packets no
    /// longer have that size, but peers compare the number.
    fn link_mtu(&self, shape: &CipherParams) -> u32 {
        let digest = if shape.aead { 0 } else { digest_size(self.auth) };
        let framing = match self.framing {
            Framing::None | Framing::StubV2 => 0,
            Framing::LzoStub | Framing::SwapStub => 1,
        };
        u32::from(self.tun_mtu)
            .saturating_add(shape.overhead)
            .saturating_add(digest)
            .saturating_add(framing)
            .saturating_add(if self.fragment { 4 } else { 0 })
            .saturating_add(if self.stream { STREAM_LENGTH } else { 0 })
            .saturating_add(if self.ethernet { ETHERNET_EXTRA } else { 0 })
    }
}

/// Returns the overhead of a datagram in bytes that OpenVPN subtracts from `link-mtu`.
pub(crate) fn link_overhead(cipher: &str, auth: &str, stream: bool) -> u32 {
    let shape = CipherParams::of(cipher);
    let digest = if shape.aead { 0 } else { digest_size(auth) };
    // OpenVPN counts the packet id of CBC as a part of the packet, not as overhead.
    let packet_id = if shape.aead || cipher.eq_ignore_ascii_case("none") { 0 } else { 4 };
    shape.overhead.saturating_sub(packet_id).saturating_add(digest).saturating_add(if stream {
        STREAM_LENGTH
    } else {
        0
    })
}

/// Returns the word in `dev-type`.
pub(crate) fn device_type(ethernet: bool) -> &'static str {
    if ethernet { "tap" } else { "tun" }
}

/// The bytes that OpenVPN adds for an Ethernet frame.
pub(crate) const ETHERNET_EXTRA: u32 = 32;

/// The length of the length field before each packet on a stream, in bytes.
pub(crate) const STREAM_LENGTH: u32 = 2;

/// The parameters of a cipher in the options string, even if the cipher is not supported.
struct CipherParams {
    aead: bool,
    key_bits: u32,
    /// The total length of the opcode, packet id, IV, padding and tag, in bytes.
    overhead: u32,
}

impl CipherParams {
    fn of(name: &str) -> Self {
        let upper = name.to_ascii_uppercase();
        let key_bits = match upper.split('-').find_map(|part| part.parse().ok()) {
            Some(bits @ (128 | 192 | 256)) => bits,
            _ if upper.starts_with("CHACHA20") => 256,
            _ if upper.starts_with("DES-EDE3") => 192,
            _ if upper == "NONE" => 0,
            _ => 128,
        };
        let (aead, overhead) = match upper.as_str() {
            "NONE" => (false, 5),
            "CHACHA20-POLY1305" => (true, 34),
            _ if upper.ends_with("-GCM") => (true, 49),
            _ if upper.starts_with("BF-")
                || upper.starts_with("DES-")
                || upper.starts_with("CAST5") =>
            {
                (false, 21)
            }
            _ => (false, 37),
        };
        Self { aead, key_bits, overhead }
    }
}

fn digest_size(name: &str) -> u32 {
    match name.to_ascii_uppercase().as_str() {
        "NONE" => 0,
        "MD5" => 16,
        "SHA224" => 28,
        "SHA256" => 32,
        "SHA384" => 48,
        "SHA512" => 64,
        // SHA1, RIPEMD160
        _ => 20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of openvpn 2.6.14 with `--verb 7` for the arguments in the comment.
    #[test]
    fn options_strings_are_those_of_openvpn() {
        let plain = OptionsString {
            server: false,
            listens: false,
            ethernet: false,
            stream: false,
            tun_mtu: 1500,
            cipher: "BF-CBC",
            announce: false,
            auth: "SHA1",
            framing: Framing::None,
            fragment: false,
            told_mtu: None,
            tls_auth: false,
            key_direction: None,
        };
        let cases = [
            // no arguments
            (
                plain.clone(),
                "link-mtu 1541,tun-mtu 1500,proto UDPv4,auth SHA1,keysize 128,key-method 2",
            ),
            // --cipher AES-128-GCM
            (
                OptionsString { cipher: "AES-128-GCM", announce: true, ..plain.clone() },
                "link-mtu 1549,tun-mtu 1500,proto UDPv4,cipher AES-128-GCM,auth [null-digest],keysize 128,key-method 2",
            ),
            // --data-ciphers-fallback AES-256-GCM
            (
                OptionsString { cipher: "AES-256-GCM", announce: true, ..plain.clone() },
                "link-mtu 1549,tun-mtu 1500,proto UDPv4,cipher AES-256-GCM,auth [null-digest],keysize 256,key-method 2",
            ),
            // --tls-auth ta.key --key-direction 1 --auth SHA256 --cipher CHACHA20-POLY1305
            (
                OptionsString {
                    cipher: "CHACHA20-POLY1305",
                    announce: true,
                    auth: "SHA256",
                    tls_auth: true,
                    key_direction: Some(1),
                    ..plain.clone()
                },
                "link-mtu 1534,tun-mtu 1500,proto UDPv4,keydir 1,cipher CHACHA20-POLY1305,auth [null-digest],keysize 256,tls-auth,key-method 2",
            ),
            // --comp-lzo no
            (
                OptionsString { framing: Framing::LzoStub, ..plain.clone() },
                "link-mtu 1542,tun-mtu 1500,proto UDPv4,comp-lzo,auth SHA1,keysize 128,key-method 2",
            ),
            // --compress stub-v2
            (
                OptionsString { framing: Framing::StubV2, ..plain.clone() },
                "link-mtu 1541,tun-mtu 1500,proto UDPv4,comp-lzo,auth SHA1,keysize 128,key-method 2",
            ),
            // --fragment 1300
            (
                OptionsString { fragment: true, ..plain.clone() },
                "link-mtu 1545,tun-mtu 1500,proto UDPv4,mtu-dynamic,auth SHA1,keysize 128,key-method 2",
            ),
            // --fragment 1300 --comp-lzo no
            (
                OptionsString { fragment: true, framing: Framing::LzoStub, ..plain.clone() },
                "link-mtu 1546,tun-mtu 1500,proto UDPv4,comp-lzo,mtu-dynamic,auth SHA1,keysize 128,key-method 2",
            ),
            // --tun-mtu 1500 1600
            (
                OptionsString { told_mtu: Some(1600), ..plain.clone() },
                "link-mtu 1541,tun-mtu 1600,proto UDPv4,auth SHA1,keysize 128,key-method 2",
            ),
            // --auth SHA512
            (
                OptionsString { auth: "SHA512", ..plain.clone() },
                "link-mtu 1585,tun-mtu 1500,proto UDPv4,auth SHA512,keysize 128,key-method 2",
            ),
            // --cipher AES-256-CBC
            (
                OptionsString { cipher: "AES-256-CBC", ..plain.clone() },
                "link-mtu 1557,tun-mtu 1500,proto UDPv4,auth SHA1,keysize 256,key-method 2",
            ),
            // --tun-mtu 1400
            (
                OptionsString { tun_mtu: 1400, ..plain },
                "link-mtu 1441,tun-mtu 1400,proto UDPv4,auth SHA1,keysize 128,key-method 2",
            ),
        ];
        for (options, expected) in cases {
            assert_eq!(options.to_string(), format!("V4,dev-type tun,{expected},tls-client"));
            let read = RemoteOptions::parse(&options.to_string());
            assert_eq!(read.cipher(), options.announce.then_some(options.cipher));
        }
    }

    #[test]
    fn another_kind_of_device_is_worth_a_word() {
        let remote = |text| RemoteOptions::parse(text).device_mismatch(true);
        assert_eq!(remote("V4,dev-type tap,link-mtu 1573"), None);
        assert_eq!(remote("V4"), None, "says nothing");
        let warning = remote("V4,dev-type tun,link-mtu 1541").unwrap();
        assert!(warning.ends_with("local='dev-type tap', remote='dev-type tun'"), "{warning}");
    }

    /// The same test with `--dev tap`, and with `--compress stub` as well.
    #[test]
    fn options_strings_of_frames_are_those_of_openvpn() {
        let plain = OptionsString {
            server: false,
            listens: false,
            ethernet: true,
            stream: false,
            tun_mtu: 1500,
            cipher: "BF-CBC",
            announce: false,
            auth: "SHA1",
            framing: Framing::None,
            fragment: false,
            told_mtu: None,
            tls_auth: false,
            key_direction: None,
        };
        assert_eq!(
            plain.to_string(),
            "V4,dev-type tap,link-mtu 1573,tun-mtu 1500,proto UDPv4,auth SHA1,keysize 128,key-method 2,tls-client"
        );
        let framed = OptionsString { framing: Framing::SwapStub, ..plain };
        assert_eq!(
            framed.to_string(),
            "V4,dev-type tap,link-mtu 1574,tun-mtu 1500,proto UDPv4,comp-lzo,auth SHA1,keysize 128,key-method 2,tls-client"
        );
    }

    /// The same test with `--proto tcp-client` and `--proto tcp-server`.
    #[test]
    fn options_strings_over_streams_are_those_of_openvpn() {
        let client = OptionsString {
            server: false,
            listens: false,
            ethernet: false,
            stream: true,
            tun_mtu: 1500,
            cipher: "AES-256-GCM",
            announce: true,
            auth: "SHA1",
            framing: Framing::None,
            fragment: false,
            told_mtu: None,
            tls_auth: false,
            key_direction: None,
        };
        let server =
            OptionsString { server: true, listens: true, cipher: "BF-CBC", ..client.clone() };
        assert_eq!(
            client.to_string(),
            "V4,dev-type tun,link-mtu 1551,tun-mtu 1500,proto TCPv4_CLIENT,cipher AES-256-GCM,auth [null-digest],keysize 256,key-method 2,tls-client"
        );
        assert_eq!(
            server.to_string(),
            "V4,dev-type tun,link-mtu 1543,tun-mtu 1500,proto TCPv4_SERVER,cipher BF-CBC,auth SHA1,keysize 128,key-method 2,tls-server"
        );
    }
}
