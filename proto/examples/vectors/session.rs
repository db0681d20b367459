//! A fixed session of twenty turns over three nodes, made as node and client would make it.
//!
//! It has ordinary turns, an edit, a summary, a tombstone, a tool message, memory and a resumed attempt. A
//! segment ends after turn 16.

use std::collections::BTreeMap;

use baton_keys::{SecretSigningKey, exchange::ExchangeSecret, session::SessionRoot};
use baton_proto::{
    SignedObject,
    chain::SessionReader,
    check::{AnswerCheck, CheckGap, CheckOrder, CheckVerdict},
    export::{self, Export, TurnProofs},
    ids::{DeviceId, ModelId, RunningHash, TurnId},
    memory::MemoryItem,
    note::{Acknowledgement, TurnNote, TurnNoteKind},
    receipt::{
        EngineKind, Receipt, ServedContents, Timings, TokenCounts, running_hash_start, running_hashes,
    },
    record::{FinishReason, Message, Record, RecordKind, Role},
    turn::{CheckInput, Sampling, TokenBias, TurnAuth},
};

pub(crate) use crate::harness::EPOCH_MS as START_MS;
use crate::harness::{CompletedTurn, NodeParty, RequestedTurn, Script, Session};

/// Turns of the fixed session.
pub(crate) const TURNS: u64 = 20;

/// The session's root.
pub(crate) fn root() -> SessionRoot {
    SessionRoot::from_bytes([0x42; 32])
}

/// The key of one of the three nodes.
pub(crate) fn node(number: u64) -> SecretSigningKey {
    SecretSigningKey::from_seed(&[0xa0 + byte(number); 32])
}

/// The exchange secret of one of the three nodes.
pub(crate) fn node_exchange(number: u64) -> ExchangeSecret {
    ExchangeSecret::from_bytes(&[0xb0 + byte(number); 32])
}

fn byte(number: u64) -> u8 {
    u8::try_from(number).expect("the numbers of the fixture are small")
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("the lengths of the fixture are small")
}

/// Pinned system text of every turn.
pub(crate) fn system() -> Vec<Message> {
    vec![Message::new(Role::System, "Answer briefly. Réponds brièvement.")]
}

/// Memory items of turn 5.
pub(crate) fn memory_items() -> Vec<MemoryItem> {
    vec![
        MemoryItem {
            text: "The user's boat is called Rosalind.".to_owned(),
            source: "conversation of 3 May".to_owned(),
            time_ms: START_MS - 86_400_000,
        },
        MemoryItem {
            text: "The user sails on Sundays.".to_owned(),
            source: "note".to_owned(),
            time_ms: START_MS - 3_600_000,
        },
    ]
}

fn tokens_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn script(seq: u64) -> Script {
    let mut script = Script {
        system: system(),
        sampling: sampling(seq),
        ..Script::turn(
            format!("Question {seq}: what floats? ⛵"),
            format!("Answer {seq}: wood, cork and, carefully shaped, steel."),
        )
    };
    match seq {
        2 => script.answer = "A long answer about buoyancy. ".repeat(40),
        3 => script.messages.push(Message {
            role: Role::Tool,
            name: Some("tide_table".to_owned()),
            call_id: Some("call-1".to_owned()),
            text: "{\"high\":\"06:12\"}".to_owned(),
        }),
        5 => script.memory = memory_items(),
        6 => script.finish = FinishReason::Length,
        7 => script.resume = Some((node(0).node_id(), tokens_of(&script.answer[..10]))),
        9 => (script.kind, script.supersedes_from) = (RecordKind::Edit, Some(8)),
        12 => (script.kind, script.supersedes_from) = (RecordKind::Summary, Some(0)),
        18 => {
            (script.kind, script.supersedes_from) = (RecordKind::Tombstone, Some(17));
            script.messages.clear();
            script.answer.clear();
            script.finish = FinishReason::None;
        }
        _ => {}
    }
    script
}

/// The running hashes of a turn's answer; its bytes are its tokens.
pub(crate) fn running_hashes_of(requested: &RequestedTurn, answer: &str) -> Vec<RunningHash> {
    let start = running_hash_start(&requested.record_key, &requested.auth.auth_hash());
    running_hashes(start, &tokens_of(answer))
}

/// Makes the session; the same bytes every time.
pub(crate) fn make() -> Session {
    let parties = (0..3).map(|number| NodeParty { signing: node(number), exchange: node_exchange(number) });
    let relayer = SecretSigningKey::from_seed(&[0xc0; 32]);
    let mut session = Session::of(root(), parties.collect(), relayer, 0);
    for seq in 0..TURNS {
        next(&mut session, seq);
    }
    session
}

fn next(session: &mut Session, seq: u64) {
    let mut script = script(seq);
    // A few turns have three answers checked.
    let count = if matches!(seq, 5 | 7) { 3 } else { 0 };
    let checked = session.done.iter().rev().take(count);
    script.checks = checked.clone().map(check_input).collect();
    let number = session.next_node();
    let auth = TurnAuth {
        device_id: DeviceId([0xd0; 16]),
        turn_id: TurnId([0x20 + byte(seq); 16]),
        attempt: u32::from(seq == 7),
        model: ModelId([0x4d; 32]),
        max_output_tokens: 2_048,
        max_price: 1_000_000,
        memory_tokens: if script.memory.is_empty() { 0 } else { 512 },
        checks: checked.map(check_order).collect(),
        issued_ms: START_MS + seq * 60_000,
        expires_ms: START_MS + seq * 60_000 + 90_000,
        ..session.draft(number, &script)
    };
    let requested = session.request(number, &script, auth, [[0x10 + byte(seq); 64], [0x70; 64]]);
    let Script { kind, supersedes_from, messages, answer, finish, .. } = &script;
    let record = Record::of_turn(*kind, *supersedes_from, messages, answer, *finish);
    let sealed = requested.seal(&record, receipt(&requested, &script), &session.nodes[number].signing);
    session.complete(number, &script, requested, &sealed).expect("the client accepts the fixture's turn");
}

/// The client's acknowledgement of a turn.
pub(crate) fn ack(turn: &CompletedTurn) -> SignedObject<TurnNote> {
    let ack = TurnNoteKind::Ack(Acknowledgement {
        link_hash: turn.accepted.link.link_hash(),
        blob_digest: turn.accepted.blob_digest,
        receipt_hash: turn.accepted.receipt.receipt_hash(),
    });
    let auth = &turn.requested.auth;
    SignedObject::sign(TurnNote::of(auth, ack, auth.issued_ms + 2_000), &root().signing_key())
}

/// The session as an export, verified from its blobs and the root. Turn 19 has no ack yet; turn 4 lacks
/// its authorisation and its system text.
pub(crate) fn export(made: &Session, with_root: bool) -> Export {
    let mut reader =
        SessionReader::new(&root(), &made.head_outer(made.done.len())).expect("the head names a blob");
    while let Some(need) = reader.need() {
        let turn = made.done.iter().find(|turn| turn.blob == need).expect("every blob is known");
        reader.provide(&turn.accepted.blob).expect("the fixture verifies");
    }
    let segments = reader.finish().expect("the walk reached the genesis");
    let proofs: BTreeMap<u64, TurnProofs> = made
        .done
        .iter()
        .map(|turn| {
            let seq = turn.accepted.link.seq;
            let proofs = TurnProofs {
                auth: (seq != 4).then(|| turn.requested.auth.bytes().clone()),
                receipt: Some(turn.accepted.receipt.bytes().clone()),
                ack: (seq != 19).then(|| ack(turn).bytes().clone()),
                system: (seq != 4).then(system),
                sampling: (seq % 2 == 0 || seq == 19).then(|| sampling(seq)),
            };
            (seq, proofs)
        })
        .collect();
    export::build(&root(), &made.genesis(), with_root, &segments, &proofs)
        .expect("a verified session exports")
}

/// A result of each kind.
const VERDICTS: [CheckVerdict; 3] = [
    CheckVerdict::Same { logits: [0x10; 32] },
    CheckVerdict::Different { token: 2, logits: [0x11; 32] },
    CheckVerdict::NotComparable(CheckGap::Memory),
];

fn check_order(turn: &CompletedTurn) -> CheckOrder {
    CheckOrder { receipt: turn.accepted.receipt.receipt_hash(), probe: 1 }
}

fn check_input(turn: &CompletedTurn) -> CheckInput {
    CheckInput {
        receipt: turn.accepted.receipt.bytes().clone(),
        sampling: turn.requested.payload.sampling.clone(),
        json_schema: None,
        tokens: vec![256, 65_536],
    }
}

/// The sampling settings of a turn.
pub(crate) fn sampling(seq: u64) -> Sampling {
    Sampling {
        temperature: 0.75,
        top_p: 0.875,
        top_k: 40,
        min_p: 0.0625,
        repetition_penalty: 1.125,
        seed: seq,
        stop: vec!["END".to_owned()],
        json_schema: None,
        logprobs: 0,
        presence_penalty: 0.5,
        frequency_penalty: -0.25,
        token_biases: vec![TokenBias { token: 7, bias: -100.0 }, TokenBias { token: 300, bias: 1.5 }],
    }
}

fn receipt(requested: &RequestedTurn, script: &Script) -> Receipt {
    let auth = &requested.auth;
    let output = word(script.answer.len());
    let memory = if script.memory.is_empty() { 0 } else { 21 };
    // The last turn has a shorter window, over the end of a segment.
    let window_from = if auth.seq + 1 == TURNS { 14 } else { 0 };
    let contents =
        ServedContents { window_from, memory: &script.memory, answer: &script.answer, finish: script.finish };
    let base = Receipt::of_turn(auth, &requested.payload, &contents);
    let hashes = running_hashes_of(requested, &script.answer);
    let check = |(order, verdict)| AnswerCheck { order, verdict };
    Receipt {
        engine: EngineKind::Native,
        tokens: TokenCounts { input: 100 + memory, output, memory, ..base.tokens },
        running_hash: *hashes.last().expect("the hash of no tokens"),
        checks: auth.checks.iter().copied().zip(VERDICTS).map(check).collect(),
        timings: Timings { queue_ms: 3, prefill_ms: 40, first_token_ms: 55, decode_ms: 700 },
        price: 1_234,
        time_ms: auth.issued_ms + 1_000,
        ..base
    }
}
