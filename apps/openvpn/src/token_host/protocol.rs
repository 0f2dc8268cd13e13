//! The messages between the network process and the token host.
//!
//! Each message is one JSON object on a channel. The network process sends a request only after it has received the
//! reply to the one before it.

use std::fmt;

use adit_openvpn::tls::{CertificateId, TokenName};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// The maximum size of a message in bytes.
pub(super) const MESSAGE_LIMIT: usize = 128 << 10;

/// The maximum size of a certificate, which is a list of numbers in a message.
pub(super) const MAX_CERTIFICATE: usize = 16 << 10;

/// The maximum length of an id or a label of a certificate.
pub(super) const MAX_NAME: usize = 1024;

/// The maximum number of tokens, and of certificates on all of them. Further ones are not seen.
pub(super) const MAX_TOKENS: usize = 64;
pub(super) const MAX_CERTIFICATES: usize = 256;

/// A request to the host, and the number that its reply carries.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NumberedRequest {
    pub(super) id: u64,
    pub(super) request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Load the modules. Only the first request may do this, while the network process is still trusted.
    Open(OpenRequest),
    /// Change to the configured user.
    BecomeUser,
    /// Look for tokens and certificates.
    Scan,
    /// Return the certificate with this number in the last scan.
    Certificate(usize),
    /// Log in to a token. Without a PIN, it is entered on the token's own keypad.
    Login {
        token: TokenRef,
        pin: Option<Pin>,
        /// Whether a person has just entered the PIN. The last attempt before a token locks itself is for persons.
        by_hand: bool,
    },
    /// Use the key of a certificate from now on.
    Use { token: TokenRef, id: Vec<u8> },
    /// Sign with that key.
    Sign { mechanism: Mechanism, data: Vec<u8> },
}

/// A module to load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ModuleFile {
    pub(super) file: String,
    /// Whether the PIN is entered on the token's own keypad.
    pub(super) protected: bool,
    /// Whether certificates can be seen only after the PIN.
    pub(super) private: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct OpenRequest {
    pub(super) modules: Vec<ModuleFile>,
    /// The seconds after which a token must be logged in to again.
    pub(super) pin_cache: Option<u64>,
    pub(super) user: Option<String>,
    pub(super) group: Option<String>,
}

/// A token, as a module knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct TokenRef {
    /// The number of the module.
    pub(super) module: usize,
    manufacturer: String,
    model: String,
    serial: String,
    label: String,
}

impl TokenRef {
    pub(super) fn new(module: usize, name: TokenName) -> Self {
        let TokenName { manufacturer, model, serial, label } = name;
        Self { module, manufacturer, model, serial, label }
    }

    pub(crate) fn name(&self) -> TokenName {
        TokenName {
            manufacturer: self.manufacturer.clone(),
            model: self.model.clone(),
            serial: self.serial.clone(),
            label: self.label.clone(),
        }
    }

    /// Returns the label for messages. It is the token's own text.
    pub(crate) fn label(&self) -> String {
        self.label.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
    }
}

/// How to make a signature.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Mechanism {
    /// ECDSA of a digest.
    Ecdsa,
    /// RSA with the padding of PKCS#1 version 1.5.
    RsaPkcs,
    /// RSA with the padding of PSS, for a digest of so many bits.
    RsaPss(u16),
    /// RSA of a block that is padded already.
    RsaRaw,
}

/// The mechanisms that a token has.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mechanisms {
    pub(super) ecdsa: bool,
    pub(super) rsa_pkcs: bool,
    pub(super) rsa_pss: bool,
    pub(super) rsa_raw: bool,
}

/// A message from the host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    Reply {
        id: u64,
        reply: Reply,
    },
    /// A line that a module printed.
    Line(String),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Scanned {
        tokens: Vec<SeenToken>,
        certificates: usize,
    },
    Certificate(Box<Certificate>),
    /// The key is there, on a token with these mechanisms.
    Ready(Mechanisms),
    Signed(Vec<u8>),
    /// The token must be logged in to first.
    PinNeeded,
    /// The PIN is wrong. `last` if a further wrong one locks the token.
    WrongPin {
        last: bool,
    },
    /// The PIN was not tried, because a wrong one would lock the token.
    LastTry,
    /// The token is not there.
    Missing,
    /// The request cannot be carried out, for this reason.
    Failed(String),
}

/// A token that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeenToken {
    pub(crate) token: TokenRef,
    /// Whether it must be logged in to before its key can be used.
    pub(crate) login: bool,
    /// Whether its certificates can be seen only then.
    pub(crate) hidden: bool,
    /// Whether the PIN is entered on its own keypad.
    pub(crate) keypad: bool,
}

/// A certificate on a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Certificate {
    pub(super) token: TokenRef,
    pub(super) id: Vec<u8>,
    pub(crate) label: String,
    pub(crate) der: Vec<u8>,
}

impl Certificate {
    pub(crate) fn token(&self) -> &TokenRef {
        &self.token
    }

    #[cfg(test)]
    pub(crate) fn of_der(der: &[u8]) -> Self {
        let [manufacturer, model, serial, label] = ["m", "o", "s", "l"].map(str::to_owned);
        let token = TokenRef { module: 0, manufacturer, model, serial, label };
        Self { token, id: vec![1], label: String::new(), der: der.to_vec() }
    }

    /// Returns the id for `pkcs11-id`.
    pub(crate) fn id(&self) -> CertificateId {
        CertificateId { token: self.token.name(), id: self.id.clone() }
    }
}

/// A PIN.
#[derive(Clone)]
pub(super) struct Pin(pub(super) Zeroizing<String>);

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pin")
    }
}

impl Serialize for Pin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Pin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}
