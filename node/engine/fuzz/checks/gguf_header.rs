//! File headers: all accepted places lie within the file, also those derived by the metadata's readers.

use baton_engine::{
    config::Config,
    gguf::{Gguf, Value},
    language::{Conversation, Date, Language, Message, Role},
};

/// Panics if the bytes break the rule.
pub(super) fn check(data: &[u8]) {
    if let Ok(header) = Gguf::parse(data) {
        for tensor in header.tensors() {
            assert!(tensor.offset.checked_add(tensor.bytes).is_some_and(|end| end <= data.len() as u64));
        }
        let _ = Config::read(&header);
    }
    let Ok(header) = Gguf::parse_metadata(data) else { return };
    for key in header.keys() {
        if let Some(Value::Array(array)) = header.get(key) {
            assert!(array.range.end <= data.len());
            let read =
                array.strings(data).count() + array.floats(data).count() + array.integers(data).count();
            assert!(read <= array.count);
        }
    }
    let Ok(language) = Language::load(&header, data, Date::default()) else { return };
    let messages = vec![Message::new(Role::User, "a <s> \u{e9}\u{2581} 12")];
    if let Ok(ids) = language.encode(&Conversation { messages, tools: Vec::new() }) {
        assert!(ids.iter().all(|id| (*id as usize) < language.tokenizer().vocabulary()));
    }
}
