//! Models that [`baton_engine`] does not compute: GGUF files of other architectures, by candle-transformers.
//!
//! Llama with mixtures of experts, Phi 2, Phi 3, GLM 4 and LFM2. They answer one request at a time, with nothing kept from
//! the one before, and **not** the same bits elsewhere: candle's sums depend on threads, instruction sets and on how a prompt
//! is cut, so no other node can check an answer. With the features `cuda` and `metal` they are computed on the first graphics
//! card, if there is one.
//!
//! A file comes in as the engine's reader has found it sound, and only if candle takes notice of all that is in it
//! ([`family`]): a model is computed as its authors meant it, or refused by name. What candle would allocate by numbers of the
//! file is bounded before.
//!
//! On a processor candle takes its number of threads from the environment, `CANDLE_NUM_THREADS` or `RAYON_NUM_THREADS`, when
//! it computes for the first time.
//!
//! Not here, though candle has it: Qwen 3 with experts, whose experts are computed on NVIDIA's cards alone and whose module
//! keeps the keys of the conversation before.

pub mod family;
mod model;

pub use family::Family;
pub use model::{CandleModel, Options};

/// Why a file is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// None of the architectures.
    #[error("the architecture is not among those that candle computes")]
    Family,
    /// The file's header is not sound, or lacks something.
    #[error(transparent)]
    Gguf(#[from] baton_engine::gguf::GgufError),
    /// A number that is out of bounds or does not go with the others.
    #[error("{0}")]
    Shape(String),
    /// Something that candle would pass over, so that the model would be another one.
    #[error("candle takes no notice of {0}")]
    Ignored(String),
    /// Candle refused the file, or failed to compute with it.
    #[error("candle refuses the model: {0}")]
    Candle(String),
}
