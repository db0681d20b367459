//! Quilts over HTTP: stored in the publishers' form, compared with this client's computation, and read.

use std::collections::BTreeMap;

use axum::extract::FromRequest;
use baton_proto::{
    ids::BlobId,
    store::{PutOptions, StoreError},
};
use baton_walrus_client::{QuiltPatch, QuiltPatchId, ShardCount, blob_id, http_store::StoredHow, quilt};
use wiremock::ResponseTemplate;

use crate::http_common::{answering, answering_status, builder, created};

const SHARDS: ShardCount = ShardCount::TESTBED;
const LIMIT: u64 = 1 << 20;
const FIRST: &[u8] = b"first patch, and longer";

fn patches() -> [(String, Vec<u8>); 2] {
    let two = [("näme \"two\".txt", b"second patch".to_vec()), ("a/first?", FIRST.to_vec())];
    two.map(|(name, data)| (name.to_owned(), data))
}

/// The quilt of these patches, its ID, and the IDs of its patches by identifier.
fn quilt() -> (Vec<u8>, BlobId, BTreeMap<String, QuiltPatchId>) {
    let patches = patches();
    fn borrowed((identifier, data): &(String, Vec<u8>)) -> QuiltPatch<'_> {
        QuiltPatch { identifier, tags: BTreeMap::new(), data }
    }
    let patches: Vec<QuiltPatch<'_>> = patches.iter().map(borrowed).collect();
    let quilt = quilt::encode(&patches, SHARDS).unwrap();
    let id = blob_id(&quilt.bytes, SHARDS).unwrap();
    let ids = quilt.index.entries.iter().map(|entry| (entry.identifier.clone(), entry.id(id))).collect();
    (quilt.bytes, id, ids)
}

fn stored_answer(ids: &BTreeMap<String, QuiltPatchId>, id: BlobId) -> ResponseTemplate {
    let patches: Vec<serde_json::Value> = ids
        .iter()
        .map(|(identifier, id)| serde_json::json!({ "identifier": identifier, "quiltPatchId": id.to_string() }))
        .collect();
    let blob: serde_json::Value = serde_json::from_str(&created(&id.to_string())).unwrap();
    ResponseTemplate::new(200)
        .set_body_json(serde_json::json!({ "blobStoreResult": blob, "storedQuiltBlobs": patches }))
}

#[tokio::test]
async fn a_quilt_is_sent_as_a_form_and_its_ids_are_ours() {
    let (_, id, ids) = quilt();
    let publisher = answering(stored_answer(&ids, id)).await;
    let store = builder(&[&publisher], &[&publisher]).build().unwrap();
    let stored = store.store_quilt(&patches(), &PutOptions::default()).await.unwrap();
    assert_eq!((stored.stored.blob_id, stored.stored.how), (id, StoredHow::Created));
    assert_eq!(stored.patches, ids);

    let request = publisher.received_requests().await.unwrap().pop().unwrap();
    assert_eq!(request.url.path(), "/v1/quilts");
    assert_eq!(request.headers["content-length"], request.body.len().to_string());
    // Read by the parser of Walrus's own publisher.
    let content_type = request.headers["content-type"].clone();
    let request = axum::http::Request::builder()
        .method("PUT")
        .header("content-type", content_type)
        .body(axum::body::Body::from(request.body))
        .unwrap();
    let mut form = <axum::extract::Multipart as FromRequest<()>>::from_request(request, &()).await.unwrap();
    let mut fields = BTreeMap::new();
    while let Some(field) = form.next_field().await.unwrap() {
        let name = field.name().unwrap().to_owned();
        fields.insert(name, field.bytes().await.unwrap().to_vec());
    }
    assert_eq!(fields, BTreeMap::from(patches()));
}

#[tokio::test]
async fn a_quilt_in_doubt_is_looked_for_by_its_own_length() {
    let (bytes, id, _) = quilt();
    let lossy = answering_status(504).await;
    let aggregator = answering(ResponseTemplate::new(200).set_body_bytes(bytes)).await;
    let store = builder(&[&lossy], &[&aggregator]).build().unwrap();
    let stored = store.store_quilt(&patches(), &PutOptions::default()).await.unwrap().stored;
    assert_eq!((stored.how, stored.blob_id), (StoredHow::Found, id));
}

#[tokio::test]
async fn what_is_no_quilt_is_refused_before_anything_is_sent() {
    let publisher = answering_status(200).await;
    let store = builder(&[&publisher], &[&publisher]).build().unwrap();
    let limit = 102_400 * 1024;
    let too_large = store.store_quilt(&[("a".to_owned(), vec![0; limit + 1])], &PutOptions::default()).await;
    assert_eq!(too_large, Err(StoreError::TooLarge { length: limit as u64 + 1, limit: limit as u64 }));
    let patch = |identifier: &str| (identifier.to_owned(), b"x".to_vec());
    for bad in
        [vec![], vec![patch("a"), patch("a")], vec![patch(" ")], vec![patch("_metadata")], vec![patch("a\\")]]
    {
        let refused = store.store_quilt(&bad, &PutOptions::default()).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })), "{bad:?}");
    }
    assert!(publisher.received_requests().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_patch_is_taken_out_of_the_verified_quilt() {
    let (bytes, id, ids) = quilt();
    let forged = answering(ResponseTemplate::new(200).set_body_bytes(vec![0; bytes.len()])).await;
    let honest = answering(ResponseTemplate::new(200).set_body_bytes(bytes)).await;
    let store = builder(&[], &[&forged, &honest]).build().unwrap();
    assert_eq!(store.read_patch(ids["a/first?"], LIMIT).await.unwrap(), FIRST);
    let columns = QuiltPatchId { quilt: id, start: 1, end: 7 };
    assert_eq!(store.read_patch(columns, LIMIT).await, Err(StoreError::NotFound));
    let store = builder(&[], &[&forged]).build().unwrap();
    assert_eq!(store.read_patch(ids["a/first?"], LIMIT).await, Err(StoreError::WrongContent));
}
