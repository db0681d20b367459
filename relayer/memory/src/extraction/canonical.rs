//! The canonical form of a text, shared by its different spellings.

use baton_proto::text::folded;
use unicode_normalization::UnicodeNormalization as _;

/// The canonical text: folded ([`folded`]), with one space for each run of white space and punctuation. Texts
/// with the same canonical form say the same; content hashes use it (C6). A text of punctuation alone is only
/// trimmed, so that different ones stay different.
#[must_use]
pub fn canonical(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut gap = false;
    let mut minus = false;
    for character in folded(text).chars() {
        // An apostrophe inside a word is spelling, not punctuation: "don't" equals "dont", and "Anna's"
        // equals "Annas".
        if matches!(character, '\'' | '’' | '‘' | 'ʼ') {
            continue;
        }
        if keeps(character) {
            if gap && !out.is_empty() {
                out.push(' ');
            }
            // -5 is not 5.
            if minus && character.is_numeric() {
                out.push('-');
            }
            (gap, minus) = (false, false);
            out.push(character);
        } else {
            minus = matches!(character, '-' | '−') && (gap || out.is_empty());
            gap = true;
        }
    }
    if out.is_empty() {
        return text.trim().to_owned();
    }
    // Removed characters may have separated marks, whose order now changes.
    out.nfkc().collect()
}

/// Whether a canonical text contains words as whole words.
pub(crate) fn holds_words(text: &str, words: &str) -> bool {
    let starts = std::iter::once(0).chain(text.match_indices(' ').map(|(at, _)| at + 1));
    let mut rests = starts.filter_map(|at| text.get(at..)?.strip_prefix(words));
    !words.is_empty() && rests.any(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// Keeps letters, digits and marks, and symbols with meaning: "C++" is not "C", 5 % is not 5, and an emoji
/// has meaning.
fn keeps(character: char) -> bool {
    character.is_alphanumeric()
        || matches!(character, '+' | '#' | '%' | '$' | '€' | '£' | '&' | '@' | '=' | '<' | '>')
        || (!character.is_ascii() && !character.is_whitespace() && !is_punctuation(character))
}

fn is_punctuation(character: char) -> bool {
    matches!(
        character,
        '\u{80}'..='\u{bf}' | '\u{2010}'..='\u{205e}' | '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}'
            | '\u{3014}'..='\u{301f}' | '\u{2e00}'..='\u{2e7f}' | '×' | '÷' | '・' | '،' | '؛' | '؟' | '।' | '።'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_held_as_whole_words() {
        for (text, words, held) in [
            ("my dog is called biscuit", "biscuit", true),
            ("my dog is called biscuit", "dog is called", true),
            ("my dog is called biscuit", "my dog is called biscuit", true),
            ("a called dog is called biscuit", "dog is called", true),
            ("my dog likes biscuits", "biscuit", false),
            ("biscuits and a biscuit", "biscuit", true),
            ("the hotdog is called", "dog is called", false),
            ("dog is calledx", "dog is called", false),
            ("café ana", "ana", true),
            ("the banana", "ana", false),
            ("anything", "", false),
            ("", "biscuit", false),
        ] {
            assert_eq!(holds_words(text, words), held, "{words} in {text}");
        }
    }
}
