//! The OpenAPI document: made from the table of operations, the open routes, and the types of requests and answers.
//! Pure.

use serde_json::{Map, Value, json};
use utoipa::{
    ToSchema,
    openapi::{RefOr, Schema},
};

use super::{
    RelayerIdentity,
    api_error::{self, ApiErrorJson},
    constraints, open,
    operation::Operation,
};

/// The media type of requests and answers.
pub(super) const JSON: &str = "application/json";

/// Named schemas of the document.
pub(super) type Schemas = Vec<(String, RefOr<Schema>)>;

/// Statuses of errors that any open route may answer with.
const OPEN_ERRORS: [u16; 6] = [400, 408, 413, 429, 500, 503];
/// Statuses of errors that any route behind the gate may answer with.
const GATED_ERRORS: [u16; 12] = [400, 401, 403, 404, 408, 409, 413, 421, 429, 500, 503, 504];

/// Headers of a signed request, with their contents.
const AUTH_HEADERS: [(&str, &str); 5] = [
    ("x-public-key", "The signer's Ed25519 public key, hex."),
    ("x-signature", "Ed25519 over the request's canonical bytes, hex."),
    ("x-timestamp", "Seconds since the Unix epoch, within 300 of the relayer's clock."),
    ("x-nonce", "A UUID that the key has never used."),
    ("x-account-id", "The Sui address of the owner's key: 0x and 64 hex characters."),
];

const DESCRIPTION: &str = "Memory across conversations. Every request but those to /health, /readyz, /version, /relayer, /config, \
    /sui and /openapi.json is signed: Ed25519 over `{timestamp}.{METHOD}.{path and query}.{SHA-256 of the body, hex}.{nonce}.\
    {account id}`, in the headers x-public-key, x-signature (both hex), x-timestamp (seconds), x-nonce (a UUID) and \
    x-account-id (the Sui address of the owner's key). The query parameter `relayer`, the key at /relayer, binds a request to \
    this relayer; it may be required. A body of more than 2 MiB needs its SHA-256, hex, in \
    x-body-sha256 too, so that its signature is checked before it is read. A key that is not the owner's needs a delegation, registered or in \
    the header x-delegation. Errors are JSON with code, message, hint and request_id; a 429 or 503 says in Retry-After \
    when to come back. Times are RFC 3339. The namespace `default` is the shared pool of no project.";

/// The document of these operations and of the open routes.
pub(super) fn document(operations: &[Operation]) -> Value {
    let (mut paths, mut schemas) = (json!({}), Schemas::new());
    for operation in operations {
        paths[operation.path][operation.method.as_str().to_lowercase()] = operation.documented.clone();
        schemas.extend(operation.schemas.iter().cloned());
    }
    for (method, path, about, _) in open::routes() {
        let mut documented = self::operation(method, path, about, false);
        documented["tags"] = json!(["open"]);
        documented["responses"]["200"] = answer(JSON, json!({ "type": "object" }));
        paths[path][method.to_lowercase()] = documented;
    }
    paths["/sui"]["post"]["requestBody"] = body(JSON, json!({ "type": "object" }), true);
    paths["/relayer"]["get"]["responses"]["200"] = answer(JSON, reference::<RelayerIdentity>(&mut schemas));
    #[cfg(feature = "mcp")]
    super::tools::describe(&mut paths);
    reference::<ApiErrorJson>(&mut schemas);
    let schemas: Map<String, Value> =
        schemas.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
    let schemes = AUTH_HEADERS.into_iter().map(|(name, about)| {
        (name.to_owned(), json!({ "type": "apiKey", "in": "header", "name": name, "description": about }))
    });
    let mut schemes: Map<String, Value> = schemes.collect();
    schemes.insert("token".to_owned(), json!({ "type": "http", "scheme": "bearer" }));
    let mut document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Baton relayer", "version": env!("CARGO_PKG_VERSION"), "description": DESCRIPTION },
        "paths": paths,
        "components": { "schemas": schemas, "securitySchemes": schemes },
    });
    constraints::constrain(&mut document);
    document
}

/// The entry of an operation, with the errors that any route of its kind may answer with.
pub(super) fn operation(method: &str, path: &str, about: &str, is_gated: bool) -> Value {
    let words = path.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    // Method and path are the only unique pair: names of handlers are not.
    let id = std::iter::once(&*method.to_lowercase()).chain(words).collect::<Vec<_>>().join("_");
    let (summary, more) = about.split_once(". ").unwrap_or((about.trim_end_matches('.'), ""));
    let statuses: &[u16] = if is_gated { &GATED_ERRORS } else { &OPEN_ERRORS };
    let responses: Map<String, Value> =
        statuses.iter().map(|status| (status.to_string(), error(*status))).collect();
    let summary = format!("{summary}.");
    let mut entry =
        json!({ "operationId": id, "summary": summary, "description": more, "responses": responses });
    if is_gated {
        let all = AUTH_HEADERS.into_iter().map(|(header, _)| (header.to_owned(), json!([])));
        entry["security"] = json!([all.collect::<Map<_, _>>()]);
    }
    entry
}

/// A body of this form.
pub(super) fn body(media_type: &str, schema: Value, is_required: bool) -> Value {
    json!({ "content": { media_type: { "schema": schema } }, "required": is_required })
}

/// An answer of this form.
pub(super) fn answer(media_type: &str, schema: Value) -> Value {
    json!({ "description": "the answer", "content": { media_type: { "schema": schema } } })
}

/// An error with this status.
pub(super) fn error(status: u16) -> Value {
    let codes = api_error::codes_of(status).join(", ");
    let mut error = answer(JSON, json!({ "$ref": format!("#/components/schemas/{}", ApiErrorJson::name()) }));
    error["description"] = format!("an error; its code is one of: {codes}").into();
    error
}

/// A reference to the schema of a type, which is added to the others.
pub(super) fn reference<T: ToSchema>(schemas: &mut Schemas) -> Value {
    T::schemas(schemas);
    schemas.push((T::name().into_owned(), T::schema()));
    json!({ "$ref": format!("#/components/schemas/{}", T::name()) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_status_of_an_error_is_documented_or_belongs_to_few_routes() {
        // 405 is of no operation. Only some routes answer 410 and 501, and they say so.
        let documented: BTreeSet<u16> = GATED_ERRORS.into_iter().chain([405, 410, 501]).collect();
        assert_eq!(api_error::statuses(), documented);
        assert!(OPEN_ERRORS.iter().all(|status| GATED_ERRORS.contains(status)));
        assert_eq!(
            operation("POST", "/api/items/{id}/supersede", "", true)["operationId"],
            "post_api_items_id_supersede"
        );
    }
}
