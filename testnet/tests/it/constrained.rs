//! An answer under a schema, from two real nodes with the real model. The first node is killed midway; the
//! other must continue to the same answer. The test also checks the token probabilities over both.

use std::{path::Path, sync::Arc, time::Duration};

use baton_client::{Client, NewSession, RouteOptions, TurnEvent, TurnInput, TurnOutcome};
use baton_proto::{
    ErrorCode,
    ids::NodeId,
    receipt::EngineKind,
    record::FinishReason,
    tools::{CallArguments, Definitions, Json, call_schema, read_answer},
    turn::Sampling,
};
use baton_testnet::network::{EngineChoice, Network, NodeOptions};
use serde_json::Value;
use tokio::{sync::Notify, time::timeout};

const PAUSE_TIMEOUT: Duration = Duration::from_secs(120);
/// Rounds until the client draws the second node first; each has about even odds.
const MAX_ROUNDS: u32 = 16;
const SCHEMA: &str = r#"{"type":"object","properties":{"city":{"type":"string","maxLength":12},
    "rivers":{"type":"array","items":{"type":"string","maxLength":10},"minItems":2,"maxItems":3}},
    "required":["city","rivers"],"additionalProperties":false}"#;

fn options() -> NodeOptions {
    NodeOptions::new(EngineChoice::Native)
}

async fn open_client(network: &Network, home: &Path) -> Client {
    network.client(home).await.unwrap()
}

async fn ask(
    client: &Client,
    node: Option<NodeId>,
    schema: &str,
    first_words: &Notify,
) -> (Result<TurnOutcome, baton_client::ClientError>, Vec<TurnEvent>) {
    let session = client.new_session(NewSession::default()).await.unwrap();
    let input = TurnInput {
        json_schema: Some(schema.to_owned()),
        sampling: Sampling { temperature: 0.8, seed: 11, logprobs: 2, ..Sampling::default() },
        max_output_tokens: 120,
        route: RouteOptions { node, ..RouteOptions::default() },
        ..TurnInput::user("Name a city with its rivers, as JSON.")
    };
    let mut events = Vec::new();
    let on_event = |event| {
        if matches!(event, TurnEvent::Text(_)) {
            first_words.notify_one();
        }
        events.push(event);
    };
    let result = client.session(session).turn(input, on_event).await;
    (result, events)
}

/// A turn of a model that has these tools, which must be the call that the schema names, and one in
/// which the model was free to call.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_template_for_tools_calls_them_and_another_node_computes_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), 2, options()).await.unwrap();
    let client = open_client(&network, &folder.path().join("client")).await;
    let definitions = r#"[{"type":"function","function":{"name":"get_weather","description":"The weather of a city.",
        "parameters":{"type":"object","properties":{"city":{"type":"string","maxLength":12},
        "day":{"enum":["today","tomorrow"]}},"required":["city","day"],"additionalProperties":false}}}]"#;
    let Some(Json::List(definitions)) = Json::parse(definitions) else { panic!("a list") };
    let tools = Definitions::of(definitions).unwrap();
    let forced = call_schema(&tools, None, CallArguments::Checked).unwrap();
    for json_schema in [Some(forced), None] {
        let begun = NewSession { system: vec![tools.message()], ..NewSession::default() };
        let session = client.new_session(begun).await.unwrap();
        let input = TurnInput {
            json_schema: json_schema.clone(),
            sampling: Sampling { temperature: 0.8, seed: 3, ..Sampling::default() },
            max_output_tokens: 80,
            ..TurnInput::user("What is the weather in Paris today?")
        };
        let outcome = client.session(session).turn(input, |_: TurnEvent| {}).await.unwrap();
        let answer = read_answer(&outcome.text, |name| tools.has(name));
        if json_schema.is_some() {
            assert_eq!((answer.calls.len(), outcome.finish), (1, FinishReason::ToolCall), "{}", outcome.text);
            let Json::Map(arguments) = &answer.calls[0].arguments else { panic!("{}", outcome.text) };
            let names: Vec<&str> = arguments.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["city", "day"]);
        }
    }
    client.shutdown(Duration::from_secs(2)).await;
    network.stop().await.unwrap();
}

/// The bytes and the number of all reported tokens.
fn reported(events: &[TurnEvent]) -> (String, usize) {
    let reports = events.iter().filter_map(|event| match event {
        TurnEvent::Logprobs(reports) => Some(reports),
        _ => None,
    });
    let tokens: Vec<_> = reports.flatten().map(|report| &report.token.bytes[..]).collect();
    (String::from_utf8(tokens.concat()).unwrap(), tokens.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_under_a_schema_is_continued_by_another_node_to_the_same_text() {
    let folder = tempfile::tempdir().unwrap();
    let mut network = Network::start(folder.path(), 1, options()).await.unwrap();
    let steady = network.running().next().unwrap().node;
    let client = open_client(&network, &folder.path().join("steady")).await;
    let (whole, events) = ask(&client, Some(steady), SCHEMA, &Notify::new()).await;
    let whole = whole.unwrap();
    assert_eq!(whole.receipt.engine, EngineKind::Native);
    let value: Value = serde_json::from_str(&whole.text).unwrap();
    let rivers = value["rivers"].as_array().unwrap();
    assert!(value["city"].is_string() && (2..=3).contains(&rivers.len()), "{}", whole.text);
    assert_eq!(reported(&events), (whole.text.clone(), whole.receipt.tokens.output as usize));
    let (refused, _) = ask(&client, Some(steady), r#"{"type":"object","not":{}}"#, &Notify::new()).await;
    assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::PayloadRejected));
    client.shutdown(Duration::from_secs(2)).await;

    let victim = network.add_node(&["--pause-at", "mid-token"]).await.unwrap();
    let index = network.index_of(victim).unwrap();
    // The first node is drawn at random, so a client without history soon picks the pausing one.
    for round in 0..MAX_ROUNDS {
        let client = open_client(&network, &folder.path().join(format!("home-{round}"))).await;
        client.nodes().await;
        let (asking, first_words) = (client.clone(), Arc::new(Notify::new()));
        let heard = first_words.clone();
        let mut turn = tokio::spawn(async move { ask(&asking, None, SCHEMA, &heard).await });
        let process = &mut network.nodes[index].as_mut().unwrap().process;
        let paused = tokio::select! {
            paused = process.wait_event("paused", PAUSE_TIMEOUT) => paused.is_ok(),
            served = &mut turn => {
                assert_eq!(served.unwrap().0.unwrap().text, whole.text);
                false
            }
        };
        if paused {
            // Bytes sent before the pause may still be in flight, and would be lost with the connection.
            timeout(PAUSE_TIMEOUT, first_words.notified()).await.unwrap();
            network.kill_node(victim).await.unwrap();
            let (outcome, events) = turn.await.unwrap();
            let outcome = outcome.unwrap();
            assert_eq!((outcome.text.as_str(), outcome.node), (whole.text.as_str(), steady));
            assert!(outcome.receipt.tokens.resumed > 0, "taken over in its middle");
            assert_eq!(reported(&events), (whole.text.clone(), whole.receipt.tokens.output as usize));
        }
        client.shutdown(Duration::from_secs(2)).await;
        if paused {
            return;
        }
    }
    panic!("the second node was never asked first");
}
