//! Whether a server answers: a client's first packet under a key made for the purpose.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_engine::UnixTime;
use adit_openvpn::keys::{ServerKey, StaticKey};
use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::wrap::{WrapConfig, Wrapper};

use super::survey;

/// The server has just been started; give it a moment.
const ATTEMPTS: u32 = 10;
const PATIENCE: Duration = Duration::from_millis(300);

/// Larger than any reset.
const MAX_PACKET: usize = 2048;

/// Sends a reset and waits for the server's. No session begins: the cookie is never returned.
pub(super) fn knock(to: SocketAddr, key: &ServerKey) -> Result<Duration, String> {
    let mut random = survey::kernel_random().map_err(|error| error.to_string())?;
    let kc = StaticKey::generate(|bytes| random.fill(bytes));
    let client = key.client_key(kc, None).map_err(|error| error.to_string())?;
    let wrap = WrapConfig::TlsCryptV2Client { key: client };
    let local: IpAddr = match to.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((local, 0)).map_err(|error| error.to_string())?;
    socket.connect(to).map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;

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
        // Refused while the socket is not open yet: then the wait below is the pause.
        let _ = socket.send(&packet);
        let mut answer = [0; MAX_PACKET];
        match socket.recv(&mut answer) {
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
    Err(format!("{to} does not answer: a firewall on this machine may drop UDP port {}", to.port()))
}

#[cfg(test)]
mod tests {
    use adit_openvpn::wrap::WrapServer;

    use super::*;

    fn key() -> ServerKey {
        ServerKey::new(&[7; ServerKey::LEN])
    }

    /// Answers one packet as a server would, under `key`.
    fn answer_once(key: ServerKey) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let server = WrapServer::new(&WrapConfig::TlsCryptV2Server { key }).unwrap();
            let mut packet = [0; MAX_PACKET];
            let (length, from) = socket.recv_from(&mut packet).unwrap();
            let mut first = server.open_first(&mut packet[..length]).unwrap();
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
            socket.send_to(&out, from).unwrap();
        });
        address
    }

    #[test]
    fn a_server_that_answers_passes() {
        knock(answer_once(key()), &key()).unwrap();
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
        assert!(knock(address, &key()).unwrap_err().contains("not as this server"));
    }
}
