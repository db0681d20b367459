//! Checks the embedder and the language model: files in the model folder, endpoints by a question for their
//! models. No text of an owner is sent.

use std::time::Duration;

use baton_kit::{doctor::Code, output::root_cause};
use baton_memory::extraction::read_key;
use baton_models::embed::models::{ALL_MINILM_L6_V2, EmbeddingModel, POTION_BASE_8M, verify};
use reqwest::{Client, StatusCode};
use serde_json::Value;
use zeroize::Zeroizing;

use super::{Check, Subject, codes};
use crate::{
    config::{EmbedderSetting, ModelSettings, Settings},
    running::read_json,
};

/// Timeout of an endpoint's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The codes of an endpoint that is silent, that refuses, and that lacks the model.
type EndpointCodes = [Code; 3];

const EMBEDDER: EndpointCodes =
    [codes::EMBEDDER_SILENT, codes::EMBEDDER_REFUSES, codes::EMBEDDER_LACKS_MODEL];
const LANGUAGE_MODEL: EndpointCodes = [codes::MODEL_SILENT, codes::MODEL_REFUSES, codes::MODEL_NOT_LISTED];

/// The status of an endpoint's answer to `GET {url}/models`, with the names of its models if it lists any.
type EndpointAnswer = Result<(StatusCode, Vec<String>), String>;

/// The check of the embedder.
pub(super) async fn check_embedder(subject: &Subject) -> Check {
    let settings = &subject.settings;
    let mut check = Check::new("embedder");
    match (settings.options.embedder(), &settings.embedder_endpoint) {
        (EmbedderSetting::Endpoint, Some(of)) => check_endpoint(&mut check, EMBEDDER, &of.endpoint).await,
        (EmbedderSetting::MiniLm, _) => check_files(&mut check, &ALL_MINILM_L6_V2, settings).await,
        (EmbedderSetting::Static | EmbedderSetting::Auto, _) => {
            check_files(&mut check, &POTION_BASE_8M, settings).await;
        }
        (EmbedderSetting::Hashing | EmbedderSetting::Endpoint, _) => {
            check.saw("hashing: words, without a model");
        }
    }
    check
}

async fn check_files(check: &mut Check, model: &'static EmbeddingModel, settings: &Settings) {
    let (name, folder) = (model.name, settings.model_dir.clone());
    let pull = format!("run `baton-relayer models pull {name}`");
    if !model.is_installed(&folder) && settings.options.embedder() == EmbedderSetting::Auto {
        check.saw("hashing: words, without a model");
        return check.found(codes::EMBEDDER_PLAIN, "words match as they are written, not by meaning");
    }
    if !model.is_installed(&folder) {
        let fix = format!("{pull}, or set embedder = \"auto\"");
        return check.found_with(codes::EMBEDDER_MISSING, name, fix, false);
    }
    let verified = tokio::task::spawn_blocking(move || verify(name, &folder, &mut |_| {})).await;
    let damage = match verified {
        Ok(Ok(reports)) if reports.iter().all(|report| report.is_right()) => {
            return check.saw(format!("{name}, whose files have the right SHA-256"));
        }
        Ok(Ok(_)) => "a file has another SHA-256 than the catalogue says".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    let fix = format!("remove the file, and {pull}");
    check.found_with(codes::EMBEDDER_DAMAGED, format!("{name}: {damage}"), fix, false);
}

/// The check of the language model.
pub(super) async fn check_model(subject: &Subject) -> Check {
    let settings = &subject.settings;
    let mut check = Check::new("model");
    match (&settings.model, &settings.options.through_nodes) {
        (Some(model), _) => check_endpoint(&mut check, LANGUAGE_MODEL, model).await,
        (None, Some(model)) => {
            check.saw(format!("{model} on third-party nodes, for owners that allow it"));
        }
        (None, None) => check.saw("none: rules decide what is kept, and /api/ask is off"),
    }
    check
}

async fn check_endpoint(check: &mut Check, codes: EndpointCodes, endpoint: &ModelSettings) {
    match endpoint.key_file.as_deref().map(read_key).transpose() {
        Ok(key) => judge(check, codes, endpoint, ask(&endpoint.url, key).await),
        Err(error) => check.found(codes[1], error.to_string()),
    }
}

async fn ask(url: &str, key: Option<Zeroizing<String>>) -> EndpointAnswer {
    let client = Client::builder().timeout(TIMEOUT).no_proxy().build();
    let mut request = client.map_err(|error| root_cause(&error))?.get(format!("{url}/models"));
    if let Some(key) = &key {
        request = request.bearer_auth(key.as_str());
    }
    let response = request.send().await.map_err(|error| root_cause(&error))?;
    let status = response.status();
    // A server without a list of models answers in another form.
    let body = read_json(response).await.unwrap_or_default();
    Ok((status, listed(&body)))
}

/// The names in a list of models.
fn listed(body: &Value) -> Vec<String> {
    let models = body["data"].as_array().into_iter().flatten();
    models.filter_map(|model| model["id"].as_str()).map(str::to_owned).collect()
}

fn judge(check: &mut Check, codes: EndpointCodes, endpoint: &ModelSettings, answer: EndpointAnswer) {
    let ModelSettings { url, model, .. } = endpoint;
    let [silent, refuses, lacks_model] = codes;
    match answer {
        Err(reason) => check.found(silent, format!("{url}: {reason}")),
        Ok((status, _)) if status.is_server_error() => check.found(silent, format!("{url} says {status}")),
        Ok((StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _)) => {
            check.found(refuses, format!("{url} does not accept the key"));
        }
        Ok((_, models)) if models.is_empty() || models.contains(model) => {
            check.saw(format!("{model} at {url}, which answers"));
        }
        Ok((_, models)) => {
            let some: Vec<_> = models.iter().take(5).map(String::as_str).collect();
            check.found(lacks_model, format!("{model}; {url} lists {}", some.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{silent, subject},
        *,
    };

    #[tokio::test]
    async fn a_missing_model_is_a_problem_where_it_was_asked_for() {
        for (setting, code) in [("auto", "R302"), ("static", "R301"), ("minilm", "R301")] {
            let subject = subject(&format!("embedder = \"{setting}\""), silent());
            assert_eq!(check_embedder(&subject).await.codes(), [code], "{setting}");
        }
        assert!(check_embedder(&subject("embedder = \"hashing\"", silent())).await.codes().is_empty());
    }

    #[test]
    fn an_endpoint_is_judged_by_its_answer() {
        let endpoint = ModelSettings { url: "http://x/v1".to_owned(), model: "m".to_owned(), key_file: None };
        for (answer, code) in [
            (Ok((StatusCode::OK, &["m", "n"][..])), None),
            (Ok((StatusCode::NOT_FOUND, &[])), None),
            (Ok((StatusCode::OK, &["n"])), Some("R309")),
            (Ok((StatusCode::BAD_GATEWAY, &[])), Some("R307")),
            (Err(()), Some("R307")),
            (Ok((StatusCode::FORBIDDEN, &[])), Some("R308")),
        ] {
            let mut check = Check::new("model");
            let body = |names: &[&str]| serde_json::json!({ "data": names.iter().map(|name| serde_json::json!({ "id": name })).collect::<Vec<_>>() });
            let answer =
                answer.map(|(status, names)| (status, listed(&body(names)))).map_err(|()| String::new());
            judge(&mut check, LANGUAGE_MODEL, &endpoint, answer);
            assert_eq!(check.codes().first().copied(), code);
        }
    }
}
