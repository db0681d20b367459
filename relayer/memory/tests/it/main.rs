//! The integration tests of memory, in one binary: the rows of its requirements, its storages, and how facts
//! are written.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which may panic like the tests themselves")]

mod rows;
mod storage;
mod writing;
mod writing_model;
mod writing_rules;
