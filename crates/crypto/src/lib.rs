//! The AEADs, key derivations and MACs of adit behind one small face.
//!
//! aws-lc-rs does the work; this is the one place of the data path and the protocols that names it.

#![forbid(unsafe_code)]

pub mod aead;
mod cipher;
mod key;

pub use cipher::Cipher;
pub use key::KeyHalf;
