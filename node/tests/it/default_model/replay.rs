//! `baton-node replay`: recomputes a recorded conversation, and names each change in it.
//!
//! Two nodes made `data/replay` on the default model (`testnet/examples/record_replay.rs`): greedy and drawn
//! tokens, penalties and biases, a schema, memory, an edit, stop strings. The engine must give these answers in all of its
//! revision: a change of their bits raises `ENGINE_REVISION`, and the conversation is recorded anew.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use baton_node::{
    engine::native::{NativeConfig, NativeEngine},
    replay::{NotReplayable, ReplayTask, Verdict, replay},
};
use baton_proto::{
    SignedObject,
    export::{Export, ExportMemory, OpenTurn, open},
    ids::ModelId,
    memory::MemoryItem,
    receipt::{EngineKind, Receipt},
};
use serde_json::Value;

use super::{blocking_every_core, every_core, model_path};
use crate::process::{baton_node, failure, text};

const EXPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/replay/export.json");
const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/replay/schema.json");
const MEMORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/replay/memory.json");
/// The turn with memory.
const REMEMBERED: u64 = 3;
/// A turn with drawn tokens.
const DRAWN: u64 = 1;

fn command(home: &Path, words: &[&str]) -> Command {
    let mut command = baton_node(home, &["replay", "--export", EXPORT]);
    command.args(["--schema", SCHEMA]).arg("--model-dir").arg(model_path().parent().unwrap()).args(words);
    command
}

fn lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn turns() -> Vec<OpenTurn> {
    let export: Export = serde_json::from_str(&fs::read_to_string(EXPORT).unwrap()).unwrap();
    open(&export).unwrap()
}

fn memory() -> Vec<MemoryItem> {
    let all: Vec<ExportMemory> = serde_json::from_str(&fs::read_to_string(MEMORY).unwrap()).unwrap();
    all.into_iter().find(|one| one.seq == REMEMBERED).unwrap().items
}

#[test]
fn a_recorded_conversation_is_the_same_to_the_token_with_any_number_of_threads() {
    let _guard = blocking_every_core();
    let home = tempfile::tempdir().unwrap();
    let turns = turns();
    for threads in ["1", "2"] {
        let output =
            command(home.path(), &["--memory", MEMORY, "--threads", threads, "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = lines(&output);
        assert_eq!(lines.len(), turns.len());
        for (line, turn) in lines.iter().zip(&turns) {
            let tokens = turn.receipt.as_ref().unwrap().tokens.output;
            assert_eq!((&line["result"], &line["tokens"]), (&"same".into(), &tokens.into()), "{line}");
        }
    }
}

#[test]
fn a_turn_is_named_by_number_or_receipt_and_undisclosed_parts_are_reported() {
    let _guard = blocking_every_core();
    let home = tempfile::tempdir().unwrap();
    let receipt = turns()[0].receipt.as_ref().unwrap().receipt_hash();
    let digits = hex::encode(receipt.0);
    let output = command(home.path(), &[&digits[..10]]).output().unwrap();
    assert!(text(&output.stdout).starts_with("turn 1: the same "), "{output:?}");

    let number = (REMEMBERED + 1).to_string();
    let mut remembered = command(home.path(), &[&number, "--json"]);
    let output = remembered.output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(lines(&output)[0]["turn"], REMEMBERED + 1, "people count from 1");
    assert!(lines(&output)[0]["reason"].as_str().unwrap().contains("memory items"), "{output:?}");

    for (words, wanted) in
        [("99", "its turns are 1 to"), ("0", "its turns are 1 to"), (&digits[..3], "6 digits")]
    {
        let (code, said) = failure(&mut command(home.path(), &[words]));
        assert!(code == 2 && said.contains(wanted), "{said}");
    }
    let config = home.path().join("config.toml");
    fs::write(&config, "more_models = [\"x\"]\n").unwrap();
    let (_, said) =
        failure(&mut command(home.path(), &["1", "--config", config.to_str().unwrap(), "--model", "x"]));
    assert!(said.contains("x.gguf: `baton-node models list`"), "{said}");
    let damaged = home.path().join("damaged.json");
    let text = fs::read_to_string(EXPORT).unwrap();
    let (before, after) = text.split_once("\"record_key\": \"").unwrap();
    let other = if after.starts_with('0') { '1' } else { '0' };
    fs::write(&damaged, format!("{before}\"record_key\": \"{other}{}", &after[1..])).unwrap();
    let (code, said) =
        failure(&mut baton_node(home.path(), &["replay", "--export", damaged.to_str().unwrap()]));
    assert!(code == 1 && said.contains("does not verify"), "{said}");
}

/// The turn with an altered receipt under a new key; replay does not check the signer.
fn with_receipt(mut turn: OpenTurn, change: impl FnOnce(&mut Receipt)) -> OpenTurn {
    let mut receipt = Receipt::clone(turn.receipt.as_ref().unwrap());
    change(&mut receipt);
    let key = baton_keys::sign::SecretSigningKey::generate();
    receipt.node = baton_proto::ids::NodeId(key.public_key().0);
    turn.receipt = Some(SignedObject::sign(receipt, &key));
    turn
}

#[tokio::test]
async fn an_answer_that_the_model_does_not_give_is_different_where_it_departs() {
    let _guard = every_core().await;
    let config = NativeConfig { slots: 1, ..NativeConfig::new("replay", model_path()) };
    let engine = tokio::task::spawn_blocking(move || NativeEngine::load(&config)).await.unwrap().unwrap();
    let verdict = async |change: &dyn Fn(&mut OpenTurn), seq: u64| {
        let mut turns = turns();
        change(turns.iter_mut().find(|turn| turn.link.seq == seq).unwrap());
        let task = ReplayTask::new(&turns, seq, &memory(), None);
        match task {
            Ok(task) => replay(&engine, &task).await.unwrap(),
            Err(why) => Verdict::NotReplayable(why),
        }
    };
    let answer = |turn: &mut OpenTurn| {
        let last = turn.record.messages.last_mut().unwrap();
        last.text = last.text.replacen(' ', "  ", 3);
    };
    let whole = async |seq| match verdict(&|_| {}, seq).await {
        Verdict::Same { tokens } => tokens,
        other => panic!("{other:?}"),
    };
    let tokens = whole(DRAWN).await;
    // Changes of its words, its end, and its drawing.
    assert!(
        matches!(verdict(&answer, DRAWN).await, Verdict::Different { token: Some(at) } if at > 0 && at < tokens)
    );
    let longer = |turn: &mut OpenTurn| turn.record.messages.last_mut().unwrap().text.push_str(" And more.");
    assert_eq!(verdict(&longer, DRAWN).await, Verdict::Different { token: Some(tokens) });
    let seed = |turn: &mut OpenTurn| turn.sampling.as_mut().unwrap().seed += 1;
    assert!(matches!(verdict(&seed, DRAWN).await, Verdict::Different { token: Some(at) } if at < tokens));
    // Other words in an earlier turn. The receipt of this turn does not commit to them, but its link does.
    let mut turns = turns();
    turns[0].record.messages[0].text.push_str(" Speak of fish.");
    let task = ReplayTask::new(&turns, DRAWN, &[], None).unwrap();
    assert!(matches!(replay(&engine, &task).await.unwrap(), Verdict::Different { .. }));
    // The same words from other tokens.
    let spelled = |turn: &mut OpenTurn| {
        *turn = with_receipt(turn.clone(), |receipt| receipt.running_hash.0[0] ^= 1);
    };
    assert_eq!(verdict(&spelled, DRAWN).await, Verdict::Different { token: None });

    let model = ModelId([7; 32]);
    let other = |turn: &mut OpenTurn| *turn = with_receipt(turn.clone(), |receipt| receipt.model = model);
    assert!(matches!(
        verdict(&other, DRAWN).await,
        Verdict::NotReplayable(NotReplayable::Model { wanted, .. }) if wanted == model
    ));
    for engine in [EngineKind::Proxied, EngineKind::Library] {
        let others =
            |turn: &mut OpenTurn| *turn = with_receipt(turn.clone(), |receipt| receipt.engine = engine);
        assert!(matches!(verdict(&others, DRAWN).await, Verdict::NotReplayable(NotReplayable::Engine(_))));
    }
    let undisclosed = |turn: &mut OpenTurn| turn.sampling = None;
    assert!(matches!(
        verdict(&undisclosed, DRAWN).await,
        Verdict::NotReplayable(NotReplayable::Undisclosed(_))
    ));
    let schema = |turn: &mut OpenTurn| turn.sampling.as_mut().unwrap().json_schema = Some([1; 32]);
    assert_eq!(verdict(&schema, DRAWN).await, Verdict::NotReplayable(NotReplayable::Schema));
    let mut lied = memory();
    lied[0].text.push('!');
    let task = ReplayTask::new(&turns, REMEMBERED, &lied, None);
    assert!(matches!(task.err(), Some(NotReplayable::Memory { .. })));
}
