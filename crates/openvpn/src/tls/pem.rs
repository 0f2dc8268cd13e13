//! Reads PEM from operators' files, which may contain any text around the blocks, and blocks with
//! or without encryption headers.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects
)]

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use zeroize::Zeroizing;

use super::error::TlsConfigError;
use super::options::Pem;

/// The maximum number of blocks read from one file.
const MAX_BLOCKS: usize = 4096;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// One PEM block.
pub(super) struct Block {
    /// `CERTIFICATE`, `PRIVATE KEY`, ...
    pub(super) label: String,
    /// The value of `DEK-Info`, if the block is encrypted in the traditional form.
    pub(super) encryption: Option<String>,
    pub(super) der: Zeroizing<Vec<u8>>,
}

/// Returns every block of `pem`. Text around blocks is skipped.
pub(super) fn blocks(pem: &Pem) -> Result<Vec<Block>, TlsConfigError> {
    let fail = |line: usize, text: String| {
        Err(TlsConfigError::new(&pem.origin, format!("line {line}: {text}")))
    };
    let mut blocks = Vec::new();
    let mut open: Option<(String, Option<String>, Zeroizing<Vec<u8>>)> = None;
    for (line, number) in pem.bytes.split(|byte| *byte == b'\n').zip(1usize..) {
        let line = line.trim_ascii();
        let marker = std::str::from_utf8(line).ok().and_then(marker);
        open = match (open, marker) {
            (None, Some(Marker::Begin(label))) => {
                Some((label.to_owned(), None, Zeroizing::new(Vec::new())))
            }
            (None, _) => None,
            (Some((label, _, _)), Some(Marker::Begin(_))) => {
                return fail(number, format!("a new block begins before `END {label}`"));
            }
            (Some((label, encryption, text)), Some(Marker::End(end))) => {
                if label != end {
                    return fail(number, format!("`END {end}` closes `BEGIN {label}`"));
                }
                let Ok(der) = BASE64.decode(text.as_slice()) else {
                    return fail(
                        number,
                        format!("the block {label} that ends here is not base64; copy it again"),
                    );
                };
                if blocks.len() >= MAX_BLOCKS {
                    return fail(number, format!("more than {MAX_BLOCKS} blocks"));
                }
                blocks.push(Block { label, encryption, der: Zeroizing::new(der) });
                None
            }
            (Some((label, encryption, mut text)), None) => {
                let encryption = match line.strip_prefix(b"DEK-Info:") {
                    Some(value) => Some(String::from_utf8_lossy(value.trim_ascii()).into_owned()),
                    None => encryption,
                };
                // Header lines contain a colon, which base64 never does.
                if !line.contains(&b':') {
                    text.extend_from_slice(line);
                }
                Some((label, encryption, text))
            }
        };
    }
    match open {
        Some((label, _, _)) => Err(TlsConfigError::new(
            &pem.origin,
            format!("the block {label} has no end; the file was cut short"),
        )),
        None => Ok(blocks),
    }
}

enum Marker<'a> {
    Begin(&'a str),
    End(&'a str),
}

fn marker(line: &str) -> Option<Marker<'_>> {
    let inner = line.strip_prefix("-----")?.strip_suffix("-----")?;
    let begin = inner.strip_prefix("BEGIN ").map(Marker::Begin);
    begin.or_else(|| inner.strip_prefix("END ").map(Marker::End))
}

/// Returns the DER of every certificate in `pem`. It must contain at least one.
pub(super) fn certificates(pem: &Pem) -> Result<Vec<Vec<u8>>, TlsConfigError> {
    let mut found = Vec::new();
    let mut others = Vec::new();
    for block in blocks(pem)? {
        match block.label.as_str() {
            "CERTIFICATE" | "X509 CERTIFICATE" => found.push(block.der.to_vec()),
            "TRUSTED CERTIFICATE" => {
                return Err(TlsConfigError::new(
                    &pem.origin,
                    "a TRUSTED CERTIFICATE is openssl's own form; convert it with `openssl x509 -in \
                     FILE -out NEW`",
                ));
            }
            other => others.push(other.to_owned()),
        }
    }
    if found.is_empty() {
        let have = if others.is_empty() {
            "no PEM block; is it DER? `openssl x509 -inform der -in FILE -out NEW` converts it"
                .to_owned()
        } else {
            format!("only {}", others.join(", "))
        };
        return Err(TlsConfigError::new(&pem.origin, format!("no certificate in it: {have}")));
    }
    Ok(found)
}
