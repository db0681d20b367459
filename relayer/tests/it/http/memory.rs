//! Baton's own routes, end to end.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::harness::{Answer, Person, TestServer};

fn texts(answer: &Value) -> Vec<&str> {
    let items = answer["items"].as_array().unwrap();
    items.iter().map(|item| item["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn f1_an_owner_lists_gets_edits_supersedes_archives_and_deletes() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let id = person.remember("My favourite fruit is the mango.", None).await;
    let path = format!("/api/items/{id}");
    let item = person.get(&path).await.good();
    assert_eq!(item["text"], "My favourite fruit is the mango.");
    assert_eq!((item["author"].as_str(), item["layer"].as_str()), (Some("owner"), Some("profile")));
    assert_eq!(item["time"], "2026-11-21T23:14:00.000Z");
    let edited =
        person.ask("PATCH", &path, json!({ "text": "My favourite fruit is the papaya." })).await.good();
    assert_eq!(edited["text"], "My favourite fruit is the papaya.");
    let now = person.post("/api/list", json!({})).await.good();
    assert!(!now.to_string().contains("mango"), "an edit leaves nothing of the old text");
    let id = edited["id"].as_str().unwrap().to_owned();
    let path = format!("/api/items/{id}");
    server.now_ms.fetch_add(60_000, Ordering::SeqCst);
    let next = json!({ "text": "My favourite fruit is the fig." });
    let newer = person.post(&format!("{path}/supersede"), next).await.good();
    let older = person.get(&path).await.good();
    assert_eq!(older["superseded_by"], newer["id"]);
    assert!(older["valid_to"].is_string());
    let recalled = person.recalls("What is my favourite fruit?", None).await;
    assert!(recalled.iter().any(|text| text.contains("fig")), "{recalled:?}");
    assert!(!recalled.iter().any(|text| text.contains("papaya")), "{recalled:?}");
    let history = json!({ "filters": { "history": true, "kinds": ["fact"] } });
    assert_eq!(texts(&person.post("/api/list", history).await.good()).len(), 2);
    let newest = format!("/api/items/{}", newer["id"].as_str().unwrap());
    person.post(&format!("{newest}/archive"), json!({ "archived": true })).await.good();
    assert!(person.recalls("What is my favourite fruit?", None).await.is_empty(), "archived is not recalled");
    person.post(&format!("{newest}/archive"), json!({ "archived": false })).await.good();
    let ids = json!({ "ids": [newer["id"]] });
    assert_eq!(person.post("/api/delete", ids.clone()).await.good()["count"], 1);
    person.get(&newest).await.refused(404, "not_found");
    assert_eq!(person.post("/api/delete", ids).await.good()["count"], 0);
    assert!(person.recalls("What is my favourite fruit?", None).await.is_empty());
}

#[tokio::test]
async fn f1_a_removal_names_and_treats_other_holders_as_requested() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    // What goes by each choice, the memory's own tests say.
    for (session, others, left) in [("a", Value::Null, 1), ("b", json!("all"), 0), ("c", json!("none"), 2)] {
        let said = json!({
            "session": session, "project": "zoo", "turn": 0, "user": format!("My dog is called Grimalkin{session}."),
            "assistant": format!("Grimalkin{session} is a lovely name."),
        });
        person.post("/api/turns", said).await.good();
        let id = person.remember(&format!("My dog is called Grimalkin{session}."), Some("zoo")).await;
        let answer = person.post("/api/delete", json!({ "ids": [id], "others": others })).await.good();
        assert_eq!((&answer["count"], &answer["more"]), (&json!(1), &json!(0)));
        let holders = answer["others"].as_array().unwrap();
        let stay: Vec<_> = holders.iter().filter(|one| one["deleted"] == false).collect();
        assert_eq!(stay.len(), left, "{answer}");
        let is_of_turn = |one: &&Value| (&one["session"], &one["turn"]) == (&json!(session), &json!(0));
        assert!(stay.iter().all(is_of_turn), "{answer}");
        let words = json!({ "everything": true, "words": format!("Grimalkin{session}") });
        assert_eq!(texts(&person.post("/api/list", words).await.good()).len(), left);
    }
    let nonsense = json!({ "ids": ["0".repeat(32)], "others": "everybody" });
    person.post("/api/delete", nonsense).await.refused(400, "bad_request");
}

#[tokio::test]
async fn f6_a_recall_says_scores_and_how_it_searched() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    person.remember("My dog is called Biscuit.", None).await;
    person.remember("I work as a carpenter.", None).await;
    let body = json!({ "query": "What is my dog called?", "limit": 1 });
    let answer = person.post("/api/recall", body).await.good();
    let hit = &answer["results"][0];
    assert_eq!(hit["text"], "My dog is called Biscuit.");
    assert!((0.0..=1.0).contains(&hit["score"].as_f64().unwrap()), "{hit}");
    assert!(hit["distance"].is_number() && answer["took_us"].is_u64());
    assert!(["full", "lexical"].contains(&answer["mode"].as_str().unwrap()), "{answer}");
    let none = json!({ "query": "What is my dog called?", "memory_scope": "none" });
    let none = person.post("/api/recall", none).await.good();
    assert_eq!((none["results"].as_array().unwrap().len(), none["mode"].as_str()), (0, Some("none")));
}

async fn turn(person: &Person<'_>, session: &str, project: Option<&str>, turn: u64, user: &str) -> Answer {
    let body =
        json!({ "session": session, "project": project, "turn": turn, "user": user, "assistant": "I see." });
    person.post("/api/turns", body).await
}

#[tokio::test]
async fn sessions_are_made_forked_moved_and_deleted() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let made = person.post("/api/sessions", json!({ "name": "s 1/ü", "project": "garden" })).await.good();
    assert_eq!((made["name"].as_str(), made["project"].as_str()), (Some("s 1/ü"), Some("garden")));
    let path = "/api/sessions/s%201%2F%C3%BC";
    turn(&person, "s 1/ü", Some("garden"), 0, "The greenhouse needs a new heater.").await.good();
    assert!(!person.recalls("greenhouse heater", Some("garden")).await.is_empty(), "read-your-writes");
    assert!(person.recalls("greenhouse heater", None).await.is_empty());
    let fork = person.post(&format!("{path}/fork"), json!({ "name": "fork", "turns": 1 })).await.good();
    assert_eq!((fork["parent"].as_str(), fork["parent_turns"].as_u64()), (Some("s 1/ü"), Some(1)));
    let moved = person.post(&format!("{path}/move"), json!({ "project": null })).await.good();
    assert_eq!(moved["project"], Value::Null);
    assert!(!person.recalls("greenhouse heater", None).await.is_empty(), "its past came along");
    let listed = person.get("/api/sessions").await.good();
    assert_eq!(listed["places"].as_array().unwrap().len(), 2);
    assert!(person.ask("DELETE", path, Value::Null).await.good()["count"].as_u64().unwrap() > 0);
    person.ask("DELETE", path, Value::Null).await.refused(404, "not_found");
    assert!(person.recalls("greenhouse heater", None).await.is_empty());
}

#[tokio::test]
async fn projects_and_personas_are_made_and_deleted() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    person.post("/api/projects", json!({ "name": "a" })).await.good();
    person.post("/api/projects", json!({ "name": "a" })).await.good();
    person.post("/api/projects", json!({ "name": "default" })).await.refused(400, "bad_request");
    person.remember("The contract ends in June.", Some("a")).await;
    let listed = person.get("/api/projects").await.good();
    assert_eq!(listed["places"][0]["name"], "a");
    assert_eq!(listed["places"].as_array().unwrap().len(), 1);
    assert!(person.ask("DELETE", "/api/projects/a", Value::Null).await.good()["count"].as_u64() >= Some(1));
    person.ask("DELETE", "/api/projects/a", Value::Null).await.refused(404, "not_found");
    assert!(person.recalls("contract June", Some("a")).await.is_empty());
    person.post("/api/personas", json!({ "name": "coach" })).await.good();
    let personas = person.get("/api/personas").await.good();
    assert!(personas.to_string().contains("coach"), "{personas}");
    person.ask("DELETE", "/api/personas/coach", Value::Null).await.good();
}

#[tokio::test]
async fn d9_the_profile_and_the_graph_can_be_read() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    person.remember("My sister is called Ana.", None).await;
    let profile = person.get("/api/profile").await.good();
    assert!(texts(&profile).contains(&"My sister is called Ana."), "{profile}");
    let graph = person.get("/api/graph").await.good();
    assert!(graph["nodes"].is_array() && graph["edges"].is_array());
}

#[tokio::test]
async fn f1_an_export_is_signed_lines_and_is_imported_elsewhere() {
    let server = TestServer::open().await;
    let (person, other) = (Person::new(&server), Person::new(&server));
    person.remember("My dog is called Biscuit.", None).await;
    let export = person.get("/api/export").await;
    assert_eq!(
        (export.status, export.headers["content-type"].to_str().unwrap()),
        (200, "application/x-ndjson")
    );
    assert!(export.text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{}", export.text);
    let send = async |who: &Person<'_>, text: &str| {
        let path = "/api/import";
        let headers = who.headers("POST", path, text.as_bytes());
        server.send("POST", path, &headers, text.as_bytes().to_vec()).await
    };
    assert_eq!(send(&person, &export.text).await.good()["added"], 0, "all of it is here");
    let forged = export.text.replace("Biscuit", "Rex");
    for refused in [&*forged, "garbage\n"] {
        send(&other, refused).await.refused(400, "bad_request");
    }
    send(&other, &export.text).await.good();
    assert_eq!(other.recalls("What is my dog called?", None).await, ["My dog is called Biscuit."]);
}

#[tokio::test]
async fn f1_an_owner_is_erased_on_its_own_word_only() {
    let server = TestServer::open().await;
    let (person, other) = (Person::new(&server), Person::new(&server));
    person.remember("My dog is called Biscuit.", None).await;
    other.remember("My cat is called Luna.", None).await;
    let erase = |confirm: &str| person.post("/api/erase", json!({ "confirm": confirm }));
    erase(&other.account).await.refused(409, "conflict");
    erase("me").await.refused(400, "bad_request");
    person.post("/api/erase", Value::Null).await.refused(400, "bad_request");
    erase(&person.account).await.good();
    assert!(person.recalls("What is my dog called?", None).await.is_empty());
    assert_eq!(other.recalls("What is my cat called?", None).await.len(), 1);
}

#[tokio::test]
async fn e6_what_waits_for_consent_is_listed_and_decided_on() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let waiting = async || {
        let pending = json!({ "everything": true, "consent": "pending" });
        person.post("/api/list", pending).await.good()["items"].as_array().unwrap().clone()
    };
    assert!(waiting().await.is_empty());
    person
        .post("/api/consent", json!({ "ids": ["0".repeat(32)], "decision": "maybe" }))
        .await
        .refused(400, "bad_request");
    turn(&person, "s", None, 0, "I was diagnosed with diabetes last week, and I take insulin every day.")
        .await
        .good();
    while server.memory.run_due().await > 0 {}
    let pending = waiting().await;
    let ids: Vec<&str> = pending.iter().map(|item| item["id"].as_str().unwrap()).collect();
    assert!(!ids.is_empty(), "a health fact waits");
    let granted = person.post("/api/consent", json!({ "ids": ids, "decision": "grant" })).await.good();
    assert_eq!(granted["count"], ids.len());
    assert!(waiting().await.is_empty());
}

#[tokio::test]
async fn another_text_under_a_turns_number_is_refused_and_the_same_one_changes_nothing() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    let turn = |user: &str, assistant: &str| json!({ "session": "s", "turn": 0, "user": user, "assistant": assistant });
    for _ in 0..2 {
        person.post("/api/turns", turn("I live in Lisbon.", "Noted.")).await.good();
    }
    person.post("/api/turns", turn("I live in Oslo.", "Noted.")).await.refused(409, "conflict");
    person.post("/api/turns", turn("I live in Lisbon.", "Oh.")).await.refused(409, "conflict");
    let listed =
        person.post("/api/list", json!({ "session": "s", "filters": { "kinds": ["episode"] } })).await;
    assert_eq!(listed.good()["items"].as_array().unwrap().len(), 2, "{}", listed.text);
    // A deleted message leaves nothing to compare with.
    for item in listed.json()["items"].as_array().unwrap() {
        person.post("/api/delete", json!({ "ids": [item["id"]] })).await.good();
    }
    person.post("/api/turns", turn("I live in Lisbon.", "Noted.")).await.good();
    let again = person.post("/api/list", json!({ "session": "s" })).await.good();
    assert!(!again.to_string().contains("Lisbon"), "what was deleted does not come back: {again}");
}

#[tokio::test]
async fn an_export_of_one_place_names_no_other_and_one_of_nowhere_is_refused() {
    let server = TestServer::open().await;
    let person = Person::new(&server);
    for (project, session, persona) in [("boat", "at sea", "Aria"), ("house", "at home", "Kenji")] {
        let turn = json!({
            "project": project, "session": session, "persona": persona, "turn": 0,
            "user": format!("We paint the {project} green."), "assistant": "Good.",
        });
        person.post("/api/turns", turn).await.good();
    }
    for query in ["project=nowhere", "session=nowhere", "persona=nobody"] {
        let refused = person.get(&format!("/api/export?{query}")).await;
        refused.refused(404, "not_found");
        assert!(!refused.text.contains("boat") && !refused.text.contains("house"), "{}", refused.text);
    }
    for query in ["project=boat&persona=Aria", "session=at%20sea"] {
        let export = person.get(&format!("/api/export?{query}")).await;
        assert_eq!(export.status, 200, "{}", export.text);
        for own in ["paint the boat", "\"boat\"", "at sea", "Aria"] {
            assert!(export.text.contains(own), "{own}: {}", export.text);
        }
        for other in ["house", "at home", "Kenji"] {
            assert!(!export.text.contains(other), "{other}: {}", export.text);
        }
        // Another account imports it unchanged.
        let other = Person::new(&server);
        let headers = other.headers("POST", "/api/import", export.text.as_bytes());
        let imported = server.send("POST", "/api/import", &headers, export.text.into_bytes()).await;
        assert_eq!(imported.good()["added"], 2);
    }
    assert!(person.get("/api/export").await.text.contains("house"), "of everything, all is named");
}
