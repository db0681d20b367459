//! Any answer of a publisher or aggregator gives only short and plain error texts.
#![no_main]

#[path = "../checks/answer_json.rs"]
mod answer_json;

libfuzzer_sys::fuzz_target!(|data: &[u8]| answer_json::check(data));
