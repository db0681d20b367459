//! The tokenizer's fields in a file's metadata, checked against each other before use.

use std::collections::HashMap;

use super::LanguageError;
use crate::gguf::{Array, Gguf, GgufError, Value, ValueKind};

/// Maximum number of tokens of a vocabulary; the largest in use have 262,144.
pub const MAX_VOCABULARY: usize = 1 << 20;
/// Maximum number of merges; the largest lists in use have some 500,000.
pub const MAX_MERGES: usize = 1 << 21;
/// Maximum size in bytes of a token; the longest in use have some hundreds.
pub const MAX_TOKEN_BYTES: usize = 4_096;
/// Maximum number of tokens that are searched as a whole, each in the whole text. Gemma has 6,414.
pub const MAX_WHOLE_TOKENS: usize = 16_384;

/// The key of hashes over vocabularies, which are part of a model's identity.
pub const TOKENIZER_CONTEXT: &str = "baton 2026-11-21 tokenizer v1";

/// Texts that identify an end-of-turn token if the metadata name none. They are control tokens whatever type the
/// file gives, as in llama.cpp, unless a merge builds them: such a token is ordinary text. Qwen2.5 Coder has merges
/// for `</s>`, which ends a struck-out text in HTML.
const END_OF_TURN_TEXTS: [&str; 6] =
    ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>"];

/// The type of a token (`llama_token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal = 1,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The types with a name, in the order of their numbers.
const KINDS: [Kind; 6] =
    [Kind::Normal, Kind::Unknown, Kind::Control, Kind::UserDefined, Kind::Unused, Kind::Byte];

/// How a text is split into words before tokenization (`tokenizer.ggml.pre`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pre {
    /// GPT-2's expression.
    Gpt2,
    /// Digits one by one, then GPT-2's expression.
    SmolLm,
    /// Llama 3's: up to three digits; line ends join the characters before them.
    Llama3,
    /// GLM 4's: split and merged as Llama 3's, without a first token.
    Glm4,
    /// Qwen 2's: as Llama 3's, with single digits.
    Qwen2,
    /// llama.cpp's default for a file without an entry.
    Default,
}

/// The two kinds of tokenizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// GPT-2 style: byte-level BPE with a list of merges.
    ByteLevel(Pre),
    /// SentencePiece style: merges by score, bytes as `<0x..>` tokens, space as `▁`.
    SentencePiece { add_space_prefix: bool },
}

/// The fields, sound and of matching lengths.
pub(super) struct Vocabulary<'a> {
    pub(super) family: Family,
    model: &'a str,
    pre: &'a str,
    pub(super) tokens: Vec<&'a str>,
    pub(super) kinds: Vec<Kind>,
    /// The file's numbers, for the hash.
    numbers: Vec<u32>,
    pub(super) merges: Vec<&'a str>,
    pub(super) scores: Vec<f32>,
    pub(super) begin: Option<u32>,
    pub(super) end: Option<u32>,
    pub(super) unknown: Option<u32>,
    pub(super) add_begin: bool,
    /// Whether white space after a special token is dropped, as in Phi 3's training.
    pub(super) strips: bool,
    stops: Vec<u32>,
}

/// Special tokens after which white space always stays.
pub(super) const KEEPS_SPACE: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

impl<'a> Vocabulary<'a> {
    pub(super) fn read(header: &'a Gguf, bytes: &'a [u8]) -> Result<Self, LanguageError> {
        let model = header.optional_str(MODEL)?.ok_or(LanguageError::Missing(MODEL))?;
        let pre = header.optional_str(PRE)?.unwrap_or("default");
        let family = match (model, pre) {
            ("gpt2", "gpt-2" | "phi-2") => Family::ByteLevel(Pre::Gpt2),
            ("gpt2", "smollm") => Family::ByteLevel(Pre::SmolLm),
            ("gpt2", "llama-bpe" | "llama3" | "llama-v3" | "lfm2") => Family::ByteLevel(Pre::Llama3),
            ("gpt2", "glm4") => Family::ByteLevel(Pre::Glm4),
            ("gpt2", "qwen2" | "deepseek-r1-qwen") => Family::ByteLevel(Pre::Qwen2),
            ("gpt2", "default") => Family::ByteLevel(Pre::Default),
            ("llama", _) => Family::SentencePiece {
                add_space_prefix: flag(header, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
            },
            _ => return Err(LanguageError::Unknown { model: model.to_owned(), pre: pre.to_owned() }),
        };
        let tokens = strings(header, bytes, TOKENS, MAX_VOCABULARY)?;
        let numbers = types(header, bytes, tokens.len())?;
        let merges = match family {
            Family::ByteLevel(_) => strings(header, bytes, MERGES, MAX_MERGES)?,
            Family::SentencePiece { .. } => Vec::new(),
        };
        let kinds = sound_tokens(&tokens, &numbers, &merges)?;
        let count = tokens.len();
        let add_begin = family == Family::ByteLevel(Pre::Llama3) || model == "llama";
        let id = |key| token_id(header, key, count);
        let mut vocabulary = Self {
            merges,
            scores: match family {
                Family::ByteLevel(_) => Vec::new(),
                Family::SentencePiece { .. } => scores(header, bytes, count)?,
            },
            begin: id("tokenizer.ggml.bos_token_id")?,
            end: id("tokenizer.ggml.eos_token_id")?,
            unknown: id("tokenizer.ggml.unknown_token_id")?,
            add_begin: flag(header, "tokenizer.ggml.add_bos_token")?.unwrap_or(add_begin),
            strips: model == "llama" && header.optional_str("general.architecture")? == Some("phi3"),
            stops: Vec::new(),
            family,
            model,
            pre,
            tokens,
            kinds,
            numbers,
        };
        let named =
            ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
        for key in named {
            vocabulary.stops.extend(id(key)?);
        }
        Ok(vocabulary)
    }

    /// The tokens that end an answer: those in the metadata, and tokens known by their text.
    pub(super) fn stops(&self) -> Vec<u32> {
        let known = self.of_kind(&[Kind::Control]).filter(|(_, text)| END_OF_TURN_TEXTS.contains(text));
        let mut stops = self.stops.clone();
        stops.extend(known.map(|(id, _)| id));
        let mut seen = Vec::new();
        stops.retain(|id| {
            !seen.contains(id) && {
                seen.push(*id);
                true
            }
        });
        stops
    }

    /// The tokens of these kinds.
    pub(super) fn of_kind(&self, wanted: &[Kind]) -> impl Iterator<Item = (u32, &'a str)> {
        (0u32..)
            .zip(self.tokens.iter().zip(&self.kinds))
            .filter(|(_, (_, kind))| wanted.contains(kind))
            .map(|(id, (text, _))| (id, *text))
    }

    /// BLAKE3 over vocabulary, types, merges and settings.
    pub(super) fn hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(TOKENIZER_CONTEXT);
        let settings = [self.begin.map_or(u64::MAX, u64::from), self.end.map_or(u64::MAX, u64::from)];
        update_field(&mut hasher, self.model.as_bytes());
        update_field(&mut hasher, self.pre.as_bytes());
        for setting in settings {
            update_field(&mut hasher, &setting.to_le_bytes());
        }
        let prefix = matches!(self.family, Family::SentencePiece { add_space_prefix: true });
        update_field(&mut hasher, &[u8::from(self.add_begin), u8::from(prefix)]);
        if self.strips {
            update_field(&mut hasher, b"strips");
        }
        for (token, number) in self.tokens.iter().zip(&self.numbers) {
            update_field(&mut hasher, token.as_bytes());
            update_field(&mut hasher, &number.to_le_bytes());
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

/// Feeds one field with a length prefix, so that no two field lists give the same bytes.
fn update_field(hasher: &mut blake3::Hasher, field: &[u8]) {
    hasher.update(&(field.len() as u64).to_le_bytes());
    hasher.update(field);
}

fn wrong_kind(key: &str, wanted: &'static str) -> LanguageError {
    GgufError::Kind { key: key.to_owned(), wanted }.into()
}

fn too_many(what: &str, found: usize, limit: usize) -> LanguageError {
    LanguageError::File(format!("{found} {what} are more than {limit}"))
}

fn lengths(key: &str, found: usize, wanted: usize) -> LanguageError {
    LanguageError::File(format!("{key:?} has {found} elements, the vocabulary {wanted}"))
}

fn unsound_token(index: usize, why: &str) -> LanguageError {
    LanguageError::File(format!("token {index} {why}"))
}

fn flag(header: &Gguf, key: &'static str) -> Result<Option<bool>, LanguageError> {
    match header.get(key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(wrong_kind(key, "yes or no")),
    }
}

fn token_id(header: &Gguf, key: &'static str, count: usize) -> Result<Option<u32>, LanguageError> {
    let Some(value) = header.get(key) else { return Ok(None) };
    let id = value.as_u64().ok_or_else(|| wrong_kind(key, "a token"))?;
    match u32::try_from(id) {
        Ok(small) if id < count as u64 => Ok(Some(small)),
        _ => Err(LanguageError::File(format!("{key:?} is {id}, which is no token"))),
    }
}

fn array<'a>(
    header: &'a Gguf,
    key: &'static str,
    kinds: &[ValueKind],
    wanted: &'static str,
) -> Result<Option<&'a Array>, LanguageError> {
    match header.get(key) {
        None => Ok(None),
        Some(Value::Array(array)) if kinds.contains(&array.kind) => Ok(Some(array)),
        Some(_) => Err(wrong_kind(key, wanted)),
    }
}

fn strings<'a>(
    header: &'a Gguf,
    bytes: &'a [u8],
    key: &'static str,
    limit: usize,
) -> Result<Vec<&'a str>, LanguageError> {
    let array = array(header, key, &[ValueKind::String], "a list of strings")?;
    let array = array.ok_or(LanguageError::Missing(key))?;
    if array.count > limit {
        return Err(too_many("elements of a list", array.count, limit));
    }
    let found: Option<Vec<&str>> =
        array.strings(bytes).map(|string| std::str::from_utf8(string).ok()).collect();
    let found = found.ok_or_else(|| wrong_kind(key, "UTF-8"))?;
    if found.len() == array.count { Ok(found) } else { Err(lengths(key, found.len(), array.count)) }
}

/// The tokens' types, in the file's numbering; normal if the file has none.
fn types(header: &Gguf, bytes: &[u8], count: usize) -> Result<Vec<u32>, LanguageError> {
    let wanted = "a list of whole numbers";
    let Some(array) = array(header, TYPES, &[ValueKind::I32, ValueKind::U32], wanted)? else {
        return Ok(vec![Kind::Normal as u32; count]);
    };
    let types: Vec<i64> = array.integers(bytes).take(count).collect();
    if array.count != count || types.len() != count {
        return Err(lengths(TYPES, array.count, count));
    }
    let number = |(index, number): (usize, i64)| match u32::try_from(number) {
        Ok(number @ 1..=6) => Ok(number),
        _ => Err(unsound_token(index, "is of no known type")),
    };
    types.into_iter().enumerate().map(number).collect()
}

fn scores(header: &Gguf, bytes: &[u8], count: usize) -> Result<Vec<f32>, LanguageError> {
    let array = array(header, SCORES, &[ValueKind::F32], "a list of numbers")?;
    let array = array.ok_or(LanguageError::Missing(SCORES))?;
    let scores: Vec<f32> = array.floats(bytes).take(count).collect();
    if array.count != count || scores.len() != count {
        return Err(lengths(SCORES, array.count, count));
    }
    match scores.iter().position(|score| !score.is_finite()) {
        Some(index) => Err(unsound_token(index, "has a score that is no number")),
        None => Ok(scores),
    }
}

/// Whether a merge, two texts with a space between them, joins to `text`.
fn builds(merge: &str, text: &str) -> bool {
    merge.split_once(' ').is_some_and(|(left, right)| text.strip_prefix(left) == Some(right))
}

/// Refuses empty, too long or duplicate tokens; returns each token's kind.
fn sound_tokens(tokens: &[&str], numbers: &[u32], merges: &[&str]) -> Result<Vec<Kind>, LanguageError> {
    let mut seen: HashMap<&str, usize> = HashMap::with_capacity(tokens.len());
    let mut kinds = Vec::with_capacity(tokens.len());
    for (index, (token, number)) in tokens.iter().zip(numbers).enumerate() {
        let refuse = |why| Err(unsound_token(index, why));
        if token.is_empty() {
            return refuse("is empty");
        }
        if token.len() > MAX_TOKEN_BYTES {
            return refuse("is too long");
        }
        if seen.insert(token, index).is_some() {
            return refuse("is there twice");
        }
        let kind = KINDS.into_iter().find(|kind| *kind as u32 == *number).unwrap_or(Kind::Unused);
        let control = END_OF_TURN_TEXTS.contains(token) && !merges.iter().any(|merge| builds(merge, token));
        kinds.push(if control { Kind::Control } else { kind });
    }
    let whole = [Kind::Control, Kind::Unknown, Kind::UserDefined];
    let found = kinds.iter().filter(|kind| whole.contains(kind)).count();
    if found > MAX_WHOLE_TOKENS {
        return Err(too_many("special tokens", found, MAX_WHOLE_TOKENS));
    }
    Ok(kinds)
}
