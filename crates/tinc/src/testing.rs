//! Helpers of the unit tests.

use std::sync::Arc;

use crate::keys::PrivateKey;

/// Decodes hexadecimal digits; white space between them is ignored.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    data_encoding::HEXLOWER.decode(digits.as_bytes()).unwrap()
}

/// Returns the identity key of alice in the specification's vectors.
pub(crate) fn alice() -> Arc<PrivateKey> {
    Arc::new(PrivateKey::from_seed(&[1; 32]))
}

/// Returns the identity key of bob in the specification's vectors.
pub(crate) fn bob() -> Arc<PrivateKey> {
    Arc::new(PrivateKey::from_seed(&[2; 32]))
}
