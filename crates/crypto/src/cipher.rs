use std::fmt;

/// A data channel AEAD.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-192-GCM.
    Aes192Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    /// All ciphers, in adit's order of preference.
    pub const ALL: [Self; 4] =
        [Self::Aes256Gcm, Self::Aes128Gcm, Self::ChaCha20Poly1305, Self::Aes192Gcm];

    /// Returns the name that OpenVPN and OpenSSL use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes192Gcm => "AES-192-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "CHACHA20-POLY1305",
        }
    }

    /// Parses a name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.name().eq_ignore_ascii_case(name))
    }

    /// Returns the key length in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes192Gcm => 24,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
