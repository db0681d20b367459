//! A small model of random weights, which a node can serve.

use baton_engine::gguf::DType;

use crate::{small, support::synthetic::Shape};

/// Its bytes: fewer than a megabyte.
pub(crate) fn model() -> Vec<u8> {
    let shape = Shape {
        layers: 1,
        hidden: 64,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        feed_forward: 64,
        ..Shape::new("llama", &[DType::F32])
    };
    let mut file = shape.writer();
    small::vocabulary(&mut file);
    file.finish()
}
