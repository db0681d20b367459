//! The quality of recall: how often the search of memory finds the evidence of a question, with each available
//! embedding model and with none. Prints one JSON line. It opens no owner's memory.
//!
//! `cargo run --release -p baton-memory --example eval_locomo -- DATA_FILE [MODELS_FOLDER]`

mod locomo;
mod measures;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_models::embed::{EmbedError, Embedder, EmbedderConfig, models::catalogue, open};

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let data = arguments.next().ok_or_else(|| anyhow::anyhow!("name the data file"))?;
    let embedders = installed(&arguments.next().unwrap_or_default()).await?;
    println!("{}", serde_json::to_string(&locomo::locomo(&data, &embedders).await?)?);
    Ok(())
}

/// The hashing embedder, and the models in a folder.
async fn installed(folder: &Path) -> Result<Vec<Arc<dyn Embedder>>, EmbedError> {
    let mut embedders = vec![open(&EmbedderConfig::Hashing {}, folder).await?];
    for (model, config) in catalogue().iter().zip([EmbedderConfig::Potion {}, EmbedderConfig::Minilm {}]) {
        if model.is_installed(folder) {
            embedders.push(open(&config, folder).await?);
        }
    }
    Ok(embedders)
}
