//! The Baton relayer: memory at dispatch, on turns it cannot read.
//!
//! In this form it holds a signed file of facts. A client that allows it hands it a sealed turn; the relayer adds a
//! memory envelope for exactly that turn, passes it to the node that the client chose, and passes the node's
//! sealed frames back. It never holds a session key, and links no inference code.

pub mod facts;
pub mod service;
