//! The architectures that candle-transformers computes and the engine does not, and the checks of their
//! files.
//!
//! Candle ignores unknown tensors and metadata, so these checks ensure that it computes the model in the
//! file.

use crate::{
    config::{MAX_FEED_FORWARD, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, Reader},
    gguf::{DType, Gguf, Tensor, Value},
};

use crate::candle::OpenError;

/// Maximum number of tokens of a sequence: the size of candle's tables for Llama and Phi 2.
pub const MAX_CONTEXT: usize = 4_096;
/// Maximum number of experts of a layer; open models have up to 512.
pub const MAX_EXPERTS: usize = 1_024;
/// Maximum number of positions that a short convolution looks back; LFM2 has 3.
pub const MAX_CONVOLUTION: usize = 16;

/// An architecture, named by its module in candle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum CandleFamily {
    /// Llama, with or without mixtures of experts (Mixtral).
    Llama,
    Phi2,
    Phi3,
    Glm4,
    Lfm2,
}

impl CandleFamily {
    /// The architecture of a file, if it is one of these.
    #[must_use]
    pub fn of(header: &Gguf) -> Option<Self> {
        let Some(Value::String(name)) = header.get("general.architecture") else { return None };
        let all = [Self::Llama, Self::Phi2, Self::Phi3, Self::Glm4, Self::Lfm2];
        all.into_iter().find(|family| family.name() == name)
    }

    /// The name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Phi2 => "phi2",
            Self::Phi3 => "phi3",
            Self::Glm4 => "glm4",
            Self::Lfm2 => "lfm2",
        }
    }

    /// Tensors of a layer that candle reads, without the layer's number; `*` is an expert's number.
    const fn of_layer(self) -> &'static str {
        match self {
            Self::Llama => {
                "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_output.weight \
                 ffn_norm.weight ffn_gate.weight ffn_up.weight ffn_down.weight ffn_gate_inp.weight \
                 ffn_gate.*.weight ffn_up.*.weight ffn_down.*.weight ffn_gate_exps.weight ffn_up_exps.weight \
                 ffn_down_exps.weight"
            }
            Self::Phi2 => {
                "attn_norm.weight attn_norm.bias attn_qkv.weight attn_qkv.bias attn_output.weight \
                 attn_output.bias ffn_up.weight ffn_up.bias ffn_down.weight ffn_down.bias"
            }
            Self::Phi3 => {
                "attn_norm.weight attn_qkv.weight attn_output.weight ffn_norm.weight ffn_up.weight \
                 ffn_down.weight"
            }
            Self::Glm4 => {
                "attn_norm.weight attn_q.weight attn_q.bias attn_k.weight attn_k.bias attn_v.weight \
                 attn_v.bias attn_output.weight post_attention_norm.weight ffn_norm.weight ffn_up.weight \
                 ffn_down.weight post_ffw_norm.weight"
            }
            Self::Lfm2 => {
                "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_q_norm.weight \
                 attn_k_norm.weight attn_output.weight shortconv.conv.weight shortconv.in_proj.weight \
                 shortconv.out_proj.weight ffn_norm.weight ffn_gate.weight ffn_up.weight ffn_down.weight"
            }
        }
    }

    /// Tensors outside the layers that candle reads.
    const fn beside_layers(self) -> &'static str {
        match self {
            Self::Phi2 => "token_embd.weight output_norm.weight output_norm.bias output.weight output.bias",
            Self::Lfm2 => "token_embd.weight token_embd_norm.weight output_norm.weight output.weight",
            Self::Llama | Self::Phi3 | Self::Glm4 => "token_embd.weight output_norm.weight output.weight",
        }
    }

    /// Whether candle reads this tensor.
    fn reads(self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix("blk.") else {
            return self.beside_layers().split(' ').any(|known| known == name);
        };
        let Some((layer, rest)) = rest.split_once('.') else { return false };
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is = |pattern: &str| match pattern.split_once('*') {
            None => pattern == rest,
            Some((before, after)) => {
                rest.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).is_some_and(number)
            }
        };
        number(layer) && self.of_layer().split(' ').any(is)
    }
}

/// A model's shape, from its checked header.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The architecture.
    pub family: CandleFamily,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Width of the residual stream, in numbers per position.
    pub hidden: usize,
    /// Maximum number of tokens of a sequence.
    pub context: usize,
    /// Bytes of the keys and values of one token: candle keeps them in single precision.
    pub token_bytes: usize,
    /// Experts of a layer; 0 for a model without experts.
    pub experts: usize,
    /// Bytes that candle takes beyond the file's: embeddings, and half-precision weights, become four-byte
    /// numbers.
    pub extra_bytes: u64,
}

/// Reads the metadata of one architecture.
struct ShapeReader<'a> {
    read: Reader<'a>,
    family: CandleFamily,
}

impl ShapeReader<'_> {
    fn optional(&self, key: &str) -> Result<Option<u64>, OpenError> {
        Ok(self.read.gguf.optional_u64(&self.read.key(key))?)
    }

    fn bounded(&self, key: &str, default: Option<usize>, most: usize) -> Result<usize, OpenError> {
        Ok(self.read.bounded(key, default, most)?)
    }

    /// Refuses a file whose value differs from candle's assumption.
    fn require(&self, key: &str, assumed: usize) -> Result<(), OpenError> {
        match self.optional(key)? {
            Some(found) if found != assumed as u64 => Err(self.ignored(key)),
            _ => Ok(()),
        }
    }

    fn ignored(&self, key: &str) -> OpenError {
        ignored(&self.read.key(key))
    }
}

/// A part of the file that candle would ignore, which would change the model.
fn ignored(what: &str) -> OpenError {
    OpenError(format!("candle takes no notice of {what}"))
}

impl Shape {
    /// Checks a file's header.
    ///
    /// # Errors
    /// [`OpenError`] if the architecture is not supported, the file is not sound, or candle would ignore a
    /// part of it.
    pub fn read(header: &Gguf) -> Result<Self, OpenError> {
        let unknown = || OpenError("the architecture is not among those that candle computes".to_owned());
        let family = CandleFamily::of(header).ok_or_else(unknown)?;
        if let Some(unread) = header.tensors().iter().find(|tensor| !family.reads(&tensor.name)) {
            return Err(ignored(&format!("the tensor {}", unread.name)));
        }
        let read = ShapeReader { read: Reader { gguf: header, prefix: family.name() }, family };
        let layers = read.bounded("block_count", None, MAX_LAYERS)?;
        let hidden = read.bounded("embedding_length", None, MAX_HIDDEN)?;
        let heads = read.bounded("attention.head_count", None, MAX_HEADS)?;
        // LFM2 has a list with an entry for each layer: 0 for its convolutions.
        let kv_heads = match family {
            CandleFamily::Lfm2 => heads,
            _ => read.bounded("attention.head_count_kv", Some(heads), heads)?,
        };
        read.bounded("feed_forward_length", None, MAX_FEED_FORWARD)?;
        if heads % kv_heads != 0 || hidden % heads != 0 {
            let text = format!("a width of {hidden} with {heads} heads of queries and {kv_heads} of keys");
            return Err(OpenError(text));
        }
        let head_dim = match family {
            CandleFamily::Glm4 => read.bounded("attention.key_length", None, MAX_HEAD_DIM)?,
            _ => hidden / heads,
        };
        read.require("attention.key_length", head_dim)?;
        read.require("attention.value_length", head_dim)?;
        let mut context = read.bounded("context_length", None, usize::MAX)?.min(MAX_CONTEXT);
        if let Some(window) = read.optional("attention.sliding_window")?.filter(|window| *window > 0) {
            // Within the window, the results are the same.
            context = context.min(usize::try_from(window).unwrap_or(usize::MAX));
        }
        read.rotation(head_dim)?;
        let experts = read.experts()?;
        read.convolution()?;
        let vocabulary = header.tensor("token_embd.weight").map_or(0, |tensor| tensor.rows);
        Ok(Self {
            family,
            vocabulary,
            hidden,
            context,
            token_bytes: 2 * layers * kv_heads * head_dim * 4,
            experts,
            extra_bytes: extra_bytes(header),
        })
    }
}

fn extra_bytes(header: &Gguf) -> u64 {
    let elements = |tensor: &Tensor| tensor.rows as u64 * tensor.columns as u64;
    let halves = header.tensors().iter().filter(|tensor| matches!(tensor.dtype, DType::F16 | DType::Bf16));
    4 * header.tensor("token_embd.weight").map_or(0, elements)
        + halves.map(|tensor| 2 * elements(tensor)).sum::<u64>()
}

impl ShapeReader<'_> {
    /// Refuses rotations without a table in candle: scaled angles, other bases, parts of a head.
    fn rotation(&self, head_dim: usize) -> Result<(), OpenError> {
        let Reader { gguf: header, .. } = self.read;
        let kind = header.optional_str(&self.read.key("rope.scaling.type"))?;
        if kind.is_some_and(|kind| kind != "none") {
            return Err(self.ignored("rope.scaling.type"));
        }
        if matches!(self.family, CandleFamily::Phi2 | CandleFamily::Phi3)
            && header.optional_f32(&self.read.key("rope.freq_base"))?.is_some_and(|base| base != 10_000.0)
        {
            return Err(self.ignored("rope.freq_base"));
        }
        match self.family {
            CandleFamily::Llama | CandleFamily::Phi3 | CandleFamily::Lfm2 => {
                self.require("rope.dimension_count", head_dim)
            }
            CandleFamily::Glm4 => self.require("rope.dimension_count", head_dim / 2),
            CandleFamily::Phi2 => self.bounded("rope.dimension_count", None, head_dim).map(|_| ()),
        }
    }

    fn experts(&self) -> Result<usize, OpenError> {
        if self.optional("expert_count")?.unwrap_or(0) == 0 {
            return Ok(0);
        }
        if self.family != CandleFamily::Llama {
            return Err(self.ignored("expert_count"));
        }
        let experts = self.bounded("expert_count", None, MAX_EXPERTS)?;
        self.bounded("expert_used_count", None, experts)?;
        Ok(experts)
    }

    fn convolution(&self) -> Result<(), OpenError> {
        if self.family == CandleFamily::Lfm2 {
            self.bounded("shortconv.l_cache", None, MAX_CONVOLUTION)?;
        }
        Ok(())
    }
}
