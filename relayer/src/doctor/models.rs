//! Checks the embedder and the language model: files in the model folder, endpoints by a question for their
//! models. No text of an owner is sent.

use std::{path::Path, time::Duration};

use baton_kit::doctor::Code;
use baton_memory::extraction::read_key;
use baton_models::embed::models::{ALL_MINILM_L6_V2, EmbeddingModel, POTION_BASE_8M, verify};
use reqwest::{Client, StatusCode};
use serde_json::Value;

use super::{Check, Subject, codes};
use crate::{
    config::{EmbedderSetting, ModelSettings},
    running::{read_json, root_cause},
};

/// Timeout of an endpoint's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The state of an embedding model's files.
#[derive(Debug)]
enum FilesState {
    Missing,
    Right,
    Damaged(String),
}

/// The answer of an endpoint to `GET {url}/models`.
#[derive(Debug)]
enum EndpointAnswer {
    /// Not asked.
    Offline,
    /// The file with its key cannot be used.
    KeyBroken(String),
    /// No answer.
    Silent(String),
    /// An answer, with the names of its models if it lists any.
    Status(StatusCode, Vec<String>),
}

/// The codes of one endpoint.
struct EndpointCodes {
    silent: Code,
    refuses: Code,
    lacks_model: Code,
}

const EMBEDDER: EndpointCodes = EndpointCodes {
    silent: codes::EMBEDDER_SILENT,
    refuses: codes::EMBEDDER_REFUSES,
    lacks_model: codes::EMBEDDER_LACKS_MODEL,
};
const LANGUAGE_MODEL: EndpointCodes = EndpointCodes {
    silent: codes::MODEL_SILENT,
    refuses: codes::MODEL_REFUSES,
    lacks_model: codes::MODEL_NOT_LISTED,
};

/// The checks of the embedder and of the language model.
pub(super) async fn check(subject: &Subject) -> (Check, Check) {
    (check_embedder(subject).await, check_model(subject).await)
}

async fn check_embedder(subject: &Subject) -> Check {
    let settings = &subject.settings;
    let mut check = Check::new("embedder");
    let model = match (settings.embedder, &settings.embedder_endpoint) {
        (EmbedderSetting::Endpoint, Some(endpoint)) => {
            let answer = ask(&endpoint.endpoint, subject.offline).await;
            judge_endpoint(&mut check, &EMBEDDER, &endpoint.endpoint, answer);
            return check;
        }
        (EmbedderSetting::MiniLm, _) => Some(&ALL_MINILM_L6_V2),
        (EmbedderSetting::Static | EmbedderSetting::Auto, _) => Some(&POTION_BASE_8M),
        (EmbedderSetting::Hashing | EmbedderSetting::Endpoint, _) => None,
    };
    match model {
        Some(model) => {
            let state = files_state(model, &settings.model_dir).await;
            judge_files(&mut check, settings.embedder, model.name, state);
        }
        None => check.saw("hashing: words, without a model"),
    }
    check
}

async fn files_state(model: &'static EmbeddingModel, folder: &Path) -> FilesState {
    if !model.is_installed(folder) {
        return FilesState::Missing;
    }
    let folder = folder.to_owned();
    let verified = tokio::task::spawn_blocking(move || verify(model.name, &folder, &mut |_| {})).await;
    match verified {
        Ok(Ok(reports)) => match reports.iter().position(|report| !report.is_right()) {
            None => FilesState::Right,
            Some(_) => FilesState::Damaged("a file has another SHA-256 than the catalogue says".to_owned()),
        },
        Ok(Err(error)) => FilesState::Damaged(error.to_string()),
        Err(error) => FilesState::Damaged(error.to_string()),
    }
}

fn judge_files(check: &mut Check, setting: EmbedderSetting, name: &str, state: FilesState) {
    let pull = format!("run `baton-relayer models pull {name}`");
    match state {
        FilesState::Right => check.saw(format!("{name}, whose files have the right SHA-256")),
        FilesState::Damaged(reason) => check.found_with(
            codes::EMBEDDER_DAMAGED,
            format!("{name}: {reason}"),
            format!("remove the file, and {pull}"),
            false,
        ),
        FilesState::Missing if setting == EmbedderSetting::Auto => {
            check.saw("hashing: words, without a model");
            check.found(codes::EMBEDDER_PLAIN, "words match as they are written, not by meaning");
        }
        FilesState::Missing => check.found_with(
            codes::EMBEDDER_MISSING,
            name.to_owned(),
            format!("{pull}, or set embedder = \"auto\""),
            false,
        ),
    }
}

async fn check_model(subject: &Subject) -> Check {
    let settings = &subject.settings;
    let mut check = Check::new("model");
    if let Some(model) = &settings.model {
        judge_endpoint(&mut check, &LANGUAGE_MODEL, model, ask(model, subject.offline).await);
        return check;
    }
    match &settings.through_nodes {
        Some(model) => check.saw(format!("{model} on third-party nodes, for owners that allow it")),
        None => check.saw("none: rules decide what is kept, and /api/ask is off"),
    }
    check
}

async fn ask(endpoint: &ModelSettings, offline: bool) -> EndpointAnswer {
    let key = match endpoint.key_file.as_deref().map(read_key).transpose() {
        Ok(key) => key,
        Err(error) => return EndpointAnswer::KeyBroken(error.to_string()),
    };
    if offline {
        return EndpointAnswer::Offline;
    }
    let client = match Client::builder().timeout(TIMEOUT).no_proxy().build() {
        Ok(client) => client,
        Err(error) => return EndpointAnswer::Silent(root_cause(&error)),
    };
    let mut request = client.get(format!("{}/models", endpoint.url));
    if let Some(key) = &key {
        request = request.bearer_auth(key.as_str());
    }
    match request.send().await {
        Err(error) => EndpointAnswer::Silent(root_cause(&error)),
        Ok(response) => {
            let status = response.status();
            // A server without a list of models answers in another form.
            let body = read_json(response).await.unwrap_or_default();
            EndpointAnswer::Status(status, listed(&body))
        }
    }
}

/// The names in a list of models.
fn listed(body: &Value) -> Vec<String> {
    let models = body["data"].as_array().into_iter().flatten();
    models.filter_map(|model| model["id"].as_str()).map(str::to_owned).collect()
}

fn judge_endpoint(
    check: &mut Check,
    codes: &EndpointCodes,
    endpoint: &ModelSettings,
    answer: EndpointAnswer,
) {
    let ModelSettings { url, model, .. } = endpoint;
    match answer {
        EndpointAnswer::Offline => check.saw(format!("offline: {url} was not asked")),
        EndpointAnswer::KeyBroken(reason) => check.found(codes.refuses, reason),
        EndpointAnswer::Silent(reason) => check.found(codes.silent, format!("{url}: {reason}")),
        EndpointAnswer::Status(status, _) if status.is_server_error() => {
            check.found(codes.silent, format!("{url} says {status}"));
        }
        EndpointAnswer::Status(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
            check.found(codes.refuses, format!("{url} does not accept the key"));
        }
        EndpointAnswer::Status(_, models) if models.is_empty() || models.contains(model) => {
            check.saw(format!("{model} at {url}, which answers"));
        }
        EndpointAnswer::Status(_, models) => {
            let some: Vec<_> = models.iter().take(5).map(String::as_str).collect();
            check.found(codes.lacks_model, format!("{model}; {url} lists {}", some.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_model_is_a_problem_where_it_was_asked_for() {
        let codes = |setting, state| {
            let mut check = Check::new("embedder");
            judge_files(&mut check, setting, "m", state);
            check.codes()
        };
        assert_eq!(codes(EmbedderSetting::Auto, FilesState::Missing), ["R302"]);
        assert_eq!(codes(EmbedderSetting::Static, FilesState::Missing), ["R301"]);
        assert_eq!(codes(EmbedderSetting::Auto, FilesState::Damaged(String::new())), ["R303"]);
        assert!(codes(EmbedderSetting::MiniLm, FilesState::Right).is_empty());
    }

    #[test]
    fn an_endpoint_is_judged_by_its_answer() {
        let endpoint = ModelSettings { url: "http://x/v1".to_owned(), model: "m".to_owned(), key_file: None };
        let codes = |answer| {
            let mut check = Check::new("model");
            judge_endpoint(&mut check, &LANGUAGE_MODEL, &endpoint, answer);
            check.codes()
        };
        let models = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        assert!(codes(EndpointAnswer::Offline).is_empty());
        assert!(codes(EndpointAnswer::Status(StatusCode::OK, models(&["m", "n"]))).is_empty());
        assert!(codes(EndpointAnswer::Status(StatusCode::NOT_FOUND, models(&[]))).is_empty());
        assert_eq!(codes(EndpointAnswer::Status(StatusCode::OK, models(&["n"]))), ["R309"]);
        assert_eq!(codes(EndpointAnswer::Status(StatusCode::BAD_GATEWAY, models(&[]))), ["R307"]);
        assert_eq!(codes(EndpointAnswer::Silent(String::new())), ["R307"]);
        assert_eq!(codes(EndpointAnswer::Status(StatusCode::FORBIDDEN, models(&[]))), ["R308"]);
        assert_eq!(codes(EndpointAnswer::KeyBroken(String::new())), ["R308"]);
    }

    #[test]
    fn names_are_read_from_a_list_and_from_nothing_else() {
        assert_eq!(listed(&serde_json::json!({ "data": [{ "id": "a" }, { "no": 1 }] })), ["a"]);
        assert!(listed(&serde_json::json!(["a"])).is_empty() && listed(&Value::Null).is_empty());
    }
}
