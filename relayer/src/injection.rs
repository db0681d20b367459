//! Turns recalled memory into a node's envelope: whole items within the limits, with their provenance.
//!
//! A node learns nothing about the user's other sessions except the items. A source names the speaker and the
//! day, never the session, project or persona.

use baton_memory::{
    api::{Hit, ItemView},
    model::{Consent, Layer, MemoryScope},
};
use baton_proto::{
    limits::{MAX_MEMORY_BYTES, MAX_MEMORY_ITEM_BYTES, MAX_MEMORY_ITEMS},
    memory::MemoryItem,
};

/// Most bytes of an envelope's own fields and the items' lengths.
const ENVELOPE_BYTES: usize = 2048 + MAX_MEMORY_ITEMS * 32;
/// Bytes of text for a token of the budget: an estimate, without a tokenizer.
const BYTES_PER_TOKEN: usize = 6;

/// The hits that fit an envelope, and as many items; both best first.
pub(crate) fn items_of(hits: Vec<Hit>) -> (Vec<Hit>, Vec<MemoryItem>) {
    let mut left = MAX_MEMORY_BYTES - ENVELOPE_BYTES;
    let (mut kept, mut items) = (Vec::new(), Vec::new());
    for hit in hits {
        let item = hit.view.memory_item();
        let bytes = item.text.len() + item.source.len();
        if items.len() == MAX_MEMORY_ITEMS || item.text.len() > MAX_MEMORY_ITEM_BYTES || bytes > left {
            continue;
        }
        left -= bytes;
        items.push(item);
        kept.push(hit);
    }
    (kept, items)
}

/// The visible part of the profile in a scope, as hits of equal score within a token budget, in order.
pub(crate) fn profile_hits(views: Vec<ItemView>, scope: MemoryScope, budget_tokens: u32) -> Vec<Hit> {
    let (profile, intimate) = match scope {
        MemoryScope::Full | MemoryScope::InsightsOnly => (true, true),
        MemoryScope::NeutralAndRelationship | MemoryScope::NeutralOnly => (true, false),
        MemoryScope::RelationshipOnly | MemoryScope::None => (false, false),
    };
    let shown = |view: &ItemView| {
        profile
            && view.layer == Layer::Profile
            && view.consent == Consent::Granted
            && view.valid_to_ms.is_none()
            && !view.archived
            && (intimate || !view.intimate)
    };
    let views: Vec<ItemView> = views.into_iter().filter(shown).collect();
    let mut left = (budget_tokens as usize).saturating_mul(BYTES_PER_TOKEN);
    let fits = |view: &ItemView| {
        let bytes = view.text.len();
        let fits = bytes <= left;
        left -= if fits { bytes } else { 0 };
        fits
    };
    views.into_iter().filter(fits).map(|view| Hit { view, score: 1.0, similarity: None }).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use baton_memory::{
        ids::ItemId,
        model::{Author, Kind, Role, Text},
    };

    use super::*;

    pub(crate) fn view(id: u8, text: &str) -> ItemView {
        ItemView {
            id: ItemId([id; 16]),
            kind: Kind::Fact,
            layer: Layer::Profile,
            role: Role::User,
            text: Text::from(text),
            project: Some("boats".to_owned()),
            session: Some("the other session".to_owned()),
            turn: Some(3),
            persona: None,
            author: Author::User,
            time_ms: 1_795_219_200_000,
            valid_from_ms: 0,
            valid_to_ms: None,
            superseded_by: None,
            consent: Consent::Granted,
            intimate: false,
            salience: 0.5,
            archived: false,
            blob_id: None,
            accesses: 0,
            sources: Vec::new(),
        }
    }

    pub(crate) fn hit(id: u8, text: &str) -> Hit {
        Hit { view: view(id, text), score: 0.9, similarity: None }
    }

    #[test]
    fn f4_an_item_tells_who_and_when_and_not_where() {
        let told = |change: &dyn Fn(&mut ItemView)| {
            let mut hit = hit(1, "likes tea");
            change(&mut hit.view);
            let (_, items) = items_of(vec![hit]);
            items[0].source.clone()
        };
        // As a node writes it: "[1] (from the user on 21 November 2026) likes tea".
        for (author, expected) in [
            (Author::User, "the user on 21 November 2026"),
            (Author::Owner, "a note by the user on 21 November 2026"),
            (Author::Assistant, "the assistant on 21 November 2026, not confirmed by the user"),
            (Author::Import, "an import by the user on 21 November 2026"),
        ] {
            assert_eq!(told(&|view| view.author = author), expected);
        }
        for (kind, expected) in [
            (Kind::Summary, "a summary of earlier messages up to 21 November 2026"),
            (Kind::Entity, "the names known on 21 November 2026"),
        ] {
            assert_eq!(told(&|view| view.kind = kind), expected);
        }
        let over = told(&|view| view.valid_to_ms = Some(1_795_219_200_001));
        assert_eq!(over, "the user on 21 November 2026, no longer true");
    }

    #[test]
    fn items_that_do_not_fit_an_envelope_are_omitted_whole() {
        let many: Vec<Hit> = (0..=u8::MAX).map(|id| hit(id, &"y".repeat(4000))).collect();
        let (kept, items) = items_of(many);
        let bytes: usize = items.iter().map(|item| item.text.len() + item.source.len()).sum();
        assert!(kept.len() == items.len() && (10..=MAX_MEMORY_ITEMS).contains(&items.len()));
        assert!(bytes <= MAX_MEMORY_BYTES - ENVELOPE_BYTES);
    }

    #[test]
    fn the_profile_is_cut_by_scope_consent_and_budget() {
        let shown = |scope, budget| {
            let views = vec![
                view(1, "short"),
                ItemView { intimate: true, ..view(2, "intimate") },
                ItemView { consent: Consent::Pending, ..view(3, "asked") },
                ItemView { layer: Layer::Relationship, ..view(4, "between us") },
                ItemView { valid_to_ms: Some(1), ..view(5, "over") },
            ];
            let hits = profile_hits(views, scope, budget);
            hits.iter().map(|hit| hit.view.id.0[0]).collect::<Vec<_>>()
        };
        assert_eq!(shown(MemoryScope::Full, 512), [1, 2]);
        assert_eq!(shown(MemoryScope::NeutralOnly, 512), [1]);
        assert_eq!(shown(MemoryScope::NeutralAndRelationship, 512), [1]);
        assert!(
            shown(MemoryScope::RelationshipOnly, 512).is_empty() && shown(MemoryScope::None, 512).is_empty()
        );
        assert!(shown(MemoryScope::Full, 0).is_empty());
    }
}
