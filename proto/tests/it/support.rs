//! Helpers of the tests.

pub mod harness;
pub mod objects;
pub mod source;
