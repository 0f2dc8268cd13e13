//! Private keys in every form that openssl can write.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use aes::cipher::{BlockDecryptMut, KeyIvInit, block_padding::Pkcs7};
use md5::{Digest, Md5};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::{Zeroize, Zeroizing};

use super::error::TlsConfigError;
use super::options::Pem;
use super::pem::{self, Block};

/// Returns the first private key in `pem`, decrypted.
pub(super) fn load(
    pem: &Pem,
    password: Option<&Zeroizing<String>>,
) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    let mut labels = Vec::new();
    for block in pem::blocks(pem)? {
        match block.label.as_str() {
            "PRIVATE KEY" | "EC PRIVATE KEY" | "RSA PRIVATE KEY" | "ENCRYPTED PRIVATE KEY" => {
                return decode(pem, &block, password);
            }
            "OPENSSH PRIVATE KEY" => {
                return Err(TlsConfigError::new(
                    &pem.origin,
                    "this is a key for ssh; `key` wants the key made with the certificate",
                ));
            }
            "DSA PRIVATE KEY" => {
                return Err(TlsConfigError::new(
                    &pem.origin,
                    "DSA keys are not supported; make an EC or RSA key and a certificate for it",
                ));
            }
            other => labels.push(other.to_owned()),
        }
    }
    let have = if labels.is_empty() {
        "no PEM block".to_owned()
    } else {
        format!("only {}", labels.join(", "))
    };
    Err(TlsConfigError::new(
        &pem.origin,
        format!("no private key in it ({have}); name the file that begins `BEGIN PRIVATE KEY`"),
    ))
}

fn decode(
    pem: &Pem,
    block: &Block,
    password: Option<&Zeroizing<String>>,
) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    let encrypted = block.encryption.is_some() || block.label == "ENCRYPTED PRIVATE KEY";
    let mut der = match (encrypted, password) {
        (false, _) => block.der.clone(),
        (true, None) => {
            return Err(TlsConfigError::wrong_password(
                &pem.origin,
                "the key is encrypted and no password was given; use `askpass` or `askpass FILE`",
            ));
        }
        (true, Some(password)) => match &block.encryption {
            Some(header) => traditional(pem, header, &block.der, password)?,
            None => pkcs8(pem, &block.der, password)?,
        },
    };
    let bytes = std::mem::take(&mut *der);
    Ok(match block.label.as_str() {
        "EC PRIVATE KEY" => PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(bytes)),
        "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(bytes)),
        _ => PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(bytes)),
    })
}

fn wrong(pem: &Pem) -> TlsConfigError {
    TlsConfigError::wrong_password(&pem.origin, "the password does not open this key; try again")
}

/// Decrypts PKCS#8 under PBES2 with AES or 3DES.
fn pkcs8(pem: &Pem, der: &[u8], password: &str) -> Result<Zeroizing<Vec<u8>>, TlsConfigError> {
    use pkcs8::{EncryptedPrivateKeyInfo, pkcs5};
    let convert = "convert it with `openssl pkcs8 -topk8 -in OLD -out NEW -v2 aes-256-cbc`";
    let info = EncryptedPrivateKeyInfo::try_from(der).map_err(|error| {
        TlsConfigError::new(
            &pem.origin,
            format!("the key's encryption is not understood ({error}); {convert}"),
        )
    })?;
    match info.decrypt(password) {
        Ok(document) => Ok(Zeroizing::new(document.as_bytes().to_vec())),
        Err(pkcs8::Error::EncryptedPrivateKey(pkcs5::Error::NoPbes1CryptSupport)) => {
            Err(TlsConfigError::new(
                &pem.origin,
                format!("the key is encrypted in the old PBES1 form; {convert}"),
            ))
        }
        Err(pkcs8::Error::EncryptedPrivateKey(
            pkcs5::Error::UnsupportedAlgorithm { .. }
            | pkcs5::Error::AlgorithmParametersInvalid { .. },
        )) => Err(TlsConfigError::new(
            &pem.origin,
            format!("the key is encrypted with an algorithm that is not supported; {convert}"),
        )),
        // A wrong password leads to bad padding, or to bytes that are not a key.
        Err(_) => Err(wrong(pem)),
    }
}

/// Decrypts a key with `Proc-Type: 4,ENCRYPTED`, which is CBC with a key that OpenSSL's
/// EVP_BytesToKey derives with one round of MD5.
fn traditional(
    pem: &Pem,
    header: &str,
    encrypted: &[u8],
    password: &str,
) -> Result<Zeroizing<Vec<u8>>, TlsConfigError> {
    let unsupported = || {
        TlsConfigError::new(
            &pem.origin,
            format!(
                "the key is encrypted with {:?}; supported are DES-EDE3-CBC, AES-128-CBC, AES-192-CBC \
                 and AES-256-CBC: convert it with `openssl pkcs8 -topk8 -in OLD -out NEW`",
                header.split(',').next().unwrap_or_default()
            ),
        )
    };
    let (name, iv) = header.split_once(',').ok_or_else(unsupported)?;
    let iv = unhex(iv.trim()).ok_or_else(unsupported)?;
    let mut buffer = Zeroizing::new(encrypted.to_vec());
    let plain = match name.trim().to_ascii_uppercase().as_str() {
        "DES-EDE3-CBC" => {
            cbc_decrypt::<cbc::Decryptor<des::TdesEde3>>(24, &iv, password, &mut buffer)
        }
        "AES-128-CBC" => cbc_decrypt::<cbc::Decryptor<aes::Aes128>>(16, &iv, password, &mut buffer),
        "AES-192-CBC" => cbc_decrypt::<cbc::Decryptor<aes::Aes192>>(24, &iv, password, &mut buffer),
        "AES-256-CBC" => cbc_decrypt::<cbc::Decryptor<aes::Aes256>>(32, &iv, password, &mut buffer),
        _ => return Err(unsupported()),
    };
    // One in 256 wrong passwords results in valid padding, but the plaintext is not a DER sequence.
    match plain {
        Some(plain) if is_sequence(&plain) => Ok(plain),
        _ => Err(wrong(pem)),
    }
}

fn cbc_decrypt<D: KeyIvInit + BlockDecryptMut>(
    key_len: usize,
    iv: &[u8],
    password: &str,
    buffer: &mut [u8],
) -> Option<Zeroizing<Vec<u8>>> {
    let key = bytes_to_key(password.as_bytes(), iv.first_chunk::<8>()?, key_len);
    let cipher = D::new_from_slices(&key, iv).ok()?;
    let plain = cipher.decrypt_padded_mut::<Pkcs7>(buffer).ok()?;
    Some(Zeroizing::new(plain.to_vec()))
}

fn bytes_to_key(password: &[u8], salt: &[u8; 8], len: usize) -> Zeroizing<Vec<u8>> {
    let mut key = Zeroizing::new(Vec::with_capacity(48));
    let mut last = Vec::new();
    while key.len() < len {
        let mut hash = Md5::new();
        hash.update(&last);
        hash.update(password);
        hash.update(salt);
        last.zeroize();
        last = hash.finalize().to_vec();
        key.extend_from_slice(&last);
    }
    last.zeroize();
    key.truncate(len);
    key
}

/// Returns whether `der` is exactly one SEQUENCE according to its outer length.
fn is_sequence(der: &[u8]) -> bool {
    x509_parser::der_parser::ber::parse_ber_any(der)
        .is_ok_and(|(rest, any)| rest.is_empty() && any.header.tag().0 == 16)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = bytes.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| match pair {
            [high, low] => Some((digit(*high)? << 4) | digit(*low)?),
            _ => None,
        })
        .collect()
}
