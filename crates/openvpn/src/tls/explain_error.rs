//! Explanations of the errors that path validation returns.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use rustls::pki_types::UnixTime;
use webpki::Error as E;
use x509_parser::certificate::X509Certificate;

use super::error::CertificateProblem as Problem;
use super::identity::format_name;
use super::trust::{Anchor, VERSION_REMEDY, date};

/// Returns the check that refused `leaf`, and the remedy. `stale` is one of our CAs, which would be
/// accepted as its issuer if its validity period were different.
pub(super) fn sentence(
    error: &E,
    leaf: &X509Certificate<'_>,
    stale: Option<&Anchor>,
    now: UnixTime,
) -> (Problem, String) {
    of_dates(error, leaf, now)
        .or_else(|| of_revocation(error))
        .or_else(|| of_issuer(error, leaf, stale, now))
        .unwrap_or_else(|| of_form(error))
}

fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

fn of_dates(error: &E, leaf: &X509Certificate<'_>, now: UnixTime) -> Option<(Problem, String)> {
    let clock = date(seconds(now));
    Some(match error {
        E::CertExpired { not_after, .. } => {
            let at = seconds(*not_after);
            let which = if leaf.validity().not_after.timestamp() == at {
                "it"
            } else {
                "an intermediate of its chain"
            };
            (
                Problem::Expired,
                format!(
                    "{which} expired at {}; renew it, or set this machine's clock if {clock} is wrong",
                    date(at)
                ),
            )
        }
        E::CertNotValidYet { not_before, .. } => (
            Problem::NotYetValid,
            format!(
                "it is valid from {} only; one of the two clocks is off: this machine's says {clock}",
                date(seconds(*not_before))
            ),
        ),
        E::CrlExpired { next_update, .. } => (
            Problem::CrlExpired,
            format!(
                "our revocation list expired at {}; make a new one (`easyrsa gen-crl`), or set the \
                 clock if {clock} is wrong",
                date(seconds(*next_update))
            ),
        ),
        _ => return None,
    })
}

fn of_revocation(error: &E) -> Option<(Problem, String)> {
    Some(match error {
        E::CertRevoked => {
            (Problem::Revoked, "it, or an intermediate of its chain, is revoked".into())
        }
        E::UnknownRevocationStatus => (
            Problem::CrlMissing,
            "our `crl-verify` file has no list of every CA in its chain; add the missing list".into(),
        ),
        E::IssuerNotCrlSigner
        | E::InvalidCrlSignatureForPublicKey
        | E::UnsupportedCrlSignatureAlgorithmContext(_)
        | E::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_) => (
            Problem::CrlMissing,
            "our revocation list is not validly signed by its CA (or with SHA-1, or the CA may not \
             sign lists); make a new one (`easyrsa gen-crl`)"
                .into(),
        ),
        _ => return None,
    })
}

fn of_issuer(
    error: &E,
    leaf: &X509Certificate<'_>,
    stale: Option<&Anchor>,
    now: UnixTime,
) -> Option<(Problem, String)> {
    Some(match (error, stale) {
        (E::UnknownIssuer, Some(anchor)) => (
            Problem::CaNotValidNow,
            format!(
                "its CA is valid from {} to {} and this machine's clock says {}: renew the CA, or set \
                 the clock",
                date(anchor.not_before),
                date(anchor.not_after),
                date(seconds(now))
            ),
        ),
        (E::UnknownIssuer, None) => (
            Problem::UnknownCa,
            format!(
                "it was issued by \"{}\", which our `ca` does not lead to; give both sides the same \
                 CA, or add the missing intermediate to the peer's `cert` file",
                format_name(leaf.issuer()).unwrap_or_default()
            ),
        ),
        (E::InvalidSignatureForPublicKey, _) => (
            Problem::UnknownCa,
            "its signature is not that of our CA though the CA's name is the same; give both sides \
             certificates of one CA"
                .into(),
        ),
        (
            E::PathLenConstraintViolated | E::NameConstraintViolation | E::EndEntityUsedAsCa,
            _,
        ) => (
            Problem::Constraint,
            format!("a CA of its chain was not allowed to issue it ({error:?})"),
        ),
        (
            E::MaximumPathDepthExceeded
            | E::MaximumPathBuildCallsExceeded
            | E::MaximumSignatureChecksExceeded
            | E::MaximumNameConstraintComparisonsExceeded,
            _,
        ) => (Problem::ChainTooLarge, "its chain is too deep; issue it nearer to the root".into()),
        _ => return None,
    })
}

fn of_form(error: &E) -> (Problem, String) {
    match error {
        E::CaUsedAsEndEntity => (
            Problem::IsCa,
            "it is a CA's certificate (CA:TRUE); issue the peer one of its own".into(),
        ),
        E::RequiredEkuNotFoundContext(_) | E::EmptyEkuExtension => (
            Problem::ExtendedKeyUsage,
            "its extended key usage is for the other role; issue servers certificates with serverAuth \
             and clients with clientAuth"
                .into(),
        ),
        E::UnsupportedCertVersion => (Problem::Version, VERSION_REMEDY.into()),
        E::UnsupportedCriticalExtension => (
            Problem::CriticalExtension,
            "it has a critical extension that is not known here; issue it without".into(),
        ),
        E::UnsupportedSignatureAlgorithmContext(_)
        | E::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => (
            Problem::WeakKey,
            "its kind of key or signature is not supported; use RSA of 2048 bits or more, P-256, P-384 \
             or Ed25519 with SHA-256 or better"
                .into(),
        ),
        other => (Problem::Malformed, format!("it cannot be read ({other:?}); reissue it")),
    }
}
