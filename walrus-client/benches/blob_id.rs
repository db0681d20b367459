//! Time and throughput of blob IDs, by blob size and shard count.

use std::num::NonZeroUsize;

use baton_walrus_client::{ShardCount, blob_id_threads};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn blob_ids(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("blob_id");
    group.sample_size(10);
    for shards in [10, 100, 1000].map(|count| ShardCount::new(count).expect("within bounds")) {
        for (name, length) in [("10KB", 10_000), ("64KiB", 64 << 10), ("1MiB", 1 << 20), ("10MiB", 10 << 20)]
        {
            if length as u64 > shards.max_blob_length() {
                continue;
            }
            // Not compressible and without zero rows inside, like a sealed blob.
            let mut bytes = vec![0; length];
            blake3::Hasher::new().finalize_xof().fill(&mut bytes);
            group.throughput(Throughput::Bytes(length as u64));
            for threads in [1, 2].map(|count| NonZeroUsize::new(count).expect("not zero")) {
                let parameters = format!("n={shards}, {threads} threads");
                group.bench_with_input(BenchmarkId::new(name, parameters), &bytes, |bencher, bytes| {
                    bencher.iter(|| blob_id_threads(bytes, shards, threads));
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, blob_ids);
criterion_main!(benches);
