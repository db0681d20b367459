//! A session that another device also writes, through the endpoint.

use baton_client::TurnInput;
use baton_gateway::{Gateway, GatewayConfig};
use baton_testkit::{GRACE, World, device::apart, say};

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_settles_a_fork_after_its_answer_and_takes_turns_in_before_one() {
    let world = World::new(1).await;
    let (first, second, id) = apart(&world).await;
    first.gate.open();
    second.gate.open();
    say(&second.client, id, "second").await;
    assert!(second.client.session(id).wait_settled(GRACE).await.unwrap());
    let ask = async |text: &str| {
        let template = TurnInput::new(Vec::new()).with_route(|route| route.reconcile = true);
        let config = GatewayConfig {
            key: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            template,
            relayer: None,
            memory: None,
            keys: None,
        };
        let gateway = Gateway::open(first.client.clone(), config).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/chat/completions", listener.local_addr().unwrap());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served =
            tokio::spawn(async move { gateway.serve(listener, async { drop(stopped.await) }).await });
        let body = serde_json::json!({ "messages": [{ "role": "user", "content": text }] });
        let request = reqwest::Client::new().post(url).header("x-baton-session", id.to_string()).json(&body);
        let answer: serde_json::Value = request.send().await.unwrap().json().await.unwrap();
        drop(stop);
        // The endpoint ends after all work that follows an answer.
        served.await.unwrap().unwrap();
        answer
    };
    // The first device has not looked since, so it writes in the same place.
    let answer = ask("first").await;
    assert_eq!(answer["choices"][0]["message"]["content"], "first (1)", "{answer}");
    let settled = first.client.session(id).info().await.unwrap();
    assert_eq!((settled.diverged, settled.branches), (false, 1));
    second.sync(id).await;
    assert!(second.client.session(id).wait_settled(GRACE).await.unwrap());
    say(&second.client, id, "later").await;
    assert!(second.client.session(id).wait_settled(GRACE).await.unwrap());
    let answer = ask("last").await;
    assert_eq!(answer["choices"][0]["message"]["content"], "last (3)", "{answer}");
    let told = answer["baton"]["devices"][0].as_str().unwrap();
    assert!(told.contains("Another device continued"), "{answer}");
    let said = first.user_messages(id).await;
    let branches = first.client.session(id).branches().await.unwrap();
    let beside = branches[0].turns[0].messages[0].text.as_str();
    assert_eq!((said.len(), said[2].as_str(), said[3].as_str()), (4, "later", "last"));
    assert!([said[1].as_str(), beside].contains(&"first") && [said[1].as_str(), beside].contains(&"second"));
    first.client.shutdown(GRACE).await;
    second.client.shutdown(GRACE).await;
}
