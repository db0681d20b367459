//! Small models of random weights, in every family and encoding.

use baton_engine::gguf::DType;

use super::{Random, writer::Writer};

fn half(value: f32) -> [u8; 2] {
    baton_engine::half::f32_to_f16(value).to_le_bytes()
}

/// Random weights of about `size` in magnitude.
pub(crate) fn weights(random: &mut Random, dtype: DType, count: usize, size: f32) -> Vec<u8> {
    let (block, bytes) = dtype.block();
    let mut out = Vec::with_capacity(count / block * bytes);
    for _ in 0..count / block {
        let mut of: Vec<u8> = (0..bytes).map(|_| random.byte()).collect();
        let mut vary = |size: f32| half(size * (1.5 + random.unit()));
        match dtype {
            DType::F32 => of = (random.unit() * size).to_le_bytes().to_vec(),
            DType::F16 => of = half(random.unit() * size).to_vec(),
            DType::Bf16 => of = (((random.unit() * size).to_bits() >> 16) as u16).to_le_bytes().to_vec(),
            DType::Q4_0 => of[..2].copy_from_slice(&vary(size / 8.0)),
            DType::Q5_0 => of[..2].copy_from_slice(&vary(size / 16.0)),
            DType::Q8_0 => of[..2].copy_from_slice(&vary(size / 128.0)),
            DType::Q4_1 => {
                of[..2].copy_from_slice(&vary(size / 8.0));
                of[2..4].copy_from_slice(&vary(-size));
            }
            DType::Q5_1 => {
                of[..2].copy_from_slice(&vary(size / 16.0));
                of[2..4].copy_from_slice(&vary(-size));
            }
            DType::Q4K | DType::Q5K => {
                of[..2]
                    .copy_from_slice(&vary(size / 8.0 / 32.0 / if dtype == DType::Q5K { 2.0 } else { 1.0 }));
                of[2..4].copy_from_slice(&vary(size / 32.0));
            }
            DType::Q6K => of[208..210].copy_from_slice(&vary(size / 32.0 / 64.0)),
        }
        out.extend(of);
    }
    out
}

/// The parameters of a small model.
#[derive(Clone)]
pub(crate) struct Shape {
    pub family: &'static str,
    pub dtypes: Vec<DType>,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
    pub vocabulary: usize,
    pub tied: bool,
    pub seed: u64,
}

impl Shape {
    pub(crate) fn new(family: &'static str, dtypes: &[DType]) -> Self {
        Self {
            family,
            dtypes: dtypes.to_vec(),
            layers: 3,
            hidden: 256,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            feed_forward: 256,
            vocabulary: 72,
            tied: false,
            seed: 7,
        }
    }

    /// The file, for further additions.
    pub(crate) fn writer(&self) -> Writer {
        let mut random = Random::new(self.seed);
        let mut writer = Writer::default();
        let key = |rest: &str| format!("{}.{rest}", self.family);
        writer.string("general.architecture", self.family);
        for (name, value) in [
            ("block_count", self.layers),
            ("context_length", 512),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
        ] {
            writer.u32(&key(name), value as u32);
        }
        writer.f32(&key("attention.layer_norm_rms_epsilon"), 1e-5).f32(&key("rope.freq_base"), 10_000.0);
        let gemma = self.family == "gemma3";
        if gemma {
            writer.u32(&key("attention.sliding_window"), 20).u32(&key("attention.sliding_window_pattern"), 3);
        }
        let mut turn = 0;
        let mut matrix =
            |writer: &mut Writer, random: &mut Random, name: &str, rows: usize, columns: usize| {
                let dtype = self.dtypes[turn % self.dtypes.len()];
                turn += 1;
                let bytes = weights(random, dtype, rows * columns, 1.7 / (columns as f32).sqrt());
                writer.tensor(name, &[columns as u64, rows as u64], dtype as u32, &bytes);
            };
        let norm = |random: &mut Random, width: usize| -> Vec<f32> {
            (0..width).map(|_| 1.0 + random.unit() * 0.3).collect()
        };
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        matrix(&mut writer, &mut random, "token_embd.weight", self.vocabulary, self.hidden);
        if !self.tied {
            matrix(&mut writer, &mut random, "output.weight", self.vocabulary, self.hidden);
        }
        writer.f32s("output_norm.weight", &norm(&mut random, self.hidden));
        for layer in 0..self.layers {
            let name = |rest: &str| format!("blk.{layer}.{rest}");
            for (rest, rows, columns) in [
                ("attn_q", queries, self.hidden),
                ("attn_k", keys, self.hidden),
                ("attn_v", keys, self.hidden),
                ("attn_output", self.hidden, queries),
                ("ffn_gate", self.feed_forward, self.hidden),
                ("ffn_up", self.feed_forward, self.hidden),
                ("ffn_down", self.hidden, self.feed_forward),
            ] {
                matrix(&mut writer, &mut random, &name(&format!("{rest}.weight")), rows, columns);
            }
            let mut norms = vec![("attn_norm", self.hidden), ("ffn_norm", self.hidden)];
            if gemma {
                norms.extend([("post_attention_norm", self.hidden), ("post_ffw_norm", self.hidden)]);
            }
            if gemma || self.family == "qwen3" {
                norms.extend([("attn_q_norm", self.head_dim), ("attn_k_norm", self.head_dim)]);
            }
            for (rest, width) in norms {
                writer.f32s(&name(&format!("{rest}.weight")), &norm(&mut random, width));
            }
            if self.family == "qwen2" {
                for (rest, width) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
                    writer.f32s(&name(&format!("{rest}.bias")), &random.floats(width, 0.5));
                }
            }
        }
        writer
    }
}

/// Writes a file and opens it.
pub(crate) fn open(bytes: &[u8]) -> baton_engine::gguf::GgufFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    baton_engine::gguf::GgufFile::open(file.path()).unwrap()
}
