//! A model's shape from a file's metadata: the Llama family and its variants.

mod rope;

pub use rope::Rope;

use crate::{
    gguf::{Gguf, GgufError},
    kernels::rows::{BLOCK, Pairing},
};

/// The families that this engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
}

/// The function between the two halves of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Activation {
    Silu,
    Gelu,
}

/// Sliding-window layers, which see only the positions just before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sliding {
    /// Positions that such a layer sees, its own included.
    pub window: usize,
    /// The last of each `period` layers sees all positions.
    pub period: usize,
}

/// A model's shape.
#[derive(Debug, Clone)]
pub struct Config {
    /// The family.
    pub family: Family,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream, in numbers per position.
    pub hidden: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Width of the feed-forward layers.
    pub feed_forward: usize,
    /// Positions that the model was trained for.
    pub context: usize,
    /// The norms' epsilon.
    pub epsilon: f32,
    /// Factor for queries.
    pub query_scale: f32,
    /// Factor for embeddings.
    pub embedding_scale: f32,
    /// The function between the halves of a feed-forward layer.
    pub activation: Activation,
    /// The sliding-window layers, if there are any.
    pub sliding: Option<Sliding>,
    /// Rotation in layers that see all positions.
    pub rope: Rope,
    /// Rotation in the sliding-window layers.
    pub local_rope: Rope,
}

/// Why a model is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file's header is not sound, or an entry is missing.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A family that this engine does not compute.
    #[error("models of the family {0:?} are not computed by this engine")]
    Family(String),
    /// A number out of bounds, or one that does not fit the other numbers or the kernels.
    #[error("{0}")]
    Shape(String),
    /// A feature that this engine does not compute.
    #[error("{0} is not computed by this engine")]
    Unsupported(String),
}

/// Layers: the deepest open models have 126.
pub const MAX_LAYERS: usize = 512;
/// Numbers of a position: the widest open models have 16,384.
pub const MAX_HIDDEN: usize = 65_536;
/// Heads of queries: at most 128 in open models.
pub const MAX_HEADS: usize = 1_024;
/// Dimensions of a head: at most 256 in open models.
pub const MAX_HEAD_DIM: usize = 1_024;
/// Width of a feed-forward layer: at most 53,248 in open models.
pub const MAX_FEED_FORWARD: usize = 1 << 20;
/// Positions: angles are exact enough up to 2^27.
pub const MAX_CONTEXT: usize = 1 << 24;

/// Reads the metadata of one family, whose keys begin with its name.
pub(crate) struct Reader<'a> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) prefix: &'a str,
}

impl Reader<'_> {
    pub(crate) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A number from 1 to `most`.
    pub(crate) fn bounded(
        &self,
        key: &str,
        default: Option<usize>,
        most: usize,
    ) -> Result<usize, ConfigError> {
        let key = self.key(key);
        let found = self.gguf.optional_u64(&key)?.or(default.map(|default| default as u64));
        let Some(found) = found else { return Err(GgufError::Missing(key).into()) };
        match usize::try_from(found) {
            Ok(value) if (1..=most).contains(&value) => Ok(value),
            _ => Err(ConfigError::Shape(format!("{key} of {found} is not between 1 and {most}"))),
        }
    }

    fn positive(&self, key: &str, default: Option<f32>) -> Result<f32, ConfigError> {
        let key = self.key(key);
        match (self.gguf.optional_f32(&key)?, default) {
            (Some(value), _) | (None, Some(value)) if value > 0.0 => Ok(value),
            (None, None) => Err(GgufError::Missing(key).into()),
            _ => Err(ConfigError::Shape(format!("{key} is not above zero"))),
        }
    }
}

impl Config {
    /// Reads a model's shape.
    ///
    /// # Errors
    /// [`ConfigError`] if an entry is missing, out of bounds or not computed here.
    pub fn read(gguf: &Gguf) -> Result<Self, ConfigError> {
        const FAMILY: &str = "general.architecture";
        let name = gguf.optional_str(FAMILY)?.ok_or_else(|| GgufError::Missing(FAMILY.to_owned()))?;
        let family = match name {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            "gemma3" => Family::Gemma3,
            other => return Err(ConfigError::Family(other.chars().take(64).collect())),
        };
        let read = Reader { gguf, prefix: name };
        if gguf.optional_u64(&read.key("expert_count"))?.unwrap_or(0) > 0 {
            return Err(ConfigError::Unsupported("a mixture of experts".to_owned()));
        }
        if gguf.get(&read.key("final_logit_softcapping")).is_some() {
            return Err(ConfigError::Unsupported("capping of logits".to_owned()));
        }
        let layers = read.bounded("block_count", None, MAX_LAYERS)?;
        let hidden = read.bounded("embedding_length", None, MAX_HIDDEN)?;
        let heads = read.bounded("attention.head_count", None, MAX_HEADS)?;
        let kv_heads = read.bounded("attention.head_count_kv", Some(heads), heads)?;
        let head_dim = read.bounded("attention.key_length", Some(hidden / heads), MAX_HEAD_DIM)?;
        let value_dim = read.bounded("attention.value_length", Some(head_dim), MAX_HEAD_DIM)?;
        let feed_forward = read.bounded("feed_forward_length", None, MAX_FEED_FORWARD)?;
        let context = read.bounded("context_length", None, MAX_CONTEXT)?;
        let shape = |holds: bool, what: String| if holds { Ok(()) } else { Err(ConfigError::Shape(what)) };
        shape(heads % kv_heads == 0, format!("{heads} heads cannot share {kv_heads} heads of keys"))?;
        shape(value_dim == head_dim, format!("values of {value_dim} dimensions beside keys of {head_dim}"))?;
        shape(head_dim % 16 == 0, format!("heads of {head_dim} dimensions, which is no multiple of 16"))?;
        for (what, width) in
            [("hidden", hidden), ("feed-forward", feed_forward), ("attention", heads * head_dim)]
        {
            shape(width % BLOCK == 0, format!("a {what} width of {width}, which is no multiple of {BLOCK}"))?;
        }
        let sliding = match family {
            Family::Gemma3 => Some(Sliding {
                window: read.bounded("attention.sliding_window", None, MAX_CONTEXT)?,
                period: read.bounded("attention.sliding_window_pattern", Some(6), MAX_LAYERS)?,
            }),
            _ => None,
        };
        let gemma = family == Family::Gemma3;
        let pairing = if family == Family::Llama { Pairing::Neighbours } else { Pairing::Halves };
        let rope = Rope::read(&read, head_dim, context, pairing)?;
        let local_rope = if gemma { Rope::plain(head_dim, 10_000.0, pairing) } else { rope.clone() };
        // The largest Gemma 3 scales by the hidden width over the heads, not by the heads' dimensions.
        let divided = if gemma && layers == 62 { hidden / heads } else { head_dim };
        Ok(Self {
            family,
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            feed_forward,
            context,
            epsilon: read.positive("attention.layer_norm_rms_epsilon", None)?,
            query_scale: 1.0 / (divided as f32).sqrt(),
            embedding_scale: if gemma { (hidden as f32).sqrt() } else { 1.0 },
            activation: if gemma { Activation::Gelu } else { Activation::Silu },
            sliding,
            rope,
            local_rope,
        })
    }

    /// Whether a layer is a sliding-window layer.
    #[must_use]
    pub fn is_local(&self, layer: usize) -> bool {
        self.sliding.is_some_and(|sliding| !(layer + 1).is_multiple_of(sliding.period))
    }

    /// How many positions a layer sees, its own included.
    #[must_use]
    pub fn window(&self, layer: usize) -> usize {
        match self.sliding {
            Some(sliding) if self.is_local(layer) => sliding.window,
            _ => usize::MAX,
        }
    }

    /// Width of all queries of a position.
    #[must_use]
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all keys, and of all values, of a position.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
