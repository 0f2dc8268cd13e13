//! SOCKS 5 (RFC 1928) with user name and password (RFC 1929), for CONNECT and UDP ASSOCIATE.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::AsyncWriteExt;
use zeroize::Zeroizing;

use super::{Login, Wire, read};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const USERNAME_PASSWORD: u8 = 2;
const NONE_ACCEPTABLE: u8 = 0xff;
/// The version of the sub-negotiation.
const LOGIN_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const UDP_ASSOCIATE: u8 = 3;
pub(super) const IPV4: u8 = 1;
pub(super) const NAME: u8 = 3;
pub(super) const IPV6: u8 = 4;

/// `socks-proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocksProxy {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The credentials, in case the proxy requests them.
    pub login: Option<Login>,
}

impl SocksProxy {
    pub(super) async fn pass(
        &self,
        wire: &mut impl Wire,
        host: &str,
        port: u16,
    ) -> Result<(), String> {
        self.choose_method(wire).await?;
        let mut request = vec![VERSION, CONNECT, 0];
        request.extend(address(host, port)?);
        send(wire, &request).await?;
        reply(wire).await.map(|_| ())
    }

    /// Requests an association for datagrams. Returns the relay's address, and the header before
    /// each datagram.
    pub(super) async fn associate(
        &self,
        wire: &mut impl Wire,
        host: &str,
        port: u16,
    ) -> Result<(Option<SocketAddr>, Vec<u8>), String> {
        self.choose_method(wire).await?;
        // Their source address is not known yet.
        send(wire, &[VERSION, UDP_ASSOCIATE, 0, IPV4, 0, 0, 0, 0, 0, 0]).await?;
        let relay = reply(wire).await?;
        Ok((relay, [&[0, 0, 0][..], &address(host, port)?].concat()))
    }

    async fn choose_method(&self, wire: &mut impl Wire) -> Result<(), String> {
        let methods: &[u8] = match self.login {
            Some(_) => &[VERSION, 2, NO_AUTHENTICATION, USERNAME_PASSWORD],
            None => &[VERSION, 1, NO_AUTHENTICATION],
        };
        send(wire, methods).await?;
        match read::<2>(wire).await? {
            [VERSION, NO_AUTHENTICATION] => {}
            [VERSION, USERNAME_PASSWORD] => self.log_in(wire).await?,
            [VERSION, NONE_ACCEPTABLE] if self.login.is_none() => {
                return Err(
                    "it asks for a user name and a password: give socks-proxy a file with both"
                        .into(),
                );
            }
            [VERSION, _] => {
                return Err("it asks for a kind of authentication that is not known".into());
            }
            _ => return Err("it is not a SOCKS 5 proxy".into()),
        }
        Ok(())
    }

    async fn log_in(&self, wire: &mut impl Wire) -> Result<(), String> {
        let Some(Login { username, password }) = &self.login else {
            return Err("it asks for a user name that it was not offered".into());
        };
        let mut request = Zeroizing::new(vec![LOGIN_VERSION, length(username, "the user name")?]);
        request.extend(username.as_bytes());
        request.push(length(password, "the password")?);
        request.extend(password.as_bytes());
        send(wire, &request).await?;
        match read::<2>(wire).await? {
            [LOGIN_VERSION, 0] => Ok(()),
            _ => Err("it refuses user name or password".into()),
        }
    }
}

/// Encodes an address for requests and datagram headers.
fn address(host: &str, port: u16) -> Result<Vec<u8>, String> {
    let mut bytes = match host.parse() {
        Ok(IpAddr::V4(v4)) => [&[IPV4], &v4.octets()[..]].concat(),
        Ok(IpAddr::V6(v6)) => [&[IPV6], &v6.octets()[..]].concat(),
        Err(_) => [&[NAME, length(host, "the server's name")?], host.as_bytes()].concat(),
    };
    bytes.extend(port.to_be_bytes());
    Ok(bytes)
}

async fn send(wire: &mut impl Wire, bytes: &[u8]) -> Result<(), String> {
    wire.write_all(bytes).await.map_err(|e| e.to_string())
}

fn length(text: &str, what: &str) -> Result<u8, String> {
    u8::try_from(text.len()).map_err(|_| format!("{what} is longer than 255 bytes"))
}

/// Reads exactly one reply, because the bytes after it belong to the tunnel. Returns the address in
/// it, unless it is a name.
async fn reply(wire: &mut impl Wire) -> Result<Option<SocketAddr>, String> {
    let [version, code, _, kind] = read::<4>(wire).await?;
    if version != VERSION {
        return Err("it is not a SOCKS 5 proxy".into());
    }
    if code != 0 {
        let known = [
            "general failure",
            "not allowed by its rules",
            "network unreachable",
            "host unreachable",
            "connection refused",
            "TTL expired",
            "command not supported",
            "kind of address not supported",
        ];
        let text = known.get(usize::from(code) - 1).copied().unwrap_or("an unknown code");
        return Err(format!("{text} ({code})"));
    }
    let ip: Option<IpAddr> = match kind {
        IPV4 => Some(Ipv4Addr::from(read::<4>(wire).await?).into()),
        IPV6 => Some(Ipv6Addr::from(read::<16>(wire).await?).into()),
        NAME => {
            let [length] = read::<1>(wire).await?;
            for _ in 0..length {
                read::<1>(wire).await?;
            }
            None
        }
        _ => return Err("a reply with an address of an unknown kind".into()),
    };
    let port = u16::from_be_bytes(read::<2>(wire).await?);
    Ok(ip.map(|ip| SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    fn login() -> Login {
        Login { username: "ann".into(), password: Zeroizing::new("secret".into()) }
    }

    async fn pass(
        login: Option<Login>,
        host: &str,
        answers: &[u8],
    ) -> (Vec<u8>, Result<(), String>, Vec<u8>) {
        let (mut near, mut far) = tokio::io::duplex(1 << 14);
        far.write_all(answers).await.unwrap();
        far.shutdown().await.unwrap();
        let proxy = SocksProxy { host: "proxy".into(), port: 1080, login };
        let outcome = proxy.pass(&mut near, host, 443).await;
        let (mut rest, mut got) = (Vec::new(), Vec::new());
        near.read_to_end(&mut rest).await.unwrap();
        drop(near);
        far.read_to_end(&mut got).await.unwrap();
        (got, outcome, rest)
    }

    #[tokio::test]
    async fn connects_by_name_and_leaves_the_tunnels_bytes() {
        let answers = [&[5, 0][..], &[5, 0, 0, 1, 10, 0, 0, 1, 1, 187], b"T"].concat();
        let (got, outcome, rest) = pass(None, "vpn.example", &answers).await;
        let expected = [&[5, 1, 0, 5, 1, 0, 3, 11][..], b"vpn.example", &[1, 187]].concat();
        assert_eq!((got, outcome, rest), (expected, Ok(()), b"T".to_vec()));
    }

    #[tokio::test]
    async fn logs_in_where_asked_and_connects_to_literals() {
        let answers = [&[5, 2][..], &[1, 0], &[5, 0, 0, 3, 1, b'x', 0, 0]].concat();
        let (got, outcome, _) = pass(Some(login()), "192.0.2.1", &answers).await;
        let expected =
            [&[5, 2, 0, 2, 1, 3][..], b"ann\x06secret", &[5, 1, 0, 1, 192, 0, 2, 1, 1, 187]]
                .concat();
        assert_eq!((got, outcome), (expected, Ok(())));
        let answers = [&[5, 0][..], &[5, 0, 0, 4], &[0; 18]].concat();
        let (got, outcome, _) = pass(None, "2001:db8::1", &answers).await;
        assert_eq!((got[6], outcome), (IPV6, Ok(())));
    }

    #[tokio::test]
    async fn datagrams_are_asked_for_with_what_stands_before_each() {
        let (mut near, mut far) = tokio::io::duplex(1 << 14);
        far.write_all(&[5, 0, 5, 0, 0, 1, 192, 0, 2, 9, 4, 56]).await.unwrap();
        let proxy = SocksProxy { host: "proxy".into(), port: 1080, login: None };
        let (relay, header) = proxy.associate(&mut near, "vpn.example", 1194).await.unwrap();
        assert_eq!(relay, Some("192.0.2.9:1080".parse().unwrap()));
        assert_eq!(header, [&[0, 0, 0, 3, 11][..], b"vpn.example", &[4, 170]].concat());
        drop(near);
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, [5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[tokio::test]
    async fn refusals_say_what_to_do() {
        let refused = [5, 0, 5, 5, 0, 1, 0, 0, 0, 0, 0, 0];
        let cases: [(Option<Login>, &[u8], &str); 6] = [
            (None, &[5, 0xff], "give socks-proxy a file"),
            (Some(login()), &[5, 2, 1, 1], "refuses user name or password"),
            (None, &[5, 2], "was not offered"),
            (None, &refused, "connection refused (5)"),
            (None, b"HTTP", "is not a SOCKS 5 proxy"),
            (None, &[5], "closed the connection"),
        ];
        for (login, answers, expected) in cases {
            let problem = pass(login, "h", answers).await.1.unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
