//! The forward pass of BERT (Devlin et al., 2018), reduced to the needs of sentence embedders: no heads, no
//! dropout.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{
    Embedding, LayerNorm, Linear, Module as _, VarBuilder, embedding, layer_norm, linear, ops::softmax,
};

/// Shape of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) pieces: usize,
    pub(crate) positions: usize,
    pub(crate) types: usize,
    pub(crate) width: usize,
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    pub(crate) epsilon: f64,
}

/// The model.
pub(crate) struct Bert {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    out_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
    heads: usize,
}

impl Bert {
    pub(crate) fn load(shape: &Shape, weights: &VarBuilder<'_>) -> Result<Self> {
        let at = weights.pp("embeddings");
        let layers = weights.pp("encoder.layer");
        Ok(Self {
            words: embedding(shape.pieces, shape.width, at.pp("word_embeddings"))?,
            positions: embedding(shape.positions, shape.width, at.pp("position_embeddings"))?,
            types: embedding(shape.types, shape.width, at.pp("token_type_embeddings"))?,
            norm: layer_norm(shape.width, shape.epsilon, at.pp("LayerNorm"))?,
            layers: (0..shape.layers)
                .map(|number| Layer::load(shape, &layers.pp(number)))
                .collect::<Result<_>>()?,
        })
    }

    /// Unit vectors of texts: the mean over their pieces, scaled to length one. `ids` and `mask` are (texts,
    /// pieces); the mask is 1 for a piece and 0 for padding.
    pub(crate) fn embed(&self, ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_, length) = ids.dims2()?;
        let positions = Tensor::arange(0, u32::try_from(length).unwrap_or(u32::MAX), &Device::Cpu)?;
        let mut hidden = self
            .words
            .forward(ids)?
            .broadcast_add(&self.positions.forward(&positions)?)?
            .broadcast_add(&self.types.forward(&Tensor::zeros(1, DType::U32, &Device::Cpu)?)?)?;
        hidden = self.norm.forward(&hidden)?;
        // Far below any score, so that padding gets no attention.
        let bias = mask.affine(10_000.0, -10_000.0)?.unsqueeze(1)?.unsqueeze(1)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden, &bias)?;
        }
        let weights = mask.unsqueeze(2)?;
        let mean = hidden.broadcast_mul(&weights)?.sum(1)?.broadcast_div(&weights.sum(1)?)?;
        mean.broadcast_div(&mean.sqr()?.sum_keepdim(1)?.sqrt()?)
    }
}

impl Layer {
    fn load(shape: &Shape, weights: &VarBuilder<'_>) -> Result<Self> {
        let own = weights.pp("attention.self");
        let out = weights.pp("attention.output");
        let width = shape.width;
        Ok(Self {
            query: linear(width, width, own.pp("query"))?,
            key: linear(width, width, own.pp("key"))?,
            value: linear(width, width, own.pp("value"))?,
            out: linear(width, width, out.pp("dense"))?,
            out_norm: layer_norm(width, shape.epsilon, out.pp("LayerNorm"))?,
            up: linear(width, shape.inner, weights.pp("intermediate.dense"))?,
            down: linear(shape.inner, width, weights.pp("output.dense"))?,
            norm: layer_norm(width, shape.epsilon, weights.pp("output.LayerNorm"))?,
            heads: shape.heads,
        })
    }

    fn forward(&self, hidden: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let (texts, length, width) = hidden.dims3()?;
        let head_width = width / self.heads;
        let split = |states: Tensor| -> Result<Tensor> {
            states.reshape((texts, length, self.heads, head_width))?.transpose(1, 2)?.contiguous()
        };
        let query = split(self.query.forward(hidden)?)?;
        let key = split(self.key.forward(hidden)?)?;
        let value = split(self.value.forward(hidden)?)?;
        #[expect(clippy::cast_precision_loss, reason = "the width of a head is small")]
        let scale = 1.0 / (head_width as f64).sqrt();
        let scores = (query.matmul(&key.t()?)? * scale)?.broadcast_add(bias)?;
        let mixed = softmax(&scores, D::Minus1)?.matmul(&value)?;
        let mixed = mixed.transpose(1, 2)?.contiguous()?.reshape((texts, length, width))?;
        let hidden = self.out_norm.forward(&(self.out.forward(&mixed)? + hidden)?)?;
        let grown = self.up.forward(&hidden)?.gelu_erf()?;
        self.norm.forward(&(self.down.forward(&grown)? + hidden)?)
    }
}
