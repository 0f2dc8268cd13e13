//! `capath`: a directory with certificates and revocation lists of authorities.

use std::path::Path;

use adit_openvpn::tls::{CommonTlsOptions, Pem};
use zeroize::Zeroizing;

use super::key_files::read_file;
use adit_runtime::fault::Fault;
use adit_runtime::helper::files;

/// The maximum number of files read from one directory.
const MAX_FILES: usize = 4096;
/// The maximum total size of these files, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// The kind of a file, as indicated by its name.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// `9d66eef0.0`
    Certificate,
    /// `9d66eef0.r0`
    RevocationList,
}

/// Recognizes the names that `openssl rehash` gives: eight hex digits of a hash, and a number.
fn kind(name: &str) -> Option<Kind> {
    let (hash, number) = name.split_once('.')?;
    let (kind, number) = match number.strip_prefix('r') {
        Some(number) => (Kind::RevocationList, number),
        None => (Kind::Certificate, number),
    };
    let plain = hash.len() == 8
        && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && (1..=4).contains(&number.len())
        && number.bytes().all(|byte| byte.is_ascii_digit());
    plain.then_some(kind)
}

/// Adds the directory's certificates to `ca`, and uses its revocation lists as `known_crl`, which need not cover every
/// authority.
///
/// All files are read at once. openssl looks for a file when it needs one; by then, the process has dropped its privileges. Files with
/// other names are ignored, as in openssl.
///
/// # Errors
/// The directory or a file cannot be read, or the directory contains no certificate.
pub(super) fn add(common: &mut CommonTlsOptions, path: &Path) -> Result<(), Fault> {
    let shown = path.display();
    let problem = |e: std::io::Error| {
        Fault::operator(format!(
            "--capath fails with '{shown}': {e}: name a directory of authorities' certificates, prepared with `openssl \
             rehash`"
        ))
    };
    let mut names = Vec::new();
    for name in files::list(path).map_err(problem)? {
        if let Some(kind) = kind(&name) {
            names.push((name, kind));
        }
        if names.len() > MAX_FILES {
            return Err(Fault::operator(format!(
                "--capath '{shown}': more than {MAX_FILES} files with hashes as names"
            )));
        }
    }
    names.sort();
    let mut certificates = Zeroizing::new(Vec::new());
    let mut lists = Zeroizing::new(Vec::new());
    for (name, kind) in &names {
        let bytes = read_file("capath", &path.join(name))?;
        let to = match kind {
            Kind::Certificate => &mut certificates,
            Kind::RevocationList => &mut lists,
        };
        to.extend_from_slice(&bytes);
        to.push(b'\n');
        if certificates.len() + lists.len() > MAX_BYTES {
            return Err(Fault::operator(format!(
                "--capath '{shown}': its files are larger than {} MiB together",
                MAX_BYTES >> 20
            )));
        }
    }
    if certificates.is_empty() {
        return Err(Fault::operator(format!(
            "--capath '{shown}': there is no certificate with a hash as its name: run `openssl rehash \
             {shown}`"
        )));
    }
    let origin = match &common.ca {
        Some(ca) => format!("{} with {shown}", ca.origin),
        None => shown.to_string(),
    };
    if let Some(ca) = &common.ca {
        certificates.push(b'\n');
        certificates.extend_from_slice(&ca.bytes);
    }
    common.ca = Some(Pem::new(origin, certificates.as_slice()));
    if !lists.is_empty() {
        common.known_crl = Some(Pem::new(shown.to_string(), lists.as_slice()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_are_those_that_openssl_looks_for() {
        assert_eq!(kind("9d66eef0.0"), Some(Kind::Certificate));
        assert_eq!(kind("9d66eef0.12"), Some(Kind::Certificate));
        assert_eq!(kind("9d66eef0.r0"), Some(Kind::RevocationList));
        for other in
            ["ca.pem", "9d66eef.0", "9D66EEF0.0", "9d66eef0.", "9d66eef0.r", "9d66eef0.0.bak", "x"]
        {
            assert_eq!(kind(other), None, "{other}");
        }
    }

    #[test]
    fn certificates_and_lists_are_put_together_and_the_rest_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let mut common = CommonTlsOptions::default();
        let problem = add(&mut common, dir.path()).unwrap_err().to_string();
        assert!(problem.contains("openssl rehash"), "{problem}");
        write("00000001.0", "one");
        write("00000001.1", "two");
        write("00000001.r0", "list");
        write("README", "no");
        common.ca = Some(Pem::new("ca.crt", "first"));
        add(&mut common, dir.path()).unwrap();
        let ca = common.ca.unwrap();
        assert_eq!(ca.bytes.as_slice(), b"one\ntwo\n\nfirst");
        assert!(ca.origin.starts_with("ca.crt with "), "{}", ca.origin);
        assert_eq!(common.known_crl.unwrap().bytes.as_slice(), b"list\n");
        let missing = dir.path().join("missing");
        let problem = add(&mut CommonTlsOptions::default(), &missing).unwrap_err().to_string();
        assert!(problem.starts_with("--capath fails with"), "{problem}");
    }
}
