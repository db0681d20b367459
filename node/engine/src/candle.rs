//! Models that the rest of this crate does not compute: GGUF files of other architectures, by candle-transformers.
//!
//! The architectures are Llama with mixtures of experts, Phi 2, Phi 3, GLM 4 and LFM2. Their models answer
//! one request at a time, and keep nothing from earlier requests. Results are **not** the same bits
//! elsewhere: candle's sums depend on threads, instruction sets and the cutting of a prompt. So no other node
//! can check an answer. With the features `cuda` and `metal`, they run on the first graphics card, if there
//! is one.
//!
//! The engine's reader has already checked a file's structure. [`family`] then refuses a file by name if
//! candle would ignore a part of it. So a model is computed as its authors intended, or not at all. Numbers
//! of the file that decide candle's allocations are bounded first.
//!
//! On a processor, candle's first computation reads its number of threads from the environment:
//! `CANDLE_NUM_THREADS` or `RAYON_NUM_THREADS`.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use baton_engine::candle::CandleModel;
//! use baton_engine::{batch::Solo as _, gguf::GgufFile};
//!
//! let file = GgufFile::open(Path::new("phi-2.gguf"))?;
//! let mut model = CandleModel::open(&file, 2_048)?;
//! // Position 0 begins a sequence; the next call continues it at position 3.
//! let logits = model.append(&[1, 2, 3], 0)?;
//! assert_eq!(logits.len(), model.vocabulary());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not supported, although candle has it: Qwen 3 with experts. Its experts run on NVIDIA's cards alone, and
//! its module keeps the keys of the previous conversation.

pub mod family;
mod model;

pub use family::CandleFamily;
pub use model::CandleModel;

use crate::{config::ConfigError, gguf::GgufError};

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(String);

impl From<ConfigError> for OpenError {
    fn from(error: ConfigError) -> Self {
        Self(error.to_string())
    }
}

impl From<GgufError> for OpenError {
    fn from(error: GgufError) -> Self {
        Self(error.to_string())
    }
}
