//! The protocol under attack. Tests change, move or misplace every stored byte, every field, every blob and
//! every key. They do no I/O; a session runs whole in memory.
//!
//! Long matrices run as a seeded sample; `BATON_FULL=1` runs them whole. Each prints how many cases it ran.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

#[path = "adversary/boundaries.rs"]
mod boundaries;
#[path = "adversary/carrier.rs"]
mod carrier;
#[path = "adversary/codecs.rs"]
mod codecs;
#[path = "adversary/embed.rs"]
mod embed;
#[path = "adversary/fields.rs"]
mod fields;
#[path = "support/harness.rs"]
mod harness;
#[path = "adversary/isolation.rs"]
mod isolation;
#[path = "adversary/memory.rs"]
mod memory;
#[path = "support/objects.rs"]
mod objects;
#[path = "adversary/sessions.rs"]
mod sessions;
#[path = "support/source.rs"]
mod source;
#[path = "adversary/stored.rs"]
mod stored;
