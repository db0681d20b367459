//! A model's tokenizer, rebuilt from its GGUF metadata.
//!
//! Special tokens are found only in text that the chat template itself wrote; the tokenizer that reads
//! everything else does not know them, so no message can produce one. Candle's own GGUF conversion is not
//! used: it gives other ids than the model was trained with.

use std::collections::HashMap;

use baton_keys::contexts::TOKENIZER;
use candle_core::quantized::gguf_file::Value;
use tokenizers::{
    Tokenizer,
    models::bpe::BPE,
    pre_tokenizers::{byte_level::ByteLevel, digits::Digits, sequence::Sequence},
};
use zeroize::Zeroizing;

use super::{EngineError, native::LoadError, template::Segment};

/// Tokens of a vocabulary; the largest in use have 262,144.
const MAX_VOCABULARY: usize = 1 << 20;

/// GGUF token types (`llama_token_type`).
const TYPE_NORMAL: u32 = 1;
const TYPE_CONTROL: u32 = 3;
const TYPE_USER_DEFINED: u32 = 4;
const TYPE_BYTE: u32 = 6;

/// Texts by which a control token that ends a turn is known, where the metadata name none.
const END_OF_TURN_TEXTS: [&str; 6] =
    ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// GPT-2 style: byte-level BPE with a merge list.
    ByteLevel { individual_digits: bool },
    /// SentencePiece style: merges by score, bytes as `<0x..>` tokens, space as `▁`.
    SentencePiece { add_space_prefix: bool },
}

/// Text to ids and back for one model.
pub(crate) struct ModelTokenizer {
    inner: Tokenizer,
    family: Family,
    /// Tokens that only the template can produce, longest text first.
    special: Vec<(String, u32)>,
    /// Tokens that any text may produce as a whole, longest first (SentencePiece style only: runs of spaces
    /// and line ends). A byte-level model's are kept from texts too, since they often mark structure.
    user_defined: Vec<(String, u32)>,
    /// The bytes of each token; empty for control tokens.
    bytes: Vec<Box<[u8]>>,
    begin: Option<u32>,
    begin_text: String,
    end_text: String,
    stop_ids: Vec<u32>,
    hash: [u8; 32],
}

impl ModelTokenizer {
    pub(crate) fn from_gguf(metadata: &HashMap<String, Value>) -> Result<Self, LoadError> {
        let fields = Fields::read(metadata)?;
        let inner = match fields.family {
            Family::ByteLevel { individual_digits } => fields.byte_level(individual_digits)?,
            Family::SentencePiece { .. } => fields.sentence_piece()?,
        };
        let by_type = |wanted: &[u32]| {
            let mut found: Vec<(String, u32)> = (0u32..)
                .zip(fields.tokens.iter().zip(&fields.types))
                .filter(|(_, (text, kind))| wanted.contains(kind) && !text.is_empty())
                .map(|(id, (text, _))| (fields.plain_text(text), id))
                .collect();
            found.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
            found
        };
        let sentence_piece = matches!(fields.family, Family::SentencePiece { .. });
        let text_of = |id: Option<u32>| {
            id.and_then(|id| fields.tokens.get(id as usize)).map_or(String::new(), |text| (*text).to_owned())
        };
        Ok(Self {
            special: by_type(if sentence_piece {
                &[TYPE_CONTROL]
            } else {
                &[TYPE_CONTROL, TYPE_USER_DEFINED]
            }),
            user_defined: if sentence_piece { by_type(&[TYPE_USER_DEFINED]) } else { Vec::new() },
            bytes: fields.token_bytes(),
            begin: fields.begin.filter(|_| fields.add_begin),
            begin_text: text_of(fields.begin),
            end_text: text_of(fields.end),
            stop_ids: fields.stop_ids(metadata),
            hash: fields.hash(),
            family: fields.family,
            inner,
        })
    }

    /// Tokens in the vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that a token stands for; none for a control token or an unknown id.
    pub(crate) fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }

    pub(crate) fn is_stop(&self, id: u32) -> bool {
        self.stop_ids.contains(&id)
    }

    /// A token that ends an answer, if there is one in the vocabulary.
    pub(crate) fn stop_id(&self) -> Option<u32> {
        self.stop_ids.iter().copied().find(|&id| (id as usize) < self.vocabulary())
    }

    pub(crate) fn begin_text(&self) -> &str {
        &self.begin_text
    }

    pub(crate) fn end_text(&self) -> &str {
        &self.end_text
    }

    /// BLAKE3 over vocabulary, types, merges and settings, for the manifest.
    pub(crate) fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Encodes a rendered prompt. Special tokens are recognised inside template segments only; between two
    /// of them, template text and contents are one text, so words and merges fall as in training.
    pub(crate) fn encode(&self, segments: &[Segment]) -> Result<Zeroizing<Vec<u32>>, EngineError> {
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
                                self.encode_plain(&plain, &mut ids)?;
                                plain = Zeroizing::new(String::new());
                                ids.push(id);
                            }
                        }
                    }
                }
            }
        }
        self.encode_plain(&plain, &mut ids)?;
        if let Some(begin) = self.begin
            && ids.first() != Some(&begin)
        {
            ids.insert(0, begin);
        }
        Ok(ids)
    }

    /// Encodes text that cannot hold special tokens. `text` begins the prompt or follows a special token.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EngineError> {
        if text.is_empty() {
            return Ok(());
        }
        let spaced;
        let text = match self.family {
            Family::ByteLevel { .. } => text,
            Family::SentencePiece { add_space_prefix } => {
                spaced = Zeroizing::new(if add_space_prefix { format!(" {text}") } else { text.to_owned() });
                &spaced
            }
        };
        for piece in split_longest_first(text, &self.user_defined) {
            match piece {
                Atom::Token(id) => ids.push(id),
                Atom::Text(text) => {
                    let replaced;
                    let text = if matches!(self.family, Family::SentencePiece { .. }) {
                        replaced = Zeroizing::new(text.replace(' ', "\u{2581}"));
                        replaced.as_str()
                    } else {
                        text
                    };
                    let encoding = self.inner.encode_fast(text, false).map_err(|_| EngineError::Tokenizer)?;
                    ids.extend_from_slice(encoding.get_ids());
                }
            }
        }
        Ok(())
    }
}

enum Atom<'a> {
    Text(&'a str),
    Token(u32),
}

/// Cuts `text` at the given tokens, all places of the longest first, as llama.cpp does.
fn split_longest_first<'a>(text: &'a str, tokens: &[(String, u32)]) -> Vec<Atom<'a>> {
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

/// The tokenizer's fields in the metadata.
struct Fields<'a> {
    family: Family,
    model: &'a str,
    pre: &'a str,
    tokens: Vec<&'a str>,
    types: Vec<u32>,
    merges: Vec<&'a str>,
    scores: Vec<f32>,
    begin: Option<u32>,
    end: Option<u32>,
    add_begin: bool,
}

impl<'a> Fields<'a> {
    fn read(metadata: &'a HashMap<String, Value>) -> Result<Self, LoadError> {
        let text = |key: &'static str| match metadata.get(key) {
            Some(Value::String(text)) => Ok(text.as_str()),
            _ => Err(LoadError::Metadata { key: key.into() }),
        };
        let array = |key: &'static str| match metadata.get(key) {
            Some(Value::Array(values)) if values.len() <= MAX_VOCABULARY => Ok(values.as_slice()),
            _ => Err(LoadError::Metadata { key: key.into() }),
        };
        let id = |key: &str| metadata.get(key).and_then(|value| value.to_u32().ok());
        let flag = |key: &str| metadata.get(key).and_then(|value| value.to_bool().ok());
        let strings = |key: &'static str| -> Result<Vec<&'a str>, LoadError> {
            array(key)?
                .iter()
                .map(|value| match value {
                    Value::String(text) => Ok(text.as_str()),
                    _ => Err(LoadError::Metadata { key: key.into() }),
                })
                .collect()
        };

        let model = text("tokenizer.ggml.model")?;
        let pre = text("tokenizer.ggml.pre").unwrap_or("default");
        let tokens = strings("tokenizer.ggml.tokens")?;
        let types = match metadata.get("tokenizer.ggml.token_type") {
            None => vec![TYPE_NORMAL; tokens.len()],
            Some(_) => array("tokenizer.ggml.token_type")?
                .iter()
                .map(|value| match value {
                    Value::I32(kind) => u32::try_from(*kind).ok(),
                    other => other.to_u32().ok(),
                })
                .collect::<Option<Vec<u32>>>()
                .ok_or(LoadError::Metadata { key: "tokenizer.ggml.token_type".into() })?,
        };
        if types.len() != tokens.len() {
            return Err(LoadError::Metadata { key: "tokenizer.ggml.token_type".into() });
        }
        let (family, merges, scores) = match (model, pre) {
            ("gpt2", "smollm") => {
                (Family::ByteLevel { individual_digits: true }, strings("tokenizer.ggml.merges")?, Vec::new())
            }
            ("gpt2", "gpt-2") => (
                Family::ByteLevel { individual_digits: false },
                strings("tokenizer.ggml.merges")?,
                Vec::new(),
            ),
            ("llama", _) => {
                let add_space_prefix = flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
                let scores = array("tokenizer.ggml.scores")?.iter().map(|value| value.to_f32());
                let scores = scores
                    .collect::<Result<Vec<f32>, _>>()
                    .map_err(|_| LoadError::Metadata { key: "tokenizer.ggml.scores".into() })?;
                (Family::SentencePiece { add_space_prefix }, Vec::new(), scores)
            }
            _ => return Err(LoadError::Unsupported { what: format!("tokenizer {model} / {pre}") }),
        };
        Ok(Self {
            family,
            model,
            pre,
            tokens,
            types,
            merges,
            scores,
            begin: id("tokenizer.ggml.bos_token_id"),
            end: id("tokenizer.ggml.eos_token_id"),
            add_begin: flag("tokenizer.ggml.add_bos_token").unwrap_or(model == "llama"),
        })
    }

    /// The tokens that plain text may be made of. Control tokens are left out, so nothing reaches them.
    fn text_vocabulary(&self) -> Vec<(String, u32)> {
        (0u32..)
            .zip(self.tokens.iter().zip(&self.types))
            .filter(|(_, (_, kind))| matches!(**kind, TYPE_NORMAL | TYPE_BYTE))
            .map(|(id, (text, _))| ((*text).to_owned(), id))
            .collect()
    }

    fn byte_level(&self, individual_digits: bool) -> Result<Tokenizer, LoadError> {
        let merges = self
            .merges
            .iter()
            .map(|merge| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())))
            .collect::<Option<Vec<_>>>()
            .ok_or(LoadError::Metadata { key: "tokenizer.ggml.merges".into() })?;
        let vocabulary: HashMap<String, u32> = self.text_vocabulary().into_iter().collect();
        let mut tokenizer = Tokenizer::new(self.bpe(vocabulary, merges, false)?);
        let bytes = ByteLevel::new(false, true, true);
        let steps =
            if individual_digits { vec![Digits::new(true).into(), bytes.into()] } else { vec![bytes.into()] };
        tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
        Ok(tokenizer)
    }

    fn sentence_piece(&self) -> Result<Tokenizer, LoadError> {
        if self.scores.len() != self.tokens.len() {
            return Err(LoadError::Metadata { key: "tokenizer.ggml.scores".into() });
        }
        let vocabulary: HashMap<String, u32> = self.text_vocabulary().into_iter().collect();
        let mut merges = Vec::new();
        for (text, &id) in &vocabulary {
            for (at, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(at);
                if let (Some(&left_id), Some(&right_id)) = (vocabulary.get(left), vocabulary.get(right)) {
                    merges.push((self.scores[id as usize], id, left_id, right_id));
                }
            }
        }
        // Best score first; the ids make the order of equals the same on every machine.
        merges.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
        let text = |id: u32| self.tokens[id as usize].to_owned();
        let merges = merges.into_iter().map(|(_, _, left, right)| (text(left), text(right))).collect();
        Ok(Tokenizer::new(self.bpe(vocabulary, merges, true)?))
    }

    fn bpe(
        &self,
        vocabulary: HashMap<String, u32>,
        merges: Vec<(String, String)>,
        byte_fallback: bool,
    ) -> Result<BPE, LoadError> {
        BPE::builder()
            .vocab_and_merges(vocabulary.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
            .byte_fallback(byte_fallback)
            // The cache would keep words of conversations for the life of the process.
            .cache_capacity(0)
            .build()
            .map_err(|error| LoadError::Tokenizer { reason: error.to_string() })
    }

    /// A token's text as it stands in plain text.
    fn plain_text(&self, text: &str) -> String {
        match self.family {
            Family::ByteLevel { .. } => text.to_owned(),
            Family::SentencePiece { .. } => text.replace('\u{2581}', " "),
        }
    }

    fn token_bytes(&self) -> Vec<Box<[u8]>> {
        let byte_of_char = byte_level_alphabet();
        let bytes_of = |text: &str, kind: u32| -> Box<[u8]> {
            match (kind, self.family) {
                (TYPE_CONTROL, _) => Box::from([]),
                (TYPE_USER_DEFINED, _) => self.plain_text(text).into_bytes().into(),
                (TYPE_BYTE, Family::SentencePiece { .. }) => {
                    byte_token(text).map_or(Box::from([]), |b| [b].into())
                }
                (_, Family::SentencePiece { .. }) => self.plain_text(text).into_bytes().into(),
                (_, Family::ByteLevel { .. }) => {
                    text.chars().filter_map(|character| byte_of_char.get(&character).copied()).collect()
                }
            }
        };
        self.tokens.iter().zip(&self.types).map(|(text, kind)| bytes_of(text, *kind)).collect()
    }

    /// The tokens that end an answer: those the metadata name, and control tokens known to mean it.
    fn stop_ids(&self, metadata: &HashMap<String, Value>) -> Vec<u32> {
        let named = ["eos_token_id", "eot_token_id", "eom_token_id"].into_iter().filter_map(|key| {
            metadata.get(&format!("tokenizer.ggml.{key}")).and_then(|value| value.to_u32().ok())
        });
        let known = (0u32..)
            .zip(self.tokens.iter().zip(&self.types))
            .filter(|(_, (text, kind))| **kind == TYPE_CONTROL && END_OF_TURN_TEXTS.contains(text))
            .map(|(id, _)| id);
        named.chain(known).collect()
    }

    fn hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(TOKENIZER.as_str());
        let settings = [self.begin.map_or(u64::MAX, u64::from), self.end.map_or(u64::MAX, u64::from)];
        update_field(&mut hasher, self.model.as_bytes());
        update_field(&mut hasher, self.pre.as_bytes());
        for setting in settings {
            update_field(&mut hasher, &setting.to_le_bytes());
        }
        let prefix = matches!(self.family, Family::SentencePiece { add_space_prefix: true });
        update_field(&mut hasher, &[u8::from(self.add_begin), u8::from(prefix)]);
        for (token, kind) in self.tokens.iter().zip(&self.types) {
            update_field(&mut hasher, token.as_bytes());
            update_field(&mut hasher, &kind.to_le_bytes());
        }
        for merge in &self.merges {
            update_field(&mut hasher, merge.as_bytes());
        }
        for score in &self.scores {
            update_field(&mut hasher, &score.to_le_bytes());
        }
        hasher.finalize().into()
    }
}

/// Feeds one field with its length before it, so that no two field lists give the same bytes.
fn update_field(hasher: &mut blake3::Hasher, field: &[u8]) {
    hasher.update(&(field.len() as u64).to_le_bytes());
    hasher.update(field);
}

/// The byte that a `<0xNN>` token stands for.
fn byte_token(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// GPT-2's printable stand-ins for bytes, reversed: printable Latin-1 stands for itself, the other bytes
/// for U+0100 onwards.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100u32;
    (0..=255u8)
        .map(|byte| {
            if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
                (char::from(byte), byte)
            } else {
                let character = char::from_u32(next).expect("U+0100 to U+0143 are characters");
                next += 1;
                (character, byte)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
