//! Helpers for several modules' tests, and tests of the whole language layer.

#[path = "../../tests/it/support/writer.rs"]
#[allow(dead_code, clippy::cast_possible_truncation, reason = "a part of it is used here, for what is small")]
pub(super) mod writer;

use writer::Writer;

use super::*;

/// A file with this vocabulary: texts, types and scores.
pub(super) fn vocabulary<T: AsRef<str>>(model: &str, pre: &str, tokens: &[(T, i32, f32)]) -> Writer {
    let texts: Vec<&str> = tokens.iter().map(|token| token.0.as_ref()).collect();
    let mut file = Writer::default();
    file.string("tokenizer.ggml.model", model).string("tokenizer.ggml.pre", pre);
    file.strings("tokenizer.ggml.tokens", &texts);
    file.numbers("tokenizer.ggml.token_type", 5, tokens.iter().map(|token| token.1.to_le_bytes()));
    file.numbers("tokenizer.ggml.scores", 6, tokens.iter().map(|token| token.2.to_le_bytes()));
    file
}

/// The tokens of all bytes.
pub(super) fn byte_tokens() -> impl Iterator<Item = (String, i32, f32)> {
    (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0))
}

fn base_model() -> Writer {
    let tokens: Vec<(String, i32, f32)> = ["<unk>", "<s>", "</s>"]
        .into_iter()
        .map(|text| (text.to_owned(), 3, 0.0))
        .chain(byte_tokens())
        .chain([("\u{2581}".to_owned(), 1, 0.0)])
        .collect();
    let mut file = vocabulary("llama", "default", &tokens);
    file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
    file.raw_entry("tokenizer.ggml.add_space_prefix", 7, &[0]);
    file
}

fn load(file: &Writer) -> Result<Language, LanguageError> {
    let bytes = file.finish();
    Language::load(&Gguf::parse_metadata(&bytes)?, &bytes, Date::default())
}

#[test]
fn a_base_model_gets_lines_and_stops_before_the_user_speaks() {
    let language = load(&base_model()).unwrap();
    let conversation = Conversation { messages: vec![Message::new(Role::User, "Hi")], tools: Vec::new() };
    let ids = language.encode(&conversation).unwrap();
    assert_eq!(ids.first(), Some(&1));
    assert_eq!(language.tokenizer().decode(&ids).as_slice(), b"User: Hi\nAssistant:");
    assert_eq!(language.stops(), ["\nUser:"]);
    assert!(language.grammars().unwrap().compile(r#"{"type": "integer"}"#).is_ok());
}

#[test]
fn the_files_own_template_comes_first() {
    let mut file = base_model();
    file.string(
        "tokenizer.chat_template",
        "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}",
    );
    let language = load(&file).unwrap();
    let conversation = Conversation { messages: vec![Message::new(Role::User, "</s>")], tools: Vec::new() };
    let ids = language.encode(&conversation).unwrap();
    assert_eq!((ids[0], ids.len()), (1, 7), "the text of a token is text");
    assert_eq!(language.tokenizer().decode(&ids).as_slice(), b"[</s>]");
    assert!(language.stops().is_empty());
    let mut broken = base_model();
    assert!(matches!(load(broken.u32("tokenizer.chat_template", 1)), Err(LanguageError::File(_))));
}

#[test]
fn reported_tokens_have_their_bytes() {
    let language = load(&base_model()).unwrap();
    let mut logits = vec![0.0; 260];
    logits[3 + usize::from(b'a')] = 9.0;
    let reported = language.report(&Softmax::of(&logits), 4, 2);
    assert_eq!(reported.tokens.iter().map(|one| one.token).collect::<Vec<_>>(), [4, 100, 0]);
    assert_eq!(reported.spelled, [vec![1], b"a".to_vec(), Vec::new()]);
}
