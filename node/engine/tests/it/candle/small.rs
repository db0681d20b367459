//! Small models of random weights, one for each architecture.

use baton_engine::gguf::DType;

use crate::support::{Random, synthetic::weights, writer::Writer};

/// Two mixtures of experts (in one tensor and in separate tensors), then the other architectures.
pub(super) const NAMES: [&str; 6] = ["mixture", "experts-apart", "phi2", "phi3", "glm4", "lfm2"];

pub(super) const VOCABULARY: usize = 72;
pub(super) const EXPERTS: usize = 4;
const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const FEED_FORWARD: usize = 128;
const LAYERS: usize = 3;

/// The same tokens that llama.cpp got.
pub(super) fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|at| (at * 29 + 7) % 64 + 3).collect()
}

/// The parameters of a small model.
#[derive(Clone)]
pub(super) struct Small {
    pub name: &'static str,
    pub dtype: DType,
    /// Entries that replace the defaults.
    pub instead: Vec<(&'static str, u32)>,
}

pub(super) fn model(name: &'static str) -> Writer {
    Small::new(name).writer()
}

impl Small {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, dtype: DType::F32, instead: Vec::new() }
    }

    pub(super) fn with(name: &'static str, key: &'static str, value: u32) -> Self {
        Self { instead: vec![(key, value)], ..Self::new(name) }
    }

    fn architecture(&self) -> &'static str {
        match self.name {
            "mixture" | "experts-apart" => "llama",
            name => name,
        }
    }

    fn numbers(&self) -> Vec<(&'static str, u32)> {
        let rotated = if self.name == "glm4" || self.name == "phi2" { HEAD_DIM / 2 } else { HEAD_DIM };
        let mut numbers = vec![
            ("block_count", LAYERS),
            ("context_length", 1_024),
            ("embedding_length", HIDDEN),
            ("feed_forward_length", FEED_FORWARD),
            ("attention.head_count", HEADS),
            ("rope.dimension_count", rotated),
        ];
        match self.name {
            "mixture" | "experts-apart" => {
                numbers.extend([("expert_count", EXPERTS), ("expert_used_count", 2)])
            }
            "glm4" => {
                numbers.extend([("attention.key_length", HEAD_DIM), ("attention.value_length", HEAD_DIM)])
            }
            "lfm2" => numbers.push(("shortconv.l_cache", 3)),
            _ => {}
        }
        match self.name {
            "lfm2" => {}
            "phi2" => numbers.push(("attention.head_count_kv", HEADS)),
            _ => numbers.push(("attention.head_count_kv", KV_HEADS)),
        }
        numbers.iter().map(|(key, value)| (*key, u32::try_from(*value).unwrap())).collect()
    }

    /// The file, for further additions.
    pub(super) fn writer(&self) -> Writer {
        let mut file = Writer::default();
        let architecture = self.architecture();
        let key = |rest: &str| format!("{architecture}.{rest}");
        file.string("general.architecture", architecture);
        for (name, value) in self.numbers() {
            let instead = self.instead.iter().find(|(other, _)| *other == name);
            file.u32(&key(name), instead.map_or(value, |(_, value)| *value));
        }
        if self.name == "lfm2" {
            let heads = [0, KV_HEADS, 0].map(|heads| (heads as u32).to_le_bytes());
            file.numbers(&key("attention.head_count_kv"), 4, heads);
        }
        let epsilon = if self.name == "phi2" {
            "attention.layer_norm_epsilon"
        } else {
            "attention.layer_norm_rms_epsilon"
        };
        file.f32(&key(epsilon), 1e-5).f32(&key("rope.freq_base"), 10_000.0);
        vocabulary(&mut file);
        Tensors { file, random: Random::new(7), dtype: self.dtype }.all(self.name)
    }
}

/// A vocabulary that llama.cpp accepts.
pub(super) fn vocabulary(file: &mut Writer) {
    let characters = "\u{2581}abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:?!\n";
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let texts: Vec<String> = special.into_iter().chain(characters.chars().map(String::from)).collect();
    assert_eq!(texts.len(), VOCABULARY);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    file.string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", &texts);
    let kinds = (0..VOCABULARY).map(|id| if id < 3 { 3_i32.to_le_bytes() } else { 1_i32.to_le_bytes() });
    file.numbers("tokenizer.ggml.token_type", 5, kinds);
    file.numbers("tokenizer.ggml.scores", 6, [0_f32.to_le_bytes(); VOCABULARY]);
    file.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
}

struct Tensors {
    file: Writer,
    random: Random,
    dtype: DType,
}

impl Tensors {
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) {
        self.matrices(name, &[columns, rows]);
    }

    /// `shape` has its columns first.
    fn matrices(&mut self, name: &str, shape: &[usize]) {
        let size = 1.7 / (shape[0] as f32).sqrt();
        let bytes = weights(&mut self.random, self.dtype, shape.iter().product(), size);
        let shape: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
        self.file.tensor(name, &shape, self.dtype as u32, &bytes);
    }

    fn norm(&mut self, name: &str, width: usize) {
        let values: Vec<f32> = (0..width).map(|_| 1.0 + self.random.unit() * 0.3).collect();
        self.file.f32s(name, &values);
    }

    fn bias(&mut self, name: &str, width: usize) {
        let values = self.random.floats(width, 0.5);
        self.file.f32s(name, &values);
    }

    fn all(mut self, name: &str) -> Writer {
        self.matrix("token_embd.weight", VOCABULARY, HIDDEN);
        let norm = if name == "lfm2" { "token_embd_norm.weight" } else { "output_norm.weight" };
        self.norm(norm, HIDDEN);
        // Here, Phi 3 and LFM2 have no head of their own.
        if !matches!(name, "phi3" | "lfm2") {
            self.matrix("output.weight", VOCABULARY, HIDDEN);
        }
        if name == "phi2" {
            self.bias("output_norm.bias", HIDDEN);
            self.bias("output.bias", VOCABULARY);
        }
        for layer in 0..LAYERS {
            self.layer(name, layer);
        }
        self.file
    }

    fn layer(&mut self, name: &str, layer: usize) {
        let at = |rest: &str| format!("blk.{layer}.{rest}");
        let (queries, keys) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        self.norm(&at("attn_norm.weight"), HIDDEN);
        match name {
            "phi2" => {
                self.matrix(&at("attn_qkv.weight"), 3 * queries, HIDDEN);
                self.bias(&at("attn_qkv.bias"), 3 * queries);
                for (rest, width) in [("attn_norm", HIDDEN), ("attn_output", HIDDEN)] {
                    self.bias(&at(&format!("{rest}.bias")), width);
                }
            }
            "phi3" => self.matrix(&at("attn_qkv.weight"), queries + 2 * keys, HIDDEN),
            "lfm2" if layer != 1 => {
                self.matrix(&at("shortconv.in_proj.weight"), 3 * HIDDEN, HIDDEN);
                self.matrix(&at("shortconv.out_proj.weight"), HIDDEN, HIDDEN);
                let taps = self.random.floats(3 * HIDDEN, 0.6);
                let bytes: Vec<u8> = taps.iter().flat_map(|tap| tap.to_le_bytes()).collect();
                self.file.tensor(&at("shortconv.conv.weight"), &[3, HIDDEN as u64], 0, &bytes);
            }
            _ => {
                for (rest, rows) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
                    self.matrix(&at(&format!("{rest}.weight")), rows, HIDDEN);
                    if name == "glm4" {
                        self.bias(&at(&format!("{rest}.bias")), rows);
                    }
                }
            }
        }
        if name == "lfm2" && layer == 1 {
            self.norm(&at("attn_q_norm.weight"), HEAD_DIM);
            self.norm(&at("attn_k_norm.weight"), HEAD_DIM);
        }
        if name != "lfm2" || layer == 1 {
            self.matrix(&at("attn_output.weight"), HIDDEN, queries);
        }
        self.feed_forward(name, layer);
    }

    fn feed_forward(&mut self, name: &str, layer: usize) {
        let at = |rest: &str| format!("blk.{layer}.{rest}");
        if name != "phi2" {
            self.norm(&at("ffn_norm.weight"), HIDDEN);
        }
        match name {
            "mixture" => {
                self.matrix(&at("ffn_gate_inp.weight"), EXPERTS, HIDDEN);
                self.matrices(&at("ffn_gate_exps.weight"), &[HIDDEN, FEED_FORWARD, EXPERTS]);
                self.matrices(&at("ffn_up_exps.weight"), &[HIDDEN, FEED_FORWARD, EXPERTS]);
                self.matrices(&at("ffn_down_exps.weight"), &[FEED_FORWARD, HIDDEN, EXPERTS]);
            }
            "experts-apart" => {
                self.matrix(&at("ffn_gate_inp.weight"), EXPERTS, HIDDEN);
                // In this order the numbers are the same as in `mixture`.
                for (part, rows, columns) in [
                    ("gate", FEED_FORWARD, HIDDEN),
                    ("up", FEED_FORWARD, HIDDEN),
                    ("down", HIDDEN, FEED_FORWARD),
                ] {
                    for expert in 0..EXPERTS {
                        self.matrix(&at(&format!("ffn_{part}.{expert}.weight")), rows, columns);
                    }
                }
            }
            "phi2" => {
                self.matrix(&at("ffn_up.weight"), FEED_FORWARD, HIDDEN);
                self.bias(&at("ffn_up.bias"), FEED_FORWARD);
                self.matrix(&at("ffn_down.weight"), HIDDEN, FEED_FORWARD);
                self.bias(&at("ffn_down.bias"), HIDDEN);
            }
            "phi3" | "glm4" => {
                self.matrix(&at("ffn_up.weight"), 2 * FEED_FORWARD, HIDDEN);
                self.matrix(&at("ffn_down.weight"), HIDDEN, FEED_FORWARD);
            }
            _ => {
                self.matrix(&at("ffn_gate.weight"), FEED_FORWARD, HIDDEN);
                self.matrix(&at("ffn_up.weight"), FEED_FORWARD, HIDDEN);
                self.matrix(&at("ffn_down.weight"), HIDDEN, FEED_FORWARD);
            }
        }
        if name == "glm4" {
            self.norm(&at("post_attention_norm.weight"), HIDDEN);
            self.norm(&at("post_ffw_norm.weight"), HIDDEN);
        }
    }
}
