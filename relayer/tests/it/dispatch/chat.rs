//! Plain mode: the relayer is the session's client for one request.

use std::{sync::atomic::Ordering, time::Duration};

use baton_client::SessionRoot;
use baton_memory::{api::RecallMode, model::MemoryScope};
use baton_proto::ErrorCode;
use baton_relayer::chat::{ChatAnswer, ChatError, ChatEvent, ChatRequest, EarlierTurn};

use baton_client::testkit::fake::Act;

use super::world::{World, contains, files, hello, logs, memory_at, next};

/// The texts of the memories that were sent to the node.
fn texts(answer: &ChatAnswer) -> Vec<String> {
    let facts = serde_json::to_value(&answer.recalled_facts).unwrap();
    facts.as_array().unwrap().iter().map(|fact| fact["text"].as_str().unwrap().to_owned()).collect()
}

/// Clock advance after which a dead relayer's lease has expired.
const LEASE_OVER_MS: u64 = 30_000;

#[tokio::test(flavor = "multi_thread")]
async fn a5_a8_memory_is_added_at_dispatch_and_the_reply_names_exactly_what_was_sent() {
    let world = World::new().await;
    world.remember("The user's boat is called Marigold").await;
    let relayer = world.plain().await;
    let answer = relayer.say(hello("tell me about my boat")).await;
    let [fact] = &answer.recalled_facts[..] else { panic!("{:?}", answer.recalled_facts) };
    assert_eq!(texts(&answer), ["The user's boat is called Marigold"]);
    assert_eq!(fact.used, Some(true));
    let receipt = answer.receipt.as_ref().unwrap();
    assert_eq!((receipt.memory_items, answer.memory.recorded), (1, Some(true)));
    // The node sees an authorisation of a session and a relayer that may add memory, but no owner.
    let auth = world.nodes[0].seen(|seen| seen.turns[0].clone());
    assert_eq!(auth.memory_from, Some(relayer.key.public_key()));
    assert_eq!(auth.session_id, answer.session_id);
    assert!(!contains(format!("{auth:?}").as_bytes(), world.account.public_key().to_string().as_bytes()));

    let none = ChatRequest { memory_scope: Some(MemoryScope::None), ..hello("tell me about my boat") };
    let answer = relayer.say(none).await;
    assert!(answer.recalled_facts.is_empty());
    assert_eq!(world.nodes[0].seen(|seen| seen.turns[1].memory_from), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a7_a_failed_recall_never_fails_the_turn_and_is_reported() {
    let world = World::with(Duration::from_secs(4)).await;
    world.remember("The user's boat is called Marigold").await;
    let relayer = world.plain().await;
    // The embedder holds this message for longer than its half of the time.
    let mut events = relayer.ask(hello("what does my boat hold?"));
    let mut started = None;
    while let Some(event) = events.recv().await {
        match event {
            ChatEvent::Started { memory, .. } => started = Some(memory),
            ChatEvent::Failed(error) => panic!("{error}"),
            ChatEvent::Done(answer) => {
                assert_eq!(answer.content, "what does my boat hold? (0)");
                let degraded = answer.memory.degraded.as_deref();
                assert_eq!(degraded, Some("the embedder did not answer in time: searched by words alone"));
            }
            _ => {}
        }
    }
    assert_eq!(started.unwrap().mode, RecallMode::Lexical);
}

#[tokio::test(flavor = "multi_thread")]
async fn a9_a_turn_is_recorded_before_its_last_event_and_later_if_memory_is_away() {
    let world = World::new().await;
    let relayer = world.plain().await;
    world.storage.fails.store(true, Ordering::SeqCst);
    let first = relayer.say(hello("my sister is called Ines")).await;
    assert_eq!(
        (first.memory.recorded, first.content.as_str()),
        (Some(false), "my sister is called Ines (0)")
    );
    world.storage.fails.store(false, Ordering::SeqCst);
    let second = relayer.say(next(&first, "and my brother Tomas")).await;
    assert_eq!(second.memory.recorded, Some(true));
    let recorded = world.recorded().await;
    assert_eq!(recorded[0], (0, "my sister is called Ines".to_owned()), "what was missing first");
    assert_eq!((recorded.len(), recorded[1].0), (2, 1));

    // In another session, at once (A10).
    let other = relayer.say(hello("tell me about my sister Ines")).await;
    assert!(texts(&other).iter().any(|text| text.contains("Ines")), "{other:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a11_the_prompt_draws_on_memory_and_on_the_window_and_does_not_repeat_the_window() {
    let world = World::new().await;
    world.remember("The user's boat is called Marigold").await;
    let relayer = world.plain().await;
    let first = relayer.say(hello("my boat is red")).await;
    let second = relayer.say(next(&first, "tell me about my boat")).await;
    assert_eq!(second.content, "tell me about my boat (1)", "the node read the turn before");
    assert_eq!(texts(&second), ["The user's boat is called Marigold"], "and not what stands in the window");
    assert_eq!((second.turn, second.earlier), (1, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a12_the_session_key_is_never_kept() {
    let world = World::new().await;
    let relayer = world.plain().await;
    let root = SessionRoot::generate();
    let with_key = |text: &str| ChatRequest { session_key: Some(root.clone()), ..hello(text) };
    let first = relayer.say(with_key("the secret word is periwinkle")).await;
    assert_eq!(first.session_id, root.session_id());
    relayer.say(next(&first, "go on")).await;
    relayer.chat.finish().await;
    assert!(relayer.client.sessions().await.unwrap().is_empty(), "no session is open");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes();
    let seed = root.signing_key().expose_seed();
    let secrets = [root.expose().to_vec(), hex(root.expose()), seed.to_vec(), hex(&seed[..])];
    let disk = files(world.folder.path());
    assert!(disk.iter().map(Vec::len).sum::<usize>() > 10_000, "the journal is there");
    for bytes in disk.iter().chain([&logs()]) {
        assert!(secrets.iter().all(|secret| !contains(bytes, secret)));
        assert!(!contains(bytes, b"periwinkle"), "nor the words");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_at_another_relayer_with_or_without_a_common_database() {
    let world = World::new().await;
    let first = world.plain().await.say(hello("one")).await;
    // The same database, another relayer.
    let second = world.plain().await.say(next(&first, "two")).await;
    assert_eq!((second.content.as_str(), second.turn), ("two (1)", 1));
    // Another database: the root recovers the session from the store and the head index.
    let folder = tempfile::tempdir().unwrap();
    let far = world.plain_on(memory_at(folder.path()).await).await;
    let third = far.say(next(&second, "three")).await;
    assert_eq!((third.content.as_str(), third.turn), ("three (2)", 2));
    // Back at the first relayer, which learns of it from the index, even without a head.
    let back = ChatRequest { head: None, ..next(&third, "four") };
    let fourth = world.plain().await.say(back).await;
    assert_eq!((fourth.content.as_str(), fourth.turn), ("four (3)", 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_head_is_a_rollback_and_one_of_another_session_is_refused() {
    let world = World::new().await;
    let relayer = world.plain().await;
    let first = relayer.say(hello("one")).await;
    let second = relayer.say(next(&first, "two")).await;
    let stale = relayer.try_say(next(&first, "again")).await;
    assert!(matches!(stale, Err(ChatError::Rollback(_))), "{stale:?}");
    let other = relayer.say(hello("other")).await;
    let foreign = ChatRequest { head: Some(other.head.clone()), ..next(&second, "three") };
    assert!(matches!(relayer.try_say(foreign).await, Err(ChatError::Bad(_))));

    // A relayer and an index that have fewer turns than the user knows.
    world.store.set_heads(Default::default());
    let folder = tempfile::tempdir().unwrap();
    let far = world.plain_on(memory_at(folder.path()).await).await;
    assert!(matches!(far.try_say(next(&second, "three")).await, Err(ChatError::Rollback(_))));
    // The refused turn had no effect.
    assert_eq!(world.nodes[0].seen(|seen| seen.turns.len()), 3);
    assert_eq!(relayer.say(next(&second, "three")).await.turn, 2);
}

/// Runs a relayer in its own runtime until `when`, and stops it there like a power cut.
fn killed_midway(world: &World, request: ChatRequest, when: impl Future<Output = ()> + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let relayer = world.plain().await;
                let events = relayer.ask(request);
                when.await;
                // A power cut sends no message: dropping these would disconnect, and the turn might be
                // cancelled in time.
                std::mem::forget((relayer, events));
            });
            runtime.shutdown_background();
        });
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_a_dead_relayer_left_is_taken_up_by_the_next_request() {
    let world = World::new().await;
    let root = SessionRoot::generate();
    let with_key = |text: &str| ChatRequest { session_key: Some(root.clone()), ..hello(text) };
    let relayer = world.plain().await;
    for (count, said, content, earlier) in [
        (1, "finish this", "finish this (0)", None),
        (
            2,
            "something else",
            "something else (2)",
            Some(EarlierTurn { turn: 1, content: "finish that (1)".to_owned() }),
        ),
    ] {
        let begun = if earlier.is_some() { "finish that" } else { "finish this" };
        world.nodes[0].script([Act::Hang]);
        tokio::task::block_in_place(|| killed_midway(&world, with_key(begun), world.nodes[0].hung(count)));
        let early = relayer.try_say(with_key(said)).await;
        assert!(matches!(early, Err(ChatError::Busy { .. })), "its lease is not over: {early:?}");
        world.later_ms.fetch_add(LEASE_OVER_MS, Ordering::SeqCst);
        let answer = relayer.say(with_key(said)).await;
        assert_eq!((answer.content.as_str(), &answer.earlier), (content, &earlier));
    }
    let turns = world.nodes[0].seen(|seen| seen.turns.clone());
    assert_eq!(turns[0].turn_id, turns[1].turn_id, "one turn, two attempts");
    assert_eq!(world.turns().await, [0, 1, 2], "nothing lost, nothing doubled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_accepted_when_its_relayer_died_is_answered_and_not_made_twice() {
    let world = World::new().await;
    let relayer = world.plain().await;
    let first = relayer.say(hello("one")).await;
    world.storage.hangs.store(true, Ordering::SeqCst);
    let request = next(&first, "two");
    tokio::task::block_in_place(|| killed_midway(&world, next(&first, "two"), world.storage.hang()));
    world.storage.hangs.store(false, Ordering::SeqCst);
    world.later_ms.fetch_add(LEASE_OVER_MS, Ordering::SeqCst);
    let second = relayer.say(request).await;
    assert_eq!((second.content.as_str(), second.turn), ("two (1)", 1));
    assert_eq!(world.nodes[0].seen(|seen| seen.turns.len()), 2, "no node was asked again");
    assert_eq!(world.turns().await, [0, 1]);
    let stale = relayer.try_say(next(&first, "two")).await;
    assert!(matches!(stale, Err(ChatError::Rollback(_))), "it is delivered now");
    assert_eq!(relayer.say(next(&second, "three")).await.content, "three (2)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_with_its_own_settings_and_not_with_those_of_one_that_failed() {
    let world = World::new().await;
    let relayer = world.plain().await;
    let first = relayer.say(hello("one")).await;
    world.nodes[0].script([Act::Refuse(ErrorCode::ContextOverflow); 8]);
    let failed = ChatRequest { max_tokens: Some(40), ..next(&first, "two") };
    assert!(relayer.try_say(failed).await.is_err());
    world.nodes[0].clear_script();
    let second = relayer.say(ChatRequest { max_tokens: Some(30), ..next(&first, "two") }).await;
    assert_eq!((second.content.as_str(), second.turn), ("two (1)", 1));
    assert_eq!(world.nodes[0].seen(|seen| seen.turns.last().unwrap().max_output_tokens), 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_of_a_long_session_stays_short_and_the_session_goes_on() {
    const TURNS: u64 = 170;
    let world = World::new().await;
    let relayer = world.plain().await;
    let say = |answer: Option<&ChatAnswer>, text: &str| {
        let request = answer.map_or_else(|| hello(text), |answer| next(answer, text));
        ChatRequest { memory_scope: Some(MemoryScope::None), ..request }
    };
    let mut last: Option<ChatAnswer> = None;
    let mut old_heads = Default::default();
    for turn in 0..TURNS {
        last = Some(relayer.say(say(last.as_ref(), &format!("message {turn}"))).await);
        if turn == 5 {
            old_heads = world.store.heads();
        }
    }
    let last = last.unwrap();
    let (mut bytes, mut piece) = (0, 0);
    let name = |piece| format!("chat/{}/{piece}", last.session_id);
    while let Some(part) = world.memory.get_record(world.owner(), &name(piece)).await.unwrap() {
        (bytes, piece) = (bytes + part.len(), piece + 1);
    }
    // Nine segments of 16 turns: the open one and those that a node may see.
    assert!((10_000..9 * 16 * 2_500).contains(&bytes), "{bytes} bytes");
    // An index that shows an omitted turn is behind, and nothing worse.
    world.store.set_heads(old_heads);
    let other = world.plain().await.say(say(Some(&last), "one more")).await;
    assert_eq!((other.turn, other.content.as_str()), (TURNS, "one more (138)"));
}
