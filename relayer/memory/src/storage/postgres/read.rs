//! Reading records and owners.

use sqlx::Row as _;

use super::{PostgresStorage, QueryError, count, pseudonym, time};
use crate::storage::{Pseudonym, Space, ordered, unordered};

/// Fewest bytes of a sealed record: key id, nonce and tag.
const MIN_RECORD_BYTES: usize = 48;
/// Most records of a page.
const MAX_PAGE_RECORDS: usize = 16_384;

pub(super) async fn version(storage: &PostgresStorage, owner: Pseudonym) -> Result<u64, QueryError> {
    let mut transaction = storage.begin(owner).await?;
    let version: Option<i64> = sqlx::query_scalar("select version from baton.owner where owner = $1")
        .bind(&owner.0[..])
        .fetch_optional(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(version.map(count).transpose()?.unwrap_or(0))
}

pub(super) async fn read(
    storage: &PostgresStorage,
    owner: Pseudonym,
    space: Space,
    from: u64,
    max_bytes: usize,
) -> Result<Vec<(u64, Vec<u8>)>, QueryError> {
    let mut transaction = storage.begin_reading(owner).await?;
    let at_most = (max_bytes / MIN_RECORD_BYTES + 1).min(MAX_PAGE_RECORDS);
    let sizes = sqlx::query(
        "select number, octet_length(bytes) from baton.record
         where owner = $1 and space = $2 and number >= $3 order by number limit $4",
    )
    .bind(&owner.0[..])
    .bind(space as i16)
    .bind(ordered(from))
    .bind(i64::try_from(at_most).unwrap_or(i64::MAX))
    .fetch_all(&mut *transaction)
    .await?;
    let (mut last, mut length) = (None, 0);
    for row in &sizes {
        if last.is_some() && length >= max_bytes {
            break;
        }
        last = Some(row.try_get::<i64, _>(0)?);
        length += usize::try_from(row.try_get::<i32, _>(1)?).unwrap_or(0);
    }
    let Some(last) = last else {
        transaction.commit().await?;
        return Ok(Vec::new());
    };
    let rows = sqlx::query(
        "select number, bytes from baton.record
         where owner = $1 and space = $2 and number between $3 and $4 order by number",
    )
    .bind(&owner.0[..])
    .bind(space as i16)
    .bind(ordered(from))
    .bind(last)
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    rows.iter().map(|row| Ok((unordered(row.try_get(0)?), row.try_get(1)?))).collect()
}

pub(super) async fn owners(
    storage: &PostgresStorage,
    after: Option<Pseudonym>,
    limit: usize,
) -> Result<Vec<Pseudonym>, QueryError> {
    let mut transaction = storage.begin_running().await?;
    let owners: Vec<Vec<u8>> =
        sqlx::query_scalar("select owner from baton.owner where owner > $1 order by owner limit $2")
            // The empty string sorts before every pseudonym.
            .bind(after.as_ref().map_or(&[][..], |after| &after.0[..]))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *transaction)
            .await?;
    transaction.commit().await?;
    owners.iter().map(|owner| Ok(pseudonym(owner)?)).collect()
}

pub(super) async fn has_nonce(
    storage: &PostgresStorage,
    nonce: [u8; 32],
    now_ms: u64,
) -> Result<bool, QueryError> {
    let known =
        sqlx::query_scalar("select exists (select from baton.nonce where nonce = $1 and until_ms >= $2)");
    Ok(known.bind(&nonce[..]).bind(time(now_ms)).fetch_one(&storage.pool).await?)
}
