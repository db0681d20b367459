//! Rows A, and rows F about recall.

use std::sync::atomic::Ordering;

use baton_memory::{
    api::{DropReason, Filters, Recall, RecallMode, RecallRequest},
    model::Author,
};

use crate::rows::world::{
    ANA, DAY_MS, RECALL_DEADLINE, TestEmbedder, on_every_store, pool, request, session, texts,
};

const TOLD: &str = "My physician recommended magnesium for the cramps.";

#[test]
fn a1_a10_a_fact_of_one_session_is_recalled_in_every_turn_of_another_weeks_later() {
    on_every_store(async |mut world| {
        world.say(ANA, &session("spring"), 0, "Hello!", "Hello!").await;
        world.say(ANA, &session("spring"), 1, TOLD, "I hope it helps.").await;
        world.settle().await;
        world.pass(40 * DAY_MS);
        world.reopen().await;
        world.say(ANA, &session("summer"), 0, "Good morning!", "Good morning!").await;
        for turn in 1..4 {
            let recall =
                world.recall(ANA, &session("summer"), "What did my physician recommend for cramps?").await;
            let hit = recall.hits.iter().find(|hit| &*hit.view.text == TOLD).expect("it is recalled");
            assert_eq!(hit.view.session.as_deref(), Some("spring"));
            assert_eq!((recall.mode, recall.degraded), (RecallMode::Full, None));
            world.say(ANA, &session("summer"), turn, "And what else is new?", "Not much.").await;
        }
    });
}

#[test]
fn f2_a_turn_is_recalled_on_the_next_message_before_any_job_ran() {
    on_every_store(async |world| {
        let told = "The meeting point is the fountain behind the cathedral.";
        world.say(ANA, &session("s"), 0, told, "See you there.").await;
        assert!(world.recalls(ANA, &session("t"), "x").await.is_empty());
        world.say(ANA, &session("t"), 0, "Hello!", "Hello!").await;
        assert_eq!(world.recalls(ANA, &session("t"), "Where is the meeting point?").await, [told]);
    });
}

#[test]
fn a7_f5_a_recall_degrades_to_words_and_then_to_nothing_and_says_so() {
    on_every_store(async |world| {
        world.say(ANA, &session("s"), 0, TOLD, "I hope it helps.").await;
        world.settle().await;
        let question = "What did the physician recommend for the cramps?";
        world.embedder.down.store(true, Ordering::Relaxed);
        let down = world.recall(ANA, &pool(), question).await;
        assert_eq!((down.mode, texts(&down)), (RecallMode::Lexical, vec![TOLD.to_owned()]));
        assert!(down.degraded.unwrap().contains("words alone"));
        world.embedder.down.store(false, Ordering::Relaxed);
        world.embedder.hangs.store(true, Ordering::Relaxed);
        let started = std::time::Instant::now();
        let slow = world.recall(ANA, &pool(), question).await;
        assert_eq!((slow.mode, texts(&slow)), (RecallMode::Lexical, vec![TOLD.to_owned()]));
        assert!(started.elapsed() < RECALL_DEADLINE);
        // An impossible recall is an empty answer with its reason, not an error.
        let lost = world.recall(ANA, &session("gone"), question).await;
        assert_eq!((lost.mode, lost.hits.len()), (RecallMode::None, 0));
        assert!(lost.degraded.unwrap().contains("session"));
    });
}

#[test]
fn f6_every_recall_returns_ids_scores_and_what_was_dropped() {
    on_every_store(async |world| {
        for boat in ["Albatross", "Cormorant", "Pelican", "Gannet", "Puffin"] {
            world.remember(ANA, &pool(), &format!("The varnish of the {boat} was renewed in spring.")).await;
        }
        world.settle().await;
        let asked = RecallRequest { limit: 2, ..request(&pool(), "When was the varnish renewed in spring?") };
        let recall = world.memory.recall(ANA, asked).await;
        assert_eq!(recall.hits.len(), 2, "{recall:?}");
        assert!(recall.hits[0].score >= recall.hits[1].score);
        let left_out =
            |recall: &Recall, reason| recall.dropped.iter().filter(|one| one.reason == reason).count();
        assert_eq!(left_out(&recall, DropReason::Limit), 3, "{:?}", recall.dropped);
        let one =
            RecallRequest { budget_tokens: Some(40), ..request(&pool(), "When was the varnish renewed?") };
        let recall = world.memory.recall(ANA, one).await;
        assert!(recall.hits.len() == 1 && left_out(&recall, DropReason::Budget) > 0);
    });
}

#[test]
fn f7_filters_come_before_any_limit_and_no_match_is_an_answer() {
    on_every_store(async |world| {
        for number in 0..30 {
            world
                .say(
                    ANA,
                    &session("s"),
                    number,
                    &format!("The ferry number {number} leaves early."),
                    "Noted.",
                )
                .await;
            world.pass(DAY_MS);
        }
        world.settle().await;
        let from = world.now_ms() - 3 * DAY_MS;
        let asked = |filters| RecallRequest {
            filters,
            limit: 5,
            ..request(&pool(), "When does the ferry leave early?")
        };
        let late =
            world.memory.recall(ANA, asked(Filters { from_ms: Some(from), ..Filters::default() })).await;
        assert_eq!(
            late.hits.iter().filter(|hit| hit.view.kind.name() == "episode").count(),
            3,
            "{:?}",
            texts(&late)
        );
        assert!(late.hits.iter().all(|hit| hit.view.time_ms >= from));
        let authors = vec![Author::Assistant];
        let said = world.memory.recall(ANA, asked(Filters { authors, ..Filters::default() })).await;
        assert!(said.hits.iter().all(|hit| hit.view.author == Author::Assistant));
        let own = Filters {
            not_session: Some("s".into()),
            kinds: vec![baton_memory::model::Kind::Episode],
            ..Filters::default()
        };
        assert!(world.memory.recall(ANA, asked(own)).await.hits.is_empty());
    });
}

#[test]
fn c1_every_node_is_found_by_words_alone_and_by_meaning_alone() {
    on_every_store(async |world| {
        world.say(ANA, &session("s"), 0, TOLD, "I hope it helps.").await;
        world.settle().await;
        assert_eq!(world.memory.stats(ANA).await.unwrap().unembedded, 0);
        // The test's embedder treats a physician as a doctor; the word index does not.
        let meant = world.recall(ANA, &pool(), "What did my doctor say?").await;
        let hit = meant.hits.iter().find(|hit| &*hit.view.text == TOLD).expect("it is found by meaning");
        assert!(hit.similarity.unwrap() > 0.1);
        world.embedder.down.store(true, Ordering::Relaxed);
        let said = world.recall(ANA, &pool(), "magnesium for cramps").await;
        assert_eq!((said.mode, texts(&said)), (RecallMode::Lexical, vec![TOLD.to_owned()]));
    });
}

#[test]
fn an_empty_or_strange_query_is_no_error() {
    on_every_store(async |world| {
        world.remember(ANA, &pool(), "The anchor weighs forty kilograms.").await;
        world.settle().await;
        let long = "anchor ".repeat(100_000);
        for query in ["", " ", "?!", "\u{0}\u{202e}", "🦊🦊🦊", long.as_str()] {
            let recall = world.recall(ANA, &pool(), query).await;
            assert!(recall.degraded.is_none(), "{:?}", recall.degraded);
        }
    });
}

#[test]
fn another_embedder_embeds_everything_anew_and_words_find_it_meanwhile() {
    on_every_store(async |mut world| {
        world.say(ANA, &session("s"), 0, TOLD, "I hope it helps.").await;
        world.settle().await;
        assert_eq!(world.memory.stats(ANA).await.unwrap().unembedded, 0);
        world.embedder = TestEmbedder::new("other-384-v1");
        world.reopen().await;
        let waiting = world.memory.stats(ANA).await.unwrap().unembedded;
        assert!(waiting > 0);
        let question = "What did the physician recommend for the cramps?";
        assert!(world.recalls(ANA, &pool(), question).await.contains(&TOLD.to_owned()));
        world.memory.reembed_if_changed().await.unwrap();
        world.settle().await;
        assert_eq!(world.memory.stats(ANA).await.unwrap().unembedded, 0);
        world.reopen().await;
        assert_eq!(world.memory.stats(ANA).await.unwrap().unembedded, 0);
    });
}
