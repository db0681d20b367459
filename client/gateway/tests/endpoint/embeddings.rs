//! Embeddings through the endpoint.

use baton_client::testkit::{
    World,
    embedder::{EMBEDDER, EmbedderAct, Script, client, start, vector},
    fake::MODEL,
};
use baton_proto::ErrorCode;
use serde_json::json;

use crate::serve::Endpoint;

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_speaks_openai_s_embeddings() {
    let (world, script) = (World::new(1).await, Script::default());
    let embedders = [start(&script).await];
    let endpoint = Endpoint::over(client(&world, &embedders).await).await;
    let (status, one) =
        endpoint.ask("/v1/embeddings", &json!({ "model": EMBEDDER, "input": "hello", "user": "u" })).await;
    assert_eq!(status, 200, "{one}");
    assert_eq!(one["data"], json!([{ "object": "embedding", "index": 0, "embedding": vector("hello") }]));
    assert_eq!((&one["object"], &one["model"]), (&json!("list"), &json!(EMBEDDER)));
    assert_eq!(one["usage"], json!({ "prompt_tokens": 4, "total_tokens": 4 }));
    assert_eq!(one["baton"]["verified"], true);
    let both = json!({
        "model": EMBEDDER, "input": ["a", "bb"], "encoding_format": "base64", "dimensions": 2,
    });
    let (status, both) = endpoint.ask("/v1/embeddings", &both).await;
    assert_eq!((status, both["data"].as_array().unwrap().len()), (200, 2));
    // 1.0 and 97.0, little-endian.
    assert_eq!(both["data"][0]["embedding"], "AACAPwAAwkI=");
    assert_eq!((&both["data"][1]["index"], &both["usage"]["total_tokens"]), (&json!(1), &json!(8)));
    for (body, status, code) in [
        (json!({ "model": EMBEDDER, "input": [[1, 2]] }), 400, "unsupported_parameter"),
        (json!({ "model": EMBEDDER, "input": "a", "dimensions": 1 }), 400, "unsupported_parameter"),
        (json!({ "model": "text-embedding-3-small", "input": "a" }), 404, "model_not_found"),
        (json!({ "model": MODEL, "input": "a" }), 404, "model_not_found"),
        (json!({ "model": EMBEDDER, "input": "a", "encoding_format": "hex" }), 400, "invalid_value"),
    ] {
        let (found, error) = endpoint.ask("/v1/embeddings", &body).await;
        assert_eq!((found, error["error"]["code"].as_str()), (status, Some(code)), "{body}");
    }
    script.acts.lock().extend([EmbedderAct::Refuse(ErrorCode::Busy); 4]);
    let (status, error) = endpoint.ask("/v1/embeddings", &json!({ "model": EMBEDDER, "input": "a" })).await;
    assert_eq!((status, &error["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    // The list has both kinds of models, and names their engines.
    let models = endpoint.get("/v1/models").await;
    let listed: Vec<_> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["baton"]["engine"].as_str().unwrap()))
        .collect();
    assert_eq!(listed, [(MODEL, "native"), (EMBEDDER, "embedding")]);
    endpoint.close().await;
}
