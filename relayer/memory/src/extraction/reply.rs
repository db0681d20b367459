//! Validates a model's answer: finds it in surrounding text, checks each field, and compares it with the
//! exchange. Any other answer is [`ModelError::Malformed`].

use std::collections::HashSet;

use baton_proto::text::is_invisible;
use rust_stemmers::{Algorithm, Stemmer};
use serde_json::Value;

use super::{
    Candidate, EntityKind, EntityMention, MessagePair, Mode, Risk, SummaryMessage, Verdict, canonical,
    extract::{MAX_CANDIDATES, candidate_of},
    flag,
    gate::read,
    holds_words,
    model::{ModelError, ModelExtraction},
    sensitive::{is_injection, is_secret},
    text::{Sentence, prefix, sentences, words},
    wording,
    words::{SCAFFOLD, STOP},
};
use crate::model::{Author, Layer, Text};

/// Most bytes of an answer that are read: no requested answer is longer.
const MAX_REPLY_BYTES: usize = 64 * 1024;
/// Most positions in an answer where JSON is tried.
const MAX_STARTS: usize = 64;
/// Flags of a verdict, and bytes of each.
const MAX_FLAGS: (usize, usize) = (16, 64);
/// Bytes of a verdict's note.
const MAX_NOTE_BYTES: usize = 512;
/// Most consecutive sentences of one quote.
const MAX_QUOTE_SENTENCES: usize = 3;

/// The first JSON value in a text that `wanted` accepts: alone, in a code fence, or between prose.
fn find_json<T>(text: &str, wanted: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let text = prefix(text, MAX_REPLY_BYTES);
    // A reasoning model may write JSON in its thoughts that it then rejects.
    let text = text.rsplit_once("</think>").map_or(text, |(_, after)| after);
    text.match_indices(['{', '[']).take(MAX_STARTS).find_map(|(at, _)| {
        let rest = text.get(at..)?;
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        values.next()?.ok().and_then(|value| wanted(&value))
    })
}

/// One line without control and invisible characters.
fn clean(text: &str, limit: usize) -> String {
    let kept = prefix(text, limit).chars().filter(|c| !is_invisible(*c));
    kept.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A verdict from a judge's answer: exactly mode, risk, flags, note and extractMemory.
pub(super) fn verdict(said: &str) -> Result<Verdict, ModelError> {
    let object = |value: &Value| value.as_object().filter(|fields| fields.contains_key("mode")).cloned();
    let fields = find_json(said, object).ok_or(ModelError::Malformed("no JSON object with a mode"))?;
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let mode =
        text("mode").and_then(Mode::named).ok_or(ModelError::Malformed("mode is none of the three"))?;
    let risk =
        text("risk").and_then(Risk::named).ok_or(ModelError::Malformed("risk is none of the three"))?;
    let extract_memory = fields
        .get("extractMemory")
        .and_then(Value::as_bool)
        .ok_or(ModelError::Malformed("extractMemory is not a boolean"))?;
    let flags = match fields.get("flags") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(all)) => all
            .iter()
            .map(flag_of)
            .collect::<Option<Vec<_>>>()
            .ok_or(ModelError::Malformed("a flag is not a text"))?,
        Some(_) => return Err(ModelError::Malformed("flags are not a list")),
    };
    let note = match fields.get("note") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(note)) => clean(note, MAX_NOTE_BYTES),
        Some(_) => return Err(ModelError::Malformed("note is not a text")),
    };
    Ok(Verdict {
        mode,
        risk,
        flags: flags.into_iter().flatten().take(MAX_FLAGS.0).collect(),
        note,
        extract_memory,
    })
}

/// A flag from a model. Only the rules may set flags that decide; a model may also set two that only add
/// care.
fn flag_of(value: &Value) -> Option<Option<String>> {
    const RULES_ALONE: &[&str] =
        &[flag::OFF_RECORD, flag::EXPLICIT, flag::SECRET, flag::SMALL_TALK, flag::RECAP, flag::QUESTION];
    let name: String = prefix(value.as_str()?, MAX_FLAGS.1)
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':' | '*'))
        .collect();
    Some((!name.is_empty() && !RULES_ALONE.contains(&name.as_str())).then_some(name))
}

/// Candidates from an extractor's answer. Each quote is located in the exchange, and its sentences become the
/// candidate: a model selects words, and adds none.
pub(super) fn extraction(said: &str, pair: &MessagePair<'_>) -> Result<ModelExtraction, ModelError> {
    let list = |value: &Value| match value {
        Value::Array(all) => Some(all.clone()),
        Value::Object(fields) => ["facts", "memories", "candidates", "items"]
            .iter()
            .find_map(|name| fields.get(*name)?.as_array().cloned()),
        _ => None,
    };
    let all = find_json(said, list).ok_or(ModelError::Malformed("no JSON list"))?;
    let mut out = ModelExtraction::default();
    // The floor holds against any model: nothing off the record is extracted.
    if read(pair).off_record {
        return Ok(out);
    }
    for value in all.iter().take(4 * MAX_CANDIDATES) {
        let known =
            |one: &Candidate| out.candidates.iter().any(|other| wording(&other.text) == wording(&one.text));
        match grounded(value, pair) {
            Some(candidate) if known(&candidate) => {}
            Some(candidate) if out.candidates.len() < MAX_CANDIDATES => out.candidates.push(candidate),
            Some(_) => {}
            None => out.ungrounded += 1,
        }
    }
    // All quotes are invented, so the model failed: another try, or the rules, may do better.
    if out.candidates.is_empty() && out.ungrounded > 0 {
        return Err(ModelError::Malformed("nothing that it quotes was said"));
    }
    Ok(out)
}

fn grounded(value: &Value, pair: &MessagePair<'_>) -> Option<Candidate> {
    let quote = match value {
        Value::String(quote) => quote.as_str(),
        Value::Object(fields) => ["quote", "text", "fact", "memory", "content"]
            .iter()
            .find_map(|name| fields.get(*name)?.as_str())?,
        _ => return None,
    };
    let layer = value.get("layer").and_then(Value::as_str).and_then(Layer::named);
    let layer = if layer == Some(Layer::Relationship) { Layer::Relationship } else { Layer::Profile };
    // The assistant's statement about itself is a moment only if a persona speaks.
    let by_user = locate(quote, pair.user).map(|words| (words, Author::User));
    let found = by_user.or_else(|| {
        pair.persona?;
        locate(quote, pair.assistant).map(|words| (words, Author::Assistant))
    });
    let (words, author) = found?;
    let mut candidate = candidate_of(words, author, layer, pair.persona)?;
    candidate.intimate |= value.get("intimate").and_then(Value::as_bool).unwrap_or(false);
    if let Some(worth) =
        value.get("salience").and_then(Value::as_f64).filter(|worth| (0.0..=1.0).contains(worth))
    {
        #[expect(clippy::cast_possible_truncation, reason = "a number from 0 to 1 loses digits only")]
        let worth = worth as f32;
        candidate.salience = f32::midpoint(candidate.salience, worth).clamp(0.0, 1.0);
    }
    let named = value.get("entities").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for entity in named.iter().take(super::entities::MAX_ENTITIES) {
        add_entity(&mut candidate, entity, words);
    }
    Some(candidate)
}

/// Adds a model's entity, if the words name it too.
fn add_entity(candidate: &mut Candidate, value: &Value, said: &str) {
    let Some(name) = value.get("name").or(Some(value)).and_then(Value::as_str) else { return };
    let kind = match value.get("kind").and_then(Value::as_str) {
        Some("organization") => EntityKind::Organisation,
        kind => kind.and_then(EntityKind::named).unwrap_or(EntityKind::Thing),
    };
    let entity = EntityMention::new(name.trim(), kind);
    let capital = entity.name.chars().next().is_some_and(|c| c.is_uppercase() || c.is_ascii_digit());
    let stands = said
        .split(|c: char| !c.is_alphanumeric())
        .any(|word| !word.is_empty() && entity.name.starts_with(word))
        && said.contains(&entity.name);
    let known = candidate.entities.iter().any(|one| canonical(&one.name) == canonical(&entity.name));
    if capital
        && stands
        && !known
        && (2..=80).contains(&entity.name.len())
        && candidate.entities.len() < super::entities::MAX_ENTITIES
    {
        candidate.entities.push(entity);
    }
}

/// The sentences of a message behind a quote: the fewest consecutive ones with all its content words. `None`
/// if there are none, or if they ask, hold a secret, or read like an injection.
pub(super) fn locate<'a>(quote: &str, message: &'a str) -> Option<&'a str> {
    let wanted = content(quote);
    if wanted.is_empty() || wanted.len() > 80 {
        return None;
    }
    let all = sentences(message);
    let each: Vec<HashSet<String>> =
        all.iter().map(|sentence| content(sentence.text).into_iter().collect()).collect();
    for span in 1..=MAX_QUOTE_SENTENCES {
        for (group, held) in all.windows(span).zip(each.windows(span)) {
            let held = |word: &String| {
                held.iter().any(|set| set.contains(word) || set.iter().any(|other| akin(word, other)))
            };
            if wanted.iter().all(held) && usable(group) {
                let (first, last) = (group.first()?, group.last()?);
                return message.get(first.start..last.start + last.text.len());
            }
        }
    }
    None
}

fn usable(group: &[Sentence<'_>]) -> bool {
    !group.iter().any(|sentence| sentence.asks() || is_secret(sentence.text) || is_injection(sentence.text))
}

/// The stems of a text's content words.
fn content(text: &str) -> Vec<String> {
    let stemmer = Stemmer::create(Algorithm::English);
    words(prefix(text, MAX_REPLY_BYTES), 0)
        .into_iter()
        .filter(|word| word.lower != "'s" && !STOP.contains(&word.lower) && !SCAFFOLD.contains(&word.lower))
        .map(|word| stemmer.stem(&word.lower).into_owned())
        .collect()
}

/// Whether two stems are forms of one word: "allergi" and "allerg". Numbers must be equal.
fn akin(a: &str, b: &str) -> bool {
    let common = a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count();
    let digits = a.chars().chain(b.chars()).any(|c| c.is_ascii_digit());
    !digits && common >= 5 && a.chars().count().max(b.chars().count()) <= common + 3
}

/// Merges candidates of rules and model. A shared candidate stays the rules', with the longer words, and the
/// care and names of both.
#[must_use]
pub fn merge(rules: Vec<Candidate>, model: Vec<Candidate>) -> Vec<Candidate> {
    let mut all = rules;
    for candidate in model {
        let text = wording(&candidate.text);
        let same = all.iter().position(|one| {
            let other = wording(&one.text);
            one.author == candidate.author && (holds_words(&other, &text) || holds_words(&text, &other))
        });
        if let Some(one) = same.and_then(|at| all.get_mut(at)) {
            if candidate.text.len() > one.text.len() {
                one.text = candidate.text;
            }
            one.intimate |= candidate.intimate;
            for entity in candidate.entities {
                if !one.entities.iter().any(|known| known.stable_key == entity.stable_key) {
                    one.entities.push(entity);
                }
            }
            one.entities.truncate(super::entities::MAX_ENTITIES);
        } else if all.len() < MAX_CANDIDATES {
            all.push(candidate);
        }
    }
    all
}

/// A summary, if the messages support it: they contain three in four of its content words, and every number.
pub(super) fn summary(
    said: &str,
    messages: &[SummaryMessage<'_>],
    max_bytes: usize,
) -> Result<String, ModelError> {
    let said = said.rsplit_once("</think>").map_or(said, |(_, after)| after);
    let text = clean(said.trim(), max_bytes.min(MAX_REPLY_BYTES)).trim().to_owned();
    let told: HashSet<String> = messages.iter().flat_map(|one| content(one.text)).collect();
    let summed = content(&text);
    let held = |word: &&String| told.contains(*word) || told.iter().any(|other| akin(word, other));
    let count = summed.iter().filter(held).count();
    let numbers = summed.iter().filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    if summed.len() < 3 || count * 4 < summed.len() * 3 || !numbers.clone().all(|word| told.contains(word)) {
        return Err(ModelError::Malformed("the summary says what nobody said"));
    }
    if is_injection(&text) || is_secret(&text) {
        return Err(ModelError::Malformed("the summary holds what is never kept"));
    }
    Ok(text)
}

/// An answer in words.
pub(super) fn answer(said: &str) -> Result<Text, ModelError> {
    let said = said.rsplit_once("</think>").map_or(said, |(_, after)| after);
    let kept = prefix(said, MAX_REPLY_BYTES)
        .chars()
        .filter(|c| !is_invisible(*c) && (!c.is_control() || matches!(c, '\n' | '\t')));
    let text: String = kept.collect();
    match text.trim() {
        "" => Err(ModelError::Malformed("the answer is empty")),
        text => Ok(Text(text.to_owned())),
    }
}
