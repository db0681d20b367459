//! The cost of one hybrid exchange, beside X25519 alone: making a node's key, sealing to it, opening.

use std::hint::black_box;

use baton_keys::{
    exchange::{EphemeralSecret, ExchangeSecret, MemorySecret},
    secret::random_bytes,
};
use criterion::{Criterion, criterion_group, criterion_main};
use x25519_dalek::{PublicKey, StaticSecret};

fn hybrid(criterion: &mut Criterion) {
    let node = ExchangeSecret::from_bytes(&[1; 32]);
    let key = node.public_key();
    let (encapsulation, _) =
        MemorySecret::initiate(EphemeralSecret::generate(), &key, b"binding").expect("the key is usable");
    let mut group = criterion.benchmark_group("hybrid");
    group.bench_function("make a key", |bencher| {
        bencher.iter(|| ExchangeSecret::from_bytes(black_box(&[1; 32])).public_key());
    });
    group.bench_function("seal", |bencher| {
        bencher.iter(|| MemorySecret::initiate(EphemeralSecret::generate(), black_box(&key), b"binding"));
    });
    group.bench_function("open", |bencher| {
        bencher.iter(|| MemorySecret::respond(&node, black_box(&encapsulation), b"binding"));
    });
    group.finish();
}

fn classical(criterion: &mut Criterion) {
    let node = StaticSecret::from([1; 32]);
    let key = PublicKey::from(&node);
    let mut group = criterion.benchmark_group("classical");
    group.bench_function("make a key", |bencher| {
        bencher.iter(|| PublicKey::from(&StaticSecret::from(black_box([1; 32]))));
    });
    group.bench_function("seal", |bencher| {
        bencher.iter(|| {
            let ephemeral = StaticSecret::from(random_bytes::<32>());
            (PublicKey::from(&ephemeral), ephemeral.diffie_hellman(black_box(&key)))
        });
    });
    group.bench_function("open", |bencher| bencher.iter(|| node.diffie_hellman(black_box(&key))));
    group.finish();
}

criterion_group!(benches, hybrid, classical);
criterion_main!(benches);
