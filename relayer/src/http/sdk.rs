//! The routes of the published `memwal` SDK, with its request and answer formats. Namespaces are projects;
//! `default` is the shared pool of no project. The item's id names the job of a memory.

mod jobs;
mod namespaces;
mod queries;

pub(super) use namespaces::Quota;

use axum::http::StatusCode;
use baton_memory::{
    api::{RememberOutcome, RememberRequest},
    ids::OwnerId,
    model::{Author, Text},
};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{ApiError, AppState, extract::SHARED, limits::MAX_FACTS, shapes::layer_named};
use crate::auth::Caller;
use crate::time;

/// The SDK's routes.
pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(jobs::remember))
        .routes(routes!(jobs::status))
        .routes(routes!(jobs::remember_bulk))
        .routes(routes!(jobs::bulk_status))
        .routes(routes!(jobs::analyze))
        .routes(routes!(queries::recall))
        .routes(routes!(queries::ask))
        .routes(routes!(queries::embed))
        .routes(routes!(queries::remember_manual))
        .routes(routes!(queries::recall_manual))
        .routes(routes!(namespaces::restore))
        .routes(routes!(namespaces::forget))
        .routes(routes!(namespaces::stats))
        .routes(routes!(namespaces::list))
}

/// The namespace of a project.
fn namespace(project: Option<&str>) -> String {
    project.unwrap_or(SHARED).to_owned()
}

/// A text to remember.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct Fact {
    /// The text, not blank.
    text: String,
    /// Namespace. Default: `default`.
    namespace: Option<String>,
    /// `profile` (default) or `relationship`.
    layer: Option<String>,
    /// Persona that it is shared with.
    persona: Option<String>,
    /// When it was said, RFC 3339. Default: now.
    #[serde(default, deserialize_with = "time::optional")]
    #[schema(value_type = Option<String>)]
    occurred_at: Option<u64>,
    /// At most 256 bytes. A repeated call with the same key takes effect once, even if the memory was
    /// superseded since. Another text is refused. The latest 1,024 keys of an owner are known, until the
    /// memory is edited or deleted.
    idempotency_key: Option<String>,
}

impl Fact {
    fn read(self, caller: &Caller) -> Result<(RememberRequest, Option<String>), ApiError> {
        not_blank("text", &self.text)?;
        let fact = RememberRequest {
            place: caller.place(self.namespace, None, self.persona)?,
            text: self.text.into(),
            layer: layer_named(self.layer.as_deref())?,
            author: Author::Owner,
            time_ms: self.occurred_at,
            intimate: None,
            salience: None,
        };
        Ok((fact, self.idempotency_key))
    }
}

fn not_blank(field: &str, text: &str) -> Result<(), ApiError> {
    match text.trim().is_empty() {
        true => Err(ApiError::bad(format!("`{field}` is empty"))),
        false => Ok(()),
    }
}

async fn remember(
    app: &AppState,
    owner: OwnerId,
    facts: Vec<(RememberRequest, Option<String>)>,
) -> Result<Vec<RememberOutcome>, ApiError> {
    if facts.is_empty() || facts.len() > MAX_FACTS {
        return Err(ApiError::bad(format!("1 to {MAX_FACTS} memories at a time")));
    }
    let count = facts.len();
    let remembered = app.memory().remember_once(owner, facts).await?;
    debug_assert_eq!(remembered.len(), count, "one answer for each fact");
    Ok(remembered)
}

/// A text of a request.
fn text(text: String) -> Text {
    Text(text)
}

/// The status of an accepted write.
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
