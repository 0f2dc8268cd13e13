//! The certificate on a token and the token's PIN, before the program runs (`pkcs11-id`).

#[cfg(test)]
mod tests;

use std::sync::Arc;

use adit_openvpn::config::{Pkcs11, Pkcs11Provider};
use adit_openvpn::tls::{self, CertificateQuery, KeyHolder, Pem};
use adit_runtime::fault::Fault;
use adit_runtime::say;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use zeroize::Zeroizing;

use super::key_files::{Ask, Terminal};
use crate::token_host::{
    Certificate, FilePin, Login, PinSource, SeenToken, TokenKey, Tokens, last_try, missing,
    wrong_file,
};

/// The number of PINs that may be entered by hand. Tokens lock themselves after three wrong ones.
const PIN_TRIES: u32 = 3;

/// The number of times that a person is asked to insert a token.
const INSERTIONS: u32 = 10;

/// The characters in a line of PEM.
const LINE: usize = 64;

/// Returns the certificate, and the key on its token. `pin` is that of `askpass`; `waits` says whether the program may
/// wait for a person while it runs.
pub(super) fn open(
    tokens: &Tokens,
    wanted: &Pkcs11,
    pin: Option<Zeroizing<String>>,
    waits: bool,
    ask: &mut dyn Ask,
) -> Result<(Pem, Arc<dyn KeyHolder>), Fault> {
    let mut opening = Opening { tokens, pin, ask };
    let (certificate, token) = opening.choose(wanted)?;
    if token.login {
        opening.log_in(&token)?;
    }
    let entry = if waits { opening.ask.pin_entry() } else { None };
    let file = FilePin::new(opening.pin);
    let pins = PinSource { keypad: token.keypad, file, entry };
    let key = TokenKey::new(tokens, &certificate, pins)?;
    let origin = format!("token '{}'", token.token.label());
    Ok((Pem::new(origin, pem(&certificate.der).into_bytes()), Arc::new(key)))
}

struct Opening<'a> {
    tokens: &'a Tokens,
    /// The PIN in a file.
    pin: Option<Zeroizing<String>>,
    ask: &'a mut dyn Ask,
}

impl Opening<'_> {
    /// Chooses the certificate. Asks to insert its token if that is not there.
    fn choose(&mut self, wanted: &Pkcs11) -> Result<(Certificate, SeenToken), Fault> {
        let mut query = wanted.query.clone();
        let mut insertions = INSERTIONS;
        loop {
            let (tokens, certificates) = self.look(query.as_ref())?;
            let base64 = |certificate: &Certificate| BASE64_STANDARD.encode(&certificate.der);
            let shown = certificates.iter().map(|found| (found.id().to_string(), base64(found)));
            self.ask.show_tokens(shown.collect());
            let Some(query) = &query else {
                for found in &certificates {
                    say!(1, "PKCS#11: certificate on a token: {}", found.id());
                }
                let entered = self.ask.token_certificate()?;
                let parsed = CertificateQuery::parse(entered.trim());
                query = Some(parsed.map_err(|problem| {
                    Fault::operator(format!(
                        "pkcs11-id-management: {problem}: enter an id that --show-pkcs11-ids prints"
                    ))
                })?);
                continue;
            };
            let fits = |found: &&Certificate| query.fits(&found.id(), &found.label);
            let fitting: Vec<&Certificate> = certificates.iter().filter(fits).collect();
            let there = tokens.iter().any(|seen| query.fits_token(&seen.token.name()));
            match (fitting.as_slice(), query.token_label()) {
                ([found], _) => {
                    let token = tokens.into_iter().find(|seen| seen.token == *found.token());
                    let token =
                        token.ok_or_else(|| Fault::ours("a certificate without a token"))?;
                    return Ok(((*found).clone(), token));
                }
                ([first, second, ..], _) => {
                    return Err(Fault::operator(format!(
                        "pkcs11-id: several certificates fit, such as '{}' and '{}': write one of these",
                        first.id(),
                        second.id()
                    )));
                }
                ([], Some(label)) if !there && insertions > 0 && self.ask.can_answer() => {
                    insertions = insertions.saturating_sub(1);
                    let label = label.to_owned();
                    if !self.ask.insert_token(&label)? {
                        return Err(Fault::operator(missing(&label)));
                    }
                }
                ([], Some(label)) if !there => return Err(Fault::environment(missing(label))),
                ([], _) => {
                    return Err(Fault::operator(
                        "pkcs11-id: no certificate fits: --show-pkcs11-ids MODULE prints those that are there",
                    ));
                }
            }
        }
    }

    /// Looks for tokens and certificates. Logs in to tokens that show their certificates only then.
    fn look(
        &mut self,
        query: Option<&CertificateQuery>,
    ) -> Result<(Vec<SeenToken>, Vec<Certificate>), Fault> {
        let may_fit = |seen: &SeenToken| query.is_none_or(|q| q.fits_token(&seen.token.name()));
        let (tokens, certificates) = self.tokens.scan()?;
        let hidden: Vec<_> = tokens.iter().filter(|seen| seen.hidden && may_fit(seen)).collect();
        if hidden.is_empty() {
            return Ok((tokens, leaves(certificates)));
        }
        for seen in hidden {
            self.log_in(seen)?;
        }
        let (tokens, certificates) = self.tokens.scan()?;
        Ok((tokens, leaves(certificates)))
    }

    /// Logs in to a token.
    fn log_in(&mut self, seen: &SeenToken) -> Result<(), Fault> {
        let label = seen.token.label();
        let tokens = self.tokens;
        let login =
            |pin, by_hand| tokens.login(&seen.token, pin, by_hand).map_err(Fault::environment);
        if seen.keypad || self.pin.is_some() {
            if seen.keypad {
                say!(1, "PKCS#11: token '{label}': enter the PIN on its keypad");
            }
            let pin = self.pin.clone().filter(|_| !seen.keypad);
            return match login(pin, false)? {
                Login::Done => Ok(()),
                Login::Missing => Err(Fault::environment(missing(&label))),
                Login::LastTry => Err(Fault::operator(last_try(&label))),
                Login::Wrong { .. } if seen.keypad => {
                    Err(Fault::operator(format!("token '{label}': the PIN is wrong")))
                }
                Login::Wrong { .. } => Err(Fault::operator(wrong_file(&label))),
            };
        }
        for _ in 0..PIN_TRIES {
            if !self.ask.can_answer() {
                return Err(Fault::operator(format!(
                    "token '{label}' needs its PIN, and there is no terminal: write the PIN into a file and add askpass FILE, or add \
                     management-query-passwords"
                )));
            }
            let pin = self.ask.token_pin(&label)?;
            match login(Some(pin), true)? {
                Login::Done => return Ok(()),
                Login::Missing => return Err(Fault::environment(missing(&label))),
                Login::Wrong { last: true } | Login::LastTry => {
                    return Err(Fault::operator(format!(
                        "token '{label}': the PIN is wrong, and one more wrong PIN locks the token: make sure of the PIN \
                         before you start again"
                    )));
                }
                Login::Wrong { last: false } => {
                    tracing::warn!("token '{label}': the PIN is wrong");
                }
            }
        }
        Err(Fault::operator(format!("token '{label}': the PIN is wrong")))
    }
}

/// Removes the certificates of authorities that issued others, as openvpn does.
fn leaves(certificates: Vec<Certificate>) -> Vec<Certificate> {
    let names: Vec<_> = certificates.iter().map(|found| tls::names(&found.der)).collect();
    let issued_others = |at: usize| {
        names.get(at).and_then(Option::as_ref).is_some_and(|own| {
            let mut others = names.iter().enumerate().filter(|(other, _)| *other != at);
            others.any(|(_, other)| {
                other.as_ref().is_some_and(|other| {
                    other.issuer_der == own.subject_der && other.issuer_der != other.subject_der
                })
            })
        })
    };
    let kept: Vec<bool> = (0..names.len()).map(|at| !issued_others(at)).collect();
    certificates.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(found, _)| found).collect()
}

fn pem(der: &[u8]) -> String {
    let base64 = BASE64_STANDARD.encode(der);
    let lines = base64.as_bytes().chunks(LINE).map(String::from_utf8_lossy);
    let lines: Vec<_> = lines.collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Prints the ids of the certificates on tokens (`--show-pkcs11-ids`), as openvpn does.
pub(super) fn show(module: Option<&str>, private: bool) -> Result<(), Fault> {
    let module = module.unwrap_or("p11-kit-proxy.so").to_owned();
    let provider = Pkcs11Provider { module, protected: false, private };
    let wanted = Pkcs11 { providers: vec![provider], query: None, pin_cache: None, extra: None };
    let tokens = Tokens::load(&wanted, None, None)?;
    let mut opening = Opening { tokens: &tokens, pin: None, ask: &mut Terminal };
    let (_, certificates) = opening.look(None)?;
    println!(
        "\nThe following objects are available for use.\nEach object shown below may be used as parameter to\n\
         --pkcs11-id option please remember to use single quote mark."
    );
    for found in certificates {
        println!("\n{}", shown(&found));
    }
    Ok(())
}

/// Formats a certificate for [`show`].
fn shown(found: &Certificate) -> String {
    let names = tls::names(&found.der).unwrap_or_default();
    // The certificate is the token's own text.
    let subject: String =
        names.subject.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    format!(
        "Certificate\n       DN:             {subject}\n       Serial:         {}\n       Serialized id:  {}",
        names.serial,
        found.id()
    )
}
