//! The evaluation of recall: how often the product's own search finds the evidence of a question.
//!
//! The command `baton-relayer eval locomo` and the example `eval_locomo` call it. It reads one data file, and
//! never opens the memory of an owner.

mod locomo;
mod measures;

pub use locomo::locomo;
