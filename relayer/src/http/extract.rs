//! Extractors for handlers: the caller with a scope, a JSON body, a query, a name from the path. Refusals are
//! [`Fault`]s.

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
    /// The caller, with the right to see memories.
    Reader = Read;
    /// The caller, with the right to change memories.
    Writer = Write;
    /// The caller, with the right to hold conversations.
    Chatter = Chat;
    /// The caller, with the right to administer.
    Admin = Admin;
}

fn with_scope(parts: &Parts, scope: Scope) -> Result<Caller, Fault> {
    let caller = parts.extensions.get::<Caller>().ok_or_else(|| Fault::new(UNAUTHENTICATED))?;
    if caller.may(scope) {
        return Ok(caller.clone());
    }
    Err(Fault::new(SCOPE).saying(format!("the delegation does not allow `{}`", scope.name())))
}

/// A JSON body of any content type.
#[derive(Clone, Debug)]
pub struct Input<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Doors> for Input<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, doors: &Doors) -> Result<Self, Fault> {
        // The gate has read the body, within its limit.
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

/// The namespace of items without a project.
pub const SHARED: &str = "default";

/// Checks a name from outside; the shared pool's name gives `None`.
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
    /// The project of this caller's request: the named one, or the caller's bound project.
    ///
    /// # Errors
    /// A 403 if the caller is bound to another project.
    pub(super) fn project(&self, named: Option<String>) -> Result<Option<String>, Fault> {
        let explicit = named.is_some();
        let named = project_named(named)?;
        match self.bound_to() {
            None => Ok(named),
            Some(bound) if named.as_deref() == Some(bound) || !explicit => Ok(Some(bound.to_owned())),
            Some(_) => Err(Fault::new(BOUND)),
        }
    }

    /// The place of this caller's request.
    ///
    /// # Errors
    /// As [`Self::project`], and for invalid names.
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

    /// Refuses an item outside the caller's bound project, as if it did not exist.
    ///
    /// # Errors
    /// A 404.
    pub(super) fn sees(&self, item: &ItemView) -> Result<(), Fault> {
        match self.bound_to() {
            Some(bound) if item.project.as_deref() != Some(bound) => Err(Fault::missing("item")),
            _ => Ok(()),
        }
    }

    /// Refuses an item that the caller may not see: as [`Self::sees`], and an intimate one without the grant.
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

    /// Whether an answer may show a changed item.
    pub(super) fn is_shown(&self, item: &ItemView) -> bool {
        self.may(Scope::Read) && self.reads(item).is_ok()
    }

    /// Filters of this caller's request: nothing intimate without the grant.
    pub(super) fn filters(&self, filters: Filters) -> Filters {
        Filters { without_intimate: !self.sees_intimate(), ..filters }
    }

    /// Refuses a caller that is bound to a project: the request concerns the whole owner.
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
