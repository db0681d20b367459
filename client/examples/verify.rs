//! Verifies every session of a home folder: all links, signatures, records and blobs.
//!
//! ```sh
//! cargo run -p baton-client --example verify -- HOME STORE_URL SHARDS
//! ```
#![expect(clippy::print_stdout, reason = "the report is the program's output")]

use std::{error::Error, path::Path, time::Duration};

use baton_client::{Client, ClientConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [home, store, shards] = arguments.as_slice() else {
        return Err("usage: verify HOME STORE_URL SHARDS".into());
    };
    // No node is needed: the store has the blobs, and the journal has this device's copies.
    let config = ClientConfig::with_http(Some(Path::new(home)), store, store, None, shards.parse()?)?;
    let client = Client::open(config).await?;
    let mut bad = 0;
    for session in client.sessions().await? {
        // An empty session has nothing to verify.
        if session.turns == 0 {
            continue;
        }
        let report = client.session(session.id).verify(true).await?;
        println!(
            "{}: {} turns, {} blobs, {} segments from the store: {}",
            session.id,
            report.turns,
            report.blobs_checked,
            report.from_store,
            if report.is_good() { "good" } else { "NOT good" }
        );
        for problem in &report.problems {
            println!("  {problem:?}");
        }
        bad += report.problems.len();
    }
    client.shutdown(Duration::from_secs(5)).await;
    if bad > 0 { Err(format!("{bad} problems").into()) } else { Ok(()) }
}
