//! Untrusted quilts: an accepted index is consistent, and each of its patches can be requested.
#![no_main]

#[path = "../checks/quilt_decode.rs"]
mod quilt_decode;

libfuzzer_sys::fuzz_target!(|data: &[u8]| quilt_decode::check(data));
