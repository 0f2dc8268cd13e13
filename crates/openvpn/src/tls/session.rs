#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use std::collections::VecDeque;
use std::fmt;
use std::io::{ErrorKind, Read, Write};

use adit_engine::CertificateFacts;
use rustls::{AlertDescription, Connection, Error, ProtocolVersion};
use zeroize::Zeroizing;

use super::context::{CHECK, ClientTls, ServerTls};
use super::error::{CertificateError, CertificateProblem, TlsError};
use super::facts::facts;
use super::identity::PeerIdentity;
use super::self_signed::{self, KeyHash, RecordTls};
use super::verify;

/// The maximum length of a message in bytes: the capacity of a TLS record.
pub const MAX_MESSAGE: usize = 16_384;
/// The maximum length of a record with its header in bytes. RFC 5246 allows 2048 bytes more than
/// the plaintext.
const MAX_RECORD: usize = MAX_MESSAGE + 2048 + RECORD_HEADER;
const RECORD_HEADER: usize = 5;
/// The maximum number of bytes that a peer may send before its handshake is complete. A chain of
/// four RSA-4096 certificates is about 8 KiB.
const MAX_HANDSHAKE: usize = 64 * 1024;
/// The maximum number of messages held until the caller reads them.
const MAX_UNREAD: usize = 32;
/// The maximum number of bytes held until the caller pulls them, including key updates that the
/// peer requests.
const MAX_OUTGOING: usize = 128 * 1024;

/// Returns the meaning of a peer's alert for this end.
fn meaning(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateRevoked => {
            "the peer says that this end's certificate is revoked: ask for a new profile"
        }
        AlertDescription::CertificateExpired => {
            "the peer says that this end's certificate has expired: have it renewed"
        }
        AlertDescription::UnknownCA => {
            "the peer does not know the authority that issued this end's certificate"
        }
        _ => "the peer's log says more",
    }
}

/// A TLS handshake and the channel that follows it.
///
/// [`feed`](Self::feed) takes received bytes, in order and in portions of any size, and
/// [`pull`](Self::pull) returns the bytes to send. OpenVPN's peers expect each message in one TLS
/// record. [`write`](Self::write) writes one record and [`read`](Self::read) returns one.
pub struct TlsSession {
    connection: Connection,
    /// The result of checking the peer's certificate.
    verdict: Option<Result<PeerIdentity, CertificateError>>,
    /// The record that is not yet complete.
    partial: Vec<u8>,
    /// The number of bytes fed during the handshake.
    handshake_bytes: usize,
    messages: VecDeque<Zeroizing<Vec<u8>>>,
    outgoing: VecDeque<u8>,
    failed: Option<TlsError>,
    closed: bool,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession")
            .field("handshaking", &self.is_handshaking())
            .field("unread", &self.messages.len())
            .field("outgoing", &self.outgoing.len())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl TlsSession {
    /// Starts a handshake as client; the ClientHello can be pulled at once.
    pub fn client(tls: &ClientTls) -> Result<Self, TlsError> {
        Self::new(tls.connection()?)
    }

    /// Starts a session that waits for a client's handshake.
    pub fn server(tls: &ServerTls) -> Result<Self, TlsError> {
        Self::new(tls.connection()?)
    }

    /// Starts a session between two ends that know each other by their keys.
    pub fn records(tls: &RecordTls) -> Result<Self, TlsError> {
        Self::new(tls.connection()?)
    }

    fn new(mut connection: Connection) -> Result<Self, TlsError> {
        connection.set_buffer_limit(Some(MAX_OUTGOING));
        let mut session = Self {
            connection,
            verdict: None,
            partial: Vec::new(),
            handshake_bytes: 0,
            messages: VecDeque::new(),
            outgoing: VecDeque::new(),
            failed: None,
            closed: false,
        };
        session.collect()?;
        Ok(session)
    }

    /// Processes the next bytes of the peer's TLS stream. An error is final, and later calls return
    /// it again; an alert for the peer may still be pulled.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.take(bytes);
        // The alert with the reason is in the TLS library's buffer.
        let collected = self.collect();
        let result = result.and(collected);
        if let Err(error) = &result {
            self.failed = Some(error.clone());
            self.partial = Vec::new();
        }
        result
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        while !bytes.is_empty() {
            let wanted = self.missing()?;
            let (now, later) = bytes.split_at_checked(wanted).unwrap_or((bytes, &[]));
            self.partial.extend_from_slice(now);
            bytes = later;
            if self.is_handshaking() {
                self.handshake_bytes = self.handshake_bytes.saturating_add(now.len());
                if self.handshake_bytes > MAX_HANDSHAKE {
                    return Err(TlsError::Protocol(format!(
                        "a handshake of more than {MAX_HANDSHAKE} bytes"
                    )));
                }
            }
            if self.partial.len() >= RECORD_HEADER && self.missing()? == 0 {
                self.process_record()?;
            }
        }
        Ok(())
    }

    /// Returns the number of bytes that are missing from the header or, once the header is
    /// complete, from the record.
    fn missing(&self) -> Result<usize, TlsError> {
        let have = self.partial.len();
        let Some([_, _, _, high, low]) = self.partial.first_chunk::<RECORD_HEADER>() else {
            return Ok(RECORD_HEADER.saturating_sub(have));
        };
        let whole = usize::from(u16::from_be_bytes([*high, *low])).saturating_add(RECORD_HEADER);
        if whole > MAX_RECORD {
            return Err(TlsError::Protocol(format!(
                "what arrived is no TLS, or a record of {whole} bytes"
            )));
        }
        Ok(whole.saturating_sub(have))
    }

    fn process_record(&mut self) -> Result<(), TlsError> {
        let record = std::mem::take(&mut self.partial);
        let mut rest = record.as_slice();
        while !rest.is_empty() {
            self.connection
                .read_tls(&mut rest)
                .map_err(|error| TlsError::Protocol(error.to_string()))?;
            let (state, verdict) = verify::watch(|| self.connection.process_new_packets());
            self.verdict = verdict.or(self.verdict.take());
            let state = state.map_err(|e| self.blame(e))?;
            self.closed |= state.peer_has_closed();
            self.drain(state.plaintext_bytes_to_read())?;
        }
        Ok(())
    }

    fn drain(&mut self, bytes: usize) -> Result<(), TlsError> {
        if bytes == 0 {
            return Ok(());
        }
        if self.messages.len() >= MAX_UNREAD {
            return Err(TlsError::Protocol(format!("more than {MAX_UNREAD} messages at once")));
        }
        let mut message = Zeroizing::new(vec![0; bytes]);
        match self.connection.reader().read_exact(&mut message) {
            Ok(()) => self.messages.push_back(message),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(TlsError::Ours(error.to_string())),
        }
        Ok(())
    }

    /// Moves the TLS library's output into our buffer.
    fn collect(&mut self) -> Result<(), TlsError> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.outgoing) {
                Ok(0) => break,
                Ok(_) if self.outgoing.len() > MAX_OUTGOING => {
                    return Err(TlsError::Protocol("the peer makes us answer without end".into()));
                }
                Ok(_) => {}
                Err(error) => return Err(TlsError::Ours(error.to_string())),
            }
        }
        Ok(())
    }

    fn blame(&self, error: Error) -> TlsError {
        if let Some(Err(refused)) = &self.verdict {
            return TlsError::Certificate(Box::new(refused.clone()));
        }
        match error {
            Error::NoCertificatesPresented => TlsError::Certificate(Box::new(CertificateError {
                problem: CertificateProblem::Missing,
                subject: String::new(),
                detail: "the peer sent no certificate; its configuration needs `cert` and `key`"
                    .into(),
            })),
            Error::AlertReceived(alert) => {
                TlsError::Refused(format!("TLS alert {alert:?}: {}", meaning(alert)))
            }
            Error::PeerIncompatible(why) => TlsError::Incompatible(format!("{why:?}")),
            Error::FailedToGetCurrentTime => {
                TlsError::Ours("the system's clock cannot be read".into())
            }
            Error::FailedToGetRandomBytes => {
                TlsError::Ours("the system gives no random bytes".into())
            }
            other => TlsError::Protocol(other.to_string()),
        }
    }

    /// Returns the next message, one per TLS record of the peer; `None` if none is complete.
    pub fn read(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, TlsError> {
        match self.messages.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.failed.clone().map_or(Ok(None), Err),
        }
    }

    /// Queues one message as one TLS record. Before the handshake is complete, the message waits.
    pub fn write(&mut self, message: &[u8]) -> Result<(), TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if message.len() > MAX_MESSAGE {
            return Err(TlsError::Misuse("a message longer than a TLS record"));
        }
        if self.outgoing.len().saturating_add(message.len()) > MAX_OUTGOING {
            return Err(TlsError::Misuse("more written than pulled"));
        }
        match self.connection.writer().write(message) {
            Ok(written) if written == message.len() => self.collect(),
            Ok(_) => Err(TlsError::Misuse("more written than the handshake can hold back")),
            Err(error) => Err(TlsError::Ours(error.to_string())),
        }
    }

    /// Returns the next bytes of our TLS stream, at most `max`; empty if there are none.
    pub fn pull(&mut self, max: usize) -> Vec<u8> {
        let count = self.outgoing.len().min(max);
        self.outgoing.drain(..count).collect()
    }

    /// Returns whether [`pull`](Self::pull) has bytes to return.
    pub fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns the number of bytes left to [`pull`](Self::pull).
    pub fn outgoing_len(&self) -> usize {
        self.outgoing.len()
    }

    /// Queues the announcement that this end will send no more data.
    pub fn close(&mut self) -> Result<(), TlsError> {
        self.connection.send_close_notify();
        self.collect()
    }

    /// Returns the protocol that both ends agreed on (ALPN), if there is one.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// Returns whether both ends agreed that this is a connection check ([`ClientTls::for_check`]).
    pub fn is_check(&self) -> bool {
        self.protocol() == Some(CHECK)
    }

    /// Returns whether the handshake is in progress.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns whether the peer announced that it will send no more data.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Exports keying material for `label` without context (RFC 5705). Fails before the end of the
    /// handshake.
    pub fn export(&self, label: &[u8], out: &mut [u8]) -> Result<(), TlsError> {
        self.export_keys(label, None, out)
    }

    /// Exports keying material for `label` and `context`, as [`export`](Self::export) does.
    pub fn export_with_context(
        &self,
        label: &[u8],
        context: &[u8],
        out: &mut [u8],
    ) -> Result<(), TlsError> {
        self.export_keys(label, Some(context), out)
    }

    fn export_keys(
        &self,
        label: &[u8],
        context: Option<&[u8]>,
        out: &mut [u8],
    ) -> Result<(), TlsError> {
        self.connection
            .export_keying_material(out, label, context)
            .map(|_| ())
            .map_err(|error| TlsError::Ours(error.to_string()))
    }

    /// Returns the hash of the peer's key once the handshake is complete; `None` before that, or if
    /// the peer's certificate is not a [`SelfSigned`](super::SelfSigned) one.
    pub fn peer_key(&self) -> Option<KeyHash> {
        let complete = !self.is_handshaking() && self.failed.is_none();
        let chain = self.connection.peer_certificates().filter(|_| complete)?;
        self_signed::key_hash(chain.first()?)
    }

    /// Returns the identity in the peer's certificate once the handshake is complete; `None` before
    /// that, or if the peer has no certificate.
    pub fn peer(&self) -> Option<&PeerIdentity> {
        if self.is_handshaking() { None } else { self.verdict.as_ref()?.as_ref().ok() }
    }

    /// Returns the contents of the peer's verified certificate and of its issuers, in this order. Empty before the
    /// end of the handshake, or without a certificate.
    pub fn certificate_facts(&self) -> Vec<CertificateFacts> {
        let Some(identity) = self.peer() else { return Vec::new() };
        let leaf = self.connection.peer_certificates().and_then(|chain| chain.first());
        let leaf = leaf.map(|der| facts(der.as_ref().into()));
        let issuers = identity.issuer_certificates.iter().map(|der| facts(der.0.clone()));
        leaf.into_iter().chain(issuers).collect()
    }

    /// Returns the version, suite and group in the wording of OpenVPN's log: `TLSv1.3, cipher
    /// TLSv1.3 TLS_AES_256_GCM_SHA384, group X25519MLKEM768`.
    pub fn description(&self) -> String {
        let version = match self.connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => return "TLS handshake not complete".into(),
        };
        let mut text = version.to_owned();
        if let Some(suite) = self.connection.negotiated_cipher_suite() {
            let name = super::suites::openssl_name(suite.suite());
            text.push_str(&format!(", cipher {version} {name}"));
        }
        if let Some(group) = self.connection.negotiated_key_exchange_group() {
            text.push_str(&format!(", group {}", super::suites::group_name(group.name())));
        }
        text
    }
}
