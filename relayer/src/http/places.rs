//! Places of memory: projects, sessions and their forks, personas, the profile, the graph.

use std::collections::HashSet;

use baton_memory::api::{GraphView, ItemView, MemoryError, Place, PlaceView};
use baton_proto::text::{is_same_name, is_same_place};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    ApiError,
    api_error::BOUND,
    extract::{SHARED, checked},
    operation::{Call, NoInput},
    shapes::{ChangedPlace, Count},
};
use crate::auth::Caller;

/// Projects, sessions or personas.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Places {
    places: Vec<PlaceView>,
}

/// The name of a new project.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProjectInput {
    /// 1 to 256 bytes, not only spaces, and no control characters. `default` is the shared pool.
    name: String,
}

/// The name of a new persona.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NameInput {
    /// 1 to 256 bytes, not only spaces, and no control characters.
    name: String,
}

fn named(what: &str, name: String) -> Result<String, ApiError> {
    checked(what, Some(name))?.ok_or_else(|| ApiError::bad("a name is missing"))
}

pub(super) async fn projects(call: Call, _: NoInput) -> Result<Places, ApiError> {
    let mut all = call.memory().projects(call.owner()).await?;
    all.retain(|project| call.caller.bound_to().is_none_or(|bound| is_same_name(&project.name, bound)));
    Ok(Places { places: all })
}

pub(super) async fn create_project(call: Call, input: ProjectInput) -> Result<ChangedPlace, ApiError> {
    let name = call.caller.project(Some(input.name))?;
    let name = name.ok_or_else(|| ApiError::bad(format!("`{SHARED}` is the shared pool, and no project")))?;
    let view = call.memory().create_project(call.owner(), name).await?;
    Ok(ChangedPlace::of(&call.caller, view))
}

pub(super) async fn delete_project(call: Call, _: NoInput) -> Result<Count, ApiError> {
    let name = call.caller.project(Some(call.target.clone()))?.ok_or_else(|| ApiError::missing("project"))?;
    forget_chats(&call, |session| is_same_place(session.project.as_deref(), Some(&name))).await?;
    Ok(Count { count: call.memory().delete_project(call.owner(), name).await? })
}

pub(super) async fn sessions(call: Call, _: NoInput) -> Result<Places, ApiError> {
    let mut all = call.memory().sessions(call.owner()).await?;
    all.retain(|session| {
        call.caller.bound_to().is_none_or(|bound| is_same_place(session.project.as_deref(), Some(bound)))
    });
    Ok(Places { places: all })
}

/// A new session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionInput {
    name: String,
    project: Option<String>,
    persona: Option<String>,
}

pub(super) async fn create_session(call: Call, input: SessionInput) -> Result<ChangedPlace, ApiError> {
    let place = call.caller.place(input.project, Some(input.name), input.persona)?;
    let view = call.memory().create_session(call.owner(), place).await?;
    Ok(ChangedPlace::of(&call.caller, view))
}

/// The session of a path, if the caller may use it.
async fn session(call: &Call) -> Result<String, ApiError> {
    let name = named("session", call.target.clone())?;
    if let Some(bound) = call.caller.bound_to() {
        let sessions = call.memory().sessions(call.owner()).await?;
        let own = |session: &PlaceView| {
            session.name == name && is_same_place(session.project.as_deref(), Some(bound))
        };
        if !sessions.iter().any(own) {
            return Err(ApiError::missing("session"));
        }
    }
    Ok(name)
}

pub(super) async fn delete_session(call: Call, _: NoInput) -> Result<Count, ApiError> {
    let name = session(&call).await?;
    let kept = super::chat::forget(&call, [name.clone()]).await?;
    match call.memory().delete_session(call.owner(), name).await {
        // None of its turns was recorded.
        Err(MemoryError::NotFound(_)) if kept => Ok(Count { count: 0 }),
        deleted => Ok(Count { count: deleted? }),
    }
}

/// Removes the chat records of sessions that are deleted with their container.
pub(super) async fn forget_chats(call: &Call, goes: impl Fn(&PlaceView) -> bool) -> Result<(), ApiError> {
    let sessions = call.memory().sessions(call.owner()).await?.into_iter().filter(goes);
    super::chat::forget(call, sessions.map(|session| session.name)).await.map(drop)
}

/// The target of a session move.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveInput {
    /// Target project; null moves the session out of its project.
    project: Option<String>,
}

pub(super) async fn move_session(call: Call, input: MoveInput) -> Result<ChangedPlace, ApiError> {
    // Such a move would cross the border of the delegate's bound project.
    if call.caller.bound_to().is_some() {
        return Err(ApiError::new(BOUND).saying("a delegate of one project moves no sessions"));
    }
    let project = call.caller.project(input.project)?;
    let view =
        call.memory().move_session(call.owner(), named("session", call.target.clone())?, project).await?;
    Ok(ChangedPlace::of(&call.caller, view))
}

/// A fork of a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkInput {
    /// Name of the new session.
    name: String,
    /// Number of parent turns that the fork sees. Default: all.
    turns: Option<u64>,
}

pub(super) async fn fork_session(call: Call, input: ForkInput) -> Result<ChangedPlace, ApiError> {
    let (parent, fork) = (session(&call).await?, named("session", input.name)?);
    let view = call.memory().fork_session(call.owner(), parent, fork, input.turns).await?;
    Ok(ChangedPlace::of(&call.caller, view))
}

pub(super) async fn personas(call: Call, _: NoInput) -> Result<Places, ApiError> {
    call.caller.unbound()?;
    Ok(Places { places: call.memory().personas(call.owner()).await? })
}

pub(super) async fn create_persona(call: Call, input: NameInput) -> Result<ChangedPlace, ApiError> {
    call.caller.unbound()?;
    let view = call.memory().create_persona(call.owner(), named("persona", input.name)?).await?;
    Ok(ChangedPlace::of(&call.caller, view))
}

pub(super) async fn delete_persona(call: Call, _: NoInput) -> Result<Count, ApiError> {
    call.caller.unbound()?;
    let name = named("persona", call.target.clone())?;
    forget_chats(&call, |session| session.persona.as_ref() == Some(&name)).await?;
    Ok(Count { count: call.memory().delete_persona(call.owner(), name).await? })
}

/// The place to read.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
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
pub(super) struct Items {
    items: Vec<ItemView>,
}

pub(super) async fn profile(call: Call, query: PlaceQuery) -> Result<Items, ApiError> {
    let mut items = call.memory().profile(call.owner(), query.read(&call.caller)?).await?;
    items.retain(|item| call.caller.reads(item).is_ok());
    Ok(Items { items })
}

pub(super) async fn graph(call: Call, query: PlaceQuery) -> Result<GraphView, ApiError> {
    let mut graph = call.memory().graph(call.owner(), query.read(&call.caller)?).await?;
    graph.nodes.retain(|node| call.caller.reads(node).is_ok());
    // An edge quotes words of its ends.
    let shown: HashSet<_> = graph.nodes.iter().map(|node| node.id).collect();
    graph.edges.retain(|edge| shown.contains(&edge.from) && shown.contains(&edge.to));
    Ok(graph)
}
