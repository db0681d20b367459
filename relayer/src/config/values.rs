//! The types of options that only a relayer has.

use baton_kit::config::{OptionEntry, OptionType};
use baton_models::embed::Roles;
use clap::ValueEnum;

/// `none`, or a kind of role with its words for queries and for documents.
pub(super) const ROLES: OptionType<Roles> = OptionType::new("ROLES", roles, |value| match value {
    Roles::None => "none".into(),
    Roles::Prefix { query, document } => format!("prefix:{query}|{document}").into(),
    Roles::InputType { query, document } => format!("input_type:{query}|{document}").into(),
});

fn roles(entry: &OptionEntry, text: &str) -> Result<Roles, String> {
    if text == "none" {
        return Ok(Roles::None);
    }
    let parts = text.split_once(':').and_then(|(kind, words)| Some((kind, words.split_once('|')?)));
    match parts.map(|(kind, (query, document))| (kind, query.to_owned(), document.to_owned())) {
        Some(("prefix", query, document)) => Ok(Roles::Prefix { query, document }),
        Some(("input_type", query, document)) => Ok(Roles::InputType { query, document }),
        _ => entry.refuse(),
    }
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
