//! The protocol under attack. Tests change, move or misplace every stored byte, every field, every blob and
//! every key. They do no I/O; a session runs whole in memory.
//!
//! Long matrices run as a seeded sample; `BATON_FULL=1` runs them whole. Each prints how many cases it ran.

mod boundaries;
mod carrier;
pub(crate) mod codecs;
mod embed;
mod fields;
mod isolation;
mod memory;
mod sessions;
mod stored;
