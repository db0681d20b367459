//! `/v1/models`: the models that the found nodes serve.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::{Path, State},
};
use baton_proto::{node_record::ModelOffer, receipt::EngineKind};
use serde_json::{Value, json};

use super::{ApiError, Gateway};

/// A model with the number of nodes that serve it.
struct ModelEntry {
    offer: ModelOffer,
    nodes: usize,
    since_s: u64,
}

impl ModelEntry {
    fn describe(&self, name: &str) -> Value {
        json!({
            "id": name,
            "object": "model",
            "created": self.since_s,
            "owned_by": "baton",
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

/// Models by name. If nodes serve several models under one name, the first one found represents it.
async fn models_by_name(gateway: &Gateway) -> BTreeMap<String, ModelEntry> {
    let mut models = BTreeMap::new();
    for node in gateway.client().nodes().await {
        for offer in &node.record.models {
            if offer.engine == EngineKind::Echo && !gateway.config().template.allow_echo {
                continue;
            }
            let since_s = node.record.issued_ms / 1000;
            let entry = models.entry(offer.name.clone());
            entry.or_insert_with(|| ModelEntry { offer: offer.clone(), nodes: 0, since_s }).nodes += 1;
        }
    }
    models
}

/// The list: chat models first, since programs that name no model take the first.
pub(super) async fn list(State(gateway): State<Gateway>) -> Json<Value> {
    let models = models_by_name(&gateway).await;
    let embeds = |entry: &ModelEntry| entry.offer.engine == EngineKind::Embedding;
    let (embedding, talking): (Vec<_>, Vec<_>) = models.iter().partition(|(_, entry)| embeds(entry));
    let all = talking.into_iter().chain(embedding);
    let data: Vec<Value> = all.map(|(name, entry)| entry.describe(name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// One model by its name.
pub(super) async fn one(
    State(gateway): State<Gateway>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let models = models_by_name(&gateway).await;
    let found = models.get(&name).map(|entry| Json(entry.describe(&name)));
    found.ok_or_else(|| ApiError::missing("model_not_found", format!("no node serves the model {name:?}")))
}
