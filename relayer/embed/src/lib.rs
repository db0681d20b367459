//! Text embedders, without any code of language models.
//!
//! An embedder turns texts into unit vectors whose dot product is their similarity. Which one is used is the operator's
//! choice; one that cannot work refuses to open, and is never silently off.
//!
//! The static table and the transformer are read by code of this crate: the published crates for them would bring a second
//! version of the tokenizers, or all the language models that candle knows.

#[cfg(feature = "models")]
mod bert;
mod config;
mod hashing;
#[cfg(feature = "models")]
mod minilm;
pub mod models;
#[cfg(feature = "models")]
mod related;
mod remote;
#[cfg(feature = "models")]
mod static_table;

use std::{future::Future, pin::Pin};

use zeroize::Zeroizing;

pub use config::{EmbedderConfig, open};
pub use hashing::Hashing;
#[cfg(feature = "models")]
pub use minilm::MiniLm;
#[cfg(feature = "models")]
pub use related::WithTable;
pub use remote::{Remote, RemoteConfig, Roles};
#[cfg(feature = "models")]
pub use static_table::StaticTable;

/// Most words that are named as related to one: those after them are hardly alike.
pub const MAX_RELATED: usize = 32;

/// A word that is used like another.
#[derive(Clone, Debug, PartialEq)]
pub struct Related {
    /// In lower case.
    pub word: String,
    /// Cosine with the other word.
    pub likeness: f32,
}

/// What a text is embedded as: some models embed what is sought and what is found differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedRole {
    /// A question or message that seeks.
    Query,
    /// A text that is to be found.
    Document,
}

/// Why nothing was embedded.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The embedder cannot be used as configured; the text says what to change.
    #[error("the embedder cannot be used: {0}")]
    Unusable(String),
    /// It did not answer now; later it may.
    #[error("the embedder is unavailable: {0}")]
    Unavailable(String),
}

/// A text's vector, and how much of the text it is of.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// The vector.
    pub vector: Vec<f32>,
    /// Tokens that were embedded, those included that the model adds; words, where a model has no tokens.
    pub tokens: usize,
}

/// Boxed counted vectors, so that the trait can be used as `dyn`.
pub type CountedFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<Counted>, EmbedError>> + Send + 'a>>;

/// A boxed embedding, so that the trait can be used as `dyn`.
pub type EmbedFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<Vec<f32>>, EmbedError>> + Send + 'a>>;

/// Boxed related words, so that the trait can be used as `dyn`.
pub type RelatedFuture<'a> = Pin<Box<dyn Future<Output = Vec<Vec<Related>>> + Send + 'a>>;

/// Texts to unit vectors.
pub trait Embedder: Send + Sync {
    /// Names model, version and dimensions: vectors of one id can be compared with each other and with no others.
    fn id(&self) -> &str;
    /// Length of every vector.
    fn dimensions(&self) -> usize;
    /// One unit vector for each text, in their order (all zeros for a text without any word). Computation happens off
    /// the reactor.
    fn embed<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a>;
    /// As [`Embedder::embed`], with counts. A future that is dropped stops the work soon.
    fn embed_counted<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> CountedFuture<'a> {
        Box::pin(async move {
            let vectors = self.embed(role, texts).await?;
            let counted = vectors.into_iter().zip(texts).map(|(vector, text)| {
                let words = beginning(text).split(|c: char| !c.is_alphanumeric());
                Counted { vector, tokens: words.filter(|word| !word.is_empty()).count() }
            });
            Ok(counted.collect())
        })
    }
    /// For each word the words that are used like it, most alike first: at most [`MAX_RELATED`], and none for an embedder
    /// that knows no words by themselves. Computation happens off the reactor.
    fn related<'a>(&'a self, words: &'a [&'a str]) -> RelatedFuture<'a> {
        Box::pin(std::future::ready(vec![Vec::new(); words.len()]))
    }
}

/// Most bytes of one text that are embedded: what is longer is embedded by its beginning. Models look at some hundreds of
/// word pieces at most.
const MAX_TEXT_BYTES: usize = 8 * 1024;

/// Texts of a request that outlive the reactor's stack: cut to what is embedded, and wiped when they are done with.
type OwnedTexts = Vec<Zeroizing<String>>;

fn owned(texts: &[&str]) -> OwnedTexts {
    texts.iter().map(|text| Zeroizing::new(beginning(text).to_owned())).collect()
}

/// The beginning of a text that is embedded.
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

/// A vector of length one, or all zeros where there is no direction.
fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let factor = if norm > 1e-12 && norm.is_finite() { 1.0 / norm } else { 0.0 };
    for component in &mut vector {
        // Not a product alone: 0 times infinity is not a number.
        *component = if factor > 0.0 { *component * factor } else { 0.0 };
    }
    vector
}
