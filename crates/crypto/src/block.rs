use std::fmt;

/// A block cipher in CBC mode, for peers that cannot do AEAD. All have blocks of 128 bits.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum BlockCipher {
    /// AES-128-CBC.
    Aes128Cbc,
    /// AES-192-CBC.
    Aes192Cbc,
    /// AES-256-CBC.
    Aes256Cbc,
}

impl BlockCipher {
    /// All of them, strongest first.
    pub const ALL: [Self; 3] = [Self::Aes256Cbc, Self::Aes192Cbc, Self::Aes128Cbc];

    /// Length of a block, and of the initialisation vector, in bytes.
    pub const BLOCK_LEN: usize = 16;

    /// The name OpenVPN and OpenSSL use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Cbc => "AES-128-CBC",
            Self::Aes192Cbc => "AES-192-CBC",
            Self::Aes256Cbc => "AES-256-CBC",
        }
    }

    /// Parses a name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.name().eq_ignore_ascii_case(name))
    }

    /// Key length in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Cbc => 16,
            Self::Aes192Cbc => 24,
            Self::Aes256Cbc => 32,
        }
    }
}

impl fmt::Display for BlockCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
