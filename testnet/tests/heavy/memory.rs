//! Memory with real programs: a store, a node and a relayer, each in its own process.
//!
//! Real embedding models recall by meaning, on embedded storage and on Postgres (if `BATON_TEST_POSTGRES`
//! names a server). A model that a node serves extracts the facts of an owner who allows it.

use std::{
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use baton_client::Multiaddr;
use baton_keys::account::AccountKey;
use baton_testnet::{
    network::{Network, NodeOptions, RelayerProcess},
    process::{Process, sibling},
};
use reqwest::Method;
use serde_json::{Value, json};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate, matchers::path};

/// Generous for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);

/// A relayer, and an account with memory there.
struct Relayer {
    running: RelayerProcess,
    account: AccountKey,
}

impl Relayer {
    async fn start(network: &Network, nodes: &[Multiaddr], arguments: &[&str], account: AccountKey) -> Self {
        let url = network.store_url();
        let store = ["--publisher", url, "--aggregator", url, "--heads", url, "--shards", "10"];
        let other = ["--http", "127.0.0.1:0", "--allow-echo", "true"];
        let all = [&store[..], &other, arguments].concat();
        let running = RelayerProcess::start(&network.folder, nodes, &all).await.unwrap();
        Self { running, account }
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Value {
        self.running.call(&self.account, method, path, body).await.unwrap()
    }

    async fn chat(&self, text: &str) -> Value {
        let body = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 512 });
        self.call(Method::POST, "/v1/chat", &body).await
    }

    /// Asks in new sessions until a fact is recalled. Vectors are computed after a fact is added. If a loaded
    /// machine embeds the question too slowly, the turn uses words alone.
    async fn recalls(&self, question: &str, fact: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let said = self.chat(question).await;
            let recalled = said["recalled_facts"].as_array().unwrap();
            if recalled.iter().any(|hit| hit["text"] == fact && hit["used"] == true) {
                return said;
            }
            assert!(Instant::now() < end, "{question}: {said}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The texts of an account's facts.
    async fn facts(&self) -> Vec<String> {
        let list = self.call(Method::POST, "/api/list", &json!({ "everything": true, "limit": 200 })).await;
        let facts = list["items"].as_array().unwrap().iter().filter(|item| item["kind"] == "fact");
        facts.map(|item| item["text"].as_str().unwrap().to_owned()).collect()
    }
}

/// The arguments of each available storage; the URL file is in `folder`.
fn storages(folder: &Path) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let Ok(url) = std::env::var("BATON_TEST_POSTGRES") else {
        eprintln!("Postgres is left out: no BATON_TEST_POSTGRES");
        return all;
    };
    let file = folder.join("postgres-url");
    let made = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&file);
    std::io::Write::write_all(&mut made.unwrap(), url.as_bytes()).unwrap();
    let file = file.to_string_lossy().into_owned();
    all.push(["--postgres-url-file", &file].map(str::to_owned).to_vec());
    all
}

/// The folder of fetched models.
fn model_folder() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let cache =
        || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| format!("{home}/.cache")));
    let folder =
        variable("BATON_NODE_MODEL_DIR").or_else(|| cache().map(|cache| format!("{cache}/baton/models")));
    folder.expect("set BATON_NODE_MODEL_DIR or HOME")
}

const FACTS: [&str; 4] = [
    "I prefer Rust for everything I write.",
    "I work as a nurse in a hospital.",
    "My puppy sleeps on the radiator.",
    "Oslo is cold in winter.",
];

/// An embedding model: its names as an embedder and as a model to fetch, a question, and the fact that it
/// must recall.
struct Case {
    embedder: &'static str,
    model: &'static str,
    question: &'static str,
    fact: &'static str,
}

/// No question shares a significant word with its fact.
const CASES: [Case; 2] = [
    Case {
        embedder: "static",
        model: "potion-base-8m",
        question: "Is it freezing in Norway?",
        fact: FACTS[3],
    },
    Case {
        embedder: "minilm",
        model: "all-minilm-l6-v2",
        question: "What is my profession?",
        fact: FACTS[1],
    },
];

/// Recalls a fact in another session, through a node; also after the relayer was killed.
async fn recalls(case: &Case, storage: &[String]) {
    let (program, models) = (sibling("baton-relayer").unwrap(), model_folder());
    let pulled =
        Command::new(program).args(["models", "pull", case.model, "--model-dir", &models]).output().unwrap();
    assert!(pulled.status.success(), "{pulled:?}");
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), 1, NodeOptions::echo()).await.unwrap();
    let nodes = network.addresses();
    let embedder = ["--embedder", case.embedder, "--model-dir", &models];
    let arguments: Vec<&str> = embedder.into_iter().chain(storage.iter().map(String::as_str)).collect();
    let mut relayer = Relayer::start(&network, &nodes, &arguments, AccountKey::generate()).await;
    for fact in FACTS {
        relayer.call(Method::POST, "/api/remember", &json!({ "text": fact })).await;
    }
    for _ in ["at once", "after a kill"] {
        let said = relayer.recalls(case.question, case.fact).await;
        assert!(said["content"].as_str().unwrap().contains(case.fact), "the node's prompt had it: {said}");
        relayer.running.process.kill().await.unwrap();
        relayer = Relayer::start(&network, &nodes, &arguments, relayer.account).await;
    }
    let kept = relayer.facts().await;
    assert!(FACTS.iter().all(|fact| kept.iter().any(|text| text == fact)), "{kept:?}");
    // Neither the relayer nor the store may hold it in the clear.
    let data = [folder.path().join("relayer"), folder.path().join("store")];
    for word in ["radiator", "Rust for everything"] {
        assert!(data.iter().all(|folder| !holds(folder, word.as_bytes())), "{word} lies in the clear");
    }
    relayer.running.process.terminate().await.unwrap();
    network.stop().await.unwrap();
}

/// Whether a file in a folder contains these bytes.
fn holds(folder: &Path, word: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            holds(&path, word)
        } else {
            std::fs::read(path).unwrap().windows(word.len()).any(|part| part == word)
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn real_embedding_models_recall_by_meaning_through_a_node_on_each_storage() {
    let _guard = crate::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    for storage in storages(folder.path()) {
        for case in &CASES {
            recalls(case, &storage).await;
        }
    }
}

/// A text in which the rules find no facts.
const VAGUE: &str = "Philippa's godfather keeps the lighthouse at Ponta.";

/// A fake language model server: a verdict for a judge, a quote for an extractor, else a plain answer.
struct ScriptedModel;

impl Respond for ScriptedModel {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let asked = String::from_utf8_lossy(&request.body);
        let text = if asked.contains("You decide whether an exchange") {
            json!({"mode": "in_world_answer", "risk": "low", "flags": [], "note": "", "extractMemory": true})
                .to_string()
        } else if asked.contains("You copy out") {
            json!([{"quote": "godfather keeps the lighthouse at Ponta", "layer": "profile", "intimate": false, "salience": 0.9}])
                .to_string()
        } else {
            "How remarkable.".to_owned()
        };
        let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]});
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 20}});
        let stream = format!("data: {chunk}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
        ResponseTemplate::new(200).set_body_raw(stream, "text/event-stream")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_a_node_serves_finds_the_facts_of_an_owner_who_allows_it() {
    let _guard = crate::whole_machine().await;
    let server = MockServer::start().await;
    Mock::given(path("/v1/chat/completions")).respond_with(ScriptedModel).mount(&server).await;
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), 0, NodeOptions::echo()).await.unwrap();
    let (data, url) = (folder.path().join("node").to_string_lossy().into_owned(), network.store_url());
    let node =
        ["--data-dir", &data, "--listen", "/ip4/127.0.0.1/tcp/0", "--mdns", "false", "--admin", "none"];
    let store = ["--publisher", url, "--aggregator", url, "--shards", "10"];
    let uri = server.uri();
    let engine = ["--engine", "proxied", "--proxied-url", &uri, "--proxied-model", "scripted"];
    let all = ["run", "--json"]
        .into_iter()
        .chain(node)
        .chain(store)
        .chain(engine)
        .map(str::to_owned)
        .collect::<Vec<_>>();
    let mut node = Process::start("node", "baton-node", &all, folder.path()).await.unwrap();
    let nodes: [Multiaddr; 1] = [node.ready["listen"][0].as_str().unwrap().parse().unwrap()];
    let arguments = ["--embedder", "hashing", "--through-nodes", "scripted"];
    let mut relayer = Relayer::start(&network, &nodes, &arguments, AccountKey::generate()).await;

    relayer.chat(&VAGUE.replace("Philippa", "Rosalind")).await;
    let allowed = json!({ "extract_through_nodes": true });
    relayer.call(Method::PUT, "/api/settings", &allowed).await;
    relayer.chat(VAGUE).await;
    let end = Instant::now() + PATIENCE;
    let found = loop {
        let facts = relayer.facts().await;
        if !facts.is_empty() || Instant::now() > end {
            break facts;
        }
        tokio::time::sleep(PAUSE).await;
    };
    assert!(found.iter().any(|fact| fact.contains("keeps the lighthouse at Ponta")), "{found:?}");
    relayer.running.process.terminate().await.unwrap();
    node.terminate().await.unwrap();
    network.stop().await.unwrap();
}
