//! A model's tokenizer, rebuilt from its file's metadata. Gives llama.cpp's ids.
//!
//! Special tokens are recognised only in the chat template's own text. All other text is encoded without
//! them, so no message can produce one. The same applies to a byte-level model's user-defined tokens, since
//! they often mark structure: in this, it differs from llama.cpp.

mod merge;
mod words;

#[cfg(test)]
mod tests;

use zeroize::Zeroizing;

use self::merge::{ByteLevel, SentencePiece};
use super::{
    LanguageError,
    template::Segment,
    vocabulary::{Family, KEEPS_SPACE, Kind, Vocabulary},
};
use crate::gguf::Gguf;

pub use super::vocabulary::{
    MAX_MERGES, MAX_TOKEN_BYTES, MAX_VOCABULARY, MAX_WHOLE_TOKENS, TOKENIZER_CONTEXT,
};

/// Converts text to ids and back, for one model.
pub struct Tokenizer {
    merger: Merger,
    /// Tokens that only the template can produce, the longest text first.
    special: Vec<(String, u32)>,
    /// Tokens that any text may produce as a whole, longest first (SentencePiece style only: runs of spaces
    /// and line ends).
    user_defined: Vec<(String, u32)>,
    bytes: TokenBytes,
    begin: Option<u32>,
    begin_text: String,
    end_text: String,
    strips_after: Vec<u32>,
    stops: Vec<u32>,
    hash: [u8; 32],
}

/// The tokens after which white space is dropped.
fn strips_after(vocabulary: &Vocabulary<'_>, special: &[Kind]) -> Vec<u32> {
    let strips = |(_, text): &(u32, &str)| vocabulary.strips && !KEEPS_SPACE.contains(text);
    vocabulary.of_kind(special).filter(strips).map(|(id, _)| id).collect()
}

enum Merger {
    ByteLevel(ByteLevel),
    SentencePiece { merges: SentencePiece, add_space_prefix: bool },
}

impl Tokenizer {
    /// Builds a tokenizer from a file's metadata; `bytes` is the file.
    ///
    /// # Errors
    /// [`LanguageError`] if the metadata are unsound, inconsistent or unsupported.
    pub fn load(header: &Gguf, bytes: &[u8]) -> Result<Self, LanguageError> {
        let vocabulary = Vocabulary::read(header, bytes)?;
        let (merger, special, user_defined): (_, &[Kind], &[Kind]) = match vocabulary.family {
            Family::ByteLevel(pre) => (
                Merger::ByteLevel(ByteLevel::new(&vocabulary, pre)?),
                &[Kind::Control, Kind::Unknown, Kind::UserDefined],
                &[],
            ),
            Family::SentencePiece { add_space_prefix } => (
                Merger::SentencePiece { merges: SentencePiece::new(&vocabulary), add_space_prefix },
                &[Kind::Control, Kind::Unknown],
                &[Kind::UserDefined],
            ),
        };
        let by_kind = |kinds: &[Kind]| {
            let mut found: Vec<(String, u32)> =
                vocabulary.of_kind(kinds).map(|(id, text)| (text.to_owned(), id)).collect();
            found.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
            found
        };
        let text_of = |id: Option<u32>| {
            let text = id.and_then(|id| vocabulary.tokens.get(id as usize));
            text.map_or(String::new(), |text| (*text).to_owned())
        };
        Ok(Self {
            special: by_kind(special),
            user_defined: by_kind(user_defined),
            bytes: TokenBytes::of(&vocabulary),
            begin: vocabulary.begin.filter(|_| vocabulary.add_begin),
            begin_text: text_of(vocabulary.begin),
            end_text: text_of(vocabulary.end),
            strips_after: strips_after(&vocabulary, special),
            stops: vocabulary.stops(),
            hash: vocabulary.hash(),
            merger,
        })
    }

    /// Tokens in the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.bytes.ends.len()
    }

    /// A token's bytes; empty for a control token or an unknown id.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.of_token(id)
    }

    /// The concatenated bytes of the tokens.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect())
    }

    /// Whether a token ends an answer.
    #[must_use]
    pub fn is_stop(&self, id: u32) -> bool {
        self.stops.contains(&id)
    }

    /// The tokens that end an answer.
    #[must_use]
    pub fn stops(&self) -> &[u32] {
        &self.stops
    }

    /// The text of the begin-of-text token; empty if there is none.
    #[must_use]
    pub fn begin_text(&self) -> &str {
        &self.begin_text
    }

    /// The text of the end-of-text token; empty if there is none.
    #[must_use]
    pub fn end_text(&self) -> &str {
        &self.end_text
    }

    /// The token to put before every prompt, if any.
    #[must_use]
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// BLAKE3, keyed by [`TOKENIZER_CONTEXT`], over vocabulary, types, merges and settings.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Encodes a rendered prompt. Special tokens are recognised inside template segments only. Between two of
    /// them, template text and contents are one text, so that words and merges fall as in training. Puts the
    /// begin-of-text token first if the model requires it and the template has not written it.
    #[must_use]
    pub fn encode(&self, segments: &[Segment]) -> Zeroizing<Vec<u32>> {
        let mut ids = self.encode_bare(segments);
        if let Some(begin) = self.begin
            && ids.first() != Some(&begin)
        {
            ids.insert(0, begin);
        }
        ids
    }

    /// The ids of plain text, without special tokens or a first token.
    #[must_use]
    pub fn encode_text(&self, text: &str) -> Zeroizing<Vec<u32>> {
        let mut ids = Zeroizing::new(Vec::new());
        self.encode_plain(text, &mut ids);
        ids
    }

    /// As [`Self::encode`], without adding the first token.
    #[must_use]
    pub fn encode_bare(&self, segments: &[Segment]) -> Zeroizing<Vec<u32>> {
        let mut ids = Zeroizing::new(Vec::new());
        let mut plain = Zeroizing::new(String::new());
        for segment in segments {
            match segment {
                Segment::Content(text) => plain.push_str(text),
                Segment::Template(text) => {
                    for piece in split_longest_first(text, &self.special) {
                        match piece {
                            Atom::Text(text) => plain.push_str(text),
                            Atom::Token(id) => {
                                self.encode_after(&plain, &mut ids);
                                plain = Zeroizing::new(String::new());
                                ids.push(id);
                            }
                        }
                    }
                }
            }
        }
        self.encode_after(&plain, &mut ids);
        ids
    }

    /// Encodes text without special tokens, after the existing ids.
    fn encode_after(&self, text: &str, ids: &mut Vec<u32>) {
        let strips = ids.last().is_some_and(|id| self.strips_after.contains(id));
        let space = |one: char| one.is_ascii_whitespace() || one == '\u{b}';
        self.encode_plain(if strips { text.trim_start_matches(space) } else { text }, ids);
    }

    /// Encodes text without special tokens. `text` begins the prompt or follows a special token.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        for piece in split_longest_first(text, &self.user_defined) {
            match (piece, &self.merger) {
                (Atom::Token(id), _) => ids.push(id),
                (Atom::Text(text), Merger::ByteLevel(merges)) => merges.encode(text, ids),
                // A piece begins the text or follows a token, so each piece gets the prefix.
                (Atom::Text(text), Merger::SentencePiece { merges, add_space_prefix }) => {
                    merges.encode(text, *add_space_prefix, ids);
                }
            }
        }
    }
}

enum Atom<'a> {
    Text(&'a str),
    Token(u32),
}

/// Splits `text` at the given tokens, all places of the longest first, as llama.cpp does.
fn split_longest_first<'a>(text: &'a str, tokens: &[(String, u32)]) -> Vec<Atom<'a>> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut atoms = vec![Atom::Text(text)];
    for (token, id) in tokens {
        if !text.contains(token.as_str()) {
            continue;
        }
        let mut next = Vec::new();
        for atom in atoms {
            let Atom::Text(text) = atom else {
                next.push(atom);
                continue;
            };
            for (index, part) in text.split(token.as_str()).enumerate() {
                if index > 0 {
                    next.push(Atom::Token(*id));
                }
                if !part.is_empty() {
                    next.push(Atom::Text(part));
                }
            }
        }
        atoms = next;
    }
    atoms
}

/// The bytes of all tokens, concatenated.
struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl TokenBytes {
    fn of(vocabulary: &Vocabulary<'_>) -> Self {
        let mut all = Self { bytes: Vec::new(), ends: Vec::with_capacity(vocabulary.tokens.len()) };
        for (text, kind) in vocabulary.tokens.iter().zip(&vocabulary.kinds) {
            let sentence_piece = matches!(vocabulary.family, Family::SentencePiece { .. });
            match kind {
                Kind::Control => {}
                Kind::Byte if sentence_piece => all.bytes.extend(merge::byte_token(text)),
                _ if sentence_piece => all.bytes.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
                Kind::UserDefined => all.bytes.extend_from_slice(text.as_bytes()),
                _ => all.bytes.extend(text.chars().filter_map(merge::byte_of)),
            }
            // Never saturates: the header's byte limit is far below.
            all.ends.push(u32::try_from(all.bytes.len()).unwrap_or(u32::MAX));
        }
        all
    }

    fn of_token(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let begin = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let end = self.ends.get(index).copied();
        let bytes = begin.zip(end).and_then(|(begin, end)| self.bytes.get(begin as usize..end as usize));
        bytes.unwrap_or_default()
    }
}
