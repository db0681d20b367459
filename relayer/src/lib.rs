//! The Baton relayer: memory across conversations, and memory at dispatch on turns it cannot read.
//!
//! The doors: HTTP with signed requests ([`http`], [`auth`], [`delegation`]), tools for agents ([`mcp`]), and sealed mode
//! over libp2p ([`service`]), where a client hands over a turn that the relayer cannot read. Memory itself is
//! [`baton_memory`]'s. No inference code is linked.

pub mod auth;
pub mod chat;
pub mod config;
pub mod delegation;
pub mod http;
pub mod injection;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod service;
pub mod stacks;
pub mod strangers;
pub mod time;
