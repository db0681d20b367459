//! The endpoint over a real socket, against scripted nodes over a real mesh.
#![expect(clippy::unwrap_used, reason = "a test's helper that fails is a failed test")]

mod devices;
mod document;
mod embeddings;
mod features;
mod keys;
mod messages;
mod ollama;
mod page_turns;
mod requests;
mod responses;
mod serve;
mod stops;
mod tls;
