//! A loaded model, and its step: rows of several sequences through all layers at once.

use std::{ops::Range, path::Path, sync::Arc};

use crate::{
    config::Config,
    forward::Scratch,
    gguf::GgufFile,
    kernels::Isa,
    kv::{KvPool, KvShape, Sequence},
    threads::Threads,
    weights::{LoadError, PendingWeights, Weights},
};

/// Maximum number of rows of one step, and the size of its buffers. More gain nothing: from some dozens on, a
/// step's time is in proportion to its rows.
pub const MAX_STEP_ROWS: usize = 2_048;

/// Maximum number of rows with logits in one step: 512 rows of the largest vocabulary in use are half a
/// gigabyte.
pub const MAX_LOGIT_ROWS: usize = 512;

/// How to compute a model. No option changes the results.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Threads, the calling thread included. As many as free cores: more only disturb each other.
    pub threads: usize,
    /// The instruction set.
    pub isa: Isa,
    /// Maximum size in bytes of the keys and values of all sequences.
    pub kv_budget: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            isa: Isa::best(),
            kv_budget: 1 << 30,
        }
    }
}

/// Tokens to append to a sequence.
pub struct Chunk<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// At least one token.
    pub tokens: &'a [u32],
    /// Of how many tokens at the chunk's end the logits are wanted; more than it has are all. A token's logits
    /// predict the token after it.
    pub logits: usize,
}

impl Chunk<'_> {
    /// The places in the chunk whose logits are wanted.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.tokens.len().saturating_sub(self.logits)..self.tokens.len()
    }
}

/// Why a step was refused. It has then changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StepError(String);

/// Logits of the requested rows, in the order of the chunks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Logits {
    pub(crate) vocabulary: usize,
    pub(crate) numbers: Vec<f32>,
}

impl Logits {
    /// The rows: a number for each token of the vocabulary.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.numbers.chunks_exact(self.vocabulary.max(1))
    }
}

/// A loaded model, ready to compute.
pub struct Model {
    pub(crate) config: Config,
    pub(crate) weights: Weights,
    pub(crate) threads: Threads,
    pub(crate) isa: Isa,
    pub(crate) scratch: Scratch,
    kv: Arc<KvPool>,
}

impl Model {
    /// Loads a file.
    ///
    /// # Errors
    /// [`LoadError`] if the file is not sound or the model is not supported.
    pub fn load(path: &Path, options: &Options) -> Result<Self, LoadError> {
        Self::from_file(&GgufFile::open(path)?, options)
    }

    /// Loads an open file. The model does not need the file afterwards.
    ///
    /// # Errors
    /// [`LoadError`] if the model is not supported.
    pub fn from_file(file: &GgufFile, options: &Options) -> Result<Self, LoadError> {
        let mut config = Config::read(file.header())?;
        let threads = Threads::new(options.threads).map_err(LoadError::Threads)?;
        let weights = Weights::load(file, &mut config, threads.count())?;
        let shape = KvShape { layers: config.layers, heads: config.kv_heads, head_dim: config.head_dim };
        let kv = KvPool::new(shape, options.kv_budget);
        Ok(Self { config, weights, threads, isa: options.isa, scratch: Scratch::default(), kv })
    }

    /// Checks that [`Self::from_file`] takes a file, without loading its weights. Returns the tokens of its vocabulary.
    ///
    /// # Errors
    /// [`LoadError`] if the model is not supported.
    pub fn check_file(file: &GgufFile) -> Result<usize, LoadError> {
        let mut config = Config::read(file.header())?;
        Ok(PendingWeights::find(file, &mut config)?.vocabulary)
    }

    /// The model's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.weights.vocabulary
    }

    /// Bytes that the weights take.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// The pool of its sequences' blocks.
    #[must_use]
    pub fn kv(&self) -> &Arc<KvPool> {
        &self.kv
    }

    /// A new sequence.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        Sequence::new(&self.kv)
    }

    /// Changes the number of threads.
    ///
    /// # Errors
    /// If the system refuses more threads; the old threads stay.
    pub fn set_threads(&mut self, count: usize) -> std::io::Result<()> {
        self.threads = Threads::new(count)?;
        Ok(())
    }

    /// Changes the instruction set.
    pub fn set_isa(&mut self, isa: Isa) {
        self.isa = isa;
    }

    /// Appends each chunk's tokens to its sequence, all in one pass, and returns the wanted logits. They
    /// depend on the sequence's own tokens alone, to the last bit. Chunk boundaries, other rows of the step,
    /// threads and the instruction set have no effect.
    ///
    /// # Errors
    /// [`StepError`]; all sequences are then unchanged.
    pub fn step(&mut self, chunks: &mut [Chunk<'_>]) -> Result<Logits, StepError> {
        self.check(chunks)?;
        for index in 0..chunks.len() {
            let chunk = &mut chunks[index];
            if let Err(error) = chunk.sequence.reserve(chunk.tokens.len()) {
                chunks[..index].iter_mut().for_each(|chunk| chunk.sequence.release());
                return Err(StepError(error));
            }
        }
        let logits = self.forward(chunks);
        chunks.iter_mut().for_each(|chunk| chunk.sequence.advance(chunk.tokens.len()));
        Ok(logits)
    }

    fn check(&self, chunks: &[Chunk<'_>]) -> Result<(), StepError> {
        let (vocabulary, context) = (self.weights.vocabulary, self.config.context);
        let check = |holds: bool, text: &dyn Fn() -> String| {
            if holds { Ok(()) } else { Err(StepError(text())) }
        };
        let rows: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        check(rows <= MAX_STEP_ROWS, &|| format!("a step of {rows} tokens is above {MAX_STEP_ROWS}"))?;
        let logits: usize = chunks.iter().map(|chunk| chunk.rows().len()).sum();
        check(logits <= MAX_LOGIT_ROWS, &|| format!("logits of {logits} tokens are above {MAX_LOGIT_ROWS}"))?;
        for Chunk { sequence, tokens, .. } in chunks {
            check(!tokens.is_empty(), &|| "a chunk without tokens".to_owned())?;
            check(Arc::ptr_eq(sequence.pool(), &self.kv), &|| {
                "the sequence belongs to another model".to_owned()
            })?;
            let length = sequence.len() + tokens.len();
            check(length <= context, &|| {
                format!("a sequence of {length} tokens is above the model's context of {context}")
            })?;
            let foreign = tokens.iter().find(|token| **token as usize >= vocabulary);
            if let Some(token) = foreign {
                return Err(StepError(format!("token {token} is not below {vocabulary}")));
            }
        }
        Ok(())
    }
}
