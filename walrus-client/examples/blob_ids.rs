//! Blob IDs of generated blobs, for comparison with other encoders.
//!
//! Reads lines `seed length shards` and prints the ID of each, or `too large`. The blob is the output of the
//! generator mulberry32 for the 32-bit seed, as little-endian numbers. Called by
//! `scripts/conformance/ids.mjs`.

use std::io::{BufRead as _, Write as _};

use baton_walrus_client::{BlobIdError, ShardCount, blob_id};

#[path = "shared/mulberry.rs"]
mod mulberry;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut fields = line.split_whitespace();
        let mut field = || fields.next().ok_or("every line is: seed length shards");
        let (seed, length): (u32, usize) = (field()?.parse()?, field()?.parse()?);
        let shards = ShardCount::new(field()?.parse()?)?;
        match blob_id(&mulberry::blob(seed, length), shards) {
            Ok(id) => writeln!(out, "{id}")?,
            Err(BlobIdError { .. }) => writeln!(out, "too large")?,
        }
    }
    Ok(())
}
