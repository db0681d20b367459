//! A model's weights, repacked from its file.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use crate::{
    arena::Arena,
    config::{Activation, Config, ConfigError},
    gguf::{DType, GgufError, GgufFile, Tensor},
    half::{bf16_to_f32, f16_to_f32},
    kernels::{
        LANES,
        dot::{Finish, TileRef},
    },
    tiles::{TileShape, Tiles},
};

/// Tokens of a vocabulary: at most 262,144 in open models.
pub const MAX_VOCABULARY: usize = 1 << 21;

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not sound.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model is not one that is computed here.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor is missing.
    #[error("the file has no tensor {0:?}")]
    MissingTensor(String),
    /// A tensor has another shape than the model's.
    #[error("tensor {name:?} is {rows} x {columns} where {wanted_rows} x {wanted_columns} is needed")]
    Shape {
        /// The tensor.
        name: String,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
        /// The model's rows.
        wanted_rows: usize,
        /// The model's columns.
        wanted_columns: usize,
    },
    /// A tensor that the model's family does not have: it would change what the model says.
    #[error("tensor {0:?} is not known in a model of this family")]
    UnknownTensor(String),
    /// Memory cannot be had.
    #[error("no memory for the weights: {0}")]
    Memory(std::io::Error),
    /// Threads cannot be had.
    #[error("no threads to compute with: {0}")]
    Threads(std::io::Error),
}

/// A matrix, or several that are multiplied with the same activations, as panels of two tiles.
pub struct Linear {
    parts: Vec<Tiles>,
    panels: Vec<[(usize, usize); 2]>,
    /// What becomes of a panel's results.
    pub finish: Finish,
    /// Inputs.
    pub columns: usize,
    /// The first output of each part, in the product's layout.
    pub starts: Vec<usize>,
}

impl Linear {
    /// Parts one after the other, each from a whole panel on.
    fn joined(parts: Vec<Tiles>) -> Self {
        let (mut panels, mut starts) = (Vec::new(), Vec::new());
        for (part, tiles) in parts.iter().enumerate() {
            starts.push(panels.len() * 32);
            panels.extend(
                (0..tiles.rows().div_ceil(32)).map(|panel| [(part, 2 * panel), (part, 2 * panel + 1)]),
            );
        }
        let columns = parts.first().map_or(0, Tiles::columns);
        Self { parts, panels, finish: Finish::Both, columns, starts }
    }

    /// Two parts whose tiles alternate.
    fn paired(first: Tiles, second: Tiles, finish: Finish) -> Self {
        let panels = (0..first.rows().div_ceil(16)).map(|tile| [(0, tile), (1, tile)]).collect();
        Self { columns: first.columns(), parts: vec![first, second], panels, finish, starts: vec![0] }
    }

    /// How many panels there are.
    #[must_use]
    pub fn panels(&self) -> usize {
        self.panels.len()
    }

    /// A panel's tiles.
    #[must_use]
    pub fn panel(&self, panel: usize) -> [TileRef<'_>; 2] {
        self.panels[panel].map(|(part, tile)| TileRef { matrix: &self.parts[part], tile })
    }

    /// Numbers in the product for each row: whole panels.
    #[must_use]
    pub fn width(&self) -> usize {
        self.panels.len() * self.finish.width()
    }

    /// Whether any part is of floating-point weights, and whether any is quantised.
    #[must_use]
    pub fn wants(&self) -> (bool, bool) {
        let float = |tiles: &Tiles| tiles.dtype().block().0 == 1;
        (self.parts.iter().any(float), self.parts.iter().any(|tiles| !float(tiles)))
    }

    /// The only part.
    #[must_use]
    pub fn only(&self) -> &Tiles {
        &self.parts[0]
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(Tiles::bytes).sum()
    }
}

/// One layer.
pub struct Layer {
    /// Before attention.
    pub attention_norm: Vec<f32>,
    /// Queries, keys and values.
    pub qkv: Linear,
    /// What is added to each, empty if nothing.
    pub qkv_bias: [Vec<f32>; 3],
    /// Norms of each head of queries and of keys.
    pub head_norms: Option<[Vec<f32>; 2]>,
    /// After attention.
    pub output: Linear,
    /// Of attention's result, before it is added.
    pub post_attention_norm: Option<Vec<f32>>,
    /// Before the feed-forward layer.
    pub feed_forward_norm: Vec<f32>,
    /// Its first two matrices.
    pub gate_up: Linear,
    /// Its last.
    pub down: Linear,
    /// Of its result, before it is added.
    pub post_feed_forward_norm: Option<Vec<f32>>,
}

/// All weights.
pub struct Weights {
    /// An embedding for each token, if they are not the head's rows.
    embedding: Option<Tiles>,
    /// From a position's numbers to logits.
    pub head: Linear,
    /// Before it.
    pub output_norm: Vec<f32>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
}

/// Finds tensors, checks their shapes and remembers which were asked for.
struct Finder<'a> {
    file: &'a GgufFile,
    used: HashSet<String>,
}

impl<'a> Finder<'a> {
    fn optional(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Option<(&'a Tensor, &'a [u8])>, LoadError> {
        let Some(tensor) = self.file.header().tensor(name) else { return Ok(None) };
        if (tensor.rows, tensor.columns) != (rows, columns) {
            return Err(LoadError::Shape {
                name: name.to_owned(),
                rows: tensor.rows,
                columns: tensor.columns,
                wanted_rows: rows,
                wanted_columns: columns,
            });
        }
        self.used.insert(name.to_owned());
        Ok(Some((tensor, self.file.data(tensor))))
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Pending<'a>, LoadError> {
        let found = self.optional(name, rows, columns)?;
        let (tensor, bytes) = found.ok_or_else(|| LoadError::MissingTensor(name.to_owned()))?;
        Ok(Pending { tensor, bytes })
    }

    fn optional_vector(&mut self, name: &str, length: usize) -> Result<Option<Vec<f32>>, LoadError> {
        let Some((tensor, bytes)) = self.optional(name, 1, length)? else { return Ok(None) };
        let halves = bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
        Ok(Some(match tensor.dtype {
            DType::F32 => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            DType::F16 => halves.map(f16_to_f32).collect(),
            DType::Bf16 => halves.map(bf16_to_f32).collect(),
            _ => return Err(ConfigError::Unsupported(format!("a quantised vector ({name})")).into()),
        }))
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
        self.optional_vector(name, length)?.ok_or_else(|| LoadError::MissingTensor(name.to_owned()))
    }
}

/// A matrix that has been found and not yet repacked.
#[derive(Clone, Copy)]
struct Pending<'a> {
    tensor: &'a Tensor,
    bytes: &'a [u8],
}

impl Pending<'_> {
    fn shape(&self) -> TileShape {
        TileShape::new(self.tensor.dtype, self.tensor.rows, self.tensor.columns)
    }
}

/// Bytes of a matrix that a thread repacks at a time, about: as many are in memory twice, for each thread.
const PIECE_BYTES: usize = 4 << 20;

/// Rows of a matrix to be repacked.
struct Piece<'a, 't> {
    shape: TileShape,
    bytes: &'a [u8],
    /// Where the bytes begin in the file.
    start: usize,
    tiles: &'t mut [u8],
}

impl<'a> Pending<'a> {
    /// Cuts the matrix, and the room for its tiles, into whole panels.
    fn pieces<'t>(&self, mut tiles: &'t mut [u8]) -> Vec<Piece<'a, 't>> {
        let Tensor { dtype, rows, columns, offset, .. } = *self.tensor;
        let row_bytes = self.bytes.len() / rows.max(1);
        let at_once = (PIECE_BYTES / row_bytes.max(1)).max(1).next_multiple_of(2 * LANES);
        let pieces = (0..rows).step_by(at_once).map(|first| {
            let count = at_once.min(rows - first);
            let shape = TileShape::new(dtype, count, columns);
            let start = usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(first * row_bytes);
            let tiles = tiles.split_off_mut(..shape.bytes()).unwrap_or_default();
            Piece { shape, bytes: &self.bytes[first * row_bytes..][..count * row_bytes], start, tiles }
        });
        pieces.collect()
    }
}

/// Repacks all matrices on some threads, into one arena. What has been repacked is not kept in memory twice.
fn repack(file: &GgufFile, matrices: &[Pending<'_>], threads: usize) -> std::io::Result<Vec<Tiles>> {
    let shapes: Vec<TileShape> = matrices.iter().map(Pending::shape).collect();
    let mut arena = Arena::new(shapes.iter().map(TileShape::bytes).sum())?;
    let mut rest = arena.bytes_mut();
    let mut pieces = Vec::new();
    for (matrix, shape) in matrices.iter().zip(&shapes) {
        pieces.extend(matrix.pieces(rest.split_off_mut(..shape.bytes()).unwrap_or_default()));
    }
    let pieces = Mutex::new(pieces.into_iter());
    let work = || {
        loop {
            let piece = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(Piece { shape, bytes, start, tiles }) = piece else { return };
            shape.repack(bytes, tiles);
            file.release(start..start + bytes.len());
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    drop(pieces);
    let arena = arena.share();
    let mut start = 0;
    let place = |shape: TileShape| {
        let tiles = Tiles::new(shape, Arc::clone(&arena), start);
        start += shape.bytes();
        tiles
    };
    Ok(shapes.into_iter().map(place).collect())
}

/// A layer that has been found and not yet repacked.
struct PendingLayer<'a> {
    vectors: LayerVectors,
    qkv: [Pending<'a>; 3],
    output: Pending<'a>,
    gate_up: [Pending<'a>; 2],
    down: Pending<'a>,
}

struct LayerVectors {
    attention_norm: Vec<f32>,
    qkv_bias: [Vec<f32>; 3],
    head_norms: Option<[Vec<f32>; 2]>,
    post_attention_norm: Option<Vec<f32>>,
    feed_forward_norm: Vec<f32>,
    post_feed_forward_norm: Option<Vec<f32>>,
}

impl<'a> PendingLayer<'a> {
    fn find(find: &mut Finder<'a>, config: &Config, layer: usize) -> Result<Self, LoadError> {
        let name = |rest: &str| format!("blk.{layer}.{rest}");
        let (hidden, queries, keys) = (config.hidden, config.query_width(), config.kv_width());
        let mut bias = |which: &str, length: usize| {
            find.optional_vector(&name(&format!("attn_{which}.bias")), length).map(Option::unwrap_or_default)
        };
        let qkv_bias = [bias("q", queries)?, bias("k", keys)?, bias("v", keys)?];
        let query_norm = find.optional_vector(&name("attn_q_norm.weight"), config.head_dim)?;
        let key_norm = find.optional_vector(&name("attn_k_norm.weight"), config.head_dim)?;
        let head_norms = match (query_norm, key_norm) {
            (Some(query), Some(key)) => Some([query, key]),
            (None, None) => None,
            _ => {
                return Err(LoadError::MissingTensor(name(
                    "attn_q_norm.weight and attn_k_norm.weight, both",
                )));
            }
        };
        let vectors = LayerVectors {
            attention_norm: find.vector(&name("attn_norm.weight"), hidden)?,
            qkv_bias,
            head_norms,
            post_attention_norm: find.optional_vector(&name("post_attention_norm.weight"), hidden)?,
            feed_forward_norm: find.vector(&name("ffn_norm.weight"), hidden)?,
            post_feed_forward_norm: find.optional_vector(&name("post_ffw_norm.weight"), hidden)?,
        };
        Ok(Self {
            vectors,
            qkv: [
                find.matrix(&name("attn_q.weight"), queries, hidden)?,
                find.matrix(&name("attn_k.weight"), keys, hidden)?,
                find.matrix(&name("attn_v.weight"), keys, hidden)?,
            ],
            output: find.matrix(&name("attn_output.weight"), hidden, queries)?,
            gate_up: [
                find.matrix(&name("ffn_gate.weight"), config.feed_forward, hidden)?,
                find.matrix(&name("ffn_up.weight"), config.feed_forward, hidden)?,
            ],
            down: find.matrix(&name("ffn_down.weight"), hidden, config.feed_forward)?,
        })
    }

    fn matrices(&self) -> [Pending<'a>; 7] {
        let ([query, key, value], [gate, up]) = (self.qkv, self.gate_up);
        [query, key, value, self.output, gate, up, self.down]
    }

    /// The layer, of its matrices in the order of [`Self::matrices`].
    fn finish(self, [query, key, value, output, gate, up, down]: [Tiles; 7], config: &Config) -> Layer {
        let finish = match config.activation {
            Activation::Silu => Finish::Silu,
            Activation::Gelu => Finish::Gelu,
        };
        let vectors = self.vectors;
        Layer {
            attention_norm: vectors.attention_norm,
            qkv: Linear::joined(vec![query, key, value]),
            qkv_bias: vectors.qkv_bias,
            head_norms: vectors.head_norms,
            output: Linear::joined(vec![output]),
            post_attention_norm: vectors.post_attention_norm,
            feed_forward_norm: vectors.feed_forward_norm,
            gate_up: Linear::paired(gate, up, finish),
            down: Linear::joined(vec![down]),
            post_feed_forward_norm: vectors.post_feed_forward_norm,
        }
    }
}

impl Weights {
    /// Repacks a file's weights on `threads` threads. Nothing is allocated before all tensors have been found with the
    /// shapes that `config` wants. Sets the rotation's factors in `config` if the file has any.
    ///
    /// # Errors
    /// [`LoadError`] if a tensor is missing, has another shape or is not known.
    pub fn load(file: &GgufFile, config: &mut Config, threads: usize) -> Result<Self, LoadError> {
        let mut find = Finder { file, used: HashSet::new() };
        let embedding_name = "token_embd.weight";
        let rows = |name: &str| file.header().tensor(name).map(|tensor| tensor.rows);
        let vocabulary =
            rows(embedding_name).ok_or_else(|| LoadError::MissingTensor(embedding_name.to_owned()))?;
        if vocabulary > MAX_VOCABULARY {
            return Err(ConfigError::Bounds {
                key: "vocabulary".to_owned(),
                found: vocabulary as u64,
                least: 1,
                most: MAX_VOCABULARY as u64,
            }
            .into());
        }
        let embedding = find.matrix(embedding_name, vocabulary, config.hidden)?;
        let head = find
            .optional("output.weight", vocabulary, config.hidden)?
            .map(|(tensor, bytes)| Pending { tensor, bytes });
        let output_norm = find.vector("output_norm.weight", config.hidden)?;
        let pairs = config.rope.frequencies.len();
        if let Some(factors) = find.optional_vector("rope_freqs.weight", pairs)? {
            if factors.iter().any(|factor| !(*factor > 0.0 && factor.is_finite())) {
                return Err(ConfigError::Shape("a rotation factor is not above zero".to_owned()).into());
            }
            config.rope.divide(&factors);
        }
        let layers = (0..config.layers)
            .map(|layer| PendingLayer::find(&mut find, config, layer))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(unknown) = file.header().unused(&find.used).first() {
            return Err(LoadError::UnknownTensor((*unknown).to_owned()));
        }

        let mut matrices: Vec<Pending<'_>> = layers.iter().flat_map(PendingLayer::matrices).collect();
        matrices.push(embedding);
        matrices.extend(head);
        let mut tiles = repack(file, &matrices, threads).map_err(LoadError::Memory)?.into_iter();
        let layers = layers
            .into_iter()
            .filter_map(|layer| {
                let matrices: Vec<Tiles> = tiles.by_ref().take(7).collect();
                Some(layer.finish(matrices.try_into().ok()?, config))
            })
            .collect();
        let (embedding, head) = match (tiles.next(), tiles.next()) {
            (embedding, Some(head)) => (embedding, head),
            (Some(tied), None) => (None, tied),
            (None, None) => return Err(LoadError::MissingTensor(embedding_name.to_owned())),
        };
        Ok(Self { embedding, head: Linear::joined(vec![head]), output_norm, layers, vocabulary })
    }

    /// A token's embedding.
    pub fn embed(&self, token: usize, out: &mut [f32]) {
        self.embedding.as_ref().unwrap_or_else(|| self.head.only()).dequantise_row(token, out);
    }

    /// Bytes that the weights take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let layers =
            self.layers.iter().flat_map(|layer| [&layer.qkv, &layer.output, &layer.gate_up, &layer.down]);
        layers.map(Linear::bytes).sum::<usize>()
            + self.head.bytes()
            + self.embedding.as_ref().map_or(0, Tiles::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_repacked_in_pieces_is_the_matrix_repacked_at_once() {
        // Some pieces and a rest that is no whole panel.
        let (rows, columns) = (PIECE_BYTES / 68 * 2 + 100, 64);
        let bytes: Vec<u8> = (0..rows * 68).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect();
        let tensor = Tensor {
            name: "m".to_owned(),
            dtype: DType::Q8_0,
            columns,
            rows,
            dimensions: 2,
            offset: 96,
            bytes: bytes.len() as u64,
        };
        let matrix = Pending { tensor: &tensor, bytes: &bytes };
        let mut whole = vec![0; matrix.shape().bytes()];
        matrix.shape().repack(&bytes, &mut whole);
        let mut tiles = vec![0; whole.len()];
        let (mut end, mut count) = (96, 0);
        for Piece { shape, bytes, start, tiles } in matrix.pieces(&mut tiles) {
            assert_eq!(start, end, "one after the other");
            assert!(bytes.len() <= PIECE_BYTES + 32 * 68);
            shape.repack(bytes, tiles);
            (end, count) = (start + bytes.len(), count + 1);
        }
        assert_eq!((end, count), (96 + bytes.len(), 3));
        assert!(tiles == whole);
    }
}
