//! The OpenAPI document beside the routes as they are served, and the table of GATEWAY.md.

use std::{collections::BTreeSet, fs, path::Path};

use reqwest::Method;
use serde_json::{Value, json};

use crate::serve::{Endpoint, sent};

/// The routes of the table in GATEWAY.md, as the document writes them.
fn documented() -> BTreeSet<(Method, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/GATEWAY.md");
    let text = fs::read_to_string(path).unwrap();
    let mut routes = BTreeSet::new();
    let rows = text.lines().skip_while(|line| *line != "| route | method | answer |").skip(2);
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for route in cells[1].split(", ").map(|route| route.trim_matches('`')) {
            // The page and its files are no part of the API.
            if route == "/" || route == "/c/ID" || route == "/openapi.json" {
                continue;
            }
            let route = route.split('?').next().unwrap().replace("/ID", "/{id}").replace("/NAME", "/{name}");
            for method in ["GET", "POST", "PATCH", "DELETE"] {
                if cells[2].contains(method) {
                    routes.insert((method.parse().unwrap(), route.clone()));
                }
            }
        }
    }
    routes
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_names_the_routes_that_are_served_and_described() {
    let (_world, endpoint) = Endpoint::with_nodes(1).await;
    let (_, document) = sent(endpoint.without_key(Method::GET, "/openapi.json")).await;
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let (mut named, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            named.insert((method.clone(), path.clone()));
            assert!(names.insert(operation["operationId"].as_str().unwrap()), "{method} {path}");
            let at = path.replace("{id}", "none").replace("{name}", "none");
            let (status, body) = sent(endpoint.request(method.clone(), &at).json(&json!({}))).await;
            assert!(!body.to_string().contains("unknown_url"), "{method} {path}: {body}");
            if status == 200 {
                check(&document, &operation["responses"]["200"], &body, path);
            }
        }
    }
    let mut described = documented();
    // Described in words there: it always refuses.
    described.insert((Method::POST, "/v1/responses/{id}/cancel".to_owned()));
    assert_eq!(named, described);
    endpoint.close().await;
}

/// Checks that an answer has the fields that the document requires.
fn check(document: &Value, answer: &Value, body: &Value, path: &str) {
    let name = answer["content"]["application/json"]["schema"]["$ref"].as_str().unwrap();
    let schema = document.pointer(name.trim_start_matches('#')).unwrap();
    for field in schema["required"].as_array().into_iter().flatten() {
        assert!(body.get(field.as_str().unwrap()).is_some(), "{path} answers without {field}: {body}");
    }
}
