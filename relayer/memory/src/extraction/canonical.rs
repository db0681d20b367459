//! Forms of a text that its different spellings share: its words, and its wording.

use baton_proto::text::folded;
use unicode_normalization::UnicodeNormalization as _;

/// Characters that people write as an apostrophe; the last is the ʻokina.
pub(crate) const APOSTROPHES: [char; 5] = ['\'', '’', '‘', 'ʼ', 'ʻ'];
const OPENING: &str = "([{¿¡「『《【";
const CLOSING: &str = ".,;:!?)]}。、」』》】،؛؟।";
const QUOTES: &str = "\"'“”„«»‹›";

/// The wording of a text, the same for its repetitions (C6): folded ([`folded`]), with one space for each run of
/// white space, and without sentence marks and quotes around a word. A mark inside a word has meaning: 5'6 is
/// not 56, and 3/4 is not 3.4.
#[must_use]
pub fn wording(text: &str) -> String {
    let mut raised = String::with_capacity(text.len());
    for character in text.chars() {
        // Folding makes digits of them: 10² is not 102.
        if matches!(character, '²' | '³' | '¹' | '\u{2070}'..='\u{2079}') {
            raised.push('^');
        }
        raised.push(character);
    }
    let plain = folded(&raised).replace(APOSTROPHES, "'");
    let words = plain.split_whitespace().map(bare).filter(|word| !matches!(*word, "!" | "?" | "«" | "»"));
    let wording = words.collect::<Vec<_>>().join(" ");
    if wording.is_empty() { text.trim().to_owned() } else { wording }
}

/// A word without the marks around it; marks alone stay.
fn bare(word: &str) -> &str {
    let mut rest = word.trim_start_matches(|mark| OPENING.contains(mark) || QUOTES.contains(mark));
    while let Some(mark) = rest.chars().next_back() {
        let before = rest.strip_suffix(mark).unwrap_or_default();
        // A quote after a digit is a unit: 6" and 5'.
        let quote = QUOTES.contains(mark) && !before.ends_with(char::is_numeric);
        if !quote && !CLOSING.contains(mark) {
            break;
        }
        rest = before;
    }
    if rest.is_empty() { word } else { rest }
}

/// The words of a text: folded ([`folded`]), with one space for each run of white space and punctuation. Names
/// and values are the same if their words are. A text of punctuation alone is only trimmed, so that different
/// ones stay different.
#[must_use]
pub fn canonical(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut gap = false;
    let mut minus = false;
    for character in folded(text).chars() {
        // An apostrophe inside a word is spelling, not punctuation: "don't" equals "dont", and "Anna's"
        // equals "Annas".
        if APOSTROPHES.contains(&character) {
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
