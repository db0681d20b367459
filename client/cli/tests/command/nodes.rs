//! `baton nodes` and `baton receipts`: the reasons for a choice, and the content of receipts.

use baton_client::testkit::fake::{Act, FakeNode};
use baton_proto::receipt::EngineKind;
use serde_json::Value;

use crate::command::{Fixture, code, err, last, out, says, shows};

/// The row of a node in the command's output.
fn row<'a>(value: &'a Value, node: &FakeNode) -> &'a Value {
    let rows = value["nodes"].as_array().unwrap();
    rows.iter().find(|row| row["node"] == node.id().to_string()).unwrap_or_else(|| panic!("{value}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_explains_the_choice_as_a_table_and_as_json() {
    let (fixture, home) = Fixture::with_home().await;
    let other = FakeNode::start(fixture.node.stores(), EngineKind::Native).await;
    let address = other.addrs().first().unwrap().to_string();
    let both = |arguments: &[&str]| -> Vec<String> {
        arguments.iter().chain(&["--node", &address]).map(ToString::to_string).collect()
    };
    let run = async |arguments: &[&str]| {
        let arguments = both(arguments);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        fixture.baton(&home, &arguments, "").await
    };
    let only = fixture.node.id().to_string();
    let first = run(&["chat", "--only", &only, "--message", "hello"]).await;
    assert_eq!(code(&first), 0, "{}", err(&first));
    let explained = last(&run(&["nodes", "--explain", "--json"]).await);
    let (known, newcomer) = (row(&explained, &fixture.node), row(&explained, &other));
    assert!((known["probability"].as_f64().unwrap() - 2.0 / 3.0).abs() < 0.02, "{explained}");
    assert!((newcomer["probability"].as_f64().unwrap() - 1.0 / 3.0).abs() < 0.02, "{explained}");
    assert_eq!(newcomer["why"], "in the draw, as a newcomer");
    assert!(known["evidence"]["served"].as_f64().unwrap() > 0.9, "{explained}");
    assert!(known["evidence"]["speed"]["first_token_ms"].as_f64().unwrap() > 0.0, "{explained}");

    let liar = other.id().to_string();
    other.script([Act::WrongReceipt; 6]);
    let lied = run(&["chat", "--only", &liar, "--message", "hello"]).await;
    assert_eq!(code(&lied), 5, "{}", err(&lied));
    let explained = last(&run(&["nodes", "--explain", "last", "--json"]).await);
    assert_eq!(row(&explained, &other)["reason"], "lied", "{explained}");
    assert_eq!(row(&explained, &other)["probability"], 0.0);
    assert_eq!(row(&explained, &fixture.node)["probability"], 1.0);
    let text = out(&run(&["nodes", "--explain"]).await);
    assert!(text.starts_with("NODE ") && text.lines().count() == 3, "{text}");
    assert!(text.contains("last of all: what it sent or signed was not true; for 1439 min more"), "{text}");
    assert!(text.contains("1.00"), "{text}");

    for (option, value, reason) in [("--model", "huge", "model"), ("--max-price", "0", "price")] {
        let explained = last(&run(&["nodes", "--explain", "--json", option, value]).await);
        assert_eq!(row(&explained, &fixture.node)["reason"], reason, "{explained}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_lists_receipts_and_verifies_them_offline() {
    let (fixture, home) = Fixture::with_home().await;
    for message in ["one", "two"] {
        let said = fixture.baton(&home, &["chat", "last", "--message", message], "").await;
        if code(&said) == 7 {
            fixture.ok(&home, &["chat", "--message", message]).await;
        }
    }
    fixture.node.stop().await;
    let value = fixture.json(&home, &["receipts", "--verify"]).await;
    assert_eq!(value["verified"], true, "{value}");
    let turns = value["sessions"][0]["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 2, "{value}");
    assert_eq!(turns[1]["node"], fixture.node.id().to_string());
    assert_eq!(
        (turns[1]["countersigned"].as_str(), turns[1]["verified"].as_bool()),
        (Some("yes"), Some(true))
    );
    let receipt = &turns[1]["receipt"];
    assert_eq!((receipt["input_tokens"].as_u64(), receipt["output_tokens"].as_u64()), (Some(10), Some(2)));
    assert_eq!(
        (receipt["model_name"].as_str(), receipt["engine"].as_str()),
        (Some("parrot"), Some("native"))
    );
    let table = fixture.ok(&home, &["receipts", "last", "--verify"]).await;
    shows(&table, &["COUNTERSIGNED", "parrot"]);
    says(&table, &["✓ verified: 2 turns"]);

    let words = fixture.folder.path().join("words.txt").display().to_string();
    fixture.ok(&home, &["session", "backup", "last", "--out", &words]).await;
    let other = fixture.folder.path().join("other");
    fixture.ok(&other, &["session", "restore", "--words-file", &words]).await;
    let none = fixture.ok(&other, &["receipts"]).await;
    says(&none, &["2 turns without a receipt: they were brought back from the store"]);
}
