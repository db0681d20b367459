//! The quality of recall with each available model. Prints the JSON line of `baton-relayer eval locomo`.
//!
//! `cargo run --release -p baton-relayer --example eval_locomo -- DATA_FILE [MODELS_FOLDER]`

use std::path::PathBuf;

use baton_embed::{EmbedderConfig, models::catalogue, open};
use baton_relayer::locomo;

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let data = arguments.next().ok_or_else(|| anyhow::anyhow!("name the data file"))?;
    let folder = arguments.next().unwrap_or_default();
    let mut embedders = vec![open(&EmbedderConfig::Hashing {}, &folder).await?];
    for (model, config) in catalogue().iter().zip([EmbedderConfig::Potion {}, EmbedderConfig::Minilm {}]) {
        if model.is_installed(&folder) {
            embedders.push(open(&config, &folder).await?);
        }
    }
    let report = locomo(&data, &embedders, &mut |_| {}).await?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
