//! Tests whether a server answers a client's first packet, with a key created for this purpose.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_engine::{Transport, UnixTime};
use adit_openvpn::keys::{ServerKey, StaticKey};
use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::wrap::{WrapConfig, Wrapper};

use super::settings::Listen;

/// The number of attempts. The server may have only just started.
const ATTEMPTS: u32 = 10;
const PATIENCE: Duration = Duration::from_millis(300);

/// The size of the buffer: larger than any reset.
const MAX_PACKET: usize = 2048;

/// Sends a reset to every endpoint of a server. Returns the time until the first answer.
///
/// # Errors
/// Returns the first endpoint that does not answer correctly.
pub(super) fn knock_everywhere(listen: &[Listen], key: &ServerKey) -> Result<Duration, String> {
    let mut first = None;
    for listen in listen {
        let to = SocketAddr::new(listen.address.unwrap_or(Ipv4Addr::LOCALHOST.into()), listen.port);
        let took = probe_listener(to, listen.transport, key)?;
        first.get_or_insert(took);
    }
    first.ok_or_else(|| "it listens nowhere".into())
}

/// A connection to the server.
enum Line {
    Datagrams(UdpSocket),
    Stream(TcpStream),
}

impl Line {
    fn open(to: SocketAddr, transport: Transport) -> io::Result<Self> {
        match transport {
            Transport::Udp => {
                let local: IpAddr = match to.ip() {
                    IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                let socket = UdpSocket::bind((local, 0))?;
                socket.connect(to)?;
                socket.set_read_timeout(Some(PATIENCE))?;
                Ok(Self::Datagrams(socket))
            }
            Transport::Tcp => {
                let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Ok(Self::Stream(stream))
            }
        }
    }

    /// Sends a packet and waits for the answer.
    fn ask(&mut self, packet: &[u8], answer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Datagrams(socket) => {
                // The packet is refused while the server's socket is not open yet. The receive timeout then serves as a pause.
                let _ = socket.send(packet);
                socket.recv(answer)
            }
            Self::Stream(stream) => {
                let length = u16::try_from(packet.len()).map_err(io::Error::other)?;
                stream.write_all(&[&length.to_be_bytes(), packet].concat())?;
                let mut length = [0; 2];
                stream.read_exact(&mut length)?;
                let length = usize::from(u16::from_be_bytes(length));
                let place = answer.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
                stream.read_exact(place)?;
                Ok(length)
            }
        }
    }
}

/// Sends a reset and waits for the server's. No further packet follows, so no session begins.
fn probe_listener(
    to: SocketAddr,
    transport: Transport,
    key: &ServerKey,
) -> Result<Duration, String> {
    let mut random = adit_runtime::random::generator().map_err(|error| error.to_string())?;
    let kc = StaticKey::generate(|bytes| random.fill(bytes));
    let client = key.client_key(kc, None).map_err(|error| error.to_string())?;
    let wrap = WrapConfig::TlsCryptV2Client { key: client };
    for _ in 0..ATTEMPTS {
        let mut wrapper = Wrapper::client(&wrap).map_err(|error| error.to_string())?;
        let session = SessionId(random.bytes());
        let reset = Control {
            opcode: Opcode::HardResetClientV3,
            key_id: 0,
            session,
            acks: Acks::NONE,
            remote: None,
            message: Some(0),
            payload: &[],
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut packet = Vec::new();
        wrapper
            .seal(&reset, UnixTime(now.as_secs()), &mut packet)
            .map_err(|error| error.to_string())?;
        let sent = Instant::now();
        let mut answer = [0; MAX_PACKET];
        let asked = Line::open(to, transport).and_then(|mut line| line.ask(&packet, &mut answer));
        match asked {
            Ok(length) => {
                let answer = answer.get_mut(..length).unwrap_or_default();
                let control = wrapper
                    .open(answer)
                    .map_err(|error| format!("{to} answers, but not as this server: {error}"))?;
                if control.opcode == Opcode::HardResetServerV2 && control.remote == Some(session) {
                    return Ok(sent.elapsed());
                }
                return Err(format!("{to} answers with {}", control.opcode.name()));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::thread::sleep(PATIENCE);
            }
            Err(_) => {}
        }
    }
    let name = match transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
    };
    Err(format!(
        "{to} does not answer: a firewall on this machine may drop {name} port {}",
        to.port()
    ))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use adit_openvpn::wrap::WrapServer;

    use super::*;

    fn key() -> ServerKey {
        ServerKey::new(&[7; ServerKey::LEN])
    }

    /// Returns a server's answer to a first packet, with the key `key`.
    fn answer_to(packet: &mut [u8], key: ServerKey) -> Vec<u8> {
        let server = WrapServer::new(&WrapConfig::tls_crypt_v2_server(key)).unwrap();
        let mut first = server.open_first(packet).unwrap();
        let reset = Control {
            opcode: Opcode::HardResetServerV2,
            key_id: 0,
            session: SessionId([9; 8]),
            acks: Acks::from_slice(&[0]).unwrap(),
            remote: Some(first.control.session),
            message: Some(0),
            payload: &[],
        };
        let mut out = Vec::new();
        first.wrapper.seal(&reset, UnixTime(1), &mut out).unwrap();
        out
    }

    /// Answers one packet like a server, with the key `key`.
    fn answer_once(key: ServerKey) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut packet = [0; MAX_PACKET];
            let (length, from) = socket.recv_from(&mut packet).unwrap();
            socket.send_to(&answer_to(&mut packet[..length], key), from).unwrap();
        });
        address
    }

    /// Answers one packet over a stream.
    fn answer_stream_once(key: ServerKey) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut packet = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut packet).unwrap();
            let answer = answer_to(&mut packet, key);
            stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
        });
        address
    }

    #[test]
    fn every_place_must_answer() {
        let listen = |address: SocketAddr, transport| Listen {
            address: Some(address.ip()),
            port: address.port(),
            transport,
        };
        let udp = listen(answer_once(key()), Transport::Udp);
        let tcp = listen(answer_stream_once(key()), Transport::Tcp);
        knock_everywhere(&[udp, tcp], &key()).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        let udp = listen(answer_once(key()), Transport::Udp);
        let why = knock_everywhere(&[udp, listen(nobody, Transport::Tcp)], &key()).unwrap_err();
        assert!(why.contains("drop TCP port"), "{why}");
    }

    #[test]
    fn a_server_that_answers_passes() {
        probe_listener(answer_once(key()), Transport::Udp, &key()).unwrap();
    }

    #[test]
    fn another_program_on_the_port_does_not() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut packet = [0; MAX_PACKET];
            let (_, from) = socket.recv_from(&mut packet).unwrap();
            socket.send_to(b"hello, this is not the service you look for", from).unwrap();
        });
        assert!(
            probe_listener(address, Transport::Udp, &key())
                .unwrap_err()
                .contains("not as this server")
        );
    }
}
