//! The inner form of requests and answers, and how JSON is read into it. Pure.

pub(crate) mod completion;
pub(crate) mod fields;
pub(crate) mod format;
pub(crate) mod logprobs;
pub(crate) mod neutral;
pub(crate) mod steps;
pub(crate) mod tools;
pub(crate) mod wire;
