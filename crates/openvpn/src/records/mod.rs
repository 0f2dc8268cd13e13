//! Sessions for protocols other than OpenVPN's: its control channel without key method 2.
//!
//! Resets, cookies, the reliability layer, tls-crypt and the data channel are OpenVPN's. TLS is
//! version 1.3 with X25519MLKEM768 and the self-signed certificates of [`crate::tls::SelfSigned`].
//! TLS carries records. The data keys come from the TLS exporter, with a label and a context from
//! the caller.
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
//! A hello is the first record that each end sends in a key negotiation; the caller defines its
//! content. A renegotiation must use the same certificate keys and hellos.

mod framing;
mod listener;
mod session;

use crate::packet::{Opcode, SessionId, split_front};

pub(crate) use framing::{HEADER, frame};
pub use framing::{MAX_RECORD, Record, RecordError, RecordReader, fuzz};
pub use listener::RecordListener;
pub use session::{DataTerms, Dial, RecordEvent, RecordSession, RecordSettings, RemoteEnd};

/// Returns the kind of a control packet and the session id of its sender, neither of which is
/// authentic; `None` for other bytes.
pub fn sender(packet: &[u8]) -> Option<(Opcode, SessionId)> {
    split_front(packet).ok().map(|(header, session, _)| (header.opcode, session))
}
