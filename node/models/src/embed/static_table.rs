//! A static table of word pieces (model2vec, <https://github.com/MinishLab/model2vec>).
//!
//! A text's vector is the mean of its pieces' rows, scaled to length one. No network runs; a message takes
//! microseconds.

use std::{fs, path::Path, sync::Arc};

use safetensors::{Dtype, SafeTensors};
use tokenizers::Tokenizer;

use crate::embed::{
    EmbedError, EmbedFuture, EmbedRole, Embedder, RelatedFuture, lexicon::Lexicon, models::POTION_BASE_8M,
    off_reactor, owned, unit,
};

/// Most word pieces of a text, as in the reference implementation.
const MAX_PIECES: usize = 512;

/// Most bytes of a table's file; the largest published one has half a gigabyte.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The static-table embedder.
#[derive(Clone)]
pub struct StaticTable(Arc<Table>);

struct Table {
    id: String,
    tokenizer: Tokenizer,
    unknown: Option<u32>,
    dimensions: usize,
    rows: Vec<f32>,
    lexicon: Lexicon,
}

impl std::fmt::Debug for StaticTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticTable").field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl StaticTable {
    /// Opens potion-base-8M from the models folder. Blocks.
    ///
    /// # Errors
    /// [`EmbedError::Unusable`], which names the fix.
    pub fn open_potion(directory: &Path) -> Result<Self, EmbedError> {
        let [weights, tokenizer] = POTION_BASE_8M.paths(directory);
        Self::open(POTION_BASE_8M.name, &weights, &tokenizer)
    }

    /// Opens a table: a safetensors file with the f32 tensor `embeddings` (pieces, dimensions), and its
    /// tokenizer. Blocks.
    ///
    /// # Errors
    /// [`EmbedError::Unusable`], which names the fix.
    pub fn open(name: &str, weights: &Path, tokenizer: &Path) -> Result<Self, EmbedError> {
        let bytes = read_model_file(name, weights, MAX_FILE_BYTES)?;
        let (dimensions, rows) = rows(&bytes).map_err(|reason| broken(name, weights, &reason))?;
        let bytes = read_model_file(name, tokenizer, MAX_FILE_BYTES)?;
        let mut reader =
            Tokenizer::from_bytes(bytes).map_err(|error| broken(name, tokenizer, &error.to_string()))?;
        reader.with_padding(None);
        reader.with_truncation(None).map_err(|error| broken(name, tokenizer, &error.to_string()))?;
        let pieces = rows.len() / dimensions;
        if reader.get_vocab_size(true) > pieces {
            return Err(broken(
                name,
                tokenizer,
                &format!("it has more word pieces than the table's {pieces}"),
            ));
        }
        let unknown = reader.token_to_id("[UNK]");
        let id = format!("{name}-{dimensions}");
        let row = |piece: u32| rows.get(piece as usize * dimensions..(piece as usize + 1) * dimensions);
        let lexicon = Lexicon::new(dimensions, reader.get_vocab(false), row);
        Ok(Self(Arc::new(Table { id, tokenizer: reader, unknown, dimensions, rows, lexicon })))
    }
}

/// Dimensions and rows of the table.
fn rows(bytes: &[u8]) -> Result<(usize, Vec<f32>), String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let tensor = file.tensor("embeddings").map_err(|error| error.to_string())?;
    let &[pieces, dimensions] = tensor.shape() else { return Err("its table has not two dimensions".into()) };
    if tensor.dtype() != Dtype::F32 || pieces == 0 || dimensions == 0 {
        return Err("its table is empty or not in f32".into());
    }
    let rows: Vec<f32> =
        tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    if rows.iter().any(|x| !x.is_finite()) {
        return Err("its table has numbers that are none".into());
    }
    Ok((dimensions, rows))
}

impl Table {
    fn embed(&self, text: &str) -> Result<Vec<f32>, EmbedError> {
        let encoding = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|error| EmbedError::Unusable(format!("the tokenizer of {} failed: {error}", self.id)))?;
        let mut sum = vec![0.0; self.dimensions];
        for id in encoding.get_ids().iter().filter(|id| Some(**id) != self.unknown).take(MAX_PIECES) {
            let begin = *id as usize * self.dimensions;
            if let Some(row) = self.rows.get(begin..begin + self.dimensions) {
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
        }
        Ok(unit(sum))
    }
}

impl Embedder for StaticTable {
    fn id(&self) -> &str {
        &self.0.id
    }

    fn dimensions(&self) -> usize {
        self.0.dimensions
    }

    fn embed<'a>(&'a self, _role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a> {
        let table = self.0.clone();
        off_reactor(texts, move |texts| texts.iter().map(|text| table.embed(text)).collect())
    }

    fn related<'a>(&'a self, words: &'a [&'a str]) -> RelatedFuture<'a> {
        let table = self.0.clone();
        Box::pin(async move {
            let (words, count) = (owned(words), words.len());
            let look_up = move || -> Vec<_> {
                let related = |word: &str| Some(table.lexicon.related(word, &table.embed(word).ok()?));
                words.iter().map(|word| related(word).unwrap_or_default()).collect()
            };
            tokio::task::spawn_blocking(look_up).await.unwrap_or_else(|_| vec![Vec::new(); count])
        })
    }
}

/// Reads a file of a model; the error of a missing file names the fix.
pub(crate) fn read_model_file(name: &str, path: &Path, limit: u64) -> Result<Vec<u8>, EmbedError> {
    let length = fs::metadata(path).map(|metadata| metadata.len());
    let read = match length {
        Ok(length) if length > limit => return Err(broken(name, path, &format!("it has {length} bytes"))),
        Ok(_) => fs::read(path),
        Err(error) => Err(error),
    };
    read.map_err(|error| {
        EmbedError::Unusable(format!(
            "{} of {name} cannot be read ({error}): fetch it with `baton-relayer models pull {name}`, or configure another embedder",
            path.display()
        ))
    })
}

/// The error of a model file with wrong content.
pub(crate) fn broken(name: &str, path: &Path, reason: &str) -> EmbedError {
    EmbedError::Unusable(format!(
        "{} is not {name} ({reason}): remove it and fetch it with `baton-relayer models pull {name}`",
        path.display()
    ))
}
