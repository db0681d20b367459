//! The Baton relayer: memory across conversations, and memory at dispatch on turns it cannot read.
//!
//! The program is `baton-relayer`, which only calls [`main`]. It serves HTTP with signed requests ([`http`],
//! [`delegation`], [`owners`]), conversations in plain mode ([`chat`]), and tools for agents. It also serves sealed
//! mode over libp2p ([`Relayer`]), in which a client sends a turn that the relayer cannot read.
//! [`baton_memory`] implements memory itself. No inference code is linked.
//!
//! The public parts are those that tests put together into a relayer of their own:
//!
//! - [`http::AppState`] with its [`http::ServerConfig`], who may own memory ([`owners`]) and how much ([`Budgets`]);
//! - [`chat::Chat`] and [`Relayer`];
//! - [`NodeModel`], with which memory uses a node's model.

mod address_file;
mod auth;
mod backups;
mod budgets;
mod cli;
mod commands;
mod config;
mod data_folder;
pub mod delegation;
mod doctor;
pub mod http;
mod injection;
mod models;
mod node_model;
pub mod owners;
mod program;
mod running;
mod serve;
mod service;
mod setup;
mod slots;
mod stacks;
mod time;
mod upkeep;

pub use budgets::{BudgetLimits, Budgets};
pub use http::chat;
pub use node_model::NodeModel;
pub use program::main;
pub use service::{Relayer, SealedLimits};
