//! Untrusted quilts: an accepted index is consistent, and each of its patches can be requested.

use std::collections::BTreeMap;

use baton_walrus_client::{QuiltIndex, QuiltPatch, QuiltPatchId, ShardCount, quilt};

/// Panics if the bytes break the rule.
pub(super) fn check(data: &[u8]) {
    let [shards, rest @ ..] = data else { return };
    if let Ok(text) = std::str::from_utf8(rest)
        && let Ok(id) = text.parse::<QuiltPatchId>()
    {
        assert_eq!(id.to_string(), text);
    }
    let Ok(shards) = ShardCount::new(4 + u16::from(*shards % 24)) else { return };
    // A quilt is k1 · k2 symbols of an even size: zeros fill the last symbols.
    let faulty = (shards.get() - 1) / 3;
    let symbols = usize::from(shards.get() - 2 * faulty) * usize::from(shards.get() - faulty);
    let mut bytes = rest.to_vec();
    bytes.resize(rest.len().max(1).next_multiple_of(2 * symbols), 0);
    let Ok(index) = QuiltIndex::decode(&bytes, shards) else { return };
    let mut end = 0;
    let mut read = Vec::new();
    for entry in &index.entries {
        assert!(entry.start >= end && entry.start < entry.end && entry.end <= shards.get());
        end = entry.end;
        assert!(quilt::check_identifier(&entry.identifier).is_ok());
        if let Ok(patch) = index.patch(&bytes, entry, shards) {
            assert!(patch.len() <= bytes.len());
            read.push((entry, patch));
        }
    }
    // The decoded patches can be encoded again.
    let patches: Vec<_> = read
        .iter()
        .map(|(entry, data)| QuiltPatch {
            identifier: &entry.identifier,
            tags: BTreeMap::clone(&entry.tags),
            data,
        })
        .collect();
    if let Ok(again) = quilt::encode(&patches, shards) {
        let entries = &QuiltIndex::decode(&again.bytes, shards).expect("our own quilt").entries;
        for ((_, data), entry) in read.iter().zip(entries) {
            assert_eq!(&again.index.patch(&again.bytes, entry, shards).expect("our own patch"), data);
        }
    }
}
