//! The adapters: each API reads its requests into the inner form, and writes the steps of an answer.

pub(crate) mod agent_tools;
pub(crate) mod anthropic;
pub(crate) mod form;
pub(crate) mod key_usage;
pub(crate) mod memory_items;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod page;
