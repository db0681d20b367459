//! The OpenAPI document, as a generator of clients reads it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::harness::{Person, TestServer};

/// The schema of a JSON body: of the request, or of an answer with this status.
fn schema<'a>(document: &'a Value, path: &str, method: &str, status: Option<&str>) -> &'a Value {
    let operation = &document["paths"][path][method];
    let body = match status {
        Some(status) => &operation["responses"][status],
        None => &operation["requestBody"],
    };
    let reference = body["content"]["application/json"]["schema"]["$ref"].as_str().unwrap();
    &document["components"]["schemas"][reference.rsplit('/').next().unwrap()]
}

fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths.iter().flat_map(|(path, item)| {
        let item = item.as_object().unwrap();
        item.iter().map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

#[tokio::test]
async fn operations_have_distinct_ids_and_all_errors() {
    let document = TestServer::open().await.bare("GET", "/openapi.json", "").await.good();
    let mut ids = BTreeSet::new();
    for (name, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{name} has no id"));
        assert!(ids.insert(id), "{id} twice");
        assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{id}");
        let gated = operation["security"].is_array();
        let statuses: &[&str] = match gated {
            true => &["400", "401", "403", "404", "408", "409", "413", "421", "429", "500", "503", "504"],
            false => &["400", "408", "413", "429", "500", "503"],
        };
        for status in statuses {
            assert!(operation["responses"][*status]["description"].is_string(), "{name} {status}");
        }
    }
    assert!(ids.len() > 50, "{}", ids.len());
    let limited = &document["paths"]["/v1/memory/recall"]["post"]["responses"]["429"];
    assert_eq!(limited["description"], "an error; its code is one of: rate_limited");
    let error = schema(&document, "/v1/memory/recall", "post", Some("429"));
    assert!(error.to_string().contains("\"request_id\""), "{error}");
}

#[tokio::test]
async fn each_recall_answers_in_its_own_schema() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let document = server.bare("GET", "/openapi.json", "").await.good();
    for (path, field) in [("/v1/memory/recall", "hits"), ("/api/recall", "results")] {
        let answer = person.post(path, json!({ "query": "paint" })).await.good();
        let schema = schema(&document, path, "post", Some("200"));
        let sent: BTreeSet<_> = answer.as_object().unwrap().keys().map(String::as_str).collect();
        let known: BTreeSet<_> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert!(sent.contains(field) && sent.is_subset(&known), "{path}: {sent:?}, {known:?}");
        for required in schema["required"].as_array().unwrap() {
            assert!(sent.contains(required.as_str().unwrap()), "{path} lacks {required}");
        }
    }
}

#[tokio::test]
async fn bodies_are_optional_exactly_where_a_route_takes_none() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let document = server.bare("GET", "/openapi.json", "").await.good();
    for (path, optional) in [
        ("/v1/memory/list", true),
        ("/api/recall", false),
        ("/v1/memory/recall", false),
        ("/api/remember", false),
    ] {
        let required = document["paths"][path]["post"]["requestBody"]["required"].as_bool();
        assert_eq!(required, Some(!optional), "{path}");
        let headers = person.headers("POST", path, b"");
        let answer = server.send("POST", path, &headers, Vec::new()).await;
        match optional {
            true => drop(answer.good()),
            false => answer.refused(400, "bad_request"),
        }
    }
}
