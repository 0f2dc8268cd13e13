use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// A secret that another process of the same program receives. It is erased when it is dropped, and its serialized form
/// is hexadecimal.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(pub Zeroizing<Vec<u8>>);

impl SecretBytes {
    /// Copies these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// Returns the bytes if there are exactly `N`.
    pub fn array<const N: usize>(&self) -> Option<Zeroizing<[u8; N]>> {
        let bytes: &[u8; N] = self.0.as_slice().try_into().ok()?;
        Some(Zeroizing::new(*bytes))
    }
}

/// Never prints the secret.
impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.0.len())
    }
}

impl Serialize for SecretBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digit = |half: u8| char::from_digit(half.into(), 16).unwrap_or_default();
        let mut text = Zeroizing::new(String::with_capacity(self.0.len().saturating_mul(2)));
        for byte in self.0.iter() {
            text.push(digit(byte >> 4));
            text.push(digit(byte & 15));
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for SecretBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
        for pair in text.as_bytes().chunks(2) {
            let whole = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
            let digits = std::str::from_utf8(pair).ok().filter(|_| whole);
            let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            bytes.push(byte.ok_or_else(|| D::Error::custom("not hexadecimal"))?);
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_and_back() {
        let secret = SecretBytes::of(&[0, 0x1f, 0xff]);
        let text = serde_json::to_string(&secret).unwrap();
        assert_eq!(text, "\"001fff\"");
        assert_eq!(serde_json::from_str::<SecretBytes>(&text).unwrap(), secret);
        assert_eq!(secret.array::<3>().as_deref(), Some(&[0, 0x1f, 0xff]));
        assert_eq!(secret.array::<2>(), None);
        for text in ["\"0\"", "\"0g\"", "\"é\"", "\"+1\"", "7"] {
            assert!(serde_json::from_str::<SecretBytes>(text).is_err(), "{text}");
        }
        assert_eq!(format!("{secret:?}"), "SecretBytes(3 bytes)");
    }
}
