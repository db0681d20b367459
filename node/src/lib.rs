//! The Baton inference daemon.
//!
//! The program is `baton-node`; its parts are public for tools and tests. An engine, for example, also answers
//! without a network:
//!
//! ```
//! use baton_node::{
//!     engine::{
//!         Engine as _, EngineEvent, GenerateJob, Sampling,
//!         echo::{EchoConfig, EchoEngine},
//!     },
//!     prompt::{ChatMessage, Prompt, Role},
//! };
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = EchoEngine::new(&EchoConfig::default())?;
//! let mut handle = engine.generate(GenerateJob {
//!     prompt: Prompt::new(vec![ChatMessage::new(Role::User, "hello")]),
//!     sampling: Sampling::default(),
//!     resume_tokens: Vec::new(),
//!     constraint: None,
//!     cache_key: None,
//!     cancel: CancellationToken::new(),
//! })?;
//! let mut answer = String::new();
//! while let Some(event) = handle.next().await {
//!     if let EngineEvent::Token { text, .. } = event {
//!         answer += &text;
//!     }
//! }
//! assert_eq!(answer, "echo: hello");
//! # Ok(())
//! # }
//! ```

pub(crate) mod admin;
pub mod cli;
pub mod config;
mod core;
pub(crate) mod daemon;
pub mod engine;
mod failure;
pub(crate) mod identity;
pub mod journal;
pub mod ledger;
mod lock;
pub(crate) mod logging;
mod mark;
pub mod metrics;
pub mod models;
mod observer;
mod progress;
pub mod prompt;
pub mod replay;
pub mod service;
pub mod telemetry;
pub(crate) mod turn;
