//! What handlers take: the caller with a scope, a JSON body, a query, a name from the path. Refusals are [`Fault`]s.

use axum::{
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::request::Parts,
};
use baton_memory::{
    api::{Filters, ItemView, Place},
    limits::MAX_NAME_BYTES,
    model::MemoryScope,
};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::{
    Doors,
    fault::{BOUND, Fault, SCOPE, UNAUTHENTICATED},
};
use crate::{auth::Caller, delegation::Scope};

macro_rules! scoped {
    ($($(#[$meta:meta])* $name:ident = $scope:ident;)*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug)]
            pub struct $name(pub Caller);

            impl FromRequestParts<Doors> for $name {
                type Rejection = Fault;

                async fn from_request_parts(parts: &mut Parts, _: &Doors) -> Result<Self, Fault> {
                    with_scope(parts, Scope::$scope).map(Self)
                }
            }
        )*
    };
}

scoped! {
    /// Who asks, and may see memories.
    Reader = Read;
    /// Who asks, and may change memories.
    Writer = Write;
    /// Who asks, and may hold conversations.
    Chatter = Chat;
    /// Who asks, and may administer.
    Admin = Admin;
}

fn with_scope(parts: &Parts, scope: Scope) -> Result<Caller, Fault> {
    let caller = parts.extensions.get::<Caller>().ok_or_else(|| Fault::new(UNAUTHENTICATED))?;
    if caller.may(scope) {
        return Ok(caller.clone());
    }
    Err(Fault::new(SCOPE).saying(format!("the delegation does not allow `{}`", scope.name())))
}

/// A JSON body, whatever its content type says.
#[derive(Clone, Debug)]
pub struct Input<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Doors> for Input<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, doors: &Doors) -> Result<Self, Fault> {
        // The gate has read the body, and bounded it.
        let body =
            Bytes::from_request(request, doors).await.map_err(|_| Fault::bad("the body is missing"))?;
        let body: &[u8] = if body.is_empty() { b"{}" } else { &body };
        serde_json::from_slice(body).map(Self).map_err(|error| Fault::bad(format!("the body: {error}")))
    }
}

/// A query.
#[derive(Clone, Debug)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Doors> for Params<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, doors: &Doors) -> Result<Self, Fault> {
        let query = Query::<T>::from_request_parts(parts, doors).await;
        query.map(|Query(value)| Self(value)).map_err(|rejection| Fault::bad(rejection.body_text()))
    }
}

/// A name or id from the path.
#[derive(Clone, Debug)]
pub struct Named<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Doors> for Named<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, doors: &Doors) -> Result<Self, Fault> {
        let path = Path::<T>::from_request_parts(parts, doors).await;
        path.map(|Path(value)| Self(value)).map_err(|rejection| Fault::bad(rejection.body_text()))
    }
}

/// The namespace that means no project.
pub const SHARED: &str = "default";

/// Checks a name from outside, and takes the shared pool's name for none.
///
/// # Errors
/// A 400 for an empty, too long or unprintable name.
pub(super) fn project_named(name: Option<String>) -> Result<Option<String>, Fault> {
    match checked("project", name)? {
        Some(name) if name == SHARED => Ok(None),
        other => Ok(other),
    }
}

/// Checks a name from outside.
///
/// # Errors
/// A 400 for an empty, too long or unprintable name.
pub(super) fn checked(what: &str, name: Option<String>) -> Result<Option<String>, Fault> {
    let Some(name) = name else { return Ok(None) };
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(Some(name));
    }
    Err(Fault::bad(format!("the name of a {what} has 1 to {MAX_NAME_BYTES} bytes and no control characters")))
}

impl Caller {
    /// The project that a request of this caller is about: what it named, or what it is bound to.
    ///
    /// # Errors
    /// A 403 when it is bound to another.
    pub(super) fn project(&self, named: Option<String>) -> Result<Option<String>, Fault> {
        let explicit = named.is_some();
        let named = project_named(named)?;
        match self.bound_to() {
            None => Ok(named),
            Some(bound) if named.as_deref() == Some(bound) || !explicit => Ok(Some(bound.to_owned())),
            Some(_) => Err(Fault::new(BOUND)),
        }
    }

    /// The place that a request of this caller is about.
    ///
    /// # Errors
    /// As [`Self::project`], and for names that are none.
    pub(super) fn place(
        &self,
        project: Option<String>,
        session: Option<String>,
        persona: Option<String>,
    ) -> Result<Place, Fault> {
        Ok(Place {
            project: self.project(project)?,
            session: checked("session", session)?,
            persona: checked("persona", persona)?,
        })
    }

    /// Refuses an item of another project than the one that the caller is bound to, as if there were none.
    ///
    /// # Errors
    /// A 404.
    pub(super) fn sees(&self, item: &ItemView) -> Result<(), Fault> {
        match self.bound_to() {
            Some(bound) if item.project.as_deref() != Some(bound) => Err(Fault::missing("item")),
            _ => Ok(()),
        }
    }

    /// Refuses an item that the caller may not see: as [`Self::sees`], and an intimate one that it was not granted.
    ///
    /// # Errors
    /// A 404.
    pub(super) fn reads(&self, item: &ItemView) -> Result<(), Fault> {
        self.sees(item)?;
        match item.intimate && !self.sees_intimate() {
            true => Err(Fault::missing("item")),
            false => Ok(()),
        }
    }

    /// Whether an answer may show the item that a request changed.
    pub(super) fn is_shown(&self, item: &ItemView) -> bool {
        self.may(Scope::Read) && self.reads(item).is_ok()
    }

    /// Filters of a request of this caller: nothing intimate that it was not granted.
    pub(super) fn filters(&self, filters: Filters) -> Filters {
        Filters { without_intimate: !self.sees_intimate(), ..filters }
    }

    /// Refuses a caller that is bound to a project: what is asked for is the whole owner's.
    ///
    /// # Errors
    /// A 403.
    pub(super) fn unbound(&self) -> Result<(), Fault> {
        match self.bound_to() {
            None => Ok(()),
            Some(_) => Err(Fault::new(BOUND).saying("this is about all of the owner's memory")),
        }
    }
}

/// A scope of memory by its name.
pub(super) fn scope_named(name: Option<&str>, default: MemoryScope) -> Result<MemoryScope, Fault> {
    let Some(name) = name else { return Ok(default) };
    MemoryScope::named(name).ok_or_else(|| {
        let names: Vec<_> = MemoryScope::ALL.iter().map(|scope| scope.name()).collect();
        Fault::bad(format!("`memory_scope` is one of {}", names.join(", ")))
    })
}
