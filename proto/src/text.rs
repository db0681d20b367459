//! The canonical forms in which words are compared: search, names, and repetitions in memory.
//!
//! Every comparison of people's words goes through this module, so that one spelling finds another.
//! It never changes a text that is stored, signed or shown.

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

use crate::limits::MAX_PLACE_BYTES;

/// The text with composed characters (NFC), for readers that know no other form.
#[must_use]
pub fn composed(text: &str) -> String {
    text.nfc().collect()
}

/// The text with unified forms (NFKC) and folded case, without invisible characters. It is the same for
/// "Straße" and "STRASSE", and for "Zoë" and its decomposed form.
#[must_use]
pub fn folded(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let mut letters = String::with_capacity(text.len());
    for character in text.nfkc().filter(|character| !is_invisible(*character)) {
        match character {
            // Its capital is I, but it is another letter than i.
            'ı' => letters.push(character),
            // Capitals unify more than small letters do: ß and ss, final and other sigma.
            _ => letters
                .extend(character.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)),
        }
    }
    // Folding and removal leave marks that compose anew.
    letters.nfkc().collect()
}

/// The folded text without the marks that writers of its script may omit: accents, strokes of Latin letters,
/// Hebrew points, Arabic vowels. Marks that are letters or vowels of a script stay.
#[must_use]
pub fn searchable(text: &str) -> String {
    let folded = folded(text);
    if folded.is_ascii() {
        return folded;
    }
    let mut letters = String::with_capacity(folded.len());
    let mut base = ' ';
    for character in folded.nfd() {
        if may_be_omitted(base, character) {
            continue;
        }
        if !is_combining_mark(character) {
            base = character;
        }
        match character {
            'ı' => letters.push('i'),
            'ø' => letters.push('o'),
            'ł' => letters.push('l'),
            'đ' | 'ð' => letters.push('d'),
            'æ' => letters.push_str("ae"),
            'œ' => letters.push_str("oe"),
            _ => letters.push(character),
        }
    }
    letters.nfc().collect()
}

/// Whether a text has the form of a name of a project, session or persona.
#[must_use]
pub fn is_name(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= MAX_PLACE_BYTES && !text.chars().any(char::is_control)
}

/// Whether two names are the same name.
#[must_use]
pub fn is_same_name(a: &str, b: &str) -> bool {
    a == b || folded(a) == folded(b)
}

/// Whether two names are the same name, or both are none.
#[must_use]
pub fn is_same_place(a: Option<&str>, b: Option<&str>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => is_same_name(a, b),
        (a, b) => a == b,
    }
}

/// Whether a character is invisible, or changes the reading direction.
#[must_use]
pub fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether writers may omit a mark after a letter in lower case.
fn may_be_omitted(base: char, mark: char) -> bool {
    match mark {
        // In Cyrillic, the stress and the dots of ё: й and ї are letters.
        '\u{300}'..='\u{36f}' if matches!(base, '\u{400}'..='\u{52f}') => {
            (matches!(mark, '\u{300}' | '\u{301}') && "аеиоуыэюяіє".contains(base))
                || (mark, base) == ('\u{308}', 'е')
        }
        '\u{300}'..='\u{36f}' => true,
        // Hebrew points and accents.
        '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}' | '\u{5c2}' | '\u{5c4}' | '\u{5c5}' | '\u{5c7}' => true,
        // Arabic vowels, signs of recitation and the stretching line; hamza and madda belong to letters.
        '\u{610}'..='\u{61a}' | '\u{640}' | '\u{64b}'..='\u{652}' | '\u{670}' | '\u{6d6}'..='\u{6dc}' => true,
        '\u{6df}'..='\u{6e4}' | '\u{6e7}' | '\u{6e8}' | '\u{6ea}'..='\u{6ed}' => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_has_one_form_in_all_its_spellings() {
        let same = [
            ("Zoë", "Zoe\u{308}"),
            ("\u{212b}ngström", "A\u{30a}ngstro\u{308}m"),
            ("\u{212a}elvin", "kelvin"),
            ("Straße", "STRASSE"),
            ("STRAẞE", "strasse"),
            ("İstanbul", "i\u{307}stanbul"),
            ("Σίσυφος", "ΣΊΣΥΦΟΣ"),
            ("ﬁne", "FINE"),
            ("한글", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}"),
            ("１２３", "123"),
            ("ガギグ", "カ\u{3099}キ\u{3099}ク\u{3099}"),
            ("ガ", "ｶﾞ"),
            ("क़लम", "क\u{93c}लम"),
            ("soft\u{ad}ware", "Software"),
        ];
        for (a, b) in same {
            assert_eq!(folded(a), folded(b));
            assert_eq!(folded(&folded(a)), folded(a), "{a} folds once");
            assert!(is_same_name(a, b));
        }
        for (a, b) in [("kız", "kiz"), ("resume", "résumé"), ("カ", "ガ"), ("", "a")] {
            assert_ne!(folded(a), folded(b));
        }
        assert_eq!(composed("Zoe\u{308} İ"), "Zoë İ");
    }

    #[test]
    fn a_search_omits_the_marks_that_writers_omit_and_no_others() {
        let same = [
            ("Zoë", "zoe"),
            ("Ångström", "ANGSTROM"),
            ("İstanbul", "istanbul"),
            ("KIZ", "kız"),
            ("Σίσυφος", "σισυφοσ"),
            ("всё за́мок", "ВСЕ ЗАМОК"),
            ("مُحَمَّد", "محمد"),
            ("محـــمد", "محمد"),
            ("שָׁלוֹם", "שלום"),
            ("Tiếng Việt Đà", "tieng viet da"),
            ("Søren", "SOREN"),
            ("Łódź", "lodz"),
            ("Ægir, cœur", "aegir, coeur"),
        ];
        for (a, b) in same {
            assert_eq!(searchable(a), searchable(b));
            assert_eq!(searchable(&searchable(a)), searchable(a), "{a} again");
        }
        let different = [
            ("мой", "мои"),
            ("їжа", "іжа"),
            ("किताब", "कताब"),
            ("ガ", "カ"),
            ("한", "하"),
            ("أب", "اب"),
            ("ที่", "ทา"),
        ];
        for (a, b) in different {
            assert!(!searchable(a).contains(&searchable(b)), "{a} {b}");
        }
    }
}
