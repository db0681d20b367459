//! Merges symbols to tokens: the best pair first, the leftmost among equals, until no pair can merge.
//!
//! For any text, work grows with its length times the logarithm of its length.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use zeroize::Zeroizing;

use super::words;
use crate::language::{
    LanguageError,
    vocabulary::{Kind, Pre, Vocabulary},
};

/// No token, or no neighbour.
const NONE: u32 = u32::MAX;

/// The byte of a character in a byte-level vocabulary: printable Latin-1 is its own byte, the other bytes
/// start at U+0100.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let printable = |code: u32| matches!(code, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(code) {
        return u8::try_from(code).ok();
    }
    let place = usize::try_from(code.checked_sub(0x100)?).ok()?;
    (0..=255u8).filter(|byte| !printable(u32::from(*byte))).nth(place)
}

/// The byte of a `<0xNN>` token.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// A symbol in a chain.
#[derive(Clone, Copy)]
struct Symbol {
    /// Identifies the symbol to its neighbours: a token, or its end position.
    value: u32,
    previous: u32,
    next: u32,
    alive: bool,
}

/// Symbols that are joined until no pair can merge.
struct Chain<K> {
    symbols: Zeroizing<Vec<u32>>,
    links: Vec<Symbol>,
    /// The best pair first: its key, its left symbol, and both symbols' values when it was queued.
    pairs: BinaryHeap<Reverse<(K, u32, u32, u32)>>,
}

impl<K: Ord + Copy> Chain<K> {
    fn new(values: impl Iterator<Item = u32>) -> Self {
        let mut links: Vec<Symbol> = (0u32..)
            .zip(values)
            .map(|(index, value)| Symbol {
                value,
                previous: index.wrapping_sub(1),
                next: index + 1,
                alive: true,
            })
            .collect();
        if let Some(last) = links.last_mut() {
            last.next = NONE;
        }
        Self { symbols: Zeroizing::default(), links, pairs: BinaryHeap::new() }
    }

    fn at(&self, index: u32) -> Option<Symbol> {
        self.links.get(index as usize).copied()
    }

    /// Joins pairs. For two neighbours, `join` returns the pair's key (a smaller key is better) and the
    /// joined value. It takes both symbols' indices.
    fn merge(&mut self, join: impl Fn(&Self, u32, u32) -> Option<(K, u32)>) {
        for left in 0..u32::try_from(self.links.len()).unwrap_or(0) {
            self.offer(left, &join);
        }
        while let Some(Reverse((_, left, left_value, right_value))) = self.pairs.pop() {
            let Some(first) = self.at(left).filter(|first| first.alive && first.value == left_value) else {
                continue;
            };
            let Some(second) = self.at(first.next).filter(|second| second.value == right_value) else {
                continue;
            };
            let Some((_, value)) = join(self, left, first.next) else { continue };
            if let Some(second) = self.links.get_mut(first.next as usize) {
                second.alive = false;
            }
            if let Some(third) = self.links.get_mut(second.next as usize) {
                third.previous = left;
            }
            if let Some(first) = self.links.get_mut(left as usize) {
                (first.value, first.next) = (value, second.next);
            }
            self.offer(first.previous, &join);
            self.offer(left, &join);
        }
        let mut index = 0;
        while let Some(symbol) = self.at(index) {
            self.symbols.push(symbol.value);
            index = symbol.next;
        }
    }

    /// Queues the pair with this left symbol.
    fn offer(&mut self, left: u32, join: &impl Fn(&Self, u32, u32) -> Option<(K, u32)>) {
        let Some(first) = self.at(left) else { return };
        let Some(second) = self.at(first.next) else { return };
        if let Some((key, _)) = join(self, left, first.next) {
            self.pairs.push(Reverse((key, left, first.value, second.value)));
        }
    }
}

/// Byte-level BPE.
pub(super) struct ByteLevel {
    pre: Pre,
    /// The token of each byte.
    of_byte: [u32; 256],
    /// Maps two tokens to the merge's rank and its result.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Words that are tokens themselves, for models that look them up first.
    whole: HashMap<Box<[u8]>, u32>,
}

impl ByteLevel {
    pub(super) fn new(vocabulary: &Vocabulary<'_>, pre: Pre) -> Result<Self, LanguageError> {
        let texts = || vocabulary.of_kind(&[Kind::Normal, Kind::Unused, Kind::Byte]);
        let ids: HashMap<&str, u32> = texts().map(|(id, text)| (text, id)).collect();
        let mut of_byte = [NONE; 256];
        let mut whole = HashMap::new();
        for (id, text) in texts() {
            let bytes: Option<Box<[u8]>> = text.chars().map(byte_of).collect();
            let Some(bytes) = bytes else { continue };
            if let [byte] = bytes[..] {
                of_byte[usize::from(byte)] = id;
            }
            if matches!(pre, Pre::Llama3 | Pre::Glm4) {
                whole.insert(bytes, id);
            }
        }
        let mut merges = HashMap::with_capacity(vocabulary.merges.len());
        let mut joined = String::new();
        for (index, merge) in vocabulary.merges.iter().enumerate() {
            let refuse = |why| LanguageError::File(format!("merge {index} {why}"));
            let (left, right) = merge
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty())
                .ok_or_else(|| refuse("is not two tokens"))?;
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let no_token = || refuse("has a part or a result that is no token");
            let id = |text: &str| ids.get(text).copied().ok_or_else(no_token);
            let rank = u32::try_from(index).map_err(|_| refuse("is one too many"))?;
            // A merge's result is longer than its parts, so merges cannot form a cycle.
            if merges.insert((id(left)?, id(right)?), (rank, id(&joined)?)).is_some() {
                return Err(refuse("is there twice"));
            }
        }
        Ok(Self { pre, of_byte, merges, whole })
    }

    /// Appends the ids of a text. A byte without a token gives no id.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        words::cut(self.pre, text, |word| {
            if let Some(id) = self.whole.get(word.as_bytes()) {
                ids.push(*id);
                return;
            }
            let bytes = word.bytes().map(|byte| self.of_byte[usize::from(byte)]);
            let mut chain: Chain<u32> = Chain::new(bytes);
            chain.merge(|chain, left, right| {
                let pair = (chain.at(left)?.value, chain.at(right)?.value);
                self.merges.get(&pair).copied()
            });
            ids.extend(chain.symbols.iter().copied().filter(|id| *id != NONE));
        });
    }
}

/// Merges by score.
pub(super) struct SentencePiece {
    /// Maps a text to its token and the token's score.
    tokens: HashMap<Box<str>, (u32, f32)>,
    longest: usize,
    of_byte: [u32; 256],
}

impl SentencePiece {
    pub(super) fn new(vocabulary: &Vocabulary<'_>) -> Self {
        let mut of_byte = [vocabulary.unknown.unwrap_or(NONE); 256];
        for (id, text) in vocabulary.of_kind(&[Kind::Byte]) {
            if let Some(byte) = byte_token(text) {
                of_byte[usize::from(byte)] = id;
            }
        }
        let text = [Kind::Normal, Kind::Unused, Kind::UserDefined, Kind::Byte];
        // Turns a negative zero into zero, so that scores can be ordered by their bits.
        let score = |id: u32| vocabulary.scores.get(id as usize).map_or(0.0, |score| score + 0.0);
        let tokens: HashMap<Box<str>, (u32, f32)> =
            vocabulary.of_kind(&text).map(|(id, text)| (text.into(), (id, score(id)))).collect();
        let longest = tokens.keys().map(|text| text.len()).max().unwrap_or(0);
        Self { tokens, longest, of_byte }
    }

    fn token(&self, text: &str) -> Option<(u32, f32)> {
        if text.len() > self.longest { None } else { self.tokens.get(text).copied() }
    }

    /// Appends the ids of a text, with a leading space if `space`. Text without a token becomes bytes, or the
    /// unknown token if there are none for it, or nothing.
    pub(super) fn encode(&self, text: &str, space: bool, ids: &mut Vec<u32>) {
        let mut escaped = Zeroizing::new(String::with_capacity(2 * text.len() + 3));
        if space {
            escaped.push('\u{2581}');
        }
        for character in text.chars() {
            escaped.push(if character == ' ' { '\u{2581}' } else { character });
        }
        let text = escaped.as_str();
        let starts: Zeroizing<Vec<usize>> = Zeroizing::new(text.char_indices().map(|(at, _)| at).collect());
        let start = |index: u32| starts.get(index as usize).copied().unwrap_or(text.len());
        // A symbol's value is its end position.
        let ends = (1u32..).take(starts.len()).map(|index| u32::try_from(start(index)).unwrap_or(NONE));
        let mut chain: Chain<(Reverse<i32>, u32)> = Chain::new(ends);
        chain.merge(|chain, left, right| {
            let end = chain.at(right)?.value;
            let (_, score) = self.token(text.get(start(left)..end as usize)?)?;
            Some(((Reverse(ordered(score)), left), end))
        });
        let mut begin = 0;
        for &end in chain.symbols.iter() {
            let symbol = text.get(begin..end as usize).unwrap_or_default();
            match self.token(symbol) {
                Some((id, _)) => ids.push(id),
                None => {
                    let bytes = symbol.bytes().map(|byte| self.of_byte[usize::from(byte)]);
                    ids.extend(bytes.filter(|id| *id != NONE));
                }
            }
            begin = end as usize;
        }
    }
}

/// An integer with the same order as finite floats.
fn ordered(score: f32) -> i32 {
    let bits = score.to_bits().cast_signed();
    if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits }
}
