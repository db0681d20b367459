//! A session that another device also writes, through the endpoint.

use baton_client::TurnInput;
use baton_client::testkit::{GRACE, World, device::apart, say};
use serde_json::Value;

use crate::serve::{Endpoint, said, sent};

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_settles_a_fork_after_its_answer_and_takes_turns_in_before_one() {
    let world = World::new(1).await;
    let (first, second, id) = apart(&world).await;
    first.gate.open();
    second.gate.open();
    say(&second.client, id, "second").await;
    assert!(second.client.session(id).wait_settled(GRACE).await.unwrap());
    let ask = async |text: &str, expected: &str| -> Value {
        let template = TurnInput::new(Vec::new()).with_route(|route| route.reconcile = true);
        let endpoint = Endpoint::through(first.client.clone(), template, None, None).await;
        let (_, answer) = sent(endpoint.chat_in(&id.to_string(), &said(&[("user", text)]))).await;
        endpoint.stop().await;
        assert_eq!(answer["choices"][0]["message"]["content"], expected, "{answer}");
        answer
    };
    // The first device has not looked since, so it writes in the same place.
    ask("first", "first (1)").await;
    let settled = first.client.session(id).info().await.unwrap();
    assert_eq!((settled.diverged, settled.branches), (false, 1));
    second.sync(id).await;
    assert!(second.client.session(id).wait_settled(GRACE).await.unwrap());
    say(&second.client, id, "later").await;
    assert!(second.client.session(id).wait_settled(GRACE).await.unwrap());
    let answer = ask("last", "last (3)").await;
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
