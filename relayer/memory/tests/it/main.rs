//! The integration tests of memory, in one binary: the rows of its requirements, its storages, how facts are
//! written, and the speed of search.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which may panic like the tests themselves")]

mod extraction_figures;
mod extraction_model;
mod extraction_rules;
mod rows;
mod search_speed;
mod storage;
