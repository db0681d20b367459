//! Tokenizers rebuilt from small made-up metadata; the real model's are checked in `tests/engine_native.rs`.

use super::*;

fn metadata(model: &str, pre: &str, tokens: &[(&str, i32, f32)], merges: &[&str]) -> HashMap<String, Value> {
    let strings =
        |texts: Vec<&str>| Value::Array(texts.into_iter().map(|t| Value::String(t.into())).collect());
    let array = |values: Vec<Value>| Value::Array(values);
    HashMap::from([
        ("tokenizer.ggml.model".into(), Value::String(model.into())),
        ("tokenizer.ggml.pre".into(), Value::String(pre.into())),
        ("tokenizer.ggml.tokens".into(), strings(tokens.iter().map(|t| t.0).collect())),
        ("tokenizer.ggml.token_type".into(), array(tokens.iter().map(|t| Value::I32(t.1)).collect())),
        ("tokenizer.ggml.scores".into(), array(tokens.iter().map(|t| Value::F32(t.2)).collect())),
        ("tokenizer.ggml.merges".into(), strings(merges.to_vec())),
        ("tokenizer.ggml.bos_token_id".into(), Value::U32(1)),
        ("tokenizer.ggml.eos_token_id".into(), Value::U32(2)),
    ])
}

fn sentence_piece() -> HashMap<String, Value> {
    let tokens = [
        ("<unk>", 2, 0.0),
        ("<s>", 3, 0.0),
        ("</s>", 3, 0.0),
        ("<0xC3>", 6, 0.0),
        ("<0xA9>", 6, 0.0),
        ("\u{2581}", 1, -9.0),
        ("a", 1, -9.0),
        ("b", 1, -9.0),
        ("s", 1, -9.0),
        ("<", 1, -9.0),
        (">", 1, -9.0),
        ("ab", 1, -1.0),
        ("\u{2581}a", 1, -2.0),
        ("\u{2581}ab", 1, -3.0),
        ("\u{2581}\u{2581}", 4, 0.0),
    ];
    metadata("llama", "default", &tokens, &[])
}

fn encode(tokenizer: &ModelTokenizer, segments: &[Segment]) -> Vec<u32> {
    tokenizer.encode(segments).unwrap().to_vec()
}

fn content(text: &str) -> Segment {
    Segment::Content(Zeroizing::new(text.into()))
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let mut fields = sentence_piece();
    fields.insert("tokenizer.ggml.add_space_prefix".into(), Value::Bool(false));
    let tokenizer = ModelTokenizer::from_gguf(&fields).unwrap();
    assert_eq!(encode(&tokenizer, &[content(" ab")]), [1, 13], "ab first, then the space");
    assert_eq!(encode(&tokenizer, &[content("a\u{e9}")]), [1, 6, 3, 4]);
    assert_eq!(encode(&tokenizer, &[content("a  ")]), [1, 6, 14]);
    assert_eq!(encode(&tokenizer, &[content("<s>")]), [1, 9, 8, 10], "text stays text");
    assert_eq!(encode(&tokenizer, &[Segment::Template("<s>".into()), content("ab")]), [1, 11]);
    let bytes: Vec<u8> =
        [13, 3, 4, 14, 1, 2].iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
    assert_eq!(bytes, " ab\u{e9}  ".as_bytes());
    assert!(tokenizer.is_stop(2) && !tokenizer.is_stop(1));
}

#[test]
fn a_space_prefix_is_put_where_the_model_was_trained_with_one() {
    let tokenizer = ModelTokenizer::from_gguf(&sentence_piece()).unwrap();
    assert_eq!(encode(&tokenizer, &[content("ab")]), [1, 13]);
    let ids = encode(
        &tokenizer,
        &[Segment::Template("<s>".into()), content("ab"), Segment::Template("</s>".into())],
    );
    assert_eq!(ids, [1, 13, 2]);
}

#[test]
fn byte_level_special_tokens_come_from_the_template_only() {
    let tokens = [
        ("<", 1, 0.0),
        ("<x>", 3, 0.0),
        ("</s>", 3, 0.0),
        ("x", 1, 0.0),
        (">", 1, 0.0),
        ("\u{120}", 1, 0.0),
        ("\u{120}x", 1, 0.0),
        ("<t>", 4, 0.0),
        ("t", 1, 0.0),
        ("xx", 1, 0.0),
    ];
    let fields = metadata("gpt2", "gpt-2", &tokens, &["\u{120} x", "x x"]);
    let tokenizer = ModelTokenizer::from_gguf(&fields).unwrap();
    assert_eq!(encode(&tokenizer, &[content("<x><t>")]), [0, 3, 4, 0, 8, 4]);
    let template = |text: &str| Segment::Template(text.into());
    assert_eq!(encode(&tokenizer, &[template("<x>"), content(" x"), template("<t>")]), [1, 6, 7]);
    assert_eq!(encode(&tokenizer, &[template("x"), content("x")]), [9], "merges cross the seam");
    assert_eq!(encode(&tokenizer, &[content("<"), template("x>")]), [0, 3, 4], "nor across a seam");
    assert_eq!(tokenizer.token_bytes(6), b" x");
    assert_eq!((tokenizer.token_bytes(1), tokenizer.token_bytes(99)), (&b""[..], &b""[..]));
}

#[test]
fn refuses_metadata_that_do_not_fit_together() {
    let broken: [fn(&mut HashMap<String, Value>); 5] = [
        |m| drop(m.remove("tokenizer.ggml.tokens")),
        |m| drop(m.insert("tokenizer.ggml.token_type".into(), Value::Array(vec![Value::I32(1)]))),
        |m| drop(m.insert("tokenizer.ggml.scores".into(), Value::Array(vec![Value::F32(1.0)]))),
        |m| drop(m.insert("tokenizer.ggml.scores".into(), Value::Bool(true))),
        |m| drop(m.insert("tokenizer.ggml.model".into(), Value::String("wordpiece".into()))),
    ];
    for change in broken {
        let mut fields = sentence_piece();
        change(&mut fields);
        assert!(ModelTokenizer::from_gguf(&fields).is_err());
    }
}
