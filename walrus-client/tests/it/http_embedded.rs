//! The client against the whole interface of the embedded store: both must understand each other.

use std::collections::BTreeMap;

use baton_proto::{ids::SuiAddress, store::StoreError};
use baton_walrus_client::{
    HttpStore, PublisherToken, QuiltPatch, ShardCount, TokenMinter,
    http_store::{ConcatId, ObjectOwner, RangeRoute, ReadOptions, StoredHow, Verification, WriteOptions},
};
use baton_walrus_store::{Clock, EmbeddedConfig, EmbeddedStore, JwtSecret};
use tempfile::TempDir;

use crate::common::{Running, config, open, validate};

const BLOB: &[u8] = b"sealed bytes, some more of them";

fn options() -> ReadOptions {
    ReadOptions::new(1 << 20)
}

fn unchecked() -> ReadOptions {
    options().verify(Verification::Off)
}

#[tokio::test]
async fn a_blob_is_read_in_every_way_that_it_is_served() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let stored = store.store(BLOB.to_vec(), &WriteOptions::new(2)).await.unwrap();
    assert_eq!(stored.how, StoredHow::Created);
    assert_eq!(stored.end_epoch, Some(3));
    let id = stored.blob_id;
    assert_eq!(store.stat(id, &options()).await.unwrap().length, Some(BLOB.len() as u64));
    for route in [RangeRoute::Header, RangeRoute::Query] {
        let options = ReadOptions { range_route: route, ..unchecked() };
        assert_eq!(store.read(id, &options.clone().range(3, 5)).await.unwrap(), &BLOB[3..8], "{route:?}");
        for (start, length) in [(1000, 5), (20, 1000)] {
            let past = store.read(id, &options.clone().range(start, length)).await;
            assert!(matches!(past, Err(StoreError::Refused { .. })), "{route:?}: {past:?}");
        }
    }
    let object = stored.object.expect("the publisher names it");
    for options in [options(), unchecked()] {
        let read = store.read_object(object, &options).await.unwrap();
        assert_eq!((read.blob_id, read.bytes.as_slice()), (Some(id), BLOB));
    }
    let ids = [ConcatId::Blob(id), ConcatId::Object(object), ConcatId::Blob(id)];
    assert_eq!(store.concat(&ids, &unchecked()).await.unwrap(), [BLOB, BLOB, BLOB].concat());
    let many = vec![ConcatId::Blob(id); 30];
    assert_eq!(store.concat(&many, &unchecked()).await.unwrap(), BLOB.repeat(30));
    running.stop().await;
}

#[tokio::test]
async fn every_option_of_a_put_is_understood() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let sent = WriteOptions { reuse_resources: Some(false), ..WriteOptions::new(3).permanent() }
        .owner(ObjectOwner::Address(SuiAddress([7; 32])));
    assert_eq!(store.store(BLOB.to_vec(), &sent).await.unwrap().how, StoredHow::Created);
    let again = store.store(BLOB.to_vec(), &sent).await.unwrap();
    assert_eq!(again.how, StoredHow::AlreadyCertified);
    let forced = WriteOptions { force: true, ..sent };
    assert_eq!(store.store(BLOB.to_vec(), &forced).await.unwrap().how, StoredHow::Created);
    let shared = WriteOptions::new(1).owner(ObjectOwner::Shared);
    assert_eq!(store.store(BLOB.to_vec(), &shared).await.unwrap().how, StoredHow::Created);
    let too_long = store.store(BLOB.to_vec(), &WriteOptions::new(1000)).await;
    assert!(matches!(too_long, Err(StoreError::Refused { .. })), "{too_long:?}");
    running.stop().await;
}

#[tokio::test]
async fn a_quilt_is_stored_listed_and_read() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let tags = BTreeMap::from([("kind".to_owned(), "t".to_owned())]);
    let patches = [
        QuiltPatch { identifier: "ü \"b\"/c?", tags, data: b"one" },
        QuiltPatch { identifier: "a", tags: BTreeMap::new(), data: b"" },
        QuiltPatch { identifier: "z.txt", tags: BTreeMap::new(), data: &[7; 5000] },
    ];
    let quilt = store.store_quilt(&patches, &WriteOptions::new(1)).await.unwrap();
    assert_eq!((quilt.stored.how, quilt.patches.len()), (StoredHow::Created, 3));
    let id = quilt.stored.blob_id;
    let verified = store.quilt_patches(id, &options()).await.unwrap();
    assert_eq!(store.quilt_patches(id, &unchecked()).await.unwrap(), verified);
    assert_eq!(verified[2].tags["kind"], "t");
    for patch in &patches {
        for options in [options(), unchecked()] {
            let named = store.read_patch_named(id, patch.identifier, &options).await.unwrap();
            assert_eq!(named.bytes, patch.data, "{}", patch.identifier);
        }
        let ours = quilt.patches.iter().find(|stored| stored.identifier == patch.identifier).unwrap();
        for options in [options(), unchecked()] {
            let read = store.read_patch(ours.patch_id, &options).await.unwrap();
            assert_eq!(
                (read.bytes.as_slice(), read.identifier.as_deref()),
                (patch.data, Some(patch.identifier))
            );
        }
    }
    let missing = store.read_patch_named(id, "nothing", &ReadOptions::new(1 << 20)).await;
    assert_eq!(missing, Err(StoreError::NotFound));
    running.stop().await;
}

#[tokio::test]
async fn a_publisher_with_a_secret_takes_minted_tokens_and_nothing_else() {
    let secret = b"a secret of more than 32 bytes, for tests".to_vec();
    let folder = TempDir::new().unwrap();
    let config = EmbeddedConfig {
        jwt_secret: Some(JwtSecret::new(secret.clone()).unwrap()),
        clock: Clock::system(),
        ..config(&folder)
    };
    let running = Running::start(EmbeddedStore::open(config, validate).unwrap()).await;
    let with = |token: Option<PublisherToken>| {
        let builder = HttpStore::builder(&running.url, &running.url, ShardCount::TESTBED);
        token.into_iter().fold(builder, |builder, token| builder.token(token)).build().unwrap()
    };
    let store = with(Some(PublisherToken::minted(TokenMinter::new(&secret).unwrap())));
    let address = ObjectOwner::Address(SuiAddress([7; 32]));
    for options in [WriteOptions::new(1), WriteOptions::new(2).permanent().owner(address)] {
        assert_eq!(store.store(BLOB.to_vec(), &options).await.unwrap().how, StoredHow::Created);
    }
    let patch = QuiltPatch { identifier: "a", tags: BTreeMap::new(), data: b"x" };
    store.store_quilt(&[patch], &WriteOptions::new(1)).await.unwrap();
    let other = TokenMinter::new(b"another secret of more than 32 bytes").unwrap();
    let refused = with(None).store(b"new".to_vec(), &WriteOptions::new(1)).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    for (bad_token, reason) in [
        (PublisherToken::minted(other), "INVALID_SIGNATURE"),
        (PublisherToken::bearer("x.y.z").unwrap(), "INVALID_TOKEN"),
    ] {
        let refused = with(Some(bad_token)).store(b"new".to_vec(), &WriteOptions::new(1)).await;
        assert_eq!(refused, Err(StoreError::Refused { reason: reason.to_owned() }));
    }
    let bound = TokenMinter::new(&secret).unwrap().max_epochs(2).max_size(10);
    let bound = with(Some(PublisherToken::minted(bound)));
    assert!(bound.store(b"small".to_vec(), &WriteOptions::new(2)).await.is_ok());
    assert!(bound.store(b"small".to_vec(), &WriteOptions::new(3)).await.is_err());
    assert!(bound.store(vec![1; 11], &WriteOptions::new(1)).await.is_err());
    running.stop().await;
}
