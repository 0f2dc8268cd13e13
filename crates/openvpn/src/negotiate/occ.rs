use std::fmt;

use adit_engine::verbs::Framing;

/// What our options string is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsString<'a> {
    /// We are the TLS server.
    pub server: bool,
    /// `tun-mtu`
    pub tun_mtu: u16,
    /// The outer transport is IPv6.
    pub ipv6: bool,
    /// The name in `cipher`: once known, that of the session.
    pub cipher: &'a str,
    /// Its key length in bits.
    pub key_bits: u16,
    /// The name in `auth`; AEAD ciphers make it `[null-digest]`.
    pub auth: &'a str,
    /// Compression framing.
    pub framing: Framing,
    /// `key-direction` of tls-auth.
    pub key_direction: Option<u8>,
    /// Whether tls-auth is in use.
    pub tls_auth: bool,
}

/// What a peer's options string says, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteOptions {
    items: Vec<(String, String)>,
}

impl RemoteOptions {
    /// Parses the comma-separated items of an options string; too many or too long ones are left out.
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

    /// The value of an item; empty for one without.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.items.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The peer's `cipher`, for negotiation with those that know no other ("poor man's NCP").
    pub fn cipher(&self) -> Option<&str> {
        self.get("cipher")
    }
}

impl fmt::Display for OptionsString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "V4,dev-type tun,link-mtu {},tun-mtu {}", self.link_mtu(), self.tun_mtu)?;
        write!(f, ",proto UDPv{}", if self.ipv6 { 6 } else { 4 })?;
        if self.framing != Framing::None {
            f.write_str(",comp-lzo")?;
        }
        if let Some(direction) = self.key_direction.filter(|_| self.tls_auth) {
            write!(f, ",keydir {direction}")?;
        }
        write!(f, ",cipher {},auth {},keysize {}", self.cipher, self.auth, self.key_bits)?;
        if self.tls_auth {
            f.write_str(",tls-auth")?;
        }
        write!(f, ",key-method 2,{}", if self.server { "tls-server" } else { "tls-client" })
    }
}

impl OptionsString<'_> {
    fn link_mtu(&self) -> u32 {
        u32::from(self.tun_mtu).saturating_add(49)
    }
}
