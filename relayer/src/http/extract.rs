//! The parts of requests that handlers read: JSON bodies, names, and the place and items that a caller may use.
//! Refusals are [`ApiError`]s.

use baton_memory::{
    api::{Filters, ItemView, Place},
    limits::{NAME_FORM, is_name},
};
use baton_proto::text::is_same_place;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::api_error::{ApiError, BOUND};
use crate::{auth::Caller, delegation::Scope};

/// Reads a JSON body of any content type; an empty one is `{}`.
///
/// # Errors
/// A 400 with the reason.
pub(super) fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let body: &[u8] = if body.is_empty() { b"{}" } else { body };
    // Serde would also read a list as an object's fields in their order.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::bad("the body is a list: send an object"));
    }
    let read = serde_json::from_slice(body).or_else(|error| {
        let mut value: Value = serde_json::from_slice(body)?;
        make_whole(&mut value);
        serde_json::from_value(value).map_err(|_| error)
    });
    read.map_err(|error: serde_json::Error| ApiError::bad(format!("the body: {error}")))
}

/// Integers up to this number are exact in a float.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Turns numbers without a fraction into integers: to JSON Schema, 77.0 is one.
fn make_whole(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= MAX_EXACT);
            #[expect(clippy::cast_possible_truncation, reason = "it is a whole number within the range")]
            let whole = float.filter(|_| number.is_f64()).map(|float| float as i64);
            *number = whole.map_or_else(|| number.clone(), Into::into);
        }
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Object(fields) => fields.values_mut().for_each(make_whole),
        _ => {}
    }
}

/// The namespace of items without a project.
pub(super) const SHARED: &str = "default";

/// The namespace of a project.
pub(super) fn namespace(project: Option<&str>) -> String {
    project.unwrap_or(SHARED).to_owned()
}

/// Refuses a text of spaces alone.
///
/// # Errors
/// A 400 that names the field.
pub(super) fn not_blank(field: &str, text: &str) -> Result<(), ApiError> {
    match text.trim().is_empty() {
        true => Err(ApiError::bad(format!("`{field}` is empty"))),
        false => Ok(()),
    }
}

/// Checks a name from outside; the shared pool's name gives `None`.
///
/// # Errors
/// A 400 for a text that is no name.
pub(super) fn project_named(name: Option<String>) -> Result<Option<String>, ApiError> {
    match checked("project", name)? {
        Some(name) if name == SHARED => Ok(None),
        other => Ok(other),
    }
}

/// Checks a name from outside.
///
/// # Errors
/// A 400 for a text that is no name.
pub(super) fn checked(what: &str, name: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(name) = name else { return Ok(None) };
    if is_name(&name) { Ok(Some(name)) } else { Err(ApiError::bad(format!("the {what}: {NAME_FORM}"))) }
}

impl Caller {
    /// The project of this caller's request: the named one, or the caller's bound project.
    ///
    /// # Errors
    /// A 403 if the caller is bound to another project.
    pub(super) fn project(&self, named: Option<String>) -> Result<Option<String>, ApiError> {
        let explicit = named.is_some();
        let named = project_named(named)?;
        match self.bound_to() {
            None => Ok(named),
            Some(bound) if is_same_place(named.as_deref(), Some(bound)) || !explicit => {
                Ok(Some(bound.to_owned()))
            }
            Some(_) => Err(ApiError::new(BOUND)),
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
    ) -> Result<Place, ApiError> {
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
    pub(super) fn sees(&self, item: &ItemView) -> Result<(), ApiError> {
        match self.bound_to() {
            Some(bound) if !is_same_place(item.project.as_deref(), Some(bound)) => {
                Err(ApiError::missing("item"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an item that the caller may not see: as [`Self::sees`], and an intimate one without the grant.
    ///
    /// # Errors
    /// A 404.
    pub(super) fn reads(&self, item: &ItemView) -> Result<(), ApiError> {
        self.sees(item)?;
        match item.intimate && !self.sees_intimate() {
            true => Err(ApiError::missing("item")),
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
    pub(super) fn unbound(&self) -> Result<(), ApiError> {
        match self.bound_to() {
            None => Ok(()),
            Some(_) => Err(ApiError::new(BOUND).saying("this is about all of the owner's memory")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_without_a_fraction_is_an_integer() {
        for (mut value, whole) in [
            (json!({ "limit": 77.0, "a": -1.0e1 }), json!({ "limit": 77, "a": -10 })),
            (json!({ "a": 0.5, "b": 7, "c": u64::MAX }), json!({ "a": 0.5, "b": 7, "c": u64::MAX })),
            (
                json!({ "text": "77.0", "a": [2.0], "b": 1e17 }),
                json!({ "text": "77.0", "a": [2], "b": 1e17 }),
            ),
        ] {
            make_whole(&mut value);
            assert_eq!(value, whole);
        }
        assert_eq!(read_json::<[i64; 0]>(b"[]").unwrap_err().code(), "bad_request");
        assert_eq!(read_json::<std::collections::BTreeMap<String, i64>>(br#"{"a":7.0}"#).unwrap()["a"], 7);
        assert!(read_json::<Value>(br#"{"a":1e400}"#).is_err());
    }
}
