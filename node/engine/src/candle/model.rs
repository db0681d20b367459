//! An open model of any supported architecture, behind the engine's trait for models that compute one
//! sequence at a time.

use std::{
    any::Any,
    io::Cursor,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{batch::Solo, gguf::GgufFile};
use candle_core::{
    DType, Device, Tensor,
    quantized::gguf_file::{Content, TensorInfo, Value},
};
use candle_transformers::models::{
    quantized_glm4 as glm4, quantized_lfm2 as lfm2, quantized_llama as llama, quantized_phi as phi2,
    quantized_phi3 as phi3,
};
use zeroize::Zeroizing;

use crate::candle::{
    OpenError,
    family::{CandleFamily, Shape},
};

/// Maximum number of prompt tokens computed at once: the remaining cost of a cancelled request.
const CHUNK: usize = 64;

/// One of candle's models. All but LFM2 can be copied without copying weights.
enum FamilyModel {
    Llama(ModelCopies<llama::ModelWeights>),
    Phi2(ModelCopies<phi2::ModelWeights>),
    Phi3(ModelCopies<phi3::ModelWeights>),
    Glm4(ModelCopies<glm4::ModelWeights>),
    Lfm2(Box<lfm2::ModelWeights>),
}

/// A model without a conversation, and a copy with one. Dropping the copy drops its keys, values and masks.
struct ModelCopies<M> {
    clean: Box<M>,
    used: Box<M>,
}

impl<M: Clone> ModelCopies<M> {
    fn new(model: M) -> Self {
        Self { used: Box::new(model.clone()), clean: Box::new(model) }
    }

    fn forget(&mut self) {
        self.used = self.clean.clone();
    }
}

impl FamilyModel {
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle_core::Result<Tensor> {
        match self {
            Self::Llama(model) => model.used.forward(tokens, position),
            Self::Phi2(model) => model.used.forward(tokens, position),
            Self::Phi3(model) => model.used.forward(tokens, position),
            Self::Glm4(model) => model.used.forward(tokens, position),
            Self::Lfm2(model) => model.forward(tokens, position),
        }
    }
}

/// An open model.
pub struct CandleModel {
    weights: FamilyModel,
    shape: Shape,
    device: Device,
}

impl CandleModel {
    /// Reads a model from an open file, which is not needed afterwards. Then computes a few tokens, which
    /// reveals tensors that do not fit together. Blocks for seconds.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(file: &GgufFile, context: usize) -> Result<Self, OpenError> {
        let mut shape = Shape::read(file.header())?;
        shape.context = shape.context.min(context).max(1);
        let opened = catch_unwind(AssertUnwindSafe(|| read(file, &shape)));
        let (weights, device) =
            opened.map_err(|panic| panicked(panic.as_ref()))?.map_err(|error| failed(&message(&error)))?;
        let mut model = Self { weights, shape, device };
        let tried = catch_unwind(AssertUnwindSafe(|| model.try_out()));
        tried.map_err(|panic| panicked(panic.as_ref()))?.map_err(|reason| failed(&reason))?;
        Ok(model)
    }

    /// The model's shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Computes two tokens at once and a third, as far as the context allows.
    fn try_out(&mut self) -> Result<(), String> {
        for (tokens, position) in [(&[0, 0][..], 0), (&[0], 2)] {
            if position + tokens.len() <= self.shape.context {
                let logits = self.append(tokens, position)?;
                if logits.len() != self.shape.vocabulary {
                    return Err(format!("{} logits for {} tokens", logits.len(), self.shape.vocabulary));
                }
            }
        }
        self.forget();
        Ok(())
    }
}

impl Solo for CandleModel {
    fn vocabulary(&self) -> usize {
        self.shape.vocabulary
    }

    fn context(&self) -> usize {
        self.shape.context
    }

    fn token_bytes(&self) -> usize {
        self.shape.token_bytes
    }

    fn chunk(&self, position: usize, remaining: usize) -> usize {
        // LFM2's convolutions restart with each chunk of more than one token.
        if position > 0 && matches!(self.weights, FamilyModel::Lfm2(_)) {
            return 1;
        }
        // Powers of two: candle keeps a mask for each size at each position.
        1 << remaining.clamp(1, CHUNK).ilog2()
    }

    fn append(&mut self, tokens: &[u32], position: usize) -> Result<Zeroizing<Vec<f32>>, String> {
        if position == 0 && tokens.len() == 1 && matches!(self.weights, FamilyModel::Lfm2(_)) {
            return Err("LFM2 begins with at least two tokens".to_owned());
        }
        let Self { weights, device, .. } = self;
        let logits = device.with_context(|| {
            let tokens = Tensor::new(tokens, device)?.unsqueeze(0)?;
            weights.forward(&tokens, position)?.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
        });
        logits.map(Zeroizing::new).map_err(|error| message(&error))
    }

    fn forget(&mut self) {
        match &mut self.weights {
            FamilyModel::Llama(model) => model.forget(),
            FamilyModel::Phi2(model) => model.forget(),
            FamilyModel::Phi3(model) => model.forget(),
            FamilyModel::Glm4(model) => model.forget(),
            // Afterwards, the model only holds the state of two other tokens.
            FamilyModel::Lfm2(_) => drop(self.append(&[0, 0], 0)),
        }
    }
}

/// The first graphics card, if the build supports it and it exists, or the processor.
fn device() -> candle_core::Result<Device> {
    if cfg!(feature = "cuda") {
        Device::cuda_if_available(0)
    } else if cfg!(feature = "metal") {
        Device::metal_if_available(0)
    } else {
        Ok(Device::Cpu)
    }
}

fn read(file: &GgufFile, shape: &Shape) -> candle_core::Result<(FamilyModel, Device)> {
    let device = device()?;
    let mut reader = Cursor::new(file.bytes());
    let mut content = Content::read(&mut reader)?;
    for tensor in file.header().tensors() {
        let found = content.tensor_infos.get(&tensor.name);
        if found.is_none_or(|info| content.tensor_data_offset + info.offset != tensor.offset) {
            candle_core::bail!("{} is elsewhere for candle", tensor.name);
        }
    }
    let name = shape.family.name();
    // Tables are made for the whole context, so use the bounded one.
    let context = u32::try_from(shape.context).unwrap_or(u32::MAX);
    content.metadata.insert(format!("{name}.context_length"), Value::U32(context));
    complete(&mut content, shape)?;
    let weights = match shape.family {
        CandleFamily::Llama => FamilyModel::Llama(ModelCopies::new(llama::ModelWeights::from_gguf(
            content,
            &mut reader,
            &device,
        )?)),
        CandleFamily::Phi2 => {
            FamilyModel::Phi2(ModelCopies::new(phi2::ModelWeights::from_gguf(content, &mut reader, &device)?))
        }
        CandleFamily::Phi3 => FamilyModel::Phi3(ModelCopies::new(phi3::ModelWeights::from_gguf(
            false,
            content,
            &mut reader,
            &device,
        )?)),
        CandleFamily::Glm4 => {
            let model = glm4::ModelWeights::from_gguf(content, &mut reader, &device, DType::F32)?;
            FamilyModel::Glm4(ModelCopies::new(model))
        }
        CandleFamily::Lfm2 => {
            FamilyModel::Lfm2(Box::new(lfm2::ModelWeights::from_gguf(content, &mut reader, &device)?))
        }
    };
    Ok((weights, device))
}

/// Adds optional metadata and tensors that candle requires, and splits tensors of all experts into one entry
/// per expert.
fn complete(content: &mut Content, shape: &Shape) -> candle_core::Result<()> {
    if shape.family == CandleFamily::Llama {
        let heads = content.metadata.get("llama.attention.head_count").map(Value::to_u32).transpose()?;
        let heads = heads.unwrap_or(1).max(1);
        let head_dim = u32::try_from(shape.hidden).unwrap_or(u32::MAX) / heads;
        let mut missing = |key: &str, value| {
            content.metadata.entry(format!("llama.{key}")).or_insert(Value::U32(value));
        };
        missing("attention.head_count_kv", heads);
        missing("rope.dimension_count", head_dim);
    }
    if shape.family == CandleFamily::Phi3
        && !content.tensor_infos.contains_key("output.weight")
        && let Some(TensorInfo { ggml_dtype, shape, offset }) = content.tensor_infos.get("token_embd.weight")
    {
        let tied = TensorInfo { ggml_dtype: *ggml_dtype, shape: shape.clone(), offset: *offset };
        content.tensor_infos.insert("output.weight".to_owned(), tied);
    }
    let merged: Vec<String> =
        content.tensor_infos.keys().filter(|name| name.ends_with("_exps.weight")).cloned().collect();
    for name in merged {
        let Some(TensorInfo { ggml_dtype, shape: all, offset }) = content.tensor_infos.remove(&name) else {
            continue;
        };
        let (experts, rows, columns) = all.dims3()?;
        if experts != shape.experts {
            candle_core::bail!("{name} has {experts} experts");
        }
        let bytes = rows * columns / ggml_dtype.block_size() * ggml_dtype.type_size();
        for expert in 0..experts {
            let one = name.replace("_exps.weight", &format!(".{expert}.weight"));
            let offset = offset + (expert * bytes) as u64;
            let info = TensorInfo { ggml_dtype, shape: (rows, columns).into(), offset };
            content.tensor_infos.insert(one, info);
        }
    }
    Ok(())
}

/// The message of a panic in candle's code.
fn panicked(panic: &(dyn Any + Send)) -> OpenError {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    failed(text.and_then(|text| text.lines().next()).unwrap_or("it failed"))
}

fn failed(reason: &str) -> OpenError {
    OpenError(format!("candle refuses the model: {reason}"))
}

/// Candle's message without its backtrace: shapes, types and names.
fn message(error: &candle_core::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}
