//! The form of a text that two ways of writing the same thing share.

use unicode_normalization::UnicodeNormalization;

/// The canonical text: compatibility forms unified (NFKC), lower case, every run of white space and punctuation one space,
/// invisible characters gone. Two texts with one canonical form say the same; content hashes are taken over it (C6).
/// A text of nothing but punctuation stays as it is, trimmed, so that different ones stay different.
#[must_use]
pub fn canonical(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut gap = false;
    let mut minus = false;
    // Lower case can bring new combining forms, hence the second NFKC.
    for character in text.nfkc().flat_map(char::to_lowercase).nfkc() {
        if is_invisible(character) {
            continue;
        }
        // An apostrophe inside a word is spelling, not punctuation: "don't" and "dont", "Anna's" and "Annas" are one.
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
    // What was left out may have kept marks apart that now stand in another order.
    out.nfkc().collect()
}

/// Letters, digits and marks, and symbols that carry meaning: "C++" is not "C", 5 % is not 5, and an emoji says something.
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

/// Characters that show nothing, or turn the reading direction.
pub fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}
