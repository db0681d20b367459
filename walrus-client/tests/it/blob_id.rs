//! Blob IDs against Mysten's encoder (vectors) and against a plain transcription of the rules.

use baton_walrus_client::{BlobIdError, ShardCount, blob_id};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    vectors: Vec<Vector>,
    independent_anchors: Vec<Anchor>,
    debug_slivers: DebugSlivers,
}

#[derive(Deserialize)]
struct Vector {
    n_shards: u16,
    generator: String,
    length: usize,
    blob_id: Option<String>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Anchor {
    n_shards: u16,
    input_utf8: String,
    blob_id: String,
}

#[derive(Deserialize)]
struct DebugSlivers {
    cases: Vec<DebugCase>,
}

#[derive(Deserialize)]
struct DebugCase {
    n_shards: u16,
    length: usize,
    blob_id: String,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../vectors/walrus.json")).expect("the vector file is valid")
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| u8::try_from((i * 31 + 7) % 251).unwrap()).collect()
}

fn generate(generator: &str, length: usize) -> Vec<u8> {
    if let Some(text) = generator.strip_prefix("utf8:'") {
        return text.trim_end_matches('\'').as_bytes().to_vec();
    }
    match generator {
        "byte[i] = (i*31+7) % 251" => pattern(length),
        "all zero bytes" => vec![0; length],
        "all 0xff bytes" => vec![0xff; length],
        other => panic!("unknown generator {other}"),
    }
}

fn shards(count: u16) -> ShardCount {
    ShardCount::new(count).unwrap()
}

fn check_vectors(wanted: impl Fn(u16) -> bool) -> usize {
    let mut checked = 0;
    for vector in vectors().vectors.iter().filter(|vector| wanted(vector.n_shards)) {
        let bytes = generate(&vector.generator, vector.length);
        assert_eq!(bytes.len(), vector.length);
        let got = blob_id(&bytes, shards(vector.n_shards));
        let name = format!("{} bytes of {} at n={}", vector.length, vector.generator, vector.n_shards);
        match (&vector.blob_id, &vector.error) {
            (Some(id), None) => assert_eq!(&got.expect(&name).to_string(), id, "{name}"),
            (None, Some(_)) => assert!(matches!(got, Err(BlobIdError { .. })), "{name}"),
            _ => panic!("a vector has either an ID or an error: {name}"),
        }
        checked += 1;
    }
    checked
}

#[test]
fn matches_every_vector_below_a_thousand_shards() {
    assert_eq!(check_vectors(|n| n < 1000), 32);
}

#[test]
fn matches_every_vector_at_a_thousand_shards() {
    assert_eq!(check_vectors(|n| n == 1000), 13);
}

#[test]
fn matches_walrus_own_golden_test() {
    let anchors = vectors().independent_anchors;
    assert_eq!(anchors.len(), 1);
    for anchor in anchors {
        let id = blob_id(anchor.input_utf8.as_bytes(), shards(anchor.n_shards)).unwrap();
        assert_eq!(id.to_string(), anchor.blob_id);
    }
}

#[test]
fn matches_the_blobs_whose_slivers_are_listed() {
    let cases = vectors().debug_slivers.cases;
    assert_eq!(cases.len(), 3);
    for case in cases {
        let id = blob_id(&pattern(case.length), shards(case.n_shards)).unwrap();
        assert_eq!(id.to_string(), case.blob_id);
    }
}

#[test]
fn refuses_too_large_input_by_its_length_alone() {
    let limit = ShardCount::TESTBED.max_blob_length();
    assert_eq!(limit, 1_834_952);
    let bytes = vec![0; usize::try_from(limit).unwrap() + 1];
    let expected = BlobIdError { length: limit + 1, limit, shards: ShardCount::TESTBED };
    assert_eq!(blob_id(&bytes, ShardCount::TESTBED), Err(expected));
    assert_ne!(blob_id(&bytes[1..], ShardCount::TESTBED), Err(expected));
}

/// Walrus's rules in their plainest form: one encoder call for each row and column, one hash at a time.
mod plain {
    use reed_solomon_simd::encode;

    fn hash(parts: &[&[u8]]) -> Vec<u8> {
        let mut state = blake2b_simd::Params::new().hash_length(32).to_state();
        for part in parts {
            state.update(part);
        }
        state.finalize().as_bytes().to_vec()
    }

    pub(super) fn tree(leaves: &[Vec<u8>]) -> Vec<u8> {
        let mut level: Vec<Vec<u8>> = leaves.iter().map(|leaf| hash(&[&[0], leaf])).collect();
        while level.len() > 1 {
            if level.len() % 2 == 1 {
                level.push(vec![0; 32]);
            }
            level = level.chunks(2).map(|pair| hash(&[&[1], &pair[0], &pair[1]])).collect();
        }
        level.remove(0)
    }

    /// The extended matrix, row by row.
    pub(super) fn grid(bytes: &[u8], n: usize) -> Vec<Vec<Vec<u8>>> {
        let f = (n - 1) / 3;
        let (k1, k2) = (n - 2 * f, n - f);
        let s = bytes.len().max(1).div_ceil(k1 * k2).next_multiple_of(2);
        let mut padded = bytes.to_vec();
        padded.resize(k1 * k2 * s, 0);
        let mut grid: Vec<Vec<Vec<u8>>> = padded
            .chunks(k2 * s)
            .map(|row| {
                let mut row: Vec<Vec<u8>> = row.chunks(s).map(<[u8]>::to_vec).collect();
                row.extend(encode(k2, n - k2, &row).unwrap());
                row
            })
            .collect();
        grid.resize(n, Vec::new());
        for column in 0..n {
            let source: Vec<Vec<u8>> = grid[..k1].iter().map(|row| row[column].clone()).collect();
            for (row, symbol) in grid[k1..].iter_mut().zip(encode(k1, n - k1, &source).unwrap()) {
                row.push(symbol);
            }
        }
        grid
    }

    pub(super) fn blob_id(bytes: &[u8], n: usize) -> Vec<u8> {
        let grid = grid(bytes, n);
        let column = |column: usize| -> Vec<Vec<u8>> { grid.iter().map(|row| row[column].clone()).collect() };
        let pairs: Vec<Vec<u8>> =
            (0..n).map(|i| [tree(&grid[i]), tree(&column(n - 1 - i))].concat()).collect();
        hash(&[&[1], &(bytes.len() as u64).to_le_bytes(), &tree(&pairs)])
    }
}

/// Blobs with zero stretches, which the fast path skips.
fn blob() -> impl Strategy<Value = Vec<u8>> {
    let run = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..700),
        1 => (0..900usize).prop_map(|length| vec![0; length]),
    ];
    prop::collection::vec(run, 0..6).prop_map(|runs| runs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn agrees_with_the_plain_transcription(bytes in blob(), n in 4u16..40) {
        let id = blob_id(&bytes, shards(n)).unwrap();
        prop_assert_eq!(id.0.to_vec(), plain::blob_id(&bytes, usize::from(n)));
    }
}

proptest! {
    // A plain run over 257 shards takes a tenth of a second.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn agrees_with_the_plain_transcription_where_the_symbol_table_is_used(bytes in blob()) {
        // 257² cells: more leaves than the table has entries, in several batches.
        let id = blob_id(&bytes, shards(257)).unwrap();
        prop_assert_eq!(id.0.to_vec(), plain::blob_id(&bytes, 257));
    }
}
