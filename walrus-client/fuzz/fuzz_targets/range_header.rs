//! Range headers: an accepted value is one closed range with the stated bounds.
#![no_main]

#[path = "../checks/range_header.rs"]
mod range_header;

libfuzzer_sys::fuzz_target!(|data: &[u8]| range_header::check(data));
