//! Splits a text into words, within which tokens merge: the families' regular expressions, written out as
//! code.
//!
//! The expressions are llama.cpp's, which has them from the models' authors. Letters, numbers and punctuation
//! are Unicode's general categories L, N and P, by the tables of `regex-syntax`. A program with older tables
//! may split a newer character differently.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};
use zeroize::Zeroizing;

use crate::language::vocabulary::Pre;

const LETTER: u8 = 1;
const NUMBER: u8 = 2;
const SPACE: u8 = 4;
const PUNCTUATION: u8 = 8;
/// Set for every character, so that the end of a text differs from a character without properties.
const ANY: u8 = 16;

/// The properties of each character.
static CLASSES: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut classes = vec![ANY; 0x11_0000].into_boxed_slice();
    for (expression, class) in
        [(r"\p{L}", LETTER), (r"\p{N}", NUMBER), (r"\p{P}", PUNCTUATION), (r"\s", SPACE)]
    {
        let parsed = regex_syntax::parse(expression).expect("the expression is a class");
        let HirKind::Class(Class::Unicode(ranges)) = parsed.kind() else { continue };
        for range in ranges.iter() {
            let places = u32::from(range.start()) as usize..=u32::from(range.end()) as usize;
            classes[places].iter_mut().for_each(|place| *place |= class);
        }
    }
    classes
});

/// Passes all words of a text to `take`, in order; concatenated, they are the text.
pub(super) fn cut(pre: Pre, text: &str, mut take: impl FnMut(&str)) {
    let all = Zeroizing::new(text.chars().collect::<Vec<char>>());
    let mut ends = vec![all.len()];
    let steps: &[fn(&Part<'_>, usize) -> usize] = match pre {
        Pre::Gpt2 => &[gpt2],
        Pre::SmolLm => &[|part, at| part.run(at, 1, |class, _| class & NUMBER != 0), gpt2],
        Pre::Llama3 | Pre::Glm4 => &[|part, at| llama(part, at, 3)],
        Pre::Qwen2 => &[|part, at| llama(part, at, 1)],
        Pre::Default => &[
            |part, at| {
                part.run(at, usize::MAX, |class, character| {
                    class & PUNCTUATION != 0
                        || matches!(character, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|')
                })
            },
            gpt2,
            |part, at| part.run(at, usize::MAX, |class, _| class & NUMBER != 0),
            three_digits,
        ],
    };
    for step in steps {
        ends = refine(&all, &ends, *step);
    }
    let (mut begin, mut at) = (0, 0);
    for end in ends {
        let bytes: usize = all.get(begin..end).unwrap_or_default().iter().map(|one| one.len_utf8()).sum();
        take(text.get(at..at + bytes).unwrap_or_default());
        (begin, at) = (end, at + bytes);
    }
}

/// Splits each part again. `step` returns the end of the match that begins at a position, or that position
/// itself for no match. Text between matches stays together.
fn refine(all: &[char], ends: &[usize], step: fn(&Part<'_>, usize) -> usize) -> Vec<usize> {
    let mut refined = Vec::with_capacity(ends.len());
    let mut begin = 0;
    for &end in ends {
        let part = Part { characters: all.get(begin..end).unwrap_or_default() };
        let (mut at, mut done) = (0, 0);
        while at < part.characters.len() {
            let next = step(&part, at);
            if next > at {
                if at > done {
                    refined.push(begin + at);
                }
                refined.push(begin + next);
                (at, done) = (next, next);
            } else {
                at += 1;
            }
        }
        if at > done {
            refined.push(begin + at);
        }
        begin = end;
    }
    refined
}

/// A part of a text; an expression does not look beyond it.
struct Part<'a> {
    characters: &'a [char],
}

impl Part<'_> {
    fn character(&self, at: usize) -> Option<char> {
        self.characters.get(at).copied()
    }

    /// The character's properties; 0 beyond the end.
    fn class(&self, at: usize) -> u8 {
        self.character(at).and_then(|one| CLASSES.get(u32::from(one) as usize).copied()).unwrap_or(0)
    }

    fn is(&self, at: usize, class: u8) -> bool {
        self.class(at) & class != 0
    }

    /// Neither letter nor number nor space.
    fn is_other(&self, at: usize) -> bool {
        let class = self.class(at);
        class != 0 && class & (LETTER | NUMBER | SPACE) == 0
    }

    fn is_line_end(&self, at: usize) -> bool {
        matches!(self.character(at), Some('\r' | '\n'))
    }

    /// The end of a run of at most `most` such characters.
    fn run(&self, at: usize, most: usize, wanted: impl Fn(u8, char) -> bool) -> usize {
        let rest = self.characters.get(at..).unwrap_or_default().iter().enumerate().take(most);
        at + rest.take_while(|(index, one)| wanted(self.class(at + index), **one)).count()
    }

    fn while_is(&self, mut at: usize, is: impl Fn(usize) -> bool) -> usize {
        while is(at) {
            at += 1;
        }
        at
    }

    /// The end of an English contraction, `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll`, `'d`.
    fn contraction(&self, at: usize, any_case: bool) -> Option<usize> {
        let letter = |at| {
            let one = self.character(at)?;
            Some(if any_case { one.to_ascii_lowercase() } else { one })
        };
        if self.character(at) != Some('\'') {
            return None;
        }
        match (letter(at + 1)?, letter(at + 2)) {
            ('s' | 't' | 'm' | 'd', _) => Some(at + 2),
            ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(at + 3),
            _ => None,
        }
    }

    /// `\s+(?!\S)|\s+`, or one character of any other kind.
    fn spaces(&self, at: usize) -> usize {
        let end = self.while_is(at, |at| self.is(at, SPACE));
        match end - at {
            0 => at + 1,
            count if count > 1 && end < self.characters.len() => end - 1,
            _ => end,
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2(part: &Part<'_>, at: usize) -> usize {
    if let Some(end) = part.contraction(at, false) {
        return end;
    }
    let first = at + usize::from(part.character(at) == Some(' '));
    for class in [LETTER, NUMBER] {
        if part.is(first, class) {
            return part.while_is(first, |at| part.is(at, class));
        }
    }
    if part.is_other(first) {
        return part.while_is(first, |at| part.is_other(at));
    }
    part.spaces(at)
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}`, or
/// ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn llama(part: &Part<'_>, at: usize, most: usize) -> usize {
    if let Some(end) = part.contraction(at, true) {
        return end;
    }
    let leads = !part.is_line_end(at) && !part.is(at, NUMBER);
    if leads && (part.is(at, LETTER) || part.is(at + 1, LETTER)) {
        return part.while_is(at + 1, |at| part.is(at, LETTER));
    }
    if part.is(at, NUMBER) {
        return part.run(at, most, |class, _| class & NUMBER != 0);
    }
    let first = at + usize::from(part.character(at) == Some(' '));
    if part.is_other(first) {
        let end = part.while_is(first, |at| part.is_other(at));
        return part.while_is(end, |at| part.is_line_end(at));
    }
    let end = part.while_is(at, |at| part.is(at, SPACE));
    let line_end = (at..end).rev().find(|&at| part.is_line_end(at));
    line_end.map_or_else(|| part.spaces(at), |last| last + 1)
}

/// `[0-9][0-9][0-9]`
fn three_digits(part: &Part<'_>, at: usize) -> usize {
    let end = part.run(at, 3, |_, character| character.is_ascii_digit());
    if end == at + 3 { end } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pre: Pre, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        cut(pre, text, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn words_are_those_of_the_expressions() {
        let cases: [(Pre, &str, &[&str]); 10] = [
            (Pre::Gpt2, "it's  1234 ok!", &["it", "'s", " ", " 1234", " ok", "!"]),
            (Pre::Gpt2, "a \n b\n", &["a", " \n", " b", "\n"]),
            (Pre::SmolLm, "in 2024.", &["in", " ", "2", "0", "2", "4", "."]),
            (Pre::Llama3, "It'S 12345\r\n\n  x", &["It", "'S", " ", "123", "45", "\r\n\n", " ", " x"]),
            (Pre::Llama3, "a(b) !!\n\nc", &["a", "(b", ")", " !!\n\n", "c"]),
            (Pre::Glm4, "It'S 12345", &["It", "'S", " ", "123", "45"]),
            (Pre::Qwen2, "v12", &["v", "1", "2"]),
            (Pre::Default, "a==b 1234", &["a", "==", "b", " ", "123", "4"]),
            (Pre::Llama3, "", &[]),
            (Pre::Gpt2, "\u{10ffff}\u{2003}é", &["\u{10ffff}", "\u{2003}", "é"]),
        ];
        for (pre, text, words) in cases {
            assert_eq!(self::words(pre, text), words, "{pre:?} {text:?}");
        }
    }

    #[test]
    fn words_together_are_the_text() {
        let text = "Ein Übel's  Ende\t\t12٣४56 日本語。\r\n🦙🦙 -- don't\u{a0}\u{a0}x\n";
        for pre in [Pre::Gpt2, Pre::SmolLm, Pre::Llama3, Pre::Qwen2, Pre::Default] {
            assert_eq!(words(pre, text).concat(), text);
        }
    }
}
