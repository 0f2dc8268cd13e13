//! Words of messages that are passed on as they came.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::MAX_FIELD;

/// A word of a message, which a node repeats unchanged even if it cannot read it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(Box<[u8]>);

impl Token {
    /// Creates a token. Returns `None` if the bytes are no word of a message: empty, too long, or with white space.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let valid = !bytes.is_empty()
            && bytes.len() <= MAX_FIELD
            && !bytes.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0);
        valid.then(|| Self(bytes.into()))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

/// Prints only what a terminal can show.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address and a port, as two words. Most are numeric; others are kept and repeated, but not used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressToken {
    /// The word for the address.
    pub host: Token,
    /// The word for the port.
    pub port: Token,
}

impl AddressToken {
    /// Returns the words for no address.
    pub fn unspecified() -> Self {
        let word = || Token(b"unspec"[..].into());
        Self { host: word(), port: word() }
    }

    /// Returns the address, if it is numeric and its port is known. An IPv4 address in IPv6 form is IPv4.
    pub fn socket(&self) -> Option<SocketAddr> {
        let host: IpAddr = self.host.as_str()?.parse().ok()?;
        let port: u16 = self.port.as_str()?.parse().ok()?;
        (port != 0).then(|| SocketAddr::new(host.to_canonical(), port))
    }

    /// Returns the same, if it can be the address of another machine. Members can announce any address for any node.
    pub fn remote(&self) -> Option<SocketAddr> {
        let is_local = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
        let is_group = |ip: IpAddr| ip.is_multicast() || ip == IpAddr::from([255; 4]);
        self.socket().filter(|address| !is_local(address.ip()) && !is_group(address.ip()))
    }
}

impl From<SocketAddr> for AddressToken {
    fn from(address: SocketAddr) -> Self {
        let word = |text: String| Token(text.into_bytes().into());
        let host = word(address.ip().to_canonical().to_string());
        Self { host, port: word(address.port().to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Specification 2.5.
    #[test]
    fn addresses_are_numeric_and_others_are_kept() {
        let token = |host: &str, port: &str| AddressToken {
            host: Token::new(host.as_bytes()).unwrap(),
            port: Token::new(port.as_bytes()).unwrap(),
        };
        let socket = |text: &str| text.parse::<SocketAddr>().ok();
        assert_eq!(token("192.0.2.1", "655").socket(), socket("192.0.2.1:655"));
        assert_eq!(token("2001:db8::1", "655").socket(), socket("[2001:db8::1]:655"));
        assert_eq!(token("::ffff:192.0.2.1", "655").socket(), socket("192.0.2.1:655"));
        for (host, port) in [
            ("vpn.example.org", "655"),
            ("[2001:db8::1]", "655"),
            ("fe80::1%eth0", "655"),
            ("192.0.2.1", "0"),
            ("192.0.2.1", "http"),
            ("192.0.2.1", "65536"),
            ("unspec", "unspec"),
        ] {
            assert_eq!(token(host, port).socket(), None, "{host} {port}");
        }
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:655".parse().unwrap();
        assert_eq!(AddressToken::from(mapped), token("192.0.2.1", "655"));
        assert_eq!(AddressToken::unspecified(), token("unspec", "unspec"));
    }

    #[test]
    fn an_address_of_this_machine_or_of_a_group_is_not_remote() {
        let remote =
            |host: &str| AddressToken::from(SocketAddr::new(host.parse().unwrap(), 655)).remote();
        for host in ["192.0.2.1", "10.0.0.1", "169.254.0.1", "2001:db8::1", "fd00::1", "fe80::1"] {
            assert!(remote(host).is_some(), "{host}");
        }
        for host in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "ff02::1",
        ] {
            assert_eq!(remote(host), None, "{host}");
        }
        assert_eq!(AddressToken::unspecified().remote(), None);
    }

    #[test]
    fn a_word_has_no_white_space_and_prints_safely() {
        for bad in [&b""[..], b"a b", b"a\n", b"a\0", &[b'a'; MAX_FIELD + 1]] {
            assert_eq!(Token::new(bad), None);
        }
        assert_eq!(Token::new(b"\x1b[2J\xff").unwrap().to_string(), "\\x1b[2J\\xff");
    }
}
