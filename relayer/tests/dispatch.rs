//! Turns with memory in both modes of the relayer: plain, as the session's client, and sealed. Real memory on
//! a real disk, scripted nodes over a real mesh, a store in memory.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

#[path = "dispatch/chat.rs"]
mod chat;
#[path = "dispatch/door.rs"]
mod door;
#[path = "dispatch/process.rs"]
mod process;
#[path = "dispatch/replay.rs"]
mod replay;
#[path = "dispatch/sealed.rs"]
mod sealed;
#[path = "dispatch/strangers.rs"]
mod strangers;
#[path = "dispatch/world.rs"]
mod world;
