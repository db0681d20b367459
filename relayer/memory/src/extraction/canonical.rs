//! The canonical form of a text, shared by its different spellings.

use unicode_normalization::UnicodeNormalization;

/// The canonical text. Compatibility forms are unified (NFKC), letters are lower case, each run of white
/// space and punctuation is one space, and invisible characters are removed. Texts with the same canonical
/// form say the same; content hashes use it (C6). A text of punctuation alone is only trimmed, so that
/// different ones stay different.
#[must_use]
pub fn canonical(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut gap = false;
    let mut minus = false;
    // Lower case can create new combining forms, hence the second NFKC.
    for character in text.nfkc().flat_map(char::to_lowercase).nfkc() {
        if is_invisible(character) {
            continue;
        }
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

/// Characters that are invisible, or change the reading direction.
pub(super) fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}
