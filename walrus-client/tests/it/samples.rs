//! Inputs of fuzz targets for ordinary tests: the seeds of a crate, and seeds with random changes.

use proptest::prelude::*;

/// The seeds of a target.
pub(crate) fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = format!("{}/fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Random bytes, and seeds with a few bytes replaced, removed or inserted.
pub(crate) fn inputs(target: &str) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 0..8);
    let changed = (prop::sample::select(seeds(target)), changes).prop_map(|(mut bytes, changes)| {
        for (place, byte, kind) in changes {
            let place = place.index(bytes.len() + 1);
            match kind {
                0 => bytes.insert(place, byte),
                _ if place == bytes.len() => {}
                1 => bytes[place] = byte,
                _ => drop(bytes.remove(place)),
            }
        }
        bytes
    });
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..300), 4 => changed]
}
