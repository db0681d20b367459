//! Malformed files, and files with parts that candle ignores.

use super::small::{NAMES, Small, model};
use crate::support::{synthetic, writer::Writer};
use baton_engine::candle::CandleModel;

const CONTEXT: usize = 4_096;

fn refusal(file: &Writer) -> String {
    let opened = CandleModel::open(&synthetic::open(&file.finish()), CONTEXT);
    opened.err().expect("it is refused").to_string()
}

#[test]
fn parts_that_candle_would_ignore_are_refused_by_name() {
    for name in NAMES {
        let mut file = model(name);
        file.f32s("blk.1.attn_sinks.weight", &[1.0; 4]);
        let text = refusal(&file);
        assert!(text.contains("takes no notice of the tensor blk.1.attn_sinks.weight"), "{name}: {text}");
    }
    for (name, key, value) in
        [("phi3", "phi3.rope.scaling.type", "longrope"), ("mixture", "llama.rope.scaling.type", "linear")]
    {
        let mut file = model(name);
        file.string(key, value);
        assert!(refusal(&file).contains(key), "{name}");
    }
    for (name, key, value) in [
        ("phi3", "rope.dimension_count", 12),
        ("glm4", "rope.dimension_count", 16),
        ("mixture", "rope.dimension_count", 8),
        ("glm4", "attention.value_length", 8),
    ] {
        let text = refusal(&Small::with(name, key, value).writer());
        assert!(text.contains(key), "{name}: {text}");
    }
    let mut file = model("phi3");
    file.u32("phi3.expert_count", 4);
    assert!(refusal(&file).contains("phi3.expert_count"));
}

#[test]
fn numbers_out_of_bounds_are_refused_before_any_allocation() {
    for name in NAMES {
        for key in [
            "block_count",
            "embedding_length",
            "attention.head_count",
            "feed_forward_length",
            "context_length",
        ] {
            let text = refusal(&Small::with(name, key, 0).writer());
            assert!(text.contains(key), "{name}: {text}");
        }
        for key in ["block_count", "embedding_length", "attention.head_count"] {
            let text = refusal(&Small::with(name, key, u32::MAX).writer());
            assert!(text.contains(key), "{name}: {text}");
        }
    }
    for (name, key, value) in [
        ("mixture", "expert_count", u32::MAX),
        ("mixture", "expert_used_count", 5),
        ("mixture", "attention.head_count_kv", 3),
        ("phi2", "rope.dimension_count", 999),
        ("lfm2", "shortconv.l_cache", u32::MAX),
        ("glm4", "attention.key_length", u32::MAX),
    ] {
        let text = refusal(&Small::with(name, key, value).writer());
        assert!(text.contains(key) || text.contains("heads"), "{name} {key}: {text}");
    }
    // Whatever the file says, the context is at most the requested one.
    let long = Small::with("phi3", "context_length", u32::MAX).writer();

    let opened = CandleModel::open(&synthetic::open(&long.finish()), 100).unwrap();
    assert_eq!(opened.shape().context, 100);
    let opened = CandleModel::open(&synthetic::open(&long.finish()), CONTEXT).unwrap();
    assert_eq!(opened.shape().context, 4_096);
    let mut window = model("phi3");
    window.u32("phi3.attention.sliding_window", 50);
    let opened = CandleModel::open(&synthetic::open(&window.finish()), CONTEXT).unwrap();
    assert_eq!(opened.shape().context, 50, "within the window there is no difference");
}

#[test]
fn contradictory_tensors_are_refused_at_opening() {
    for (name, key, value) in [
        ("phi3", "feed_forward_length", 64),
        ("phi3", "feed_forward_length", 4_000),
        ("phi3", "block_count", 4),
        ("phi2", "attention.head_count", 2),
        ("glm4", "attention.head_count", 8),
        ("lfm2", "shortconv.l_cache", 4),
        ("lfm2", "attention.head_count", 8),
        ("mixture", "expert_count", 3),
        ("mixture", "expert_count", 8),
        ("experts-apart", "expert_count", 8),
        ("mixture", "embedding_length", 32),
    ] {
        let mut small = Small::with(name, key, value);
        if key == "attention.head_count" || key == "embedding_length" {
            // Otherwise the rotation's check would refuse it first.
            small.instead.push(("rope.dimension_count", 8));
        }
        let text = refusal(&small.writer());
        assert!(!text.is_empty() && !text.contains('\n'), "{name} {key}: {text}");
    }
}

#[test]
fn an_architecture_that_candle_does_not_compute_is_none_of_these() {
    let mut file = Writer::default();
    file.string("general.architecture", "mamba").f32s("token_embd.weight", &[0.0; 32]);
    assert_eq!(refusal(&file), "the architecture is not among those that candle computes");
}
