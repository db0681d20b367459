//! The verified history of a turn: the necessary blobs, their bytes, and their chain.

use baton_proto::{
    ErrorCode, SignedObject,
    chain::{Window, WindowReader},
    head::{HeadOuter, HeadRecord},
    turn::{Grant, HeadGrant, TurnAuth},
    wire::InlineBlob,
};
use futures::future::try_join_all;
use tokio::time::sleep;

use super::blobs::Search;
use crate::core::{Core, limits::STORE_RETRIES};

/// Fetches all blobs of a grant in parallel and verifies the window.
///
/// # Errors
/// [`ErrorCode::BlobUnavailable`], [`ErrorCode::BlobHashMismatch`], [`ErrorCode::HeadMismatch`], and every
/// code of the chain's verification.
pub(crate) async fn load(
    core: &Core,
    auth: &SignedObject<TurnAuth>,
    grant: Grant,
    inline: &[InlineBlob],
) -> Result<Window, ErrorCode> {
    let mut reader = match grant.blobs.iter().any(|granted| granted.blob.is_none()) {
        true => locate(core, auth, &grant).await?,
        false => WindowReader::new(auth, grant, None)?,
    };
    let needs = reader.needs();
    let found = try_join_all(needs.iter().map(|need| Search::new(core, *need).run(inline))).await?;
    // Opening and verifying nine blobs takes some ten milliseconds: off the reactor.
    let links = core.verified_links.clone();
    let verified = tokio::task::spawn_blocking(move || {
        for (need, bytes) in needs.iter().zip(&found) {
            reader.provide(need, bytes)?;
        }
        reader.finish_with(&links)
    });
    verified.await.map_err(|_| ErrorCode::Internal)?
}

/// Finds the head of a request without a locator. The index may lag behind the client, so an older head is
/// retried a few times. The index only gives a hint; the signed head decides.
async fn locate(
    core: &Core,
    auth: &SignedObject<TurnAuth>,
    grant: &Grant,
) -> Result<WindowReader, ErrorCode> {
    let head = grant.head.as_ref().ok_or(ErrorCode::BlobUnavailable)?;
    let mut retries = STORE_RETRIES.iter();
    loop {
        let located = match resolve(core, head).await {
            Ok(outer) => WindowReader::new(auth, grant.clone(), Some(&outer)),
            Err(code) => Err(code),
        };
        let may_lag = matches!(located, Err(ErrorCode::HeadMismatch | ErrorCode::BlobUnavailable));
        match retries.next() {
            Some(wait) if may_lag => sleep(*wait).await,
            _ => return located,
        }
    }
}

async fn resolve(core: &Core, head: &HeadGrant) -> Result<HeadOuter, ErrorCode> {
    let heads = core.heads.as_ref().ok_or(ErrorCode::BlobUnavailable)?;
    let found = heads.resolve(head.index_key).await;
    let encoded = found.ok().flatten().ok_or(ErrorCode::BlobUnavailable)?;
    // A record of another session counts as no record.
    let record =
        SignedObject::<HeadRecord>::verify_encoded(&encoded).map_err(|_| ErrorCode::BlobUnavailable)?;
    if record.index_key() != head.index_key {
        return Err(ErrorCode::BlobUnavailable);
    }
    record.open_outer(&head.key.head_key()).map_err(|_| ErrorCode::BlobUnavailable)
}
