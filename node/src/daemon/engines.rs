//! Selects the engine, and fetches its model first.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use baton_models::embed::{Embedder, Hashing, models as embedding_models};
use baton_proto::node_record::ModelOffer;
use zeroize::Zeroizing;

use super::models;
use crate::{
    config::{EngineChoice, Settings},
    engine::{
        Engine, EngineKind, ModelManifest,
        echo::{EchoConfig, EchoEngine},
        proxied::{ProxiedConfig, ProxiedEngine},
        unseen,
    },
    failure::{Exit, Failure},
    metrics::Metrics,
    models::ModelError,
    progress,
    service::EmbeddingModel,
};

/// The only thread setting of two libraries: the embedding library, and the library for models that the
/// native engine does not compute.
const THREADS_VARIABLE: &str = "RAYON_NUM_THREADS";
/// Maximum size of a bearer token file.
const MAX_KEY_BYTES: u64 = 4096;
/// Context length reported for the hashing embedder: enough for the longest text, at two bytes a word or
/// more.
const HASHING_TOKENS: u32 = 4096;
/// Longest silence of a proxied engine's server: as long as a turn may take. Many servers send nothing while they
/// load a model or read a long prompt.
const PROXIED_SILENCE: Duration = Duration::from_secs(15 * 60);

/// Limits the threads of the compute libraries. They read an environment variable at their first use.
/// Changing the environment of a process with threads is unsound, so the program executes itself again with
/// the variable.
///
/// # Errors
/// When it cannot be started again.
pub(super) fn limit_threads(settings: &Settings) -> Result<(), Failure> {
    let takes_it = settings.embedding_model.is_some() || matches!(settings.engine(), EngineChoice::Native);
    let Some(threads) = settings.threads.filter(|_| takes_it) else { return Ok(()) };
    let wanted = threads.to_string();
    if env::var(THREADS_VARIABLE).is_ok_and(|set| set == wanted) {
        return Ok(());
    }
    use std::os::unix::process::CommandExt as _;
    let program = env::current_exe()?;
    let error =
        std::process::Command::new(program).args(env::args_os().skip(1)).env(THREADS_VARIABLE, wanted).exec();
    Err(Failure::new(Exit::Failure, anyhow::Error::new(error).context("cannot start again with --threads")))
}

/// Loads the engines of these settings, the main one first, and fetches missing models before. Dropping the
/// future leaves a download running until the process ends.
pub(super) async fn load(
    settings: &Settings,
    metrics: Arc<Metrics>,
) -> Result<Vec<Arc<dyn Engine>>, Failure> {
    let settings = settings.clone();
    let runtime = tokio::runtime::Handle::current();
    let loading = tokio::task::spawn_blocking(move || match settings.engine() {
        EngineChoice::Native => models::open(&settings, metrics),
        EngineChoice::Proxied => proxied(&settings, runtime).map(|engine| vec![engine]),
        EngineChoice::Echo => Ok(vec![echo(&settings, runtime)]),
    });
    loading.await?
}

/// Loads the embedding model, if configured, and fetches it first if it is missing.
pub(super) async fn load_embeddings(settings: &Settings) -> Result<Option<EmbeddingModel>, Failure> {
    let Some(name) = settings.embedding_model.clone() else { return Ok(None) };
    let folder = settings.model_dir();
    let loading = tokio::task::spawn_blocking(move || embeddings(&name, &folder));
    loading.await?.map(Some)
}

fn embeddings(name: &str, folder: &Path) -> Result<EmbeddingModel, Failure> {
    let (embedder, manifest, context_tokens): (Arc<dyn Embedder>, _, _) = if name == Hashing::ID {
        tracing::warn!("{name} knows words by their spelling only: it is for tests, not for service");
        let manifest = unseen(format!("embedding:{name}"));
        (Arc::new(Hashing), manifest, HASHING_TOKENS)
    } else {
        let files = embedding_files(name, folder)?;
        let (embedder, most_tokens) = transformer(folder)?;
        (embedder, embedding_manifest(name, &files)?, u32::try_from(most_tokens).unwrap_or(u32::MAX))
    };
    let offer = ModelOffer {
        model: manifest.model_id(),
        name: name.to_owned(),
        engine: EngineKind::Embedding,
        context_tokens,
        input_price: 0,
        output_price: 0,
    };
    tracing::info!(model = name, id = %offer.model, "embeddings are offered");
    Ok(EmbeddingModel { offer, embedder })
}

/// The transformer, and its maximum tokens of a text.
#[cfg(feature = "models")]
fn transformer(folder: &Path) -> Result<(Arc<dyn Embedder>, usize), Failure> {
    use baton_models::embed::MiniLm;
    let embedder = MiniLm::open(folder).map_err(|error| Failure::new(Exit::Model, error))?;
    Ok((Arc::new(embedder), MiniLm::MAX_TOKENS))
}

#[cfg(not(feature = "models"))]
fn transformer(_: &Path) -> Result<(Arc<dyn Embedder>, usize), Failure> {
    let text = "this program was built without embedding models: build it with the feature `models`";
    Err(Failure::text(Exit::Model, text.to_owned()))
}

/// The model's weights and tokenizer, fetched if they are missing.
fn embedding_files(name: &str, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let model = embedding_models::model(name).map_err(model_failure)?;
    if model.is_installed(folder) {
        return Ok(model.paths(folder).to_vec());
    }
    tracing::info!(model = name, folder = %folder.display(), "the model is not here yet: fetching it");
    let pulled = progress::shown(name, model.bytes(), |show| embedding_models::pull(name, folder, show));
    pulled.map_err(model_failure)
}

/// The manifest of the files. Refuses files whose hashes are not in the catalogue.
fn embedding_manifest(name: &str, files: &[PathBuf]) -> Result<ModelManifest, Failure> {
    let folder = files.first().and_then(|file| file.parent()).unwrap_or(Path::new(""));
    let verified = embedding_models::verify(name, folder, &mut |_| {}).map_err(model_failure)?;
    if let Some(wrong) = verified.iter().find(|file| !file.is_right()) {
        let text = format!(
            "the model file {} is damaged or another model (SHA-256 {}, expected {}): remove it, then run `baton-node \
             models pull {name}`",
            wrong.path.display(),
            wrong.actual,
            wrong.expected
        );
        return Err(Failure::text(Exit::Model, text));
    }
    let [weights, tokenizer] = verified.as_slice() else {
        return Err(Failure::text(Exit::Model, format!("{name} has no weights or no tokenizer")));
    };
    let text = fs::read(&tokenizer.path)
        .map_err(|source| model_failure(ModelError::Io { path: tokenizer.path.clone(), source }))?;
    Ok(ModelManifest {
        weights_sha256: weights.actual.0,
        tokenizer_hash: *blake3::hash(&text).as_bytes(),
        ..unseen("embedding:bert".to_owned())
    })
}

fn echo(settings: &Settings, runtime: tokio::runtime::Handle) -> Arc<dyn Engine> {
    let config = EchoConfig {
        context_tokens: settings.context_tokens(),
        token_delay: Duration::from_millis(settings.echo_delay_ms().into()),
        // Two for each slot: a stopped job ends only after its current token, while its slot already serves
        // the next turn.
        queue_limit: 2 * settings.slots() as usize,
    };
    tracing::warn!("the echo engine repeats what it is told: it is for tests, not for service");
    Arc::new(EchoEngine::new(&config, runtime))
}

/// Converts a model error into a failure. Disk errors get another exit code than network errors.
pub(crate) fn model_failure(error: ModelError) -> Failure {
    let exit = match &error {
        ModelError::Io { .. } => Exit::Storage,
        _ => Exit::Model,
    };
    Failure::new(exit, error)
}

fn proxied(settings: &Settings, runtime: tokio::runtime::Handle) -> Result<Arc<dyn Engine>, Failure> {
    let config = ProxiedConfig {
        base_url: settings.proxied_url.clone().unwrap_or_default(),
        model: settings.proxied_model.clone().unwrap_or_default(),
        bearer: settings.proxied_key_file.as_deref().map(read_key).transpose()?,
        context_tokens: settings.context_tokens(),
        max_concurrent: settings.slots() as usize,
        idle_timeout: PROXIED_SILENCE,
    };
    let engine = ProxiedEngine::new(&config, runtime).map_err(|error| Failure::new(Exit::Usage, error))?;
    Ok(Arc::new(engine))
}

fn read_key(path: &std::path::Path) -> Result<Zeroizing<String>, Failure> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| {
        Failure::text(Exit::Usage, format!("cannot read proxied_key_file {}: {error}", path.display()))
    };
    let mut text = Zeroizing::new(String::new());
    fs::File::open(path).map_err(failed)?.take(MAX_KEY_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(Zeroizing::new(text.trim().to_owned()))
}
