//! The client against the whole interface of the embedded store: both must understand each other.

use baton_proto::{
    ids::SuiAddress,
    store::{PutOptions, StoreError},
};
use baton_walrus_client::{HttpStore, PublisherToken, ShardCount, http_store::StoredHow};
use baton_walrus_store::{Clock, EmbeddedConfig, EmbeddedStore, JwtSecret};
use tempfile::TempDir;

use crate::common::{Running, config, open, validate};

const BLOB: &[u8] = b"sealed bytes, some more of them";

const LIMIT: u64 = 1 << 20;

#[tokio::test]
async fn a_quilt_is_stored_and_read() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let store = running.client();
    let patches = [("ü \"b\"/c?", b"one".to_vec()), ("a", Vec::new()), ("z.txt", vec![7; 5000])]
        .map(|(name, data)| (name.to_owned(), data));
    let quilt = store.store_quilt(&patches, &PutOptions::default()).await.unwrap();
    assert_eq!((quilt.stored.how, quilt.patches.len()), (StoredHow::Created, 3));
    for (name, data) in &patches {
        assert_eq!(store.read_patch(quilt.patches[name], LIMIT).await.unwrap(), *data, "{name}");
    }
    running.stop().await;
}

#[tokio::test]
async fn the_number_of_shards_that_a_store_announces_is_taken_before_the_first_id() {
    let folder = TempDir::new().unwrap();
    let running = Running::start(open(&folder)).await;
    let builder = || HttpStore::builder(&running.url, &running.url, ShardCount::MAINNET);
    let fixed = builder().build().unwrap().store(BLOB, &PutOptions::default()).await;
    assert_eq!(fixed, Err(StoreError::WrongContent));
    let patches = [("a".to_owned(), b"x".to_vec())];
    let quilts = builder().adopt_shards().build().unwrap();
    let quilt = quilts.store_quilt(&patches, &PutOptions::default()).await.unwrap();
    let reader = builder().adopt_shards().build().unwrap();
    assert_eq!(reader.read_patch(quilt.patches["a"], LIMIT).await.unwrap(), b"x");
    let store = builder().adopt_shards().build().unwrap();
    assert_eq!(store.shards(), ShardCount::MAINNET);
    assert!(store.store(BLOB, &PutOptions::default()).await.is_ok());
    assert_eq!(store.shards(), ShardCount::TESTBED);
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
    let store = with(Some(PublisherToken::minted(&secret).unwrap()));
    let sent = PutOptions { epochs: 2, permanent: true, send_object_to: Some(SuiAddress([7; 32])) };
    for options in [PutOptions::default(), sent] {
        assert_eq!(store.store(BLOB, &options).await.unwrap().how, StoredHow::Created);
    }
    store.store_quilt(&[("a".to_owned(), b"x".to_vec())], &PutOptions::default()).await.unwrap();
    let other = PublisherToken::minted(b"another secret of more than 32 bytes").unwrap();
    let refused = with(None).store(b"new".to_vec(), &PutOptions::default()).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    for (bad_token, reason) in
        [(other, "INVALID_SIGNATURE"), (PublisherToken::bearer("x.y.z").unwrap(), "INVALID_TOKEN")]
    {
        let refused = with(Some(bad_token)).store(b"new".to_vec(), &PutOptions::default()).await;
        assert_eq!(refused, Err(StoreError::Refused { reason: reason.to_owned() }));
    }
    running.stop().await;
}
