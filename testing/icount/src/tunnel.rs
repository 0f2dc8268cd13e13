//! Two ends of a tunnel with fixed keys that exchange packets in memory.

use adit_crypto::{Cipher, DirectionKey};
use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::{MAX_FRAME, Relay};
use adit_engine::command::{Float, InnerMtu, Keepalive, KeySlot, PeerRates};
use adit_engine::{Instant, Link, PeerId, SocketId};
use adit_openvpn::data_format::{Command, DataKey, KeyLimits, PacketLayout, PeerSpec, Protection};
use adit_openvpn_data::{LoopbackPlane, Plane, Upcalls};
use adit_wire::VnetHeader;

/// The peer id; each end has only one peer, so any number is suitable.
const PEER: PeerId = PeerId(1);
/// The replay window's default size in an established session.
const REPLAY_WINDOW: u32 = 64;

/// A train of datagrams on the network.
#[derive(Debug, Clone, Default)]
pub struct Train {
    /// The datagrams, without gaps.
    pub bytes: Vec<u8>,
    /// The length of each datagram except the last.
    pub segment: usize,
}

/// Both ends, with packet ids, replay windows, routes, source checks and counters as in a real session.
#[derive(Debug)]
pub struct Tunnel {
    near: LoopbackPlane,
    far: LoopbackPlane,
    link: Link,
    // Nothing is sent through these, but they must outlive the ends.
    _upcalls: (Upcalls, Upcalls),
}

impl Tunnel {
    /// Creates a tunnel with this cipher; the near end seals the packets of [`crate::packets`].
    ///
    /// # Errors
    /// The kernel refused a file descriptor.
    pub fn new(cipher: Cipher) -> Result<Self, String> {
        let remote = ([192, 0, 2, 1], 1194).into();
        Self::over(Link::datagram(SocketId(0), None, remote), cipher)
    }

    /// Creates a tunnel over a stream, whose trains are length-prefixed packets.
    ///
    /// # Errors
    /// The kernel refused a file descriptor.
    pub fn over_stream(cipher: Cipher) -> Result<Self, String> {
        Self::over(Link::stream(1, ([192, 0, 2, 1], 1194).into()), cipher)
    }

    fn over(link: Link, cipher: Cipher) -> Result<Self, String> {
        let end = || LoopbackPlane::new(Relay::Kernel, false, true, standstill);
        let failed = |error| format!("an end of a tunnel in memory: {error}");
        let (near, near_upcalls) = end().map_err(failed)?;
        let (far, far_upcalls) = end().map_err(failed)?;
        introduce(near.plane(), link, cipher, true);
        introduce(far.plane(), link, cipher, false);
        Ok(Self { near, far, link, _upcalls: (near_upcalls, far_upcalls) })
    }

    /// Seals a packet from a TUN device at the near end; calls `send` with each train and the length of its datagrams.
    /// Overwrites `packet`.
    pub fn seal(&mut self, vnet: &VnetHeader, packet: &mut [u8], send: impl FnMut(&[u8], usize)) {
        self.near.seal(vnet, packet, send);
    }

    /// Opens a train at the far end; calls `deliver` with each write to its TUN device. Overwrites the train.
    pub fn open(&mut self, train: &mut Train, mut deliver: impl FnMut(&Written<'_, '_>)) {
        let Train { bytes, segment } = train;
        let deliver = |what: LoopbackOutput<'_, '_>| {
            if let LoopbackOutput::Tun(write) = what {
                deliver(write);
            }
        };
        if self.link.is_stream() {
            // After an error the stream delivers nothing more, so the count of packets is too low.
            let _ = self.far.open_stream(&self.link, MAX_FRAME.into(), bytes, deliver);
        } else {
            self.far.open(&self.link, *segment, bytes, deliver);
        }
    }

    /// Returns the number of packets that the near end sealed.
    pub fn sealed(&self) -> u64 {
        self.near.plane().counters(PEER).map_or(0, |counters| counters.tx_packets)
    }

    /// Returns the number of packets that the far end found authentic.
    pub fn opened(&self) -> u64 {
        self.far.plane().counters(PEER).map_or(0, |counters| counters.rx_packets)
    }
}

/// One write to a TUN device.
pub type Written<'d, 'a> = adit_wire::merge::Write<'d, 'a>;

/// Returns a constant time: reading the real clock would be part of the measurement.
fn standstill() -> Instant {
    Instant::from_nanos(1_000_000_000)
}

/// Adds the peer to one end. Both ends derive the same two keys and use them in opposite directions.
fn introduce(plane: &Plane, link: Link, cipher: Cipher, first: bool) {
    let half = |byte: u8| DirectionKey { cipher: [byte; 64], hmac: [byte ^ 0xff; 64] };
    let (seal, open) = if first { (half(1), half(2)) } else { (half(2), half(1)) };
    let spec = PeerSpec {
        link,
        layout: PacketLayout { wire_id: Some(PEER.0), ..PacketLayout::default() },
        float: Float::Refuse,
        keepalive: Keepalive::default(),
        mtu: InnerMtu { mss4: 1360, mss6: 1340, largest: 0 },
        rates: PeerRates::default(),
        replay_window: REPLAY_WINDOW,
        channel_of: None,
        vlan: None,
    };
    let protection = Protection::Aead(cipher);
    let key = DataKey { key_id: 0, protection, seal, open, limits: KeyLimits::default() };
    plane.apply(Command::AddPeer(PEER, spec));
    plane.apply(Command::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
    let everywhere = ["0.0.0.0/0", "::/0"].iter().filter_map(|net| net.parse().ok()).collect();
    plane.apply(Command::SetRoutes(PEER, everywhere));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets;

    /// Returns what the far end delivers: the payloads and the number of writes.
    fn carry(vnet: &VnetHeader, packet: &[u8], cipher: Cipher) -> (Vec<u8>, usize, Tunnel) {
        let mut tunnel = Tunnel::new(cipher).unwrap();
        let mut trains = Vec::new();
        tunnel.seal(vnet, &mut packet.to_vec(), |bytes, segment| {
            trains.push(Train { bytes: bytes.to_vec(), segment });
        });
        let (mut payload, mut writes) = (Vec::new(), 0);
        for train in &mut trains {
            tunnel.open(train, |write| {
                writes += 1;
                write.bodies().for_each(|body| payload.extend_from_slice(body));
            });
        }
        (payload, writes, tunnel)
    }

    #[test]
    fn a_packet_arrives_as_it_left_under_every_cipher() {
        let packet = packets::plain(1400);
        for cipher in Cipher::ALL {
            let (arrived, writes, tunnel) = carry(&VnetHeader::default(), &packet, cipher);
            assert_eq!((arrived == packet, writes), (true, 1), "{cipher}");
            assert_eq!((tunnel.sealed(), tunnel.opened()), (1, 1));
        }
    }

    #[test]
    fn a_super_packet_crosses_in_trains_and_is_merged_again() {
        let (vnet, packet) = packets::super_packet();
        let (payload, writes, tunnel) = carry(&vnet, &packet, Cipher::Aes256Gcm);
        assert_eq!(payload, packet[40..], "the same bytes in the same order");
        assert_eq!((tunnel.sealed(), tunnel.opened()), (49, 49));
        assert_eq!(writes, 2, "49 datagrams are two trains, each one write");
    }
}
