//! The recovery phrase: an admin's key as 24 words that people write down (BIP 39).

use adit_crypto::sign::{SEED_LEN, SigningKey};
use adit_runtime::fault::Fault;
use bip39::{Error, Language, Mnemonic};
use zeroize::Zeroizing;

/// The number of words in a phrase.
pub const WORDS: usize = 24;

/// Returns the phrase of a key.
///
/// # Errors
/// None is expected.
pub(crate) fn phrase_of(key: &SigningKey) -> Result<Zeroizing<String>, Fault> {
    let mnemonic = Mnemonic::from_entropy_in(Language::English, key.seed())
        .map_err(|error| Fault::ours(error.to_string()))?;
    let mut phrase = Zeroizing::new(String::with_capacity(WORDS * 9));
    for word in mnemonic.words() {
        if !phrase.is_empty() {
            phrase.push(' ');
        }
        phrase.push_str(word);
    }
    Ok(phrase)
}

/// Returns the key of a phrase, which may be in several lines and in capital letters.
///
/// # Errors
/// A word is missing, unknown or wrong.
pub(crate) fn key_of(phrase: &str) -> Result<SigningKey, Fault> {
    let mut text = Zeroizing::new(String::with_capacity(phrase.len()));
    for word in phrase.split_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        word.chars().for_each(|letter| text.push(letter.to_ascii_lowercase()));
    }
    let wrong = |reason: String| Fault::operator(format!("the phrase: {reason}"));
    let words = text.split(' ').filter(|word| !word.is_empty()).count();
    if words != WORDS {
        return Err(wrong(format!("it has {words} words instead of {WORDS}")));
    }
    let mnemonic = Mnemonic::parse_in_normalized(Language::English, &text).map_err(|error| {
        wrong(match error {
            // Leave the word out of the message, which may end up in a log.
            Error::UnknownWord(at) => {
                format!(
                    "word {} is not in the list of words; check its spelling",
                    at.saturating_add(1)
                )
            }
            Error::InvalidChecksum => "a word is wrong, or two are exchanged".into(),
            error => error.to_string(),
        })
    })?;
    let (bytes, _) = mnemonic.to_entropy_array();
    let bytes = Zeroizing::new(bytes);
    let seed: &[u8; SEED_LEN] = bytes.first_chunk().ok_or_else(|| Fault::ours("a short phrase"))?;
    SigningKey::from_seed(seed).map_err(|error| Fault::ours(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; SEED_LEN]).unwrap()
    }

    fn refused(phrase: &str) -> String {
        key_of(phrase).unwrap_err().to_string()
    }

    #[test]
    fn a_key_is_restored_from_its_phrase_however_that_is_typed() {
        let phrase = phrase_of(&key(7)).unwrap();
        assert_eq!(phrase.split(' ').count(), WORDS);
        for typed in [phrase.to_string(), phrase.to_uppercase(), phrase.replace(' ', "\n  ")] {
            assert_eq!(key_of(&typed).unwrap().seed(), key(7).seed());
        }
        // The first vector of BIP 39 for 32 bytes.
        let zeros = phrase_of(&key(0)).unwrap();
        assert!(zeros.starts_with("abandon abandon") && zeros.ends_with("abandon art"));
    }

    #[test]
    fn each_mistake_is_told_and_the_word_is_not() {
        let phrase = phrase_of(&key(0)).unwrap();
        assert!(refused("").contains("0 words instead of 24"));
        assert!(refused(&phrase.replacen("abandon ", "", 1)).contains("23 words"));
        let misspelt = refused(&phrase.replacen(" abandon", " abandom", 1));
        assert!(misspelt.contains("word 2 ") && !misspelt.contains("abandom"), "{misspelt}");
        assert!(refused(&phrase.replace("art", "zoo")).contains("a word is wrong"));
    }
}
