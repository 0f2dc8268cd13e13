//! The key on a token, as TLS uses it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use adit_crypto::Digest;
use adit_openvpn::tls::{KeyHolder, SignatureForm};
use adit_runtime::fault::Fault;
use nix::sys::signal::{Signal, raise};
use zeroize::Zeroizing;

use super::protocol::{Mechanism, Mechanisms, Reply};
use super::{Certificate, Login, TokenRef, Tokens, missing};

/// The party that enters a PIN while the program runs.
pub(crate) trait PinEntry: fmt::Debug + Send + Sync {
    /// Asks for the PIN of a token. `None` if there is no answer.
    fn pin(&self, token: &str) -> Option<Zeroizing<String>>;
}

/// The source of the PIN when it is needed again: after `pkcs11-pin-cache`, or when the token was removed.
#[derive(Debug, Default)]
pub(crate) struct PinSource {
    /// Whether the PIN is entered on the token's own keypad.
    pub(crate) keypad: bool,
    /// The PIN in the file of `askpass`. It is forgotten when it is wrong, so that it does not lock the token.
    pub(crate) file: FilePin,
    pub(crate) entry: Option<Arc<dyn PinEntry>>,
}

/// A PIN in a file.
#[derive(Default)]
pub(crate) struct FilePin(Mutex<Option<Zeroizing<String>>>);

impl fmt::Debug for FilePin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FilePin")
    }
}

impl FilePin {
    pub(crate) fn new(pin: Option<Zeroizing<String>>) -> Self {
        Self(Mutex::new(pin))
    }

    fn get(&self) -> Option<Zeroizing<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A private key on a token.
#[derive(Debug)]
pub(crate) struct TokenKey {
    tokens: Tokens,
    token: TokenRef,
    mechanisms: Mechanisms,
    pins: PinSource,
}

impl TokenKey {
    /// Takes the key of a certificate, on a token that is logged in to.
    ///
    /// # Errors
    /// The key is not there, or the token does not sign.
    pub(crate) fn new(
        tokens: &Tokens,
        certificate: &Certificate,
        pins: PinSource,
    ) -> Result<Self, Fault> {
        let mechanisms = tokens.choose(certificate)?;
        let Mechanisms { ecdsa, rsa_pkcs, rsa_pss, rsa_raw } = mechanisms;
        let token = certificate.token.clone();
        if !(ecdsa || rsa_pkcs || rsa_pss || rsa_raw) {
            return Err(Fault::operator(format!(
                "token '{}': it makes no signatures with RSA or ECDSA: use another token",
                token.label()
            )));
        }
        Ok(Self { tokens: tokens.clone(), token, mechanisms, pins })
    }

    /// Enters the PIN again. It is tried once, because tokens lock themselves after a few wrong ones.
    fn login_again(&self) -> Result<(), String> {
        let label = self.token.label();
        let needed = |remedy: &str| format!("token '{label}': the PIN is needed again: {remedy}");
        let file = self.pins.file.get();
        let (pin, by_hand) = match (&file, &self.pins.entry) {
            _ if self.pins.keypad => (None, false),
            (Some(_), _) => (file.clone(), false),
            (None, Some(entry)) => match entry.pin(&label) {
                Some(pin) => (Some(pin), true),
                None => return Err(needed("it was not entered")),
            },
            (None, None) => {
                return Err(needed(
                    "start the program again, or use askpass FILE or management-query-passwords",
                ));
            }
        };
        match self.tokens.login(&self.token, pin, by_hand)? {
            Login::Done => Ok(()),
            Login::Missing => Err(missing(&label)),
            Login::LastTry => Err(last_try(&label)),
            Login::Wrong { .. } if by_hand => Err(format!("token '{label}': the PIN is wrong")),
            Login::Wrong { .. } => {
                self.pins.file.forget();
                Err(wrong_file(&label))
            }
        }
    }
}

/// Returns the sentence about a wrong PIN in the file of `askpass`.
pub(crate) fn wrong_file(label: &str) -> String {
    format!(
        "token '{label}': the PIN in the file of askpass is wrong. It is not tried again, because the token would lock \
         itself: correct the file"
    )
}

/// Returns the sentence about a token with one attempt left.
pub(crate) fn last_try(label: &str) -> String {
    format!(
        "token '{label}': after too many wrong PINs, it takes one more, and locks itself if that is wrong. The PIN in the \
         file of askpass was not tried: enter it by hand once"
    )
}

impl KeyHolder for TokenKey {
    fn makes(&self, form: SignatureForm) -> bool {
        match form {
            SignatureForm::Ecdsa => self.mechanisms.ecdsa,
            SignatureForm::Pkcs1 => self.mechanisms.rsa_pkcs,
            SignatureForm::Pss(_) => self.mechanisms.rsa_pss,
            SignatureForm::Raw => self.mechanisms.rsa_raw,
        }
    }

    fn sign(&self, form: SignatureForm, data: &[u8]) -> Result<Vec<u8>, String> {
        let mechanism = match form {
            SignatureForm::Ecdsa => Mechanism::Ecdsa,
            SignatureForm::Pkcs1 => Mechanism::RsaPkcs,
            SignatureForm::Pss(Digest::Sha384) => Mechanism::RsaPss(384),
            SignatureForm::Pss(Digest::Sha512) => Mechanism::RsaPss(512),
            SignatureForm::Pss(_) => Mechanism::RsaPss(256),
            SignatureForm::Raw => Mechanism::RsaRaw,
        };
        let mut reply = self.tokens.sign(mechanism, data);
        if reply == Ok(Reply::PinNeeded) {
            reply = self.login_again().and_then(|()| self.tokens.sign(mechanism, data));
        }
        let signed = match reply {
            Ok(Reply::Signed(signature)) if form == SignatureForm::Ecdsa => {
                ecdsa_der(&signature).ok_or_else(|| "the token made no ECDSA signature".to_owned())
            }
            Ok(Reply::Signed(signature)) => Ok(signature),
            Ok(Reply::Missing) => Err(missing(&self.token.label())),
            Ok(Reply::PinNeeded) => {
                Err(format!("token '{}': it asks for the PIN again", self.token.label()))
            }
            Ok(Reply::Failed(reason)) | Err(reason) => Err(reason),
            Ok(_) => Err("token host: unexpected reply".into()),
        };
        if let Err(reason) = &signed {
            tracing::error!("PKCS#11: no signature: {reason}");
            if self.tokens.fault().is_some() {
                // The run loop handles the signal, and its caller finds the fault.
                let _ = raise(Signal::SIGTERM);
            }
        }
        signed
    }
}

/// Converts the two numbers of a token's signature, one behind the other, to DER.
pub(super) fn ecdsa_der(signature: &[u8]) -> Option<Vec<u8>> {
    /// The length of a signature with P-521.
    const LONGEST: usize = 132;
    if signature.is_empty() || !signature.len().is_multiple_of(2) || signature.len() > LONGEST {
        return None;
    }
    let (r, s) = signature.split_at_checked(signature.len() / 2)?;
    let content = [integer(r)?, integer(s)?].concat();
    let length = u8::try_from(content.len()).ok()?;
    let mut der = vec![0x30];
    if length >= 0x80 {
        der.push(0x81);
    }
    der.push(length);
    der.extend(content);
    Some(der)
}

/// Returns the DER of a positive number.
fn integer(bytes: &[u8]) -> Option<Vec<u8>> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let number = bytes.get(zeros..)?;
    let high = number.first().is_none_or(|byte| *byte >= 0x80);
    let mut der = vec![0x02, u8::try_from(number.len()).ok()?.checked_add(high.into())?];
    der.extend(high.then_some(0));
    der.extend_from_slice(number);
    Some(der)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ecdsa_signature_becomes_two_positive_numbers() {
        assert_eq!(ecdsa_der(&[1, 2]), Some(vec![0x30, 6, 2, 1, 1, 2, 1, 2]));
        // Leading zeros go, and a number with its highest bit set gets one.
        let der = [0x30, 8, 2, 2, 0, 0x80, 2, 2, 1, 0];
        assert_eq!(ecdsa_der(&[0, 0x80, 1, 0]), Some(der.to_vec()));
        assert_eq!(ecdsa_der(&[0, 0, 0, 1]), Some(vec![0x30, 6, 2, 1, 0, 2, 1, 1]));
        let long = ecdsa_der(&[0xff; 132]).unwrap();
        assert_eq!((long.len(), &long[..5]), (141, &[0x30, 0x81, 138, 2, 67][..]));
        for wrong in [&[][..], &[1], &[1; 133], &[1; 134]] {
            assert_eq!(ecdsa_der(wrong), None, "{}", wrong.len());
        }
    }
}
