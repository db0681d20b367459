//! The cost of a turn besides the model: sealing, the client's rebuild, reading windows, the codec.

use std::hint::black_box;

use baton_proto::{
    SignedObject, chain::SessionReader, codec, limits::MAX_FRAME_BYTES, receipt::Receipt, segment::Segment,
    turn::TurnAuth, wire::ClientFrame,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

#[path = "../tests/it/support/harness.rs"]
#[allow(dead_code, reason = "the tests use more of the harness than the benches")]
mod harness;
#[path = "../tests/it/support/source.rs"]
#[allow(dead_code, reason = "the tests use more of the source than the benches")]
mod source;

use harness::{Script, Session, read_window};
use source::Source;

/// A turn whose sealed record has 2 KiB.
fn script(turn: u64) -> Script {
    let mut source = Source::new(turn);
    Script::turn(source.text(300), source.text(1500))
}

fn session(turns: u64) -> Session {
    let mut session = Session::new(1);
    for turn in 0..turns {
        session.turn(&script(turn));
    }
    session
}

fn ends_of_a_turn(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("turn");
    // The first turn of a session and the last of a segment: the smallest and largest blob of these records.
    for turns in [1, 16] {
        let session = session(turns);
        let done = session.done.last().expect("the session has turns");
        let node = &session.nodes[done.node].signing;
        let requested = &done.requested;
        group.bench_function(format!("seal_turn, {turns} in the segment"), |bencher| {
            bencher.iter_batched(
                || Receipt::clone(&done.accepted.receipt),
                |receipt| requested.seal(&done.accepted.record, receipt, node),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("accept_turn, {turns} in the segment"), |bencher| {
            bencher.iter(|| requested.accept(&session.root, black_box(&done.committed), &done.script.answer));
        });
    }
    group.finish();
}

fn windows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("window");
    group.sample_size(20);
    for segments in [1, 2, 9] {
        let mut session = session(segments * 16);
        let requested = session.ask(0, &script(0));
        let found = requested.payload.grant.blobs.len() as u64;
        assert_eq!(found, segments);
        group.bench_function(format!("WindowReader, {segments} segments"), |bencher| {
            bencher.iter(|| read_window(&requested.auth, &requested.payload.grant, &session.store));
        });
    }
    let session = session(144);
    let outer = session.head_outer(144);
    group.bench_function("SessionReader, 144 turns", |bencher| {
        bencher.iter(|| {
            let mut reader = SessionReader::new(&session.root, &outer).expect("the head names a blob");
            while let Some(need) = reader.need() {
                reader.provide(&session.store[&need.digest]).expect("the store is honest");
            }
            reader.finish()
        });
    });
    group.finish();
}

fn codecs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    let session = session(16);
    let done = session.done.last().expect("the session has turns");
    let segment = &done.accepted.segment;
    let encoded = codec::encode(segment);
    group.bench_function(format!("encode a segment of {} bytes", encoded.len()), |bencher| {
        bencher.iter(|| codec::encode(black_box(segment)));
    });
    group.bench_function(format!("decode a segment of {} bytes", encoded.len()), |bencher| {
        bencher.iter(|| codec::decode::<Segment>(black_box(&encoded), encoded.len()));
    });
    let frame = done.requested.frame();
    group.bench_function(format!("decode a request of {} bytes", frame.len()), |bencher| {
        bencher.iter(|| codec::decode::<ClientFrame>(black_box(&frame), MAX_FRAME_BYTES));
    });
    group.bench_function("verify an authorisation", |bencher| {
        bencher.iter(|| SignedObject::<TurnAuth>::verify(black_box(done.requested.auth.bytes()).clone()));
    });
    let node = &session.nodes[done.node];
    group.bench_function("open a payload", |bencher| {
        bencher.iter(|| done.requested.sealed.open(&node.exchange, &done.requested.auth));
    });
    group.finish();
}

criterion_group!(benches, ends_of_a_turn, windows, codecs);
criterion_main!(benches);
