//! Encodes bytes as text that a person can copy: URL-safe base64 with a checksum against damage.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::{constant_time_eq, sha256};

/// The length of the checksum, in bytes.
const CHECKSUM: usize = 4;

/// Encodes bytes together with their checksum. The domain distinguishes kinds of text: a text decoded under another
/// domain counts as damaged.
pub fn encode(domain: &[u8], bytes: &[u8]) -> Zeroizing<String> {
    let mut all = Zeroizing::new(Vec::with_capacity(bytes.len().saturating_add(CHECKSUM)));
    all.extend_from_slice(bytes);
    all.extend(sha256(&[domain, bytes]).iter().take(CHECKSUM));
    Zeroizing::new(URL_SAFE_NO_PAD.encode(&*all))
}

/// Decodes a text of at most `longest` characters that [`encode`] created. Returns `None` if it is damaged.
pub fn decode(domain: &[u8], text: &str, longest: usize) -> Option<Zeroizing<Vec<u8>>> {
    if text.len() > longest {
        return None;
    }
    let mut bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(text).ok()?);
    let end = bytes.len().checked_sub(CHECKSUM)?;
    let (body, sum) = bytes.split_at_checked(end)?;
    let fits = constant_time_eq(sha256(&[domain, body]).get(..CHECKSUM)?, sum);
    bytes.truncate(end);
    fits.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_decodes_under_its_own_domain_and_length_alone() {
        let text = encode(b"one", b"bytes");
        assert_eq!(decode(b"one", &text, text.len()).unwrap().as_slice(), b"bytes");
        assert_eq!(decode(b"other", &text, text.len()), None);
        assert_eq!(decode(b"one", &text, text.len() - 1), None);
        assert_eq!(decode(b"one", "", 100), None);
        let empty = encode(b"one", b"");
        assert_eq!(decode(b"one", &empty, 100).unwrap().as_slice(), b"");
    }

    #[test]
    fn a_changed_or_lost_character_is_noticed() {
        let text = encode(b"one", &[7; 40]);
        for at in 0..text.len() {
            let (head, tail) = text.split_at(at);
            let other = if tail.starts_with('A') { "B" } else { "A" };
            let rest = &tail[1..];
            for bad in [format!("{head}{other}{rest}"), format!("{head}{rest}"), head.to_owned()] {
                assert_eq!(decode(b"one", &bad, 100), None, "at {at}");
            }
        }
    }
}
