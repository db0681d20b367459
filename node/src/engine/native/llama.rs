//! The llama architecture over f32 tensors: weights dequantised once at load, products by candle's gemm,
//! a key-value cache allocated once for each job.
//!
//! Pure computation: knows ids and logits, not text, jobs or threads.

use candle_core::{D, Device, Result as CandleResult, Tensor};
use candle_nn::{
    ops::{rms_norm, silu, softmax_last_dim},
    rotary_emb::rope_i,
};
use zeroize::Zeroizing;

use super::{
    LoadError,
    weights::{ModelFile, format_error},
};
use crate::engine::EngineError;

/// Bounds of a model's dimensions; beyond them the metadata is nonsense or the f32 weights would not fit.
const MAX_LAYERS: usize = 256;
const MAX_WIDTH: usize = 1 << 16;
const MAX_HEADS: usize = 256;
const MAX_CONTEXT: usize = 1 << 20;

/// All matrices are input-major, see [`input_major`].
struct Layer {
    attention_norm: Tensor,
    /// Query, key and value columns in one matrix: one product instead of three.
    qkv: Tensor,
    output: Tensor,
    feed_forward_norm: Tensor,
    /// Gate columns, then up columns.
    gate_up: Tensor,
    down: Tensor,
}

struct Shape {
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    feed_forward: usize,
    context: usize,
}

/// A model of the llama architecture.
pub(super) struct Llama {
    shape: Shape,
    epsilon: f32,
    /// `[width, vocabulary]`, shared with `head` where the model ties them.
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    /// Turns a pair of a head's dimensions per position: 1 / base^(2i / head size).
    frequencies: Tensor,
}

/// Keys and values of one job, in the order of the layers: `[kv heads, capacity, head size]` each.
pub(super) struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
    capacity: usize,
    length: usize,
}

impl KvCache {
    /// Positions that are filled.
    pub(super) fn length(&self) -> usize {
        self.length
    }
}

impl Llama {
    /// Reads the weights, checking every shape against the metadata and the tokenizer's vocabulary.
    pub(super) fn load(file: &ModelFile, vocabulary: usize) -> Result<Self, LoadError> {
        let unsupported = |what: String| Err(LoadError::Unsupported { what });
        match file.architecture()? {
            "llama" => {}
            other => return unsupported(format!("the {other} architecture")),
        }
        if file.has_tensor("rope_freqs.weight")
            || file.text("llama.rope.scaling.type").is_ok_and(|t| t != "none")
        {
            return unsupported("scaled rotary positions".into());
        }
        if file.has_tensor("blk.0.ffn_gate_inp.weight") || file.has_tensor("blk.0.attn_q.bias") {
            return unsupported("mixtures of experts or attention biases".into());
        }
        let layer_count = file.size("llama.block_count", MAX_LAYERS)?;
        let width = file.size("llama.embedding_length", MAX_WIDTH)?;
        let heads = file.size("llama.attention.head_count", MAX_HEADS)?;
        let kv_heads = file.size("llama.attention.head_count_kv", heads).unwrap_or(heads);
        let feed_forward = file.size("llama.feed_forward_length", MAX_WIDTH)?;
        let context = file.size("llama.context_length", MAX_CONTEXT)?;
        let head_size = width / heads;
        let rotated = file.size("llama.rope.dimension_count", MAX_WIDTH).unwrap_or(head_size);
        if head_size * heads != width || heads % kv_heads != 0 || rotated != head_size || head_size % 2 != 0 {
            return unsupported("this division into heads".into());
        }
        let shape = Shape { heads, kv_heads, head_size, feed_forward, context };
        let embedding = input_major(&[file.tensor("token_embd.weight", &[vocabulary, width])?])?;
        let head = if file.has_tensor("output.weight") {
            input_major(&[file.tensor("output.weight", &[vocabulary, width])?])?
        } else {
            embedding.clone()
        };
        let layers = (0..layer_count)
            .map(|index| Layer::load(file, index, width, &shape))
            .collect::<Result<Vec<_>, _>>()?;
        let base = file.float("llama.rope.freq_base").unwrap_or(10_000.0);
        let frequency = |pair: usize| 1.0 / base.powf(2.0 * pair as f32 / head_size as f32);
        let frequencies: Vec<f32> = (0..head_size / 2).map(frequency).collect();
        Ok(Self {
            epsilon: file
                .float("llama.attention.layer_norm_rms_epsilon")
                .ok_or(LoadError::Metadata { key: "llama.attention.layer_norm_rms_epsilon".into() })?,
            embedding,
            layers,
            norm: file.tensor("output_norm.weight", &[width])?,
            head,
            frequencies: Tensor::from_vec(frequencies, (1, head_size / 2), &Device::Cpu)
                .map_err(|error| format_error(&error))?,
            shape,
        })
    }

    /// The context that the model was made for.
    pub(super) fn context_tokens(&self) -> u32 {
        u32::try_from(self.shape.context).unwrap_or(u32::MAX)
    }

    /// An empty cache for exactly `capacity` positions.
    pub(super) fn new_cache(&self, capacity: usize) -> Result<KvCache, EngineError> {
        let shape = (self.shape.kv_heads, capacity, self.shape.head_size);
        let empty = || Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu);
        let layers = self.layers.iter().map(|_| Ok((empty()?, empty()?))).collect::<CandleResult<Vec<_>>>();
        Ok(KvCache { layers: layers.map_err(|error| compute_error(&error))?, capacity, length: 0 })
    }

    /// Evaluates `ids` after what is in the cache; with `want_logits`, the logits after the last one.
    pub(super) fn forward(
        &self,
        ids: &[u32],
        cache: &mut KvCache,
        want_logits: bool,
    ) -> Result<Option<Zeroizing<Vec<f32>>>, EngineError> {
        if cache.length + ids.len() > cache.capacity || ids.is_empty() {
            return Err(EngineError::Compute { reason: "the key-value cache is too small".into() });
        }
        let logits = self.evaluate(ids, cache, want_logits).map_err(|error| compute_error(&error))?;
        cache.length += ids.len();
        Ok(logits)
    }

    fn evaluate(
        &self,
        ids: &[u32],
        cache: &KvCache,
        want_logits: bool,
    ) -> CandleResult<Option<Zeroizing<Vec<f32>>>> {
        let begin = cache.length;
        let rotation = self.rotation(begin, ids.len())?;
        let mask = if ids.len() > 1 { Some(causal_mask(begin, ids.len())?) } else { None };
        let ids_tensor = Tensor::new(ids, &Device::Cpu)?;
        let mut x = self.embedding.index_select(&ids_tensor, 1)?.t()?.contiguous()?;
        for (layer, kv) in self.layers.iter().zip(&cache.layers) {
            let normed = rms_norm(&x, &layer.attention_norm, self.epsilon)?;
            x = (x + self.attention(layer, kv, &normed, begin, &rotation, mask.as_ref())?)?;
            let normed = rms_norm(&x, &layer.feed_forward_norm, self.epsilon)?;
            x = (x + self.feed_forward(layer, &normed)?)?;
        }
        if !want_logits {
            return Ok(None);
        }
        let last = x.narrow(0, ids.len() - 1, 1)?.contiguous()?;
        let last = rms_norm(&last, &self.norm, self.epsilon)?;
        let logits = product(&last, &self.head)?.squeeze(0)?;
        Ok(Some(Zeroizing::new(logits.to_vec1::<f32>()?)))
    }

    fn attention(
        &self,
        layer: &Layer,
        (keys, values): &(Tensor, Tensor),
        normed: &Tensor,
        begin: usize,
        (cos, sin): &(Tensor, Tensor),
        mask: Option<&Tensor>,
    ) -> CandleResult<Tensor> {
        let Shape { heads, kv_heads, head_size, .. } = self.shape;
        let count = normed.dim(0)?;
        let (q_width, kv_width) = (heads * head_size, kv_heads * head_size);
        let projected = product(normed, &layer.qkv)?;
        let split = |at: usize, heads: usize| {
            let part = projected.narrow(1, at, heads * head_size)?;
            part.reshape((count, heads, head_size))?.transpose(0, 1)?.contiguous()
        };
        let rotate = |x: Tensor| rope_i(&x.unsqueeze(0)?, cos, sin)?.squeeze(0);
        let q = rotate(split(0, heads)?)?;
        let k = rotate(split(q_width, kv_heads)?)?;
        let v = split(q_width + kv_width, kv_heads)?;
        keys.slice_set(&k, 1, begin)?;
        values.slice_set(&v, 1, begin)?;
        let keys = keys.narrow(1, 0, begin + count)?;
        let values = values.narrow(1, 0, begin + count)?;

        // The heads that share a key-value head become rows of one product.
        let group = heads / kv_heads;
        let q = (q * (1.0 / (head_size as f64).sqrt()))?.reshape((kv_heads, group * count, head_size))?;
        let mut scores = q.matmul(&keys.t()?)?;
        if let Some(mask) = mask {
            let by_head = (kv_heads, group, count, begin + count);
            scores = scores.reshape(by_head)?.broadcast_add(mask)?.reshape(scores.shape())?;
        }
        let mixed = softmax_last_dim(&scores)?.matmul(&values)?;
        let mixed = mixed.reshape((heads, count, head_size))?.transpose(0, 1)?.reshape((count, q_width))?;
        product(&mixed, &layer.output)
    }

    fn feed_forward(&self, layer: &Layer, normed: &Tensor) -> CandleResult<Tensor> {
        let gate_up = product(normed, &layer.gate_up)?;
        let width = self.shape.feed_forward;
        let gate = silu(&gate_up.narrow(D::Minus1, 0, width)?)?;
        let up = gate_up.narrow(D::Minus1, width, width)?;
        product(&(gate * up)?, &layer.down)
    }

    /// Cosines and sines of `count` positions from `begin`, `[count, head size / 2]` each.
    fn rotation(&self, begin: usize, count: usize) -> CandleResult<(Tensor, Tensor)> {
        let positions: Vec<f32> = (begin..begin + count).map(|position| position as f32).collect();
        let angles = Tensor::from_vec(positions, (count, 1), &Device::Cpu)?.matmul(&self.frequencies)?;
        Ok((angles.cos()?, angles.sin()?))
    }
}

impl Layer {
    fn load(file: &ModelFile, index: usize, width: usize, shape: &Shape) -> Result<Self, LoadError> {
        let tensor = |name: &str, dims: &[usize]| file.tensor(&format!("blk.{index}.{name}.weight"), dims);
        let kv_width = shape.kv_heads * shape.head_size;
        Ok(Self {
            attention_norm: tensor("attn_norm", &[width])?,
            qkv: input_major(&[
                tensor("attn_q", &[width, width])?,
                tensor("attn_k", &[kv_width, width])?,
                tensor("attn_v", &[kv_width, width])?,
            ])?,
            output: input_major(&[tensor("attn_output", &[width, width])?])?,
            feed_forward_norm: tensor("ffn_norm", &[width])?,
            gate_up: input_major(&[
                tensor("ffn_gate", &[shape.feed_forward, width])?,
                tensor("ffn_up", &[shape.feed_forward, width])?,
            ])?,
            down: input_major(&[tensor("ffn_down", &[width, shape.feed_forward])?])?,
        })
    }
}

/// Matrices of `[outputs, inputs]` as one of `[inputs, outputs]`: gemm then takes the weights as they lie
/// instead of repacking them at every product.
fn input_major(parts: &[Tensor]) -> Result<Tensor, LoadError> {
    let stacked = Tensor::cat(parts, 0).and_then(|rows| rows.t()?.contiguous());
    stacked.map_err(|error| format_error(&error))
}

/// `x` times a matrix. A single row is doubled: for one row gemm takes a path of its own that uses one
/// thread and another order of additions.
fn product(x: &Tensor, matrix: &Tensor) -> CandleResult<Tensor> {
    if x.dim(0)? == 1 {
        return Tensor::cat(&[x, x], 0)?.matmul(matrix)?.narrow(0, 0, 1);
    }
    x.matmul(matrix)
}

/// `[count, begin + count]`: zero where a position may look, minus infinity at later ones.
fn causal_mask(begin: usize, count: usize) -> CandleResult<Tensor> {
    let total = begin + count;
    let mut mask = vec![0f32; count * total];
    for (row, values) in mask.chunks_exact_mut(total).enumerate() {
        values[begin + row + 1..].fill(f32::NEG_INFINITY);
    }
    Tensor::from_vec(mask, (count, total), &Device::Cpu)
}

/// Candle's message (shapes and types) without a backtrace.
fn compute_error(error: &candle_core::Error) -> EngineError {
    EngineError::Compute { reason: error.to_string().lines().next().unwrap_or_default().to_owned() }
}
