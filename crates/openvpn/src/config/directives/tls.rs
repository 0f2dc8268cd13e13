//! Directives for certificates, keys, TLS, the control channel's wrapping, and ciphers.

use std::time::Duration;

use super::Field::Path;
use super::InConnection::Shared;
use super::{Roles, Spec, one, source, used};
use crate::config::ConfigError;
use crate::config::options::{AskPass, NameKind, TlsVersion, Usage, VerifyName, Wrap};
use crate::config::raw_config::RawConfig;
use crate::config::reader::Directive;
use crate::tls::{CertProfile, ClientCertificates, IssuerHash, NameField};

/// The maximum number of fields in `x509-username-field`.
const MAX_NAME_FIELDS: usize = 8;

/// The seconds in a day.
const DAY: u64 = 24 * 60 * 60;

pub(super) const TABLE: &[Spec] = &[
    source("ca", |raw| &mut raw.options.tls.ca).tls().doc("The authorities whose certificates are accepted."),
    one("capath", "DIRECTORY", Path(|raw| &mut raw.options.tls.ca_path))
        .tls()
        .doc("A directory of authorities and revocation lists, named by their hashes."),
    source("cert", |raw| &mut raw.cert).tls().doc("This end's certificate."),
    source("key", |raw| &mut raw.key).tls().doc("The certificate's private key."),
    source("pkcs12", |raw| &mut raw.pkcs12)
        .tls()
        .doc("This end's certificate with its key and its authorities, instead of cert, key and ca."),
    source("extra-certs", |raw| &mut raw.extra)
        .tls()
        .doc("Intermediate certificates to send with this end's certificate."),
    used("crl-verify", "FILE | DIRECTORY dir", 1..=2, crl_verify)
        .or_block()
        .tls()
        .doc(
            "The authority's list of revoked certificates, or a directory with files named by their serial \
             numbers.",
        ),
    used("peer-fingerprint", "AA:BB:...", 1..=1, peer_fingerprint)
        .or_block()
        .tls()
        .doc("The SHA-256 fingerprints of the certificates that are accepted, with or without an authority."),
    used("verify-hash", "AA:BB:... [SHA1|SHA256]", 1..=2, verify_hash)
        .or_block()
        .tls()
        .doc("Deprecated: the fingerprints of the authorities that may sign a peer's certificate."),
    used("dh", "none", 1..=1, dh)
        .or_block()
        .doc("Parameters for a key exchange that adit does not use; the file must exist."),
    used("askpass", "[FILE]", 0..=1, |raw, d| {
        raw.options.tls.askpass = Some(match d.get(0) {
            None | Some("stdin") => AskPass::Prompt,
            Some(_) => AskPass::File(d.path(0, raw.base.as_deref())),
        });
        Ok(())
    })
    .tls()
    .doc("The password of an encrypted key, from a file or the terminal."),
    used("verify-x509-name", "NAME [subject|name|name-prefix]", 1..=2, verify_x509_name)
        .tls()
        .doc("The name that a peer's certificate must have."),
    used("remote-cert-tls", "server|client", 1..=1, |raw, d| {
        raw.options.tls.peer_usage = Some(server_or_client(d)?);
        Ok(())
    })
    .tls()
    .doc("The purpose that a peer's certificate must have."),
    used("remote-cert-eku", "\"TLS Web Server Authentication\"", 1..=1, remote_cert_eku)
        .tls()
        .doc("The extended key usage that a peer's certificate must have."),
    used("remote-cert-ku", "[BITS ...]", 0..=15, |raw, d| {
        raw.options.tls.key_usage = Some(key_usage(d)?);
        Ok(())
    })
    .tls()
    .doc("The key usage that a peer's certificate must have."),
    used("ns-cert-type", "server|client", 1..=1, |raw, d| {
        raw.options.tls.netscape_usage = Some(server_or_client(d)?);
        raw.warn(
            d,
            "is deprecated: the extended key usage is checked, or the old Netscape type where there \
             is none; write remote-cert-tls",
        );
        Ok(())
    })
    .tls()
    .doc("Deprecated: the extended key usage, or the Netscape type in certificates without one."),
    used("verify-client-cert", "none|optional|require", 0..=1, verify_client_cert)
        .roles(Roles::SERVER)
        .doc("Whether a client needs a certificate (require), or is identified by its password alone."),
    used("client-cert-not-required", "", 0..=0, |raw, d| {
        raw.options.tls.client_certificates = ClientCertificates::None;
        raw.warn(d, "is deprecated: write verify-client-cert none");
        Ok(())
    })
    .roles(Roles::SERVER)
    .doc("Deprecated: verify-client-cert none."),
    used("x509-username-field", "FIELD [FIELD ...]", 1..=MAX_NAME_FIELDS, |raw, d| {
        raw.options.tls.name_fields = name_fields(d)?;
        Ok(())
    })
    .tls()
    .doc(
        "The fields of a certificate that name its owner instead of the common name: an attribute of \
         the subject, serialNumber, ext:subjectAltName or ext:issuerAltName.",
    ),
    used("tls-auth", "FILE [0|1]", 1..=2, tls_auth)
        .or_block()
        .tls()
        .in_connection(Shared)
        .doc("Authenticates control packets with a shared key."),
    used("tls-crypt", "FILE", 1..=2, |raw, d| {
        if d.args.len() > 1 {
            // A common slip, because tls-auth has one. openvpn ignores it too.
            raw.warn(d, "has no key direction: its second argument has no effect");
        }
        let key = d.source("tls-crypt", raw.base.as_deref());
        wrap(raw, d, key.map(Wrap::TlsCrypt))
    })
    .or_block()
    .tls()
    .in_connection(Shared)
    .doc("Encrypts control packets with a shared key."),
    used("tls-crypt-v2", "FILE [force-cookie|allow-noncookie]", 1..=2, tls_crypt_v2)
        .or_block()
        .tls()
        .in_connection(Shared)
        .doc("Encrypts control packets with a separate key for each client."),
    used("tls-crypt-v2-max-age", "DAYS", 1..=1, |raw, d| {
        let days: u64 = d.number(0, 1..=i32::MAX.unsigned_abs().into())?;
        raw.max_key_age = Some(Duration::from_secs(days.saturating_mul(DAY)));
        Ok(())
    })
    .doc("The age at which a server refuses clients' tls-crypt-v2 keys."),
    used("key-direction", "0|1", 1..=1, |raw, d| {
        raw.key_direction = Some(d.number(0, 0..=1)?);
        Ok(())
    })
    .in_connection(Shared)
    .doc("The half of the tls-auth or secret key that each direction uses."),
    used("secret", "FILE [0|1]", 1..=2, secret)
        .or_block()
        .doc("A static key instead of TLS, for a point-to-point tunnel."),
    used("allow-deprecated-insecure-static-crypto", "", 0..=0, |_, _| Ok(()))
        .doc("Makes openvpn 2.7 accept secret, which adit always accepts."),
    used("tls-version-min", "VERSION [or-highest]", 1..=2, |raw, d| {
        match version(d)? {
            Some(version) => raw.options.tls.min_version = version,
            None => raw.warn(d, "means 1.2: older versions are broken and not offered"),
        }
        Ok(())
    })
    .tls()
    .doc("The oldest version of TLS, at least 1.2."),
    used("tls-version-max", "VERSION", 1..=1, tls_version_max)
        .tls()
        .doc("The newest version of TLS."),
    used("tls-cipher", "NAME:NAME", 1..=1, |raw, d| {
        raw.options.tls.cipher_list = Some(list(d)?);
        Ok(())
    })
    .tls()
    .doc("The cipher suites of TLS 1.2."),
    used("tls-ciphersuites", "NAME:NAME", 1..=1, |raw, d| {
        raw.options.tls.cipher_suites = Some(list(d)?);
        Ok(())
    })
    .tls()
    .doc("The cipher suites of TLS 1.3."),
    used("tls-groups", "NAME:NAME", 1..=1, |raw, d| {
        raw.options.tls.groups = Some(list(d)?);
        Ok(())
    })
    .tls()
    .doc("The groups of TLS's key exchange."),
    used("ecdh-curve", "NAME:NAME", 1..=1, |raw, d| {
        // `tls-groups`, the newer directive, takes precedence.
        if !raw.seen.contains_key("tls-groups") {
            raw.options.tls.groups = Some(list(d)?);
        }
        Ok(())
    })
    .doc("The older name of tls-groups."),
    used("tls-cert-profile", "preferred", 1..=1, tls_cert_profile)
        .doc("The required strength of certificates' keys and signatures."),
    used("data-ciphers", "AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305", 1..=1, data_ciphers)
        .doc("The ciphers that may be negotiated, in order of preference."),
    used("ncp-ciphers", "AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305", 1..=1, data_ciphers)
        .doc("The older name of data-ciphers."),
    used("data-ciphers-fallback", "AES-256-GCM", 1..=1, |raw, d| {
        raw.fallback = Some((d.arg(0).to_owned(), d.location.clone()));
        Ok(())
    })
    .doc("The cipher for peers that do not negotiate one."),
    used("cipher", "AES-256-GCM", 1..=1, |raw, d| {
        raw.cipher = Some((d.arg(0).to_owned(), d.location.clone()));
        Ok(())
    })
    .doc("The cipher of a static key; otherwise the one announced to an old peer."),
    used("auth", "SHA256", 1..=1, |raw, d| {
        raw.options.session.auth = digest(d)?;
        Ok(())
    })
    .doc("The digest for tls-auth and for ciphers that do not authenticate (SHA1)."),
    used("key-method", "2", 1..=1, |raw, d| {
        if d.arg(0) != "2" {
            return Err(d.error("only the second method exists", "remove it, at both ends"));
        }
        raw.warn(d, "has no effect: there is no other method");
        Ok(())
    })
    .doc("The method of key negotiation; there is only one."),
    used("providers", "NAME [NAME ...]", 1..=usize::MAX, providers)
        .doc("The OpenSSL providers to load; the names of OpenSSL's own have no effect."),
];

fn crl_verify(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    match d.get(1) {
        None => {}
        Some("dir") => {
            raw.options.tls.crl_directory = Some(d.path(0, raw.base.as_deref()));
            return Ok(());
        }
        Some(other) => {
            return Err(d.error(
                format!("\"{other}\" is not known"),
                "write dir behind a directory of serial numbers, and nothing behind a list",
            ));
        }
    }
    raw.options.tls.crl =
        d.source("crl-verify", raw.base.as_deref()).or(raw.options.tls.crl.take());
    Ok(())
}

fn dh(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    if d.arg(0) == "none" {
        raw.options.tls.dh = None;
        return Ok(());
    }
    raw.options.tls.dh = d.source("dh", raw.base.as_deref());
    raw.warn(
        d,
        "has no effect: it is for key exchanges over finite fields, and TLS here uses elliptic \
         curves; dh none says so",
    );
    Ok(())
}

fn peer_fingerprint(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    for fingerprint in fingerprints(d, false)? {
        if !raw.options.tls.peer_fingerprints.contains(&fingerprint) {
            raw.options.tls.peer_fingerprints.push(fingerprint);
        }
    }
    Ok(())
}

/// Handles `verify-hash`. As in openvpn, a block contains SHA-256 hashes, and a single argument is
/// a SHA-1 hash. Repeated directives add to the list.
fn verify_hash(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let sha1 = match (d.inline.is_some(), d.get(1)) {
        (true, _) | (_, Some("SHA256")) => false,
        (_, None | Some("SHA1")) => true,
        (_, Some(other)) => {
            return Err(d.error(format!("\"{other}\" is not known"), "write SHA256 or SHA1"));
        }
    };
    let new = fingerprints(d, sha1)?;
    let better = if sha1 {
        ": a second certificate with the same SHA-1 hash can be made; write SHA256 behind one of that"
    } else {
        "; put that certificate alone into ca, or write peer-fingerprint"
    };
    raw.warn(d, &format!("is deprecated{better}"));
    let all = raw.options.tls.issuer.get_or_insert(IssuerHash { sha1, fingerprints: Vec::new() });
    if all.sha1 != sha1 {
        return Err(d.error(
            "there is one of the other kind already",
            "write all of them as SHA256: openssl x509 -fingerprint -sha256 -noout -in FILE",
        ));
    }
    all.fingerprints.extend(new);
    Ok(())
}

/// Parses one fingerprint from an argument, or one or more from the lines of a block.
fn fingerprints(d: &Directive, sha1: bool) -> Result<Vec<String>, ConfigError> {
    let (name, flag, len) = if sha1 { ("SHA-1", "sha1", 20) } else { ("SHA-256", "sha256", 32) };
    let remedy =
        format!("write what this prints: openssl x509 -fingerprint -{flag} -noout -in FILE");
    let text = d.inline.as_ref().map_or(d.arg(0), |text| text.as_str());
    let lines = text.lines().map(str::trim);
    let mut found = Vec::new();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        let Some(fingerprint) = fingerprint(line, len) else {
            return Err(d.error(format!("\"{line}\" is not a {name} fingerprint"), remedy));
        };
        found.push(fingerprint);
    }
    if found.is_empty() {
        return Err(d.error("there is no fingerprint in it: no peer could be let in", remedy));
    }
    Ok(found)
}

/// Parses `len` bytes in hex with colons between them, and returns them as lower-case hex without
/// colons.
fn fingerprint(text: &str, len: usize) -> Option<String> {
    let parts: Vec<&str> = text.split(':').collect();
    let whole = parts.len() == len
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()));
    whole.then(|| parts.concat().to_ascii_lowercase())
}

fn server_or_client(d: &Directive) -> Result<Usage, ConfigError> {
    match d.arg(0) {
        "server" => Ok(Usage::Server),
        "client" => Ok(Usage::Client),
        other => Err(d.error(format!("\"{other}\" is not known"), "write server or client")),
    }
}

fn remote_cert_eku(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.options.tls.peer_usage = Some(match d.arg(0) {
        "TLS Web Server Authentication" | "serverAuth" | "1.3.6.1.5.5.7.3.1" => Usage::Server,
        "TLS Web Client Authentication" | "clientAuth" | "1.3.6.1.5.5.7.3.2" => Usage::Client,
        other => {
            return Err(d.error(
                format!("key usage \"{other}\" is not supported"),
                "use remote-cert-tls server or client",
            ));
        }
    });
    Ok(())
}

/// Parses the hexadecimal values of `remote-cert-ku`, in which 80 is the first bit of the
/// extension.
fn key_usage(d: &Directive) -> Result<Vec<u8>, ConfigError> {
    let value = |text: &String| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        match u32::from_str_radix(digits, 16) {
            Ok(bits @ 1..=0xff) => u8::try_from(bits).ok(),
            _ => None,
        }
        .ok_or_else(|| {
            d.error(
                format!("\"{text}\" is not a key usage from 1 to ff: no certificate could have it"),
                "write a0 for the key usage digitalSignature and keyEncipherment, 80 for the first \
                 alone, or nothing to demand that there is one",
            )
        })
    };
    d.args.iter().map(value).collect()
}

/// Parses a TLS version; `None` for those older than 1.2.
fn version(d: &Directive) -> Result<Option<TlsVersion>, ConfigError> {
    match d.arg(0) {
        "1.0" | "1.1" => Ok(None),
        "1.2" => Ok(Some(TlsVersion::V12)),
        "1.3" => Ok(Some(TlsVersion::V13)),
        _ if d.get(1) == Some("or-highest") => Ok(Some(TlsVersion::V13)),
        other => Err(d.error(format!("there is no TLS version \"{other}\""), "write 1.2 or 1.3")),
    }
}

fn list(d: &Directive) -> Result<Vec<String>, ConfigError> {
    let names: Vec<String> =
        d.arg(0).split(':').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.is_empty() {
        return Err(d.error("the list is empty", "remove it for the default"));
    }
    Ok(names)
}

fn verify_x509_name(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let kind = match d.get(1) {
        None | Some("subject") => NameKind::Subject,
        Some("name") => NameKind::Name,
        Some("name-prefix") => NameKind::NamePrefix,
        Some(other) => {
            return Err(
                d.error(format!("\"{other}\" is not known"), "write subject, name or name-prefix")
            );
        }
    };
    if d.arg(0).is_empty() {
        return Err(d.error(
            "the name is empty",
            "write the common name of the server's certificate, and name",
        ));
    }
    raw.options.tls.verify_name = Some(VerifyName { name: d.arg(0).to_owned(), kind });
    Ok(())
}

fn verify_client_cert(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.options.tls.client_certificates = match d.get(0) {
        None | Some("require") => ClientCertificates::Require,
        Some("optional") => ClientCertificates::Optional,
        Some("none") => ClientCertificates::None,
        Some(other) => {
            let remedy = "write none, optional or require";
            return Err(d.error(format!("\"{other}\" is not known"), remedy));
        }
    };
    Ok(())
}

/// Parses `x509-username-field`. As in openvpn, the name of an attribute may be written in lower case.
fn name_fields(d: &Directive) -> Result<Vec<NameField>, ConfigError> {
    let field = |name: &str| match name {
        "ext:subjectAltName" => Ok(NameField::SubjectMail),
        "ext:issuerAltName" => Ok(NameField::IssuerMail),
        "serialNumber" => Ok(NameField::Serial),
        name => {
            let upper = name.to_ascii_uppercase();
            let written = name.bytes().any(|b| b.is_ascii_uppercase());
            let name = if written { name } else { upper.as_str() };
            NameField::attribute(name).ok_or_else(|| {
                d.error(
                    format!("\"{name}\" is no field of a certificate"),
                    "write CN, emailAddress, OU or another attribute, or ext:subjectAltName",
                )
            })
        }
    };
    let fields: Vec<NameField> = d.args.iter().map(|name| field(name)).collect::<Result<_, _>>()?;
    let common_name = fields == [NameField::Attribute("CN".into())];
    Ok(if common_name { Vec::new() } else { fields })
}

fn tls_auth(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    key_direction(raw, d)?;
    let key = d.source("tls-auth", raw.base.as_deref());
    wrap(raw, d, key.map(|key| Wrap::TlsAuth { key, direction: None }))
}

/// Sets the key direction from the second argument of `tls-auth` or `secret`.
fn key_direction(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    if d.args.len() > 1 {
        raw.key_direction = Some(d.number(1, 0..=1)?);
    }
    Ok(())
}

fn wrap(raw: &mut RawConfig, d: &Directive, new: Option<Wrap>) -> Result<(), ConfigError> {
    let Some(new) = new else { return Ok(()) };
    if raw.options.wrap != Wrap::None
        && std::mem::discriminant(&raw.options.wrap) != std::mem::discriminant(&new)
    {
        return Err(d.error(
            "there already is another of tls-auth and tls-crypt",
            "keep the one that the other end has",
        ));
    }
    raw.options.wrap = new;
    Ok(())
}

fn tls_crypt_v2(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    match d.get(1) {
        None | Some("allow-noncookie") => {}
        Some("force-cookie") => raw.force_cookie = true,
        Some(other) => {
            return Err(d.error(
                format!("\"{other}\" is not known"),
                "write force-cookie or allow-noncookie",
            ));
        }
    }
    if let Some(key) = d.source("tls-crypt-v2", raw.base.as_deref()) {
        raw.crypt_v2 = Some((key, d.location.clone()));
    }
    Ok(())
}

fn secret(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    key_direction(raw, d)?;
    raw.secret = d.source("secret", raw.base.as_deref()).or(raw.secret.take());
    Ok(())
}

fn tls_version_max(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let Some(version) = version(d)? else {
        return Err(
            d.error("versions older than TLS 1.2 are broken and not offered", "write 1.2 or 1.3")
        );
    };
    raw.options.tls.max_version = Some(version);
    Ok(())
}

fn tls_cert_profile(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.options.tls.profile = match d.arg(0) {
        "legacy" => CertProfile::Legacy,
        "preferred" => CertProfile::Preferred,
        "suiteb" => {
            raw.warn(
                d,
                "means preferred: RSA of 2048 bits or more is accepted besides P-256 and P-384",
            );
            CertProfile::Preferred
        }
        "insecure" => {
            raw.warn(
                d,
                "accepts signatures with SHA-1, which can be forged; keys below 1024 bits and \
                 signatures with MD5 are refused all the same",
            );
            CertProfile::Insecure
        }
        other => {
            return Err(d.error(
                format!("profile \"{other}\" is not supported"),
                "write legacy, which is the default, or preferred",
            ));
        }
    };
    Ok(())
}

fn data_ciphers(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    raw.data_ciphers = Some((d.arg(0).to_owned(), d.location.clone()));
    Ok(())
}

/// Returns a digest's name as OpenVPN spells it.
fn digest(d: &Directive) -> Result<String, ConfigError> {
    const KNOWN: [&str; 6] = ["SHA1", "SHA224", "SHA256", "SHA384", "SHA512", "MD5"];
    let asked = d.arg(0).to_ascii_uppercase();
    let plain: String = asked.strip_prefix("RSA-").unwrap_or(&asked).replace('-', "");
    if plain == "NONE" {
        return Ok("none".into());
    }
    match KNOWN.iter().find(|known| **known == plain) {
        Some(known) => Ok((*known).to_owned()),
        None => Err(d.error(
            format!("digest {} is not supported", d.arg(0)),
            "write SHA1, SHA256, SHA384 or SHA512, the same at both ends",
        )),
    }
}

fn providers(raw: &mut RawConfig, d: &Directive) -> Result<(), ConfigError> {
    let known = |name: &String| matches!(name.as_str(), "default" | "legacy" | "base");
    if let Some(other) = d.args.iter().find(|name| !known(name)) {
        return Err(d.error(
            format!("provider \"{other}\" is not supported: there is no OpenSSL to load it"),
            "use cert and key with files",
        ));
    }
    raw.warn(d, "has no effect: it chooses parts of OpenSSL, which is not used");
    Ok(())
}
