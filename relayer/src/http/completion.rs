//! Completes the OpenAPI document with facts that hold for all routes and that no route repeats: the ids of
//! operations, the errors of the gate and of memory, and descriptions. Pure.

use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, path::Operation};

use super::{api_error, open, operation::JSON};

/// Statuses of errors that any open route may answer with.
const OPEN_ERRORS: [u16; 6] = [400, 408, 413, 429, 500, 503];
/// Statuses of errors that any route behind the gate may answer with.
const GATED_ERRORS: [u16; 12] = [400, 401, 403, 404, 408, 409, 413, 421, 429, 500, 503, 504];
/// The schema of every error.
const ERROR_SCHEMA: &str = "FaultJson";

/// Completes the document of all routes.
pub(super) fn complete(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in open::operations(item) {
            operation.operation_id = Some(operation_id(method, path));
            add_errors(operation);
            describe_answers(operation);
        }
    }
}

/// An id from method and path, the only pair that is unique: names of handlers are not.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

fn add_errors(operation: &mut Operation) {
    let statuses: &[u16] = if operation.security.is_some() { &GATED_ERRORS } else { &OPEN_ERRORS };
    for status in statuses {
        let missing = || RefOr::T(error_response(*status));
        let response = operation.responses.responses.entry(status.to_string()).or_insert_with(missing);
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description = describe(*status);
        }
    }
}

/// OpenAPI asks for a description of every response; the schema has the words for an answer.
fn describe_answers(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            "the answer".clone_into(&mut response.description);
        }
    }
}

fn describe(status: u16) -> String {
    format!("an error; its code is one of: {}", api_error::codes_of(status).join(", "))
}

pub(super) fn error_response(status: u16) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(ERROR_SCHEMA))).build();
    ResponseBuilder::new().description(describe(status)).content(JSON, content).build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn operations_are_named_by_method_and_path() {
        for (method, path, id) in [
            ("get", "/openapi.json", "get_openapi_json"),
            ("post", "/api/items/{id}/supersede", "post_api_items_id_supersede"),
            ("delete", "/", "delete"),
        ] {
            assert_eq!(operation_id(method, path), id);
        }
    }

    #[test]
    fn every_status_of_an_error_is_documented_or_belongs_to_few_routes() {
        // 405 is of no operation. Only some routes answer 410 and 501, and they say so.
        let documented: BTreeSet<u16> = GATED_ERRORS.into_iter().chain([405, 410, 501]).collect();
        assert_eq!(api_error::statuses(), documented);
        assert!(OPEN_ERRORS.iter().all(|status| GATED_ERRORS.contains(status)));
    }
}
