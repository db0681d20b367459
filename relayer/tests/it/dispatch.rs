//! Turns with memory in both modes of the relayer: plain, as the session's client, and sealed. Real memory on
//! a real disk, scripted nodes over a real mesh, a store in memory.

mod chat;
mod http_chat;
mod node_model;
mod process;
mod replay;
mod sealed;
mod world;
