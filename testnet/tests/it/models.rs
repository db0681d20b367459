//! A node that offers two models and has memory for one at a time. One runs on its own engine, the other on a
//! general library.

#[path = "../../../node/engine/tests/it/candle/small.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod small;

use std::{env, fs, path::PathBuf, time::Duration};

use baton_client::{Client, NewSession, RouteOptions, TurnInput, TurnOutcome};
use baton_node::models::{Catalogue, DEFAULT_MODEL};
use baton_proto::{receipt::EngineKind, turn::Sampling};
use baton_testnet::network::{EngineChoice, Network, NodeOptions};

const SMALL: &str = "small";
/// The larger model takes about 126 MB with its keys and values, the smaller one 32.
const BUDGET_MB: &str = "140";

/// Path of the real model, fetched if necessary.
fn real_model() -> PathBuf {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    let folder = variable("BATON_NODE_MODEL_DIR").or_else(|| cache().map(|cache| cache.join("baton/models")));
    Catalogue::built_in()
        .pull(DEFAULT_MODEL, &folder.expect("set BATON_NODE_MODEL_DIR or HOME"), &mut |_| {})
        .unwrap()
}

async fn ask(client: &Client, model: &str) -> TurnOutcome {
    let session = client.new_session(NewSession::default()).await.unwrap();
    let input = TurnInput {
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_output_tokens: 16,
        route: RouteOptions { model: Some(model.to_owned()), ..RouteOptions::default() },
        ..TurnInput::user("Say something about rivers.")
    };
    client.session(session).turn(input, |_| {}).await.unwrap()
}

/// The values of a metric's lines.
fn values(metrics: &str, name: &str) -> Vec<f64> {
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_models_take_turns_in_the_memory_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    fs::create_dir(&models).unwrap();
    let real = real_model();
    fs::copy(&real, models.join(real.file_name().unwrap())).unwrap();
    fs::write(models.join(format!("{SMALL}.gguf")), small::model("phi3").finish()).unwrap();
    let extra = ["--more-models", SMALL, "--kv-mb", "32", "--model-memory-mb", BUDGET_MB];
    let options =
        NodeOptions { model_dir: Some(models), ..NodeOptions::new(EngineChoice::Native).with(&extra) };
    let network = Network::start(folder.path(), 1, options).await.unwrap();
    let client = network.client(&folder.path().join("client")).await.unwrap();

    let (first, other) = (ask(&client, DEFAULT_MODEL).await, ask(&client, SMALL).await);
    assert_eq!((first.receipt.engine, other.receipt.engine), (EngineKind::Native, EngineKind::Library));
    assert_ne!(first.receipt.model, other.receipt.model);
    assert!(first.receipt.tokens.output > 0 && other.receipt.tokens.output > 0);
    // Concurrent turns: none fails, and each model repeats its answer, however often it was unloaded.
    let again = (0..4).map(|number| ask(&client, if number % 2 == 0 { DEFAULT_MODEL } else { SMALL }));
    for (number, outcome) in futures::future::join_all(again).await.into_iter().enumerate() {
        let before = if number % 2 == 0 { &first } else { &other };
        assert_eq!((&outcome.text, outcome.receipt.engine), (&before.text, before.receipt.engine));
    }

    let admin = network.running().next().unwrap().admin.clone().unwrap();
    let metrics = reqwest::get(format!("http://{admin}/metrics")).await.unwrap().text().await.unwrap();
    assert_eq!(values(&metrics, "baton_models_loaded "), [1.0], "{metrics}");
    let memory = values(&metrics, "baton_model_memory_bytes ");
    assert!(memory[0] > 0.0 && memory[0] <= f64::from(140 << 20), "{memory:?}");
    let loads: f64 = values(&metrics, "baton_model_loads_total{").iter().sum();
    let unloads: f64 = values(&metrics, "baton_model_unloads_total ").iter().sum();
    assert!(loads >= 1.0 && unloads >= 1.0, "{loads} loads and {unloads} unloads");
    client.shutdown(Duration::from_secs(2)).await;
}
