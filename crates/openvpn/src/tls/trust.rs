//! The requirements on peers' certificates: the CAs, the revocation lists, and the checks in the
//! order in which they run.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

mod authority;
mod leaf;

use rustls::DistinguishedName;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::error::{CertificateError, CertificateProblem as Problem, TlsConfigError};
use super::explain_error;
use super::facts::SharedDer;
use super::fingerprint::fingerprint;
use super::identity::{PeerIdentity, format_name};
use super::options::{CertProfile, Pem, VerifyOptions};
use super::pem;
use super::revocation::{RevocationLists, read_revocation_lists};
pub(super) use authority::Anchor;
use authority::{read_authority, subject_der};
use leaf::check_form;
pub(super) use leaf::{VERSION_REMEDY, weak_signature, weakness};

/// The maximum number of certificates that a peer may present.
const MAX_CHAIN: usize = 8;
/// The maximum number of bytes of certificates that a peer may present.
const MAX_CHAIN_BYTES: usize = 32 * 1024;

/// The explanation for a certificate that cannot be read.
const NOT_DER: &str = "it is not valid DER";

/// The OIDs of server and client authentication in ExtendedKeyUsage, without tag and length.
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// A path from a peer's certificate to a CA.
struct Path {
    /// The subjects on the path.
    names: Vec<String>,
    /// The certificates on the path.
    certificates: Vec<SharedDer>,
    /// The SHA-1 and SHA-256 hashes of the certificate that signed the peer's, if `verify-hash` is
    /// configured. If several certificates may have signed it, these are the hashes of each.
    issuer: Vec<[String; 2]>,
}

/// The CAs, revocation lists and requirements against which peers' certificates are checked.
#[derive(Debug)]
pub(super) struct Trust {
    anchors: Vec<Anchor>,
    /// The certificates in the CA file that are not self-issued. They can be intermediates on a
    /// path, but not its trust anchor.
    intermediates: Vec<CertificateDer<'static>>,
    revocation_lists: Option<RevocationLists>,
    /// The policy for a certificate without a revocation list from its authority.
    unlisted: UnknownStatusPolicy,
    verify: VerifyOptions,
    profile: CertProfile,
    /// `peer-fingerprint`; empty if not configured.
    fingerprints: Vec<String>,
    /// Whether there are no CAs and only the fingerprint decides.
    pinned: bool,
    algorithms: &'static [&'static dyn SignatureVerificationAlgorithm],
    pub(super) hints: Vec<DistinguishedName>,
}

/// Formats a time as `2026-01-31 12:00:00 UTC`.
pub(super) fn date(seconds: i64) -> String {
    match time::OffsetDateTime::from_unix_timestamp(seconds) {
        Ok(t) => format!("{} {:02}:{:02}:{:02} UTC", t.date(), t.hour(), t.minute(), t.second()),
        Err(_) => format!("{seconds} s after 1970"),
    }
}

pub(super) fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Some(certificate),
        _ => None,
    }
}

pub(super) fn subject(certificate: &X509Certificate<'_>) -> String {
    format_name(certificate.subject()).unwrap_or_default()
}

impl Trust {
    pub(super) fn new(
        ca: &Pem,
        (crl, known_crl): (Option<&Pem>, Option<&Pem>),
        (verify, profile): (VerifyOptions, CertProfile),
        algorithms: WebPkiSupportedAlgorithms,
        now: i64,
        warnings: &mut Vec<String>,
    ) -> Result<Self, TlsConfigError> {
        let mut anchors = Vec::new();
        let mut others = Vec::new();
        let mut hints = Vec::new();
        for der in pem::certificates(ca)? {
            let (anchor, self_issued) = read_authority(ca, &der, profile, now, warnings)?;
            let name = DistinguishedName::from(subject_der(&der));
            if !hints.iter().any(|have: &DistinguishedName| have.as_ref() == name.as_ref()) {
                hints.push(name);
            }
            if self_issued {
                anchors.push(anchor);
            } else {
                others.push((anchor, CertificateDer::from(der)));
            }
        }
        // If there is no root, the configured intermediate certificates are the trust anchors.
        let intermediates = if anchors.is_empty() {
            anchors.extend(others.into_iter().map(|(anchor, _)| anchor));
            Vec::new()
        } else {
            others.into_iter().map(|(_, der)| der).collect()
        };
        let mut revocation_lists: Option<RevocationLists> = None;
        for crl in crl.into_iter().chain(known_crl) {
            let found = read_revocation_lists(crl, now, warnings)?;
            revocation_lists.get_or_insert_default().extend(found);
        }
        let unlisted = match crl {
            Some(_) => UnknownStatusPolicy::Deny,
            None => UnknownStatusPolicy::Allow,
        };
        let fingerprints = Vec::new();
        Ok(Self {
            anchors,
            intermediates,
            revocation_lists,
            unlisted,
            verify,
            profile,
            fingerprints,
            pinned: false,
            algorithms: algorithms.all,
            hints,
        })
    }

    /// Returns whether there is a path from our own certificate through the intermediates that we
    /// send to one of these CAs.
    pub(super) fn leads_to(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Some((leaf, sent)) = chain.split_first() else { return true };
        // Try both roles. For the wrong one, the search may end with a different error, which
        // proves nothing.
        ![true, false].into_iter().any(|server| {
            matches!(
                self.check_path(leaf, sent, server, now, true),
                Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey)
            )
        })
    }

    /// Requires a fingerprint in addition to a path to a CA.
    pub(super) fn with_fingerprints(mut self, fingerprints: Vec<String>) -> Self {
        self.fingerprints = fingerprints;
        self
    }

    /// Creates a trust that identifies peers only by the fingerprints of their certificates.
    pub(super) fn of_fingerprints(
        fingerprints: Vec<String>,
        (verify, profile): (VerifyOptions, CertProfile),
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self {
            anchors: Vec::new(),
            intermediates: Vec::new(),
            revocation_lists: None,
            unlisted: UnknownStatusPolicy::Deny,
            verify,
            profile,
            fingerprints,
            pinned: true,
            algorithms: algorithms.all,
            hints: Vec::new(),
        }
    }

    /// Checks whether the peer's chain is acceptable at `now`.
    pub(super) fn check(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        peer_is_server: bool,
        now: UnixTime,
    ) -> Result<PeerIdentity, CertificateError> {
        let refuse = |problem, subject: &str, detail: String| {
            Err(CertificateError { problem, subject: subject.to_owned(), detail })
        };
        let bytes = intermediates.iter().fold(leaf.len(), |sum, der| sum.saturating_add(der.len()));
        if intermediates.len() >= MAX_CHAIN || bytes > MAX_CHAIN_BYTES {
            return refuse(
                Problem::ChainTooLarge,
                "",
                format!(
                    "it came with {} others, {bytes} bytes in all; at most {MAX_CHAIN} and \
                     {MAX_CHAIN_BYTES} bytes are read: leave only its intermediates in the peer's `cert` \
                     file",
                    intermediates.len()
                ),
            );
        }
        let mut identity = self.check_leaf(leaf, peer_is_server)?;
        if self.pinned {
            self.check_name(&identity)?;
            return Ok(identity);
        }
        for der in intermediates {
            match parse(der) {
                // A root that the peer sends proves nothing and is not checked.
                Some(one) if one.subject().as_raw() == one.issuer().as_raw() => {}
                Some(one) => check_form(&one, self.profile)?,
                None => {
                    return refuse(
                        Problem::Malformed,
                        "",
                        "a certificate sent along with it is not valid DER".into(),
                    );
                }
            }
        }
        let path = self.check_path(leaf, intermediates, peer_is_server, now, false);
        let path = path.map_err(|error| {
            let stale = self.stale_anchor(&error, leaf, intermediates, peer_is_server, now);
            let (problem, detail) = match parse(leaf) {
                Some(parsed) => explain_error::sentence(&error, &parsed, stale, now),
                None => (Problem::Malformed, NOT_DER.into()),
            };
            CertificateError { problem, subject: identity.subject.clone(), detail }
        })?;
        self.check_issuer(&identity, &path)?;
        self.check_name(&identity)?;
        identity.issuers = path.names;
        identity.issuer_certificates = path.certificates;
        Ok(identity)
    }

    /// Finds a path to a trusted CA.
    fn check_path(
        &self,
        leaf: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        peer_is_server: bool,
        now: UnixTime,
        stale_too: bool,
    ) -> Result<Path, webpki::Error> {
        let end = EndEntityCert::try_from(leaf)?;
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let anchors: Vec<TrustAnchor<'_>> = self
            .anchors
            .iter()
            .filter(|anchor| stale_too || anchor.is_valid(seconds))
            .map(|anchor| anchor.anchor.clone())
            .collect();
        let mut intermediates: Vec<CertificateDer<'_>> = Vec::new();
        intermediates.extend(
            sent.iter().chain(&self.intermediates).map(|der| CertificateDer::from(der.as_ref())),
        );
        let found = self.revocation_lists.as_ref();
        let lists: Vec<&CertRevocationList<'_>> =
            found.iter().flat_map(|found| &found.lists).collect();
        let complete = found.is_none_or(RevocationLists::is_complete);
        let revocation = match found {
            Some(_) if complete || !lists.is_empty() => Some(
                // Loading already refuses a configuration without lists. If there still are none,
                // no peer may be accepted.
                RevocationOptionsBuilder::new(&lists)
                    .map_err(|_| webpki::Error::UnknownRevocationStatus)?
                    .with_depth(RevocationCheckDepth::Chain)
                    // If there are plain lists too, they decide about certificates that these lists
                    // do not cover.
                    .with_status_policy(if complete {
                        self.unlisted
                    } else {
                        UnknownStatusPolicy::Allow
                    })
                    .with_expiration_policy(ExpirationPolicy::Enforce)
                    .build(),
            ),
            _ => None,
        };
        // Require the extension only if it is present, because issuers usually lack it. The further
        // requirements of `remote-cert-tls` on the leaf have already been checked.
        let usage =
            KeyUsage::required_if_present(if peer_is_server { SERVER_AUTH } else { CLIENT_AUTH });
        let deny = self.unlisted == UnknownStatusPolicy::Deny;
        let check_plain = |path: &VerifiedPath<'_>| match found {
            Some(found) => found.check(path, self.algorithms, deny, now),
            None => Ok(()),
        };
        let path = end.verify_for_usage(
            self.algorithms,
            &anchors,
            &intermediates,
            now,
            usage,
            revocation,
            Some(&check_plain),
        )?;
        let steps: Vec<_> = path.intermediate_certificates().map(|step| step.der()).collect();
        let names = steps.iter().filter_map(|der| parse(der).map(|step| subject(&step)));
        let mut names: Vec<String> = names.collect();
        // The certificates of a CA that was reissued with the same key are the same anchor.
        let mut ends = self.anchors.iter().filter(|anchor| {
            let (have, found) = (&anchor.anchor, path.anchor());
            have.subject == found.subject
                && have.subject_public_key_info == found.subject_public_key_info
                && (stale_too || anchor.is_valid(seconds))
        });
        let issuer = match (steps.first(), &self.verify.issuer) {
            (_, None) => Vec::new(),
            (Some(der), Some(_)) => vec![[true, false].map(|sha1| fingerprint(sha1, der))],
            (None, Some(_)) => ends.clone().map(|anchor| anchor.fingerprints.clone()).collect(),
        };
        let mut certificates: Vec<SharedDer> =
            steps.iter().map(|der| SharedDer(der.as_ref().into())).collect();
        if let Some(anchor) = ends.next() {
            names.push(anchor.name.clone());
            certificates.push(anchor.der.clone());
        }
        Ok(Path { names, certificates, issuer })
    }

    /// Returns the CA whose validity period is the only obstacle to a path.
    fn stale_anchor(
        &self,
        error: &webpki::Error,
        leaf: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        peer_is_server: bool,
        now: UnixTime,
    ) -> Option<&Anchor> {
        let unknown = |error: &webpki::Error| matches!(error, webpki::Error::UnknownIssuer);
        if !unknown(error) {
            return None;
        }
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let stale = self.anchors.iter().find(|anchor| !anchor.is_valid(seconds))?;
        match self.check_path(leaf, sent, peer_is_server, now, true) {
            Err(again) if unknown(&again) => None,
            _ => Some(stale),
        }
    }
}
