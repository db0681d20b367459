//! Both stores recall the same, of an owner with more items than are opened for one recall.

use std::collections::BTreeSet;

use baton_memory::{
    api::{Filters, Place, RecallMode, RecallRequest},
    ids::OwnerId,
    limits::MAX_OPEN_OWNERS_WITH_ROWS,
};

use crate::{
    rows::world::{ANA, BEN, World, fact, pool, project, request, session, session_in, texts},
    storage::support::new_database,
};

const THINGS: [&str; 12] = [
    "barrel", "lantern", "compass", "violin", "kettle", "anchor", "ladder", "mirror", "basket", "carpet",
    "whistle", "candle",
];
const PLACES: [&str; 9] =
    ["cellar", "attic", "garage", "harbour", "garden", "kitchen", "library", "stable", "chapel"];
const COLOURS: [&str; 7] = ["crimson", "turquoise", "amber", "violet", "ivory", "copper", "emerald"];

/// Each combination once: 756 facts.
fn told(number: usize) -> String {
    let (thing, place) = (THINGS[number % 12], PLACES[number / 12 % 9]);
    let colour = COLOURS[number / 108 % 7];
    format!("The {thing} number {number} in the {place} is {colour}.")
}

async fn filled(database: Option<String>) -> World {
    let world = World::new(database).await;
    world.memory.create_project(ANA, "boat".into()).await.unwrap();
    world.memory.create_session(ANA, session_in("voyage", "boat")).await.unwrap();
    for hundred in 0..8 {
        let facts = (0..100).map(|one| hundred * 100 + one).filter(|number| *number < 756);
        world.memory.remember(ANA, facts.map(|number| fact(&pool(), &told(number))).collect()).await.unwrap();
    }
    for (turn, number) in (0..20_u64).zip(0..) {
        let user = format!("Where did the tinker of village {number} go?");
        let answer = format!("He went over hill {number} with a mule.");
        world.say(ANA, &session("talk"), turn, &user, &answer).await;
    }
    world.remember(ANA, &project("boat"), "The violet kettle number 9000 sank with the boat.").await;
    world.remember(BEN, &pool(), "The violet kettle number 9001 is Ben's.").await;
    world.settle().await;
    world
}

fn questions() -> Vec<String> {
    let mut questions = vec!["Who went over hill 13 with a mule?".to_owned(), "x".to_owned()];
    for number in [3, 77, 250, 419, 600, 755] {
        questions.push(format!("What colour is the {} number {number}?", THINGS[number % 12]));
        questions.push(format!("Which {} is in the {}?", THINGS[number % 12], PLACES[number / 12 % 9]));
        questions.push(format!("Tell me of all that is {}", COLOURS[number / 108 % 7]));
        questions.push(format!("Where did the tinker of village {} go?", number % 20));
    }
    questions
}

async fn answers(world: &World, place: &Place) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for question in questions() {
        let recall = world.recall(ANA, place, &question).await;
        assert_eq!((recall.mode, recall.degraded.as_deref()), (RecallMode::Full, None), "{question}");
        all.push(texts(&recall));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_recall_the_same_of_a_large_owner_and_hide_and_delete_alike() {
    let Some(database) = new_database().await else {
        println!("skipped: no BATON_TEST_POSTGRES");
        return;
    };
    let (embedded, postgres) = (filled(None).await, filled(Some(database)).await);
    // All answers agree; of equally good items beyond the first few, another may be opened.
    let agree = async |question: &str| {
        let (one, other) = (answers(&embedded, &pool()).await, answers(&postgres, &pool()).await);
        let mut same = 0;
        for ((asked, one), other) in questions().iter().zip(&one).zip(&other) {
            assert_eq!(one.first(), other.first(), "{question}: {asked}");
            assert_eq!(one.is_empty(), other.is_empty(), "{question}: {asked}");
            let (one, other): (BTreeSet<_>, BTreeSet<_>) = (one.iter().collect(), other.iter().collect());
            same += usize::from(one == other);
        }
        assert!(same * 10 >= one.len() * 9, "{question}: {same} of {} answers are equal", one.len());
    };
    agree("after writing").await;
    for world in [&embedded, &postgres] {
        // Isolation: of owners, of a project, and of filters.
        for question in ["Which violet kettle sank with the boat?", "Which violet kettle is Ben's?"] {
            let found = world.recalls(ANA, &pool(), question).await;
            assert!(found.iter().all(|text| !text.contains("9000") && !text.contains("9001")), "{found:?}");
        }
        let aboard = world.recalls(ANA, &session_in("voyage", "boat"), "Which kettle sank?").await;
        assert!(aboard.len() == 1 && aboard[0].contains("9000"), "{aboard:?}");
        let since = Filters { from_ms: Some(world.now_ms() + 1), ..Filters::default() };
        let later = RecallRequest { filters: since, ..request(&pool(), &told(77)) };
        assert!(world.memory.recall(ANA, later).await.hits.is_empty());
        // An intimate fact waits for consent, and is not recalled.
        let secret = fact(&pool(), "The lantern number 8000 hides my diagnosis.");
        world
            .memory
            .remember(ANA, vec![baton_memory::api::RememberRequest { intimate: Some(true), ..secret }])
            .await
            .unwrap();
        world.settle().await;
        assert!(!world.finds(ANA, &pool(), "What hides the lantern number 8000?", "8000").await);
        // A deletion.
        let recall = world.recall(ANA, &pool(), &told(77)).await;
        assert_eq!(&*recall.hits[0].view.text, told(77));
        world.delete(ANA, vec![recall.hits[0].view.id]).await;
        assert!(!world.recalls(ANA, &pool(), &told(77)).await.contains(&told(77)));
    }
    agree("after a deletion").await;
    if let Some(other) = postgres.another_relayer().await {
        let found = other.recall(ANA, request(&pool(), &told(419))).await;
        assert_eq!(&*found.hits[0].view.text, told(419));
        assert!(!texts(&other.recall(ANA, request(&pool(), &told(77))).await).contains(&told(77)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relayer_on_postgres_holds_only_the_latest_small_owners() {
    let Some(database) = new_database().await else {
        println!("skipped: no BATON_TEST_POSTGRES");
        return;
    };
    let world = World::new(Some(database)).await;
    let owner = |number: u8| OwnerId([number; 32]);
    for number in 1..=137_u8 {
        world.remember(owner(number), &pool(), &told(usize::from(number))).await;
    }
    assert_eq!(world.memory.open_owners(), MAX_OPEN_OWNERS_WITH_ROWS, "the latest of them");
    assert_eq!(world.recalls(owner(1), &pool(), &told(1)).await, [told(1)]);
}
