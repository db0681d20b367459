//! A model's weights, repacked from its file.
//!
//! A step of one token reads all weights once, which takes most of its time. Memory is fastest if each thread
//! reads one long stretch in one direction: the processor then prefetches data for that thread. So each
//! product's panels are divided among the threads as *shares* ([`share`]).
//!
//! A thread's reads of a step are contiguous, in reading order:
//!
//! 1. its share of the first layer's queries, keys and values;
//! 2. its share of that layer's output;
//! 3. its share of the feed-forward matrices;
//! 4. the same for each next layer;
//! 5. its share of the head.

use std::{
    collections::HashSet,
    ops::Range,
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
        dot::{Epilogue, TileRef},
    },
    tiles::{TileShape, Tiles},
};

/// Maximum number of tokens of a vocabulary: at most 262,144 in open models.
pub const MAX_VOCABULARY: usize = 1 << 21;

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not sound.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The engine does not support the model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor is missing, or its shape differs from the model's.
    #[error("{0}")]
    Tensor(String),
    /// A tensor that is unknown in the model's family: it would change the model's answers.
    #[error("tensor {0:?} is not known in a model of this family")]
    UnknownTensor(String),
    /// The system refused the memory.
    #[error("no memory for the weights: {0}")]
    Memory(std::io::Error),
    /// The system refused the threads.
    #[error("no threads to compute with: {0}")]
    Threads(std::io::Error),
}

fn missing(name: &str) -> LoadError {
    LoadError::Tensor(format!("the file has no tensor {name:?}"))
}

/// A thread's own panels.
#[must_use]
pub fn share(panels: usize, thread: usize, threads: usize) -> Range<usize> {
    thread * panels / threads..(thread + 1) * panels / threads
}

/// Two tiles, each as the index of a matrix and of a tile in it.
type Pair = [(usize, usize); 2];

/// The panels of several matrices in sequence; each matrix begins with a whole panel.
fn joined(shapes: &[TileShape]) -> Vec<Pair> {
    let panels = |(part, shape): (usize, &TileShape)| {
        (0..shape.tiles() / 2).map(move |panel| [(part, 2 * panel), (part, 2 * panel + 1)])
    };
    shapes.iter().enumerate().flat_map(panels).collect()
}

/// The panels of two matrices whose tiles alternate.
fn paired(shape: TileShape) -> Vec<Pair> {
    (0..shape.rows().div_ceil(LANES)).map(|tile| [(0, tile), (1, tile)]).collect()
}

/// A matrix, or several with the same activations, as panels of two tiles.
pub struct Linear {
    parts: Vec<Tiles>,
    panels: Vec<Pair>,
    /// How to combine a panel's results.
    pub epilogue: Epilogue,
    /// Inputs.
    pub columns: usize,
    /// The first output of each part, in the product's layout.
    pub starts: Vec<usize>,
}

impl Linear {
    /// Parts in sequence, each from a whole panel on.
    fn joined(parts: Vec<Tiles>) -> Self {
        let shapes: Vec<TileShape> = parts.iter().map(Tiles::shape).collect();
        let mut next = 0;
        let starts = shapes.iter().map(|shape| {
            let start = next;
            next += shape.tiles() * LANES;
            start
        });
        let columns = parts.first().map_or(0, Tiles::columns);
        Self { starts: starts.collect(), panels: joined(&shapes), epilogue: Epilogue::Both, columns, parts }
    }

    /// Two parts whose tiles alternate.
    fn paired(first: Tiles, second: Tiles, epilogue: Epilogue) -> Self {
        let panels = paired(first.shape());
        Self { columns: first.columns(), parts: vec![first, second], panels, epilogue, starts: vec![0] }
    }

    /// Number of panels.
    #[must_use]
    pub fn panels(&self) -> usize {
        self.panels.len()
    }

    /// A panel's tiles.
    #[must_use]
    pub fn panel(&self, panel: usize) -> [TileRef<'_>; 2] {
        self.panels[panel].map(|(part, tile)| TileRef { matrix: &self.parts[part], tile })
    }

    /// Numbers in the product for each row, in whole panels.
    #[must_use]
    pub fn width(&self) -> usize {
        self.panels.len() * self.epilogue.width()
    }

    /// Whether any part has floating-point weights, and whether any part is quantised.
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
    /// Its vectors.
    pub vectors: LayerVectors,
    /// Queries, keys and values.
    pub qkv: Linear,
    /// The matrix after attention.
    pub output: Linear,
    /// The first two matrices of the feed-forward layer.
    pub gate_up: Linear,
    /// Its last matrix.
    pub down: Linear,
}

/// A layer's vectors.
pub struct LayerVectors {
    /// The norm before attention.
    pub attention_norm: Vec<f32>,
    /// Biases of queries, keys and values, empty if there are none.
    pub qkv_bias: [Vec<f32>; 3],
    /// Norms of each head of queries and of keys.
    pub head_norms: Option<[Vec<f32>; 2]>,
    /// The norm of attention's result, before the addition.
    pub post_attention_norm: Option<Vec<f32>>,
    /// The norm before the feed-forward layer.
    pub feed_forward_norm: Vec<f32>,
    /// The norm of the feed-forward layer's result, before the addition.
    pub post_feed_forward_norm: Option<Vec<f32>>,
}

/// All weights.
pub struct Weights {
    /// An embedding for each token, unless the head's rows are the embeddings.
    embedding: Option<Tiles>,
    /// The matrix from the residual stream to logits.
    pub head: Linear,
    /// The norm before the head.
    pub output_norm: Vec<f32>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
}

/// Finds tensors, checks their shapes and records the requested names.
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
            return Err(LoadError::Tensor(format!(
                "tensor {name:?} is {} x {} where {rows} x {columns} is needed",
                tensor.rows, tensor.columns
            )));
        }
        self.used.insert(name.to_owned());
        Ok(Some((tensor, self.file.data(tensor))))
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Pending<'a>, LoadError> {
        let found = self.optional(name, rows, columns)?;
        let (tensor, bytes) = found.ok_or_else(|| missing(name))?;
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
        self.optional_vector(name, length)?.ok_or_else(|| missing(name))
    }
}

/// A matrix that was found but not repacked yet.
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

/// Approximate bytes of a matrix that a thread repacks at a time: for each thread, this much is in memory
/// twice.
const PIECE_BYTES: usize = 4 << 20;

/// Rows of a matrix to be repacked.
struct Piece<'a, 't> {
    shape: TileShape,
    bytes: &'a [u8],
    /// The offset of the bytes in the file.
    start: usize,
    tiles: Vec<&'t mut [u8]>,
}

impl<'a> Pending<'a> {
    /// Splits the matrix and its tiles into whole panels.
    fn pieces<'t>(&self, tiles: Vec<&'t mut [u8]>) -> Vec<Piece<'a, 't>> {
        let Tensor { dtype, rows, columns, offset, .. } = *self.tensor;
        let row_bytes = self.bytes.len() / rows.max(1);
        let at_once = (PIECE_BYTES / row_bytes.max(1)).max(1).next_multiple_of(2 * LANES);
        let mut tiles = tiles.into_iter();
        let pieces = (0..rows).step_by(at_once).map(|first| {
            let count = at_once.min(rows - first);
            let shape = TileShape::new(dtype, count, columns);
            let start = usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(first * row_bytes);
            let tiles = tiles.by_ref().take(shape.tiles()).collect();
            Piece { shape, bytes: &self.bytes[first * row_bytes..][..count * row_bytes], start, tiles }
        });
        pieces.collect()
    }
}

/// Matrices with the same activations, by their numbers, and their panels.
struct ProductPlan {
    first: usize,
    panels: Vec<Pair>,
}

/// All matrices in the order of their numbers, and the products in the order of a step.
#[derive(Default)]
struct Walk<'a> {
    matrices: Vec<Pending<'a>>,
    products: Vec<ProductPlan>,
}

impl<'a> Walk<'a> {
    fn joined(&mut self, matrices: &[Pending<'a>]) {
        let shapes: Vec<TileShape> = matrices.iter().map(Pending::shape).collect();
        self.push(matrices, joined(&shapes));
    }

    fn paired(&mut self, matrices: [Pending<'a>; 2]) {
        self.push(&matrices, paired(matrices[0].shape()));
    }

    fn push(&mut self, matrices: &[Pending<'a>], panels: Vec<Pair>) {
        self.products.push(ProductPlan { first: self.matrices.len(), panels });
        self.matrices.extend_from_slice(matrices);
    }

    /// All tiles, as matrix and tile numbers, in the reading order of `threads` threads.
    fn order(&self, threads: usize) -> impl Iterator<Item = (usize, usize)> {
        let of_thread = move |thread| {
            self.products.iter().flat_map(move |product| {
                let own = &product.panels[share(product.panels.len(), thread, threads)];
                own.iter().flatten().map(|(part, tile)| (product.first + part, *tile))
            })
        };
        (0..threads).flat_map(of_thread)
    }

    /// Repacks all matrices on several threads into one arena. Repacked bytes are not kept in memory twice.
    fn repack(&self, file: &GgufFile, threads: usize) -> std::io::Result<Vec<Tiles>> {
        let shapes: Vec<TileShape> = self.matrices.iter().map(Pending::shape).collect();
        let bytes = self.order(threads).map(|(matrix, _)| shapes[matrix].tile_bytes()).sum();
        let mut arena = Arena::new(bytes)?;
        let mut places: Vec<Vec<usize>> = shapes.iter().map(|shape| vec![0; shape.tiles()]).collect();
        let mut tiles: Vec<Vec<&mut [u8]>> =
            shapes.iter().map(|shape| (0..shape.tiles()).map(|_| <&mut [u8]>::default()).collect()).collect();
        let (mut next, mut rest) = (0, arena.bytes_mut());
        for (matrix, tile) in self.order(threads) {
            let bytes = shapes[matrix].tile_bytes();
            places[matrix][tile] = next;
            tiles[matrix][tile] = rest.split_off_mut(..bytes).unwrap_or_default();
            next += bytes;
        }
        let pieces = self.matrices.iter().zip(tiles).flat_map(|(matrix, tiles)| matrix.pieces(tiles));
        let pieces = Mutex::new(pieces.collect::<Vec<_>>().into_iter());
        let work = || {
            loop {
                let piece = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(Piece { shape, bytes, start, mut tiles }) = piece else { return };
                shape.repack(bytes, &mut tiles);
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
        let tiles = shapes.into_iter().zip(places);
        Ok(tiles.map(|(shape, places)| Tiles::new(shape, Arc::clone(&arena), places)).collect())
    }
}

/// A layer that was found but not repacked yet.
struct PendingLayer<'a> {
    vectors: LayerVectors,
    qkv: [Pending<'a>; 3],
    output: Pending<'a>,
    gate_up: [Pending<'a>; 2],
    down: Pending<'a>,
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
            _ => return Err(missing(&name("attn_q_norm.weight and attn_k_norm.weight, both"))),
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

    /// Adds its products, in order.
    fn walk(&self, walk: &mut Walk<'a>) {
        walk.joined(&self.qkv);
        walk.joined(&[self.output]);
        walk.paired(self.gate_up);
        walk.joined(&[self.down]);
    }

    /// Builds the layer from its matrices, in the order of [`Self::walk`].
    fn finish(self, [query, key, value, output, gate, up, down]: [Tiles; 7], config: &Config) -> Layer {
        let epilogue = match config.activation {
            Activation::Silu => Epilogue::Silu,
            Activation::Gelu => Epilogue::Gelu,
        };
        Layer {
            vectors: self.vectors,
            qkv: Linear::joined(vec![query, key, value]),
            output: Linear::joined(vec![output]),
            gate_up: Linear::paired(gate, up, epilogue),
            down: Linear::joined(vec![down]),
        }
    }
}

/// All tensors of a file, found with the shapes of its configuration, and not repacked yet.
pub struct PendingWeights<'a> {
    embedding: Pending<'a>,
    head: Option<Pending<'a>>,
    output_norm: Vec<f32>,
    layers: Vec<PendingLayer<'a>>,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
}

impl<'a> PendingWeights<'a> {
    /// Finds a file's tensors. Sets the rotation's factors in `config` if the file has any.
    ///
    /// # Errors
    /// [`LoadError`] if a tensor is missing, unknown or of another shape.
    pub fn find(file: &'a GgufFile, config: &mut Config) -> Result<Self, LoadError> {
        let mut find = Finder { file, used: HashSet::new() };
        let embedding_name = "token_embd.weight";
        let rows = |name: &str| file.header().tensor(name).map(|tensor| tensor.rows);
        let vocabulary = rows(embedding_name).ok_or_else(|| missing(embedding_name))?;
        if vocabulary > MAX_VOCABULARY {
            let reason = format!("vocabulary of {vocabulary} is not between 1 and {MAX_VOCABULARY}");
            return Err(ConfigError::Shape(reason).into());
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
        Ok(Self { embedding, head, output_norm, layers, vocabulary })
    }
}

impl Weights {
    /// Repacks a file's weights on `threads` threads. Allocates nothing until all tensors have been found
    /// with the shapes in `config`. Sets the rotation's factors in `config` if the file has any.
    ///
    /// # Errors
    /// [`LoadError`] if a tensor is missing, unknown or of another shape.
    pub fn load(file: &GgufFile, config: &mut Config, threads: usize) -> Result<Self, LoadError> {
        let PendingWeights { embedding, head, output_norm, layers, vocabulary } =
            PendingWeights::find(file, config)?;
        let mut walk = Walk::default();
        layers.iter().for_each(|layer| layer.walk(&mut walk));
        walk.joined(&[head.unwrap_or(embedding)]);
        if head.is_some() {
            walk.joined(&[embedding]);
        }
        let mut tiles = walk.repack(file, threads).map_err(LoadError::Memory)?.into_iter();
        let layers = layers
            .into_iter()
            .filter_map(|layer| {
                let matrices: Vec<Tiles> = tiles.by_ref().take(7).collect();
                Some(layer.finish(matrices.try_into().ok()?, config))
            })
            .collect();
        let head = tiles.next().ok_or_else(|| missing("output.weight"))?;
        let embedding = tiles.next();
        Ok(Self { embedding, head: Linear::joined(vec![head]), output_norm, layers, vocabulary })
    }

    /// A token's embedding.
    pub fn embed(&self, token: usize, out: &mut [f32]) {
        self.embedding.as_ref().unwrap_or_else(|| self.head.only()).dequantise_row(token, out);
    }

    /// Bytes of all weights.
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
        // Some pieces, and a rest that is not a whole panel.
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
        let tile_bytes = matrix.shape().tile_bytes();
        let mut whole = vec![0; matrix.shape().bytes()];
        matrix.shape().repack(&bytes, &mut whole.chunks_mut(tile_bytes).collect::<Vec<_>>());
        let mut tiles = vec![0; whole.len()];
        let (mut end, mut count) = (96, 0);
        for piece in matrix.pieces(tiles.chunks_mut(tile_bytes).collect()) {
            let Piece { shape, bytes, start, mut tiles } = piece;
            assert_eq!(start, end, "one after the other");
            assert!(bytes.len() <= PIECE_BYTES + 32 * 68);
            shape.repack(bytes, &mut tiles);
            (end, count) = (start + bytes.len(), count + 1);
        }
        assert_eq!((end, count), (96 + bytes.len(), 3));
        assert!(tiles == whole);
    }
}
