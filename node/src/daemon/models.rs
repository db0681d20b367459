//! The native engine's models: found and measured, then opened singly or as a set.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use super::engines::model_failure;
use crate::{
    config::Settings,
    engine::{
        Engine, EngineError,
        native::{NativeConfig, NativeEngine},
        set::{self, MODEL_WAIT, Member, SetError, SetLimits},
    },
    failure::{Exit, Failure},
    metrics::Metrics,
    models::{Catalogue, Shape, WeightsHash, origin, own_file, template_of},
    progress,
};

/// A model with its local file.
struct LocalModel {
    name: String,
    path: PathBuf,
    /// The expected hash, if known.
    sha256: Option<WeightsHash>,
    /// Memory for serving it, in bytes.
    bytes: u64,
}

/// Opens all models of these settings. A single model that never unloads is opened without a set.
pub(super) fn open(settings: &Settings, metrics: Arc<Metrics>) -> Result<Vec<Arc<dyn Engine>>, Failure> {
    let found = settings.models().into_iter().map(|name| find(settings, &name));
    let found = found.collect::<Result<Vec<_>, _>>()?;
    let limits = limits(settings);
    if let [only] = found.as_slice()
        && limits.budget_bytes.is_none()
        && limits.idle.is_none()
    {
        return Ok(vec![load(settings, only)?]);
    }
    let members = found.into_iter().map(|found| member(settings, found)).collect();
    let began = Instant::now();
    let clock = Arc::new(move || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
    set::open(members, limits, clock, metrics).map_err(|error| {
        let exit = match &error {
            SetError::NeverFits { .. } | SetError::Same { .. } => Exit::Usage,
            SetError::Load { .. } => Exit::Model,
            SetError::Thread(_) => Exit::Failure,
        };
        Failure::new(exit, error)
    })
}

fn limits(settings: &Settings) -> SetLimits {
    let given = |number: u32| (number > 0).then_some(u64::from(number));
    SetLimits {
        budget_bytes: given(settings.model_memory_mb()).map(|megabytes| megabytes << 20),
        idle: given(settings.model_idle_minutes()).map(|minutes| Duration::from_secs(60 * minutes)),
        wait: MODEL_WAIT,
    }
}

fn member(settings: &Settings, found: LocalModel) -> Member {
    let (name, bytes, settings) = (found.name.clone(), found.bytes, settings.clone());
    let load = move || {
        load(&settings, &found)
            .map_err(|failure| EngineError::LoadFailed { reason: format!("{:#}", failure.error) })
    };
    Member { name, bytes, load: Box::new(load) }
}

fn load(settings: &Settings, model: &LocalModel) -> Result<Arc<dyn Engine>, Failure> {
    let LocalModel { name, path, sha256, .. } = model;
    let config = NativeConfig {
        max_context_tokens: settings.context_tokens(),
        slots: settings.slots() as usize,
        queue_limit: settings.slots() as usize,
        threads: settings.threads.map(|threads| threads as usize),
        kv_bytes: (settings.kv_mb() as usize).saturating_mul(1 << 20),
        template: template_of(path),
        ..NativeConfig::new(name.clone(), path.clone())
    };
    let engine = NativeEngine::load(&config).map_err(|error| {
        let text = format!("cannot load the model {name}");
        Failure { exit: Exit::Model, error: anyhow::Error::new(error).context(text) }
    })?;
    let found = WeightsHash(engine.info().manifest.weights_sha256);
    if let Some(expected) = *sha256
        && expected != found
    {
        let text = format!(
            "the model file {} is damaged or another model (SHA-256 {found}, expected {expected}): remove it, then \
             run `baton-node models pull {name}`, or `models add` for one of your own",
            path.display(),
        );
        return Err(Failure::text(Exit::Model, text));
    }
    tracing::info!(model = name, id = %engine.info().model_id, context_tokens = engine.info().context_tokens, "model loaded");
    Ok(Arc::new(engine))
}

/// Finds a model's file and measures it by its header. Only a valid header lets other code read the file.
fn find(settings: &Settings, name: &str) -> Result<LocalModel, Failure> {
    let (path, sha256) = model_file(settings, name)?;
    let shape = Shape::read(&path).map_err(|error| {
        let text = format!(
            "cannot load the model {name}: {} is no model that can be used: {error}; `baton-node models list` shows \
             others",
            path.display()
        );
        Failure::text(Exit::Model, text)
    })?;
    let bytes = shape.footprint(settings.kv_mb());
    Ok(LocalModel { name: name.to_owned(), path, sha256, bytes })
}

/// The model's file and its expected hash. A name outside the catalogue may be the operator's own file.
fn model_file(settings: &Settings, name: &str) -> Result<(PathBuf, Option<WeightsHash>), Failure> {
    let catalogue = Catalogue::built_in();
    let Ok(entry) = catalogue.entry(name) else {
        if let Some(path) = own_file(&settings.model_dir(), name) {
            let noted = origin(&path).and_then(|origin| origin.hash());
            return Ok((path, noted));
        }
        let text = format!(
            "there is no model named {name}: `baton-node models list` shows those that can be fetched; `baton-node \
             models add` takes a file of your own into {} as {name}.gguf",
            settings.model_dir().display()
        );
        return Err(Failure::text(Exit::Model, text));
    };
    let path = settings.model_dir().join(&entry.file);
    let installed = catalogue
        .list(&settings.model_dir())
        .iter()
        .any(|model| model.entry.name == *name && model.is_installed());
    if !installed {
        tracing::info!(model = name, folder = %settings.model_dir().display(), "the model is not here yet: fetching it");
        let pulled =
            progress::shown(name, entry.size, |show| catalogue.pull(name, &settings.model_dir(), show));
        pulled.map_err(model_failure)?;
    }
    Ok((path, Some(entry.sha256)))
}
