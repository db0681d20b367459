//! Quilts over HTTP: stored in the publishers' form, compared with this client's computation, and read in
//! every way.

use std::collections::BTreeMap;

use axum::extract::FromRequest;
use baton_proto::{
    ids::{BlobDigest, BlobId},
    store::{PutOptions, StoreError},
};
use baton_walrus_client::{
    HttpStore, QuiltPatch, QuiltPatchId, ShardCount, blob_id,
    http_store::{ReadOptions, StoredHow, Verification},
    quilt,
};
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{method, path},
};

use crate::http_common::{answering, answering_status, builder, count, created};

const SHARDS: ShardCount = ShardCount::TESTBED;

fn patches() -> Vec<QuiltPatch<'static>> {
    let tags = BTreeMap::from([("kind".to_owned(), "picture".to_owned())]);
    vec![
        QuiltPatch { identifier: "näme \"two\".txt", tags, data: b"second patch" },
        QuiltPatch { identifier: "a/first?", tags: BTreeMap::new(), data: b"first patch, and longer" },
    ]
}

/// The quilt of these patches, its ID, and the IDs of its patches by identifier.
fn quilt() -> (Vec<u8>, BlobId, BTreeMap<String, QuiltPatchId>) {
    let quilt = quilt::encode(&patches(), SHARDS).unwrap();
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
    let found = stored.patches.into_iter().map(|patch| (patch.identifier, patch.patch_id));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), ids);

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
    for patch in patches() {
        assert_eq!(fields.remove(patch.identifier).unwrap(), patch.data, "{}", patch.identifier);
    }
    let metadata: serde_json::Value = serde_json::from_slice(&fields.remove("_metadata").unwrap()).unwrap();
    let expected = serde_json::json!([{ "identifier": "näme \"two\".txt", "tags": { "kind": "picture" } }]);
    assert_eq!((metadata, fields.len()), (expected, 0));
}

#[tokio::test]
async fn a_quilt_under_other_patch_ids_is_wrong_content() {
    let (_, id, mut ids) = quilt();
    ids.values_mut().next().unwrap().end += 1;
    let (liar, none) = (answering(stored_answer(&ids, id)).await, answering_status(404).await);
    let store = builder(&[&liar], &[&none]).build().unwrap();
    let refused = store.store_quilt(&patches(), &PutOptions::default()).await;
    assert_eq!(refused, Err(StoreError::WrongContent));
    assert_eq!(count(&liar, "PUT").await, 1);
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
    let large = vec![0; limit + 1];
    let large = QuiltPatch { identifier: "a", tags: BTreeMap::new(), data: &large };
    let too_large = store.store_quilt(&[large], &PutOptions::default()).await;
    assert_eq!(too_large, Err(StoreError::TooLarge { length: limit as u64 + 1, limit: limit as u64 }));
    let patch = |identifier| QuiltPatch { identifier, tags: BTreeMap::new(), data: b"x" };
    for bad in [vec![], vec![patch("a"), patch("a")], vec![patch(" ")], vec![patch("_metadata")]] {
        let refused = store.store_quilt(&bad, &PutOptions::default()).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })), "{bad:?}");
    }
    assert!(publisher.received_requests().await.unwrap().is_empty());
}

/// An aggregator with the quilt, which answers patch requests with these bytes.
async fn aggregator(patch_bytes: &'static [u8]) -> MockServer {
    let (bytes, id, ids) = quilt();
    let server = MockServer::start().await;
    let whole = ResponseTemplate::new(200).set_body_bytes(bytes);
    Mock::given(path(format!("/v1/blobs/{id}"))).respond_with(whole).mount(&server).await;
    let list: Vec<serde_json::Value> = ids
        .iter()
        .map(|(name, id)| serde_json::json!({ "identifier": name, "patch_id": id.to_string(), "tags": {} }))
        .collect();
    let list = ResponseTemplate::new(200).set_body_json(list);
    Mock::given(path(format!("/v1/quilts/{id}/patches"))).respond_with(list).mount(&server).await;
    let patch = ResponseTemplate::new(200)
        .insert_header("x-quilt-patch-identifier", "a/first?")
        .set_body_bytes(patch_bytes);
    for route in [
        format!("/v1/blobs/by-quilt-patch-id/{}", ids["a/first?"]),
        format!("/v1/blobs/by-quilt-id/{id}/a%2Ffirst%3F"),
    ] {
        Mock::given(method("GET")).and(path(route)).respond_with(patch.clone()).mount(&server).await;
    }
    server
}

const FIRST: &[u8] = b"first patch, and longer";

fn read(verification: Verification) -> ReadOptions {
    ReadOptions::new(1 << 20).verify(verification)
}

fn digest() -> Verification {
    Verification::Digest(BlobDigest(blake3::hash(FIRST).into()))
}

async fn both_ways(store: &HttpStore, options: &ReadOptions) -> Vec<Result<Vec<u8>, StoreError>> {
    let (_, id, ids) = quilt();
    let by_id = store.read_patch(ids["a/first?"], options).await;
    let by_name = store.read_patch_named(id, "a/first?", options).await;
    [by_id, by_name].map(|read| read.map(|patch| patch.bytes)).to_vec()
}

#[tokio::test]
async fn patches_are_read_by_id_and_name_with_every_verification() {
    let server = aggregator(FIRST).await;
    let store = builder(&[], &[&server]).build().unwrap();
    for verification in [Verification::BlobId, digest(), Verification::Off] {
        for patch in both_ways(&store, &read(verification)).await {
            assert_eq!(patch.unwrap(), FIRST, "{verification:?}");
        }
    }
}

#[tokio::test]
async fn a_forged_patch_is_found_out() {
    let (liar, honest) = (aggregator(b"forged").await, aggregator(FIRST).await);
    let only_liar = builder(&[], &[&liar]).build().unwrap();
    for patch in both_ways(&only_liar, &read(digest())).await {
        assert_eq!(patch, Err(StoreError::WrongContent));
    }
    for patch in both_ways(&only_liar, &read(Verification::BlobId)).await {
        assert_eq!(patch.unwrap(), FIRST, "taken out of the verified quilt");
    }
    let store = builder(&[], &[&liar, &honest]).build().unwrap();
    for patch in both_ways(&store, &read(digest())).await {
        assert_eq!(patch.unwrap(), FIRST);
    }
}

#[tokio::test]
async fn the_patches_of_a_quilt_are_listed_by_the_quilt_itself_or_by_word() {
    let (_, id, ids) = quilt();
    let server = aggregator(FIRST).await;
    let store = builder(&[], &[&server]).build().unwrap();
    let verified = store.quilt_patches(id, &read(Verification::BlobId)).await.unwrap();
    let word = store.quilt_patches(id, &read(Verification::Off)).await.unwrap();
    for list in [&verified, &word] {
        let found = list.iter().map(|patch| (patch.identifier.clone(), patch.patch_id));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), ids);
    }
    assert_eq!(verified[1].tags["kind"], "picture");
    let refused = store.quilt_patches(id, &read(digest())).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })));
}

#[tokio::test]
async fn a_list_that_is_none_means_the_next_aggregator() {
    let (_, id, _) = quilt();
    let (garbage, honest) =
        (answering(ResponseTemplate::new(200).set_body_string("[1]")).await, aggregator(FIRST).await);
    let store = builder(&[], &[&garbage, &honest]).build().unwrap();
    assert_eq!(store.quilt_patches(id, &read(Verification::Off)).await.unwrap().len(), 2);
}

#[tokio::test]
async fn what_the_quilt_does_not_have_is_not_found() {
    let (_, id, _) = quilt();
    let server = aggregator(FIRST).await;
    let store = builder(&[], &[&server]).build().unwrap();
    for verification in [Verification::BlobId, Verification::Off] {
        let missing = store.read_patch_named(id, "missing", &read(verification)).await;
        assert_eq!(missing, Err(StoreError::NotFound), "{verification:?}");
        let columns = QuiltPatchId { quilt: id, start: 1, end: 7 };
        assert_eq!(store.read_patch(columns, &read(verification)).await, Err(StoreError::NotFound));
    }
    for identifier in ["..", "", " "] {
        let refused = store.read_patch_named(id, identifier, &read(Verification::Off)).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })), "{identifier:?}");
    }
}
