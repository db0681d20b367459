//! Requests that share a model: the order of waiting, the freeing of memory, and that sharing changes no bit.

mod bench;
mod bits;
mod channel;
mod scoring;
mod sharing;
mod solo;
mod threads;
