//! The cost of a blob ID as JSON: CPU and wall time by size and shards; or memory.
//!
//!     bench_ids [--runs 5]
//!     bench_ids --memory LENGTH SHARDS
//!
//! Times are medians over the runs, after one uncounted run. CPU time is that of the whole process. The
//! second form computes one ID of a source that is generated during reads, and prints the process's peak
//! memory. `scripts/conformance/ids.mjs --bench` adds Mysten's WebAssembly in the same run.

use std::{
    io,
    time::{Duration, Instant},
};

use baton_walrus_client::{BlobSource, ShardCount, blob_id, blob_id_of};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

#[path = "shared/mulberry.rs"]
mod mulberry;

const LENGTHS: [usize; 4] = [10_000, 64 << 10, 1 << 20, 10 << 20];
const SHARDS: [u16; 3] = [10, 100, 1000];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let report = match args[..] {
        [] => times(5)?,
        ["--runs", runs] => times(runs.parse()?)?,
        ["--memory", length, shards] => memory(length.parse()?, shards.parse()?)?,
        _ => return Err("usage: bench_ids [--runs N] | --memory LENGTH SHARDS".into()),
    };
    serde_json::to_writer_pretty(io::stdout(), &report)?;
    Ok(())
}

/// The JSON of all sizes.
fn times(runs: usize) -> Result<Value, Box<dyn std::error::Error>> {
    let mut ids = Vec::new();
    for shards in SHARDS {
        let shards = ShardCount::new(shards)?;
        for length in LENGTHS.into_iter().filter(|length| *length as u64 <= shards.max_blob_length()) {
            let blob = mulberry::blob(u32::try_from(length)?, length);
            let id = blob_id(&blob, shards)?;
            let (mut cpu, mut wall) = (Vec::new(), Vec::new());
            for _ in 0..runs.max(1) {
                let (cpu_before, start) = (cpu_time()?, Instant::now());
                blob_id(&blob, shards)?;
                wall.push(start.elapsed());
                cpu.push(cpu_time()? - cpu_before);
            }
            ids.push(json!({
                "bytes": length, "shards": shards.get(), "id": id.to_string(),
                "cpu_ms": median_ms(&mut cpu), "wall_ms": median_ms(&mut wall),
            }));
        }
    }
    Ok(json!({ "ids": ids, "runs": runs.max(1) }))
}

/// CPU time of this process so far.
fn cpu_time() -> Result<Duration, std::num::TryFromIntError> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

fn median_ms(times: &mut [Duration]) -> f64 {
    times.sort();
    let median = times[times.len() / 2].as_secs_f64() * 1e3;
    (median * 1e3).round() / 1e3
}

/// The JSON of one ID's memory.
fn memory(length: u64, shards: u16) -> Result<Value, Box<dyn std::error::Error>> {
    let before = peak_bytes()?;
    let (cpu_before, start) = (cpu_time()?, Instant::now());
    let id = blob_id_of(&GeneratedBlob { length }, ShardCount::new(shards)?)?;
    Ok(json!({
        "bytes": length, "shards": shards, "id": id.to_string(),
        "cpu_ms": (cpu_time()? - cpu_before).as_millis(), "wall_ms": start.elapsed().as_millis(),
        "peak_bytes_before": before, "peak_bytes": peak_bytes()?,
    }))
}

/// Peak memory of this process (Linux).
fn peak_bytes() -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// Bytes that are generated during reads.
struct GeneratedBlob {
    length: u64,
}

impl BlobSource for GeneratedBlob {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        for (at, byte) in (offset..).zip(buffer) {
            *byte = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        }
        Ok(())
    }
}
