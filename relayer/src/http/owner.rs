//! An owner as a whole: export, import, deletion, settings, and the invitation to this relayer.

use axum::{
    body::Body,
    http::header::{CONTENT_DISPOSITION, CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use baton_memory::{
    api::{ImportReport, SettingsView},
    ids::OwnerId,
    model::Text,
};
use bytes::Bytes;
use futures::stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    ApiError,
    api_error::{CONFLICT, OWNER_ONLY},
    document::{self, Schemas},
    operation::{Answer, Call, Input, NoInput, Payload},
    places::PlaceQuery,
    shapes::Count,
};
use crate::time;

/// Longest line of an import: the longest item, with JSON escapes and its other fields.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// JSON lines.
const JSON_LINES: &str = "application/x-ndjson";

/// An export.
pub(super) struct ExportLines(Vec<Text>);

impl Answer for ExportLines {
    fn documented(_: &mut Schemas) -> (u16, Value) {
        (200, document::answer(JSON_LINES, json!({ "type": "string" })))
    }

    fn respond(self) -> Response {
        let lines = self.0.into_iter().map(|mut line| {
            let mut line = std::mem::take(&mut line.0);
            line.push('\n');
            Ok::<_, std::convert::Infallible>(Bytes::from(line))
        });
        let headers =
            [(CONTENT_TYPE, JSON_LINES), (CONTENT_DISPOSITION, "attachment; filename=\"memory.jsonl\"")];
        (headers, Body::from_stream(stream::iter(lines))).into_response()
    }
}

pub(super) async fn export(call: Call, query: PlaceQuery) -> Result<ExportLines, ApiError> {
    let everything = query.is_empty() && call.caller.bound_to().is_none();
    let place = if everything { None } else { Some(query.read(&call.caller)?) };
    Ok(ExportLines(call.memory().export(call.owner(), place, call.caller.sees_intimate()).await?))
}

/// The lines of an export to import.
pub(super) struct ImportLines(Bytes);

impl Input for ImportLines {
    fn documented(_: bool, _: &mut Schemas) -> (Vec<Value>, Option<Value>) {
        (Vec::new(), Some(document::body(JSON_LINES, json!({ "type": "string" }), true)))
    }

    fn read(payload: Payload) -> Result<Self, ApiError> {
        match payload {
            Payload::Body(body) => Ok(Self(body)),
            Payload::Query(_) => Err(ApiError::bad("an import is a body")),
        }
    }
}

pub(super) async fn import(call: Call, ImportLines(body): ImportLines) -> Result<ImportReport, ApiError> {
    call.caller.unbound()?;
    let text = std::str::from_utf8(&body).map_err(|_| ApiError::bad("the body is not UTF-8"))?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.iter().any(|line| line.len() > MAX_LINE_BYTES) {
        return Err(ApiError::bad(format!("a line of an import has at most {MAX_LINE_BYTES} bytes")));
    }
    let lines: Vec<Text> = lines.into_iter().map(Text::from).collect();
    Ok(call.memory().import(call.owner(), lines).await?)
}

/// The owner's confirmation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EraseInput {
    /// The account id again.
    confirm: String,
}

pub(super) async fn erase(call: Call, input: EraseInput) -> Result<Count, ApiError> {
    if !call.caller.is_owner() {
        return Err(ApiError::new(OWNER_ONLY));
    }
    let why = "`confirm` is the account id whose memory is to be erased";
    let confirmed: OwnerId = input.confirm.parse().map_err(|_| ApiError::bad(why))?;
    if confirmed != call.owner() {
        return Err(ApiError::new(CONFLICT).saying(why));
    }
    call.memory().erase_owner(call.owner()).await?;
    Ok(Count { count: 1 })
}

/// The owner's settings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingsInput {
    /// Whether third-party nodes may read exchanges, to extract memories from them. They see the words, but
    /// not the owner. They see no passwords and nothing off the record.
    extract_through_nodes: bool,
}

pub(super) async fn settings(call: Call, _: NoInput) -> Result<SettingsView, ApiError> {
    call.caller.unbound()?;
    Ok(call.memory().settings(call.owner()).await?)
}

pub(super) async fn change_settings(call: Call, input: SettingsInput) -> Result<SettingsView, ApiError> {
    call.caller.unbound()?;
    Ok(call.memory().allow_nodes(call.owner(), input.extract_through_nodes).await?)
}

/// The route of invitations. The gate lets owners pass to it that are not admitted yet.
pub(super) const INVITATION: &str = "/api/invitation";

/// An invitation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Invitation {
    /// The operator's line, which begins with `baton-right-1:`.
    invitation: String,
}

/// The invited owner.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct InvitedOwner {
    /// The account id.
    owner: String,
    /// Until when the invitation counts, RFC 3339.
    until: String,
}

pub(super) async fn redeem(call: Call, request: Invitation) -> Result<InvitedOwner, ApiError> {
    if !call.caller.is_owner() {
        return Err(ApiError::new(OWNER_ONLY));
    }
    let (app, owner) = (&call.app, call.owner());
    let owners = &app.inner.config.owners;
    let until_ms = owners.redeem(owner, &request.invitation, app.registry(), app.now_ms()).await?;
    Ok(InvitedOwner { owner: owner.to_string(), until: time::format(until_ms) })
}
