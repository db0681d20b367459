//! Time and throughput of blob IDs, by blob size and shard count.

use baton_walrus_client::{ShardCount, blob_id};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn blob_ids(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("blob_id");
    group.sample_size(10);
    for shards in [ShardCount::TESTBED, ShardCount::MAINNET] {
        for (name, length) in [("10KB", 10_000usize), ("256KiB", 1 << 18), ("1MiB", 1 << 20)] {
            // Not compressible and without zero rows inside, like a sealed blob.
            let mut bytes = vec![0; length];
            blake3::Hasher::new().finalize_xof().fill(&mut bytes);
            group.throughput(Throughput::Bytes(length as u64));
            group.bench_with_input(
                BenchmarkId::new(name, format!("n={shards}")),
                &bytes,
                |bencher, bytes| bencher.iter(|| blob_id(bytes, shards)),
            );
        }
    }
    group.finish();
}

criterion_group!(benches, blob_ids);
criterion_main!(benches);
