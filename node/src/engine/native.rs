//! The native engine: a GGUF model on this machine's CPU.
//!
//! Loading maps the file, hashes it, and refuses models that it cannot compute correctly. A general library
//! takes over other models if it supports them (`library.rs`). Its answers have the kind
//! [`EngineKind::Library`], and other nodes cannot check them.
//!
//! One thread renders and tokenises jobs (`native/prompt_queue.rs`). Another thread runs the model for all jobs,
//! step by step (`baton_engine::batch`). Each job has its own text, grammar and sampler (`native/choice.rs`).
//! Conversation text leaves this module only as events.

mod answer;
mod batch_job;
mod check;
mod choice;
mod prompt_queue;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(crate) use baton_engine::language::Date as TemplateDate;
use baton_engine::{
    ENGINE_REVISION, LoadError as ModelError, Model, Options,
    batch::{BatchOptions, Batcher, Solo},
    config::ConfigError,
    gguf::{GgufError, GgufFile, Value},
    kernels::Isa,
    kv::KV_BLOCK,
    language::{Language, LanguageError},
};
use baton_proto::{
    limits::MODEL_MANIFEST_VERSION,
    tools::{CallArguments, Definitions, call_schema},
};
use futures::future::BoxFuture;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use self::prompt_queue::{CheckRequest, PromptQueue};
use super::{
    AnswerComparison, Engine, EngineError, EngineEvent, EngineInfo, EngineKind, FinishReason, GenerateHandle,
    GenerateJob, GivenAnswer, Load, ModelManifest, check_sampling,
    language::{Constraint, ConstraintKind, conversation},
    library,
};
use crate::prompt::Prompt;

/// Largest model file: the weights take as much memory. Machines without a graphics card are not used for
/// larger ones.
const MAX_MODEL_BYTES: u64 = 256 << 30;

/// Default context of an engine, in tokens.
pub(crate) const DEFAULT_CONTEXT_TOKENS: u32 = 4096;

/// Default number of concurrent jobs. With more, a step takes longer in proportion to its rows.
pub(crate) const DEFAULT_SLOTS: usize = 8;

/// Default number of waiting jobs. Each holds a window of text in memory, and the last waits for all others.
/// Refusal is better: the client then tries another node.
pub(crate) const DEFAULT_QUEUE_LIMIT: usize = 8;

/// Default bytes for keys and values. For SmolLM2-135M (23 KB a token): eight windows of 4,096 tokens and
/// some cached ones.
pub(crate) const DEFAULT_KV_BYTES: usize = 1 << 30;

/// How long a job waits for its reader. The service has shorter limits; this one protects other callers.
const READER_STALL: Duration = Duration::from_secs(600);

/// The model to load, and its limits.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// Name for configuration, logs and threads.
    pub name: String,
    /// The GGUF file.
    pub model_path: PathBuf,
    /// Maximum tokens of prompt and answer together; the model's own limit and `kv_bytes` apply too.
    pub max_context_tokens: u32,
    /// Maximum running jobs.
    pub slots: usize,
    /// Maximum waiting jobs.
    pub queue_limit: usize,
    /// Compute threads; `None` means one for each core. A general library has its own threads.
    pub threads: Option<usize>,
    /// Bytes for the keys and values of all jobs, including those cached for a session's next turn.
    pub kv_bytes: usize,
    /// The date for the chat template.
    pub template_date: TemplateDate,
    /// The chat template instead of the file's own one.
    pub template: Option<&'static str>,
    /// Instruction set of the engine's kernels. All give the same bits; tests choose slower ones.
    pub isa: Isa,
}

impl NativeConfig {
    /// The defaults for a model file.
    pub fn new(name: impl Into<String>, model_path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            model_path: model_path.into(),
            max_context_tokens: DEFAULT_CONTEXT_TOKENS,
            slots: DEFAULT_SLOTS,
            queue_limit: DEFAULT_QUEUE_LIMIT,
            threads: None,
            kv_bytes: DEFAULT_KV_BYTES,
            template_date: TemplateDate::default(),
            template: None,
            isa: Isa::best(),
        }
    }
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the model file {path}; `models pull` fetches it")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is not a valid GGUF file, or exceeds this engine's limit.
    #[error("the model file is not a sound GGUF file: {reason}")]
    Format {
        /// The reader's message.
        reason: String,
    },
    /// The model needs a feature that this engine lacks; a proxied backend may run it.
    #[error("this engine does not support {what}; run the model behind a proxied backend")]
    Unsupported {
        /// The feature.
        what: String,
    },
    /// Tokenizer or chat template cannot be used.
    #[error("the model's language cannot be used")]
    Language(#[source] LanguageError),
    /// A single block of tokens needs more bytes for keys and values than the limit.
    #[error("{bytes} bytes for keys and values are not enough for this model: a block of tokens has {block}")]
    KvBudget {
        /// The configured bytes.
        bytes: usize,
        /// The bytes of a block.
        block: usize,
    },
    /// Neither this engine nor the fallback library computes the model.
    #[error(
        "this engine does not support {what}, and the library for such models cannot take it over: {reason}; run the model \
             behind a proxied backend"
    )]
    Refused {
        /// The feature that the engine lacks.
        what: String,
        /// The library's message.
        reason: String,
    },
    /// The system has no memory for the weights, or no thread for the engine.
    #[error("there is no memory or no thread for the model")]
    System(#[source] io::Error),
}

impl LoadError {
    fn of_gguf(path: &Path, error: GgufError) -> Self {
        match error {
            GgufError::Io(source) => Self::Read { path: path.to_owned(), source },
            error @ GgufError::TensorType { .. } => Self::Unsupported { what: error.to_string() },
            error => Self::Format { reason: error.to_string() },
        }
    }

    fn of_model(path: &Path, error: ModelError) -> Self {
        match error {
            ModelError::Gguf(error) | ModelError::Config(ConfigError::Gguf(error)) => {
                Self::of_gguf(path, error)
            }
            ModelError::Config(ConfigError::Family(family)) => {
                Self::Unsupported { what: format!("the {family} architecture") }
            }
            ModelError::Config(ConfigError::Unsupported(what)) => Self::Unsupported { what },
            error @ ModelError::UnknownTensor(_) => Self::Unsupported { what: error.to_string() },
            ModelError::Memory(source) | ModelError::Threads(source) => Self::System(source),
            error => Self::Format { reason: error.to_string() },
        }
    }
}

/// The computing backend.
enum ComputeBackend {
    /// This engine: the same bits everywhere.
    Exact(Box<Model>),
    /// A general library.
    Library(Box<dyn Solo>),
}

impl ComputeBackend {
    fn load(file: &GgufFile, config: &NativeConfig) -> Result<Self, LoadError> {
        let mut options = Options { kv_budget: config.kv_bytes, isa: config.isa, ..Options::default() };
        options.threads = config.threads.unwrap_or(options.threads);
        let error = match Model::from_file(file, &options) {
            Ok(model) => return Ok(Self::Exact(Box::new(model))),
            Err(error) => LoadError::of_model(&config.model_path, error),
        };
        let what = match error {
            LoadError::Unsupported { what } if library::knows(file.header()) => what,
            error => return Err(error),
        };
        match library::open(file, config.max_context_tokens as usize) {
            Ok(model) => {
                tracing::warn!(
                    model = config.name,
                    family = ?file.header().optional_str("general.architecture"),
                    "a general library computes this model, one request at a time: no other node can check its answers"
                );
                Ok(Self::Library(model))
            }
            Err(reason) => Err(LoadError::Refused { what, reason }),
        }
    }

    fn kind(&self) -> EngineKind {
        match self {
            Self::Exact(_) => EngineKind::Native,
            Self::Library(_) => EngineKind::Library,
        }
    }

    fn vocabulary(&self) -> usize {
        match self {
            Self::Exact(model) => model.vocabulary(),
            Self::Library(model) => model.vocabulary(),
        }
    }

    /// Maximum tokens of prompt and answer, limited by configuration, model and the budget for keys and
    /// values.
    fn context_tokens(&self, config: &NativeConfig) -> Result<u32, LoadError> {
        let (most, block) = match self {
            Self::Exact(model) => (model.config().context, model.kv().shape().block_bytes()),
            Self::Library(model) => (model.context(), model.token_bytes() * KV_BLOCK),
        };
        let room = config.kv_bytes / block * KV_BLOCK;
        if room == 0 {
            return Err(LoadError::KvBudget { bytes: config.kv_bytes, block });
        }
        Ok(small(room.min(most)).min(config.max_context_tokens))
    }

    /// Maximum running jobs.
    fn slots(&self, config: &NativeConfig) -> usize {
        match self {
            Self::Exact(_) => config.slots.max(1),
            Self::Library(_) => 1,
        }
    }

    fn spawn(self, name: &str, options: BatchOptions, kv_bytes: usize) -> io::Result<Batcher> {
        match self {
            Self::Exact(model) => Batcher::spawn(name, *model, options),
            Self::Library(model) => Batcher::spawn_solo(name, model, options, kv_bytes),
        }
    }
}

fn open(path: &Path) -> Result<GgufFile, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > MAX_MODEL_BYTES {
        let reason = format!("it has {bytes} bytes, the limit is {MAX_MODEL_BYTES}");
        return Err(LoadError::Format { reason });
    }
    GgufFile::open(path).map_err(|error| LoadError::of_gguf(path, error))
}

fn architecture(file: &GgufFile) -> Result<String, LoadError> {
    match file.header().get("general.architecture") {
        Some(Value::String(name)) => Ok(name.clone()),
        _ => Err(LoadError::Format { reason: "it names no architecture".to_owned() }),
    }
}

fn same_vocabulary(tokens: usize, language: &Language) -> Result<(), LoadError> {
    if tokens == language.tokenizer().vocabulary() {
        return Ok(());
    }
    Err(LoadError::Format { reason: "the tokenizer has another vocabulary than the model".to_owned() })
}

/// Checks that [`NativeEngine::load`] takes a file, without loading its weights: header, tensors, tokenizer and chat
/// template. A general library reads its own tensors only when it loads them.
///
/// # Errors
/// [`LoadError`], as loading.
pub(crate) fn check(path: &Path) -> Result<(), LoadError> {
    let file = open(path)?;
    architecture(&file)?;
    let language = Language::of_file(&file, TemplateDate::default())?;
    match Model::check_file(&file).map_err(|error| LoadError::of_model(path, error)) {
        Ok(tokens) => same_vocabulary(tokens, &language),
        Err(LoadError::Unsupported { .. }) if library::knows(file.header()) => Ok(()),
        Err(error) => Err(error),
    }
}

fn encode(language: &Language, prompt: &Prompt) -> Result<Zeroizing<Vec<u32>>, EngineError> {
    Ok(language.encode(&conversation(prompt))?)
}

/// A loaded model and its threads.
pub struct NativeEngine {
    info: EngineInfo,
    language: Arc<Language>,
    batcher: Arc<Batcher>,
    prompt_queue: PromptQueue,
}

impl NativeEngine {
    /// Loads a model. Blocks for up to a few seconds: call it off the reactor.
    ///
    /// # Errors
    /// [`LoadError`] names the file's defect or the missing feature.
    pub fn load(config: &NativeConfig) -> Result<Self, LoadError> {
        let path = &config.model_path;
        let file = open(path)?;
        let architecture = architecture(&file)?;
        let mut language = Language::of_file(&file, config.template_date)?;
        if let Some(template) = config.template {
            language.replace_template(template, config.template_date)?;
        }
        let model = ComputeBackend::load(&file, config)?;
        same_vocabulary(model.vocabulary(), &language)?;
        let manifest = ModelManifest {
            version: MODEL_MANIFEST_VERSION,
            architecture,
            weights_sha256: Sha256::digest(file.bytes()).into(),
            tokenizer_hash: language.tokenizer().hash(),
            template_hash: language.template().hash(),
            engine_revision: match model.kind() {
                EngineKind::Native => ENGINE_REVISION,
                _ => 0,
            },
        };
        drop(file);
        let info = EngineInfo {
            takes_tools: language.template().takes_tools(),
            reports_logprobs: true,
            ..EngineInfo::new(&config.name, model.kind(), model.context_tokens(config)?, manifest)
        };
        // Prepared now, because otherwise the first turn with a schema would wait for it. A model without an
        // end token has none.
        let _ = language.grammars();
        let language = Arc::new(language);
        let slots = model.slots(config);
        let options = BatchOptions {
            slots,
            // The preparation thread's limits refuse excess jobs before rendering.
            queue: slots + config.queue_limit,
            stall: READER_STALL,
            model_id: *info.model_id.as_bytes(),
            ..BatchOptions::default()
        };
        let name = format!("engine-{}", info.name);
        let batcher = Arc::new(model.spawn(&name, options, config.kv_bytes).map_err(LoadError::System)?);
        let context = info.context_tokens as usize;
        let limits =
            prompt_queue::Limits { present: slots + config.queue_limit, queue: config.queue_limit, context };
        let prompt_queue = PromptQueue::open(&info.name, limits, Arc::clone(&language), Arc::clone(&batcher));
        Ok(Self { info, language, batcher, prompt_queue: prompt_queue.map_err(LoadError::System)? })
    }

    fn submit(&self, job: GenerateJob, given: Option<CheckRequest>) -> Result<GenerateHandle, EngineError> {
        check_sampling(&job)?;
        if matches!(job.constraint, Some(Constraint(ConstraintKind::Passed(_)))) {
            return Err(EngineError::Unsupported { what: "a constraint of another engine" });
        }
        self.prompt_queue.submit(job, given)
    }

    /// The token IDs of a prompt as this engine renders it, for tools and tests.
    ///
    /// # Errors
    /// [`EngineError::Template`] and [`EngineError::Compute`] when it cannot be rendered.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Zeroizing<Vec<u32>>, EngineError> {
        encode(&self.language, prompt)
    }

    /// The token IDs of plain text without special tokens.
    #[must_use]
    pub fn encode_text(&self, text: &str) -> Zeroizing<Vec<u32>> {
        let text = baton_engine::language::Segment::Content(Zeroizing::new(text.to_owned()));
        self.language.tokenizer().encode(&[text])
    }

    /// The bytes of these tokens; control tokens have none.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> Zeroizing<Vec<u8>> {
        self.language.tokenizer().decode(ids)
    }
}

impl Engine for NativeEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn count(&self, prompt: &Prompt) -> Result<u32, EngineError> {
        Ok(small(encode(&self.language, prompt)?.len()))
    }

    fn constrain(&self, schema: &str) -> Result<Constraint, EngineError> {
        Ok(Constraint(ConstraintKind::Grammar(Box::new(self.language.grammars()?.compile(schema)?))))
    }

    fn constrain_calls(&self, tools: &Definitions) -> Result<Option<Constraint>, EngineError> {
        let strict = tools.are_strict();
        let constraint = |grammar| Ok(Some(Constraint(ConstraintKind::Grammar(Box::new(grammar)))));
        let grammars = match self.language.grammars() {
            Ok(grammars) if !strict || self.language.template().marks_calls() => grammars,
            _ if strict => {
                return Err(
                    LanguageError::Schema { reason: "the model's calls cannot be strict".into() }.into()
                );
            }
            _ => return Ok(None),
        };
        let checked = match call_schema(tools, None, CallArguments::Checked) {
            Ok(schema) => grammars.compile_calls(&schema, strict),
            Err(_) => Err(LanguageError::Schema { reason: "its references lead elsewhere".into() }),
        };
        match checked {
            Ok(grammar) => constraint(grammar),
            Err(LanguageError::Schema { .. }) if !strict => {
                let any = call_schema(tools, None, CallArguments::Any)
                    .map_err(|_| EngineError::ToolsUnsupported)?;
                constraint(grammars.compile_calls(&any, strict)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn load(&self) -> Load {
        self.batcher.load()
    }

    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        self.submit(job, None)
    }

    fn check(
        &self,
        job: GenerateJob,
        answer: GivenAnswer,
    ) -> BoxFuture<'static, Result<AnswerComparison, EngineError>> {
        let (sender, result) = oneshot::channel();
        let handle = match self.info.kind {
            EngineKind::Native => self.submit(job, Some((answer, sender))),
            _ => Err(EngineError::Unsupported { what: "checks of answers" }),
        };
        Box::pin(async move {
            let mut handle = handle?;
            while let Some(event) = handle.next().await {
                match event {
                    EngineEvent::Done { finish: FinishReason::Stop, .. } => {
                        return result.await.map_err(|_| EngineError::ShutDown);
                    }
                    EngineEvent::Failed(error) => return Err(error),
                    _ => {}
                }
            }
            Err(EngineError::ShutDown)
        })
    }

    fn shutdown(&self) {
        self.prompt_queue.shutdown();
        self.batcher.shutdown();
    }
}

impl Drop for NativeEngine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A count of tokens as u32; the context bounds it.
fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_gguf_file_and_names_one_that_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.gguf");
        assert!(matches!(open(&path), Err(LoadError::Read { path: p, .. }) if p == path));
        for bytes in [&b"GGUF"[..], b"not a model at all", &[0x47, 0x47, 0x55, 0x46, 3, 0, 0, 0, 255, 255]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(open(&path), Err(LoadError::Format { .. })), "{bytes:?}");
        }
    }
}
