//! The simplest computation of a model: float weights, loops, double precision, no cache. It shares only the
//! readers of the file's header and shape with the engine.

use baton_engine::{
    config::{Activation, Config},
    gguf::{DType, GgufFile},
    half::{bf16_to_f32, f16_to_f32},
    kernels::rows::Pairing,
};

/// A tensor's numbers, decoded as in ggml's own code.
pub(crate) fn dequantise(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let half = |bytes: &[u8], at: usize| f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (_, size) = dtype.block();
    let mut out = Vec::new();
    for b in bytes.chunks_exact(size) {
        match dtype {
            DType::F32 => out.push(f32::from_le_bytes(b.try_into().unwrap())),
            DType::F16 => out.push(half(b, 0)),
            DType::Bf16 => out.push(bf16_to_f32(u16::from_le_bytes([b[0], b[1]]))),
            DType::Q4_0 => {
                let d = half(b, 0);
                out.extend(b[2..18].iter().map(|q| d * (f32::from(q & 15) - 8.0)));
                out.extend(b[2..18].iter().map(|q| d * (f32::from(q >> 4) - 8.0)));
            }
            DType::Q4_1 => {
                let (d, m) = (half(b, 0), half(b, 2));
                out.extend(b[4..20].iter().map(|q| d * f32::from(q & 15) + m));
                out.extend(b[4..20].iter().map(|q| d * f32::from(q >> 4) + m));
            }
            DType::Q5_0 | DType::Q5_1 => {
                let (d, m) = (half(b, 0), if dtype == DType::Q5_1 { half(b, 2) } else { -16.0 * half(b, 0) });
                let at = if dtype == DType::Q5_1 { 4 } else { 2 };
                let high = u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
                let q = &b[at + 4..];
                for i in 0..32 {
                    let low = if i < 16 { q[i] & 15 } else { q[i - 16] >> 4 };
                    out.push(d * (u32::from(low) + (high >> i & 1) * 16) as f32 + m);
                }
            }
            DType::Q8_0 => {
                let d = half(b, 0);
                out.extend(b[2..].iter().map(|q| d * f32::from(*q as i8)));
            }
            DType::Q4K | DType::Q5K => {
                let (d, dmin, s) = (half(b, 0), half(b, 2), &b[4..16]);
                let at = if dtype == DType::Q5K { 48 } else { 16 };
                for j in 0..8 {
                    let (scale, min) = if j < 4 {
                        (s[j] & 63, s[j + 4] & 63)
                    } else {
                        ((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4))
                    };
                    for l in 0..32 {
                        let byte = b[at + j / 2 * 32 + l];
                        let mut q = if j % 2 == 0 { byte & 15 } else { byte >> 4 };
                        if dtype == DType::Q5K {
                            q += (b[16 + l] >> j & 1) * 16;
                        }
                        out.push(d * f32::from(scale) * f32::from(q) - dmin * f32::from(min));
                    }
                }
            }
            DType::Q6K => {
                let d = half(b, 208);
                for i in 0..256 {
                    let (n, r, l) = (i / 128, i % 128 / 32, i % 32);
                    let low = b[64 * n + (r % 2) * 32 + l] >> (4 * (r / 2)) & 15;
                    let high = b[128 + 32 * n + l] >> (2 * r) & 3;
                    let q = i32::from(low | high << 4) - 32;
                    out.push(d * f32::from(b[192 + i / 16] as i8) * q as f32);
                }
            }
        }
    }
    out
}

pub(crate) struct Reference<'a> {
    pub file: &'a GgufFile,
    pub config: Config,
    /// Whether to round activations to bytes where weights are quantised, and keys and values to half
    /// precision.
    pub bytes: bool,
}

/// Rounds to bytes, in blocks of 32.
fn round_to_bytes(row: &mut [f32]) {
    for block in row.chunks_mut(32) {
        let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        if largest > 0.0 {
            block
                .iter_mut()
                .for_each(|x| *x = (*x * (127.0 / largest)).round_ties_even() * (largest / 127.0));
        }
    }
}

impl<'a> Reference<'a> {
    pub(crate) fn new(file: &'a GgufFile) -> Self {
        Self { file, config: Config::read(file.header()).unwrap(), bytes: false }
    }

    fn tensor(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.file.header().tensor(name)?;
        Some(dequantise(tensor.dtype, self.file.data(tensor)))
    }

    fn product(&self, name: &str, rows: &[Vec<f32>], bias: Option<&str>) -> Vec<Vec<f32>> {
        let (weights, bias) = (self.tensor(name).unwrap(), bias.and_then(|bias| self.tensor(bias)));
        let columns = rows[0].len();
        let quantised = self.file.header().tensor(name).unwrap().dtype.block().0 > 1;
        let of = |row: &Vec<f32>| {
            let mut row = row.clone();
            if self.bytes && quantised {
                round_to_bytes(&mut row);
            }
            let dot = |weights: &[f32]| {
                let mut sums = [0.0_f64; 8];
                for (w, x) in weights.chunks(8).zip(row.chunks(8)) {
                    for (sum, (w, x)) in sums.iter_mut().zip(w.iter().zip(x)) {
                        *sum += f64::from(w * x);
                    }
                }
                sums.iter().sum::<f64>() as f32
            };
            let mut out: Vec<f32> = weights.chunks(columns).map(dot).collect();
            for (out, bias) in out.iter_mut().zip(bias.iter().flatten()) {
                *out += bias;
            }
            out
        };
        rows.iter().map(of).collect()
    }

    fn norm(&self, row: &[f32], weight: &[f32]) -> Vec<f32> {
        let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
        let scale = 1.0 / (squares / row.len() as f64 + f64::from(self.config.epsilon)).sqrt();
        row.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale) as f32 * w).collect()
    }

    fn norm_all(&self, rows: &[Vec<f32>], name: &str) -> Option<Vec<Vec<f32>>> {
        let weight = self.tensor(name)?;
        Some(rows.iter().map(|row| self.norm(row, &weight)).collect())
    }

    fn rotate(&self, head: &mut [f32], position: usize, layer: usize, factors: Option<&[f32]>) {
        let c = &self.config;
        let rope = if c.is_local(layer) { &c.local_rope } else { &c.rope };
        for (pair, frequency) in rope.frequencies.iter().enumerate() {
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            let (sine, cosine) = (position as f64 * frequency / factor).sin_cos();
            let (sine, cosine) = (sine * rope.magnitude, cosine * rope.magnitude);
            let (a, b) = match rope.pairing {
                Pairing::Neighbours => (2 * pair, 2 * pair + 1),
                Pairing::Halves => (pair, pair + rope.frequencies.len()),
            };
            let (x, y) = (f64::from(head[a]), f64::from(head[b]));
            head[a] = (x * cosine - y * sine) as f32;
            head[b] = (x * sine + y * cosine) as f32;
        }
    }

    fn attention(&self, layer: usize, normed: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let c = &self.config;
        let name = |rest: &str| format!("blk.{layer}.{rest}");
        let project = |which: &str| {
            let bias = name(&format!("attn_{which}.bias"));
            self.product(&name(&format!("attn_{which}.weight")), normed, Some(&bias))
        };
        let (mut q, mut k, mut v) = (project("q"), project("k"), project("v"));
        let factors = self.tensor("rope_freqs.weight");
        for (rows, norm) in [(&mut q, "attn_q_norm.weight"), (&mut k, "attn_k_norm.weight")] {
            let weight = self.tensor(&name(norm));
            for (position, row) in rows.iter_mut().enumerate() {
                for head in row.chunks_exact_mut(c.head_dim) {
                    if let Some(weight) = &weight {
                        let normed = self.norm(head, weight);
                        head.copy_from_slice(&normed);
                    }
                    self.rotate(head, position, layer, factors.as_deref());
                }
            }
        }
        if self.bytes {
            for x in k.iter_mut().chain(&mut v).flatten() {
                *x = f16_to_f32(baton_engine::half::f32_to_f16(*x));
            }
        }
        let mut out = vec![vec![0.0; c.heads * c.head_dim]; normed.len()];
        for position in 0..normed.len() {
            let from = (position + 1).saturating_sub(c.window(layer));
            for head in 0..c.heads {
                let shared = head / (c.heads / c.kv_heads) * c.head_dim;
                let query = &q[position][head * c.head_dim..][..c.head_dim];
                let scores: Vec<f64> = (from..=position)
                    .map(|at| {
                        let key = &k[at][shared..][..c.head_dim];
                        let dot: f64 =
                            query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        dot * f64::from(c.query_scale)
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for dim in 0..c.head_dim {
                    let value: f64 = weights
                        .iter()
                        .enumerate()
                        .map(|(at, w)| w * f64::from(v[from + at][shared + dim]))
                        .sum();
                    out[position][head * c.head_dim + dim] = (value / sum) as f32;
                }
            }
        }
        self.product(&name("attn_output.weight"), &out, None)
    }

    fn feed_forward(&self, layer: usize, normed: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let name = |rest: &str| format!("blk.{layer}.{rest}");
        let mut gate = self.product(&name("ffn_gate.weight"), normed, None);
        let up = self.product(&name("ffn_up.weight"), normed, None);
        for (gate, up) in gate.iter_mut().zip(&up) {
            for (gate, up) in gate.iter_mut().zip(up) {
                let x = f64::from(*gate);
                let active = match self.config.activation {
                    Activation::Silu => x / (1.0 + (-x).exp()),
                    Activation::Gelu => {
                        0.5 * x
                            * (1.0
                                + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
                    }
                };
                *gate = active as f32 * up;
            }
        }
        self.product(&name("ffn_down.weight"), &gate, None)
    }

    /// The logits after each token.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let c = &self.config;
        let embeddings = self.tensor("token_embd.weight").unwrap();
        let embed = |token: &u32| -> Vec<f32> {
            embeddings[*token as usize * c.hidden..][..c.hidden]
                .iter()
                .map(|x| x * c.embedding_scale)
                .collect()
        };
        let mut stream: Vec<Vec<f32>> = tokens.iter().map(embed).collect();
        drop(embeddings);
        let add = |stream: &mut Vec<Vec<f32>>, more: Vec<Vec<f32>>, norm: String| {
            let more = self.norm_all(&more, &norm).unwrap_or(more);
            for (row, more) in stream.iter_mut().zip(more) {
                for (x, more) in row.iter_mut().zip(more) {
                    *x += more;
                }
            }
        };
        for layer in 0..c.layers {
            let name = |rest: &str| format!("blk.{layer}.{rest}");
            let normed = self.norm_all(&stream, &name("attn_norm.weight")).unwrap();
            add(&mut stream, self.attention(layer, &normed), name("post_attention_norm.weight"));
            let normed = self.norm_all(&stream, &name("ffn_norm.weight")).unwrap();
            add(&mut stream, self.feed_forward(layer, &normed), name("post_ffw_norm.weight"));
        }
        let normed = self.norm_all(&stream, "output_norm.weight").unwrap();
        let head = if self.file.header().tensor("output.weight").is_some() { "output" } else { "token_embd" };
        self.product(&format!("{head}.weight"), &normed, None)
    }
}
