//! Chat templates: messages come out whole and separate from the template's own text, or rendering fails.
#![no_main]

#[path = "../checks/chat_template.rs"]
mod chat_template;

libfuzzer_sys::fuzz_target!(|data: &[u8]| chat_template::check(data));
