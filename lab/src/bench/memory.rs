//! Measures sealing and opening without I/O.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;
use std::time::{Duration, Instant};

use adit_crypto::Cipher;
use adit_icount::packets;
use adit_icount::tunnel::{Train, Tunnel};
use adit_testbed::failure::{Result, ensure};
use adit_wire::VnetHeader;

/// The lengths of the packets that pass through the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Size {
    /// All packets have this many bytes, including the IP header (20 to 65,535).
    Bytes(usize),
    /// A mix: of twelve packets, seven have 64 bytes, four have 576 and one has 1,400.
    Imix,
    /// TCP super-packets of 64 KiB, split, sealed, opened and merged again.
    Super,
}

/// The sizes that `bench` measures by default.
pub const SIZES: [Size; 5] =
    [Size::Bytes(64), Size::Bytes(512), Size::Bytes(1400), Size::Imix, Size::Super];

/// The mix, interleaved so that lengths alternate as on a real link.
const IMIX: [usize; 12] = [64, 576, 64, 64, 576, 64, 1400, 64, 576, 64, 576, 64];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Imix => f.write_str("imix"),
            Self::Super => f.write_str("super"),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "imix" => Ok(Self::Imix),
            "super" => Ok(Self::Super),
            _ => match text.parse() {
                Ok(bytes) if (packets::SMALLEST..=packets::SUPER_LEN).contains(&bytes) => {
                    Ok(Self::Bytes(bytes))
                }
                _ => Err(format!(
                    "{text:?} is no packet size: write {} to {} (bytes), imix or super",
                    packets::SMALLEST,
                    packets::SUPER_LEN
                )),
            },
        }
    }
}

impl Size {
    fn packets(&self) -> Vec<(VnetHeader, Vec<u8>)> {
        let plain = |bytes: usize| (VnetHeader::default(), packets::plain(bytes));
        match self {
            Self::Bytes(bytes) => vec![plain(*bytes)],
            Self::Imix => IMIX.iter().map(|bytes| plain(*bytes)).collect(),
            Self::Super => vec![packets::super_packet()],
        }
    }
}

/// The bytes of inner packets between two reads of the clock.
const CHUNK: usize = 256 << 10;

/// Returns the Mb/s of inner packets that one thread seals at one end and opens at the other, with packet ids, replay
/// window, source check and counters of a real session. The copies that the kernel would make (out of the TUN device,
/// and from one socket to the other) are included.
///
/// # Errors
/// A packet did not arrive.
pub fn measure_in_memory(cipher: Cipher, size: &Size, time: Duration) -> Result<f64> {
    let mut tunnel = Tunnel::new(cipher)?;
    let packets = size.packets();
    let bytes: usize = packets.iter().map(|(_, packet)| packet.len()).sum();
    let rounds = (CHUNK / bytes).max(1);
    let mut buffers = Buffers::default();
    let (mut carried, mut delivered) = (0_u64, 0_u64);
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..rounds {
            for (vnet, packet) in &packets {
                delivered += buffers.carry(&mut tunnel, vnet, packet);
            }
        }
        carried += (rounds * bytes) as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    let sealed = tunnel.sealed();
    ensure(delivered > 0 && sealed == delivered && tunnel.opened() == sealed, || {
        format!("{cipher}: {delivered} of {sealed} packets arrived")
    })?;
    Ok(carried as f64 * 8.0 / seconds / 1e6)
}

/// Buffers that are reused for each packet, so that nothing is allocated during the measurement.
#[derive(Default)]
struct Buffers {
    packet: Vec<u8>,
    trains: Vec<Train>,
}

impl Buffers {
    /// Carries one packet from end to end; returns the number of packets that arrived.
    fn carry(&mut self, tunnel: &mut Tunnel, vnet: &VnetHeader, packet: &[u8]) -> u64 {
        let Self { packet: copy, trains } = self;
        copy.clear();
        copy.extend_from_slice(packet);
        let mut used = 0;
        tunnel.seal(vnet, copy, |bytes, segment| {
            if trains.len() <= used {
                trains.push(Train::default());
            }
            if let Some(train) = trains.get_mut(used) {
                train.bytes.clear();
                train.bytes.extend_from_slice(bytes);
                train.segment = segment;
            }
            used += 1;
        });
        let mut delivered = 0;
        for train in trains.iter_mut().take(used) {
            tunnel.open(train, |write| delivered += black_box(write.count()) as u64);
        }
        delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_written() {
        for size in SIZES {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for wrong in ["19", "65536", "jumbo", "-1"] {
            assert!(wrong.parse::<Size>().unwrap_err().contains("20 to 65535"), "{wrong}");
        }
    }

    #[test]
    fn every_size_goes_through_and_gives_a_figure() {
        for size in SIZES {
            let mbps = measure_in_memory(Cipher::Aes128Gcm, &size, Duration::from_millis(1));
            assert!(mbps.unwrap() > 0.0, "{size}");
        }
    }

    #[test]
    fn the_mix_is_seven_four_and_one() {
        let count = |bytes| IMIX.iter().filter(|size| **size == bytes).count();
        assert_eq!((count(64), count(576), count(1400)), (7, 4, 1));
    }
}
