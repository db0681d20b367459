//! The models that the found nodes serve.

use std::collections::BTreeMap;

use baton_client::{ClientError, choose::NoChoice};
use baton_proto::{node_record::ModelOffer, receipt::EngineKind};
use serde_json::{Value, json};

use crate::{http::api_error::ApiError, state::Gateway};

/// A model with the number of nodes that serve it.
pub(crate) struct ModelEntry {
    pub(crate) offer: ModelOffer,
    pub(crate) nodes: usize,
    /// When a node issued the offer, in seconds since the Unix epoch.
    pub(crate) since_s: u64,
}

impl ModelEntry {
    /// In the form of OpenAI's API.
    pub(crate) fn describe(&self, name: &str) -> Value {
        json!({
            "id": name,
            "object": "model",
            "created": self.since_s,
            "owned_by": "baton",
            // As OpenRouter and vLLM name the length of a context.
            "context_length": self.offer.context_tokens,
            "max_model_len": self.offer.context_tokens,
            "baton": {
                "model": self.offer.model.to_string(),
                "engine": self.offer.engine.name(),
                "nodes": self.nodes,
                "context_tokens": self.offer.context_tokens,
                "input_price": self.offer.input_price,
                "output_price": self.offer.output_price,
            },
        })
    }
}

/// The models with their names: chat models first, since programs that name no model take the first.
///
/// If nodes serve several models under one name, the first one found represents it.
/// Without a node, the models are unknown. An empty list would say that there are none, and programs would
/// show an empty menu without a cause; an error names the cause, and its status says to ask again.
pub(crate) async fn offered(gateway: &Gateway) -> Result<Vec<(String, ModelEntry)>, ApiError> {
    let mut models = BTreeMap::new();
    let nodes = gateway.client().nodes().await;
    gateway.inner.model_names.lock().learn(&nodes);
    for node in nodes {
        for offer in &node.record.models {
            if offer.engine == EngineKind::Echo && !gateway.config().template.route.allow_echo {
                continue;
            }
            let since_s = node.record.issued_ms / 1000;
            let entry = models.entry(offer.name.clone());
            entry.or_insert_with(|| ModelEntry { offer: offer.clone(), nodes: 0, since_s }).nodes += 1;
        }
    }
    if models.is_empty() {
        return Err(no_models(gateway).await);
    }
    let embeds = |entry: &ModelEntry| entry.offer.engine == EngineKind::Embedding;
    let (embedding, talking): (Vec<_>, Vec<_>) = models.into_iter().partition(|(_, entry)| embeds(entry));
    Ok(talking.into_iter().chain(embedding).collect())
}

/// A model's name without the tag that Ollama's clients add to a name without one.
pub(crate) fn bare_name(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// Whether each found node that serves this model, or any model without a name, reports token probabilities.
pub(crate) async fn report_probabilities(gateway: &Gateway, model: Option<&str>) -> bool {
    let nodes = gateway.client().nodes().await;
    let offers = nodes.iter().flat_map(|node| &node.record.models);
    let mut engines = offers
        .filter(|offer| offer.engine != EngineKind::Embedding)
        .filter(|offer| model.is_none_or(|model| offer.name == model || offer.model.to_string() == model))
        .map(|offer| offer.engine)
        .peekable();
    engines.peek().is_some() && engines.all(|engine| engine == EngineKind::Native)
}

/// A model by its name.
pub(crate) async fn find(gateway: &Gateway, name: &str) -> Result<ModelEntry, ApiError> {
    let mut models = offered(gateway).await?.into_iter();
    let missing = || ApiError::new("model_not_found", format!("no node serves the model {name:?}"));
    models.find(|(known, _)| known == name).map(|(_, entry)| entry).ok_or_else(missing)
}

/// Why no model can be listed.
async fn no_models(gateway: &Gateway) -> ApiError {
    let client = gateway.client();
    if !client.nodes().await.is_empty() {
        return ClientError::NoNode(NoChoice::OnlyEcho).into();
    }
    let named = client.mesh().network().bootstrap;
    let tried = named.iter().map(|node| match &node.failure {
        Some(failure) => format!("{} ({failure})", node.address),
        None => node.address.to_string(),
    });
    let tried = tried.collect::<Vec<_>>().join(", ");
    let tried = if tried.is_empty() { "the local network" } else { &tried };
    let message =
        format!("no node was found; tried: {tried} (is the node running? see why with baton doctor)");
    ApiError::new("no_node", message)
}
