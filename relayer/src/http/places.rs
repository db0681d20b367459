//! Baton's own routes for places: projects, sessions and their forks, personas, the profile, the graph.

use std::collections::HashSet;

use axum::{Json, extract::State};
use baton_memory::{
    api::{MemoryError, Place, PlaceView},
    ids::OwnerId,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Admin, Doors, Fault, FaultJson, Input, Params, Reader, Writer,
    extract::{Named, SHARED, checked},
    fault::BOUND,
    shapes::{ChangedPlace, Count, EdgeJson, Item, PlaceJson},
};
use crate::auth::Caller;

pub(super) fn routes() -> OpenApiRouter<Doors> {
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

/// The name of a new project or persona.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NameInput {
    /// 1 to 256 bytes, no control characters.
    name: String,
}

fn named(what: &str, name: String) -> Result<String, Fault> {
    checked(what, Some(name))?.ok_or_else(|| Fault::bad("a name is missing"))
}

/// Lists all projects.
#[utoipa::path(get, path = "/v1/memory/projects", tag = "places", responses((status = 200, body = Places)))]
async fn projects(State(doors): State<Doors>, Reader(caller): Reader) -> Result<Json<Places>, Fault> {
    let mut all = doors.memory().projects(caller.owner).await?;
    all.retain(|project| caller.bound_to().is_none_or(|bound| project.name == bound));
    Ok(Json(all.into()))
}

/// Creates a project; an existing project stays unchanged.
#[utoipa::path(post, path = "/v1/memory/projects", tag = "places", request_body = NameInput,
    responses((status = 200, body = ChangedPlace), (status = 400, body = FaultJson)))]
async fn create_project(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Input(input): Input<NameInput>,
) -> Result<Json<ChangedPlace>, Fault> {
    let name = caller.project(Some(input.name))?;
    let name = name.ok_or_else(|| Fault::bad(format!("`{SHARED}` is the shared pool, and no project")))?;
    let view = doors.memory().create_project(caller.owner, name).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// Deletes a project with everything in it, permanently.
#[utoipa::path(delete, path = "/v1/memory/projects/{name}", tag = "places", params(("name" = String, Path)),
    responses((status = 200, body = Count), (status = 404, body = FaultJson)))]
async fn delete_project(
    State(doors): State<Doors>,
    Admin(caller): Admin,
    Named(name): Named<String>,
) -> Result<Json<Count>, Fault> {
    let name = caller.project(Some(name))?.ok_or_else(|| Fault::missing("project"))?;
    forget_chats(&doors, caller.owner, |session| session.project.as_ref() == Some(&name)).await?;
    Ok(Json(Count { count: doors.memory().delete_project(caller.owner, name).await? }))
}

/// Lists all sessions.
#[utoipa::path(get, path = "/v1/memory/sessions", tag = "places", responses((status = 200, body = Places)))]
async fn sessions(State(doors): State<Doors>, Reader(caller): Reader) -> Result<Json<Places>, Fault> {
    let mut all = doors.memory().sessions(caller.owner).await?;
    all.retain(|session| caller.bound_to().is_none_or(|bound| session.project.as_deref() == Some(bound)));
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
    responses((status = 200, body = ChangedPlace), (status = 400, body = FaultJson), (status = 409, body = FaultJson)))]
async fn create_session(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Input(input): Input<SessionInput>,
) -> Result<Json<ChangedPlace>, Fault> {
    let place = caller.place(input.project, Some(input.name), input.persona)?;
    let view = doors.memory().create_session(caller.owner, place).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// The session of a path, if the caller may use it.
async fn session(doors: &Doors, caller: &Caller, name: String) -> Result<String, Fault> {
    let name = named("session", name)?;
    if let Some(bound) = caller.bound_to() {
        let sessions = doors.memory().sessions(caller.owner).await?;
        let own = |session: &PlaceView| session.name == name && session.project.as_deref() == Some(bound);
        if !sessions.iter().any(own) {
            return Err(Fault::missing("session"));
        }
    }
    Ok(name)
}

/// Deletes a session with its episodes and relationship memories; facts about the user stay in the profile.
#[utoipa::path(delete, path = "/v1/memory/sessions/{name}", tag = "places", params(("name" = String, Path)),
    responses((status = 200, body = Count), (status = 404, body = FaultJson)))]
async fn delete_session(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Named(name): Named<String>,
) -> Result<Json<Count>, Fault> {
    let name = session(&doors, &caller, name).await?;
    let kept = super::chat::forget(&doors, caller.owner, [name.clone()]).await?;
    match doors.memory().delete_session(caller.owner, name).await {
        // None of its turns was recorded.
        Err(MemoryError::NotFound(_)) if kept => Ok(Json(Count { count: 0 })),
        deleted => Ok(Json(Count { count: deleted? })),
    }
}

/// Removes the chat records of sessions that are deleted with their container.
pub(super) async fn forget_chats(
    doors: &Doors,
    owner: OwnerId,
    goes: impl Fn(&PlaceView) -> bool,
) -> Result<(), Fault> {
    let sessions = doors.memory().sessions(owner).await?.into_iter().filter(goes);
    super::chat::forget(doors, owner, sessions.map(|session| session.name)).await.map(drop)
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
    request_body = MoveInput, responses((status = 200, body = ChangedPlace), (status = 404, body = FaultJson)))]
async fn move_session(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Named(name): Named<String>,
    Input(input): Input<MoveInput>,
) -> Result<Json<ChangedPlace>, Fault> {
    // Such a move would cross the border of the delegate's bound project.
    if caller.bound_to().is_some() {
        return Err(Fault::new(BOUND).saying("a delegate of one project moves no sessions"));
    }
    let project = caller.project(input.project)?;
    let view = doors.memory().move_session(caller.owner, named("session", name)?, project).await?;
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
    request_body = ForkInput, responses((status = 200, body = ChangedPlace), (status = 404, body = FaultJson)))]
async fn fork_session(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Named(name): Named<String>,
    Input(input): Input<ForkInput>,
) -> Result<Json<ChangedPlace>, Fault> {
    let (parent, fork) = (session(&doors, &caller, name).await?, named("session", input.name)?);
    let view = doors.memory().fork_session(caller.owner, parent, fork, input.turns).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// Lists all personas.
#[utoipa::path(get, path = "/v1/memory/personas", tag = "places", responses((status = 200, body = Places)))]
async fn personas(State(doors): State<Doors>, Reader(caller): Reader) -> Result<Json<Places>, Fault> {
    caller.unbound()?;
    Ok(Json(doors.memory().personas(caller.owner).await?.into()))
}

/// Creates a persona; an existing persona stays unchanged.
#[utoipa::path(post, path = "/v1/memory/personas", tag = "places", request_body = NameInput,
    responses((status = 200, body = ChangedPlace), (status = 400, body = FaultJson)))]
async fn create_persona(
    State(doors): State<Doors>,
    Writer(caller): Writer,
    Input(input): Input<NameInput>,
) -> Result<Json<ChangedPlace>, Fault> {
    caller.unbound()?;
    let view = doors.memory().create_persona(caller.owner, named("persona", input.name)?).await?;
    Ok(Json(ChangedPlace::of(&caller, view)))
}

/// Deletes a persona with its relationship memories and episodes.
#[utoipa::path(delete, path = "/v1/memory/personas/{name}", tag = "places", params(("name" = String, Path)),
    responses((status = 200, body = Count), (status = 404, body = FaultJson)))]
async fn delete_persona(
    State(doors): State<Doors>,
    Admin(caller): Admin,
    Named(name): Named<String>,
) -> Result<Json<Count>, Fault> {
    caller.unbound()?;
    let name = named("persona", name)?;
    forget_chats(&doors, caller.owner, |session| session.persona.as_ref() == Some(&name)).await?;
    Ok(Json(Count { count: doors.memory().delete_persona(caller.owner, name).await? }))
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

    pub(super) fn read(self, caller: &Caller) -> Result<Place, Fault> {
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
    State(doors): State<Doors>,
    Reader(caller): Reader,
    Params(query): Params<PlaceQuery>,
) -> Result<Json<Items>, Fault> {
    let mut items = doors.memory().profile(caller.owner, query.read(&caller)?).await?;
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
    State(doors): State<Doors>,
    Reader(caller): Reader,
    Params(query): Params<PlaceQuery>,
) -> Result<Json<Graph>, Fault> {
    let mut graph = doors.memory().graph(caller.owner, query.read(&caller)?).await?;
    graph.nodes.retain(|node| caller.reads(node).is_ok());
    // An edge quotes words of its ends.
    let shown: HashSet<_> = graph.nodes.iter().map(|node| node.id).collect();
    graph.edges.retain(|edge| shown.contains(&edge.from) && shown.contains(&edge.to));
    let nodes = graph.nodes.into_iter().map(Item::from).collect();
    Ok(Json(Graph { nodes, edges: graph.edges.into_iter().map(EdgeJson::from).collect() }))
}
