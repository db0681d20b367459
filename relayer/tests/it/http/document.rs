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
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert!(response["description"].is_string(), "{name} {status}");
        }
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
    let limited = &document["paths"]["/api/recall"]["post"]["responses"]["429"];
    assert_eq!(limited["description"], "an error; its code is one of: rate_limited");
    let error = schema(&document, "/api/recall", "post", Some("429"));
    assert!(error.to_string().contains("\"request_id\""), "{error}");
}

#[tokio::test]
async fn bodies_are_optional_exactly_where_a_route_takes_none() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let document = server.bare("GET", "/openapi.json", "").await.good();
    for (path, optional) in [("/api/list", true), ("/api/recall", false), ("/api/remember", false)] {
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

#[tokio::test]
async fn constraints_say_what_is_refused_and_hold_for_what_is_answered() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let document = server.bare("GET", "/openapi.json", "").await.good();
    let property =
        |schema: &str, field: &str| document["components"]["schemas"][schema]["properties"][field].clone();
    let project = property("FactInput", "project");
    assert_eq!((&project["minLength"], &project["maxLength"]), (&json!(1), &json!(256)));
    assert_eq!(property("RecallInput", "budget_tokens")["maximum"], json!(u32::MAX));
    let recall = person.post("/api/recall", json!({ "query": "paint" })).await.good();
    let schema = schema(&document, "/api/recall", "post", Some("200"));
    for (field, _) in schema["properties"].as_object().unwrap() {
        assert!(recall.get(field).is_some(), "{field} is missing");
    }
    let remember = async |fact: Value| person.post("/api/remember", fact).await.status;
    for wrong in ["", &"x".repeat(257), "a\u{7}b", "a\u{85}b"] {
        assert_eq!(remember(json!({ "text": "a b c", "project": wrong })).await, 400, "{wrong:?}");
    }
    assert_eq!(remember(json!({ "text": "a b c", "project": "x".repeat(256) })).await, 202);
    let layers = property("FactInput", "layer")["enum"].clone();
    assert_eq!(layers, json!(["profile", "relationship", null]));
    assert_eq!(remember(json!({ "text": "a b c", "layer": "episode" })).await, 400);
    for layer in ["profile", "relationship"] {
        assert_eq!(remember(json!({ "text": format!("a b {layer}"), "layer": layer })).await, 202);
    }
    let filters = property("FilterInput", "kinds");
    let kinds: Vec<&str> =
        filters["items"]["enum"].as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()).collect();
    let recall = async |kind: &str| {
        let body = json!({ "query": "a", "filters": { "kinds": [kind] } });
        person.post("/api/recall", body).await.status
    };
    for kind in &kinds {
        assert_eq!(recall(kind).await, 200, "{kind}");
    }
    assert_eq!(recall("other").await, 400);

    let listed = person.post("/api/list", json!({ "everything": true })).await.good();
    for item in listed["items"].as_array().unwrap() {
        let is_hex = |text: &Value, digits: usize| {
            text.as_str()
                .is_some_and(|text| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        assert_eq!(property("Item", "id")["pattern"], "^[0-9a-fA-F]{32}$");
        assert!(is_hex(&item["id"], 32), "{item}");
        for field in ["kind", "layer", "role", "author", "consent"] {
            let allowed = property("Item", field)["enum"].clone();
            assert!(allowed.as_array().unwrap().contains(&item[field]), "{field}: {item}");
        }
        assert_eq!(property("Item", "time")["format"], "date-time");
        assert!(item["time"].as_str().unwrap().contains('T'), "{item}");
    }
}
