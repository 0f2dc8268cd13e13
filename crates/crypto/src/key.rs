use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

/// One direction's half of an OpenVPN key pair: 64 bytes for the cipher and 64 for the MAC (or,
/// with an AEAD, the implicit part of the nonce). A cipher uses as many leading bytes as it needs.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct DirectionKey {
    /// Cipher key material.
    pub cipher: [u8; 64],
    /// MAC key material; its first 8 bytes complete an AEAD's nonce.
    pub hmac: [u8; 64],
}

// Written by hand so that keys never reach a log.
impl fmt::Debug for DirectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DirectionKey(..)")
    }
}
