//! Search in the database: exact, over one owner's rows in the visible classes.
//!
//! An owner has few rows, so they are read by the owner's index and scored one by one. An approximate index
//! over all owners would find almost none of one owner's rows. A separate index for each large owner gains
//! little below a million rows.

use std::collections::HashMap;

use sqlx::Row as _;

use super::{PostgresStorage, QueryError, count, from_db, to_db};
use crate::storage::{Pseudonym, Scan, ScanQuery, ScanRow};

/// BM25 (k1 1.2, b 0.75) selects the rows to return; the caller ranks them anew. The first row holds the
/// statistics. A row's class shows its key, and so the vector to compare with. Terms count by their place in
/// the question, under any key.
const SCAN: &str = "
with asked as (
    select class, upto, ($4::vector[])[keying] as vector
    from unnest($2::bytea[], $3::bigint[], $7::integer[]) as asked (class, upto, keying)
), seen as materialized (
    select i.number, i.length, i.terms, i.counts,
           case when vector_dims(i.embedding) = vector_dims(a.vector)
                then 1 - (i.embedding <=> a.vector) end as cosine
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
    select h.number, h.length, found.place, found.count
    from hits h cross join lateral (
        select wanted.place, h.counts[array_position(h.terms, wanted.term)] as count
        from unnest($5::bigint[], $8::integer[]) as wanted (term, place)
    ) found
    where found.count is not null
), spread as (
    select place, count(*) as documents from matched group by place
), by_terms as (
    select m.number
    from matched m join spread d on d.place = m.place cross join total t
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
       coalesce((select array_agg(place order by place) from spread), '{}') as places,
       coalesce((select array_agg(documents order by place) from spread), '{}') as counts,
       coalesce((select version from baton.owner where owner = $1), 0) as version
from total t
union all
select s.number, s.length, 0, s.cosine, 0,
       coalesce((select array_agg(m.place order by m.place) from matched m where m.number = s.number), '{}'),
       coalesce((select array_agg(m.count::bigint order by m.place) from matched m where m.number = s.number), '{}'),
       0
from chosen c join seen s on s.number = c.number";

/// A question in the form of columns.
struct QueryColumns<'a> {
    classes: Vec<&'a [u8]>,
    upto: Vec<i64>,
    /// The vector of each class, counted from 1.
    keyings: Vec<i32>,
    vectors: Vec<Option<pgvector::Vector>>,
    terms: Vec<i64>,
    /// The place of each term in the question.
    places: Vec<i32>,
    /// The place that counts for each term of the question: its first occurrence.
    counted: Vec<i32>,
}

impl<'a> QueryColumns<'a> {
    fn of(query: &'a ScanQuery) -> Self {
        let first: &[u64] = query.keyed.first().map_or(&[], |keyed| &keyed.terms);
        let counted: Vec<i32> = first
            .iter()
            .map(|term| {
                first
                    .iter()
                    .position(|other| other == term)
                    .and_then(|at| i32::try_from(at).ok())
                    .unwrap_or(0)
            })
            .collect();
        let mut columns = Self {
            classes: Vec::new(),
            upto: Vec::new(),
            keyings: Vec::new(),
            vectors: Vec::new(),
            terms: Vec::new(),
            places: Vec::new(),
            counted,
        };
        for (keying, keyed) in (1..).zip(&query.keyed) {
            for (class, upto) in &keyed.classes {
                columns.classes.push(class);
                columns.upto.push(to_db(*upto));
                columns.keyings.push(keying);
            }
            columns.vectors.push(keyed.vector.clone().map(pgvector::Vector::from));
            for ((place, counted), term) in (0..).zip(&columns.counted).zip(&keyed.terms) {
                if place == *counted {
                    columns.terms.push(term.cast_signed());
                    columns.places.push(place);
                }
            }
        }
        columns
    }
}

pub(super) async fn scan(
    storage: &PostgresStorage,
    owner: Pseudonym,
    query: &ScanQuery,
) -> Result<Scan, QueryError> {
    let columns = QueryColumns::of(query);
    let mut transaction = storage.begin_reading(owner).await?;
    let rows = sqlx::query(SCAN)
        // A plan for another question, or other settings, must not serve this query.
        .persistent(false)
        .bind(&owner.0[..])
        .bind(&columns.classes)
        .bind(&columns.upto)
        .bind(&columns.vectors)
        .bind(&columns.terms)
        .bind(query.limit.map(i64::from))
        .bind(&columns.keyings)
        .bind(&columns.places)
        .fetch_all(&mut *transaction)
        .await?;
    transaction.commit().await?;
    let mut scan = Scan { document_counts: vec![0; columns.counted.len()], ..Scan::default() };
    for row in &rows {
        let number: Option<i64> = row.try_get("number")?;
        let length = count(row.try_get("length")?)?;
        let cosine: Option<f64> = row.try_get("cosine")?;
        let (places, counts): (Vec<i32>, Vec<i64>) = (row.try_get("places")?, row.try_get("counts")?);
        let found: HashMap<i32, i64> = places.into_iter().zip(counts).collect();
        let of = |place: &i32| found.get(place).copied().unwrap_or(0);
        match number {
            None => {
                scan.version = count(row.try_get("version")?)?;
                scan.documents = count(row.try_get("documents")?)?;
                scan.total_length = length;
                scan.cosine_mean = narrow(cosine.unwrap_or(0.0));
                scan.cosine_deviation = narrow(row.try_get("deviation")?);
                scan.document_counts = columns
                    .counted
                    .iter()
                    .map(|place| u32::try_from(of(place)).unwrap_or(u32::MAX))
                    .collect();
            }
            Some(number) => scan.rows.push(ScanRow {
                number: from_db(number),
                counts: columns
                    .counted
                    .iter()
                    .map(|place| u16::try_from(of(place)).unwrap_or(u16::MAX))
                    .collect(),
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
