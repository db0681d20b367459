//! Text from tokens: every piece is the text of its tokens, in whole characters, and no stop string is ever
//! shown.
#![no_main]

#[path = "../checks/detokenise.rs"]
mod detokenise;

libfuzzer_sys::fuzz_target!(|data: &[u8]| detokenise::check(data));
