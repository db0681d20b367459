//! The integration tests of memory, in one binary: the rows of its requirements, its storages, and how facts are
//! written.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which may panic like the tests themselves")]

mod extraction_figures;
mod extraction_model;
mod extraction_rules;
mod rows;
mod scripted;
mod storage;
