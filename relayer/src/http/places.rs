//! Baton's own routes for places: projects, sessions and their forks, personas, the profile, the graph.

use std::collections::HashSet;

use axum::{Json, extract::State};
use baton_memory::{
    api::{MemoryError, Place, PlaceView},
    ids::OwnerId,
};
use baton_proto::text::{is_same_name, is_same_place};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Admin, ApiError, ApiErrorJson, AppState, Input, Params, Reader, Writer,
    api_error::BOUND,
    extract::{PathName, SHARED, checked},
    shapes::{ChangedPlace, Count, EdgeJson, Item, PlaceJson},
};
use crate::auth::Caller;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(projects, create_project))
        .routes(routes!(delete_project))
        .routes(routes!(sessions, create_session))
        .routes(routes!(delete_session))
        .routes(routes!(move_session))
        .routes(routes!(fork_session))
        .routes(routes!(personas, create_persona))
        .routes(routes!(delete_persona))
        .routes(routes!(profile))
        .routes(routes!(graph))
}

/// Projects, sessions or personas.
#[derive(Debug, Serialize, ToSchema)]
struct Places {
    places: Vec<PlaceJson>,
}

impl From<Vec<PlaceView>> for Places {
    fn from(places: Vec<PlaceView>) -> Self {
        Self { places: places.into_iter().map(PlaceJson::from).collect() }
    }
}

/// The name of a new project.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ProjectInput {
    /// 1 to 256 bytes, not only spaces, and no control characters. `default` is the shared pool.
    name: String,
}

/// The name of a new persona.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NameInput {
    /// 1 to 256 bytes, not only spaces, and no control characters.
    name: String,
}

fn named(what: &str, name: String) -> Result<String, ApiError> {
    checked(what, Some(name))?.ok_or_else(|| ApiError::bad("a name is missing"))
}

/// Lists all projects.
#[utoipa::path(get, path = "/v1/memory/projects", tag = "places", responses((status = 200, body = Places)))]
async fn projects(State(app): State<AppState>, Reader(caller): Reader) -> Result<Json<Places>, ApiError> {
    let mut all = app.memory().projects(caller.owner).await?;
    all.retain(|project| caller.bound_to().is_none_or(|bound| is_same_name(&project.name, bound)));
    Ok(Json(all.into()))
}

/// Creates a project; an existing project stays unchanged.
#[utoipa::path(post, path = "/v1/memory/projects", tag = "places", request_body = ProjectInput,
    responses((status = 200, body = ChangedPlace), (status = 400, body = ApiErrorJson)))]
async fn create_project(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(input): Input<ProjectInput>,
) -> Result<Json<ChangedPlace>, ApiError> {
    let name = caller.project(Some(input.name))?;
    let name = name.ok_or_else(|| ApiError::bad(format!("`{SHARED}` is the shared pool, and no project")))?;
    let view = app.memory().create_project(caller.owner, name).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// Deletes a project with everything in it, permanently.
#[utoipa::path(delete, path = "/v1/memory/projects/{name}", tag = "places", params(("name" = String, Path)),
    responses((status = 200, body = Count), (status = 404, body = ApiErrorJson)))]
async fn delete_project(
    State(app): State<AppState>,
    Admin(caller): Admin,
    PathName(name): PathName<String>,
) -> Result<Json<Count>, ApiError> {
    let name = caller.project(Some(name))?.ok_or_else(|| ApiError::missing("project"))?;
    forget_chats(&app, caller.owner, |session| is_same_place(session.project.as_deref(), Some(&name)))
        .await?;
    Ok(Json(Count { count: app.memory().delete_project(caller.owner, name).await? }))
}

/// Lists all sessions.
#[utoipa::path(get, path = "/v1/memory/sessions", tag = "places", responses((status = 200, body = Places)))]
async fn sessions(State(app): State<AppState>, Reader(caller): Reader) -> Result<Json<Places>, ApiError> {
    let mut all = app.memory().sessions(caller.owner).await?;
    all.retain(|session| {
        caller.bound_to().is_none_or(|bound| is_same_place(session.project.as_deref(), Some(bound)))
    });
    Ok(Json(all.into()))
}

/// A new session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SessionInput {
    name: String,
    project: Option<String>,
    persona: Option<String>,
}

/// Creates a session in its project, before its first turn.
#[utoipa::path(post, path = "/v1/memory/sessions", tag = "places", request_body = SessionInput,
    responses((status = 200, body = ChangedPlace), (status = 400, body = ApiErrorJson), (status = 409, body = ApiErrorJson)))]
async fn create_session(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(input): Input<SessionInput>,
) -> Result<Json<ChangedPlace>, ApiError> {
    let place = caller.place(input.project, Some(input.name), input.persona)?;
    let view = app.memory().create_session(caller.owner, place).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// The session of a path, if the caller may use it.
async fn session(app: &AppState, caller: &Caller, name: String) -> Result<String, ApiError> {
    let name = named("session", name)?;
    if let Some(bound) = caller.bound_to() {
        let sessions = app.memory().sessions(caller.owner).await?;
        let own = |session: &PlaceView| {
            session.name == name && is_same_place(session.project.as_deref(), Some(bound))
        };
        if !sessions.iter().any(own) {
            return Err(ApiError::missing("session"));
        }
    }
    Ok(name)
}

/// Deletes a session with its episodes and relationship memories; facts about the user stay in the profile.
#[utoipa::path(delete, path = "/v1/memory/sessions/{name}", tag = "places", params(("name" = String, Path)),
    responses((status = 200, body = Count), (status = 404, body = ApiErrorJson)))]
async fn delete_session(
    State(app): State<AppState>,
    Writer(caller): Writer,
    PathName(name): PathName<String>,
) -> Result<Json<Count>, ApiError> {
    let name = session(&app, &caller, name).await?;
    let kept = super::chat::forget(&app, caller.owner, [name.clone()]).await?;
    match app.memory().delete_session(caller.owner, name).await {
        // None of its turns was recorded.
        Err(MemoryError::NotFound(_)) if kept => Ok(Json(Count { count: 0 })),
        deleted => Ok(Json(Count { count: deleted? })),
    }
}

/// Removes the chat records of sessions that are deleted with their container.
pub(super) async fn forget_chats(
    app: &AppState,
    owner: OwnerId,
    goes: impl Fn(&PlaceView) -> bool,
) -> Result<(), ApiError> {
    let sessions = app.memory().sessions(owner).await?.into_iter().filter(goes);
    super::chat::forget(app, owner, sessions.map(|session| session.name)).await.map(drop)
}

/// The target of a session move.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MoveInput {
    /// Target project; null moves the session out of its project.
    project: Option<String>,
}

/// Moves a session into a project, or out of its project, from its next message on.
#[utoipa::path(post, path = "/v1/memory/sessions/{name}/move", tag = "places", params(("name" = String, Path)),
    request_body = MoveInput, responses((status = 200, body = ChangedPlace), (status = 404, body = ApiErrorJson)))]
async fn move_session(
    State(app): State<AppState>,
    Writer(caller): Writer,
    PathName(name): PathName<String>,
    Input(input): Input<MoveInput>,
) -> Result<Json<ChangedPlace>, ApiError> {
    // Such a move would cross the border of the delegate's bound project.
    if caller.bound_to().is_some() {
        return Err(ApiError::new(BOUND).saying("a delegate of one project moves no sessions"));
    }
    let project = caller.project(input.project)?;
    let view = app.memory().move_session(caller.owner, named("session", name)?, project).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// A fork of a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ForkInput {
    /// Name of the new session.
    name: String,
    /// Number of parent turns that the fork sees. Default: all.
    turns: Option<u64>,
}

/// Forks a session.
///
/// The fork sees its parent's past and writes nothing to the parent.
#[utoipa::path(post, path = "/v1/memory/sessions/{name}/fork", tag = "places", params(("name" = String, Path)),
    request_body = ForkInput, responses((status = 200, body = ChangedPlace), (status = 404, body = ApiErrorJson)))]
async fn fork_session(
    State(app): State<AppState>,
    Writer(caller): Writer,
    PathName(name): PathName<String>,
    Input(input): Input<ForkInput>,
) -> Result<Json<ChangedPlace>, ApiError> {
    let (parent, fork) = (session(&app, &caller, name).await?, named("session", input.name)?);
    let view = app.memory().fork_session(caller.owner, parent, fork, input.turns).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// Lists all personas.
#[utoipa::path(get, path = "/v1/memory/personas", tag = "places", responses((status = 200, body = Places)))]
async fn personas(State(app): State<AppState>, Reader(caller): Reader) -> Result<Json<Places>, ApiError> {
    caller.unbound()?;
    Ok(Json(app.memory().personas(caller.owner).await?.into()))
}

/// Creates a persona; an existing persona stays unchanged.
#[utoipa::path(post, path = "/v1/memory/personas", tag = "places", request_body = NameInput,
    responses((status = 200, body = ChangedPlace), (status = 400, body = ApiErrorJson)))]
async fn create_persona(
    State(app): State<AppState>,
    Writer(caller): Writer,
    Input(input): Input<NameInput>,
) -> Result<Json<ChangedPlace>, ApiError> {
    caller.unbound()?;
    let view = app.memory().create_persona(caller.owner, named("persona", input.name)?).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// Deletes a persona with its relationship memories and episodes.
#[utoipa::path(delete, path = "/v1/memory/personas/{name}", tag = "places", params(("name" = String, Path)),
    responses((status = 200, body = Count), (status = 404, body = ApiErrorJson)))]
async fn delete_persona(
    State(app): State<AppState>,
    Admin(caller): Admin,
    PathName(name): PathName<String>,
) -> Result<Json<Count>, ApiError> {
    caller.unbound()?;
    let name = named("persona", name)?;
    forget_chats(&app, caller.owner, |session| session.persona.as_ref() == Some(&name)).await?;
    Ok(Json(Count { count: app.memory().delete_persona(caller.owner, name).await? }))
}

/// The place to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct PlaceQuery {
    /// Project. Default: the shared pool.
    project: Option<String>,
    /// Session; its own project applies.
    session: Option<String>,
    /// Persona. Default: the session's, or the default persona without a session.
    persona: Option<String>,
}

impl PlaceQuery {
    pub(super) fn is_empty(&self) -> bool {
        self.project.is_none() && self.session.is_none() && self.persona.is_none()
    }

    pub(super) fn read(self, caller: &Caller) -> Result<Place, ApiError> {
        caller.place(self.project, self.session, self.persona)
    }
}

/// Items.
#[derive(Debug, Serialize, ToSchema)]
struct Items {
    items: Vec<Item>,
}

/// Lists the facts collected about the user.
#[utoipa::path(get, path = "/v1/memory/profile", tag = "places", params(PlaceQuery),
    responses((status = 200, body = Items)))]
async fn profile(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(query): Params<PlaceQuery>,
) -> Result<Json<Items>, ApiError> {
    let mut items = app.memory().profile(caller.owner, query.read(&caller)?).await?;
    items.retain(|item| caller.reads(item).is_ok());
    Ok(Json(Items { items: items.into_iter().map(Item::from).collect() }))
}

/// Entities, facts and summaries, with the edges between them.
#[derive(Debug, Serialize, ToSchema)]
struct Graph {
    nodes: Vec<Item>,
    edges: Vec<EdgeJson>,
}

/// Returns the graph of a place.
#[utoipa::path(get, path = "/v1/memory/graph", tag = "places", params(PlaceQuery),
    responses((status = 200, body = Graph)))]
async fn graph(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(query): Params<PlaceQuery>,
) -> Result<Json<Graph>, ApiError> {
    let mut graph = app.memory().graph(caller.owner, query.read(&caller)?).await?;
    graph.nodes.retain(|node| caller.reads(node).is_ok());
    // An edge quotes words of its ends.
    let shown: HashSet<_> = graph.nodes.iter().map(|node| node.id).collect();
    graph.edges.retain(|edge| shown.contains(&edge.from) && shown.contains(&edge.to));
    let nodes = graph.nodes.into_iter().map(Item::from).collect();
    Ok(Json(Graph { nodes, edges: graph.edges.into_iter().map(EdgeJson::from).collect() }))
}
