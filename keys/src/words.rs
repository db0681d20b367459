//! A session root as 24 words (BIP-39, English, 256 bits of entropy and its checksum), for backup on paper.

use zeroize::Zeroizing;

use crate::session::SessionRoot;

/// Words that are not the backup of a session root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordsError {
    /// Not 24 words.
    #[error("a backup has 24 words")]
    WordCount,
    /// A word outside the list, by its position from 1.
    #[error("word {0} is not on the list of backup words")]
    UnknownWord(usize),
    /// The words are on the list but their checksum is wrong.
    #[error("the words' checksum is wrong: one of them is mistyped or misplaced")]
    Checksum,
}

impl SessionRoot {
    /// The root as 24 words separated by spaces.
    ///
    /// # Panics
    /// Never: 32 bytes are a valid BIP-39 entropy length.
    #[must_use]
    pub fn to_words(&self) -> Zeroizing<String> {
        let mnemonic = bip39::Mnemonic::from_entropy(self.expose()).expect("32 bytes are valid entropy");
        Zeroizing::new(mnemonic.to_string())
    }

    /// The root from its 24 words; case and spacing do not matter.
    ///
    /// # Errors
    /// [`WordsError`], with the first wrong word if there is one.
    pub fn from_words(words: &str) -> Result<Self, WordsError> {
        let normal = Zeroizing::new(words.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase());
        if normal.split(' ').count() != 24 {
            return Err(WordsError::WordCount);
        }
        let mnemonic =
            bip39::Mnemonic::parse_in_normalized(bip39::Language::English, &normal).map_err(|error| {
                match error {
                    bip39::Error::UnknownWord(index) => WordsError::UnknownWord(index + 1),
                    _ => WordsError::Checksum,
                }
            })?;
        let (entropy, length) = mnemonic.to_entropy_array();
        let entropy = Zeroizing::new(entropy);
        let bytes =
            entropy.get(..length).and_then(|bytes| bytes.try_into().ok()).ok_or(WordsError::WordCount)?;
        Ok(Self::from_bytes(*Zeroizing::new(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_in_any_case_and_spacing() {
        let root = SessionRoot::generate();
        let words = root.to_words();
        assert_eq!(SessionRoot::from_words(&words).unwrap(), root);
        let shouted = words.to_uppercase().replace(' ', "\n  ");
        assert_eq!(SessionRoot::from_words(&shouted).unwrap(), root);
    }

    #[test]
    fn refuses_wrong_words_and_says_which() {
        let words = SessionRoot::from_bytes([0; 32]).to_words();
        assert_eq!(SessionRoot::from_words("abandon"), Err(WordsError::WordCount));
        assert_eq!(
            SessionRoot::from_words(&words.replacen("abandon", "xyzzy", 1)),
            Err(WordsError::UnknownWord(1))
        );
        assert_eq!(SessionRoot::from_words(&words.replacen("abandon", "zoo", 1)), Err(WordsError::Checksum));
    }
}
