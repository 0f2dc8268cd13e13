//! The authenticated data of a row, except its packet.

use std::net::IpAddr;

use crate::row::Columns;
use crate::{Audit, EpochNo, Seq, StreamId};

/// The length in bytes. It is fixed, so different rows have different bytes.
pub(super) const LEN: usize = 8 + 1 + 4 + 4 + 8 + 3 * 5 + 2 * 3 + 2 * 17;

/// Encodes a label, the stream, the epoch, the number and each column in the order of the table, all in network byte
/// order. A byte precedes each column. It is 0 if the column is null (its value is encoded as zeros), 4 or 6 for an
/// address, and otherwise 1.
pub(super) fn of(
    audit: Audit,
    stream: StreamId,
    epoch: EpochNo,
    seq: Seq,
    columns: &Columns,
) -> [u8; LEN] {
    let mut aad = Builder { bytes: [0; LEN], at: 0 };
    aad.put(*b"adit-pg1");
    aad.put([audit as u8]);
    aad.put(stream.0.to_be_bytes());
    aad.put(epoch.0.to_be_bytes());
    aad.put(seq.0.to_be_bytes());
    for value in [columns.len, columns.sport, columns.dport] {
        aad.put([u8::from(value.is_some())]);
        aad.put(value.unwrap_or(0).to_be_bytes());
    }
    for value in [columns.proto, columns.flags] {
        aad.put([u8::from(value.is_some())]);
        aad.put(value.unwrap_or(0).to_be_bytes());
    }
    for value in [columns.src, columns.dst] {
        let mut bytes = [0; 16];
        let family = match value {
            None => 0,
            Some(IpAddr::V4(address)) => {
                if let Some(start) = bytes.first_chunk_mut() {
                    *start = address.octets();
                }
                4
            }
            Some(IpAddr::V6(address)) => {
                bytes = address.octets();
                6
            }
        };
        aad.put([family]);
        aad.put(bytes);
    }
    aad.bytes
}

struct Builder {
    bytes: [u8; LEN],
    at: usize,
}

impl Builder {
    #[inline]
    fn put<const N: usize>(&mut self, value: [u8; N]) {
        let place = self.bytes.get_mut(self.at..).and_then(|rest| rest.first_chunk_mut());
        if let Some(place) = place {
            *place = value;
        }
        self.at = self.at.saturating_add(N);
    }
}
