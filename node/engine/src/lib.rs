//! Language models on a CPU: the same results to the last bit for every batch, thread count and instruction
//! set.
//!
//! ```no_run
//! use std::path::Path;
//! use baton_engine::{Chunk, Model, Options};
//!
//! let mut model = Model::load(Path::new("model.gguf"), &Options::default())?;
//! let mut sequence = model.sequence();
//! let chunk = Chunk { sequence: &mut sequence, tokens: &[1, 2, 3], logits: 1 };
//! let logits = model.step(&mut [chunk])?;
//! assert_eq!(logits.rows().len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`tiles`], [`kernels`] and `README.md` describe the memory layout of weights and the order of additions.
//! With the feature `candle`, the module `candle` computes other architectures; their bits differ elsewhere.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod arena;
pub mod batch;
pub mod bench;
#[cfg(feature = "candle")]
pub mod candle;
pub mod config;
pub mod exact;
mod forward;
pub mod gguf;
pub mod half;
pub mod kernels;
pub mod kv;
mod lanes;
pub mod language;
pub mod model;
pub mod quant;
pub mod threads;
pub mod tiles;
pub mod weights;

/// The number of everything that decides an answer's bits beside the model's file: kernels, sampler, template,
/// grammar, and a node's assembly of prompts. It is part of a model's identity, so nodes of two releases that
/// compute different bits serve different models. Raise it with every such change.
pub const ENGINE_REVISION: u32 = 1;

pub use kv::Sequence;
pub use language::{Language, LanguageError};
pub use model::{Chunk, Logits, Model, Options, StepError};
pub use weights::LoadError;
