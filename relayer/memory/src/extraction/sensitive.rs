//! Recognises intimate texts, secrets and injections, and rates the worth of a statement.

use super::{
    rules::{INJECTION, INTIMATE, SECRET, STRONG_RULES, WEAK_RULES},
    text::{Pattern, Word, any, prefix, sentences, words},
    words::{DAYS, INTIMATE_STEMS, MEDICINES, STOP, TELLS, TELLS_NOTHING, is_number},
};

/// Most bytes of a text that are read here.
const LOOKED_AT: usize = super::text::MAX_LOOKED_AT;

/// Whether a text is intimate: only scopes with intimate items may recall it (D8).
#[must_use]
pub fn is_intimate(text: &str) -> bool {
    sentences(text).iter().any(|sentence| words_are_intimate(&sentence.words))
}

/// The same for words.
pub(super) fn words_are_intimate(words: &[Word]) -> bool {
    // Diets are for every cook to know: a coeliac's disease counts as a diet.
    let diet = words.iter().any(|word| matches!(word.lower.as_str(), "coeliac" | "celiac"));
    let kept: Vec<Word>;
    let words = if diet {
        kept = words.iter().filter(|word| word.lower != "disease").cloned().collect();
        kept.as_slice()
    } else {
        words
    };
    let stem = words.iter().any(|word| INTIMATE_STEMS.all().iter().any(|stem| word.lower.starts_with(*stem)));
    let medicine = words
        .iter()
        .any(|word| word.lower.len() >= 7 && MEDICINES.all().iter().any(|end| word.lower.ends_with(*end)));
    stem || medicine || any(&INTIMATE, words, 0..words.len())
}

/// Whether a text reads like an instruction to a model about its instructions, or like chat-template markup.
pub(super) fn is_injection(text: &str) -> bool {
    const MARKS: &str =
        "<|,|>,[inst],[/inst],<<sys>>,<s>,</s>,<memory,</memory,### instruction,### system,<system,</system";
    let text = prefix(text, LOOKED_AT);
    let lower = text.to_lowercase();
    MARKS.split(',').any(|mark| lower.contains(mark)) || any_sentence(&INJECTION, text)
}

fn any_sentence(patterns: &[Pattern], text: &str) -> bool {
    // Not `sentences`, which omits quotes and code: here they count.
    text.split(['\n', '.', '!', '?', ';']).any(|part| {
        let words = words(part, 0);
        any(patterns, &words, 0..words.len())
    })
}

/// Whether a text holds a password, a key, a card or account number, or similar. Such a text is never a fact.
#[must_use]
pub fn is_secret(text: &str) -> bool {
    let text = prefix(text, LOOKED_AT);
    if has_card_number(text) || text.split_whitespace().any(is_token) || text.contains("PRIVATE KEY-----") {
        return true;
    }
    text.split(['\n', '!', '?', ';']).any(|part| {
        let words = words(part, 0);
        any(&SECRET, &words, 0..words.len()) && gives_a_value(part, &words)
    })
}

/// Whether a text about a secret also contains one: "… is …", "…: …", or a word with digits.
fn gives_a_value(part: &str, words: &[Word]) -> bool {
    let told = words.windows(2).any(|pair| match pair {
        [verb, next] => TELLS.contains(&verb.lower) && !TELLS_NOTHING.contains(&next.lower),
        _ => false,
    });
    told || part.contains([':', '='])
        || words.iter().any(|word| word.lower.chars().filter(char::is_ascii_digit).count() >= 3)
}

/// Whether a text holds 13 to 19 digits that pass Luhn's check, in groups as people write them.
fn has_card_number(text: &str) -> bool {
    let mut digits: Vec<u32> = Vec::new();
    let mut gap = 0;
    let mut chars = text.chars();
    loop {
        let next = chars.next();
        match next.and_then(|c| c.to_digit(10)) {
            Some(digit) => {
                digits.push(digit);
                gap = 0;
            }
            None if next.is_some_and(|c| matches!(c, ' ' | '-' | '.' | '\u{a0}'))
                && gap == 0
                && !digits.is_empty() =>
            {
                gap += 1
            }
            None => {
                if (13..=19).contains(&digits.len()) && luhn(&digits) {
                    return true;
                }
                digits.clear();
                gap = 0;
            }
        }
        if next.is_none() {
            return false;
        }
    }
}

fn luhn(digits: &[u32]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| match (at % 2 == 1, digit * 2) {
            (false, _) => *digit,
            (true, double) if double > 9 => double - 9,
            (true, double) => double,
        })
        .sum();
    sum.is_multiple_of(10) && digits.iter().any(|digit| *digit != 0)
}

/// Whether a word looks like a key or token of a service, or like an American social security number.
fn is_token(word: &str) -> bool {
    const PREFIXES: &str =
        "sk- pk- ghp_ gho_ github_pat_ xoxb- xoxp- AKIA AIza eyJ glpat- hf_ npm_ pypi- suiprivkey";
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let count = |test: fn(&char) -> bool| word.chars().filter(test).count();
    let mixed = count(char::is_ascii_digit) >= 3
        && count(char::is_ascii_uppercase) >= 2
        && count(char::is_ascii_lowercase) >= 2;
    let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '/' | '='));
    let hex = word.len() >= 32 && word.trim_start_matches("0x").chars().all(|c| c.is_ascii_hexdigit());
    let ssn = {
        let parts: Vec<&str> = word.split('-').collect();
        parts.iter().map(|part| part.len()).eq([3, 2, 4])
            && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()))
    };
    let prefixed = word.len() >= 16 && PREFIXES.split(' ').any(|prefix| word.starts_with(prefix));
    ssn || hex || prefixed || (word.len() >= 24 && plain && mixed)
}

/// The worth of a text, 0 to 1, by the rules alone.
#[must_use]
pub fn salience(text: &str) -> f32 {
    let sentences = sentences(text);
    let best = sentences.iter().map(|sentence| {
        let words = &sentence.words;
        let ruled = STRONG_RULES
            .iter()
            .chain(WEAK_RULES.iter())
            .filter(|rule| rule.pattern.find(words, 0..words.len()).is_some())
            .map(|rule| rule.salience)
            .fold(0.2, f32::max);
        ruled + bonus(words)
    });
    best.fold(0.0, f32::max).clamp(0.0, 1.0)
}

/// The extra worth of a sentence with names, numbers or days, and the deduction for one with little content.
pub(super) fn bonus(words: &[Word]) -> f32 {
    let content = words.iter().filter(|word| !STOP.contains(&word.lower)).count();
    let exact = words.iter().skip(1).any(|word| {
        is_number(&word.lower) || DAYS.contains(&word.lower) || (word.capital && word.lower != "i")
    });
    let exact = if exact { 0.05 } else { 0.0 };
    if content < 2 { exact - 0.1 } else { exact }
}
