//! The Baton inference daemon.
//!
//! The program is `baton-node`, which only calls [`main`]. The public parts are those that tests and the test network
//! put together into a node of their own: the turn service ([`service`]) with its [`journal`] and
//! [`ledger`], its [`engine`]s and their [`models`], the [`prompt`] that an engine computes, and the [`replay`] of a
//! turn. An engine, for example, also answers without a network:
//!
//! ```
//! use baton_node::{
//!     engine::{
//!         Engine as _, EngineEvent, GenerateJob, Sampling,
//!         echo::{EchoConfig, EchoEngine},
//!     },
//!     prompt::{ChatMessage, Prompt, Role},
//! };
//! use tokio::runtime::Handle;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = EchoEngine::new(&EchoConfig::default(), Handle::current());
//! let prompt = Prompt::new(vec![ChatMessage::new(Role::User, "hello")]);
//! let mut handle = engine.generate(GenerateJob::new(prompt, Sampling::default(), 512))?;
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

mod admin;
mod cli;
mod config;
mod core;
mod daemon;
pub mod engine;
mod failure;
mod identity;
pub mod journal;
pub mod ledger;
mod logging;
mod mark;
mod metrics;
pub mod models;
mod observer;
mod progress;
pub mod prompt;
pub mod service;
mod turn;

pub use cli::main;
pub use config::{RunFlags, default_model_dir};
pub use metrics::{Metrics, Snapshot};
pub use turn::replay;
