//! The native engine: a GGUF model on this machine's CPU.
//!
//! Loading reads the file once, hashes exactly the bytes that it then uses, and refuses what it cannot run
//! right. One thread evaluates jobs one after another; rendering and tokenising happen on it too, except
//! for [`Engine::count`]. Conversation text leaves this module only as events.

mod llama;
mod weights;

use std::{path::PathBuf, sync::Arc};

pub use baton_engine::language::Date as TemplateDate;
use baton_engine::{
    gguf::Gguf,
    language::{
        Grammar, Language, LanguageError, Piece, Pushed, Sampler, Softmax, StreamText, text::shown_text,
    },
};
use baton_proto::limits::VERSION;
use zeroize::Zeroizing;

use self::{
    llama::{KvCache, Llama},
    weights::ModelFile,
};
use super::{
    Engine, EngineError, EngineInfo, EngineKind, FinishReason, GenerateHandle, GenerateJob, ModelManifest,
    TokenCount,
    language::{Constraint, Kind, Reported, conversation, sampling},
    worker::{Backend, EventSink, Worker},
};
use crate::prompt::Prompt;

/// Largest model file. The weights are held as f32, up to seven times the file's size.
const MAX_MODEL_BYTES: u64 = 2 << 30;

/// Prompt tokens evaluated at once. Larger is faster, but a cancel waits for the running chunk.
const PREFILL_CHUNK: usize = 128;

/// Context that an engine offers unless configured otherwise; the key-value cache of one job grows with it
/// (46 KB a token for SmolLM2-135M).
pub const DEFAULT_CONTEXT_TOKENS: u32 = 4096;

/// Jobs that wait in the queue unless configured otherwise. Each holds a window of text in memory, and the
/// last one waits for all the others: better to refuse, so that the client asks another node.
pub const DEFAULT_QUEUE_LIMIT: usize = 8;

/// What to load and how much it may take.
#[derive(Debug, Clone)]
pub struct NativeConfig {
    /// The name for configuration, logs and the thread.
    pub name: String,
    /// The GGUF file.
    pub model_path: PathBuf,
    /// Upper limit of prompt and answer together; the model's own limit holds as well.
    pub max_context_tokens: u32,
    /// Jobs that may wait besides the running one.
    pub queue_limit: usize,
    /// The date that the chat template may show.
    pub template_date: TemplateDate,
}

impl NativeConfig {
    /// The defaults for a model file.
    pub fn new(name: impl Into<String>, model_path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            model_path: model_path.into(),
            max_context_tokens: DEFAULT_CONTEXT_TOKENS,
            queue_limit: DEFAULT_QUEUE_LIMIT,
            template_date: TemplateDate::default(),
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
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is larger than this engine takes.
    #[error("the model file has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The file is not a sound GGUF file.
    #[error("the model file is not a sound GGUF file: {reason}")]
    Format {
        /// The reader's message.
        reason: String,
    },
    /// A metadata field is missing or of the wrong type.
    #[error("the model's metadata field {key} is missing or unusable")]
    Metadata {
        /// Which.
        key: String,
    },
    /// The model needs something that this engine does not have; a proxied backend may run it.
    #[error("this engine does not support {what}; run the model behind a proxied backend")]
    Unsupported {
        /// What.
        what: String,
    },
    /// Tokenizer or chat template cannot be used.
    #[error("the model's language cannot be used")]
    Language(#[source] LanguageError),
    /// The engine's thread cannot be started.
    #[error("cannot start the engine's thread")]
    Thread(#[source] std::io::Error),
}

fn encode(language: &Language, prompt: &Prompt) -> Result<Zeroizing<Vec<u32>>, EngineError> {
    Ok(language.encode(&conversation(prompt))?)
}

/// A loaded model and its thread.
pub struct NativeEngine {
    info: EngineInfo,
    language: Arc<Language>,
    worker: Worker,
}

impl NativeEngine {
    /// Loads a model. Blocks for up to a few seconds: call it off the reactor.
    ///
    /// # Errors
    /// [`LoadError`] names what is wrong with the file or what this engine cannot do.
    pub fn load(config: &NativeConfig) -> Result<Self, LoadError> {
        let file = ModelFile::read(&config.model_path, MAX_MODEL_BYTES)?;
        let language = file
            .with_bytes(|bytes| Language::load(&Gguf::parse_metadata(bytes)?, bytes, config.template_date))?;
        let model = Llama::load(&file, language.tokenizer().vocabulary())?;
        let manifest = ModelManifest {
            version: VERSION,
            architecture: file.architecture()?.to_owned(),
            weights_sha256: file.sha256(),
            tokenizer_hash: language.tokenizer().hash(),
            template_hash: language.template().hash(),
        };
        let info = EngineInfo {
            name: config.name.clone(),
            model_id: manifest.model_id(),
            kind: EngineKind::Native,
            context_tokens: model.context_tokens().min(config.max_context_tokens),
            manifest: manifest.into(),
        };
        // Now, since the first turn with a schema would wait for it. A model without an end token has none.
        let _ = language.grammars();
        let language = Arc::new(language);
        let runner = Runner { model, language: Arc::clone(&language), context: info.context_tokens as usize };
        let worker = Worker::spawn(&info.name, config.queue_limit, runner).map_err(LoadError::Thread)?;
        Ok(Self { info, language, worker })
    }

    /// The ids of a prompt as this engine renders it, for tools and tests.
    ///
    /// # Errors
    /// [`EngineError::Template`] and [`EngineError::Tokenizer`] when it cannot be rendered.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Zeroizing<Vec<u32>>, EngineError> {
        encode(&self.language, prompt)
    }

    /// The ids of plain text, in which nothing is a special token.
    #[must_use]
    pub fn encode_text(&self, text: &str) -> Zeroizing<Vec<u32>> {
        let text = baton_engine::language::Segment::Content(Zeroizing::new(text.to_owned()));
        self.language.tokenizer().encode(&[text])
    }

    /// The bytes that tokens stand for; control tokens stand for none.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> Zeroizing<Vec<u8>> {
        self.language.tokenizer().decode(ids)
    }
}

impl Engine for NativeEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn takes_tools(&self) -> bool {
        self.language.template().takes_tools()
    }

    fn count(&self, prompt: &Prompt) -> Result<TokenCount, EngineError> {
        let ids = encode(&self.language, prompt)?;
        Ok(TokenCount { tokens: u32::try_from(ids.len()).map_err(|_| EngineError::Tokenizer)?, exact: true })
    }

    fn constrain(&self, schema: &str) -> Result<Constraint, EngineError> {
        Ok(Constraint(Kind::Grammar(Box::new(self.language.grammars()?.compile(schema)?))))
    }

    fn reports_logprobs(&self) -> bool {
        true
    }

    fn generate(&self, job: GenerateJob) -> Result<GenerateHandle, EngineError> {
        job.sampling.validate()?;
        if matches!(job.constraint, Some(Constraint(Kind::Passed(_)))) {
            return Err(EngineError::Unsupported { what: "a constraint of another engine" });
        }
        self.worker.submit(job)
    }

    fn shutdown(&self) {
        self.worker.shutdown();
    }
}

/// The engine's thread: evaluates one job at a time.
struct Runner {
    model: Llama,
    language: Arc<Language>,
    context: usize,
}

impl Backend for Runner {
    fn run(&mut self, job: &GenerateJob, sink: &mut EventSink) -> Result<FinishReason, EngineError> {
        let tokenizer = self.language.tokenizer();
        let mut ids = encode(&self.language, &job.prompt)?;
        let input = ids.len();
        let known = |&id: &u32| (id as usize) < tokenizer.vocabulary() && !tokenizer.is_stop(id);
        if !job.resume_tokens.iter().all(known) {
            return Err(EngineError::InvalidResume);
        }
        ids.extend_from_slice(&job.resume_tokens);
        if ids.len() >= self.context || ids.is_empty() {
            return Err(EngineError::ContextOverflow {
                needed: small(ids.len() + 1),
                limit: small(self.context),
            });
        }
        sink.started(small(input));

        let mut stops = job.sampling.stop.clone();
        stops.extend(self.language.stops().iter().map(|stop| (*stop).to_owned()));
        let mut text = StreamText::new(&stops);
        let prefix: Vec<u8> =
            job.resume_tokens.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
        sink.resumed(shown_text(&stops, &Zeroizing::new(prefix)));
        let mut open = true;
        for &id in &job.resume_tokens {
            open = open && text.resume(id, tokenizer.token_bytes(id));
        }
        if !open {
            return Ok(FinishReason::StopString);
        }
        let mut grammar = match &job.constraint {
            Some(Constraint(Kind::Grammar(grammar))) => Some(Grammar::clone(grammar)),
            _ => None,
        };
        if let Some(grammar) = &mut grammar {
            grammar.resume(&job.resume_tokens)?;
            if grammar.is_complete() {
                return Ok(FinishReason::Stop);
            }
        }
        let longest = (self.context - input).min(job.sampling.max_tokens as usize);
        if job.resume_tokens.len() >= longest {
            return Ok(FinishReason::Length);
        }

        let mut cache = self.model.new_cache(input + longest)?;
        let mut logits = None;
        for chunk in ids.chunks(PREFILL_CHUNK) {
            if let Some(interruption) = sink.interruption() {
                return interruption;
            }
            let last = cache.length() + chunk.len() == ids.len();
            logits = self.model.forward(chunk, &mut cache, last)?;
        }
        let logits = logits.ok_or(EngineError::Numerics)?;
        sink.prefilled();
        let answer = Answer { input, longest, text, grammar };
        self.decode(job, sink, ids, &mut cache, logits, answer)
    }
}

/// Where an answer stands when decoding begins.
struct Answer {
    input: usize,
    /// Tokens it may have, the resumed ones included.
    longest: usize,
    text: StreamText,
    /// What it may go on with, where a schema says.
    grammar: Option<Grammar>,
}

impl Runner {
    fn decode(
        &self,
        job: &GenerateJob,
        sink: &mut EventSink,
        mut ids: Zeroizing<Vec<u32>>,
        cache: &mut KvCache,
        mut logits: Zeroizing<Vec<f32>>,
        mut answer: Answer,
    ) -> Result<FinishReason, EngineError> {
        let tokenizer = self.language.tokenizer();
        let sampler = Sampler::new(&sampling(&job.sampling));
        // Position in the answer of the first token that is not emitted yet.
        let mut next_index = small(job.resume_tokens.len());
        // Of tokens that are not emitted yet.
        let mut reported = Zeroizing::new(Vec::new());
        let mut emit = |sink: &mut EventSink, piece: Piece, reported: &mut Vec<Reported>| {
            let count = piece.ids.len();
            let logprobs = reported.drain(..count.min(reported.len())).collect();
            sink.token(next_index, piece.ids, piece.text, logprobs);
            next_index += small(count);
        };
        loop {
            if let Some(interruption) = sink.interruption() {
                return interruption;
            }
            let position = ids.len() - answer.input;
            // Grammar and penalties change the logits; what is reported is the model's own word.
            let plain = (job.sampling.logprobs > 0).then(|| logits.clone());
            if let Some(grammar) = &mut answer.grammar {
                grammar.mask(&mut logits, |id| tokenizer.is_stop(id))?;
            }
            let id = sampler.sample(&mut logits, &ids, small(position))?;
            let ended = if tokenizer.is_stop(id) {
                Some(FinishReason::Stop)
            } else {
                ids.push(id);
                sink.generated();
                if let Some(plain) = plain {
                    let likeliest = usize::from(job.sampling.logprobs);
                    let report = self.language.report(&Softmax::of(&plain), id, likeliest);
                    reported.push(Reported::from(report));
                }
                match answer.text.push(id, tokenizer.token_bytes(id)) {
                    Pushed::Held => {}
                    Pushed::Emit(piece) => emit(sink, piece, &mut reported),
                    Pushed::Stopped(piece) => {
                        emit(sink, piece, &mut reported);
                        return Ok(FinishReason::StopString);
                    }
                }
                let complete = match &mut answer.grammar {
                    Some(grammar) => {
                        grammar.push(id)?;
                        grammar.is_complete()
                    }
                    None => false,
                };
                let full = position + 1 >= answer.longest;
                // A whole value is whole also where it fills all the room.
                if complete { Some(FinishReason::Stop) } else { full.then_some(FinishReason::Length) }
            };
            if let Some(finish) = ended {
                emit(sink, answer.text.finish(), &mut reported);
                return Ok(finish);
            }
            if let Some(interruption) = sink.interruption() {
                return interruption;
            }
            logits = self.model.forward(&[id], cache, true)?.ok_or(EngineError::Numerics)?;
        }
    }
}

/// A count of tokens, all of which are bounded by the context, as u32.
fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
