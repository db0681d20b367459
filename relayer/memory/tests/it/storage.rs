//! Tests of storages and of the vault over them. The suite runs against the embedded storage, and against
//! Postgres if `BATON_TEST_POSTGRES` has a URL (`scripts/postgres.sh run -- cargo test`).

#![expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
#![expect(clippy::print_stdout, reason = "says what is skipped, and figures")]

mod crash;
mod damage;
mod figures;
mod postgres;
mod suite;
pub(crate) mod support;
