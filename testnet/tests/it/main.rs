//! The light integration tests of the test network, as one binary. They may run at once: each starts a few
//! processes, and waits generously for their events. The heavy tests have a binary of their own.

#![expect(clippy::unwrap_used, reason = "helpers of a test, where a failure should panic where it happens")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]

#[path = "../../../walrus-client/store/tests/it/common.rs"]
mod common;
mod constrained;
mod crash;
mod false_store;
mod fsck;
mod http_faults;
mod models;
mod store_faults;
mod stores;
// At the root, where the small models of another crate's tests look for it.
#[path = "../../../node/engine/tests/it/support/mod.rs"]
mod support;
