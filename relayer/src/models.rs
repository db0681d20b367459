//! Commands for embedding models: fetch them, and measure recall with each.

use std::{path::Path, sync::Arc};

use crate::{
    config::{EmbedderSetting, Settings},
    evaluation,
    output::println,
    setup,
};
use anyhow::Context as _;
use baton_command::progress::{self, BarStyle};
use baton_embed::{
    Embedder, EmbedderConfig,
    models::{ALL_MINILM_L6_V2, POTION_BASE_8M, PullProgress, catalogue, model, pull as fetch},
};
use baton_keys::files::create_private_folder;

/// Fetches a model, or verifies an existing one.
pub(crate) fn pull(settings: &Settings, name: &str) -> anyhow::Result<()> {
    let total = model(name)?.bytes();
    let folder = &settings.model_dir;
    create_private_folder(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let bar = progress::bar(BarStyle::Bytes);
    let files = fetch(name, folder, &mut |step| {
        let (phase, bytes, length) = match step {
            // The total is unknown; the files are barely compressed.
            PullProgress::Downloading { bytes, .. } => ("fetching", bytes, total),
            PullProgress::Unpacking { bytes, total } => ("unpacking", bytes, total),
            PullProgress::Verifying { bytes, total } => ("checking", bytes, total),
        };
        bar.set_message(format!("{phase} {name}"));
        bar.set_length(length.max(bytes));
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    for file in files? {
        println(&file.display().to_string());
    }
    Ok(())
}

/// Shows the models.
pub(crate) fn list(settings: &Settings) -> anyhow::Result<()> {
    for model in catalogue() {
        let state = if model.is_installed(&settings.model_dir) { "here" } else { "not fetched" };
        println(&format!("{:<20} {:<12} {} ({})", model.name, state, model.description, model.licence));
    }
    Ok(())
}

/// Measures recall on a file in LoCoMo's format with every available embedder.
pub(crate) async fn locomo(settings: &Settings, data: &Path, json: bool) -> anyhow::Result<()> {
    let mut embedders: Vec<Arc<dyn Embedder>> = Vec::new();
    for config in available(settings) {
        embedders.push(baton_embed::open(&config, &settings.model_dir).await?);
    }
    let bar = progress::bar(BarStyle::Steps);
    let report = evaluation::locomo(data, &embedders, &mut |step| {
        bar.set_message(step.embedder.to_owned());
        bar.set_length(step.dialogues as u64);
        bar.set_position(step.done as u64);
    })
    .await;
    bar.finish_and_clear();
    let report = report?;
    if json {
        println(&serde_json::to_string(&report)?);
        return Ok(());
    }
    println(&format!(
        "{:<32} {:>6} {:>6} {:>6} {:>6} {:>8}",
        "embedder", "R@5", "R@10", "R@20", "MRR", "nDCG@10"
    ));
    for config in &report.configs {
        let all = &config.all;
        println(&format!(
            "{:<32} {:>6.3} {:>6.3} {:>6.3} {:>6.3} {:>8.3}",
            config.embedder, all.r_at_5, all.r_at_10, all.r_at_20, all.mrr, all.ndcg_at_10
        ));
    }
    Ok(())
}

/// The installed embedders, and the endpoint if configured.
fn available(settings: &Settings) -> Vec<EmbedderConfig> {
    let mut configs = vec![EmbedderConfig::Hashing {}];
    if POTION_BASE_8M.is_installed(&settings.model_dir) {
        configs.push(EmbedderConfig::Potion {});
    }
    if ALL_MINILM_L6_V2.is_installed(&settings.model_dir) {
        configs.push(EmbedderConfig::Minilm {});
    }
    if settings.embedder == EmbedderSetting::Endpoint {
        configs.push(setup::embedder_config(settings));
    }
    configs
}
