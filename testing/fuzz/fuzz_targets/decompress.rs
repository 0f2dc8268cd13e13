//! Fuzzes compressed packets of an authentic but malicious peer.
#![cfg_attr(fuzzing, no_main)]

use adit_openvpn_data::decompress::{Compression, decompress};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

/// Takes the format, the bound, and the packet from the input.
pub fn run(bytes: &[u8]) {
    let Some((&[choice, high, low], text)) = bytes.split_first_chunk() else { return };
    let packed = if choice & 1 == 0 { Compression::Lz4 } else { Compression::Lzo };
    let most = u16::from_be_bytes([high, low]);
    let mut memory = vec![7; 3];
    let len = decompress(packed, text, most, &mut memory).map_or(0, |packet| packet.len());
    assert!(len <= usize::from(most) && memory.len() == usize::from(most));
}
