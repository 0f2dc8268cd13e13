//! TLS on the control channel: certificates, verification, and a session that the caller feeds with
//! bytes.
//!
//! [`ClientTls`] and [`ServerTls`] are created once from the operator's PEM files (CAs,
//! certificate, key, revocation lists). Each handshake is a [`TlsSession`]. There are no tickets,
//! no session cache and no early data. Every key negotiation is a full handshake, which checks the
//! certificates again.

mod context;
mod error;
mod explain_error;
mod external;
mod facts;
mod fingerprint;
mod fuzz;
mod identity;
mod key;
mod load;
mod options;
mod pem;
mod revocation;
mod secp521r1;
mod self_signed;
mod session;
mod suites;
mod token_id;
mod trust;
mod verify;
mod weak_rsa;

pub use context::{ClientTls, ServerTls};
pub use error::{CertificateError, CertificateProblem, TlsConfigError, TlsError};
pub use external::{KeyHolder, SignatureForm};
pub use facts::{CertificateNames, SharedDer, names};
#[doc(hidden)]
pub use fuzz::fuzz;
pub use identity::PeerIdentity;
pub use options::{
    CertProfile, ClientCertificates, ClientTlsOptions, CommonTlsOptions, IssuerHash, NameField,
    NameType, Pem, RemoteCertTls, ServerTlsOptions, TlsVersion, VerifyOptions,
};
pub use self_signed::{KeyHash, RecordTls, SelfSigned};
pub use session::{MAX_MESSAGE, TlsSession};
pub use suites::{GROUP_NAMES, suite_names};
pub use token_id::{CertificateId, CertificateQuery, TokenName};
