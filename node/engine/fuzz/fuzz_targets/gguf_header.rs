//! File headers: all accepted places lie within the file, also those derived by the metadata's readers.
#![no_main]

#[path = "../checks/gguf_header.rs"]
mod gguf_header;

libfuzzer_sys::fuzz_target!(|data: &[u8]| gguf_header::check(data));
