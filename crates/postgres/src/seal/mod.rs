//! Packets into authenticated rows and back.
//!
//! An epoch's secret gives two keys. AES-256-GCM under one seals each packet: the nonce is four zero bytes and the
//! row's number, and the authenticated data are stream, epoch, number and every column with its presence. Under
//! audit policy `full` the packet is in the clear, before these, in the authenticated data, and nothing is sealed.
//! HMAC-SHA256 under the other chains the batches, over all of each row: see [`Chain`].

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
