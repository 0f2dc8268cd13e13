//! Sessions for protocols other than OpenVPN's: its control channel without key method 2.
//!
//! Resets, cookies, the reliability layer, tls-crypt and the data channel are OpenVPN's. TLS is 1.3
//! with X25519MLKEM768 and the self-signed certificates of [`crate::tls::SelfSigned`]. Inside TLS
//! there are records, and data keys come from the TLS exporter under a label and a context of the
//! caller.
//!
//! ```text
//! client                                                    server
//! reset                              ->
//!                                    <-  reset with a cookie; no state
//! cookie, ClientHello                ->
//!                                    <-  ServerHello .. Finished
//! certificate, Finished, hello       ->  Ready: the caller decides, establishes, installs keys
//! Ready: establishes, installs keys  <-  hello
//! ```
//!
//! A hello is the first record of each end in each key negotiation; its content is the caller's. A
//! renegotiation must show the same keys and hellos.

mod framing;
mod listener;
mod session;

use crate::packet::{Opcode, SessionId, split_front};

pub(crate) use framing::frame;
pub use framing::{MAX_RECORD, Record, RecordError, RecordReader, fuzz};
pub use listener::RecordListener;
pub use session::{DataTerms, Dial, RecordEvent, RecordSession, RecordSettings, RemoteEnd};

/// Returns the kind of a control packet and the session id of its sender, neither of which is
/// authentic; `None` for other bytes.
pub fn sender(packet: &[u8]) -> Option<(Opcode, SessionId)> {
    split_front(packet).ok().map(|(header, session, _)| (header.opcode, session))
}
