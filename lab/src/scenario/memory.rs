//! Measures adit's own engines and data path in this process, without any I/O.

use adit_testbed::failure::{Context, Failure, Result};

use crate::bench::{self, Size};
use crate::plan::{Packet, Settings};
use crate::record::Measurement;

pub(super) fn in_memory(settings: &Settings) -> Result<Measurement> {
    let cipher = bench::cipher(&settings.cipher).map_err(Failure)?;
    let size = match settings.packet {
        Packet::Bytes(bytes) => Size::Bytes(bytes.into()),
        Packet::Imix => Size::Imix,
        Packet::Super => Size::Super,
        Packet::Jumbo => {
            return Err(Failure("jumbo datagrams are for udp; write a size in bytes".to_owned()));
        }
    };
    let mut measurement = Measurement::default();
    measurement.set("sum_mbps", bench::measure_in_memory(cipher, &size, settings.length)?);
    Ok(measurement)
}

pub(super) fn handshakes(settings: &Settings) -> Result<Measurement> {
    // One handshake takes about half a millisecond.
    let count = (settings.length.as_secs_f64() * 2000.0).clamp(50.0, 5000.0);
    let cost = bench::measure_handshakes(count as u32)?;
    let mut measurement = Measurement::default();
    measurement.set("handshakes_per_s", cost.per_second);
    measurement.set("cpu_ms_per_handshake", cost.server_ms + cost.client_ms);
    Ok(measurement)
}

/// Counts the instructions of this program's data path; the figure is exactly repeatable.
pub(super) fn instructions(settings: &Settings) -> Result<Measurement> {
    let piece = settings.piece.as_str();
    let counts = bench::instruction_counts(&std::env::current_exe()?, &[piece])?;
    let count = counts.get(piece).copied().context("a piece without a count")?;
    let mut measurement = Measurement::default();
    measurement.set("instructions", count as f64);
    Ok(measurement)
}
