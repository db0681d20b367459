//! The parts of requests that handlers read: JSON bodies, names, and the place and items that a caller may use.
//! Refusals are [`ApiError`]s.

use baton_memory::{
    api::{Filters, ItemView, Place},
    limits::{NAME_FORM, is_name},
    model::MemoryScope,
};
use baton_proto::text::is_same_place;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

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
    let read = serde_json::from_slice(body).or_else(|_| serde_json::from_slice(&with_whole_numbers(body)));
    read.map_err(|error| ApiError::bad(format!("the body: {error}")))
}

/// Integers up to this number are exact in a float.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A JSON text whose numbers without a fraction are written without a point: to JSON Schema, 77.0 is an integer.
fn with_whole_numbers(json: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(json.len()));
    let mut rest = json;
    while let Some(first) = rest.first() {
        let length = match first {
            b'"' => text_length(rest),
            b'-' | b'0'..=b'9' => {
                let end = rest
                    .iter()
                    .position(|byte| !matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'e' | b'E'));
                end.unwrap_or(rest.len())
            }
            _ => 1,
        };
        let (token, after) = rest.split_at(length);
        let number = std::str::from_utf8(token).ok().filter(|token| token.contains(['.', 'e', 'E']));
        match number.and_then(|token| token.parse::<f64>().ok()) {
            Some(number) if *first != b'"' && number.fract() == 0.0 && number.abs() <= MAX_EXACT => {
                out.extend_from_slice(format!("{number:.0}").as_bytes());
            }
            _ => out.extend_from_slice(token),
        }
        rest = after;
    }
    out
}

/// The bytes of the JSON string at the beginning of a text, with its quotes.
fn text_length(json: &[u8]) -> usize {
    let mut escaped = false;
    let end = json.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.map_or(json.len(), |end| end + 2)
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

/// A scope of memory by its name.
pub(super) fn scope_named(name: Option<&str>) -> Result<MemoryScope, ApiError> {
    let Some(name) = name else { return Ok(MemoryScope::NeutralAndRelationship) };
    MemoryScope::named(name).ok_or_else(|| {
        let names: Vec<_> = MemoryScope::ALL.iter().map(|scope| scope.name()).collect();
        ApiError::bad(format!("`memory_scope` is one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_fraction_is_an_integer() {
        for (json, whole) in [
            (r#"{"limit":77.0,"a":-1.0e1}"#, r#"{"limit":77,"a":-10}"#),
            (r#"{"a":0.5,"b":7}"#, r#"{"a":0.5,"b":7}"#),
            (r#"{"text":"77.0 \" 1.0","a":[2.0]}"#, r#"{"text":"77.0 \" 1.0","a":[2]}"#),
            (r#"{"a":1e400,"b":1e17}"#, r#"{"a":1e400,"b":1e17}"#),
            (r#"{"a":"cut"#, r#"{"a":"cut"#),
            ("{\"a\":-", "{\"a\":-"),
        ] {
            assert_eq!(std::str::from_utf8(&with_whole_numbers(json.as_bytes())).unwrap(), whole);
        }
    }
}
