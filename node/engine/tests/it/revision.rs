//! The engine's revision: a change of any answer's bits needs another number.

use baton_engine::{
    Chunk, ENGINE_REVISION, Model, Options,
    gguf::{DType, GgufFile},
    language::{Conversation, Date, Grammar, Language, Message, Role, Sampler, Sampling, Tool},
};

use crate::support::synthetic::{Shape, open};

/// The revision, and the digest of its answers. If the test fails because answers were changed on purpose, raise
/// [`ENGINE_REVISION`] and write its digest here.
const GOLDEN: (u32, &str) = (1, "883b7a852602e0072979421cca05705d7d949c3cdce6f342c5012d936a385afa");

/// Two turns, in a template without a part for tools.
const TEMPLATE: &str =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
const SCHEMA: &str = r#"{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}"#;
const TOOL: &str = r#"{"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}}"#;
/// Three special tokens, each byte, and the space of such vocabularies.
const VOCABULARY: usize = 3 + 256 + 1;

/// A model of a family, in all encodings, with a vocabulary of bytes.
fn model(family: &'static str) -> GgufFile {
    let mut file = Shape { vocabulary: VOCABULARY, ..Shape::new(family, &DType::ALL) }.writer();
    let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 6u32));
    let special = ["<unk>", "<s>", "</s>"].map(|text| (text.to_owned(), 3));
    let tokens: Vec<_> = special.into_iter().chain(bytes).chain([("\u{2581}".to_owned(), 1)]).collect();
    let texts: Vec<&str> = tokens.iter().map(|(text, _)| text.as_str()).collect();
    file.string("tokenizer.ggml.model", "llama").string("tokenizer.ggml.pre", "default");
    file.strings("tokenizer.ggml.tokens", &texts);
    let list = |kind: u32, values: Vec<[u8; 4]>| {
        [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &values.concat()].concat()
    };
    let kinds = tokens.iter().map(|(_, kind)| kind.to_le_bytes()).collect();
    file.raw_entry("tokenizer.ggml.token_type", 9, &list(5, kinds));
    file.raw_entry("tokenizer.ggml.scores", 9, &list(6, vec![[0; 4]; VOCABULARY]));
    file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
    file.raw_entry("tokenizer.ggml.add_space_prefix", 7, &[0]);
    file.string("tokenizer.chat_template", TEMPLATE);
    open(&file.finish())
}

/// The tokens of prompt and answer.
fn answer(
    model: &mut Model,
    language: &Language,
    conversation: &Conversation,
    (sampling, mut grammar): (&Sampling, Option<Grammar>),
) -> Vec<u32> {
    let mut tokens = language.encode(conversation).unwrap().to_vec();
    let (sampler, mut sequence, mut new) = (Sampler::new(sampling), model.sequence(), tokens.clone());
    for position in 0..24 {
        let chunk = Chunk { sequence: &mut sequence, tokens: &new, logits: 1 };
        let logits = model.step(&mut [chunk]).unwrap();
        let mut row = logits.rows().next().unwrap().to_vec();
        if let Some(grammar) = &mut grammar {
            grammar.mask(&mut row, |id| language.tokenizer().is_stop(id)).unwrap();
        }
        let id = sampler.sample(&mut row, &tokens, position).unwrap();
        tokens.push(id);
        new = vec![id];
        if language.tokenizer().is_stop(id) {
            break;
        }
        if let Some(grammar) = &mut grammar {
            grammar.push(id).unwrap();
            if grammar.is_complete() {
                break;
            }
        }
    }
    tokens
}

fn digest() -> String {
    let mut hasher = blake3::Hasher::new();
    let noisy = Sampling {
        temperature: 0.9,
        top_p: 0.95,
        top_k: 50,
        min_p: 0.0,
        repetition_penalty: 1.1,
        seed: 7,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        token_biases: vec![(70, 1.5)],
    };
    let messages = vec![
        Message::new(Role::System, "Be brief."),
        Message::new(Role::User, "What time is it?"),
        Message::new(Role::Assistant, "Noon."),
        Message::new(Role::User, "And now?"),
    ];
    let tool: serde_json::Value = serde_json::from_str(TOOL).unwrap();
    let plain = Conversation { messages: messages.clone(), tools: Vec::new() };
    let tool = Tool { definition: tool.into(), text: TOOL.to_owned().into() };
    let with_tool = Conversation { messages, tools: vec![tool] };
    for family in ["llama", "qwen2", "qwen3", "gemma3"] {
        let file = model(family);
        let language = Language::of_file(&file, Date::default()).unwrap();
        let mut model = Model::from_file(&file, &Options::default()).unwrap();
        let grammars = language.grammars().unwrap();
        for (conversation, sampling, grammar) in [
            (&plain, Sampling::default(), None),
            (&plain, noisy.clone(), None),
            (&plain, noisy.clone(), Some(grammars.compile(SCHEMA).unwrap())),
            (&with_tool, noisy.clone(), None),
        ] {
            for token in answer(&mut model, &language, conversation, (&sampling, grammar)) {
                hasher.update(&token.to_le_bytes());
            }
        }
    }
    hasher.finalize().to_hex().to_string()
}

#[test]
fn answers_change_only_with_the_revision() {
    assert_eq!((ENGINE_REVISION, digest().as_str()), GOLDEN);
}
