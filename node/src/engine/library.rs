//! Models that the native engine does not compute. A general library ([`baton_engine::candle`]) runs them, if this
//! build includes it.
//!
//! Their answers have the kind [`EngineKind::Library`](super::EngineKind::Library), and no other node can
//! check them. The native engine calls this module after its own reader refused a file.

#[cfg(feature = "library")]
mod present {
    use baton_engine::candle::{CandleFamily, CandleModel, family::Shape};
    use baton_engine::{
        batch::Solo,
        gguf::{Gguf, GgufFile},
    };

    /// Whether the library supports this architecture.
    pub(crate) fn knows(header: &Gguf) -> bool {
        CandleFamily::of(header).is_some()
    }

    /// Memory of the library beyond the file's size, in bytes.
    pub(crate) fn extra_bytes(header: &Gguf) -> Option<u64> {
        Shape::read(header).ok().map(|shape| shape.extra_bytes)
    }

    /// Opens a model for prompts and answers of `context` tokens together.
    ///
    /// # Errors
    /// Why the library refuses the file.
    pub(crate) fn open(file: &GgufFile, context: usize) -> Result<Box<dyn Solo>, String> {
        match CandleModel::open(file, context) {
            Ok(model) => Ok(Box::new(model)),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(not(feature = "library"))]
mod present {
    use baton_engine::{
        batch::Solo,
        gguf::{Gguf, GgufFile},
    };

    pub(crate) fn knows(_: &Gguf) -> bool {
        false
    }

    pub(crate) fn extra_bytes(_: &Gguf) -> Option<u64> {
        None
    }

    pub(crate) fn open(_: &GgufFile, _: usize) -> Result<Box<dyn Solo>, String> {
        Err("this program was built without the general library".to_owned())
    }
}

pub(crate) use present::{extra_bytes, knows, open};
