//! The ids of certificates on tokens (`pkcs11-id`): the form of pkcs11-helper, and the URI of RFC 7512.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt::{self, Write as _};

use super::fingerprint::hex;

/// The maximum length of an id in a configuration.
const MAX_ID: usize = 4096;

/// The characters other than letters and digits that pkcs11-helper writes as they are.
const PLAIN: [u8; 4] = *b"=^_~";

/// The names with which a token describes itself, without the spaces at their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenName {
    /// The manufacturer.
    pub manufacturer: String,
    /// The model.
    pub model: String,
    /// The serial number.
    pub serial: String,
    /// The label, which its owner chooses.
    pub label: String,
}

/// The id of a certificate on a token, which is that of its key too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateId {
    /// The token.
    pub token: TokenName,
    /// The id on the token (`CKA_ID`).
    pub id: Vec<u8>,
}

impl fmt::Display for CertificateId {
    /// Formats the id as `--show-pkcs11-ids` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenName { manufacturer, model, serial, label } = &self.token;
        for name in [manufacturer, model, serial, label] {
            for byte in name.bytes() {
                if byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) {
                    f.write_char(char::from(byte))?;
                } else {
                    write!(f, "\\x{byte:02X}")?;
                }
            }
            f.write_char('/')?;
        }
        f.write_str(&hex(&self.id).to_ascii_uppercase())
    }
}

/// A description of the certificate to use, from `pkcs11-id`. What is `None` may be anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateQuery {
    manufacturer: Option<String>,
    model: Option<String>,
    serial: Option<String>,
    /// The label of the token.
    label: Option<String>,
    id: Option<Vec<u8>>,
    /// The label of the certificate.
    object: Option<String>,
}

impl CertificateQuery {
    /// Parses the argument of `pkcs11-id`.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_ID {
            return Err(format!("it is longer than {MAX_ID} bytes"));
        }
        match text.strip_prefix("pkcs11:") {
            Some(uri) => parse_uri(uri),
            None => parse_serialized(text),
        }
    }

    /// Returns the label of the token, if it is known.
    pub fn token_label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Returns whether a certificate with this label fits.
    pub fn fits(&self, certificate: &CertificateId, label: &str) -> bool {
        let CertificateId { token, id } = certificate;
        self.fits_token(token)
            && self.id.as_ref().is_none_or(|wanted| wanted == id)
            && self.object.as_deref().is_none_or(|wanted| wanted == label)
    }

    /// Returns whether the certificate may be on this token.
    pub fn fits_token(&self, token: &TokenName) -> bool {
        let pairs = [
            (&self.manufacturer, &token.manufacturer),
            (&self.model, &token.model),
            (&self.serial, &token.serial),
            (&self.label, &token.label),
        ];
        pairs.into_iter().all(|(wanted, name)| wanted.as_ref().is_none_or(|wanted| wanted == name))
    }
}

/// Parses `manufacturer/model/serial/label/ID`.
fn parse_serialized(text: &str) -> Result<CertificateQuery, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let [manufacturer, model, serial, label, id] = parts.as_slice() else {
        return Err("it does not have five parts with slashes between them".into());
    };
    let name = |part: &str| unescape(part, '\\', true);
    Ok(CertificateQuery {
        manufacturer: Some(name(manufacturer)?),
        model: Some(name(model)?),
        serial: Some(name(serial)?),
        label: Some(name(label)?),
        id: Some(unhex(id).ok_or_else(|| format!("\"{id}\" is not hexadecimal"))?),
        object: None,
    })
}

/// Parses the attributes of a URI, after its scheme.
fn parse_uri(text: &str) -> Result<CertificateQuery, String> {
    let mut query = CertificateQuery::default();
    if let Some((_, rest)) = text.split_once('?') {
        let name = rest.split(['=', '&']).next().unwrap_or_default();
        return Err(format!(
            "{name} behind the question mark is not supported: pkcs11-providers names the module, and askpass the \
             file with the PIN"
        ));
    }
    for attribute in text.split(';') {
        let (name, value) = attribute
            .split_once('=')
            .ok_or_else(|| format!("the attribute \"{attribute}\" has no value"))?;
        let place = match name {
            "manufacturer" => &mut query.manufacturer,
            "model" => &mut query.model,
            "serial" => &mut query.serial,
            "token" => &mut query.label,
            "object" => &mut query.object,
            "id" => {
                if query.id.replace(bytes(value, '%', false)?).is_some() {
                    return Err("the attribute id is there twice".into());
                }
                continue;
            }
            "type" if matches!(value, "cert" | "private") => continue,
            _ => return Err(format!("the attribute \"{attribute}\" is not supported")),
        };
        if place.replace(unescape(value, '%', false)?).is_some() {
            return Err(format!("the attribute {name} is there twice"));
        }
    }
    if query == CertificateQuery::default() {
        return Err("it describes no certificate".into());
    }
    Ok(query)
}

fn unescape(text: &str, mark: char, marked: bool) -> Result<String, String> {
    String::from_utf8(bytes(text, mark, marked)?).map_err(|_| format!("\"{text}\" is not UTF-8"))
}

/// Replaces `\xHH` (if `marked`) or `%HH` by the bytes.
fn bytes(text: &str, mark: char, marked: bool) -> Result<Vec<u8>, String> {
    let mut parts = text.split(mark);
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = if marked { part.strip_prefix('x') } else { Some(part) };
        let (digits, rest) = digits.and_then(|part| part.split_at_checked(2)).unwrap_or_default();
        let byte = unhex(digits).filter(|byte| byte.len() == 1);
        let byte = byte.ok_or_else(|| format!("\"{mark}{part}\" is no byte"))?;
        bytes.extend(byte);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Ok(bytes)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| match pair {
            [high, low] => Some((digit(high)? << 4) | digit(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(label: &str, id: &[u8]) -> CertificateId {
        let token = TokenName {
            manufacturer: "SoftHSM project".into(),
            model: "SoftHSM v2".into(),
            serial: "464453aa05c49c0d".into(),
            label: label.into(),
        };
        CertificateId { token, id: id.to_vec() }
    }

    #[test]
    fn ids_are_written_as_openvpn_prints_them() {
        // As openvpn 2.6.14 printed them with pkcs11-helper 1.29.
        let labels = [
            (
                " !\"#$%&'()*+,-./0123456789:;<=>",
                "\\x20\\x21\\x22\\x23\\x24\\x25\\x26\\x27\\x28\\x29\\x2A\\x2B\\x2C\\x2D\\x2E\\x2F0123456789\\x3A\\x3B\
                 \\x3C=\\x3E",
            ),
            ("?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[", "\\x3F\\x40ABCDEFGHIJKLMNOPQRSTUVWXYZ\\x5B"),
            ("\\]^_`abcdefghijklmnopqrstuvwxyz", "\\x5C\\x5D^_\\x60abcdefghijklmnopqrstuvwxyz"),
            ("{|}~", "\\x7B\\x7C\\x7D~"),
            ("Al/i ce \u{e9}", "Al\\x2Fi\\x20ce\\x20\\xC3\\xA9"),
        ];
        for (label, written) in labels {
            let id = certificate(label, &[0x0a, 0x1b]);
            let text =
                format!("SoftHSM\\x20project/SoftHSM\\x20v2/464453aa05c49c0d/{written}/0A1B");
            assert_eq!(id.to_string(), text);
            assert!(CertificateQuery::parse(&text).unwrap().fits(&id, "anything"));
        }
    }

    #[test]
    fn each_part_of_an_id_alone_tells_certificates_apart() {
        let id = certificate("office", &[1]);
        let query = CertificateQuery::parse(&id.to_string()).unwrap();
        assert_eq!(query.token_label(), Some("office"));
        let mut others = vec![certificate("office", &[2]), certificate("home", &[1])];
        for change in [
            |name: &mut TokenName| name.manufacturer.push('x'),
            |name: &mut TokenName| name.model.push('x'),
            |name: &mut TokenName| name.serial.push('x'),
        ] {
            let mut other = id.clone();
            change(&mut other.token);
            others.push(other);
        }
        assert!(query.fits(&id, ""));
        for other in others {
            assert!(!query.fits(&other, ""), "{other}");
        }
    }

    #[test]
    fn a_uri_describes_a_certificate_by_some_attributes() {
        let id = certificate("Al/i ce \u{e9}", &[0x0a, 0x1b]);
        let fits = |uri: &str| CertificateQuery::parse(uri).unwrap().fits(&id, "mine");
        assert!(fits("pkcs11:token=Al%2Fi%20ce%20%C3%A9;id=%0A%1B"));
        assert!(fits(
            "pkcs11:model=SoftHSM%20v2;manufacturer=SoftHSM%20project;serial=464453aa05c49c0d;type=cert"
        ));
        assert!(fits("pkcs11:object=mine"));
        for other in ["pkcs11:object=other", "pkcs11:id=%0a", "pkcs11:token=x", "pkcs11:serial=1"] {
            assert!(!fits(other), "{other}");
        }
    }

    #[test]
    fn what_is_no_id_is_refused_with_the_part_that_is_wrong() {
        let refused = |text: &str| CertificateQuery::parse(text).unwrap_err();
        for (text, part) in [
            ("x", "five parts"),
            ("a/b/c/d/01/02", "five parts"),
            ("a/b/c/d/0", "\"0\""),
            ("a/b/c/d/0g", "\"0g\""),
            ("a/b/c/\\x2/01", "\\x2"),
            ("a/b/c/\\y20/01", "\\y20"),
            ("a/b/c/\\xFF/01", "UTF-8"),
            ("pkcs11:", "no value"),
            ("pkcs11:type=cert", "no certificate"),
            ("pkcs11:token", "no value"),
            ("pkcs11:token=%2", "%2"),
            ("pkcs11:token=a;token=b", "twice"),
            ("pkcs11:id=%01;id=%01", "twice"),
            ("pkcs11:type=public", "type=public"),
            ("pkcs11:slot-id=1", "slot-id"),
            ("pkcs11:token=a?pin-value=1234", "pin-value"),
            (&"a".repeat(MAX_ID + 1), "longer"),
        ] {
            let problem = refused(text);
            assert!(problem.contains(part), "{text}: {problem}");
            assert!(!problem.contains("1234"), "{problem}");
        }
    }
}
