//! Scan and ranking of one owner, at three sizes.

mod scale;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use scale::ScaleInput;

fn search(c: &mut Criterion) {
    for items in [1_000, 10_000, 100_000] {
        let scale = ScaleInput::generate(items, 256).build();
        let mut number = 0;
        c.bench_function(&format!("scan and rank {items}"), |bench| {
            bench.iter(|| {
                number += 1;
                scale.ask(number)
            });
        });
    }
    c.bench_function("build 10000", |bench| {
        bench.iter_batched(|| (), |()| ScaleInput::generate(10_000, 256).build(), BatchSize::PerIteration);
    });
}

criterion_group!(benches, search);
criterion_main!(benches);
