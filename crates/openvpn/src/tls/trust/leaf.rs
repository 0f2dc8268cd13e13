//! The requirements on a certificate itself, independent of its path to a CA.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ExtendedKeyUsage, ParsedExtension};
use x509_parser::prelude::X509Version;
use x509_parser::public_key::PublicKey;

use super::{NOT_DER, Path, Trust, parse, subject};
use crate::tls::error::{CertificateError, CertificateProblem as Problem};
use crate::tls::fingerprint::with_colons;
use crate::tls::identity::PeerIdentity;
use crate::tls::options::{CertProfile, NameType, RemoteCertTls};

/// The minimum size of an RSA modulus in bits, except under weak profiles.
const MIN_RSA_BITS: usize = 2048;
/// The minimum size of an RSA modulus in bits under weak profiles.
const MIN_WEAK_RSA_BITS: usize = 1024;

impl Trust {
    /// Performs the checks that depend only on the peer's own certificate.
    pub(super) fn check_leaf(
        &self,
        leaf: &CertificateDer<'_>,
        peer_is_server: bool,
    ) -> Result<PeerIdentity, CertificateError> {
        let Some(parsed) = parse(leaf) else {
            let detail = NOT_DER.into();
            let subject = String::new();
            return Err(CertificateError { problem: Problem::Malformed, subject, detail });
        };
        let identity =
            PeerIdentity::new(&parsed, leaf, &self.verify.name_fields).map_err(|bad| {
                CertificateError {
                    problem: Problem::BadName,
                    subject: subject(&parsed),
                    detail: format!("{}; reissue it with a plain name", bad.0),
                }
            })?;
        check_form(&parsed, self.profile)?;
        self.check_fingerprint(&parsed, &identity)?;
        self.check_usage(&parsed, &identity.subject, peer_is_server)?;
        Ok(identity)
    }

    /// Checks `peer-fingerprint`.
    pub(super) fn check_fingerprint(
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
        // With a path to a CA, the library checks this.
        if self.pinned && certificate.version() != X509Version::V3 {
            return refuse(Problem::Version, VERSION_REMEDY.into());
        }
        Ok(())
    }

    /// Checks KeyUsage, and the requirements of `remote-cert-tls` beyond the library's check of
    /// ExtendedKeyUsage.
    pub(super) fn check_usage(
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
            // As in openssl and OpenVPN, the first bit of the extension is the highest one here.
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

    /// Checks `ns-cert-type`.
    pub(super) fn check_netscape_type(
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

    /// Checks `verify-hash`.
    pub(super) fn check_issuer(
        &self,
        identity: &PeerIdentity,
        path: &Path,
    ) -> Result<(), CertificateError> {
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

    pub(super) fn check_name(&self, identity: &PeerIdentity) -> Result<(), CertificateError> {
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

/// Returns the size of an RSA modulus in bits; `None` for other kinds of key.
pub(super) fn rsa_bits(certificate: &X509Certificate<'_>) -> Option<usize> {
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

/// Returns the name of a signature algorithm that is too weak.
pub(in crate::tls) fn weak_signature(certificate: &X509Certificate<'_>) -> Option<&'static str> {
    match certificate.signature_algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" | "1.2.840.10040.4.3" | "1.3.14.3.2.29" => {
            Some("SHA-1")
        }
        "1.2.840.113549.1.1.4" => Some("MD5"),
        "1.2.840.113549.1.1.2" => Some("MD2"),
        _ => None,
    }
}

/// Checks the signature algorithm and the key of a peer's certificate. The path validation checks
/// its version.
pub(super) fn check_form(
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
                "it is signed with {hash}, which can be forged; reissue it with SHA-256 (`openssl \
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

pub(super) fn least_bits(profile: CertProfile) -> usize {
    match profile {
        CertProfile::Preferred => MIN_RSA_BITS,
        CertProfile::Legacy | CertProfile::Insecure => MIN_WEAK_RSA_BITS,
    }
}

/// Describes the weakness of a certificate that a weak profile accepts.
pub(in crate::tls) fn weakness(certificate: &X509Certificate<'_>) -> Option<String> {
    let bits = rsa_bits(certificate).filter(|bits| *bits < MIN_RSA_BITS);
    match (bits, weak_signature(certificate)) {
        (Some(bits), _) => Some(format!("an RSA key of {bits} bits")),
        (None, Some(hash)) if !is_self_issued(certificate) => Some(format!("a {hash} signature")),
        (None, _) => None,
    }
}

pub(super) fn is_self_issued(certificate: &X509Certificate<'_>) -> bool {
    certificate.subject().as_raw() == certificate.issuer().as_raw()
}

pub(in crate::tls) const VERSION_REMEDY: &str = "it is an X.509 version 1 certificate, which cannot say what it \
    may be used for; reissue it as version 3: give `openssl x509 -req` an -extfile, or use Easy-RSA";
