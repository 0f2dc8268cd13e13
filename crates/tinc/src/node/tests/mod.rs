//! Tests of a node against scripted neighbours, by section of the specification.

mod bench;
mod carried;
mod ciphers;
mod connections;
mod discovery;
mod early;
mod floods;
mod hostile;
mod packets;
mod reload;
mod sessions;
mod transit;
