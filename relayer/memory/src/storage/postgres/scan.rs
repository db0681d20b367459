//! Comparison of an owner's rows with a question, in the database.
//!
//! An owner has few rows, so all of them are compared: an approximate index over all owners would find almost none of one
//! owner's rows. A row costs a few microseconds, and 20 bytes of the answer.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Row as _};

use super::{PostgresStorage, QueryError, count, set};
use crate::storage::{
    KeyedQuery, Pseudonym, RowScan, ScannedRow, Signs, Space, StorageError, TERMS, TERMS_OF_A_SET, ordered,
    unordered,
};

/// Bytes of an answer's row before its sets: number, length and distance.
const ROW_BYTES: usize = 8 + 4 + 4;
/// Bytes of a set.
const SET_BYTES: usize = 4;

/// The statement for questions with this many sets of terms. A term's weight is its power of two, so the product of a row
/// and a set has one bit for each common term.
fn statement(sets: usize) -> String {
    let (mut arrays, mut names, mut products) = (String::new(), String::new(), String::new());
    for set in 0..sets {
        write!(arrays, ", ${}::text[]::sparsevec[]", set + 5).expect("a string takes everything");
        write!(names, ", set{set}").expect("a string takes everything");
        write!(products, " || int4send((-(i.terms <#> a.set{set}))::integer)")
            .expect("a string takes everything");
    }
    format!(
        "with asked as (
             select * from unnest($2::bigint[], $3::text[]::bit varying[]{arrays}) as asked (key, signs{names})
         )
         select coalesce((select version from baton.owner where owner = $1), 0),
                coalesce(string_agg(int8send(i.number) || int4send(i.length) || int4send(
                    case when i.embedder = $4 and length(i.signs) = length(a.signs)
                         then (i.signs <~> a.signs)::integer else -1 end){products}, ''::bytea), ''::bytea)
         from baton.item i join asked a on a.key = i.key
         where i.owner = $1"
    )
}

pub(super) async fn scan(
    storage: &PostgresStorage,
    owner: Pseudonym,
    query: &[KeyedQuery],
) -> Result<RowScan, QueryError> {
    let terms = query.first().map_or(0, |keyed| keyed.terms.len());
    let sets = terms.div_ceil(TERMS_OF_A_SET);
    let keys: Vec<i64> = query.iter().map(|keyed| keyed.key.cast_signed()).collect();
    let embedder = query.iter().find_map(|keyed| Some(keyed.signs.as_ref()?.embedder.cast_signed()));
    let signs: Vec<Option<String>> = query.iter().map(|keyed| keyed.signs.as_ref().map(bits_text)).collect();
    let mut transaction = storage.begin_reading(owner).await?;
    // One pass over the rows, whatever the planner believes of their number.
    set(&mut transaction, "enable_nestloop", "off").await?;
    set(&mut transaction, "enable_mergejoin", "off").await?;
    let statement = statement(sets);
    let mut asked = sqlx::query(AssertSqlSafe(statement))
        // A plan for other settings must not serve this query.
        .persistent(false)
        .bind(&owner.0[..])
        .bind(keys)
        .bind(signs)
        .bind(embedder);
    for set in 0..sets {
        let of_key = |keyed: &KeyedQuery| {
            let of_set = keyed.terms.iter().skip(set * TERMS_OF_A_SET).take(TERMS_OF_A_SET);
            terms_text((0..).zip(of_set).map(|(place, term)| (*term, 1_u32 << place)).collect())
        };
        asked = asked.bind(query.iter().map(of_key).collect::<Vec<String>>());
    }
    let answer = asked.fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    let version = count(answer.try_get(0)?)?;
    Ok(parse(version, answer.try_get(1)?, sets)?)
}

fn parse(version: u64, bytes: &[u8], sets: usize) -> Result<RowScan, StorageError> {
    let damaged = || StorageError::Damaged("the database's scan has another form".into());
    let mut scan = RowScan { version, ..RowScan::default() };
    let rows = bytes.chunks_exact(ROW_BYTES + sets * SET_BYTES);
    scan.rows.reserve_exact(rows.len());
    scan.sets.reserve_exact(rows.len() * sets);
    for row in rows {
        let (number, rest) = row.split_first_chunk::<8>().ok_or_else(damaged)?;
        let (numbers, _) = rest.as_chunks::<4>();
        let mut numbers = numbers.iter().map(|bytes| i32::from_be_bytes(*bytes));
        let (length, distance) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(-1));
        scan.rows.push(ScannedRow {
            number: unordered(i64::from_be_bytes(*number)),
            length: u32::try_from(length).unwrap_or(0),
            distance: u32::try_from(distance).ok(),
        });
        scan.sets.extend(numbers.map(i32::cast_unsigned));
    }
    Ok(scan)
}

/// Terms with their weights as pgvector writes them; of a term that comes twice, the last weight counts.
pub(super) fn terms_text(terms: std::collections::BTreeMap<u32, u32>) -> String {
    let mut text = String::from("{");
    for (index, (term, weight)) in terms.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(text, "{comma}{term}:{weight}").expect("a string takes everything");
    }
    write!(text, "}}/{TERMS}").expect("a string takes everything");
    text
}

/// Bits as the database writes them.
pub(super) fn bits_text(signs: &Signs) -> String {
    format!("x{}", hex::encode(&signs.bits))
}

pub(super) async fn embedded(
    storage: &PostgresStorage,
    owner: Pseudonym,
    embedder: u64,
    from: u64,
) -> Result<Vec<u64>, QueryError> {
    let mut transaction = storage.begin_reading(owner).await?;
    let numbers: Vec<i64> = sqlx::query_scalar(
        "select number from baton.item where owner = $1 and embedder = $2 and number >= $3 order by number",
    )
    .bind(&owner.0[..])
    .bind(embedder.cast_signed())
    .bind(ordered(from))
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(numbers.into_iter().map(unordered).collect())
}

pub(super) async fn read_some(
    storage: &PostgresStorage,
    owner: Pseudonym,
    space: Space,
    numbers: &[u64],
) -> Result<Vec<(u64, Vec<u8>)>, QueryError> {
    let numbers: Vec<i64> = numbers.iter().map(|number| ordered(*number)).collect();
    let mut transaction = storage.begin_reading(owner).await?;
    let rows = sqlx::query(
        "select number, bytes from baton.record
         where owner = $1 and space = $2 and number = any($3) order by number",
    )
    .bind(&owner.0[..])
    .bind(space as i16)
    .bind(numbers)
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    rows.iter().map(|row| Ok((unordered(row.try_get(0)?), row.try_get(1)?))).collect()
}
