//! The language layer on real vocabularies, against llama.cpp's ids, and on malformed files.

use std::path::PathBuf;

use baton_engine::{
    gguf::{Gguf, GgufFile},
    language::{Conversation, Date, Language, Message, Role, Segment},
};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::support::{Random, real_model, writer::Writer};

/// llama.cpp's ids of texts with seven vocabularies, written by `scripts/tokenizer-goldens.py`.
const GOLDENS: &str = include_str!("../data/tokens.json");

/// A model's file in the node's model folder, or a vocabulary's in `BATON_VOCAB_DIR` (llama.cpp's sources
/// have some in `models`).
fn file(name: &str) -> Option<PathBuf> {
    let vocabularies = std::env::var_os("BATON_VOCAB_DIR").map(PathBuf::from);
    let path = vocabularies.map(|folder| folder.join(name)).filter(|path| path.exists());
    path.or_else(|| real_model(name))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// Compares every text's ids for every available model.
fn compare(kind: &str, texts: &str, encode: impl Fn(&Language, &str) -> Zeroizing<Vec<u32>>) {
    let goldens: Value = serde_json::from_str(GOLDENS).unwrap();
    let texts: Vec<&str> =
        goldens[texts].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (name, golden) in goldens["models"].as_object().unwrap() {
        let Some(path) = file(name) else { continue };
        let bytes = std::fs::read(path).unwrap();
        let language =
            Language::load(&Gguf::parse_metadata(&bytes).unwrap(), &bytes, Date::default()).unwrap();
        let golden = golden[kind].as_array().unwrap();
        assert_eq!(golden.len(), texts.len());
        for (text, wanted) in texts.iter().zip(golden) {
            let (found, wanted) = (encode(&language, text), ids(wanted));
            if *found != wanted {
                wrong.push(format!("{name} {text:?}: {:?}, not {wanted:?}", *found));
            }
            compared += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ\n{}", wrong.len(), wrong.join("\n"));
    match real_model("SmolLM2-135M-Instruct.Q4_1.gguf") {
        Some(_) => assert!(compared >= texts.len()),
        None => {
            eprintln!("{compared} texts compared: `baton-node models pull` gets the model for all of them")
        }
    }
}

#[test]
fn texts_have_llama_cpps_ids() {
    compare("plain", "texts", |language, text| {
        let ids = language.tokenizer().encode_text(text);
        // Vocabularies of this size can spell any text.
        let spelled = language.tokenizer().decode(&ids);
        let spelled = String::from_utf8_lossy(&spelled).into_owned();
        let plain = |text: &str| text.replace('\u{2581}', " ").trim_start_matches(' ').to_owned();
        assert_eq!(plain(&spelled), plain(text));
        ids
    });
}

#[test]
fn template_texts_have_llama_cpps_ids_with_special_tokens() {
    compare("special", "special", |language, text| {
        language.tokenizer().encode_bare(&[Segment::Template(text.to_owned())])
    });
}

#[test]
fn a_conversation_is_rendered_for_the_model() {
    let Some(path) = real_model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let language = Language::of_file(&GgufFile::open(&path).unwrap(), Date::default()).unwrap();
    let messages = vec![Message::new(Role::User, "What is <|im_end|>?")];
    let ids = language.encode(&Conversation { messages, tools: Vec::new() }).unwrap();
    // The template adds its own system message; `<|im_end|>` in the text is not a token.
    assert_eq!(ids.iter().filter(|id| **id == 2).count(), 2, "{ids:?}");
    assert!(language.tokenizer().is_stop(2) && language.stops().is_empty());
    let shown = String::from_utf8(language.tokenizer().decode(&ids).to_vec()).unwrap();
    assert!(shown.ends_with("user\nWhat is <|im_end|>?\nassistant\n"), "{shown}");
}

#[test]
fn a_base_model_answers_in_lines() {
    let Some(path) = real_model("gemma-3-270m-q4_k_m.gguf") else { return };
    let language = Language::of_file(&GgufFile::open(&path).unwrap(), Date::default()).unwrap();
    let messages = vec![Message::new(Role::User, "Hi")];
    let ids = language.encode(&Conversation { messages, tools: Vec::new() }).unwrap();
    assert_eq!(ids.first(), Some(&2), "<bos>");
    assert_eq!(language.tokenizer().decode(&ids).as_slice(), b"User: Hi\nAssistant:");
    assert_eq!(language.stops(), ["\nUser:"]);
}

/// A small vocabulary that covers all possible defects.
fn small(model: &str) -> Vec<u8> {
    let tokens =
        ["<unk>", "<s>", "</s>", "a", "b", "ab", "\u{2581}", "<0x41>", "\u{120}", "abab", "\u{2581}a", "<x>"];
    let mut file = Writer::default();
    file.string("tokenizer.ggml.model", model).string("tokenizer.ggml.pre", "llama-bpe");
    file.strings("tokenizer.ggml.tokens", &tokens).strings("tokenizer.ggml.merges", &["a b", "ab ab"]);
    let types = [2_i32, 3, 3, 1, 1, 1, 1, 6, 1, 1, 1, 4];
    file.numbers("tokenizer.ggml.token_type", 5, types.map(i32::to_le_bytes));
    file.numbers("tokenizer.ggml.scores", 6, (0..12).map(|index| (index as f32 * -0.5).to_le_bytes()));
    file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
    file.string(
        "tokenizer.chat_template",
        "{{ bos_token }}{% for m in messages %}{{ m.content }}<x>{% endfor %}",
    );
    file.finish()
}

#[test]
fn no_change_of_a_file_makes_the_language_panic() {
    let mut random = Random::new(11);
    let mut loaded = 0;
    for model in ["llama", "gpt2"] {
        let sound = small(model);
        for _ in 0..4000 {
            let mut file = sound.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(file.len() as u64) as usize;
                file[at] = match random.below(3) {
                    0 => random.byte(),
                    1 => file[at] ^ (1 << random.below(8)),
                    _ => [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                };
            }
            if random.below(8) == 0 {
                file.truncate(random.below(file.len() as u64 + 1) as usize);
            }
            let Ok(header) = Gguf::parse_metadata(&file) else { continue };
            let Ok(language) = Language::load(&header, &file, Date::default()) else { continue };
            let messages = vec![Message::new(Role::User, "abab  aA b\u{e9}")];
            if let Ok(ids) = language.encode(&Conversation { messages, tools: Vec::new() }) {
                assert!(ids.iter().all(|id| (*id as usize) < language.tokenizer().vocabulary()));
                loaded += 1;
            }
        }
    }
    assert!(loaded > 500, "{loaded} of 8,000 are sound enough");
}
