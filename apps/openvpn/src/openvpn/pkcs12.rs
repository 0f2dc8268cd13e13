//! `pkcs12`: one file with this end's certificate, its key and its authorities.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use p12_keystore::error::Error;
use p12_keystore::{Certificate, KeyStore};
use zeroize::Zeroizing;

/// The characters in a line of PEM.
const LINE: usize = 64;

/// The contents of a file, as PEM.
pub(super) struct Bundle {
    /// This end's certificate.
    pub(super) certificate: String,
    /// Its key.
    pub(super) key: Zeroizing<String>,
    /// The authorities between the certificate and the roots.
    pub(super) intermediates: String,
    /// The roots.
    pub(super) roots: String,
}

/// The reason why a file cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The password is wrong, or there is none.
    Password,
    /// The file contains no key with its certificate.
    NoKey,
    /// The file is damaged, or of another kind.
    Malformed(String),
}

impl Problem {
    pub(super) fn is_password(&self) -> bool {
        *self == Self::Password
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password => {
                f.write_str("the password is wrong: write it into a file and name that in askpass")
            }
            Self::NoKey => f.write_str("it contains no key with its certificate"),
            Self::Malformed(why) => write!(f, "it cannot be read: {why}"),
        }
    }
}

/// Decodes the content of a block.
pub(super) fn from_base64(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64_STANDARD.decode(Zeroizing::new(text).as_slice()).ok().map(Zeroizing::new)
}

/// Reads the first key with its chain.
pub(super) fn open(bytes: &[u8], password: &str) -> Result<Bundle, Problem> {
    let store = KeyStore::from_pkcs12(bytes, password).map_err(|e| match e {
        Error::MacError(_) | Error::UnpadError | Error::Pkcs5Error(_) => Problem::Password,
        other => Problem::Malformed(other.to_string()),
    })?;
    let (_, chain) = store.private_key_chain().ok_or(Problem::NoKey)?;
    let (own, authorities) = chain.chain().split_first().ok_or(Problem::NoKey)?;
    let is_root = |authority: &Certificate| authority.subject() == authority.issuer();
    let text = |roots: bool| -> String {
        let wanted = authorities.iter().filter(|authority| is_root(authority) == roots);
        wanted.map(|authority| pem("CERTIFICATE", authority.as_der()).to_string()).collect()
    };
    Ok(Bundle {
        certificate: pem("CERTIFICATE", own.as_der()).to_string(),
        key: pem("PRIVATE KEY", chain.key()),
        intermediates: text(false),
        roots: text(true),
    })
}

fn pem(label: &str, der: &[u8]) -> Zeroizing<String> {
    let body = Zeroizing::new(BASE64_STANDARD.encode(der));
    let mut text = Zeroizing::new(format!("-----BEGIN {label}-----\n"));
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    ["-----END ", label, "-----\n"].into_iter().for_each(|part| text.push_str(part));
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Makes a file with OpenSSL in `dir` and returns its bytes.
    fn made(dir: &std::path::Path, arguments: &[&str]) -> Vec<u8> {
        let run = |words: &[&str]| {
            let status = Command::new("openssl").current_dir(dir).args(words).output().unwrap();
            assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
        };
        if !dir.join("ca.crt").exists() {
            let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
            let ca = ["req", "-x509", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca"];
            run(&[&ca[..], &key].concat());
            let own = ["req", "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=own"];
            run(&[&own[..], &key].concat());
            let sign = ["x509", "-req", "-in", "own.csr", "-CA", "ca.crt", "-CAkey", "ca.key"];
            run(&[&sign[..], &["-CAcreateserial", "-out", "own.crt"]].concat());
        }
        let export = ["pkcs12", "-export", "-in", "own.crt", "-inkey", "own.key", "-out", "p12"];
        run(&[&export[..], arguments].concat());
        std::fs::read(dir.join("p12")).unwrap()
    }

    #[test]
    fn a_file_has_certificate_key_and_authority_and_opens_with_its_password_alone() {
        let dir = tempfile::tempdir().unwrap();
        let with_ca = ["-certfile", "ca.crt", "-passout", "pass:secret"];
        let legacy = ["-certfile", "ca.crt", "-passout", "pass:secret", "-legacy"];
        for arguments in [&with_ca[..], &legacy] {
            let bytes = made(dir.path(), arguments);
            let bundle = open(&bytes, "secret").unwrap();
            let file = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert_eq!(bundle.certificate, file("own.crt"));
            assert_eq!(*bundle.key, file("own.key"));
            assert_eq!((bundle.roots, bundle.intermediates), (file("ca.crt"), String::new()));
            for wrong in ["", "Secret"] {
                assert_eq!(open(&bytes, wrong).err(), Some(Problem::Password));
            }
            let inline = BASE64_STANDARD.encode(&bytes).replace('A', "A\r\n ");
            assert_eq!(from_base64(inline.as_bytes()).unwrap().as_slice(), bytes);
        }
        let bare = made(dir.path(), &["-passout", "pass:"]);
        let bundle = open(&bare, "").unwrap();
        assert!(bundle.roots.is_empty() && !bundle.certificate.is_empty());
    }

    #[test]
    fn what_is_no_such_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = made(dir.path(), &["-passout", "pass:x"]);
        let nokey = made(dir.path(), &["-nokeys", "-passout", "pass:x"]);
        assert_eq!(open(&nokey, "x").err(), Some(Problem::NoKey));
        for length in [0, 1, 10, bytes.len() / 2, bytes.len() - 1] {
            assert!(matches!(open(&bytes[..length], "x").err(), Some(Problem::Malformed(_))));
        }
        assert!(from_base64(b"not base64!").is_none());
    }
}
