//! Revocation lists.

use webpki::{CertRevocationList, OwnedCertRevocationList};

use super::error::TlsConfigError;
use super::options::Pem;
use super::pem;
use super::trust::date;

/// Every list in `crl`, at least one.
pub(super) fn read_revocation_lists(
    crl: &Pem,
    now: i64,
    warnings: &mut Vec<String>,
) -> Result<Vec<CertRevocationList<'static>>, TlsConfigError> {
    let fail = |text: String| TlsConfigError::new(&crl.origin, text);
    let mut lists = Vec::new();
    for block in pem::blocks(crl)?.iter().filter(|block| block.label == "X509 CRL") {
        let list = OwnedCertRevocationList::from_der(&block.der).map_err(|error| {
            fail(match error {
                webpki::Error::UnsupportedCrlVersion => {
                    "it is a version 1 revocation list; set crl_extensions in openssl.cnf so that \
                     openssl makes version 2, or use `easyrsa gen-crl`"
                        .into()
                }
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
        lists.push(CertRevocationList::Owned(list));
    }
    if lists.is_empty() {
        return Err(fail(
            "no revocation list in it; make one with `easyrsa gen-crl`, or leave `crl-verify` out"
                .into(),
        ));
    }
    Ok(lists)
}
