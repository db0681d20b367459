//! First-token time of each API of `baton serve` beside that of a bare session, by turns in one run.
//!
//! The endpoint is a process of its own over the same nodes. Each sample is the first turn of a new conversation.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use baton_client::{Client, NewSession, TurnInput};
use baton_walrus_client::http_client;
use futures::StreamExt as _;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Quantiles, ms_since, timed_turn, unlimited};
use crate::{
    network::{EngineChoice, Network},
    process::Process,
    up::write_config,
};

/// Samples before measuring: connections, caches and clock rates settle.
const WARM_UP: usize = 4;
/// Samples of each API and engine.
const SAMPLES: usize = 100;
const ANSWER_TOKENS: u32 = 4;
/// Longest wait for a first token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// An API of the endpoint.
#[derive(Debug, Clone, Copy)]
struct Api {
    name: &'static str,
    path: &'static str,
    /// Part of the line that has the first text.
    first_text: &'static str,
}

const APIS: [Api; 4] = [
    Api { name: "chat_completions", path: "/v1/chat/completions", first_text: "\"content\":\"" },
    Api { name: "responses", path: "/v1/responses", first_text: "response.output_text.delta" },
    Api { name: "messages", path: "/v1/messages", first_text: "\"type\":\"text_delta\",\"text\":\"" },
    Api { name: "ollama_chat", path: "/api/chat", first_text: "\"content\":\"" },
];

/// The first-token times of one API.
#[derive(Debug, Serialize)]
pub(crate) struct ApiLatency {
    pub(crate) api: &'static str,
    pub(crate) first_token_ms: Quantiles,
    /// Less that of the bare session just before it.
    pub(crate) added_ms: Quantiles,
}

/// The first-token times of the bare session and of each API.
#[derive(Debug, Serialize)]
pub(crate) struct ApiLatencies {
    pub(crate) engine: &'static str,
    pub(crate) samples: usize,
    pub(crate) bare_first_token_ms: Quantiles,
    pub(crate) apis: Vec<ApiLatency>,
}

/// Measures one engine.
pub(super) async fn measure(
    engine: EngineChoice,
    model_dir: Option<PathBuf>,
) -> anyhow::Result<ApiLatencies> {
    let folder = tempfile::tempdir()?;
    let network = Network::start(folder.path(), 1, unlimited(engine, model_dir)).await?;
    let config = write_config(&network, folder.path())?;
    let serve = ["serve", "--json", "--listen", "127.0.0.1:0", "--no-key", "--allow-echo", "--config"];
    let serve: Vec<String> =
        serve.map(str::to_owned).into_iter().chain([config.display().to_string()]).collect();
    let mut endpoint = Process::start("endpoint", "baton", &serve, folder.path()).await?;
    let url = endpoint.ready["url"]
        .as_str()
        .context("the endpoint names its URL")?
        .trim_end_matches("/v1")
        .to_owned();
    let client = crate::demo::open_client(&network, &folder.path().join("client")).await?;
    let http = http_client::builder_for(&url).build()?;

    let mut bare_ms = Vec::new();
    let mut api_ms: Vec<Vec<f64>> = vec![Vec::new(); APIS.len()];
    let mut added_ms = api_ms.clone();
    for sample in 0..WARM_UP + SAMPLES {
        let number = sample * (1 + APIS.len());
        let bare = bare_first_token(&client, engine, number).await?;
        let mut times = Vec::new();
        for (place, api) in APIS.into_iter().enumerate() {
            times
                .push(api_first_token(&http, &url, api, number + 1 + place).await.with_context(|| api.name)?);
        }
        if sample < WARM_UP {
            continue;
        }
        bare_ms.push(bare);
        for ((api_ms, added_ms), time) in api_ms.iter_mut().zip(&mut added_ms).zip(times) {
            api_ms.push(time);
            added_ms.push(time - bare);
        }
    }
    client.shutdown(Duration::from_secs(5)).await;
    endpoint.terminate().await?;
    network.stop().await?;
    let measured = APIS.iter().zip(api_ms.iter().zip(&added_ms));
    Ok(ApiLatencies {
        engine: match engine {
            EngineChoice::Echo => "echo",
            EngineChoice::Native => "native",
        },
        samples: SAMPLES,
        bare_first_token_ms: Quantiles::of(&bare_ms),
        apis: measured
            .map(|(api, (times, added))| ApiLatency {
                api: api.name,
                first_token_ms: Quantiles::of(times),
                added_ms: Quantiles::of(added),
            })
            .collect(),
    })
}

/// A message of its own for each number, so that no cache has its prompt.
fn message(number: usize) -> String {
    format!("{number} is a number. Please answer with one word.")
}

async fn bare_first_token(client: &Client, engine: EngineChoice, number: usize) -> anyhow::Result<f64> {
    let input = TurnInput { max_output_tokens: ANSWER_TOKENS, ..TurnInput::user(message(number)) };
    let input = input.with_route(|route| route.allow_echo = engine == EngineChoice::Echo);
    let begun = Instant::now();
    let session = client.new_session(NewSession::default()).await?;
    let made_ms = ms_since(begun);
    Ok(made_ms + timed_turn(client, session, input).await?.first_text_ms)
}

/// The time from sending a request to the line with the first text. Reads the answer to its end.
async fn api_first_token(http: &reqwest::Client, url: &str, api: Api, number: usize) -> anyhow::Result<f64> {
    let messages = json!([{ "role": "user", "content": message(number) }]);
    let body: Value = match api.name {
        "responses" => json!({ "model": "auto", "stream": true, "max_output_tokens": 16, "input": messages }),
        "ollama_chat" => {
            json!({ "model": "auto", "messages": messages, "options": { "num_predict": ANSWER_TOKENS } })
        }
        _ => json!({ "model": "auto", "stream": true, "max_tokens": ANSWER_TOKENS, "messages": messages }),
    };
    let begun = Instant::now();
    let sent = http.post(format!("{url}{}", api.path)).json(&body).timeout(TOKEN_TIMEOUT).send().await?;
    let status = sent.status();
    ensure!(status.is_success(), "{status}: {}", sent.text().await.unwrap_or_default());
    let (mut text, mut first) = (String::new(), None);
    let mut parts = sent.bytes_stream();
    while let Some(part) = parts.next().await {
        text.push_str(&String::from_utf8_lossy(&part?));
        if first.is_none() && has_text(&text, api) {
            first = Some(ms_since(begun));
        }
    }
    match first {
        Some(first) => Ok(first),
        None => bail!("the answer has no text: {text}"),
    }
}

/// Whether a stream has text yet: not only an empty one, as in the chunk that names the role.
fn has_text(stream: &str, api: Api) -> bool {
    stream.split(api.first_text).skip(1).any(|rest| !rest.starts_with('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_text_is_not_an_empty_one() {
        let [chat, responses, messages, _] = APIS;
        assert!(!has_text("data: {\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}", chat));
        assert!(has_text("{\"content\":\"\"}\n{\"content\":\"a\"}", chat));
        assert!(has_text("event: response.output_text.delta\n", responses));
        assert!(!has_text("event: response.created\n", responses));
        assert!(has_text("{\"delta\":{\"type\":\"text_delta\",\"text\":\" a\"}}", messages));
    }
}
