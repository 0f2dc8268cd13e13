//! Builds a [`Context`] from the operator's options.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::time_provider::DefaultTimeProvider;
use rustls::{Error, InconsistentKeys, SupportedProtocolVersion};
use x509_parser::prelude::X509Version;

use super::context::Context;
use super::error::TlsConfigError;
use super::external::ExternalKey;
use super::options::{
    ClientCertificates, ClientTlsOptions, CommonTlsOptions, Pem, ServerTlsOptions, TlsVersion,
};
use super::secp521r1::SECP521R1;
use super::trust::{self, Trust};
use super::{key, pem, suites, weak_rsa};

pub(super) fn client(options: ClientTlsOptions) -> Result<Context, TlsConfigError> {
    let common = options.common;
    if common.ca.is_none() && common.peer_fingerprints.is_empty() {
        return Err(TlsConfigError::new(
            "ca",
            "missing; name the file with the CA that signed the server's certificate",
        ));
    }
    context(common, ClientCertificates::Require)
}

pub(super) fn server(options: ServerTlsOptions) -> Result<Context, TlsConfigError> {
    let common = options.common;
    if common.cert.is_none() {
        return Err(TlsConfigError::new(
            "cert",
            "missing; a server needs `cert` and `key` (easyrsa build-server-full makes both)",
        ));
    }
    let anonymous = common.ca.is_none() && common.peer_fingerprints.is_empty();
    if anonymous && options.client_certificates != ClientCertificates::None {
        return Err(TlsConfigError::new(
            "ca",
            "missing; name the file with the CA that signs clients' certificates, or say \
             `verify-client-cert none`",
        ));
    }
    context(common, options.client_certificates)
}

fn context(
    options: CommonTlsOptions,
    client_certificates: ClientCertificates,
) -> Result<Context, TlsConfigError> {
    let mut warnings = Vec::new();
    let time = options.time.clone().unwrap_or_else(|| Arc::new(DefaultTimeProvider));
    let now = time
        .current_time()
        .and_then(|time| i64::try_from(time.as_secs()).ok())
        .ok_or_else(|| TlsConfigError::new("clock", "the system's time cannot be read; set it"))?;
    let provider = Arc::new(provider(&options, &mut warnings)?);
    let versions = versions(&options, &provider)?;
    let own = own(&options, &provider, now, &mut warnings)?;
    let profile = options.profile;
    let algorithms = weak_rsa::algorithms(profile, provider.signature_verification_algorithms);
    let verify = (options.verify.clone(), profile);
    let fingerprints = options.peer_fingerprints.clone();
    let trust = match &options.ca {
        Some(ca) => {
            let crl = (options.crl.as_ref(), options.known_crl.as_ref());
            let trust = Trust::new(ca, crl, verify, algorithms, now, &mut warnings)?;
            Some(trust.with_fingerprints(fingerprints))
        }
        None if !fingerprints.is_empty() => {
            Some(Trust::of_fingerprints(fingerprints, verify, algorithms))
        }
        None => None,
    };
    if let (Some(trust), Some(own), Some(cert), Some(ca)) =
        (&trust, &own, &options.cert, &options.ca)
        && let Ok(seconds) = u64::try_from(now)
        && !trust.leads_to(&own.cert, UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    {
        warnings.push(format!(
            "{}: our certificate is not signed by an authority in {}: the other end refuses it, unless it \
             has another ca",
            cert.origin, ca.origin
        ));
    }
    let trust = trust.map(Arc::new);
    Ok(Context { provider, algorithms, versions, time, own, trust, client_certificates, warnings })
}

fn provider(
    options: &CommonTlsOptions,
    warnings: &mut Vec<String>,
) -> Result<CryptoProvider, TlsConfigError> {
    let mut provider = default_provider();
    // Last, because it is the slowest. OpenSSL accepts it by default too.
    provider.kx_groups.push(SECP521R1);
    let old = suites::choose("tls-cipher", options.tls12_ciphers.as_deref(), false, warnings)?;
    let new = suites::choose("tls-ciphersuites", options.tls13_ciphers.as_deref(), true, warnings)?;
    provider.cipher_suites = new.into_iter().chain(old).collect();
    if let Some(list) = &options.groups {
        provider.kx_groups = suites::groups(list, warnings)?;
    }
    Ok(provider)
}

fn versions(
    options: &CommonTlsOptions,
    provider: &CryptoProvider,
) -> Result<Vec<&'static SupportedProtocolVersion>, TlsConfigError> {
    let min = options.min_version.unwrap_or(TlsVersion::V1_2);
    let max = options.max_version.unwrap_or(TlsVersion::V1_3);
    let all =
        [(TlsVersion::V1_3, &rustls::version::TLS13), (TlsVersion::V1_2, &rustls::version::TLS12)];
    let versions: Vec<_> = all
        .into_iter()
        .filter(|(version, _)| (min..=max).contains(version))
        .map(|(_, version)| version)
        .filter(|version| {
            provider.cipher_suites.iter().any(|suite| suite.version().version == version.version)
        })
        .filter(|version| {
            provider.kx_groups.iter().any(|group| group.usable_for_version(version.version))
        })
        .collect();
    if min > max {
        return Err(TlsConfigError::new(
            "tls-version-min",
            "above `tls-version-max`, which leaves no version; 1.2 and 1.3 are supported",
        ));
    }
    if versions.is_empty()
        && !provider.cipher_suites.iter().any(|suite| suite.tls13().is_none())
        && max == TlsVersion::V1_2
    {
        return Err(TlsConfigError::new(
            "tls-cipher",
            "no suite in it is supported for TLS 1.2, and tls-version-max excludes TLS 1.3; remove one of \
             the two",
        ));
    }
    if versions.is_empty() {
        return Err(TlsConfigError::new(
            "tls-groups",
            "none of these can be used with the TLS versions allowed; add X25519",
        ));
    }
    Ok(versions)
}

fn own(
    options: &CommonTlsOptions,
    provider: &CryptoProvider,
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<Option<Arc<CertifiedKey>>, TlsConfigError> {
    let (cert, key) = match (&options.cert, &options.key) {
        (None, None) => return Ok(None),
        (Some(cert), Some(key)) => (cert, key),
        (Some(cert), None) if options.key_holder.is_some() => {
            return held(options, cert, provider, now, warnings).map(Some);
        }
        (Some(_), None) => {
            return Err(TlsConfigError::new("key", "missing; `cert` is of no use without its key"));
        }
        (None, Some(_)) => {
            return Err(TlsConfigError::new(
                "cert",
                "missing; `key` is of no use without its certificate",
            ));
        }
    };
    let chain = chain(options, cert, now, warnings)?;
    let der = key::load(key, options.key_password.as_ref())?;
    let signer = provider.key_provider.load_private_key(der).map_err(|error| {
        TlsConfigError::new(
            &key.origin,
            format!(
                "this kind of key cannot be used ({error}); use RSA of 2048 bits or more, P-256, P-384 \
                 or Ed25519"
            ),
        )
    })?;
    let own = CertifiedKey::new(chain.into_iter().map(CertificateDer::from).collect(), signer);
    match own.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(_)) => {
            return Err(TlsConfigError::new(
                &key.origin,
                format!(
                    "this key is not that of the certificate in {}; name the pair",
                    cert.origin
                ),
            ));
        }
        Err(error) => {
            return Err(TlsConfigError::new(&cert.origin, format!("cannot be used: {error}")));
        }
    }
    Ok(Some(Arc::new(own)))
}

/// Reads our certificate and the intermediates to send.
fn chain(
    options: &CommonTlsOptions,
    cert: &Pem,
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<Vec<Vec<u8>>, TlsConfigError> {
    let mut chain = pem::certificates(cert)?;
    if let Some(leaf) = chain.first() {
        check_own(cert, leaf, now, warnings)?;
    }
    if let Some(extra) = &options.extra_certs {
        chain.extend(pem::certificates(extra)?);
    }
    Ok(chain)
}

/// Returns our certificate with a key that is not in this process.
fn held(
    options: &CommonTlsOptions,
    cert: &Pem,
    provider: &CryptoProvider,
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<Arc<CertifiedKey>, TlsConfigError> {
    let chain = chain(options, cert, now, warnings)?;
    let leaf = chain.first().and_then(|leaf| trust::parse(leaf));
    let key = leaf
        .zip(options.key_holder.clone())
        .and_then(|(leaf, holder)| ExternalKey::new(&leaf, holder, provider.secure_random));
    let key = key.ok_or_else(|| {
        TlsConfigError::new(
            &cert.origin,
            "this kind of key cannot be used outside of this process; use RSA, P-256, P-384 or P-521",
        )
    })?;
    let chain = chain.iter().cloned().map(CertificateDer::from).collect();
    Ok(Arc::new(CertifiedKey::new(chain, Arc::new(key))))
}

/// Checks our own certificate. Refuses it if our TLS library cannot use it, and warns if peers will
/// refuse it.
fn check_own(
    cert: &Pem,
    der: &[u8],
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<(), TlsConfigError> {
    let parsed = trust::parse(der).ok_or_else(|| {
        TlsConfigError::new(&cert.origin, "the certificate is damaged; copy it again")
    })?;
    if parsed.version() != X509Version::V3 {
        return Err(TlsConfigError::new(&cert.origin, trust::VERSION_REMEDY));
    }
    let mut warn = |text: String| warnings.push(format!("{}: {text}", cert.origin));
    if let Some(hash) = trust::weak_signature(&parsed) {
        warn(format!("our certificate is signed with {hash}; peers refuse that: reissue it"));
    }
    let (from, to) =
        (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    if now > to {
        warn(format!("our certificate expired at {}; renew it", trust::date(to)));
    }
    if now < from {
        warn(format!(
            "our certificate is valid from {} and the clock says {}; set the clock",
            trust::date(from),
            trust::date(now)
        ));
    }
    Ok(())
}
