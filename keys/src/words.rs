//! A session root as 24 words (BIP-39, English, 256 bits of entropy and its checksum), for backup on paper.
//!
//! Words come back as people keep them: numbered, with commas, in any case and line breaks, from an editor that
//! added a byte order mark, or as first letters.

use std::io::{self, Read};

use zeroize::Zeroizing;

use crate::session::SessionRoot;

/// Largest text with 24 words, in bytes: room for numbers, remarks and UTF-16.
const MAX_TEXT_BYTES: usize = 4096;
/// The first letters of a word that are enough: no two words of the list begin with the same four.
const FIRST_LETTERS: usize = 4;
/// Words of a backup.
const WORDS: usize = 24;

/// Words that are not the backup of a session root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordsError {
    /// Not 24 words, but this number.
    #[error("a backup has 24 words, and these are {0}")]
    WordCount(usize),
    /// A word outside the list, by its position from 1.
    #[error("word {0} is not on the list of backup words; its first four letters are enough")]
    UnknownWord(usize),
    /// The words are on the list but their checksum is wrong.
    #[error("the words' checksum is wrong: one of them is mistyped or misplaced")]
    Checksum,
}

/// Reads a text with words: UTF-8, or UTF-16 with its byte order mark.
///
/// # Errors
/// The source cannot be read, or has more than 4,096 bytes.
pub fn read_words(source: impl Read) -> io::Result<Zeroizing<String>> {
    // Reserves the maximum size: a growing buffer would leave copies in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_TEXT_BYTES + 1));
    source.take(MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_TEXT_BYTES {
        return Err(io::Error::other(format!("it is longer than {MAX_TEXT_BYTES} bytes")));
    }
    let units: fn([u8; 2]) -> u16 = match bytes.get(..2) {
        Some([0xff, 0xfe]) => u16::from_le_bytes,
        Some([0xfe, 0xff]) => u16::from_be_bytes,
        _ => return Ok(Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned())),
    };
    let units = Zeroizing::new(bytes.as_chunks().0.iter().map(|pair| units(*pair)).collect::<Vec<_>>());
    Ok(Zeroizing::new(String::from_utf16_lossy(&units)))
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

    /// The root from its 24 words. Case, numbers, punctuation and spacing do not matter, and the first four letters
    /// of a word are enough.
    ///
    /// # Errors
    /// [`WordsError`], with the first wrong word if there is one.
    pub fn from_words(text: &str) -> Result<Self, WordsError> {
        let mut letters = Zeroizing::new(String::with_capacity(text.len()));
        letters.extend(text.chars().filter_map(letter));
        let mut normal = Zeroizing::new(String::with_capacity(MAX_TEXT_BYTES));
        let mut count = 0;
        for typed in letters.split_whitespace() {
            count += 1;
            if count > WORDS {
                continue;
            }
            normal.push_str(whole_word(typed).ok_or(WordsError::UnknownWord(count))?);
            normal.push(' ');
        }
        if count != WORDS {
            return Err(WordsError::WordCount(count));
        }
        let mnemonic = bip39::Mnemonic::parse_in_normalized(bip39::Language::English, normal.trim_end())
            .map_err(|_| WordsError::Checksum)?;
        let (entropy, length) = mnemonic.to_entropy_array();
        let entropy = Zeroizing::new(entropy);
        let bytes =
            entropy.get(..length).and_then(|bytes| bytes.try_into().ok()).ok_or(WordsError::Checksum)?;
        Ok(Self::from_bytes(*Zeroizing::new(bytes)))
    }
}

/// A character of a word in lower case, or a space between words; none for an invisible mark within a word.
fn letter(character: char) -> Option<char> {
    match character {
        // Full-width forms of Latin letters.
        '\u{ff21}'..='\u{ff3a}' | '\u{ff41}'..='\u{ff5a}' => {
            let ascii = char::from_u32(u32::from(character) - 0xfee0)?;
            Some(ascii.to_ascii_lowercase())
        }
        // A soft hyphen, characters without width, and the byte order mark.
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' => None,
        letter if letter.is_alphabetic() => Some(letter.to_ascii_lowercase()),
        _ => Some(' '),
    }
}

/// The word of the list that was typed, whole or by its first letters.
fn whole_word(typed: &str) -> Option<&'static str> {
    let list = bip39::Language::English.word_list();
    let found = *list.get(list.partition_point(|word| *word < typed))?;
    (found == typed || typed.len() >= FIRST_LETTERS && found.starts_with(typed)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_people_keep_them() {
        let root = SessionRoot::generate();
        let words = root.to_words();
        let each = |form: &dyn Fn(usize, &str) -> String| {
            words.split(' ').enumerate().map(|(index, word)| form(index, word)).collect::<String>()
        };
        let wide = |word: &str| -> String {
            word.chars().map(|letter| char::from_u32(u32::from(letter) + 0xfee0).unwrap()).collect()
        };
        let kept = [
            words.to_uppercase().replace(' ', "\n  "),
            format!("\u{feff}{}\r\n", *words),
            each(&|index, word| format!("{}. {word}\n", index + 1)),
            each(&|index, word| format!("{:02}){word}, ", index + 1)),
            each(&|_, word| format!("\u{201c}{word}\u{201d};\u{a0}")),
            each(&|_, word| format!("{} ", word.get(..FIRST_LETTERS).unwrap_or(word))),
            each(&|_, word| format!("{} ", wide(word))),
            each(&|_, word| format!("- {}\u{200b}{}\t", &word[..2], &word[2..])),
        ];
        for text in kept {
            assert_eq!(SessionRoot::from_words(&text), Ok(root.clone()), "{text}");
        }
    }

    #[test]
    fn a_file_of_words_may_be_utf_16() {
        let words = SessionRoot::generate().to_words();
        let marked = format!("\u{feff}{}", *words);
        let little: Vec<u8> = marked.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = marked.encode_utf16().flat_map(u16::to_be_bytes).collect();
        for bytes in [words.as_bytes(), marked.as_bytes(), &little, &big] {
            let text = read_words(bytes).unwrap();
            assert_eq!(SessionRoot::from_words(&text).unwrap().to_words(), words);
        }
        let long = vec![b' '; MAX_TEXT_BYTES + 1];
        assert!(read_words(&long[..]).unwrap_err().to_string().contains("4096"));
    }

    #[test]
    fn no_two_words_share_their_first_four_letters() {
        let list = bip39::Language::English.word_list();
        for pair in list.windows(2) {
            let first = |word: &'static str| word.get(..FIRST_LETTERS).unwrap_or(word);
            assert!(pair[0] < pair[1] && first(pair[0]) != first(pair[1]), "{pair:?}");
        }
        assert!(list.iter().all(|word| whole_word(word) == Some(word)));
        assert_eq!((whole_word("aba"), whole_word("abandoned"), whole_word("zzzz")), (None, None, None));
    }

    #[test]
    fn refuses_wrong_words_and_says_which() {
        let words = SessionRoot::from_bytes([0; 32]).to_words();
        assert_eq!(SessionRoot::from_words("abandon"), Err(WordsError::WordCount(1)));
        assert_eq!(SessionRoot::from_words(&format!("{} art", *words)), Err(WordsError::WordCount(25)));
        assert_eq!(
            SessionRoot::from_words(&words.replacen("abandon", "xyzzy", 1)),
            Err(WordsError::UnknownWord(1))
        );
        assert_eq!(SessionRoot::from_words(&words.replacen("abandon", "zoo", 1)), Err(WordsError::Checksum));
    }
}
