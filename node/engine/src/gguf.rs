//! The GGUF file format (version 2 and 3, little-endian): the contents and their places, not their meaning.
//!
//! [`Gguf::parse`] reads a header from untrusted bytes. It checks every count and length against the rest of
//! the file *before* it allocates memory. So a malformed file costs no more memory than its own size. Tensors
//! must lie within the file, aligned, without overlap.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

// Bytes of others come here: a read out of bounds must not panic.
#![warn(clippy::indexing_slicing)]

mod cursor;
mod file;
mod tensor;
mod value;

use std::collections::{HashMap, HashSet};

use cursor::Cursor;
pub use file::GgufFile;
pub use tensor::{DType, Tensor};
pub use value::{Array, Value, ValueKind};

/// Maximum number of tensors in a file. The largest dense models have about 1,200, models with experts a few
/// thousand.
pub const MAX_TENSORS: u64 = 16_384;

/// Maximum number of metadata entries in a file. Real files have 20 to 60.
pub const MAX_ENTRIES: u64 = 4_096;

/// Maximum size in bytes of a key or a tensor's name. The format allows 65,535 and 64; real names are below
/// 100.
pub const MAX_NAME_BYTES: u64 = 1_024;

/// Maximum size in bytes of a string. The longest in real files are chat templates of some tens of thousands.
pub const MAX_STRING_BYTES: u64 = 1 << 20;

/// Maximum number of elements of an array. The largest in real files are vocabularies and merges of about
/// 500,000.
pub const MAX_ARRAY_ELEMENTS: u64 = 1 << 22;

/// Maximum size in bytes of the whole header. Vocabularies make up nearly all of it, at most some 20 MB in
/// real files.
pub const MAX_HEADER_BYTES: u64 = 1 << 28;

/// Maximum number of elements of a tensor: more than any model that fits a machine of today.
pub const MAX_TENSOR_ELEMENTS: u64 = 1 << 40;

/// The tensors' alignment if the file does not state one.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The largest alignment accepted.
const MAX_ALIGNMENT: u64 = 65_536;

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or mapped.
    #[error("the model file cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The file's contents are not sound.
    #[error("{0}")]
    Unsound(String),
    /// A tensor in an encoding that this engine does not read.
    #[error("tensor {name:?} has type {id}, which is not read")]
    TensorType {
        /// The tensor.
        name: String,
        /// The type's number in the file.
        id: u32,
    },
    /// An entry is missing.
    #[error("the file has no {0:?}")]
    Missing(String),
    /// An entry of the wrong type.
    #[error("{key:?} is not {wanted}")]
    Kind {
        /// The entry.
        key: String,
        /// The expected type.
        wanted: &'static str,
    },
}

fn unsound(what: impl Into<String>) -> GgufError {
    GgufError::Unsound(what.into())
}

/// Two entries or two tensors of the same name.
fn twice(name: &str) -> GgufError {
    unsound(format!("{name:?} appears twice"))
}

/// A file's header: its metadata, and the places of its tensors.
#[derive(Debug, Clone)]
pub struct Gguf {
    entries: HashMap<String, Value>,
    tensors: Vec<Tensor>,
    names: HashMap<String, usize>,
}

impl Gguf {
    /// Reads the header of a whole file. `bytes` is the file from its first byte to its last.
    ///
    /// # Errors
    /// [`GgufError`] if anything is not sound. Nothing is allocated beyond the file's capacity.
    pub fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(bytes);
        let (entries, tensor_count) = Self::read_entries(&mut cursor)?;
        let mut tensors = Vec::with_capacity(tensor_count);
        let mut names = HashMap::with_capacity(tensor_count);
        for index in 0..tensor_count {
            let tensor = Tensor::read(&mut cursor)?;
            if names.insert(tensor.name.clone(), index).is_some() {
                return Err(twice(&tensor.name));
            }
            tensors.push(tensor);
        }
        let mut gguf = Self { entries, tensors, names };
        gguf.place(cursor.position(), bytes.len() as u64)?;
        Ok(gguf)
    }

    /// Reads the metadata alone. Accepts files with tensors of unsupported types, and files of which only the
    /// beginning exists.
    ///
    /// # Errors
    /// As [`Self::parse`], for the bytes before the tensors' descriptions.
    pub fn parse_metadata(bytes: &[u8]) -> Result<Self, GgufError> {
        let (entries, _) = Self::read_entries(&mut Cursor::new(bytes))?;
        Ok(Self { entries, tensors: Vec::new(), names: HashMap::new() })
    }

    /// Reads the part before the tensors' descriptions: the metadata, and the number of tensors.
    fn read_entries(cursor: &mut Cursor<'_>) -> Result<(HashMap<String, Value>, usize), GgufError> {
        if cursor.take(4, "its magic").ok() != Some(b"GGUF".as_slice()) {
            return Err(unsound("this is not a GGUF file"));
        }
        let version = cursor.u32("its version")?;
        if !(2..=3).contains(&version) {
            return Err(unsound(format!("GGUF version {version} is not read (2 and 3 little-endian are)")));
        }
        // Minimum sizes in bytes: a name's length, a dimension count, one dimension, type, offset; a key's
        // length, type, value.
        let tensor_count = cursor.count("tensor count", MAX_TENSORS, 8 + 4 + 8 + 4 + 8)?;
        let entry_count = cursor.count("entry count", MAX_ENTRIES, 8 + 4 + 1)?;

        let mut entries = HashMap::with_capacity(entry_count);
        for _ in 0..entry_count {
            let key = cursor.string("a key", MAX_NAME_BYTES)?.to_owned();
            let value = Value::read(cursor)?;
            if entries.insert(key.clone(), value).is_some() {
                return Err(twice(&key));
            }
        }
        Ok((entries, tensor_count))
    }

    /// Turns the tensors' offsets into places in the file, and checks them.
    fn place(&mut self, header_end: u64, file_bytes: u64) -> Result<(), GgufError> {
        let alignment = self.optional_u64("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || !(8..=MAX_ALIGNMENT).contains(&alignment) {
            return Err(unsound(format!("an alignment of {alignment} is not accepted")));
        }
        let data_start = header_end.next_multiple_of(alignment);
        for tensor in &mut self.tensors {
            let refuse = |why| Err(unsound(format!("tensor {:?} lies {why}", tensor.name)));
            if !tensor.offset.is_multiple_of(alignment) {
                return refuse("off its alignment");
            }
            let Some(start) = data_start.checked_add(tensor.offset) else {
                return refuse("beyond any file");
            };
            match start.checked_add(tensor.bytes) {
                Some(end) if end <= file_bytes => tensor.offset = start,
                _ => return refuse("beyond the file's end"),
            }
        }
        let mut order: Vec<&Tensor> = self.tensors.iter().collect();
        order.sort_by_key(|tensor| tensor.offset);
        for pair in order.windows(2) {
            if let [first, second] = pair
                && first.offset + first.bytes > second.offset
            {
                return Err(unsound(format!("tensor {:?} lies over another one", second.name)));
            }
        }
        Ok(())
    }

    /// A metadata entry.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// The metadata's keys, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// All tensors, in the file's order.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// A tensor by its name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(*self.names.get(name)?)
    }

    /// The tensors that are not in `used`: the model's loader did not ask for them.
    #[must_use]
    pub fn unused<'a>(&'a self, used: &HashSet<String>) -> Vec<&'a str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str()).filter(|name| !used.contains(*name)).collect()
    }

    /// A required entry: a whole number of at least zero.
    ///
    /// # Errors
    /// [`GgufError::Missing`] or [`GgufError::Kind`].
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        self.optional_u64(key)?.ok_or_else(|| GgufError::Missing(key.to_owned()))
    }

    /// An optional entry: a whole number of at least zero.
    ///
    /// # Errors
    /// [`GgufError::Kind`].
    pub fn optional_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let kind = || GgufError::Kind { key: key.to_owned(), wanted: "a whole number" };
        value.as_u64().map(Some).ok_or_else(kind)
    }

    /// An optional entry: a finite number.
    ///
    /// # Errors
    /// [`GgufError::Kind`].
    pub fn optional_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(value)) if value.is_finite() => Ok(Some(*value)),
            Some(_) => Err(GgufError::Kind { key: key.to_owned(), wanted: "a finite number" }),
        }
    }

    /// An optional entry: a string.
    ///
    /// # Errors
    /// [`GgufError::Kind`].
    pub fn optional_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(GgufError::Kind { key: key.to_owned(), wanted: "a string" }),
        }
    }
}
