//! `baton-node models`.

mod args;
mod get;

use std::{
    fs,
    path::{Path, PathBuf},
};

use baton_models::embed::models::{self as embeddings, EmbeddingModel};
use serde::Serialize;

use super::{
    Failure, Style, say,
    speed::{self, ModelSpeed},
};
use crate::{
    config::Settings,
    models::{Catalogue, ModelStatus, Shape, origin},
};
pub(super) use args::ModelsArgs;
use args::ModelsCommand;

/// The embedding model. It is not in the catalogue of language models, because the relayer uses the same
/// files.
const EMBEDDINGS: EmbeddingModel = embeddings::ALL_MINILM_L6_V2;

pub(super) fn run(args: ModelsArgs) -> Result<(), Failure> {
    let json = args.places.places.json;
    let settings = Settings::load(args.places.flags())?;
    match args.command {
        ModelsCommand::List => list(&settings, json),
        ModelsCommand::Pull(pull) => get::pull(&settings.model_dir(), &pull, json)?,
        ModelsCommand::Add { path, name } => get::add(&settings.model_dir(), &path, name, json)?,
    }
    Ok(())
}

/// A line of the list.
#[derive(Serialize)]
struct ModelRow {
    name: String,
    bytes: u64,
    /// Memory for serving it, if it answers turns.
    memory_bytes: Option<u64>,
    /// Tokens of context, if the file is here.
    context_tokens: Option<usize>,
    speed: Option<ModelSpeed>,
    state: String,
    installed: bool,
    configured: bool,
    path: PathBuf,
    description: String,
    sha256: Option<String>,
    /// The origin of a file outside the catalogue; `None` for one that was copied into the folder by hand.
    source: Option<String>,
}

fn list(settings: &Settings, json: bool) {
    let (listed, own) = (listed(settings), own(settings));
    let folder = settings.model_dir();
    if json {
        say(serde_json::json!({ "model_dir": folder, "models": listed, "own": own }));
        return;
    }
    let style = Style::stdout();
    let rows = || listed.iter().chain(&own);
    let width = rows().map(|row| row.name.len()).max().unwrap_or(0).max(4);
    say(style.strong(&head(width)));
    rows().for_each(|row| say(row.describe(width, style)));
    say(format!(
        "\nMODEL FOLDER  {}\n\
         MEMORY is the weights and kv_mb = {} for keys and values; CONTEXT and MEMORY are read from a file that is here.\n\
         SPEED is that of one answer on this machine; measure it with: baton-node bench --model NAME\n\
         Fetch one with: baton-node models pull NAME\n\
         Larger models: baton-node models pull hf:OWNER/REPO/FILE.gguf, or models add FILE\n\
         To remove one, delete its file.",
        folder.display(),
        settings.kv_mb()
    ));
}

/// A language model in a file.
fn row(settings: &Settings, name: &str, bytes: u64, path: &Path, installed: bool) -> ModelRow {
    let shape = installed.then(|| Shape::read(path).ok()).flatten();
    let kv = u64::from(settings.kv_mb()) << 20;
    let memory = shape.map_or(bytes.saturating_add(kv), |shape| shape.footprint(settings.kv_mb()));
    ModelRow {
        name: name.to_owned(),
        bytes,
        memory_bytes: Some(memory),
        context_tokens: shape.and_then(|shape| shape.context_tokens),
        speed: speed::read(&settings.model_dir()).get(name).copied(),
        state: "here".to_owned(),
        installed,
        configured: settings.models().iter().any(|chosen| chosen == name),
        path: path.to_owned(),
        description: String::new(),
        sha256: None,
        source: None,
    }
}

/// The catalogue in its order, best first for a newcomer, and the embedding model.
fn listed(settings: &Settings) -> Vec<ModelRow> {
    let folder = &settings.model_dir();
    let mut rows: Vec<_> = Catalogue::built_in()
        .list(folder)
        .into_iter()
        .map(|model| {
            let entry = &model.entry;
            ModelRow {
                state: state(&model),
                description: format!("{}. Licence: {}", entry.description, entry.licence),
                sha256: Some(entry.sha256.to_string()),
                ..row(settings, &entry.name, entry.size, &model.path, model.is_installed())
            }
        })
        .collect();
    let [weights, _] = EMBEDDINGS.paths(folder);
    rows.push(ModelRow {
        memory_bytes: None,
        context_tokens: None,
        state: embedding_state(folder).to_owned(),
        configured: settings.embedding_model.as_deref() == Some(EMBEDDINGS.name),
        description: format!("embeddings: {}. Licence: {}", EMBEDDINGS.description, EMBEDDINGS.licence),
        ..row(settings, EMBEDDINGS.name, EMBEDDINGS.bytes(), &weights, EMBEDDINGS.is_installed(folder))
    });
    rows
}

/// The operator's own model files in the folder.
fn own(settings: &Settings) -> Vec<ModelRow> {
    let catalogue = Catalogue::built_in();
    let files = fs::read_dir(settings.model_dir()).into_iter().flatten().flatten();
    let mut rows: Vec<_> = files
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let is_listed = catalogue.entries().iter().any(|entry| entry.file == file);
            let name = file.strip_suffix(".gguf").filter(|_| !is_listed)?;
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            let path = entry.path();
            let origin = origin(&path);
            let from = origin.as_ref().map(|origin| format!(", from {}", origin.source)).unwrap_or_default();
            let row = row(settings, name, metadata.len(), &path, true);
            let (source, sha256) = origin.map(|origin| (origin.source, origin.sha256)).unzip();
            Some(ModelRow { description: format!("your own{from}"), source, sha256, ..row })
        })
        .collect();
    rows.sort_by(|left, right| left.name.cmp(&right.name));
    rows
}

fn head(width: usize) -> String {
    format!(
        "{:width$}  {:>9}  {:>9}  {:>7}  {:>12}  {:19}  {}",
        "NAME", "SIZE", "MEMORY", "CONTEXT", "SPEED", "STATE", "DESCRIPTION"
    )
}

impl ModelRow {
    fn describe(&self, width: usize, style: Style) -> String {
        let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let memory = known(self.memory_bytes.map(megabytes));
        let context = known(self.context_tokens.map(|tokens| tokens.to_string()));
        let speed = known(self.speed.map(|speed| speed.describe()));
        // Padding comes before colouring: escapes have no width.
        let state = format!("{:19}", self.state);
        let state = if self.installed { style.good(&state) } else { state };
        let mark = if self.configured { " (configured)" } else { "" };
        format!(
            "{:width$}  {:>9}  {memory:>9}  {context:>7}  {speed:>12}  {state}  {}{mark}",
            self.name,
            megabytes(self.bytes),
            self.description
        )
    }
}

fn state(model: &ModelStatus) -> String {
    match model.present_bytes {
        Some(_) if model.is_installed() => "here".to_owned(),
        Some(_) => "incomplete or other".to_owned(),
        None if model.partial_bytes > 0 => {
            format!("{} % fetched", (model.partial_bytes.saturating_mul(100) / model.entry.size).min(99))
        }
        None => "not fetched".to_owned(),
    }
}

fn embedding_state(folder: &Path) -> &'static str {
    let files = embeddings::status(EMBEDDINGS.name, folder).unwrap_or_default();
    if EMBEDDINGS.is_installed(folder) {
        "here"
    } else if files.iter().any(|file| file.present_bytes.is_some() || file.partial_bytes > 0) {
        "incomplete or other"
    } else {
        "not fetched"
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}
