use std::time::Duration;

use super::Source;
use crate::tls::CertificateQuery;

/// A certificate and its key on a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkcs11 {
    /// `pkcs11-providers`: the modules that know tokens; never empty.
    pub providers: Vec<Pkcs11Provider>,
    /// `pkcs11-id`: the certificate. `None` for `pkcs11-id-management`, which has it chosen.
    pub query: Option<CertificateQuery>,
    /// `pkcs11-pin-cache`: the time after which the PIN must be entered again.
    pub pin_cache: Option<Duration>,
    /// `extra-certs`.
    pub extra: Option<Source>,
}

/// A module that knows tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkcs11Provider {
    /// The shared object: a path, or a name without a slash that the dynamic linker looks up.
    pub module: String,
    /// `pkcs11-protected-authentication`: the PIN is entered on the token's own keypad.
    pub protected: bool,
    /// `pkcs11-cert-private`: certificates can be seen only after the PIN.
    pub private: bool,
}
