//! Finds the other holders of the words of items that are deleted, edited or denied:
//!
//! - messages that say the words;
//! - facts and summaries made from the items;
//! - entities that only the items name, and items that say such a name.
//!
//! Pure: the service calls it, and plans the change from its answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Owner;
use crate::{
    api::Others,
    extraction::{canonical, holds_words, unlabelled},
    ids::{ItemId, ProjectId},
    model::{Author, Kind, Text},
    state::{Entry, visibility::is_named},
};

/// Fewest words of a fact that are searched for in messages other than its own: two words may mean anything.
const MIN_SAYING_WORDS: usize = 3;
/// Prefix of the stable keys of days. A shared day does not link a message to a fact.
const DAY: &str = "date:";

/// Items whose words are to be removed.
pub(crate) struct RemovalQuery<'a> {
    pub(crate) ids: &'a [ItemId],
    /// The words that an edit puts in their place.
    pub(crate) replacement: Option<&'a str>,
    /// Entities that the replacement names.
    pub(crate) named_again: BTreeSet<ItemId>,
    pub(crate) others: Others,
    /// Whether the search includes other projects. A caller that is bound to a project must not learn of
    /// others.
    pub(crate) everywhere: bool,
}

/// The items that are deleted together, and the remaining holders of their words.
pub(crate) struct Holders {
    /// Items to delete, the named ones among them.
    pub(crate) going: BTreeSet<ItemId>,
    /// Items that stay, in order of their numbers.
    pub(crate) left: Vec<ItemId>,
}

/// Words in canonical form. `deletes_in` is the project in which the user's own messages with these words are
/// deleted; `None` if no message is deleted.
struct Phrase {
    words: Text,
    deletes_in: Option<Option<ProjectId>>,
}

/// Phrases to search for in many texts, by their longest word.
#[derive(Default)]
struct Phrases {
    all: Vec<Phrase>,
    /// Phrases by their longest word, each with the number of bytes before that word.
    by_word: HashMap<Text, Vec<(usize, usize)>>,
}

impl Phrases {
    fn add(&mut self, words: Text, deletes_in: Option<Option<ProjectId>>) {
        let longest = positions(&words).max_by_key(|(at, word)| (word.len(), usize::MAX - at));
        let Some((before, word)) = longest else { return };
        self.by_word.entry(word.into()).or_default().push((self.all.len(), before));
        self.all.push(Phrase { words, deletes_in });
    }

    /// The phrases that a canonical text contains as whole words.
    fn held_by<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a Phrase> {
        positions(text).flat_map(move |(at, word)| {
            let like = self.by_word.get(word).map(Vec::as_slice).unwrap_or_default();
            like.iter().filter_map(move |(phrase, before)| {
                let phrase = self.all.get(*phrase)?;
                let start = at.checked_sub(*before)?;
                let rest = text.get(start..)?.strip_prefix(&*phrase.words)?;
                let begins = start == 0 || text.as_bytes().get(start - 1) == Some(&b' ');
                (begins && (rest.is_empty() || rest.starts_with(' '))).then_some(phrase)
            })
        })
    }
}

/// The words of a canonical text, with their positions.
fn positions(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split(' ').filter_map(move |word| {
        let begin = at;
        at += word.len() + 1;
        (!word.is_empty()).then_some((begin, word))
    })
}

/// The words of an item in canonical form, without the speaker label.
fn saying(entry: &Entry) -> Text {
    let labelled = entry.item.kind == Kind::Fact && entry.item.provenance.author == Author::Assistant;
    let text: &str = &entry.item.text;
    Text(canonical(if labelled { unlabelled(text) } else { text }))
}

impl Owner {
    /// The items that are deleted with some items, and the remaining holders of their words.
    pub(crate) fn holders(&self, request: &RemovalQuery<'_>) -> Holders {
        let there = request.ids.iter().copied().filter(|id| self.state.number(*id).is_some());
        // A paraphrase that was merged with an item counts as that item.
        let roots: BTreeSet<ItemId> = self.state.with_merged(there.collect()).into_iter().collect();
        let replacement = request.replacement.map(canonical).unwrap_or_default();
        let mut going = roots.clone();
        if request.others != Others::None {
            going.extend(self.sources_saying(&roots, &replacement));
            going.extend(self.learned_from(&roots, &replacement));
        }
        let unnamed = |going: &BTreeSet<ItemId>| {
            let mut unnamed = self.state.named_only_by(going);
            unnamed.retain(|id| !request.named_again.contains(id));
            unnamed
        };
        going.extend(unnamed(&going));
        let phrases = self.phrases(&roots, &going, &replacement, request.others);
        let mut left = self.holding(&phrases, &roots, &going, request.everywhere);
        let taken = left.extract_if(.., |_, (_, is_own)| *is_own || request.others == Others::All);
        going.extend(taken.map(|(_, (id, _))| id).collect::<Vec<_>>());
        going.extend(self.summaries_of(&going));
        going.extend(unnamed(&going));
        let mut left: BTreeMap<u64, ItemId> =
            left.into_iter().map(|(number, (id, _))| (number, id)).collect();
        left.extend(self.still_named(&roots));
        left.retain(|_, id| !going.contains(id) && !request.named_again.contains(id));
        Holders { going, left: left.into_values().collect() }
    }

    /// Source messages that say their fact word for word, by any speaker.
    fn sources_saying(&self, roots: &BTreeSet<ItemId>, replacement: &str) -> Vec<ItemId> {
        let mut found = Vec::new();
        for fact in roots.iter().filter_map(|id| self.state.entry(*id)) {
            let said = saying(fact);
            if fact.item.kind != Kind::Fact || holds_words(replacement, &said) {
                continue;
            }
            let sources = fact.item.provenance.sources.iter().filter_map(|id| self.state.entry(*id));
            let saying_it = sources.filter(|source| holds_words(&canonical(&source.item.text), &said));
            found.extend(saying_it.map(|source| source.item.id));
        }
        found
    }

    /// Facts that were made from items, unless the replacement says them as well.
    fn learned_from(&self, roots: &BTreeSet<ItemId>, replacement: &str) -> Vec<ItemId> {
        let made = self.state.entries.values().filter(|made| {
            made.item.kind == Kind::Fact
                && made.item.provenance.sources.iter().any(|source| roots.contains(source))
                && !holds_words(replacement, &saying(made))
        });
        made.map(|made| made.item.id).collect()
    }

    /// Summaries that were made from deleted items: no part can be cut from a summary.
    fn summaries_of(&self, going: &BTreeSet<ItemId>) -> Vec<ItemId> {
        let made = self.state.entries.values().filter(|made| {
            made.item.kind == Kind::Summary
                && made.item.provenance.sources.iter().any(|id| going.contains(id))
        });
        made.map(|made| made.item.id).collect()
    }

    /// The words to remove: those of the items and of the facts made from them, and the names deleted with
    /// them. The user's own messages are deleted for the words of a fact among the items.
    fn phrases(
        &self,
        roots: &BTreeSet<ItemId>,
        going: &BTreeSet<ItemId>,
        replacement: &str,
        others: Others,
    ) -> Phrases {
        let mut phrases = Phrases::default();
        for entry in going.iter().filter_map(|id| self.state.entry(*id)) {
            let (item, is_root) = (&entry.item, roots.contains(&entry.item.id));
            let is_day = item.stable_key.as_deref().is_some_and(|key| key.starts_with(DAY));
            let counts = match item.kind {
                Kind::Fact => true,
                Kind::Entity => is_root || !is_day,
                Kind::Episode | Kind::Summary => is_root,
            };
            let said = saying(entry);
            if !counts || holds_words(replacement, &said) {
                continue;
            }
            let takes = is_root
                && item.kind == Kind::Fact
                && others != Others::None
                && positions(&said).count() >= MIN_SAYING_WORDS;
            phrases.add(said, takes.then(|| self.project_of(entry)));
        }
        phrases
    }

    /// Messages, facts and summaries that contain phrases, by number. The flag marks the user's messages that
    /// are deleted.
    fn holding(
        &self,
        phrases: &Phrases,
        roots: &BTreeSet<ItemId>,
        going: &BTreeSet<ItemId>,
        everywhere: bool,
    ) -> BTreeMap<u64, (ItemId, bool)> {
        let roots = roots.iter().filter_map(|id| self.state.entry(*id));
        let projects: BTreeSet<Option<ProjectId>> = roots.map(|entry| self.project_of(entry)).collect();
        let mut found = BTreeMap::new();
        for (number, entry) in &self.state.entries {
            let (item, project) = (&entry.item, self.project_of(entry));
            let reached = everywhere || projects.contains(&project);
            if !reached || item.kind == Kind::Entity || going.contains(&item.id) {
                continue;
            }
            let text = Text(canonical(&item.text));
            let by_user = item.kind == Kind::Episode && item.provenance.author != Author::Assistant;
            let is_own = phrases.held_by(&text).map(|phrase| by_user && phrase.deletes_in == Some(project));
            if let Some(is_own) = is_own.reduce(|a, b| a || b) {
                found.insert(*number, (item.id, is_own));
            }
        }
        found
    }

    /// Entities that the items name, even if other items name them too.
    fn still_named(&self, roots: &BTreeSet<ItemId>) -> Vec<(u64, ItemId)> {
        let edges = roots.iter().flat_map(|id| self.state.edges_at(*id));
        let ends = edges.flat_map(|(_, edge)| [edge.from, edge.to]);
        let entity = |id: ItemId| {
            let number = self.state.number(id)?;
            self.state.entry(id).is_some_and(|entry| is_named(&entry.item)).then_some((number, id))
        };
        ends.filter_map(entity).collect()
    }
}
