//! Tests of storages and of the vault over them. The suite runs against the embedded storage, and against
//! Postgres if `BATON_TEST_POSTGRES` has a URL (`scripts/postgres.sh run -- cargo test`).

#![expect(clippy::unwrap_used, reason = "helpers of tests, which may panic like the tests themselves")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::print_stdout, reason = "says what is skipped, and figures")]

#[path = "storage/crash.rs"]
mod crash;
#[path = "storage/figures.rs"]
mod figures;
#[path = "storage/postgres.rs"]
mod postgres;
#[path = "storage/suite.rs"]
mod suite;
#[path = "storage/support.rs"]
mod support;
#[path = "storage/vault.rs"]
mod vault;
