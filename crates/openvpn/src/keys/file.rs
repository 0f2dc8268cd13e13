use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The reason why a key file cannot be used. The fault is the operator's; the caller adds the
/// file's name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyFileError {
    /// The first marker line is missing.
    #[error("there is no line \"{0}\"; {hint}", hint = hint(.0))]
    NoBegin(String),
    /// The last marker line is missing.
    #[error("the line \"{0}\" is missing: the file was cut short; copy it again or {hint}", hint = hint(.0))]
    NoEnd(String),
    /// A character is not a hex digit.
    #[error("{0:?} is not a hexadecimal digit: the key was altered; copy it again")]
    NotHex(char),
    /// The text is not base64.
    #[error("the text between the marker lines is not base64: the key was altered; copy it again")]
    NotBase64,
    /// The key has too few or too many bytes.
    #[error(
        "the key has {found} bytes instead of {wanted}: the file was cut or altered; copy it again"
    )]
    Length {
        /// The number of bytes found (of a longer key: at least).
        found: usize,
        /// The number of bytes expected.
        wanted: usize,
    },
    /// The wrapped key in a tls-crypt-v2 client key is malformed.
    #[error("the wrapped key in it is malformed ({0} bytes): the key was altered; copy it again")]
    WrappedKey(usize),
}

fn hint(marker: &str) -> &'static str {
    if marker.contains("auth-token") {
        "make one with `openvpn --genkey auth-token FILE`"
    } else if marker.contains("server key") {
        "make one with `openvpn --genkey tls-crypt-v2-server FILE`"
    } else if marker.contains("client key") {
        "make one with `openvpn --tls-crypt-v2 SERVERKEY --genkey tls-crypt-v2-client FILE`"
    } else {
        "make one with `openvpn --genkey secret FILE`"
    }
}

/// Returns the text between two marker lines. Text before and after them is skipped.
pub(super) fn between<'a>(text: &'a str, begin: &str, end: &str) -> Result<&'a str, KeyFileError> {
    let (_, rest) =
        text.split_once(begin).ok_or_else(|| KeyFileError::NoBegin(begin.to_owned()))?;
    let (inside, _) = rest.split_once(end).ok_or_else(|| KeyFileError::NoEnd(end.to_owned()))?;
    Ok(inside)
}

/// Decodes exactly `out.len()` bytes of hex, skipping white space and comment lines.
pub(super) fn decode_hex(text: &str, out: &mut [u8]) -> Result<(), KeyFileError> {
    let wanted = out.len();
    let digits = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with(['#', ';']))
        .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()));
    let mut count = 0_usize;
    for digit in digits {
        let value = digit.to_digit(16).and_then(|value| u8::try_from(value).ok());
        let value = value.ok_or(KeyFileError::NotHex(digit))?;
        if let Some(byte) = out.get_mut(count / 2) {
            *byte = *byte << 4 | value;
        }
        count = count.saturating_add(1);
    }
    if count != wanted.saturating_mul(2) {
        return Err(KeyFileError::Length { found: count / 2, wanted });
    }
    Ok(())
}

pub(super) fn push_hex(text: &mut String, byte: u8) {
    for nibble in [byte >> 4, byte & 15] {
        text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
    }
}

/// Decodes PEM's base64, skipping white space.
pub(super) fn decode_pem(text: &str, label: &str) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let begin = format!("-----BEGIN {label}-----");
    let end = format!("-----END {label}-----");
    let inside = between(text, &begin, &end)?;
    let base64: Zeroizing<String> =
        Zeroizing::new(inside.chars().filter(|c| !c.is_whitespace()).collect());
    STANDARD.decode(base64.as_bytes()).map(Zeroizing::new).map_err(|_| KeyFileError::NotBase64)
}

pub(super) fn encode_pem(bytes: &[u8], label: &str) -> Zeroizing<String> {
    let base64 = Zeroizing::new(STANDARD.encode(bytes));
    let mut text = format!("-----BEGIN {label}-----\n");
    text.reserve(base64.len().saturating_mul(2));
    for (index, char) in base64.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            text.push('\n');
        }
        text.push(char);
    }
    text.push_str(&format!("\n-----END {label}-----\n"));
    Zeroizing::new(text)
}
