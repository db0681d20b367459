//! OpenAI's API.

pub(crate) mod chat;
pub(crate) mod embeddings;
pub(crate) mod model_list;
pub(crate) mod responses;
