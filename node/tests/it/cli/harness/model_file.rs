//! A valid but useless model file: a header of a small Llama's shape, and one tensor of 32 numbers.

/// Its bytes.
pub(crate) fn model() -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    let shape = [
        ("llama.block_count", 30u32),
        ("llama.attention.head_count", 9),
        ("llama.attention.head_count_kv", 3),
        ("llama.embedding_length", 576),
        ("llama.context_length", 8192),
    ];
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend((1 + shape.len() as u64).to_le_bytes());
    text(&mut bytes, "general.architecture");
    bytes.extend(8u32.to_le_bytes());
    text(&mut bytes, "llama");
    for (key, value) in shape {
        text(&mut bytes, key);
        bytes.extend(4u32.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    text(&mut bytes, "w");
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(32u64.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32) + 128, 0);
    bytes
}
