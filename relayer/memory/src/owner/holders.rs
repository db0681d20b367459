//! What else holds the words of items that are deleted, edited or denied: messages that say them, facts and summaries made of
//! them, entities that only they name, and whatever says such a name. Pure: the service asks, and plans the change from the answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Owner;
use crate::{
    api::Others,
    ids::{ItemId, ProjectId},
    model::{Author, Kind, Text},
    state::{Entry, standing::is_named},
    writing::{canonical, unlabelled},
};

/// Words from which a fact is looked for in other messages than its own, to take them along: two words may mean anything.
const MIN_SAYING_WORDS: usize = 3;
/// What stable keys of days begin with: that a message names the same day says nothing.
const DAY: &str = "date:";

/// Items whose words are to go.
pub(crate) struct Going<'a> {
    pub(crate) ids: &'a [ItemId],
    /// The words that an edit puts in their place.
    pub(crate) replacement: Option<&'a str>,
    /// Entities that those words name.
    pub(crate) named_again: BTreeSet<ItemId>,
    pub(crate) others: Others,
    /// Whether other projects are looked at as well. They are closed rooms to a caller who is bound to one.
    pub(crate) everywhere: bool,
}

/// What goes with items, and what stays and holds their words.
pub(crate) struct Holders {
    /// Items that go, the named ones among them.
    pub(crate) going: BTreeSet<ItemId>,
    /// Items that stay, in their order.
    pub(crate) left: Vec<ItemId>,
}

/// Words in canonical form, with the project in which the user's own messages go that say them; none where no message goes.
struct Phrase {
    words: Text,
    takes_in: Option<Option<ProjectId>>,
}

/// Phrases to be found in many texts, by their longest word.
#[derive(Default)]
struct Phrases {
    all: Vec<Phrase>,
    /// The phrases with a longest word, and how many bytes of each stand before it.
    by_word: HashMap<Text, Vec<(usize, usize)>>,
}

impl Phrases {
    fn add(&mut self, words: Text, takes_in: Option<Option<ProjectId>>) {
        let longest = positions(&words).max_by_key(|(at, word)| (word.len(), usize::MAX - at));
        let Some((before, word)) = longest else { return };
        self.by_word.entry(word.into()).or_default().push((self.all.len(), before));
        self.all.push(Phrase { words, takes_in });
    }

    /// The phrases that a canonical text holds as whole words.
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

/// The words of a canonical text, with where each begins.
fn positions(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split(' ').filter_map(move |word| {
        let begin = at;
        at += word.len() + 1;
        (!word.is_empty()).then_some((begin, word))
    })
}

/// Whether a canonical text holds words as whole words.
fn holds(text: &str, words: &str) -> bool {
    let mut phrase = Phrases::default();
    phrase.add(words.into(), None);
    phrase.held_by(text).next().is_some()
}

/// The words of an item in canonical form, without the label that says who said them.
fn saying(entry: &Entry) -> Text {
    let labelled = entry.item.kind == Kind::Fact && entry.item.provenance.author == Author::Assistant;
    let text: &str = &entry.item.text;
    Text(canonical(if labelled { unlabelled(text) } else { text }))
}

impl Owner {
    /// What goes with some items, and what stays and holds their words.
    pub(crate) fn holders(&self, request: &Going<'_>) -> Holders {
        let there = request.ids.iter().copied().filter(|id| self.state.number(*id).is_some());
        // What said the same in other words, and was merged into one of them, is one of them.
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

    /// The messages that facts were made from and that say them word for word, whoever spoke.
    fn sources_saying(&self, roots: &BTreeSet<ItemId>, replacement: &str) -> Vec<ItemId> {
        let mut found = Vec::new();
        for fact in roots.iter().filter_map(|id| self.state.entry(*id)) {
            let said = saying(fact);
            if fact.item.kind != Kind::Fact || holds(replacement, &said) {
                continue;
            }
            let sources = fact.item.provenance.sources.iter().filter_map(|id| self.state.entry(*id));
            let saying_it = sources.filter(|source| holds(&canonical(&source.item.text), &said));
            found.extend(saying_it.map(|source| source.item.id));
        }
        found
    }

    /// Facts that were made from items, unless the words in their place say them as well.
    fn learned_from(&self, roots: &BTreeSet<ItemId>, replacement: &str) -> Vec<ItemId> {
        let made = self.state.entries.values().filter(|made| {
            made.item.kind == Kind::Fact
                && made.item.provenance.sources.iter().any(|source| roots.contains(source))
                && !holds(replacement, &saying(made))
        });
        made.map(|made| made.item.id).collect()
    }

    /// Summaries that were made from items: no part can be taken out of a summary.
    fn summaries_of(&self, going: &BTreeSet<ItemId>) -> Vec<ItemId> {
        let made = self.state.entries.values().filter(|made| {
            made.item.kind == Kind::Summary
                && made.item.provenance.sources.iter().any(|id| going.contains(id))
        });
        made.map(|made| made.item.id).collect()
    }

    /// The words that go: what the items and the facts made from them say, and the names that go with them. The user's own messages
    /// go with what a fact among the items says.
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
            if !counts || holds(replacement, &said) {
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

    /// Messages, facts and summaries that hold phrases, by their numbers, and whether each is a message of the user's that goes.
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
            let is_own = phrases.held_by(&text).map(|phrase| by_user && phrase.takes_in == Some(project));
            if let Some(is_own) = is_own.reduce(|a, b| a || b) {
                found.insert(*number, (item.id, is_own));
            }
        }
        found
    }

    /// Entities that the items name, whatever else names them.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_held_as_whole_words() {
        for (text, words, held) in [
            ("my dog is called biscuit", "biscuit", true),
            ("my dog is called biscuit", "dog is called", true),
            ("my dog is called biscuit", "my dog is called biscuit", true),
            ("a called dog is called biscuit", "dog is called", true),
            ("my dog likes biscuits", "biscuit", false),
            ("biscuits and a biscuit", "biscuit", true),
            ("the hotdog is called", "dog is called", false),
            ("dog is calledx", "dog is called", false),
            ("café ana", "ana", true),
            ("the banana", "ana", false),
            ("anything", "", false),
            ("", "biscuit", false),
        ] {
            assert_eq!(holds(text, words), held, "{words} in {text}");
        }
    }
}
