//! Reading a GGUF file: its bytes are read once, and what is hashed is what is used.

use std::{
    io::{Cursor, Read as _},
    path::Path,
    sync::Mutex,
};

use candle_core::{
    DType, Device, Tensor,
    quantized::gguf_file::{Content, Value},
};
use sha2::{Digest as _, Sha256};

use super::LoadError;

/// A model file in memory.
pub(super) struct ModelFile {
    content: Content,
    bytes: Mutex<Cursor<Vec<u8>>>,
    sha256: [u8; 32],
}

impl ModelFile {
    /// Reads and parses a file of at most `limit` bytes.
    pub(super) fn read(path: &Path, limit: u64) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Read { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        if size > limit {
            return Err(LoadError::TooLarge { bytes: size, limit });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(bytes)
    }

    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, LoadError> {
        let sha256 = Sha256::digest(&bytes).into();
        let mut cursor = Cursor::new(bytes);
        let content = Content::read(&mut cursor).map_err(|error| format_error(&error))?;
        Ok(Self { content, bytes: Mutex::new(cursor), sha256 })
    }

    /// SHA-256 of the file.
    pub(super) fn sha256(&self) -> [u8; 32] {
        self.sha256
    }

    /// Looks at the whole file.
    pub(super) fn with_bytes<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(self.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_ref())
    }

    pub(super) fn text(&self, key: &str) -> Result<&str, LoadError> {
        match self.content.metadata.get(key) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(LoadError::Metadata { key: key.into() }),
        }
    }

    pub(super) fn architecture(&self) -> Result<&str, LoadError> {
        self.text("general.architecture")
    }

    /// A number that must lie in `1..=limit`.
    pub(super) fn size(&self, key: &str, limit: usize) -> Result<usize, LoadError> {
        let value = self.content.metadata.get(key).and_then(|value| value.to_u64().ok());
        let value = value.and_then(|value| usize::try_from(value).ok());
        value.filter(|value| (1..=limit).contains(value)).ok_or(LoadError::Metadata { key: key.into() })
    }

    pub(super) fn float(&self, key: &str) -> Option<f32> {
        self.content.metadata.get(key).and_then(|value| value.to_f32().ok())
    }

    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    /// A tensor as f32, which must have exactly `shape`.
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let info = self.content.tensor_infos.get(name);
        let info = info.ok_or_else(|| LoadError::Format { reason: format!("tensor {name} is missing") })?;
        if info.shape.dims() != shape {
            let reason = format!("tensor {name} has shape {:?}, expected {shape:?}", info.shape.dims());
            return Err(LoadError::Format { reason });
        }
        let mut bytes = self.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let read = || -> candle_core::Result<Tensor> {
            let tensor = self.content.tensor(&mut *bytes, name, &Device::Cpu)?;
            tensor.dequantize(&Device::Cpu)?.to_dtype(DType::F32)
        };
        let mut read = read;
        read().map_err(|error| format_error(&error))
    }
}

/// Candle's message without a backtrace.
pub(super) fn format_error(error: &candle_core::Error) -> LoadError {
    LoadError::Format { reason: error.to_string().lines().next().unwrap_or_default().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_gguf_file() {
        for bytes in
            [&b""[..], b"GGUF", b"not a model at all", &[0x47, 0x47, 0x55, 0x46, 3, 0, 0, 0, 255, 255]]
        {
            assert!(matches!(ModelFile::parse(bytes.to_vec()), Err(LoadError::Format { .. })));
        }
    }

    #[test]
    fn names_a_file_that_is_missing_or_too_large() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.gguf");
        assert!(matches!(ModelFile::read(&path, 10), Err(LoadError::Read { path: p, .. }) if p == path));
        std::fs::write(&path, [0; 11]).unwrap();
        assert!(matches!(ModelFile::read(&path, 10), Err(LoadError::TooLarge { bytes: 11, limit: 10 })));
    }
}
