//! `/v1/embeddings`: texts to vectors, by a node that offers it.

use axum::{Json, body::Body};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use baton_proto::{ErrorCode, limits::MAX_EMBED_TEXT_BYTES};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::{
    form::{
        completion::{estimate_tokens, is_any},
        fields::BodyFields,
        neutral,
    },
    http::api_error::ApiError,
    keys::{accounts::Charge, usage::UsageCounts},
    models::bare_name,
    state::Gateway,
};
use baton_client::{ClientError, Embeddings, choose::NoChoice};

/// Most texts of one request, as in OpenAI's API.
const MAX_INPUTS: usize = 2048;

/// Texts to embed, and the parameters of their vectors.
pub(crate) struct TextsToEmbed {
    texts: Zeroizing<Vec<String>>,
    model: Option<String>,
    dimensions: Option<u64>,
}

impl TextsToEmbed {
    /// Takes the texts of this field, and the parameters of their vectors.
    pub(crate) fn take(fields: &mut BodyFields, name: &str) -> Result<Self, ApiError> {
        let not_texts =
            |_| ApiError::unsupported(name, format!("{name} must be a text or a list of texts, not tokens"));
        let texts = Zeroizing::new(fields.texts(name).map_err(not_texts)?.unwrap_or_default());
        let model = fields.text("model")?.map(|model| bare_name(&model).to_owned());
        let dimensions = fields.whole("dimensions", 1..=u64::MAX)?;
        let request = Self { texts, model: model.filter(|model| !is_any(model)), dimensions };
        if request.texts.is_empty() || request.texts.len() > MAX_INPUTS {
            return Err(ApiError::value(name, format!("{name} has from 1 to {MAX_INPUTS} texts")));
        }
        for (index, text) in request.texts.iter().enumerate() {
            let at = format!("{name}[{index}]");
            if text.is_empty() {
                return Err(ApiError::value(&at, "a text to embed is empty"));
            }
            if text.len() > MAX_EMBED_TEXT_BYTES {
                let message =
                    format!("a text has {} bytes; at most {MAX_EMBED_TEXT_BYTES} are embedded", text.len());
                return Err(ApiError::request("context_length_exceeded", &at, message));
            }
        }
        Ok(request)
    }

    /// The vectors, in the order of the texts.
    pub(crate) async fn embed(&self, gateway: &Gateway) -> Result<Embeddings, ApiError> {
        let input = self.texts.iter().map(|text| estimate_tokens(text)).sum();
        let mut charge = gateway.hold(UsageCounts::of_tokens(input, 0))?;
        charge.iter_mut().for_each(Charge::keep);
        let embedded = gateway.client().embed(&self.texts, self.model.as_deref()).await;
        let used = match &embedded {
            Ok(embedded) => Some(embedded.texts.iter().map(|text| u64::from(text.tokens)).sum()),
            Err(error) => is_refusal(error).then_some(0),
        };
        if let (Some(charge), Some(input)) = (charge, used) {
            charge.settle(UsageCounts::of_tokens(input, 0), gateway.now_s());
        }
        let embedded = embedded.map_err(api_error)?;
        if let Some(wanted) = self.dimensions
            && wanted != embedded.dimensions as u64
        {
            let message = format!(
                "the vectors of {} have {} dimensions, and are not cut",
                embedded.model, embedded.dimensions
            );
            return Err(ApiError::unsupported("dimensions", message));
        }
        Ok(embedded)
    }
}

/// Reads a body: the texts, and whether their vectors are wanted as base64.
fn read(body: &[u8]) -> Result<(TextsToEmbed, bool), ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let texts = TextsToEmbed::take(&mut fields, "input")?;
    let is_base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::value("encoding_format", "encoding_format is float or base64")),
    };
    neutral::check_rest(&fields)?;
    Ok((texts, is_base64))
}

/// The embeddings of some texts.
pub(crate) async fn create(gateway: Gateway, body: Body) -> Result<Json<Value>, ApiError> {
    let (_slot, body) = gateway.receive(body).await?;
    let (texts, is_base64) = read(&body)?;
    let embedded = texts.embed(&gateway).await?;
    // Little-endian `f32`s.
    let bytes = |vector: &[f32]| vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let data = embedded.texts.iter().enumerate().map(|(index, text)| {
        let vector = if is_base64 {
            STANDARD.encode(bytes(&text.vector)).into()
        } else {
            Value::from(text.vector.as_slice())
        };
        json!({ "object": "embedding", "index": index, "embedding": vector })
    });
    let data: Vec<Value> = data.collect();
    let tokens: u64 = embedded.texts.iter().map(|text| u64::from(text.tokens)).sum();
    let mut nodes: Vec<String> = embedded.texts.iter().map(|text| text.node.to_string()).collect();
    nodes.dedup();
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": embedded.model,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
        "baton": { "model": embedded.model_id.to_string(), "nodes": nodes, "verified": true },
    })))
}

/// Whether no node embedded any of the texts: there was none, or each refused before its work.
fn is_refusal(error: &ClientError) -> bool {
    use ErrorCode::{Busy, GrantRequired, ModelUnavailable, QuotaExceeded, RateLimited};
    let refused =
        |code| matches!(code, Busy | GrantRequired | ModelUnavailable | QuotaExceeded | RateLimited);
    matches!(error, ClientError::NoNode(_)) || error.code().is_some_and(refused)
}

/// The error, in terms of embeddings.
fn api_error(error: ClientError) -> ApiError {
    match error {
        ClientError::NoNode(NoChoice::ModelUnavailable { served, .. }) if served == "none" => {
            ApiError::new("model_not_found", "no node that was found offers embeddings")
        }
        error => ApiError::from(error).renamed(|param| param.replace("messages", "input")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_by_name_what_is_not_served() {
        let long = "x".repeat(MAX_EMBED_TEXT_BYTES + 1);
        for (body, code, param) in [
            (json!({ "input": [1, 2, 3] }), "unsupported_parameter", "input"),
            (json!({ "input": [[1, 2], [3]] }), "unsupported_parameter", "input"),
            (json!({ "input": [] }), "invalid_value", "input"),
            (json!({ "input": "" }), "invalid_value", "input[0]"),
            (json!({ "input": vec!["x"; MAX_INPUTS + 1] }), "invalid_value", "input"),
            (json!({ "input": ["a", long] }), "context_length_exceeded", "input[1]"),
            (json!({ "input": "a", "encoding_format": "int8" }), "invalid_value", "encoding_format"),
            (json!({ "input": "a", "unheard": 1 }), "unknown_parameter", "unheard"),
            (json!({ "model": "m" }), "invalid_value", "input"),
            (json!({ "input": "a", "dimensions": "8" }), "invalid_value", "dimensions"),
        ] {
            let error = read(body.to_string().as_bytes()).err().expect("a refusal");
            assert_eq!((error.code(), error.param()), (code, Some(param)));
        }
    }
}
