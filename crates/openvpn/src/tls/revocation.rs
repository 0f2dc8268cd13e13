//! Revocation lists.

use webpki::{CertRevocationList, OwnedCertRevocationList};

use super::error::TlsConfigError;
use super::options::Pem;
use super::pem;
use super::trust::date;

/// The lists of a file, and the signed texts of those that were rewritten.
#[derive(Debug, Default)]
pub(super) struct RevocationLists {
    pub(super) lists: Vec<CertRevocationList<'static>>,
    pub(super) restored: Vec<Restored>,
}

/// A list in the form that the library requires, and the text that was signed.
///
/// `openssl ca -gencrl` makes lists of version 1, or without extensions, unless its configuration
/// says otherwise. OpenVPN accepts them; the library requires version 2 with an extension. Both
/// have the same meaning, so the list is rewritten with both added, and its signature is verified
/// over the text that was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Restored {
    pub(super) rewritten: Vec<u8>,
    pub(super) signed: Vec<u8>,
}

const SEQUENCE: u8 = 0x30;
/// `version`: 2.
const VERSION_2: [u8; 3] = [0x02, 0x01, 0x01];
/// `crlExtensions` with a number, which the library reads but never compares.
const EXTENSIONS: [u8; 16] =
    [0xa0, 14, SEQUENCE, 12, SEQUENCE, 10, 0x06, 3, 0x55, 0x1d, 20, 0x04, 3, 0x02, 1, 0];

/// Adds extensions to a list without any, and returns its two texts. Returns `None` if the list has
/// extensions or the bytes are not a list.
fn complete(der: &[u8]) -> Option<(Vec<u8>, Restored)> {
    let Ok(([], parsed)) = x509_parser::parse_x509_crl(der) else { return None };
    if !parsed.extensions().is_empty() {
        return None;
    }
    let signed = parsed.tbs_cert_list.as_ref();
    let behind = contents(der)?.strip_prefix(signed)?;
    let version: &[u8] = if parsed.version().is_none() { &VERSION_2 } else { &[] };
    let rewritten = sequence(&[version, contents(signed)?, &EXTENSIONS]);
    let whole = sequence(&[&rewritten, behind]);
    Some((whole, Restored { rewritten, signed: signed.to_vec() }))
}

/// Returns the contents of a DER element, without its tag and length.
fn contents(der: &[u8]) -> Option<&[u8]> {
    let length = usize::from(*der.get(1)?);
    // A byte from 0x80 on gives the number of length bytes that follow.
    der.get(if length < 0x80 { 2 } else { length.checked_sub(0x80)?.checked_add(2)? }..)
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    let contents = parts.concat();
    let length = contents.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let length = length.get(zeros..).unwrap_or_default();
    let mut der = vec![SEQUENCE];
    match length {
        [] => der.push(0),
        [one] if *one < 0x80 => der.push(*one),
        // At most eight length bytes.
        _ => {
            der.push(0x80 | u8::try_from(length.len()).unwrap_or(8));
            der.extend(length);
        }
    }
    der.extend(contents);
    der
}

/// Returns every list in `crl`, at least one.
pub(super) fn read_revocation_lists(
    crl: &Pem,
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<RevocationLists, TlsConfigError> {
    let fail = |text: String| TlsConfigError::new(&crl.origin, text);
    let mut found = RevocationLists::default();
    for block in pem::blocks(crl)?.iter().filter(|block| block.label == "X509 CRL") {
        let completed = complete(&block.der);
        let der = completed.as_ref().map_or(block.der.as_ref(), |(der, _)| der.as_slice());
        let list = OwnedCertRevocationList::from_der(der).map_err(|error| {
            fail(match error {
                webpki::Error::UnsupportedDeltaCrl | webpki::Error::UnsupportedIndirectCrl => {
                    "a partial or indirect revocation list; make a complete one".into()
                }
                other => format!("a revocation list in it cannot be read ({other:?})"),
            })
        })?;
        if let Ok((_, parsed)) = x509_parser::parse_x509_crl(&block.der)
            && let Some(next) = parsed.next_update()
            && next.timestamp() <= now
        {
            warnings.push(format!(
                "{}: the revocation list expired at {}; every peer will be refused until there is a \
                 new one (`easyrsa gen-crl`)",
                crl.origin,
                date(next.timestamp())
            ));
        }
        found.lists.push(CertRevocationList::Owned(list));
        found.restored.extend(completed.map(|(_, restored)| restored));
    }
    if found.lists.is_empty() {
        return Err(fail(
            "no revocation list in it; make one with `easyrsa gen-crl`, or leave `crl-verify` out"
                .into(),
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sequence_is_read_as_it_was_written() {
        for length in [0usize, 1, 127, 128, 255, 256, 70_000] {
            let text = vec![7; length];
            let (whole, halves) = (sequence(&[&text]), text.split_at(length / 2));
            assert_eq!(contents(&whole), Some(text.as_slice()), "{length}");
            assert_eq!(whole, sequence(&[halves.0, halves.1]), "{length}");
        }
        assert_eq!(sequence(&[&[7; 127]]).get(..2), Some([0x30, 127].as_slice()));
        assert_eq!(sequence(&[&[7; 128]]).get(..3), Some([0x30, 0x81, 128].as_slice()));
    }

    proptest! {
        #[test]
        fn nothing_in_a_file_panics(der in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (complete(&der), contents(&der));
        }
    }
}
