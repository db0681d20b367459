//! Tokenizers rebuilt from small made-up metadata; real ones are checked in `tests/it/language.rs`.

use super::*;
use crate::language::tests::{vocabulary, writer::Writer};

const SENTENCE_PIECE: [(&str, i32, f32); 15] = [
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

const BYTE_LEVEL: [(&str, i32, f32); 10] = [
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

fn ends(mut file: Writer) -> Writer {
    file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
    file
}

fn sentence_piece() -> Writer {
    ends(vocabulary("llama", "default", &SENTENCE_PIECE))
}

fn byte_level(merges: &[&str]) -> Writer {
    let mut file = ends(vocabulary("gpt2", "gpt-2", &BYTE_LEVEL));
    file.strings("tokenizer.ggml.merges", merges);
    file
}

fn load(file: &Writer) -> Result<Tokenizer, LanguageError> {
    let bytes = file.finish();
    Tokenizer::load(&Gguf::parse(&bytes)?, &bytes)
}

fn encode(tokenizer: &Tokenizer, segments: &[Segment]) -> Vec<u32> {
    tokenizer.encode(segments).to_vec()
}

fn content(text: &str) -> Segment {
    Segment::Content(Zeroizing::new(text.into()))
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let mut file = sentence_piece();
    file.raw_entry("tokenizer.ggml.add_space_prefix", 7, &[0]);
    let tokenizer = load(&file).unwrap();
    assert_eq!(encode(&tokenizer, &[content(" ab")]), [1, 13], "ab first, then the space");
    assert_eq!(encode(&tokenizer, &[content("a\u{e9}")]), [1, 6, 3, 4]);
    assert_eq!(encode(&tokenizer, &[content("a  ")]), [1, 6, 14]);
    assert_eq!(encode(&tokenizer, &[content("<s>")]), [1, 9, 8, 10], "text stays text");
    assert_eq!(encode(&tokenizer, &[Segment::Template("<s>".into()), content("ab")]), [1, 11]);
    assert_eq!(tokenizer.decode(&[13, 3, 4, 14, 1, 2]).as_slice(), " ab\u{e9}  ".as_bytes());
    assert!(tokenizer.is_stop(2) && !tokenizer.is_stop(1));
    assert_eq!(encode(&tokenizer, &[content("\u{20ac}")]), [1], "no byte of it has a token");
}

#[test]
fn a_space_prefix_is_put_where_the_model_was_trained_with_one() {
    let tokenizer = load(&sentence_piece()).unwrap();
    assert_eq!(encode(&tokenizer, &[content("ab")]), [1, 13]);
    let ids = encode(
        &tokenizer,
        &[Segment::Template("<s>".into()), content("ab"), Segment::Template("</s>".into())],
    );
    assert_eq!(ids, [1, 13, 2]);
}

#[test]
fn phi_3_leaves_out_white_space_after_its_special_tokens() {
    let tokens = [&SENTENCE_PIECE[..], &[("<u>", 3, 0.0)]].concat();
    let mut file = ends(vocabulary("llama", "default", &tokens));
    file.raw_entry("tokenizer.ggml.add_space_prefix", 7, &[0]);
    let said = [Segment::Template("<u>\u{b}\n ".into()), content("  ab "), Segment::Template("<u> ".into())];
    let other = load(&file).unwrap();
    assert_eq!(encode(&other, &said), [1, 15, 14, 13, 5, 15, 5], "no other model does");
    file.string("general.architecture", "phi3");
    let phi = load(&file).unwrap();
    assert_eq!(encode(&phi, &said), [1, 15, 11, 5, 15]);
    assert_eq!(
        encode(&phi, &[Segment::Template("<s> ".into()), content("ab")]),
        [1, 13],
        "not after this one"
    );
    assert_ne!(phi.hash(), other.hash());
}

#[test]
fn byte_level_special_tokens_come_from_the_template_only() {
    let tokenizer = load(&byte_level(&["\u{120} x", "x x"])).unwrap();
    assert_eq!(encode(&tokenizer, &[content("<x><t>")]), [0, 3, 4, 0, 8, 4]);
    let template = |text: &str| Segment::Template(text.into());
    assert_eq!(encode(&tokenizer, &[template("<x>"), content(" x"), template("<t>")]), [1, 6, 7]);
    assert_eq!(encode(&tokenizer, &[template("x"), content("x")]), [9], "merges cross the seam");
    assert_eq!(encode(&tokenizer, &[content("<"), template("x>")]), [0, 3, 4], "nor across a seam");
    assert_eq!(tokenizer.token_bytes(6), b" x");
    assert_eq!((tokenizer.token_bytes(1), tokenizer.token_bytes(99)), (&b""[..], &b""[..]));
}

#[test]
fn bytes_and_characters_of_the_byte_level_alphabet_are_one_to_one() {
    let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(merge::byte_of).collect();
    bytes.sort_unstable();
    assert!(bytes.into_iter().eq(0..=255));
    assert_eq!(
        (merge::byte_of('\u{120}'), merge::byte_of('\u{10a}'), merge::byte_of('é')),
        (Some(b' '), Some(b'\n'), Some(0xe9))
    );
    assert_eq!(
        (merge::byte_token("<0xC3>"), merge::byte_token("<0x+3>"), merge::byte_token("<0x123>")),
        (Some(0xc3), None, None)
    );
}

#[test]
fn a_long_text_that_merges_everywhere_takes_no_square_of_its_length() {
    let tokenizer = load(&byte_level(&["x x"])).unwrap();
    let started = std::time::Instant::now();
    assert_eq!(tokenizer.encode_text(&"x".repeat(400_000)).len(), 200_000);
    let sentence_piece = load(&sentence_piece()).unwrap();
    assert_eq!(sentence_piece.encode_text(&"ab".repeat(200_000)).len(), 200_000);
    // Quadratic time would take minutes.
    assert!(started.elapsed().as_secs() < 20);
}

/// A file like `sentence_piece`, with a different text, type and score for this token.
fn with_token(index: usize, text: &str, kind: i32, score: f32) -> Writer {
    let mut tokens = SENTENCE_PIECE;
    tokens[index] = (text, kind, score);
    ends(vocabulary("llama", "default", &tokens))
}

/// Qwen2.5 Coder has a token of ordinary text for `</s>`.
#[test]
fn an_end_that_merges_build_is_ordinary_text() {
    const TOKENS: [(&str, i32, f32); 7] = [
        ("<", 1, 0.0),
        ("/", 1, 0.0),
        ("s", 1, 0.0),
        (">", 1, 0.0),
        ("</", 1, 0.0),
        ("</s>", 1, 0.0),
        ("s>", 1, 0.0),
    ];
    let load_with = |merges: &[&str]| {
        let mut file = vocabulary("gpt2", "gpt-2", &TOKENS);
        file.strings("tokenizer.ggml.merges", merges);
        load(&file).unwrap()
    };
    let built = load_with(&["< /", "s >", "</ s>"]);
    assert_eq!((built.token_bytes(5), built.stops()), (&b"</s>"[..], &[][..]));
    let not_built = load_with(&["< /"]);
    assert_eq!((not_built.token_bytes(5), not_built.stops()), (&b""[..], &[5][..]));
}

#[test]
fn malformed_vocabularies_are_refused_by_name() {
    let long = "x".repeat(MAX_TOKEN_BYTES + 1);
    let token = |index: usize, why: &str| LanguageError::File(format!("token {index} {why}"));
    let merge = |index: usize, why: &str| LanguageError::File(format!("merge {index} {why}"));
    let cases = [
        (with_token(6, "", 1, 0.0), token(6, "is empty")),
        (with_token(7, "a", 1, 0.0), token(7, "is there twice")),
        (with_token(7, &long, 1, 0.0), token(7, "is too long")),
        (with_token(7, "b", 9, 0.0), token(7, "is of no known type")),
        (with_token(7, "b", -1, 0.0), token(7, "is of no known type")),
        (with_token(7, "b", 1, f32::NAN), token(7, "has a score that is no number")),
        (with_token(7, "b", 1, f32::INFINITY), token(7, "has a score that is no number")),
        (byte_level(&["x x", "x x"]), merge(1, "is there twice")),
        (byte_level(&["x"]), merge(0, "is not two tokens")),
        (byte_level(&["x "]), merge(0, "is not two tokens")),
        (byte_level(&[" x"]), merge(0, "is not two tokens")),
        (byte_level(&["x >"]), merge(0, "has a part or a result that is no token")),
        (byte_level(&["x x", "xx x"]), merge(1, "has a part or a result that is no token")),
        (byte_level(&["<x >"]), merge(0, "has a part or a result that is no token")),
    ];
    for (file, wanted) in cases {
        assert_eq!(load(&file).err(), Some(wanted));
    }
}

#[test]
fn metadata_that_do_not_go_together_are_refused_by_name() {
    use LanguageError as E;
    const TYPES: &str = "tokenizer.ggml.token_type";
    const SCORES: &str = "tokenizer.ggml.scores";
    let bare = |model: &str, pre: &str| {
        let mut file = Writer::default();
        file.string("tokenizer.ggml.model", model).string("tokenizer.ggml.pre", pre);
        file
    };
    let with_tokens = || {
        let mut file = bare("llama", "default");
        file.strings("tokenizer.ggml.tokens", &["a", "b"]);
        file
    };
    let mut few_types = with_tokens();
    few_types.numbers(TYPES, 5, [1_i32.to_le_bytes()]);
    let mut many_types = with_tokens();
    many_types.numbers(TYPES, 5, [1_i32.to_le_bytes(); 3]);
    let mut few_scores = with_tokens();
    few_scores.numbers(SCORES, 6, [1_f32.to_le_bytes()]);
    let mut scores_of_integers = with_tokens();
    scores_of_integers.numbers(SCORES, 5, [1_i32.to_le_bytes(); 2]);
    let mut no_text = bare("llama", "default");
    no_text.raw_entry(
        "tokenizer.ggml.tokens",
        9,
        &[&8_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &1_u64.to_le_bytes(), &[0xff]].concat(),
    );
    let mut beyond = with_tokens();
    beyond.numbers(SCORES, 6, [1_f32.to_le_bytes(); 2]);
    beyond.u32("tokenizer.ggml.bos_token_id", 2);
    let file = |text: &str| E::File(text.to_owned());
    let unknown = |model: &str, pre: &str| E::Unknown { model: model.to_owned(), pre: pre.to_owned() };
    let cases = [
        (Writer::default(), E::Missing("tokenizer.ggml.model")),
        (bare("llama", "default"), E::Missing("tokenizer.ggml.tokens")),
        (bare("bert", "default"), unknown("bert", "default")),
        (bare("gpt2", "tekken"), unknown("gpt2", "tekken")),
        (with_tokens(), E::Missing(SCORES)),
        (few_types, file(r#""tokenizer.ggml.token_type" has 1 elements, the vocabulary 2"#)),
        (many_types, file(r#""tokenizer.ggml.token_type" has 3 elements, the vocabulary 2"#)),
        (few_scores, file(r#""tokenizer.ggml.scores" has 1 elements, the vocabulary 2"#)),
        (scores_of_integers, file(r#""tokenizer.ggml.scores" is not a list of numbers"#)),
        (no_text, file(r#""tokenizer.ggml.tokens" is not UTF-8"#)),
        (beyond, file(r#""tokenizer.ggml.bos_token_id" is 2, which is no token"#)),
    ];
    for (file, wanted) in cases {
        assert_eq!(load(&file).err(), Some(wanted));
    }
    let many = vec!["t"; 3];
    let mut special = Writer::default();
    special.string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", &many);
    assert_eq!(load(&special).err(), Some(E::File("token 1 is there twice".to_owned())));
}
