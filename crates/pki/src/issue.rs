//! Creation of keys, certificates and revocation lists.

use std::time::{Duration, SystemTime};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use pkcs8::{LineEnding, PrivateKeyInfo, pkcs5::pbes2};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, RevocationReason, RevokedCertParams, SanType, SerialNumber,
};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::PkiError;

/// How long before their creation certificates become valid: one day, because clients' clocks may be slow.
const BACKDATED: Duration = Duration::from_secs(86_400);
const DAY: u64 = 86_400;
/// Rounds of PBKDF2-HMAC-SHA256 over a profile's password.
const PBKDF2_ROUNDS: u32 = 600_000;
/// The maximum lifetime of a certificate, in days: RFC 5280's times end with the year 9999, and openssl's earlier.
pub(crate) const MAX_DAYS: u32 = 36_500;

/// The purpose of a certificate.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    Server,
    Client,
}

/// A certificate and its key, both as PEM.
pub(crate) struct CertifiedKey {
    pub(crate) cert: String,
    pub(crate) key: Zeroizing<String>,
    /// The serial number in lower-case hex.
    pub(crate) serial: String,
    /// The end of validity, in seconds since 1970.
    pub(crate) expires: u64,
}

fn failed(error: impl std::fmt::Display) -> PkiError {
    PkiError::Crypto(error.to_string())
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], PkiError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| PkiError::Crypto("the system gives no random bytes".into()))?;
    Ok(bytes)
}

pub(crate) fn unix(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn date(seconds: u64) -> Result<OffsetDateTime, PkiError> {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or_else(|| {
            PkiError::BadSetting("clock", "the system's time is impossible; set it".into())
        })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

fn params(
    name: &str,
    days: u32,
    now: SystemTime,
) -> Result<(CertificateParams, String, u64), PkiError> {
    if days == 0 || days > MAX_DAYS {
        return Err(PkiError::BadSetting("days", format!("{days}: use 1 to {MAX_DAYS}")));
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let expires = unix(now).saturating_add(u64::from(days) * DAY);
    params.not_before = date(unix(now).saturating_sub(BACKDATED.as_secs()))?;
    params.not_after = date(expires)?;
    let mut serial: [u8; 16] = random()?;
    // A serial number is positive and has no leading zero byte, so its hex form is the same everywhere.
    serial[0] = (serial[0] & 0x3f) | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok((params, hex(&serial), expires))
}

pub(crate) fn authority(name: &str, days: u32, now: SystemTime) -> Result<CertifiedKey, PkiError> {
    let (mut params, serial, expires) = params(name, days, now)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let cert = params.self_signed(&key).map_err(failed)?.pem();
    Ok(CertifiedKey { cert, key: Zeroizing::new(key.serialize_pem()), serial, expires })
}

/// Creates a certificate for a web server with this name or address, signed by its own key. Returns both in PEM.
pub fn web_certificate(
    host: &str,
    days: u32,
    now: SystemTime,
) -> Result<(String, Zeroizing<String>), PkiError> {
    let (mut params, ..) = params(host, days, now)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.subject_alt_names = vec![match host.parse() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName(host.try_into().map_err(failed)?),
    }];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let cert = params.self_signed(&key).map_err(failed)?.pem();
    Ok((cert, Zeroizing::new(key.serialize_pem())))
}

/// A certificate authority that can sign.
pub(crate) struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(cert: &str, key: &str) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(key).map_err(failed)?;
        Ok(Self(Issuer::from_ca_cert_pem(cert, key).map_err(failed)?))
    }

    pub(crate) fn issue(
        &self,
        name: &str,
        purpose: Purpose,
        days: u32,
        now: SystemTime,
    ) -> Result<CertifiedKey, PkiError> {
        let (mut params, serial, expires) = params(name, days, now)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match purpose {
            Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Purpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let cert = params.signed_by(&key, &self.0).map_err(failed)?.pem();
        Ok(CertifiedKey { cert, key: Zeroizing::new(key.serialize_pem()), serial, expires })
    }

    /// Creates a revocation list of `revoked` (serial number in hex, time) that is valid until `until`.
    pub(crate) fn revocation_list<'a>(
        &self,
        number: u64,
        revoked: impl Iterator<Item = (&'a str, u64)>,
        until: u64,
        now: SystemTime,
    ) -> Result<String, PkiError> {
        let revoked_certs = revoked
            .map(|(serial, when)| {
                let serial =
                    unhex(serial).ok_or_else(|| failed("a serial number that is no hex"))?;
                Ok(RevokedCertParams {
                    serial_number: SerialNumber::from_slice(&serial),
                    revocation_time: date(when)?,
                    reason_code: Some(RevocationReason::Unspecified),
                    invalidity_date: None,
                })
            })
            .collect::<Result<Vec<_>, PkiError>>()?;
        let this = unix(now).saturating_sub(BACKDATED.as_secs());
        CertificateRevocationListParams {
            this_update: date(this)?,
            next_update: date(until.max(this.saturating_add(1)))?,
            crl_number: SerialNumber::from_slice(&positive(number)),
            issuing_distribution_point: None,
            revoked_certs,
            key_identifier_method: KeyIdMethod::Sha256,
        }
        .signed_by(&self.0)
        .and_then(|list| list.pem())
        .map_err(failed)
    }
}

/// Encodes a number in big endian, with a leading zero if DER would otherwise read it as negative.
fn positive(number: u64) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&number.to_be_bytes());
    let zeros = bytes.windows(2).take_while(|pair| pair[0] == 0 && pair[1] < 0x80).count();
    bytes.split_off(zeros)
}

/// Encrypts the PKCS#8 PEM `key` under `password` (PBES2, AES-256-CBC).
pub(crate) fn encrypt_key(key: &str, password: &str) -> Result<Zeroizing<String>, PkiError> {
    let (_, document) = pkcs8::SecretDocument::from_pem(key).map_err(failed)?;
    let info = PrivateKeyInfo::try_from(document.as_bytes()).map_err(failed)?;
    let (salt, iv): ([u8; 16], [u8; 16]) = (random()?, random()?);
    let scheme =
        pbes2::Parameters::pbkdf2_sha256_aes256cbc(PBKDF2_ROUNDS, &salt, &iv).map_err(failed)?;
    let encrypted = info.encrypt_with_params(scheme, password.as_bytes()).map_err(failed)?;
    encrypted.to_pem("ENCRYPTED PRIVATE KEY", LineEnding::LF).map_err(failed)
}
