//! An unauthenticated peer that sends resets, with and without valid wrapping, and packets with a wrong MAC.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use adit_engine::UnixTime;
use adit_linux::clock;
use adit_openvpn::client::ClientConfig;
use adit_openvpn::packet::{Acks, Control, Opcode, SessionId};
use adit_openvpn::wrap::{WrapConfig, Wrapper};
use adit_testbed::failure::{Context, Result, ensure};

use super::forge::Forger;
use super::{Attack, Counts, Target};

/// The number of resets that are sent in turn, each with a different session id.
const RESETS: u64 = 512;
/// The length in bytes of a data packet that is not sealed by any key.
const DATA: usize = 100;

/// One kind of packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A client's first packet, wrapped by the right key.
    Reset,
    /// The same packet with one bit changed.
    WrongMac,
    /// The same packet without wrapping.
    Unwrapped,
    /// A data packet of the first peer, not sealed by any key.
    Data,
}

/// The packets in order: kind, whether it seems to come from the honest client, and name.
const ROTA: [(Kind, bool, &str); 8] = [
    (Kind::Reset, false, "resets"),
    (Kind::WrongMac, false, "resets with a wrong MAC"),
    (Kind::Unwrapped, false, "resets without a wrapping"),
    (Kind::Data, false, "data packets with a wrong MAC"),
    (Kind::Reset, true, "forged resets"),
    (Kind::WrongMac, true, "forged resets with a wrong MAC"),
    (Kind::Unwrapped, true, "forged resets without a wrapping"),
    (Kind::Data, true, "forged data packets with a wrong MAC"),
];

/// The packets of one session that is never established.
#[derive(Debug)]
struct Packets {
    wrapped: Vec<u8>,
    wrong: Vec<u8>,
    unwrapped: Vec<u8>,
    data: Vec<u8>,
}

impl Packets {
    fn new(number: u64, wrap: &WrapConfig) -> Result<Self> {
        let control = Control {
            opcode: Opcode::HardResetClientV2,
            key_id: 0,
            session: SessionId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()),
            acks: Acks::NONE,
            remote: None,
            message: Some(0),
            payload: &[],
        };
        let mut wrapped = Vec::new();
        let mut wrapper = Wrapper::client(wrap).context("the unauthenticated peer's wrapping")?;
        wrapper
            .seal(&control, UnixTime(clock::unix_time()), &mut wrapped)
            .context("the unauthenticated peer's reset")?;
        let mut wrong = wrapped.clone();
        if let Some(last) = wrong.last_mut() {
            *last ^= 1;
        }
        let mut unwrapped = Vec::new();
        control.encode(&mut unwrapped);
        // The first byte contains the opcode and the key id, the next three the peer id.
        let mut data = vec![Opcode::DataV2.number() << 3, 0, 0, 0];
        data.extend(control.session.0.iter().cycle().take(DATA));
        Ok(Self { wrapped, wrong, unwrapped, data })
    }

    fn of(&self, kind: Kind) -> &[u8] {
        match kind {
            Kind::Reset => &self.wrapped,
            Kind::WrongMac => &self.wrong,
            Kind::Unwrapped => &self.unwrapped,
            Kind::Data => &self.data,
        }
    }
}

/// An unauthenticated peer.
#[derive(Debug)]
pub struct Unauthenticated {
    sockets: Vec<UdpSocket>,
    forger: Forger,
    packets: Vec<Packets>,
}

impl Unauthenticated {
    /// Prepares the senders on their hosts; nothing is sent yet.
    ///
    /// # Errors
    /// Sockets cannot be made.
    pub fn new(config: &ClientConfig, target: &Target) -> Result<Self> {
        let socket = |source| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(SocketAddr::new(source, 0)).context(source)?;
            socket.connect(target.server)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let sockets: Vec<UdpSocket> =
            target.sources.iter().copied().map(socket).collect::<Result<_>>()?;
        ensure(!sockets.is_empty(), || {
            "an unauthenticated peer needs at least one address".to_owned()
        })?;
        let wrap = &config.settings.wrap;
        let packets =
            (1..=RESETS).map(|number| Packets::new(number, wrap)).collect::<Result<_>>()?;
        let forger = Forger::new(target.honest, target.server)?;
        Ok(Self { sockets, forger, packets })
    }
}

/// Returns the element at a position modulo the length.
fn round<T>(all: &[T], position: u64) -> Option<&T> {
    let at = position.checked_rem(all.len() as u64)?;
    all.get(usize::try_from(at).ok()?)
}

impl Attack for Unauthenticated {
    fn act(&mut self, number: u64, counts: &mut Counts) -> Result<()> {
        let kinds = ROTA.len() as u64;
        let (kind, forged, name) = *round(&ROTA, number).context("a rota")?;
        let packet = round(&self.packets, number / kinds).context("no packet")?.of(kind);
        let sent = if forged {
            self.forger.send(packet)
        } else {
            let socket = round(&self.sockets, number / kinds).context("no socket")?;
            // A failed send is caused by an ICMP error or a full buffer.
            socket.send(packet).is_ok()
        };
        if sent {
            counts.add(name);
        }
        Ok(())
    }

    fn listen(&mut self, wait: Duration, _: &mut Counts) -> Result<()> {
        // The server's responses are not read, and only fill the sockets' buffers.
        std::thread::sleep(wait);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_what_they_are_called() {
        let packets = Packets::new(1, &WrapConfig::None).unwrap();
        let reset = Control::parse(packets.of(Kind::Reset)).unwrap();
        assert_eq!((reset.opcode, reset.message), (Opcode::HardResetClientV2, Some(0)));
        assert_eq!(packets.of(Kind::Unwrapped), packets.of(Kind::Reset));
        assert_ne!(packets.of(Kind::WrongMac), packets.of(Kind::Reset));
        assert_eq!(packets.of(Kind::Data).first().map(|byte| byte >> 3), Some(9));
        let other = Packets::new(2, &WrapConfig::None).unwrap();
        assert_ne!(Control::parse(other.of(Kind::Reset)).unwrap().session, reset.session);
    }

    #[test]
    fn positions_go_round() {
        assert_eq!((round(&[5, 6], 1), round(&[5, 6], 2)), (Some(&6), Some(&5)));
        assert_eq!(round::<u8>(&[], 1), None);
    }
}
