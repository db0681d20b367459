//! Option values with a name.

use clap::ValueEnum;

/// How an embedding endpoint distinguishes queries from documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RolesSetting {
    /// It does not.
    #[default]
    None,
    /// By words before the text.
    Prefix,
    /// By the field `input_type` of its requests.
    #[value(name = "input_type")]
    InputType,
}

/// The kind of embedder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EmbedderSetting {
    /// The best available one: `static` once its model was pulled, otherwise `hashing`.
    #[default]
    Auto,
    /// 384 dimensions, without a model.
    Hashing,
    /// potion-base-8M, a static table.
    Static,
    /// all-MiniLM-L6-v2.
    #[value(name = "minilm")]
    MiniLm,
    /// Any OpenAI-compatible `/v1/embeddings`.
    Endpoint,
}
