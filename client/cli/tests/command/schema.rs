//! Answers in a form that a schema prescribes.

use serde_json::{Value, json};

use crate::command::{Fixture, code, err, out};

const SCHEMA: &str = r#"{"type":"object"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_command_takes_a_schema_from_a_file_and_gives_the_answers_json() {
    let fixture = Fixture::new().await;
    let path = fixture.folder.path().join("schema.json");
    let file = path.display().to_string();
    std::fs::write(&path, SCHEMA).unwrap();
    let ask = ["chat", "--message", "hello", "--schema", &file, "--json"];
    let answered = fixture.baton(&fixture.home(), &ask, "").await;
    assert_eq!(code(&answered), 0, "{}", err(&answered));
    let summary: Value = serde_json::from_str(out(&answered).lines().last().unwrap()).unwrap();
    assert_eq!(summary["json"], json!({ "said": "hello", "read": 0 }));
    assert_eq!(fixture.node.seen(|seen| seen.asked[0].0.clone()).as_deref(), Some(SCHEMA));
    for wrong in ["[]", "{", ""] {
        std::fs::write(&path, wrong).unwrap();
        assert_eq!(code(&fixture.baton(&fixture.home(), &ask, "").await), 2, "{wrong:?}");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(code(&fixture.baton(&fixture.home(), &ask, "").await), 2, "no file");
    let without = fixture.baton(&fixture.home(), &["chat", "--schema", &file], "").await;
    assert_eq!(code(&without), 2, "it is for one message");
}
