//! Scan and ranking of one owner, at three sizes.

use baton_memory::eval::Scale;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

fn search(c: &mut Criterion) {
    for items in [1_000, 10_000, 100_000] {
        let scale = Scale::new(items, 256);
        let mut number = 0;
        c.bench_function(&format!("scan and rank {items}"), |bench| {
            bench.iter(|| {
                number += 1;
                scale.ask(number)
            });
        });
    }
    c.bench_function("build 10000", |bench| {
        bench.iter_batched(|| (), |()| Scale::new(10_000, 256), BatchSize::PerIteration);
    });
}

criterion_group!(benches, search);
criterion_main!(benches);
