//! Writes GGUF files, sound and malformed.

/// A file in progress.
#[derive(Default, Clone)]
pub(crate) struct Writer {
    entries: Vec<u8>,
    entry_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

pub(crate) const ALIGNMENT: usize = 32;

impl Writer {
    pub(crate) fn raw_entry(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.entries.extend((key.len() as u64).to_le_bytes());
        self.entries.extend(key.as_bytes());
        self.entries.extend(kind.to_le_bytes());
        self.entries.extend(value);
        self.entry_count += 1;
        self
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.raw_entry(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw_entry(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn string(&mut self, key: &str, value: &str) -> &mut Self {
        self.raw_entry(key, 8, &[&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat())
    }

    pub(crate) fn strings(&mut self, key: &str, values: &[&str]) -> &mut Self {
        let mut bytes = 8_u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            bytes.extend((value.len() as u64).to_le_bytes());
            bytes.extend(value.as_bytes());
        }
        self.raw_entry(key, 9, &bytes)
    }

    /// A list of four-byte numbers of this type.
    pub(crate) fn numbers(
        &mut self,
        key: &str,
        kind: u32,
        values: impl IntoIterator<Item = [u8; 4]>,
    ) -> &mut Self {
        let values: Vec<[u8; 4]> = values.into_iter().collect();
        let count = (values.len() as u64).to_le_bytes();
        self.raw_entry(key, 9, &[&kind.to_le_bytes()[..], &count, &values.concat()].concat())
    }

    /// Adds a tensor's description, true or false. `shape` has its columns first.
    pub(crate) fn raw_tensor(&mut self, name: &str, shape: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.tensors.extend((name.len() as u64).to_le_bytes());
        self.tensors.extend(name.as_bytes());
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        for size in shape {
            self.tensors.extend(size.to_le_bytes());
        }
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    pub(crate) fn tensor(&mut self, name: &str, shape: &[u64], kind: u32, bytes: &[u8]) -> &mut Self {
        let offset = self.data.len() as u64;
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        self.raw_tensor(name, shape, kind, offset)
    }

    pub(crate) fn f32s(&mut self, name: &str, values: &[f32]) -> &mut Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, &[values.len() as u64], 0, &bytes)
    }

    /// The file with the given counts.
    pub(crate) fn finish_with(&self, version: u32, tensor_count: u64, entry_count: u64) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(version.to_le_bytes());
        file.extend(tensor_count.to_le_bytes());
        file.extend(entry_count.to_le_bytes());
        file.extend(&self.entries);
        file.extend(&self.tensors);
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(&self.data);
        file
    }

    pub(crate) fn finish(&self) -> Vec<u8> {
        self.finish_with(3, self.tensor_count, self.entry_count)
    }
}
