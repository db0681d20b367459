//! `baton-node models`.

mod args;
mod get;

use std::{
    fs,
    path::{Path, PathBuf},
};

use baton_models::embed::models::{self as embeddings, EmbeddingModel};

use super::{Exit, Failure, Style, ask, say};
use crate::progress::Progress;
use crate::{
    config::{EngineChoice, Settings},
    daemon::engines::model_failure,
    engine::EngineKind,
    models::{
        Catalogue, ModelError, ModelStatus, Origin, PullProgress, Shape, WeightsHash, hash_of, origin,
        partial_bytes, remove_own,
    },
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
        ModelsCommand::Delete { name, force } => remove(&settings, &name, force, json)?,
        ModelsCommand::Verify { names } => verify(&settings.model_dir(), names, json)?,
    }
    Ok(())
}

/// A model file outside the catalogue.
struct Own {
    name: String,
    path: PathBuf,
    bytes: u64,
    /// Its origin; `None` for a file that was copied into the folder by hand.
    origin: Option<Origin>,
}

/// The operator's own model files in the folder.
fn own_models(folder: &Path) -> Vec<Own> {
    let catalogue = Catalogue::built_in();
    let mut found: Vec<Own> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let name = file.strip_suffix(".gguf")?.to_owned();
            let listed = catalogue.entries().iter().any(|entry| entry.file == file);
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            let path = entry.path();
            (!listed).then(|| Own { name, origin: origin(&path), path, bytes: metadata.len() })
        })
        .collect();
    found.sort_by(|left, right| left.name.cmp(&right.name));
    found
}

fn remove(settings: &Settings, name: &str, force: bool, json: bool) -> Result<(), Failure> {
    let (catalogue, folder) = (Catalogue::built_in(), &settings.model_dir());
    let own = own_models(folder).into_iter().find(|own| own.name == name);
    let is_own = own.is_some() || partial_bytes(name, folder) > 0;
    if !is_own && name != EMBEDDINGS.name {
        catalogue.entry(name).map_err(|error| Failure::new(Exit::Usage, error))?;
    }
    let here = is_own
        || (name == EMBEDDINGS.name && !embedding_state(folder).1.is_empty())
        || catalogue.list(folder).iter().any(|model| {
            model.entry.name == name && (model.present_bytes.is_some() || model.partial_bytes > 0)
        });
    if here
        && !force
        && let Some(user) = user_of(settings, name)
    {
        let text = format!("{name} is {user}; nothing was removed. --force removes it all the same");
        return Err(Failure::text(Exit::Failure, text));
    }
    let removed = if is_own {
        match (remove_own(name, folder), own) {
            // Copied into the folder by hand, under a name that `models add` refuses.
            (Err(ModelError::Name { .. }), Some(Own { path, .. })) => {
                fs::remove_file(&path).map(|()| true).map_err(|source| ModelError::Io { path, source })
            }
            (removed, _) => removed,
        }
    } else if name == EMBEDDINGS.name {
        embeddings::remove(name, folder)
    } else {
        catalogue.remove(name, folder)
    };
    let removed = removed.map_err(model_failure)?;
    if json {
        say(serde_json::json!({ "name": name, "removed": removed }));
    } else if removed {
        say(format!("{name} was removed from {}", folder.display()));
    } else {
        say(format!("{name} is not in {}", folder.display()));
    }
    Ok(())
}

/// The user of a model, in words.
fn user_of(settings: &Settings, name: &str) -> Option<String> {
    // A node that does not answer uses no model.
    let serving = ask::admin_address(settings, false).and_then(ask::Admin::at).ok().and_then(|admin| {
        let status = ask::block_on(async { Ok(admin.status().await?) }).ok()?;
        let of_files = [EngineKind::Native, EngineKind::Library, EngineKind::Embedding].map(EngineKind::name);
        let serves =
            status.models.iter().any(|model| of_files.contains(&model.engine.as_str()) && model.name == name);
        serves.then(|| format!("served by the node that answers at {}", admin.address))
    });
    let configured = settings.engine() == EngineChoice::Native
        && settings.models().iter().any(|own| own == name)
        || settings.embedding_model.as_deref() == Some(name);
    serving.or_else(|| configured.then(|| "the configured model, which a start would fetch again".to_owned()))
}

/// A hashed file.
struct HashCheck {
    name: String,
    path: PathBuf,
    /// The expected hash; `None` for a file that was copied into the folder by hand.
    expected: Option<WeightsHash>,
    actual: WeightsHash,
    /// The fix for a wrong hash.
    fix: String,
}

fn verify(folder: &Path, names: Vec<String>, json: bool) -> Result<(), Failure> {
    let (catalogue, own) = (Catalogue::built_in(), own_models(folder));
    let names = if names.is_empty() {
        let here = catalogue.list(folder).into_iter().filter(|model| model.present_bytes.is_some());
        let embeddings = EMBEDDINGS.is_installed(folder).then(|| EMBEDDINGS.name.to_owned());
        here.map(|model| model.entry.name)
            .chain(own.iter().map(|own| own.name.clone()))
            .chain(embeddings)
            .collect()
    } else {
        names
    };
    let mut hashed = Vec::new();
    for name in names {
        match own.iter().find(|own| own.name == name) {
            Some(own) => hashed.push(hash_own(own)?),
            None => hashed.extend(hash_listed(&catalogue, folder, &name)?),
        }
    }
    let wrong = hashed.iter().filter(|file| file.expected.is_some_and(|hash| hash != file.actual)).count();
    if json {
        let files: Vec<_> = hashed.iter().map(hashed_as_json).collect();
        say(serde_json::json!({ "model_dir": folder, "ok": wrong == 0, "models": files }));
    } else {
        let style = Style::stdout();
        for file in &hashed {
            let (name, actual) = (&file.name, file.actual);
            say(match file.expected {
                Some(expected) if expected == actual => {
                    format!("{name}  {}  SHA-256 {actual}", style.good("right"))
                }
                Some(expected) => format!(
                    "{name}  {}  SHA-256 {actual}, expected {expected}: {}",
                    style.error("wrong"),
                    file.fix
                ),
                None => format!("{name}  your own  SHA-256 {actual}"),
            });
        }
        if hashed.is_empty() {
            say(format!("there is no model in {}", folder.display()));
        }
    }
    match wrong {
        0 => Ok(()),
        count => {
            Err(Failure::text(Exit::Model, format!("{count} of {} model files are wrong", hashed.len())))
        }
    }
}

/// Hashes the files of a model that can be fetched.
fn hash_listed(catalogue: &Catalogue, folder: &Path, name: &str) -> Result<Vec<HashCheck>, Failure> {
    let is_embedding = name == EMBEDDINGS.name;
    let size = match is_embedding {
        true => EMBEDDINGS.bytes(),
        false => catalogue.entry(name).map_err(|error| Failure::new(Exit::Usage, error))?.size,
    };
    let mut progress = Progress::new(name, size);
    let mut show = |step| progress.show(step);
    let verified = match is_embedding {
        true => embeddings::verify(name, folder, &mut show),
        false => catalogue.verify(name, folder, &mut show).map(|report| vec![report]),
    };
    progress.finish();
    let files = match verified {
        Err(ModelError::Io { path, source }) if source.kind() == std::io::ErrorKind::NotFound => {
            let text = format!("{name} is not here: there is no {}", path.display());
            return Err(Failure::text(Exit::Model, text));
        }
        verified => verified.map_err(model_failure)?,
    };
    let hashed = files.into_iter().map(|file| HashCheck {
        name: name.to_owned(),
        path: file.path,
        expected: Some(file.expected),
        actual: file.actual,
        fix: format!("`baton-node models pull {name}` replaces it"),
    });
    Ok(hashed.collect())
}

/// The state of the embedding model in words, and its complete or partial files.
fn embedding_state(folder: &Path) -> (String, Vec<ModelStatus>) {
    let mut files = embeddings::status(EMBEDDINGS.name, folder).unwrap_or_default();
    files.retain(|file| file.present_bytes.is_some() || file.partial_bytes > 0);
    let state = if EMBEDDINGS.is_installed(folder) {
        "here"
    } else if files.is_empty() {
        "not fetched"
    } else {
        "incomplete or other"
    };
    (state.to_owned(), files)
}

fn hash_own(own: &Own) -> Result<HashCheck, Failure> {
    let mut progress = Progress::new(&own.name, own.bytes);
    let hashed = hash_of(&own.path, &mut |bytes| {
        progress.show(PullProgress::Verifying { bytes, total: own.bytes });
    });
    progress.finish();
    let path = own.path.clone();
    let actual = hashed.map_err(|source| model_failure(ModelError::Io { path: path.clone(), source }))?;
    let source = own.origin.as_ref().map(|origin| origin.source.as_str()).unwrap_or_default();
    let fix = format!("remove it, then take it from {source} again");
    Ok(HashCheck {
        name: own.name.clone(),
        path,
        expected: own.origin.as_ref().and_then(Origin::hash),
        actual,
        fix,
    })
}

fn hashed_as_json(file: &HashCheck) -> serde_json::Value {
    serde_json::json!({
        "name": file.name,
        "path": file.path,
        "sha256": file.actual.to_string(),
        "expected": file.expected.map(|hash| hash.to_string()),
        "right": file.expected.map(|hash| hash == file.actual),
    })
}

fn list(settings: &Settings, json: bool) {
    let (folder, chosen) = (&settings.model_dir(), settings.models());
    let embeds = settings.embedding_model.as_deref() == Some(EMBEDDINGS.name);
    let models = Catalogue::built_in().list(folder);
    if json {
        let mut models: Vec<_> = models.iter().map(|model| as_json(model, &chosen)).collect();
        models.push(serde_json::json!({
            "name": EMBEDDINGS.name,
            "description": EMBEDDINGS.description,
            "licence": EMBEDDINGS.licence,
            "bytes": EMBEDDINGS.bytes(),
            "kind": "embedding",
            "path": EMBEDDINGS.paths(folder)[0],
            "installed": EMBEDDINGS.is_installed(folder),
            "configured": embeds,
        }));
        let own = own_models(folder).into_iter().map(|own| {
            let configured = chosen.contains(&own.name);
            let origin = own.origin.as_ref();
            serde_json::json!({
                "name": own.name,
                "bytes": own.bytes,
                "path": own.path,
                "configured": configured,
                "source": origin.map(|origin| &origin.source),
                "sha256": origin.map(|origin| &origin.sha256),
            })
        });
        say(serde_json::json!({ "model_dir": folder, "models": models, "own": own.collect::<Vec<_>>() }));
        return;
    }
    let style = Style::stdout();
    let rows = rows(settings, &models);
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(4);
    say(style.strong(&head(width)));
    for row in &rows {
        say(row.describe(width, style));
    }
    say(format!(
        "\nMODEL FOLDER  {}\n\
         MEMORY is the weights and kv_mb = {} for keys and values; CONTEXT and MEMORY are read from a file that is here.\n\
         Fetch one with: baton-node models pull NAME\n\
         Larger models: baton-node models pull hf:OWNER/REPO/FILE.gguf, or models add FILE",
        folder.display(),
        settings.kv_mb()
    ));
}

/// The rows of the list, in the catalogue's order: best first for a newcomer. Then embeddings, and own files.
fn rows(settings: &Settings, models: &[ModelStatus]) -> Vec<ModelRow> {
    let (folder, chosen) = (&settings.model_dir(), settings.models());
    let row = |name: &str, bytes: u64, path: &Path, state: String, is_here: bool| {
        let shape = is_here.then(|| Shape::read(path).ok()).flatten();
        let kv = u64::from(settings.kv_mb()) << 20;
        ModelRow {
            name: name.to_owned(),
            bytes,
            memory: Some(shape.map_or(bytes.saturating_add(kv), |shape| shape.footprint(settings.kv_mb()))),
            context: shape.and_then(|shape| shape.context_tokens),
            state,
            is_here,
            text: String::new(),
            is_configured: chosen.iter().any(|chosen| chosen == name),
        }
    };
    let mut rows: Vec<ModelRow> = Vec::new();
    for model in models {
        let entry = &model.entry;
        let text = format!("{}. Licence: {}", entry.description, entry.licence);
        let listed = row(&entry.name, entry.size, &model.path, state(model), model.is_installed());
        rows.push(ModelRow { text, ..listed });
    }
    rows.push(ModelRow {
        name: EMBEDDINGS.name.to_owned(),
        bytes: EMBEDDINGS.bytes(),
        memory: None,
        context: None,
        state: embedding_state(folder).0,
        is_here: EMBEDDINGS.is_installed(folder),
        text: format!("embeddings: {}. Licence: {}", EMBEDDINGS.description, EMBEDDINGS.licence),
        is_configured: settings.embedding_model.as_deref() == Some(EMBEDDINGS.name),
    });
    for own in own_models(folder) {
        let source = own.origin.map(|origin| format!(", from {}", origin.source)).unwrap_or_default();
        let listed = row(&own.name, own.bytes, &own.path, "here".to_owned(), true);
        rows.push(ModelRow { text: format!("your own{source}"), ..listed });
    }
    rows
}

/// A line of the list.
struct ModelRow {
    name: String,
    bytes: u64,
    /// Memory for serving it, if it answers turns.
    memory: Option<u64>,
    /// Tokens of context, if the file is here.
    context: Option<usize>,
    state: String,
    is_here: bool,
    text: String,
    is_configured: bool,
}

fn head(width: usize) -> String {
    format!(
        "{:width$}  {:>9}  {:>9}  {:>7}  {:19}  {}",
        "NAME", "SIZE", "MEMORY", "CONTEXT", "STATE", "DESCRIPTION"
    )
}

impl ModelRow {
    fn describe(&self, width: usize, style: Style) -> String {
        let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let memory = known(self.memory.map(megabytes));
        let context = known(self.context.map(|tokens| tokens.to_string()));
        // Padding comes before colouring: escapes have no width.
        let state = format!("{:19}", self.state);
        let state = if self.is_here { style.good(&state) } else { state };
        let mark = if self.is_configured { " (configured)" } else { "" };
        format!(
            "{:width$}  {:>9}  {memory:>9}  {context:>7}  {state}  {}{mark}",
            self.name,
            megabytes(self.bytes),
            self.text
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

fn as_json(model: &ModelStatus, chosen: &[String]) -> serde_json::Value {
    serde_json::json!({
        "name": model.entry.name,
        "description": model.entry.description,
        "licence": model.entry.licence,
        "bytes": model.entry.size,
        "sha256": model.entry.sha256.to_string(),
        "path": model.path,
        "installed": model.is_installed(),
        "partial_bytes": model.partial_bytes,
        "configured": chosen.contains(&model.entry.name),
    })
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_what_is_known_of_a_model() {
        let row = ModelRow {
            name: "one".to_owned(),
            bytes: 98_362_432,
            memory: Some(1_172_104_256),
            context: Some(8192),
            state: "here".to_owned(),
            // Colours would move the columns.
            is_here: false,
            text: "small".to_owned(),
            is_configured: true,
        };
        let style = Style::stdout();
        assert_eq!(head(4).find("DESCRIPTION"), row.describe(4, style).find("small"));
        let text = row.describe(4, style);
        for part in ["98.3 MB", "1172.1 MB", " 8192 ", "small (configured)"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let text = ModelRow { context: None, is_configured: false, ..row }.describe(4, style);
        assert!(text.ends_with("small"), "{text}");
    }
}
