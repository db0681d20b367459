//! The engine's integration tests: file headers, kernels, whole models, batches, language and benchmarks.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which may panic like the tests themselves")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]

mod batch;
mod bench;
#[cfg(feature = "candle")]
mod candle;
mod fuzz_samples;
mod gguf;
mod kernels;
mod language;
mod model;
mod revision;
mod support;
