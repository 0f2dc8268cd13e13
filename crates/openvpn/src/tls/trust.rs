//! What peers' certificates are held to: the CAs, the revocation lists, and the checks in order.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use rustls::DistinguishedName;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ExtendedKeyUsage, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Version};
use x509_parser::public_key::PublicKey;

use super::error::{CertificateError, CertificateProblem as Problem, TlsConfigError};
use super::explain;
use super::fingerprint::{fingerprint, with_colons};
use super::identity::{PeerIdentity, format_name};
use super::known::Known;
use super::options::{CertProfile, NameType, Pem, RemoteCertTls, VerifyOptions};
use super::pem;
use super::revocation::read_revocation_lists;
use super::seen::Remembering;

/// Most certificates a peer may present.
const MAX_CHAIN: usize = 8;
/// Most bytes of certificates a peer may present.
const MAX_CHAIN_BYTES: usize = 32 * 1024;
/// Smallest RSA modulus in bits, but for weak profiles.
const MIN_RSA_BITS: usize = 2048;
/// Smallest RSA modulus of weak profiles.
const MIN_WEAK_RSA_BITS: usize = 1024;

/// What is said of a certificate that cannot be read.
const NOT_DER: &str = "it is not valid DER";

/// OIDs of EKU server and client authentication, without tag and length.
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

#[derive(Debug)]
pub(super) struct Anchor {
    name: String,
    anchor: TrustAnchor<'static>,
    /// SHA-1 and SHA-256 of the certificate.
    fingerprints: [String; 2],
    pub(super) not_before: i64,
    pub(super) not_after: i64,
}

impl Anchor {
    fn is_valid(&self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// From a peer's certificate to a CA.
struct Path {
    /// The subjects on it.
    names: Vec<String>,
    /// SHA-1 and SHA-256 of the certificate that signed the peer's, where anybody asks for it; of
    /// several that can have done it, each.
    issuer: Vec<[String; 2]>,
}

/// The CAs, revocation lists and demands that peers are held to.
#[derive(Debug)]
pub(super) struct Trust {
    anchors: Vec<Anchor>,
    /// Certificates of the CA file that are not self-issued: steps on a path, not its end.
    intermediates: Vec<CertificateDer<'static>>,
    revocation_lists: Option<Vec<CertRevocationList<'static>>>,
    /// What of a certificate whose authority has no list here.
    unlisted: UnknownStatusPolicy,
    verify: VerifyOptions,
    profile: CertProfile,
    /// `peer-fingerprint`; empty: no such demand.
    fingerprints: Vec<String>,
    /// There are no CAs: the fingerprint alone decides.
    pinned: bool,
    algorithms: Vec<Remembering>,
    known: Known,
    pub(super) hints: Vec<DistinguishedName>,
}

/// `2026-01-31 12:00:00 UTC`.
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

/// Bits of an RSA modulus; `None` for other kinds of key.
fn rsa_bits(certificate: &X509Certificate<'_>) -> Option<usize> {
    match certificate.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => {
            let modulus = key.modulus;
            let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
            let lead = modulus.get(zeros).map_or(0, |byte| byte.leading_zeros());
            let bits = modulus.len().saturating_sub(zeros).saturating_mul(8);
            Some(bits.saturating_sub(usize::try_from(lead).unwrap_or(0)))
        }
        _ => None,
    }
}

/// The name of a signature algorithm that is too weak.
pub(super) fn weak_signature(certificate: &X509Certificate<'_>) -> Option<&'static str> {
    match certificate.signature_algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" | "1.2.840.10040.4.3" | "1.3.14.3.2.29" => {
            Some("SHA-1")
        }
        "1.2.840.113549.1.1.4" => Some("MD5"),
        "1.2.840.113549.1.1.2" => Some("MD2"),
        _ => None,
    }
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
        // Without a root, what the operator named is what is trusted.
        let intermediates = if anchors.is_empty() {
            anchors.extend(others.into_iter().map(|(anchor, _)| anchor));
            Vec::new()
        } else {
            others.into_iter().map(|(_, der)| der).collect()
        };
        let (mut lists, mut restored) = (None, Vec::new());
        for crl in crl.into_iter().chain(known_crl) {
            let found = read_revocation_lists(crl, now, warnings)?;
            lists.get_or_insert_with(Vec::new).extend(found.lists);
            restored.extend(found.restored);
        }
        let revocation_lists = lists;
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
            algorithms: Remembering::all(algorithms.all, restored),
            known: Known::default(),
            hints,
        })
    }

    /// Forgets the certificates that were let in.
    pub(super) fn rest(&self) {
        self.known.rest();
    }

    /// Whether a certificate of our own leads to one of these CAs, with the intermediates that we send.
    pub(super) fn leads_to(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let Some((leaf, sent)) = chain.split_first() else { return true };
        // The role that it is not for ends the search earlier, and says nothing.
        ![true, false].into_iter().any(|server| {
            matches!(
                self.check_path(leaf, sent, server, now, true),
                Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey)
            )
        })
    }

    /// Demands a fingerprint besides a path to a CA.
    pub(super) fn with_fingerprints(mut self, fingerprints: Vec<String>) -> Self {
        self.fingerprints = fingerprints;
        self
    }

    /// Peers known by their certificates' fingerprints alone.
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
            algorithms: Remembering::all(algorithms.all, Vec::new()),
            known: Known::default(),
            hints: Vec::new(),
        }
    }

    /// Whether the peer's chain is acceptable at `now`.
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
        let print = Known::print(leaf, peer_is_server);
        let known = self.known.get(&print);
        let is_new = known.is_none();
        let mut identity = match known {
            Some(identity) => identity,
            None => self.check_leaf(leaf, peer_is_server)?,
        };
        if self.pinned {
            self.check_name(&identity)?;
            return Ok(identity);
        }
        for der in intermediates {
            match parse(der) {
                // A root sent along proves nothing and is not looked at.
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
                Some(parsed) => explain::sentence(&error, &parsed, stale, now),
                None => (Problem::Malformed, NOT_DER.into()),
            };
            CertificateError { problem, subject: identity.subject.clone(), detail }
        })?;
        self.check_issuer(&identity, &path)?;
        self.check_name(&identity)?;
        // Only those with a path to a CA: nobody else can fill the places.
        if is_new {
            self.known.keep(print, &identity);
        }
        identity.issuers = path.names;
        Ok(identity)
    }

    /// What depends on nothing but the peer's own certificate.
    fn check_leaf(
        &self,
        leaf: &CertificateDer<'_>,
        peer_is_server: bool,
    ) -> Result<PeerIdentity, CertificateError> {
        let Some(parsed) = parse(leaf) else {
            let detail = NOT_DER.into();
            let subject = String::new();
            return Err(CertificateError { problem: Problem::Malformed, subject, detail });
        };
        let identity = PeerIdentity::new(&parsed, leaf).map_err(|bad| CertificateError {
            problem: Problem::BadName,
            subject: subject(&parsed),
            detail: format!("{}; issue it anew with a plain name", bad.0),
        })?;
        check_form(&parsed, self.profile)?;
        self.check_fingerprint(&parsed, &identity)?;
        self.check_usage(&parsed, &identity.subject, peer_is_server)?;
        Ok(identity)
    }

    /// `peer-fingerprint`.
    fn check_fingerprint(
        &self,
        certificate: &X509Certificate<'_>,
        identity: &PeerIdentity,
    ) -> Result<(), CertificateError> {
        let refuse = |problem, detail: String| {
            Err(CertificateError { problem, subject: identity.subject.clone(), detail })
        };
        if !(self.fingerprints.is_empty() && !self.pinned
            || self.fingerprints.contains(&identity.fingerprint))
        {
            return refuse(
                Problem::Fingerprint,
                format!(
                    "its fingerprint {} is not in `peer-fingerprint`; add it if this is the peer you mean",
                    with_colons(&identity.fingerprint)
                ),
            );
        }
        // On a path to a CA the library finds this out.
        if self.pinned && certificate.version() != X509Version::V3 {
            return refuse(Problem::Version, VERSION_REMEDY.into());
        }
        Ok(())
    }

    /// KeyUsage, and what `remote-cert-tls` demands beyond the library's check of ExtendedKeyUsage.
    fn check_usage(
        &self,
        certificate: &X509Certificate<'_>,
        subject: &str,
        peer_is_server: bool,
    ) -> Result<(), CertificateError> {
        let refuse = |problem, detail: String| {
            Err(CertificateError { problem, subject: subject.to_owned(), detail })
        };
        let mut key_usage = None;
        let mut extended = None;
        for extension in certificate.iter_extensions() {
            match extension.parsed_extension() {
                ParsedExtension::KeyUsage(usage) => key_usage = Some(usage),
                ParsedExtension::ExtendedKeyUsage(usage) => extended = Some(usage),
                _ => {}
            }
        }
        if let Some(usage) = key_usage {
            let fits = usage.digital_signature()
                || usage.key_agreement()
                || (peer_is_server && usage.key_encipherment());
            if !fits {
                return refuse(
                    Problem::KeyUsage,
                    format!(
                        "its KeyUsage ({usage}) does not allow TLS; issue it with \
                         keyUsage=digitalSignature"
                    ),
                );
            }
        }
        if let Some(wanted) = &self.verify.key_usage {
            let Some(usage) = key_usage else {
                return refuse(
                    Problem::KeyUsage,
                    "it has no KeyUsage, which `remote-cert-ku` demands; issue it with \
                     keyUsage=digitalSignature"
                        .into(),
                );
            };
            // The first bit of the extension is the highest here, as openssl and stock count.
            let [low, _] = usage.flags.to_le_bytes();
            let bits = low.reverse_bits();
            if !wanted.is_empty() && !wanted.iter().any(|want| bits & want == *want) {
                return refuse(
                    Problem::KeyUsage,
                    format!(
                        "its KeyUsage is {bits:02x} ({usage}), and no value of `remote-cert-ku` has only \
                         bits of that"
                    ),
                );
            }
        }
        self.check_netscape_type(certificate, subject, extended)?;
        let Some(demand) = self.verify.remote_cert_tls else { return Ok(()) };
        let (word, purpose) = match demand {
            RemoteCertTls::Server => ("server", "serverAuth"),
            RemoteCertTls::Client => ("client", "clientAuth"),
        };
        if key_usage.is_none() {
            return refuse(
                Problem::KeyUsage,
                format!(
                    "it has no KeyUsage, which `remote-cert-tls {word}` demands; issue it with \
                     keyUsage=digitalSignature (easyrsa build-{word}-full does) or leave the directive out"
                ),
            );
        }
        let has = extended.is_some_and(|usage| match demand {
            RemoteCertTls::Server => usage.server_auth,
            RemoteCertTls::Client => usage.client_auth,
        });
        if !has {
            return refuse(
                Problem::ExtendedKeyUsage,
                format!(
                    "`remote-cert-tls {word}` demands the extended key usage {purpose}, which it has \
                     not; issue it with extendedKeyUsage={purpose} (easyrsa build-{word}-full does)"
                ),
            );
        }
        Ok(())
    }

    /// `ns-cert-type`.
    fn check_netscape_type(
        &self,
        certificate: &X509Certificate<'_>,
        subject: &str,
        extended: Option<&ExtendedKeyUsage<'_>>,
    ) -> Result<(), CertificateError> {
        let Some(demand) = self.verify.netscape else { return Ok(()) };
        let by_type = certificate.iter_extensions().any(|extension| {
            match (extension.parsed_extension(), demand) {
                (ParsedExtension::NSCertType(kind), RemoteCertTls::Server) => kind.ssl_server(),
                (ParsedExtension::NSCertType(kind), RemoteCertTls::Client) => kind.ssl_client(),
                _ => false,
            }
        });
        let fits = match (extended, demand) {
            (Some(usage), RemoteCertTls::Server) => usage.server_auth,
            (Some(usage), RemoteCertTls::Client) => usage.client_auth,
            (None, _) => by_type,
        };
        let (word, purpose) = match demand {
            RemoteCertTls::Server => ("server", "serverAuth"),
            RemoteCertTls::Client => ("client", "clientAuth"),
        };
        if fits {
            return Ok(());
        }
        Err(CertificateError {
            problem: Problem::ExtendedKeyUsage,
            subject: subject.to_owned(),
            detail: format!(
                "`ns-cert-type {word}` demands the extended key usage {purpose} or the Netscape type \
                 {word}, and it has neither; issue it with extendedKeyUsage={purpose}"
            ),
        })
    }

    /// `verify-hash`.
    fn check_issuer(&self, identity: &PeerIdentity, path: &Path) -> Result<(), CertificateError> {
        let Some(wanted) = &self.verify.issuer else { return Ok(()) };
        let have = path.issuer.iter().map(|[sha1, sha256]| if wanted.sha1 { sha1 } else { sha256 });
        if have.clone().any(|have| wanted.fingerprints.contains(have)) {
            return Ok(());
        }
        let shown: Vec<String> = have.map(|have| with_colons(have)).collect();
        Err(CertificateError {
            problem: Problem::Fingerprint,
            subject: identity.subject.clone(),
            detail: format!(
                "the certificate that signed it has the fingerprint {}, which is not in `verify-hash`",
                shown.join(" or ")
            ),
        })
    }

    /// Finds a path to a CA that may be trusted.
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
        let lists: Vec<&CertRevocationList<'_>> = self.revocation_lists.iter().flatten().collect();
        let revocation = match self.revocation_lists {
            None => None,
            // An empty list of lists cannot be: loading refuses it. If it were, nobody may pass.
            Some(_) => Some(
                RevocationOptionsBuilder::new(&lists)
                    .map_err(|_| webpki::Error::UnknownRevocationStatus)?
                    .with_depth(RevocationCheckDepth::Chain)
                    .with_status_policy(self.unlisted)
                    .with_expiration_policy(ExpirationPolicy::Enforce)
                    .build(),
            ),
        };
        // "If present": issuers have no such extension as a rule. What `remote-cert-tls` demands of the
        // leaf beyond it is checked before.
        let usage =
            KeyUsage::required_if_present(if peer_is_server { SERVER_AUTH } else { CLIENT_AUTH });
        let algorithms: Vec<&dyn SignatureVerificationAlgorithm> =
            self.algorithms.iter().map(|algorithm| algorithm as _).collect();
        let path = end.verify_for_usage(
            &algorithms,
            &anchors,
            &intermediates,
            now,
            usage,
            revocation,
            None,
        )?;
        let steps: Vec<_> = path.intermediate_certificates().map(|step| step.der()).collect();
        let names = steps.iter().filter_map(|der| parse(der).map(|step| subject(&step)));
        let mut names: Vec<String> = names.collect();
        // A CA that was issued anew with the same key is the same anchor twice.
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
        names.extend(ends.next().map(|anchor| anchor.name.clone()));
        Ok(Path { names, issuer })
    }

    /// The CA outside its validity that alone keeps a path from being found.
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

    fn check_name(&self, identity: &PeerIdentity) -> Result<(), CertificateError> {
        let Some((wanted, kind)) = &self.verify.name else { return Ok(()) };
        let (matches, what, have) = match kind {
            NameType::Subject => (identity.subject == *wanted, "the subject", &identity.subject),
            NameType::Name => (identity.common_name == *wanted, "the name", &identity.common_name),
            NameType::NamePrefix => (
                identity.common_name.starts_with(wanted.as_str()),
                "a name beginning with",
                &identity.common_name,
            ),
        };
        if matches {
            return Ok(());
        }
        Err(CertificateError {
            problem: Problem::NameMismatch,
            subject: identity.subject.clone(),
            detail: format!(
                "`verify-x509-name` demands {what} \"{wanted}\" and it has \"{have}\": either this is \
                 not the peer you mean, or the directive is wrong"
            ),
        })
    }
}

/// Signature and key of a certificate that a peer sent. (Its version is checked on the path.)
fn check_form(
    certificate: &X509Certificate<'_>,
    profile: CertProfile,
) -> Result<(), CertificateError> {
    let refuse = |problem, detail: String| {
        Err(CertificateError { problem, subject: subject(certificate), detail })
    };
    let insecure = profile == CertProfile::Insecure;
    if let Some(hash) = weak_signature(certificate).filter(|hash| !(insecure && *hash == "SHA-1")) {
        return refuse(
            Problem::WeakSignature,
            format!(
                "it is signed with {hash}, which can be forged; issue it anew with SHA-256 (`openssl \
                 x509 -req -sha256 ...`, `easyrsa --digest=sha256`)"
            ),
        );
    }
    match rsa_bits(certificate) {
        Some(bits) if bits < least_bits(profile) => refuse(
            Problem::WeakKey,
            format!(
                "its RSA key has {bits} bits and {} is the least; make a new key and \
                 certificate",
                least_bits(profile)
            ),
        ),
        _ => Ok(()),
    }
}

fn least_bits(profile: CertProfile) -> usize {
    match profile {
        CertProfile::Preferred => MIN_RSA_BITS,
        CertProfile::Legacy | CertProfile::Insecure => MIN_WEAK_RSA_BITS,
    }
}

/// What is weak in a certificate that a weak profile accepts.
pub(super) fn weakness(certificate: &X509Certificate<'_>) -> Option<String> {
    let bits = rsa_bits(certificate).filter(|bits| *bits < MIN_RSA_BITS);
    match (bits, weak_signature(certificate)) {
        (Some(bits), _) => Some(format!("an RSA key of {bits} bits")),
        (None, Some(hash)) if !is_self_issued(certificate) => Some(format!("a {hash} signature")),
        (None, _) => None,
    }
}

fn is_self_issued(certificate: &X509Certificate<'_>) -> bool {
    certificate.subject().as_raw() == certificate.issuer().as_raw()
}

pub(super) const VERSION_REMEDY: &str = "it is an X.509 version 1 certificate, which cannot say what it \
    may be used for; issue it anew as version 3: give `openssl x509 -req` an -extfile, or use Easy-RSA";

/// One certificate of the `ca` file, and whether it is self-issued.
fn read_authority(
    ca: &Pem,
    der: &[u8],
    profile: CertProfile,
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<(Anchor, bool), TlsConfigError> {
    let fail = |text: String| TlsConfigError::new(&ca.origin, text);
    let parsed =
        parse(der).ok_or_else(|| fail("a certificate in it is damaged; copy it again".into()))?;
    let name = subject(&parsed);
    let least = least_bits(profile);
    if let Some(bits) = rsa_bits(&parsed).filter(|bits| *bits < least) {
        return Err(fail(format!(
            "the key of CA \"{name}\" has {bits} bits and {least} is the least; make a new CA"
        )));
    }
    if let Some(weakness) = weakness(&parsed) {
        warnings.push(format!(
            "{}: CA \"{name}\" has {weakness}, which can be broken: who breaks it can pose as any peer; \
             accepted by tls-cert-profile, make a new CA",
            ca.origin
        ));
    }
    if let Ok(Some(constraints)) = parsed.basic_constraints()
        && !constraints.value.ca
    {
        return Err(fail(format!(
            "\"{name}\" is not a CA's certificate; `ca` wants the one that signed the peers'"
        )));
    }
    let (not_before, not_after) =
        (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    if now > not_after {
        warnings.push(format!(
            "{}: CA \"{name}\" expired at {}; every peer that it signed will be refused",
            ca.origin,
            date(not_after)
        ));
    } else if now < not_before {
        warnings.push(format!(
            "{}: CA \"{name}\" is valid from {} and the clock says {}; peers will be refused",
            ca.origin,
            date(not_before),
            date(now)
        ));
    }
    let self_issued = is_self_issued(&parsed);
    let der = CertificateDer::from(der);
    let anchor = webpki::anchor_from_trusted_cert(&der)
        .map_err(|error| fail(format!("CA \"{name}\" cannot be used: {error:?}")))?
        .to_owned();
    let fingerprints = [true, false].map(|sha1| fingerprint(sha1, &der));
    Ok((Anchor { name, anchor, fingerprints, not_before, not_after }, self_issued))
}

fn subject_der(der: &[u8]) -> Vec<u8> {
    parse(der).map(|parsed| parsed.subject().as_raw().to_vec()).unwrap_or_default()
}
