//! Quilts against Mysten's encoder (vectors), round trips, and hostile quilts.

use std::collections::BTreeMap;

use baton_walrus_client::{
    Quilt, QuiltError, QuiltIndex, QuiltPatch, QuiltPatchId, ShardCount, blob_id, quilt,
};
use proptest::prelude::*;
use serde::Deserialize;
use sha2::{Digest, Sha256};

#[derive(Deserialize)]
struct Vectors {
    quilts: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    n_shards: u16,
    blobs: Vec<Blob>,
    quilt_length: usize,
    quilt_id: String,
    quilt_sha256: String,
    patches: Vec<Patch>,
}

#[derive(Deserialize)]
struct Blob {
    identifier: String,
    length: usize,
    tags: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Patch {
    identifier: String,
    start_index: u16,
    end_index: u16,
    patch_id: String,
}

const TEN: ShardCount = ShardCount::TESTBED;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| u8::try_from((i * 31 + 7) % 251).unwrap()).collect()
}

fn patch<'a>(identifier: &'a str, data: &'a [u8]) -> QuiltPatch<'a> {
    QuiltPatch { identifier, tags: BTreeMap::new(), data }
}

/// All patches of a quilt.
fn decode_all(quilt: &[u8], shards: ShardCount) -> Result<Vec<(String, Vec<u8>)>, QuiltError> {
    let index = QuiltIndex::decode(quilt, shards)?;
    let mut out = Vec::new();
    for entry in &index.entries {
        let data = index.patch(quilt, entry, shards)?;
        assert_eq!(quilt::patch_by_range(quilt, shards, entry.start, entry.end).unwrap().1, data);
        out.push((entry.identifier.clone(), data));
    }
    Ok(out)
}

#[test]
fn matches_every_vector() {
    let vectors: Vectors = serde_json::from_str(include_str!("../../vectors/walrus.json")).unwrap();
    assert_eq!(vectors.quilts.len(), 3);
    for vector in vectors.quilts {
        let shards = ShardCount::new(vector.n_shards).unwrap();
        let data: Vec<Vec<u8>> = vector.blobs.iter().map(|blob| pattern(blob.length)).collect();
        let mut patches: Vec<QuiltPatch<'_>> = vector
            .blobs
            .iter()
            .zip(&data)
            .map(|(blob, data)| QuiltPatch { identifier: &blob.identifier, tags: blob.tags.clone(), data })
            .collect();
        patches.reverse();
        let Quilt { bytes, index } = quilt::encode(&patches, shards).unwrap();
        assert_eq!(bytes.len(), vector.quilt_length);
        assert_eq!(quilt::encoded_length(&patches, shards), Ok(bytes.len() as u64));
        assert_eq!(hex::encode(Sha256::digest(&bytes)), vector.quilt_sha256);
        let id = blob_id(&bytes, shards).unwrap();
        assert_eq!(id.to_string(), vector.quilt_id);

        assert_eq!(QuiltIndex::decode(&bytes, shards).unwrap(), index);
        assert_eq!(index.entries.len(), vector.patches.len());
        for (entry, expected) in index.entries.iter().zip(&vector.patches) {
            assert_eq!(entry.identifier, expected.identifier);
            assert_eq!((entry.start, entry.end), (expected.start_index, expected.end_index));
            assert_eq!(entry.id(id).to_string(), expected.patch_id);
            assert_eq!(expected.patch_id.parse::<QuiltPatchId>().unwrap(), entry.id(id));
        }
        for (blob, data) in vector.blobs.iter().zip(&data) {
            let entry = index.find(&blob.identifier).unwrap();
            assert_eq!((&entry.tags, &index.patch(&bytes, entry, shards).unwrap()), (&blob.tags, data));
        }
    }
}

#[test]
fn refuses_patches_that_no_quilt_can_hold() {
    let check = |patches: &[QuiltPatch<'_>], reason: &str| {
        let error = quilt::encode(patches, TEN).unwrap_err();
        assert_eq!(error, QuiltError::Refused(reason.to_owned()));
    };
    check(&[], "a quilt needs at least one patch");
    let names: Vec<String> = (0..7).map(|number| number.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| patch(name, b"")).collect();
    check(&many, "7 patches are too many: there are columns for 6");
    assert!(quilt::encode(&many[..6], TEN).is_ok());
    let twice = [patch("b", b""), patch("a", b""), patch("b", b"x")];
    check(&twice, "patch 2 has the identifier of another one");
    let mut tagged = patch("a", b"");
    tagged.tags.insert("k".into(), "v".repeat(65_536));
    check(&[tagged], "patch 0: its tags are larger than 65,535 bytes");
    let limit = usize::try_from(TEN.max_blob_length()).unwrap();
    let too_large = "the patches are too large for one quilt on 10 shards";
    check(&[patch("a", &vec![1; limit])], too_large);
    // Six columns of 4 symbols of 65,534 bytes, less the patch's header and name.
    let largest = vec![1; 6 * 4 * 65_534 - 6 - 4];
    assert_eq!(quilt::encode(&[patch("a", &largest)], TEN).unwrap().bytes.len(), limit);
    check(&[patch("a", &[&largest[..], &[1]].concat())], too_large);
}

#[test]
fn refuses_identifiers_that_walrus_refuses() {
    let long = "x".repeat(65_532);
    for (identifier, reason) in [
        ("", "is empty"),
        (long.as_str(), "is longer than 65,531 bytes"),
        ("test ", "ends in white space"),
        ("test\u{3000}", "ends in white space"),
        ("te\u{8}st", "has a control character"),
        ("test\n", "has a control character"),
        ("\u{9f}", "has a control character"),
    ] {
        let error = quilt::encode(&[patch("a", b""), patch(identifier, b"")], TEN).unwrap_err();
        assert_eq!(error.to_string(), format!("the identifier of patch 1 {reason}"));
    }
    for identifier in [" a", "a b", ".", "ü", &long[1..]] {
        let quilt = quilt::encode(&[patch(identifier, b"data")], TEN).unwrap();
        assert_eq!(decode_all(&quilt.bytes, TEN).unwrap(), [(identifier.to_owned(), b"data".to_vec())]);
    }
}

#[test]
fn refuses_texts_that_are_no_patch_id() {
    let id = QuiltPatchId { quilt: blob_id(b"quilt", TEN).unwrap(), start: 1, end: 3 };
    let text = id.to_string();
    assert_eq!((text.len(), text.parse::<QuiltPatchId>()), (50, Ok(id)));
    let wrong = [
        QuiltPatchId { end: 1, ..id }.to_string(),
        QuiltPatchId { start: 4, ..id }.to_string(),
        text[..49].to_owned(),
        format!("{text}A"),
        format!("{}!", &text[..49]),
        id.quilt.to_string(),
        String::new(),
    ];
    for text in &wrong {
        assert!(text.parse::<QuiltPatchId>().is_err(), "{text}");
    }
    let other_version = text.replacen(&text[42..44], "gC", 1);
    assert!(other_version.parse::<QuiltPatchId>().is_err());
}

/// A quilt for ten shards (4 rows, 7 columns) of 64-byte symbols with this index and these columns.
fn forge(index: &[u8], columns: &[(usize, &[u8])]) -> Vec<u8> {
    let mut framed = vec![1];
    framed.extend(u32::try_from(index.len()).unwrap().to_le_bytes());
    framed.extend(index);
    let mut quilt = vec![0; 4 * 7 * 64];
    put(&mut quilt, 0, &framed);
    for (column, bytes) in columns {
        put(&mut quilt, *column, bytes);
    }
    quilt
}

fn put(quilt: &mut [u8], column: usize, bytes: &[u8]) {
    for (number, piece) in bytes.chunks(64).enumerate() {
        let (row, column) = (number % 4, column + number / 4);
        quilt[(row * 7 + column) * 64..][..piece.len()].copy_from_slice(piece);
    }
}

fn entry(end: u16, identifier: &str) -> Vec<u8> {
    let mut out = end.to_le_bytes().to_vec();
    out.push(u8::try_from(identifier.len()).unwrap());
    out.extend(identifier.bytes());
    out.push(0);
    out
}

fn index_of(entries: &[Vec<u8>]) -> Vec<u8> {
    [vec![u8::try_from(entries.len()).unwrap()], entries.concat()].concat()
}

fn body(length: u32, mask: u8, identifier: &str, data: &[u8]) -> Vec<u8> {
    let name = [vec![u8::try_from(identifier.len()).unwrap()], identifier.as_bytes().to_vec()].concat();
    let mut out = vec![1];
    out.extend(length.to_le_bytes());
    out.push(mask);
    out.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
    out.extend(name);
    out.extend(data);
    out
}

#[test]
fn refuses_hostile_indexes_by_name() {
    let fine = forge(&index_of(&[entry(2, "a"), entry(4, "b")]), &[]);
    assert_eq!(QuiltIndex::decode(&fine, TEN).unwrap().entries.len(), 2);
    let refused = |index: &[u8]| refusal(&forge(index, &[]), TEN);
    let columns = "are empty, outside the quilt or overlap others";
    for (entries, reason) in [
        (vec![entry(1, "a")], format!("the columns 1 to 1 of entry 0 {columns}")),
        (vec![entry(0, "a")], format!("the columns 1 to 0 of entry 0 {columns}")),
        (vec![entry(8, "a")], format!("the columns 1 to 8 of entry 0 {columns}")),
        (vec![entry(4, "a"), entry(3, "b")], format!("the columns 4 to 3 of entry 1 {columns}")),
        (
            vec![entry(2, "b"), entry(3, "a")],
            "entry 1 of the index does not come after the one before it".to_owned(),
        ),
        (
            vec![entry(2, "b"), entry(3, "b")],
            "entry 1 of the index does not come after the one before it".to_owned(),
        ),
        (vec![entry(2, "")], "the identifier of patch 0 is empty".to_owned()),
        (vec![entry(2, "a ")], "the identifier of patch 0 ends in white space".to_owned()),
        (vec![entry(2, "\0")], "the identifier of patch 0 has a control character".to_owned()),
    ] {
        assert_eq!(refused(&index_of(&entries)), reason);
    }
    assert_eq!(refused(&[7]), "7 patches are too many: there are columns for 6");
    assert!(refused(&[0xff, 0xff, 0xff, 0xff, 0x0f]).starts_with("4294967295 patches are too many"));
    for index in [
        &[][..],
        &[1],
        &[1, 2],
        &[0, 0],
        &[0x80, 0],
        &[1, 2, 0, 5, b'a'],
        &[1, 2, 0, 1, 0xff, 0],
        &[1, 2, 0, 1, b'a', 0xff, 0xff, 0xff, 0xff, 0x0f],
        &[1, 2, 0, 1, b'a', 1, 1, b'k', 0xff, 0xff, 0xff, 0xff, 0x0f],
        &[1, 2, 0, 1, b'a', 2, 1, b'k', 0, 1, b'k', 0],
    ] {
        assert!(refused(index).starts_with("the index is malformed"), "{index:?}");
    }
}

fn refusal(quilt: &[u8], shards: ShardCount) -> String {
    QuiltIndex::decode(quilt, shards).unwrap_err().to_string()
}

#[test]
fn refuses_bytes_that_are_no_quilt() {
    for length in [0, 1, 28, 55, 57, 84, 4 * 7 * 65_536] {
        assert_eq!(refusal(&vec![1; length], TEN), format!("{length} bytes are no quilt on 10 shards"));
    }
    let mut quilt = forge(&index_of(&[entry(2, "a")]), &[]);
    quilt[0] = 2;
    assert_eq!(refusal(&quilt, TEN), "quilt version 2 is not known");
    quilt[0] = 1;
    quilt[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
    let too_long = |length: u32| format!("the index claims {length} bytes, more than its columns hold");
    assert_eq!(refusal(&quilt, TEN), too_long(u32::MAX));
    // At a thousand shards (334 rows, 2-byte symbols), ten of the 667 columns hold 6680 bytes.
    let mut quilt = vec![0; 334 * 667 * 2];
    quilt[..2].copy_from_slice(&[1, 0x14]);
    quilt[667 * 2..][..2].copy_from_slice(&[0x1a, 0]);
    assert_eq!(refusal(&quilt, ShardCount::MAINNET), too_long(6676));
    quilt[1] = 0x13;
    let error = refusal(&quilt, ShardCount::MAINNET);
    assert!(error.starts_with("the index is malformed"), "6675 bytes fit: {error}");
}

#[test]
fn refuses_hostile_patches_by_name() {
    // One column holds 256 bytes. The head of a patch named "a" takes 10; 4 of them count in its length.
    let with = |end: u16, patch: &[u8]| {
        let quilt = forge(&index_of(&[entry(end, "a")]), &[(1, patch)]);
        let index = QuiltIndex::decode(&quilt, TEN).unwrap();
        index.patch(&quilt, &index.entries[0], TEN)
    };
    assert_eq!(with(2, &body(8, 0, "a", b"data")), Ok(b"data".to_vec()));
    assert_eq!(with(2, &body(250, 0, "a", &[7; 246])), Ok(vec![7; 246]));
    let malformed = |end, patch: &[u8]| {
        let error = with(end, patch).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the patch in columns 1 to {end} is malformed")), "{error}");
    };
    malformed(2, &body(251, 0, "a", b"")); // longer than its columns
    malformed(2, &body(u32::MAX, 0, "a", b""));
    malformed(3, &body(8, 0, "a", b"data")); // a column too many
    malformed(2, &body(3, 0, "a", b"")); // shorter than its own name
    malformed(2, &body(0, 0, "a", b""));
    malformed(2, &body(8, 2, "a", b"data")); // an unknown extension
    malformed(2, &body(8, 1, "a", b"\xff\xffxx")); // tags longer than the patch
    malformed(2, &body(8, 1, "a", b"\x02\x00\x00\x00")); // bytes after the tags
    malformed(2, &[0; 16]); // no version
    malformed(2, &body(8, 0, "b", b"data")); // another name than the index
    malformed(2, &body(10, 1, "a", b"\x05\x00\x01\x01k\x01v")); // tags longer than the patch, by a byte
    malformed(2, &body(11, 1, "a", b"\x05\x00\x01\x01k\x01v")); // other tags than the index
}

#[test]
fn refuses_ranges_that_the_index_does_not_have() {
    let quilt = quilt::encode(&[patch("a", b"1"), patch("b", &[0; 500])], TEN).unwrap();
    let entries = &quilt.index.entries;
    let (first, second) = (entries[0].start, entries[1].end);
    for (start, end) in [(first, second), (0, 1), (second, first), (0, u16::MAX), (u16::MAX, u16::MAX)] {
        let error = quilt::patch_by_range(&quilt.bytes, TEN, start, end).unwrap_err();
        assert_eq!(error, QuiltError::UnknownPatch);
        let entry = quilt::PatchEntry { start, end, ..entries[0].clone() };
        assert!(quilt.index.patch(&quilt.bytes, &entry, TEN).is_err());
    }
}

fn patches() -> impl Strategy<Value = BTreeMap<String, (BTreeMap<String, String>, Vec<u8>)>> {
    let name = "[a-zA-Zäß €0-9._-]{0,12}[a-z0-9]";
    let tags = prop::collection::btree_map("[a-z]{0,5}", "[a-zä]{0,200}", 0..4);
    let data = prop::collection::vec(any::<u8>(), 0..1500);
    prop::collection::btree_map(name, (tags, data), 1..6)
}

fn encode(patches: &BTreeMap<String, (BTreeMap<String, String>, Vec<u8>)>, shards: ShardCount) -> Quilt {
    let patches: Vec<QuiltPatch<'_>> = patches
        .iter()
        .map(|(identifier, (tags, data))| QuiltPatch { identifier, tags: tags.clone(), data })
        .collect();
    quilt::encode(&patches, shards).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_encoded_is_decoded(patches in patches(), n in 10u16..60) {
        let shards = ShardCount::new(n).unwrap();
        let quilt = encode(&patches, shards);
        let index = QuiltIndex::decode(&quilt.bytes, shards).unwrap();
        prop_assert_eq!(&index, &quilt.index);
        for (entry, (identifier, (tags, data))) in index.entries.iter().zip(&patches) {
            prop_assert_eq!((&entry.identifier, &entry.tags), (identifier, tags));
            prop_assert_eq!(&index.patch(&quilt.bytes, entry, shards).unwrap(), data);
        }
    }

    #[test]
    fn changed_quilts_never_panic(
        patches in patches(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..8),
    ) {
        let mut bytes = encode(&patches, TEN).bytes;
        let column = bytes.len() / 28;
        for (at, value, near) in changes {
            // Half of the changes hit the first symbols of the rows, where the index is.
            let at = if near { at.index(4) * 7 * column + at.index(column.min(40)) } else { at.index(bytes.len()) };
            bytes[at] = value;
        }
        let _ = decode_all(&bytes, TEN);
    }
}
