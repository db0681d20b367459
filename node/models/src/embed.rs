//! Text embedders, without any code of language models.
//!
//! An embedder turns texts into unit vectors whose dot product is their similarity. The operator chooses one.
//! An unusable embedder refuses to open, and is never silently off.
//!
//! This module has its own code for the static table and the transformer. The published crates would add a
//! second version of the tokenizers, or every language model that candle knows.
//!
//! ```
//! use std::path::Path;
//!
//! use baton_models::embed::{EmbedRole, Embedder as _, EmbedderConfig, open};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), baton_models::embed::EmbedError> {
//! // The hashing embedder needs no model files in the folder.
//! let embedder = open(&EmbedderConfig::Hashing {}, Path::new("models")).await?;
//! let vectors = embedder.embed(EmbedRole::Document, &["a black cat", "interest rates"]).await?;
//! let query = embedder.embed(EmbedRole::Query, &["black cats"]).await?;
//! let similarity = |vector: &[f32]| vector.iter().zip(&query[0]).map(|(a, b)| a * b).sum::<f32>();
//! assert!(similarity(&vectors[0]) > similarity(&vectors[1]));
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "embedders")]
mod bert;
mod config;
mod hashing;
#[cfg(feature = "embedders")]
mod lexicon;
#[cfg(feature = "embedders")]
mod minilm;
pub mod models;
mod remote;
#[cfg(feature = "embedders")]
mod static_table;

use std::{future::Future, pin::Pin};

use zeroize::Zeroizing;

pub use config::{EmbedderConfig, open};
pub use hashing::Hashing;
#[cfg(feature = "embedders")]
pub use lexicon::CombinedEmbedder;
#[cfg(feature = "embedders")]
pub use minilm::MiniLm;
pub use remote::{Remote, RemoteConfig, Roles};
#[cfg(feature = "embedders")]
pub use static_table::StaticTable;

/// Most related words of one word; later ones are hardly similar.
pub const MAX_RELATED: usize = 32;

/// A word that is used like another word.
#[derive(Clone, Debug, PartialEq)]
pub struct RelatedWord {
    /// In lower case.
    pub word: String,
    /// Cosine with the other word.
    pub likeness: f32,
}

/// The role of a text: some models embed queries and documents differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedRole {
    /// A question or message that searches.
    Query,
    /// A text to be found.
    Document,
}

/// Why embedding failed.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The embedder cannot be used as configured; the text says what to change.
    #[error("the embedder cannot be used: {0}")]
    Unusable(String),
    /// It does not respond now; retry later.
    #[error("the embedder is unavailable: {0}")]
    Unavailable(String),
}

/// A text's vector, with the number of embedded tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedVector {
    /// The vector.
    pub vector: Vec<f32>,
    /// Embedded tokens, including those that the model adds; words, if a model has no tokens.
    pub tokens: usize,
}

/// Boxed counted vectors, so that the trait can be used as `dyn`.
pub type CountedFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<CountedVector>, EmbedError>> + Send + 'a>>;

/// A boxed embedding, so that the trait can be used as `dyn`.
pub type EmbedFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<Vec<f32>>, EmbedError>> + Send + 'a>>;

/// Boxed related words, so that the trait can be used as `dyn`.
pub type RelatedFuture<'a> = Pin<Box<dyn Future<Output = Vec<Vec<RelatedWord>>> + Send + 'a>>;

/// Turns texts into unit vectors.
pub trait Embedder: Send + Sync {
    /// Names model, version and dimensions. Only vectors of the same ID can be compared.
    fn id(&self) -> &str;
    /// Length of every vector.
    fn dimensions(&self) -> usize;
    /// One unit vector for each text, in order; all zeros for a text without words. It computes off the
    /// reactor.
    fn embed<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a>;
    /// As [`Embedder::embed`], with counts. Dropping the future stops the work soon.
    fn embed_counted<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> CountedFuture<'a> {
        Box::pin(async move {
            let vectors = self.embed(role, texts).await?;
            let counted = vectors.into_iter().zip(texts).map(|(vector, text)| {
                let words = beginning(text).split(|c: char| !c.is_alphanumeric());
                CountedVector { vector, tokens: words.filter(|word| !word.is_empty()).count() }
            });
            Ok(counted.collect())
        })
    }
    /// For each word, similarly used words, the most similar first: at most [`MAX_RELATED`].
    ///
    /// An embedder without single words returns none. It computes off the reactor.
    fn related<'a>(&'a self, words: &'a [&'a str]) -> RelatedFuture<'a> {
        Box::pin(std::future::ready(vec![Vec::new(); words.len()]))
    }
}

/// Most bytes of one text that are embedded; the rest is cut off. Models use at most some hundreds of word
/// pieces.
const MAX_TEXT_BYTES: usize = 8 * 1024;

/// Texts of a request that outlive the reactor's stack, cut to the embedded beginning and wiped after use.
type OwnedTexts = Vec<Zeroizing<String>>;

fn owned(texts: &[&str]) -> OwnedTexts {
    texts.iter().map(|text| Zeroizing::new(beginning(text).to_owned())).collect()
}

/// The part of a text that is embedded.
fn beginning(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT_BYTES)).unwrap_or(text)
}

/// Computes vectors on a thread for blocking work.
fn off_reactor<'a, F>(texts: &'a [&'a str], compute: F) -> EmbedFuture<'a>
where
    F: FnOnce(OwnedTexts) -> Result<Vec<Vec<f32>>, EmbedError> + Send + 'static,
{
    Box::pin(async move {
        let texts = owned(texts);
        let computed = tokio::task::spawn_blocking(move || compute(texts)).await;
        computed.map_err(|_| EmbedError::Unavailable("the computation was stopped".into()))?
    })
}

/// Scales a vector to length one; all zeros if it has no direction.
fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let factor = if norm > 1e-12 && norm.is_finite() { 1.0 / norm } else { 0.0 };
    for component in &mut vector {
        // The branch avoids 0 times infinity, which is not a number.
        *component = if factor > 0.0 { *component * factor } else { 0.0 };
    }
    vector
}
