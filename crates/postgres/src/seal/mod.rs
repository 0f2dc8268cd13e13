//! Converts packets to authenticated rows and back.
//!
//! An epoch's secret gives two keys. AES-256-GCM with the first key seals each packet. The nonce is four zero bytes and
//! the row's number. The authenticated data consist of the stream, the epoch, the number, and every column with a flag
//! for its presence. With audit policy `full`, the packet is in the clear at the start of the authenticated data, and
//! nothing is sealed. HMAC-SHA256 with the second key chains the batches over the full content of their rows; see
//! [`Chain`].

mod aad;
mod chain;
#[cfg(test)]
pub(crate) mod collision;
mod open;
mod sealer;
mod secret;
#[cfg(test)]
mod tests;

pub use chain::{Chain, ChainValue};
pub use open::{OpenError, Opener};
pub use sealer::{SealError, Sealer};
pub use secret::EpochSecret;
