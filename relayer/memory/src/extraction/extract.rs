//! Extracts by rule the facts of the user (insights), and moments between user and persona, from an exchange
//! (D6).

use super::{
    Candidate, EdgeCandidate, EdgeEnd, EntityKind, EntityMention, MessagePair, Slot, canonical, entities,
    gate::{SentenceForm, read},
    rules::{EXCLUSIONS, MOMENT_RULES, NOT_TELLING_RULES, Rule, STRONG_RULES, WEAK_RULES},
    sensitive::{bonus, is_intimate, is_secret, words_are_intimate},
    text::{Match, Sentence, Word, any, clauses, prefix, span},
    wording,
    words::{ADVERBS, CHATTER, FILLERS, JOINING, STOP, TASK_WORDS, rows},
};
use crate::{
    limits::MAX_FACT_BYTES,
    model::{Author, Layer, Role, Text},
};

/// Most candidates of one exchange, the best: an exchange with more is a document, which its episode keeps.
pub(super) const MAX_CANDIDATES: usize = 24;

/// Extra worth of an item that the user asked to keep.
pub(super) const EXPLICIT_BONUS: f32 = 0.25;

/// A part of a message that is worth keeping.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unit {
    /// Its first byte in the message.
    pub start: usize,
    /// Its end.
    pub end: usize,
    /// Its subject.
    pub slot: Option<Slot>,
    /// Its worth.
    pub salience: f32,
    /// Profile or relationship.
    pub layer: Layer,
    /// The edge from the user to a named entity: label and name.
    pub edge: Option<(&'static str, String)>,
}

/// The candidates of an exchange, by the rules; none if the gate would stay shut.
#[must_use]
pub fn extract(pair: &MessagePair<'_>) -> Vec<Candidate> {
    let reading = read(pair);
    if !reading.writes() {
        return Vec::new();
    }
    let mut found: Vec<Candidate> = Vec::new();
    for unit in reading.units {
        push(&mut found, build(pair.user, &unit, Author::User, pair.persona));
    }
    for unit in reading.moments {
        push(&mut found, build(pair.assistant, &unit, Author::Assistant, pair.persona));
    }
    if found.len() > MAX_CANDIDATES {
        found.sort_by(|a, b| b.salience.total_cmp(&a.salience));
        found.truncate(MAX_CANDIDATES);
    }
    found
}

fn push(found: &mut Vec<Candidate>, candidate: Option<Candidate>) {
    let Some(candidate) = candidate else { return };
    let same = wording(&candidate.text);
    if !found.iter().any(|one| wording(&one.text) == same) {
        found.push(candidate);
    }
}

/// A candidate from some words of a message, for a model's quote or a note by hand. `None` for empty words or
/// a secret.
#[must_use]
pub fn candidate_of(words: &str, author: Author, layer: Layer, persona: Option<&str>) -> Option<Candidate> {
    let sentences = super::text::sentences(words);
    let ruled =
        sentences.iter().find_map(|sentence| best_rule(words, &sentence.words, 0..sentence.words.len()));
    let unit = Unit {
        start: 0,
        end: words.len(),
        slot: ruled.as_ref().and_then(|hit| hit.slot.clone()),
        salience: super::salience(words).max(0.3),
        layer,
        edge: ruled.and_then(|hit| hit.edge),
    };
    build(words, &unit, author, persona)
}

fn build(message: &str, unit: &Unit, author: Author, persona: Option<&str>) -> Option<Candidate> {
    let said = message.get(unit.start..unit.end)?.trim();
    if said.is_empty() || is_secret(said) {
        return None;
    }
    let by_user = author != Author::Assistant;
    let text = if by_user { prefix(said, MAX_FACT_BYTES).to_owned() } else { labelled(persona, said) };
    let entities = entities(said);
    // The model's words about itself concern user and persona, and end no fact of the user.
    let (layer, slot) = if by_user { (unit.layer, unit.slot.clone()) } else { (Layer::Relationship, None) };
    let edges = edges(said, &entities, by_user, unit);
    Some(Candidate {
        text: Text(text),
        layer,
        author,
        role: if by_user { Role::User } else { Role::Assistant },
        intimate: is_intimate(said),
        salience: (if by_user { unit.salience } else { unit.salience * 0.7 }).clamp(0.0, 1.0),
        entities,
        slot,
        edges,
    })
}

/// The assistant's words, labelled as such in the text itself (D10).
fn labelled(persona: Option<&str>, said: &str) -> String {
    let named: String = persona
        .unwrap_or_default()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '\''))
        .take(40)
        .collect();
    let room = MAX_FACT_BYTES.saturating_sub(named.len() + 32);
    let said = prefix(said, room);
    match named.trim() {
        "" => format!("The assistant said: {said}"),
        name => format!("{name} (assistant) said: {said}"),
    }
}

/// The assistant's words without the label, to compare them with other items.
#[must_use]
pub fn unlabelled(text: &str) -> &str {
    let said = text.split_once("(assistant) said: ").map(|(_, said)| said);
    said.or_else(|| text.strip_prefix("The assistant said: ")).unwrap_or(text)
}

/// The edges of a fact: to its subject, to the entities that it names, and from the user to a rule's entity
/// (E3).
fn edges(said: &str, entities: &[EntityMention], by_user: bool, unit: &Unit) -> Vec<EdgeCandidate> {
    let edge =
        |from: EdgeEnd, to: EdgeEnd, label: &str, description: String, confidence: f32| EdgeCandidate {
            from,
            to,
            label: label.to_owned(),
            description,
            evidence: Text(prefix(said, 512).to_owned()),
            confidence,
        };
    let mut out = vec![if by_user {
        edge(EdgeEnd::Fact, EdgeEnd::User, "about", "said by the user of the user".into(), 0.9)
    } else {
        edge(EdgeEnd::Fact, EdgeEnd::Persona, "about", "said by the assistant of itself".into(), 0.6)
    }];
    if by_user && unit.layer == Layer::Relationship {
        out.push(edge(
            EdgeEnd::Fact,
            EdgeEnd::Persona,
            "shared_with",
            "a moment between user and persona".into(),
            0.8,
        ));
    }
    for entity in entities {
        let to = || EdgeEnd::Entity(entity.stable_key.clone());
        let description = format!("names the {} {}", entity.kind.name(), entity.name);
        out.push(edge(EdgeEnd::Fact, to(), "mentions", description, 0.8));
        let relation = match entity.kind {
            EntityKind::Pet => Some("has_pet"),
            EntityKind::Person if unit.edge.is_none() && names_a_relation(said) => Some("knows"),
            _ => None,
        };
        let ruled = unit.edge.as_ref().filter(|(_, name)| canonical(name).contains(&canonical(&entity.name)));
        let label = ruled.map(|(label, _)| *label).or(relation);
        if let Some(label) = label.filter(|_| by_user) {
            out.push(edge(
                EdgeEnd::User,
                to(),
                label,
                format!("the user {} {}", label.replace('_', " "), entity.name),
                0.8,
            ));
        }
    }
    out
}

fn names_a_relation(said: &str) -> bool {
    super::text::words(said, 0).iter().any(|word| super::words::RELATIONS.contains(&word.lower))
}

/// The result of a rule on a clause.
pub(super) struct RuleMatch {
    /// The slot, if the rule has one and its value is meaningful.
    pub slot: Option<Slot>,
    /// The worth.
    pub salience: f32,
    /// Label and name of the edge.
    pub edge: Option<(&'static str, String)>,
    /// Whether the rule is a strong one.
    pub strong: bool,
}

fn apply(message: &str, words: &[Word], rule: &Rule, hit: &Match, strong: bool) -> Option<RuleMatch> {
    let value = |at: usize| hit.captures.get(at).map(|(from, to)| capture_text(message, words, *from, *to));
    let first = value(0);
    let empty = first.as_deref().is_some_and(|text| {
        let canonical = canonical(text);
        rows("empty").iter().any(|empty| canonical == *empty || canonical.starts_with(&format!("{empty} ")))
    });
    // "I love it", "I live in it": meaningless without the sentence before.
    if empty && rule.slot.is_some() {
        return None;
    }
    let slot = rule.slot.map(|(key, value_template)| Slot {
        key: fill(key, &hit.captures, message, words),
        value: fill(value_template, &hit.captures, message, words),
    });
    let edge = rule.edge.and_then(|label| first.map(|name| (label, name)));
    Some(RuleMatch {
        slot: slot.filter(|slot| !slot.value.is_empty()),
        salience: rule.salience,
        edge,
        strong,
    })
}

/// The words of a capture, without a possessive and an article.
fn capture_text(message: &str, words: &[Word], from: usize, to: usize) -> String {
    let text = span(message, words, from, to);
    let text = text.trim_end_matches("'s").trim_end_matches("’s");
    let lower = text.to_lowercase();
    let article = ["a ", "an ", "the ", "my ", "our "].iter().find(|article| lower.starts_with(**article));
    article.and_then(|article| text.get(article.len()..)).unwrap_or(text).to_owned()
}

fn fill(template: &str, captures: &[(usize, usize)], message: &str, words: &[Word]) -> String {
    let mut out = template.to_owned();
    for (at, (from, to)) in captures.iter().enumerate() {
        let mark = format!("${}", at + 1);
        if out.contains(&mark) {
            out = out.replace(&mark, &canonical(&capture_text(message, words, *from, *to)));
        }
    }
    out
}

/// The first strong rule that matches in a range.
pub(super) fn strong_rule(message: &str, words: &[Word], range: std::ops::Range<usize>) -> Option<RuleMatch> {
    STRONG_RULES.iter().find_map(|rule| {
        let hit = rule.pattern.find(words, range.clone())?;
        apply(message, words, rule, &hit, true)
    })
}

/// The first strong or weak rule that matches in a range and is not excluded.
fn best_rule(message: &str, words: &[Word], range: std::ops::Range<usize>) -> Option<RuleMatch> {
    strong_rule(message, words, range.clone()).or_else(|| {
        let slice = words.get(range.clone())?;
        let task = slice.iter().any(|word| TASK_WORDS.contains(&word.lower));
        if task || any(&EXCLUSIONS, words, range.clone()) {
            return None;
        }
        let weak = WEAK_RULES.iter().find_map(|rule| {
            let hit = rule.pattern.find(words, range.clone())?;
            apply(message, words, rule, &hit, false)
        });
        let weak = weak.or_else(|| {
            acts(slice).then_some(RuleMatch { slot: None, salience: 0.45, edge: None, strong: false })
        });
        // An intimate statement about oneself is worth a question, in any form.
        weak.or_else(|| {
            let own = slice.iter().any(|word| matches!(word.lower.as_str(), "i" | "my" | "we"));
            let found = RuleMatch { slot: None, salience: 0.6, edge: None, strong: false };
            (own && words_are_intimate(slice)).then_some(found)
        })
    })
}

/// Whether a clause says that "I" or "we" did something in the world, with enough words to be specific.
fn acts(clause: &[Word]) -> bool {
    let rest = clause.iter().skip_while(|word| FILLERS.contains(&word.lower));
    let mut rest = rest.skip_while(|word| JOINING.contains(&word.lower));
    let subject = rest.next().is_some_and(|word| matches!(word.lower.as_str(), "i" | "we"));
    let mut rest = rest.skip_while(|word| ADVERBS.contains(&word.lower));
    let verb = rest.next().is_some_and(|word| !CHATTER.contains(&word.lower) && !STOP.contains(&word.lower));
    let content = rest.filter(|word| !STOP.contains(&word.lower)).count();
    subject && verb && content >= 1
}

/// The units of one sentence of the user: one for each clause with a fact of its own, or else one for the
/// sentence.
pub(super) fn units_of(message: &str, sentence: &Sentence<'_>, form: SentenceForm) -> Vec<Unit> {
    let words = &sentence.words;
    let ranges = clauses(words);
    let mut hits: Vec<(std::ops::Range<usize>, RuleMatch)> = Vec::new();
    for range in &ranges {
        let found = match form {
            SentenceForm::Statement => best_rule(message, words, range.clone()),
            // In a question or a request, only clauses beside it count.
            SentenceForm::Question => {
                strong_rule(message, words, range.clone()).filter(|_| !clause_asks(words, range.clone()))
            }
        };
        if let Some(found) = found {
            hits.push((range.clone(), found));
        }
    }
    let whole = (sentence.start, sentence.start + sentence.text.len());
    let unit = |(start, end): (usize, usize), found: RuleMatch, layer: Layer, words: &[Word]| Unit {
        start,
        end,
        slot: found.slot,
        salience: (found.salience + bonus(words)).clamp(0.0, 1.0),
        layer,
        edge: found.edge,
    };
    let proposes = !sentence.asks() && words.first().is_some_and(|word| word.lower == "let");
    if (form == SentenceForm::Statement || proposes) && any(&MOMENT_RULES, words, 0..words.len()) {
        let found = RuleMatch { slot: None, salience: 0.65, edge: None, strong: true };
        return vec![unit(whole, found, Layer::Relationship, words)];
    }
    let several = hits.iter().filter(|(_, found)| found.strong && found.slot.is_some()).count() > 1;
    if form == SentenceForm::Question || several {
        let clause_unit = |(range, found): (std::ops::Range<usize>, RuleMatch)| {
            let from = range.start + usize::from(joins(words, range.start));
            let (first, last) = (words.get(from)?, words.get(range.end.checked_sub(1)?)?);
            Some(unit((first.start, last.end), found, Layer::Profile, words.get(range)?))
        };
        return hits.into_iter().filter_map(clause_unit).collect();
    }
    // One statement: the whole sentence, with the subject of its best clause.
    let best = hits.into_iter().map(|(_, found)| found).max_by(|a, b| {
        (a.slot.is_some(), a.salience)
            .partial_cmp(&(b.slot.is_some(), b.salience))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    best.map(|found| unit(whole, found, Layer::Profile, words)).into_iter().collect()
}

/// Whether a clause begins with a conjunction that can be dropped.
fn joins(words: &[Word], at: usize) -> bool {
    let subject =
        words.get(at + 1).is_some_and(|word| matches!(word.lower.as_str(), "i" | "my" | "we" | "our"));
    words.get(at).is_some_and(|word| JOINING.contains(&word.lower)) && subject
}

fn clause_asks(words: &[Word], range: std::ops::Range<usize>) -> bool {
    use super::words::{ASKING, AUXILIARY, REQUESTS, SUBJECTS};
    let slice = words.get(range).unwrap_or_default();
    let skipped =
        slice.iter().skip_while(|word| FILLERS.contains(&word.lower) && !AUXILIARY.contains(&word.lower));
    let mut rest = skipped.map(|word| word.lower.as_str());
    match (rest.next(), rest.next()) {
        (Some(first), second) => {
            ASKING.contains(first)
                || REQUESTS.contains(first)
                || (AUXILIARY.contains(first) && second.is_some_and(|word| SUBJECTS.contains(word)))
        }
        _ => true,
    }
}

/// The assistant's statement about itself, if a persona speaks.
pub(super) fn moments_of(message: &str, sentence: &Sentence<'_>) -> Option<Unit> {
    let words = &sentence.words;
    let all = 0..words.len();
    if sentence.asks() || any(&NOT_TELLING_RULES, words, all.clone()) {
        return None;
    }
    let by_itself = words.iter().any(|word| matches!(word.lower.as_str(), "i" | "my" | "we" | "our"));
    let found = best_rule(message, words, all).filter(|_| by_itself)?;
    Some(Unit {
        start: sentence.start,
        end: sentence.start + sentence.text.len(),
        slot: None,
        salience: (found.salience + bonus(words)).clamp(0.0, 1.0),
        layer: Layer::Relationship,
        edge: None,
    })
}
