//! The window: kept turns, cut turns, and the place of memory.

use std::cell::Cell;

use baton_engine::ENGINE_REVISION;
use baton_node::prompt::{
    ChatMessage, FittedWindow, MemoryBlock, MemoryItem, Prompt, Role, TurnText, WindowError, fit_window,
};
use proptest::prelude::*;

/// Counts words, plus two for each message, as a template would.
fn words(prompt: &Prompt) -> u32 {
    prompt.rendered().map(|(_, text)| u32::try_from(text.split_whitespace().count()).unwrap() + 2).sum()
}

fn turn(seq: u64, user_words: usize) -> TurnText {
    TurnText {
        seq,
        messages: vec![
            ChatMessage::new(Role::User, "word ".repeat(user_words)),
            ChatMessage::new(Role::Assistant, format!("answer {seq}")),
        ],
    }
}

fn message(role: Role, text: &str) -> Vec<ChatMessage> {
    vec![ChatMessage::new(role, text)]
}

fn memory(items: &[&str], max_tokens: u32) -> MemoryBlock {
    let item = |text: &&str| MemoryItem { source: "notes".into(), text: (*text).into(), time_ms: 0 };
    MemoryBlock { fence_tag: "0a1b2c".into(), items: items.iter().map(item).collect(), max_tokens }
}

fn fit(
    system: &[ChatMessage],
    history: &[TurnText],
    memory: Option<&MemoryBlock>,
    new: &[ChatMessage],
    budget: u32,
) -> Result<FittedWindow, WindowError<()>> {
    fit_window(system, history, memory, new, budget, |prompt| Ok(words(prompt)))
}

#[test]
fn keeps_everything_that_fits_with_two_counts() {
    let history: Vec<_> = (0..40).map(|seq| turn(seq, 3)).collect();
    let calls = Cell::new(0);
    let window = fit_window(
        &message(Role::System, "be brief"),
        &history,
        None,
        &message(Role::User, "hello"),
        10_000,
        |prompt| {
            calls.set(calls.get() + 1);
            Ok::<_, ()>(words(prompt))
        },
    )
    .unwrap();
    assert_eq!((window.first_seq, window.dropped_turns), (Some(0), 0));
    assert_eq!(window.prompt.messages().len(), 82);
    assert_eq!(calls.get(), 2);
}

#[test]
fn cuts_whole_turns_oldest_first_and_pins_the_system_text() {
    let history: Vec<_> = (5..15).map(|seq| turn(seq, 4)).collect(); // 10 tokens each
    let window =
        fit(&message(Role::System, "pinned"), &history, None, &message(Role::User, "new one"), 37).unwrap();
    assert_eq!((window.first_seq, window.dropped_turns, window.tokens), (Some(12), 7, 37));
    let texts: Vec<_> = window.prompt.messages().iter().map(|m| m.text.trim().to_owned()).collect();
    assert_eq!(texts.first().map(String::as_str), Some("pinned"));
    assert_eq!(texts.last().map(String::as_str), Some("new one"));
    assert_eq!(texts[2], "answer 12");
}

#[test]
fn the_window_of_a_growing_history_keeps_its_beginning_for_a_quarter_of_its_turns() {
    let history: Vec<_> = (0..80).map(|seq| turn(seq, 4)).collect(); // 10 tokens each
    let from = |turns: usize| {
        fit(&[], &history[..turns], None, &message(Role::User, "x"), 203).unwrap().first_seq.unwrap()
    };
    let first: Vec<u64> = (1..=40).map(from).collect();
    assert!(first[..20].iter().all(|seq| *seq == 0), "all fit: {first:?}");
    assert_eq!(first[20..], [4, 8, 12, 16, 20].map(|seq| [seq; 4]).concat(), "blocks of four");
}

#[test]
fn a_long_history_takes_few_counts_and_never_counts_much_more_than_the_window() {
    let history: Vec<_> = (0..10_000).map(|seq| turn(seq, 4)).collect();
    let (calls, largest) = (Cell::new(0), Cell::new(0));
    let window = fit_window(&[], &history, None, &message(Role::User, "x"), 503, |prompt| {
        calls.set(calls.get() + 1);
        largest.set(largest.get().max(words(prompt)));
        Ok::<_, ()>(words(prompt))
    })
    .unwrap();
    assert_eq!((window.dropped_turns, window.tokens), (9_952, 483));
    assert!(calls.get() <= 16, "{} counts", calls.get());
    assert!(largest.get() <= 1_100, "counted {} tokens at once", largest.get());
}

#[test]
fn refuses_system_and_new_text_that_are_too_long_alone() {
    let error = fit(&message(Role::System, "a b c"), &[turn(0, 1)], None, &message(Role::User, "d e"), 8)
        .unwrap_err();
    assert_eq!(error, WindowError::ContextOverflow { needed: 9, budget: 8 });
}

#[test]
fn a_failing_count_is_reported() {
    let failed = fit_window(&[], &[], None, &message(Role::User, "x"), 10, |_| Err("broken"));
    assert_eq!(failed.unwrap_err(), WindowError::Count("broken"));
}

#[test]
fn memory_stands_before_the_new_user_text_in_the_user_role_and_fenced() {
    let block = memory(&["likes tea", "lives in Oslo"], 100);
    let window = fit(
        &message(Role::System, "sys"),
        &[turn(1, 2)],
        Some(&block),
        &message(Role::User, "what do I like?"),
        500,
    )
    .unwrap();
    assert_eq!(window.memory_items_used, 2);
    let rendered: Vec<_> = window.prompt.rendered().map(|(m, text)| (m.role, text.to_string())).collect();
    let (role, text) = rendered.last().unwrap();
    assert_eq!(*role, Role::User);
    assert!(text.starts_with("<memory-0a1b2c>\n") && text.ends_with("</memory-0a1b2c>\n\nwhat do I like?"));
    assert!(text.contains("[1] (from notes) likes tea\n[2] (from notes) lives in Oslo\n"));
    assert!(rendered[..rendered.len() - 1].iter().all(|(_, text)| !text.contains("likes tea")));
    // The record comes from the messages, and memory must not get into it.
    assert!(window.prompt.messages().iter().all(|m| !m.text.contains("likes tea")));
}

#[test]
fn memory_drops_whole_items_lowest_first_within_its_share() {
    // The fence takes 11 words, each item 3 plus its own: 5, 5, 5, 4.
    let block = memory(&["one two", "three four", "five six", "seven"], 25);
    let window = fit(&[], &[], Some(&block), &message(Role::User, "q"), 500).unwrap();
    assert_eq!((window.memory_items_used, window.tokens), (2, 3 + 21));
    let none = fit(&[], &[], Some(&memory(&["one"], 5)), &message(Role::User, "q"), 500).unwrap();
    assert_eq!((none.memory_items_used, none.tokens), (0, 3));
}

#[test]
fn memory_gives_way_rather_than_overflowing_the_context() {
    let block = memory(&["one two three"], 100);
    let window = fit(&[], &[], Some(&block), &message(Role::User, "q"), 10).unwrap();
    assert_eq!((window.memory_items_used, window.tokens), (0, 3));
}

#[test]
fn debug_shows_no_text() {
    let mut secret = ChatMessage::new(Role::User, "tulip");
    secret.name = Some("violet".into());
    let block = memory(&["daffodil"], 100);
    let window = fit(&[secret.clone()], &[], Some(&block), &[secret.clone()], 100).unwrap();
    let shown = format!("{secret:?} {window:?} {block:?} {:?}", block.items);
    for text in ["tulip", "violet", "daffodil"] {
        assert!(!shown.contains(text), "{shown}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_window_is_the_longest_suffix_that_fits_but_for_a_part_of_a_block(
        sizes in prop::collection::vec(0usize..30, 0..40),
        budget in 0u32..400,
        memory_words in prop::collection::vec(1usize..12, 0..6),
        share in 0u32..60,
    ) {
        let history: Vec<_> = (100u64..).zip(&sizes).map(|(seq, size)| turn(seq, *size)).collect();
        let texts: Vec<_> = memory_words.iter().map(|n| "m ".repeat(*n)).collect();
        let block = memory(&texts.iter().map(String::as_str).collect::<Vec<_>>(), share);
        let new = message(Role::User, "one two three");
        match fit(&message(Role::System, "s"), &history, Some(&block), &new, budget) {
            Err(error) => {
                prop_assert!(budget < 8);
                prop_assert_eq!(error, WindowError::ContextOverflow { needed: 8, budget });
            }
            Ok(window) => {
                prop_assert!(window.tokens <= budget);
                prop_assert_eq!(words(&window.prompt), window.tokens);
                let kept = history.len() - window.dropped_turns;
                prop_assert_eq!(window.prompt.messages().len(), 2 + 2 * kept);
                let expected = history.get(window.dropped_turns).map(|turn| turn.seq);
                prop_assert_eq!(window.first_seq, expected);
                let mut tokens = window.tokens;
                let more = sizes[..window.dropped_turns].iter().rev().take_while(|size| {
                    tokens += u32::try_from(**size).unwrap() + 6;
                    tokens <= budget
                });
                let fitting = kept + more.count();
                prop_assert!(4 * (fitting - kept) < fitting.max(1), "{kept} of {fitting} turns");
            }
        }
    }
}

#[test]
fn without_a_user_message_no_memory_is_placed_and_none_is_counted() {
    let offered = memory(&["likes figs", "lives in Lisbon"], 100);
    let window = fit(&[], &[turn(0, 3)], Some(&offered), &message(Role::Tool, "result"), 1000).unwrap();
    assert_eq!(window.memory_items_used, 0);
    assert!(window.prompt.rendered().all(|(_, text)| !text.contains("figs")));
    let window = fit(&[], &[], Some(&offered), &[], 1000).unwrap();
    assert_eq!(window.memory_items_used, 0);
}

/// The revision, and the digest of the words that a node adds to prompts. If the test fails because they were changed
/// on purpose, raise [`ENGINE_REVISION`] and write the digest here.
const GOLDEN: (u32, &str) = (1, "e5a11b9d641b9478c0047ad194aa302174bb3c9760295093fbffe7ee5770dd97");

#[test]
fn the_words_around_memory_change_only_with_the_engines_revision() {
    let history: Vec<_> = (0..3).map(|seq| turn(seq, 2)).collect();
    let items = ["Lisa\u{202E} likes\ntea", "Ben is in Rome"];
    let (system, new) = (message(Role::System, "be brief"), message(Role::User, "hello"));
    let window = fit(&system, &history, Some(&memory(&items, 100)), &new, 1000).unwrap();
    let mut hasher = blake3::Hasher::new();
    for (message, text) in window.prompt.rendered() {
        hasher.update(format!("{:?}: {}\n", message.role, *text).as_bytes());
    }
    assert_eq!((ENGINE_REVISION, hasher.finalize().to_hex().as_str()), GOLDEN);
}
