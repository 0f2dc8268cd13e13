//! SOCKS 4, for connections through a proxy. The other kinds of proxies are not particular to tinc.
//!
//! ```text
//!   request: 4 | 1, connect | port 2 | IPv4 address 4 | user | 0        answer: 0 | code | 6 bytes without meaning
//! ```

use std::net::SocketAddr;

/// Length of an answer. The bytes after it are the neighbour's.
pub const ANSWER_LEN: usize = 8;

const VERSION: u8 = 4;
const CONNECT: u8 = 1;
const GRANTED: u8 = 90;

/// The reason why a connection through the proxy fails.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Socks4Error {
    /// The destination is no IPv4 address.
    #[error("SOCKS 4 supports only IPv4: use a SOCKS 5 proxy, or AddressFamily = ipv4")]
    NotIpv4,
    /// The user's name contains a zero byte.
    #[error("the user's name contains a zero byte")]
    User,
    /// The answer is not one of SOCKS 4.
    #[error("the proxy is not a SOCKS 4 proxy")]
    NotSocks4,
    /// The proxy refuses or cannot connect.
    #[error("the proxy refused the connection or could not connect (91)")]
    Refused,
    /// The proxy cannot find out who the user is.
    #[error("the proxy could not ask this host for the user (92)")]
    NoIdent,
    /// The user is another one for this host.
    #[error("this host named another user to the proxy (93)")]
    OtherUser,
    /// The proxy refuses for another reason.
    #[error("the proxy refused the connection ({0})")]
    Other(u8),
}

/// Returns the request for a connection.
///
/// # Errors
/// Fails if the destination or the user cannot be written.
pub fn request(to: SocketAddr, user: Option<&str>) -> Result<Vec<u8>, Socks4Error> {
    let SocketAddr::V4(to) = to else { return Err(Socks4Error::NotIpv4) };
    let user = user.unwrap_or_default();
    if user.contains('\0') {
        return Err(Socks4Error::User);
    }
    let port = to.port().to_be_bytes();
    Ok([&[VERSION, CONNECT][..], &port, &to.ip().octets(), user.as_bytes(), &[0]].concat())
}

/// Reads the answer.
///
/// # Errors
/// Fails unless the proxy has connected.
pub fn check_answer(answer: &[u8; ANSWER_LEN]) -> Result<(), Socks4Error> {
    match answer {
        [0, GRANTED, ..] => Ok(()),
        [0, 91, ..] => Err(Socks4Error::Refused),
        [0, 92, ..] => Err(Socks4Error::NoIdent),
        [0, 93, ..] => Err(Socks4Error::OtherUser),
        [0, code, ..] => Err(Socks4Error::Other(*code)),
        _ => Err(Socks4Error::NotSocks4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Specification 16.
    #[test]
    fn a_request_names_an_ipv4_address_and_perhaps_a_user() {
        let to = "192.0.2.1:655".parse().unwrap();
        assert_eq!(request(to, None).unwrap(), [4, 1, 2, 143, 192, 0, 2, 1, 0]);
        let with_user = request(to, Some("ann")).unwrap();
        assert_eq!(with_user, [4, 1, 2, 143, 192, 0, 2, 1, b'a', b'n', b'n', 0]);
        assert_eq!(request(to, Some("a\0b")), Err(Socks4Error::User));
        let v6 = "[2001:db8::1]:655".parse().unwrap();
        assert_eq!(request(v6, None), Err(Socks4Error::NotIpv4));
    }

    #[test]
    fn an_answer_grants_or_refuses() {
        let check = |version, code| check_answer(&[version, code, 1, 2, 3, 4, 5, 6]);
        assert_eq!(check(0, 90), Ok(()));
        assert_eq!(check(0, 91), Err(Socks4Error::Refused));
        assert_eq!(check(0, 92), Err(Socks4Error::NoIdent));
        assert_eq!(check(0, 93), Err(Socks4Error::OtherUser));
        assert_eq!(check(0, 0), Err(Socks4Error::Other(0)));
        for version in [4, 5, b'H'] {
            assert_eq!(check(version, 90), Err(Socks4Error::NotSocks4));
        }
    }
}
