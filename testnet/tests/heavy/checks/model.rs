//! A small Llama of fixed random weights, in variants that liars compute in its place.

use crate::support::{Random, writer::Writer};

const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const FEED_FORWARD: usize = 128;
/// Layers of the model that honest nodes compute.
pub(super) const LAYERS: usize = 3;
/// Numbers that share a scale in coarse weights, as in Q4_0.
const BLOCK: usize = 32;

/// The file of the model, with the first `layers` of its layers. Coarse weights have four bits each.
pub(super) fn file(layers: usize, coarse: bool) -> Vec<u8> {
    let mut file = Writer::default();
    file.string("general.architecture", "llama");
    for (key, value) in [
        ("block_count", layers),
        ("context_length", 2_048),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED_FORWARD),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("rope.dimension_count", HEAD_DIM),
    ] {
        file.u32(&format!("llama.{key}"), u32::try_from(value).unwrap());
    }
    file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5).f32("llama.rope.freq_base", 10_000.0);
    let vocabulary = vocabulary(&mut file);
    let mut weights = Weights { file, random: Random::new(11), coarse };
    weights.matrix("token_embd.weight", vocabulary, HIDDEN);
    weights.norm("output_norm.weight", HIDDEN);
    weights.matrix("output.weight", vocabulary, HIDDEN);
    for layer in 0..layers {
        let name = |rest: &str| format!("blk.{layer}.{rest}.weight");
        weights.norm(&name("attn_norm"), HIDDEN);
        weights.matrix(&name("attn_q"), HEADS * HEAD_DIM, HIDDEN);
        weights.matrix(&name("attn_k"), KV_HEADS * HEAD_DIM, HIDDEN);
        weights.matrix(&name("attn_v"), KV_HEADS * HEAD_DIM, HIDDEN);
        weights.matrix(&name("attn_output"), HIDDEN, HEADS * HEAD_DIM);
        weights.norm(&name("ffn_norm"), HIDDEN);
        weights.matrix(&name("ffn_gate"), FEED_FORWARD, HIDDEN);
        weights.matrix(&name("ffn_up"), FEED_FORWARD, HIDDEN);
        weights.matrix(&name("ffn_down"), HIDDEN, FEED_FORWARD);
    }
    weights.file.finish()
}

/// One token for each printable character; returns their number.
fn vocabulary(file: &mut Writer) -> usize {
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let characters = std::iter::once('\u{2581}').chain('!'..='~').chain(['\n']);
    let texts: Vec<String> = special.into_iter().chain(characters.map(String::from)).collect();
    let list = |kind: u32, values: Vec<[u8; 4]>| {
        [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &values.concat()].concat()
    };
    let kinds = (0..texts.len()).map(|id| if id < 3 { 3_i32.to_le_bytes() } else { 1_i32.to_le_bytes() });
    let names: Vec<&str> = texts.iter().map(String::as_str).collect();
    file.string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", &names);
    file.raw_entry("tokenizer.ggml.token_type", 9, &list(5, kinds.collect()));
    file.raw_entry("tokenizer.ggml.scores", 9, &list(6, vec![0_f32.to_le_bytes(); texts.len()]));
    file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
    let template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}";
    file.string("tokenizer.chat_template", template);
    texts.len()
}

struct Weights {
    file: Writer,
    random: Random,
    coarse: bool,
}

impl Weights {
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) {
        let mut values = self.random.floats(rows * columns, 1.7 / (columns as f32).sqrt());
        if self.coarse {
            values.chunks_mut(BLOCK).for_each(round);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.file.tensor(name, &[columns as u64, rows as u64], 0, &bytes);
    }

    fn norm(&mut self, name: &str, width: usize) {
        let values: Vec<f32> = self.random.floats(width, 0.3).iter().map(|value| 1.0 + value).collect();
        self.file.f32s(name, &values);
    }
}

/// Rounds the numbers of a block to the sixteen steps of Q4_0.
fn round(block: &mut [f32]) {
    let largest =
        block.iter().fold(0.0_f32, |most, value| if value.abs() > most.abs() { *value } else { most });
    let scale = largest / -8.0;
    for value in block.iter_mut().filter(|_| scale != 0.0) {
        *value = scale * (*value / scale).round().clamp(-8.0, 7.0);
    }
}
