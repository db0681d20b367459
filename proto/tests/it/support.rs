//! Helpers of the tests.

pub(crate) mod harness;
pub(crate) mod source;
