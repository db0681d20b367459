//! Reads a GGUF file's header before the model is loaded: its validity, and the memory for serving it.

use std::path::Path;

use baton_engine::{
    config::{Config, ConfigError},
    gguf::{Gguf, GgufError, GgufFile},
};

use crate::engine::library;

/// Memory for serving a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the file; its weights take about as many in memory.
    pub file_bytes: u64,
    /// Extra bytes of the general library; `None` if the native engine computes the model.
    pub library_bytes: Option<u64>,
    /// Tokens of context that the model was trained for, if the native engine computes it.
    pub context_tokens: Option<usize>,
}

/// Why a file cannot be served as a model.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    /// Its header is invalid.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Neither the engine nor the library computes this architecture.
    #[error(
        "models of the architecture {0:?} are computed neither by the engine nor by the library that it falls back to; serve \
         it through --engine proxied"
    )]
    Architecture(String),
}

impl Shape {
    /// Reads a file's header. Allocates nothing for contents that the file cannot hold.
    ///
    /// # Errors
    /// `ShapeError` for an invalid header, and for an unknown architecture.
    pub fn read(path: &Path) -> Result<Self, ShapeError> {
        let file = GgufFile::open(path)?;
        let shape = Self::of(file.header(), file.bytes().len() as u64)?;
        // A file with only metadata is valid, but is no model.
        if file.header().tensors().is_empty() {
            return Err(GgufError::Missing("tensors".to_owned()).into());
        }
        Ok(shape)
    }

    fn of(header: &Gguf, file_bytes: u64) -> Result<Self, ShapeError> {
        const FAMILY: &str = "general.architecture";
        header.optional_str(FAMILY)?.ok_or_else(|| GgufError::Missing(FAMILY.to_owned()))?;
        let config = Config::read(header);
        let context_tokens = config.as_ref().ok().map(|config| config.context);
        let library = match config {
            Ok(_) => None,
            Err(ConfigError::Family(name)) if !library::knows(header) => {
                return Err(ShapeError::Architecture(name));
            }
            // Other errors are reported when the model is loaded.
            Err(_) => library::extra_bytes(header),
        };
        Ok(Self { file_bytes, library_bytes: library, context_tokens })
    }

    /// Memory of the model in bytes, with `kv_mb` megabytes of keys and values.
    #[must_use]
    pub fn footprint(&self, kv_mb: u32) -> u64 {
        self.file_bytes.saturating_add(self.library_bytes.unwrap_or(0)).saturating_add(u64::from(kv_mb) << 20)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A header with these entries (name and number), and one tensor of 32 numbers.
    fn header(family: &str, numbers: &[(&str, u32)]) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend((numbers.len() as u64 + 1).to_le_bytes());
        text(&mut bytes, "general.architecture");
        bytes.extend(8u32.to_le_bytes());
        text(&mut bytes, family);
        for (key, value) in numbers {
            text(&mut bytes, &format!("{family}.{key}"));
            bytes.extend(4u32.to_le_bytes());
            bytes.extend(value.to_le_bytes());
        }
        text(&mut bytes, "token_embd.weight");
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(32u64.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(32) + 128, 0);
        bytes
    }

    const SMOLLM2: [(&str, u32); 5] = [
        ("block_count", 30),
        ("attention.head_count", 9),
        ("attention.head_count_kv", 3),
        ("embedding_length", 576),
        ("context_length", 8192),
    ];

    fn read(bytes: &[u8]) -> Result<Shape, ShapeError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::write(&path, bytes).unwrap();
        Shape::read(&path)
    }

    #[test]
    fn memory_is_the_file_and_the_cache_of_every_slot() {
        let bytes = header("llama", &SMOLLM2);
        let shape = read(&bytes).unwrap();
        assert_eq!(shape.footprint(3), bytes.len() as u64 + 3 * 1024 * 1024);
    }

    #[test]
    fn a_file_that_a_node_could_not_load_is_refused_before_it_has_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::write(&path, header("llama", &SMOLLM2)).unwrap();
        assert!(Shape::read(&path).is_ok());
        let refused = crate::models::check_file(&path).unwrap_err();
        assert!(refused.contains("tokenizer"), "{refused}");
    }

    #[test]
    fn files_that_lie_are_refused_with_what_is_wrong() {
        let sound = header("llama", &SMOLLM2);
        let changed = |at: usize, with: &[u8]| {
            let mut bytes = sound.clone();
            bytes[at..at + with.len()].copy_from_slice(with);
            bytes
        };
        let place = sound.windows(17).position(|part| part == b"token_embd.weight").unwrap() + 17;
        for (bytes, said) in [
            (Vec::new(), "not a GGUF file"),
            (b"not a model".to_vec(), "not a GGUF file"),
            (sound[..60].to_vec(), "entry count of 6 is above"),
            (sound[..sound.len() - 64].to_vec(), "lies"),
            (changed(4, &1u32.to_le_bytes()), "version 1"),
            (changed(8, &u64::MAX.to_le_bytes()), "tensor count"),
            (changed(16, &u64::MAX.to_le_bytes()), "entry count"),
            (changed(24, &u64::MAX.to_le_bytes()), "above"),
            (changed(place, &9u32.to_le_bytes()), "shape"),
            (changed(place + 4, &u64::MAX.to_le_bytes()), "shape"),
            (changed(place + 12, &77u32.to_le_bytes()), "type 77"),
            (changed(place + 16, &(1u64 << 40).to_le_bytes()), "lies"),
            (changed(place + 16, &7u64.to_le_bytes()), "lies"),
        ] {
            let refused = read(&bytes).unwrap_err().to_string();
            assert!(refused.contains(said), "{said}: {refused}");
        }
        let refused = read(&header("mamba", &[])).unwrap_err().to_string();
        assert!(refused.contains("\"mamba\"") && refused.contains("--engine proxied"), "{refused}");
        let mut empty = header("llama", &SMOLLM2);
        empty[8..16].fill(0);
        assert!(read(&empty).is_err());
    }
}
