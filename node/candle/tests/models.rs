//! Models of other architectures by candle: their answers, and refused files.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which may panic like the tests themselves")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]

#[path = "models/families.rs"]
mod families;
#[path = "models/refusals.rs"]
mod refusals;
#[path = "models/small.rs"]
mod small;
#[path = "../../engine/tests/it/support/mod.rs"]
mod support;
