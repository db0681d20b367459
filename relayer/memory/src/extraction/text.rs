//! Sentences, clauses and words of a message, and the small pattern language of the rule tables.
//!
//! All functions work on byte ranges of the original text, so that kept words are the exact ones.

use baton_proto::text::folded;
use unicode_segmentation::UnicodeSegmentation;

use super::words::{
    ABBREVIATIONS, CONTRACTIONS, INNER, IS_AFTER, JOINING, KEEPING, NOT_A_NAME, PHRASE_ENDS, REQUESTS,
    is_number, set,
};

/// Bytes of a message that the rules read: a message may be a pasted book, and facts about the user come
/// first. The raw turn keeps all of it.
pub(super) const MAX_LOOKED_AT: usize = 16 * 1024;
/// Most words of a sentence that are read: a longer one is a pasted text, not a statement.
pub(super) const MAX_SENTENCE_WORDS: usize = 160;
/// Most sentences of a message that are read.
pub(super) const MAX_SENTENCES: usize = 512;

/// A word of a sentence. Contractions are expanded: "I'm" gives `i` and `am`, both at the position of "I'm".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Lower case, NFKC, straight apostrophes.
    pub lower: String,
    /// Its first byte in the message.
    pub start: usize,
    /// Its end.
    pub end: usize,
    /// Whether it begins with a capital.
    pub capital: bool,
    /// Whether punctuation stands between it and the word before.
    pub gap: bool,
}

/// A sentence of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence<'a> {
    /// Its text with its final punctuation.
    pub text: &'a str,
    /// Its first byte in the message.
    pub start: usize,
    /// Its words.
    pub words: Vec<Word>,
}

impl Sentence<'_> {
    /// Whether it ends with a question mark.
    pub(super) fn asks(&self) -> bool {
        self.text.trim_end_matches(['"', '\'', ')', '”', '’', ' ', '!', '*', '_']).ends_with(['?', '？', '؟'])
    }

    /// Whether it ends with a colon, so that the next text is its subject.
    pub(super) fn announces(&self) -> bool {
        self.text.trim_end_matches(['"', '“', '\'', ' ', '*']).ends_with([':', '：'])
    }
}

/// The longest prefix of at most `limit` bytes that ends between characters.
pub(super) fn prefix(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// The sentences of a message, without quoted lines and code blocks.
pub(super) fn sentences(message: &str) -> Vec<Sentence<'_>> {
    let message = prefix(message, MAX_LOOKED_AT);
    let mut found = Vec::new();
    let mut in_code = false;
    let mut at = 0;
    for line in message.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            in_code = !in_code;
            continue;
        }
        if in_code || trimmed.starts_with('>') {
            continue;
        }
        split_line(line, start, &mut found);
        if found.len() >= MAX_SENTENCES {
            found.truncate(MAX_SENTENCES);
            break;
        }
    }
    found
}

fn split_line<'a>(line: &'a str, offset: usize, found: &mut Vec<Sentence<'a>>) {
    let mut begin = 0;
    let mut chars = line.char_indices().peekable();
    while let Some((at, character)) = chars.next() {
        let wide = matches!(character, '。' | '！' | '？' | '؟' | '।');
        if !wide && !matches!(character, '.' | '!' | '?' | ';' | '…' | ':') {
            continue;
        }
        // Repeated marks, and a closing quote or bracket, belong to the sentence before.
        let mut end = at + character.len_utf8();
        while let Some((next_at, next)) = chars.peek().copied() {
            if !matches!(next, '.' | '!' | '?' | '"' | '”' | ')' | '\'' | '’' | '*') {
                break;
            }
            end = next_at + next.len_utf8();
            chars.next();
        }
        let before_space =
            line.get(end..).is_none_or(|rest| rest.starts_with(char::is_whitespace) || rest.is_empty());
        let before = line.get(begin..at).unwrap_or_default();
        let ends = match character {
            _ if wide => true,
            '.' => before_space && !abbreviates(before),
            // "We have a date: the 8th" is one statement; "Translate: …" and "Remember: …" refer to the text
            // that follows.
            ':' => {
                before_space
                    && (commands(before) || line.get(end..).is_some_and(|rest| rest.trim().is_empty()))
            }
            _ => before_space,
        };
        if ends {
            push(line, begin, end, offset, found);
            begin = end;
        }
    }
    push(line, begin, line.len(), offset, found);
}

/// Whether the text before a colon commands something about the text after it.
fn commands(before: &str) -> bool {
    words(before, 0).iter().any(|word| REQUESTS.contains(&word.lower) || KEEPING.contains(&word.lower))
}

/// Whether the text before a full stop ends in an abbreviation or an initial.
fn abbreviates(before: &str) -> bool {
    let last = before.rsplit(|c: char| c.is_whitespace() || c == '(').next().unwrap_or_default();
    let lower = last.to_lowercase();
    let initial = last.chars().count() == 1 && last.chars().all(char::is_uppercase) && last != "I";
    let number = !last.is_empty() && before.trim() == last && last.chars().all(|c| c.is_ascii_digit());
    initial || number || ABBREVIATIONS.contains(&lower)
}

fn push<'a>(line: &'a str, begin: usize, end: usize, offset: usize, found: &mut Vec<Sentence<'a>>) {
    let Some(raw) = line.get(begin..end) else { return };
    let text = raw.trim();
    if text.is_empty() {
        return;
    }
    let lead = raw.len() - raw.trim_start().len();
    let start = offset + begin + lead;
    let words = without_quotes(text, start, words(text, start));
    if !words.is_empty() {
        found.push(Sentence { text, start, words });
    }
}

/// Removes quoted words of other speakers: text in double quotes that is longer than a name, if other text
/// stands beside it.
fn without_quotes(text: &str, offset: usize, words: Vec<Word>) -> Vec<Word> {
    let marks: Vec<usize> = text
        .char_indices()
        .filter(|(_, c)| matches!(c, '"' | '“' | '”' | '„' | '«' | '»'))
        .map(|(at, _)| at + offset)
        .collect();
    let mut kept = words;
    for pair in marks.chunks_exact(2) {
        let [open, close] = pair else { continue };
        let inside = |word: &Word| word.start > *open && word.end <= *close;
        let quoted = kept.iter().filter(|word| inside(word)).count();
        if quoted > 2 && quoted < kept.len() {
            kept.retain(|word| !inside(word));
        }
    }
    kept
}

/// The words of a text that begins at `offset` of its message.
pub(super) fn words(text: &str, offset: usize) -> Vec<Word> {
    let mut out: Vec<Word> = Vec::new();
    let mut last_end = 0;
    for (at, raw) in text.unicode_word_indices() {
        let between = text.get(last_end..at).unwrap_or_default();
        let gap = last_end > 0
            && between.chars().any(|c| {
                !c.is_whitespace() && !matches!(c, '-' | '\'' | '’' | '/' | '*' | '_' | '$' | '€' | '#')
            });
        last_end = at + raw.len();
        let lower = folded(raw).replace('’', "'");
        let capital = raw.chars().next().is_some_and(char::is_uppercase);
        let (start, end) = (offset + at, offset + at + raw.len());
        let mut first = true;
        for part in written_out(&lower) {
            out.push(Word { lower: part, start, end, capital: capital && first, gap: gap && first });
            first = false;
        }
        if out.len() >= MAX_SENTENCE_WORDS {
            break;
        }
    }
    out
}

/// Expands a contraction.
fn written_out(word: &str) -> Vec<String> {
    if let Some(full) = CONTRACTIONS.get(word) {
        return full.iter().map(|word| (*word).to_owned()).collect();
    }
    let two = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
    for (suffix, full) in
        [("n't", "not"), ("'re", "are"), ("'ve", "have"), ("'ll", "will"), ("'d", "would"), ("'m", "am")]
    {
        if let Some(stem) = word.strip_suffix(suffix).filter(|stem| !stem.is_empty()) {
            return two(stem, full);
        }
    }
    match word.strip_suffix("'s") {
        Some(stem) if IS_AFTER.contains(stem) => two(stem, "is"),
        // "My dog's called Rex", "my dog's name": the same two words in both cases.
        Some(stem) if !stem.is_empty() => two(stem, "'s"),
        _ => vec![word.to_owned()],
    }
}

/// The clauses of a sentence as ranges of its words: cut at punctuation, and where a conjunction meets a new
/// subject.
pub(super) fn clauses(words: &[Word]) -> Vec<std::ops::Range<usize>> {
    const SUBJECT: &[&str] =
        &["i", "my", "we", "our", "he", "she", "they", "his", "her", "their", "do", "please", "never"];
    let mut cuts = vec![0];
    for (at, word) in words.iter().enumerate().skip(1) {
        let next_is_subject = words.get(at + 1).is_some_and(|next| SUBJECT.contains(&next.lower.as_str()));
        if word.gap || (JOINING.contains(&word.lower) && next_is_subject) {
            cuts.push(at);
        }
    }
    cuts.push(words.len());
    cuts.windows(2)
        .filter_map(|pair| match pair {
            [from, to] if from < to => Some(*from..*to),
            _ => None,
        })
        .collect()
}

/// An element of a pattern.
#[derive(Debug)]
enum Element {
    /// One of these words, optional or not.
    Words(Vec<String>, bool),
    /// Up to this many words of any kind.
    Any(usize),
    /// Captures the words up to the end of the phrase.
    Phrase,
    /// Captures words that begin with capitals.
    Name,
    /// Captures one word.
    One,
    /// Captures one word of a set.
    OneOf(Vec<String>),
    /// Captures a number.
    Number,
    /// Matches only at the beginning.
    Start,
    /// Matches only at the end.
    End,
}

/// A pattern over words.
///
/// Elements are separated by spaces:
///
/// - `a|b`: one of the words; `a|b?`: optionally one of them.
/// - `@set`: a word of a set of [`super::words`].
/// - `..`: up to two words; `....`: up to four.
/// - `<x>`: the words to the end of the phrase; `<X>`: words with capitals; `<w>`: one word; `<@set>`: one
///   word of a set; `#`: a number. All of these are captured.
/// - `^`: the beginning; `$`: the end.
#[derive(Debug)]
pub(super) struct Pattern {
    elements: Vec<Element>,
}

/// A match of a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Match {
    /// The first word.
    pub from: usize,
    /// The word after the last.
    pub to: usize,
    /// Ranges of words of the captures.
    pub captures: Vec<(usize, usize)>,
}

/// Most words of a `<x>`.
const MAX_PHRASE: usize = 8;
/// Most words of a `<X>`.
const MAX_NAME: usize = 5;

impl Pattern {
    /// Parses a pattern.
    pub(super) fn new(source: &str) -> Self {
        let elements = source.split_whitespace().map(|part| match part {
            "^" => Element::Start,
            "$" => Element::End,
            "<x>" => Element::Phrase,
            "<X>" => Element::Name,
            "<w>" => Element::One,
            "#" => Element::Number,
            sets if sets.starts_with("<@") => {
                let names = sets.trim_start_matches('<').trim_end_matches('>');
                Element::OneOf(alternatives(names))
            }
            dots if dots.bytes().all(|b| b == b'.') => Element::Any(dots.len()),
            listed => {
                let (list, optional) = listed.strip_suffix('?').map_or((listed, false), |list| (list, true));
                Element::Words(alternatives(list), optional)
            }
        });
        Self { elements: elements.collect() }
    }

    /// The first match in `range`.
    pub(super) fn find(&self, words: &[Word], range: std::ops::Range<usize>) -> Option<Match> {
        let slice = words.get(..range.end)?;
        range.clone().find_map(|from| {
            let mut captures = Vec::new();
            let to = step(&self.elements, slice, from, range.start, &mut captures)?;
            Some(Match { from, to, captures })
        })
    }
}

/// The words of a list such as `a|b|@set`.
fn alternatives(list: &str) -> Vec<String> {
    let words = list.split('|').flat_map(|one| match one.strip_prefix('@') {
        Some(name) => set(name).collect(),
        None => vec![one],
    });
    words.map(str::to_owned).collect()
}

/// Whether one of the patterns matches in `range`.
pub(super) fn any(patterns: &[Pattern], words: &[Word], range: std::ops::Range<usize>) -> bool {
    patterns.iter().any(|pattern| pattern.find(words, range.clone()).is_some())
}

fn step(
    rest: &[Element],
    words: &[Word],
    at: usize,
    begin: usize,
    captures: &mut Vec<(usize, usize)>,
) -> Option<usize> {
    let Some((element, rest)) = rest.split_first() else { return Some(at) };
    match element {
        Element::Start => (at == begin).then(|| step(rest, words, at, begin, captures)).flatten(),
        Element::End => (at == words.len()).then(|| step(rest, words, at, begin, captures)).flatten(),
        Element::Words(list, optional) => {
            let hit = words.get(at).is_some_and(|word| list.contains(&word.lower));
            let taken = if hit { step(rest, words, at + 1, begin, captures) } else { None };
            taken.or_else(|| if *optional { step(rest, words, at, begin, captures) } else { None })
        }
        Element::Any(most) => (0..=*most).find_map(|skip| {
            let inside = words.get(at..at + skip)?;
            let crosses = inside.iter().skip(1).any(|word| word.gap);
            if crosses { None } else { step(rest, words, at + skip, begin, captures) }
        }),
        Element::One => capture(rest, words, at, words.get(at).map(|_| at + 1), begin, captures),
        Element::OneOf(list) => {
            let is_one = words.get(at).is_some_and(|word| list.contains(&word.lower));
            capture(rest, words, at, is_one.then_some(at + 1), begin, captures)
        }
        Element::Number => {
            let is_number = words.get(at).is_some_and(|word| is_number(&word.lower));
            capture(rest, words, at, is_number.then_some(at + 1), begin, captures)
        }
        Element::Name => capture(rest, words, at, name_end(words, at), begin, captures),
        Element::Phrase => capture(rest, words, at, phrase_end(words, at), begin, captures),
    }
}

fn capture(
    rest: &[Element],
    words: &[Word],
    at: usize,
    end: Option<usize>,
    begin: usize,
    captures: &mut Vec<(usize, usize)>,
) -> Option<usize> {
    let end = end?;
    captures.push((at, end));
    let done = step(rest, words, end, begin, captures);
    if done.is_none() {
        captures.pop();
    }
    done
}

/// The end of a name that begins at `at`: consecutive capitals, with small words allowed between two of them.
pub(super) fn name_end(words: &[Word], at: usize) -> Option<usize> {
    let is_name = |word: &Word| word.capital && word.lower != "i" && !NOT_A_NAME.contains(&word.lower);
    words.get(at).filter(|word| is_name(word))?;
    let mut end = at + 1;
    while end < at + MAX_NAME {
        match (words.get(end), words.get(end + 1)) {
            (Some(word), _) if !word.gap && is_name(word) => end += 1,
            (Some(inner), Some(next))
                if !inner.gap && !next.gap && INNER.contains(&inner.lower) && is_name(next) =>
            {
                end += 2;
            }
            _ => break,
        }
    }
    Some(end)
}

fn phrase_end(words: &[Word], at: usize) -> Option<usize> {
    let mut end = at;
    while end < at + MAX_PHRASE {
        match words.get(end) {
            Some(word) if end == at || !(word.gap || PHRASE_ENDS.contains(&word.lower)) => end += 1,
            _ => break,
        }
    }
    let stops_at_once = words.get(at).is_none_or(|word| PHRASE_ENDS.contains(&word.lower));
    (end > at && !stops_at_once).then_some(end)
}

/// The message text of a range of words.
pub(super) fn span<'a>(message: &'a str, words: &[Word], from: usize, to: usize) -> &'a str {
    match (words.get(from), to.checked_sub(1).and_then(|last| words.get(last))) {
        (Some(first), Some(last)) if first.start < last.end => {
            message.get(first.start..last.end).unwrap_or_default()
        }
        _ => "",
    }
}
