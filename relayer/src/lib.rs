//! The Baton relayer: memory across conversations, and memory at dispatch on turns it cannot read.
//!
//! It serves HTTP with signed requests ([`http`], `auth`, [`delegation`]) and tools for agents ([`mcp`]).
//! It also serves sealed mode over libp2p ([`service`]), in which a client sends a turn that the relayer
//! cannot read. [`baton_memory`] implements memory itself; [`evaluation`] measures its recall. No inference
//! code is linked.

pub(crate) mod auth;
pub mod budgets;
pub mod chat;
pub mod config;
pub mod delegation;
pub mod evaluation;
pub mod http;
pub mod injection;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod node_model;
pub mod owners;
pub mod service;
pub(crate) mod shared_slots;
pub mod stacks;
pub(crate) mod time;
