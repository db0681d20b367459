//! Searching in the database: exact, over one owner's rows in the classes asked for.
//!
//! The rows are few (an owner's), so they are read by the owner's index and scored one by one. An approximate index over
//! all owners would find almost none of one owner's rows, and one for each large owner gains little below a million.

use std::collections::HashMap;

use sqlx::Row as _;

use super::{Failure, PostgresStorage, count, from_db, to_db};
use crate::storage::{Pseudonym, Scan, ScanQuery, ScanRow};

/// BM25 (k1 1.2, b 0.75) chooses which rows to return; the caller ranks them anew. The first row is the statistics'.
const SCAN: &str = "
with asked as (
    select * from unnest($2::bytea[], $3::bigint[]) as asked (class, upto)
), seen as materialized (
    select i.number, i.length, i.terms, i.counts,
           case when vector_dims(i.embedding) = vector_dims($4)
                then 1 - (i.embedding <=> $4) end as cosine
    from baton.item i join asked a on i.class = a.class and i.number <= a.upto
    where i.owner = $1
), total as (
    select count(*) as documents, coalesce(sum(length), 0)::bigint as length,
           coalesce(avg(cosine) filter (where cosine <> 'NaN'), 0) as mean,
           coalesce(stddev_pop(cosine) filter (where cosine <> 'NaN'), 0) as deviation
    from seen
), hits as materialized (
    -- Once for each row, and not for each row and term.
    select number, length, terms, counts from seen where terms && $5
), matched as materialized (
    select h.number, h.length, found.term, found.count
    from hits h cross join lateral (
        select asked.term, h.counts[array_position(h.terms, asked.term)] as count
        from unnest($5::bigint[]) as asked (term)
    ) found
    where found.count is not null
), spread as (
    select term, count(*) as documents from matched group by term
), by_terms as (
    select m.number
    from matched m join spread d on d.term = m.term cross join total t
    group by m.number
    order by sum(
        ln(1 + (t.documents - d.documents + 0.5::float8) / (d.documents + 0.5::float8)) * m.count
        / (m.count + 1.2::float8 * (0.25::float8 + 0.75::float8 * m.length * t.documents / greatest(t.length, 1)))
    ) desc, m.number
    limit $6
), by_vector as (
    select number from seen where cosine <> 'NaN' order by cosine desc, number limit $6
), chosen as (
    select number from by_terms union select number from by_vector
)
select null::bigint as number, t.length, t.documents, t.mean as cosine, t.deviation,
       coalesce((select array_agg(term order by term) from spread), '{}') as terms,
       coalesce((select array_agg(documents order by term) from spread), '{}') as counts
from total t
union all
select s.number, s.length, 0, s.cosine, 0,
       coalesce((select array_agg(m.term order by m.term) from matched m where m.number = s.number), '{}'),
       coalesce((select array_agg(m.count::bigint order by m.term) from matched m where m.number = s.number), '{}')
from chosen c join seen s on s.number = c.number";

pub(super) async fn scan(
    storage: &PostgresStorage,
    owner: Pseudonym,
    query: &ScanQuery,
) -> Result<Scan, Failure> {
    let classes: Vec<&[u8]> = query.classes.iter().map(|(class, _)| &class[..]).collect();
    let upto: Vec<i64> = query.classes.iter().map(|(_, upto)| to_db(*upto)).collect();
    let mut terms: Vec<i64> = query.terms.iter().map(|term| term.cast_signed()).collect();
    terms.sort_unstable();
    terms.dedup();
    let vector = query.vector.as_ref().map(|vector| pgvector::Vector::from(vector.clone()));
    let mut transaction = storage.begin_reading(owner).await?;
    let rows = sqlx::query(SCAN)
        // A plan that was made for another question, or other settings, must not serve this one.
        .persistent(false)
        .bind(&owner.0[..])
        .bind(classes)
        .bind(upto)
        .bind(vector)
        .bind(terms)
        .bind(query.limit.map(i64::from))
        .fetch_all(&mut *transaction)
        .await?;
    transaction.commit().await?;
    let mut scan = Scan { document_counts: vec![0; query.terms.len()], ..Scan::default() };
    for row in &rows {
        let number: Option<i64> = row.try_get("number")?;
        let length = count(row.try_get("length")?)?;
        let cosine: Option<f64> = row.try_get("cosine")?;
        let (terms, counts): (Vec<i64>, Vec<i64>) = (row.try_get("terms")?, row.try_get("counts")?);
        let found: HashMap<u64, i64> = terms.into_iter().map(i64::cast_unsigned).zip(counts).collect();
        let of = |term: &u64| found.get(term).copied().unwrap_or(0);
        match number {
            None => {
                scan.documents = count(row.try_get("documents")?)?;
                scan.total_length = length;
                scan.cosine_mean = narrow(cosine.unwrap_or(0.0));
                scan.cosine_deviation = narrow(row.try_get("deviation")?);
                scan.document_counts =
                    query.terms.iter().map(|term| u32::try_from(of(term)).unwrap_or(u32::MAX)).collect();
            }
            Some(number) => scan.rows.push(ScanRow {
                number: from_db(number),
                counts: query.terms.iter().map(|term| u16::try_from(of(term)).unwrap_or(u16::MAX)).collect(),
                length: u32::try_from(length).unwrap_or(u32::MAX),
                cosine: cosine.filter(|cosine| !cosine.is_nan()).map(narrow),
            }),
        }
    }
    scan.rows.sort_by_key(|row| row.number);
    Ok(scan)
}

#[expect(clippy::cast_possible_truncation, reason = "a cosine needs no more than single precision")]
fn narrow(value: f64) -> f32 {
    value as f32
}
