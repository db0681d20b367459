//! The checks of the fuzz targets on their seeds, and on seeds with random changes. `scripts/fuzz.sh` searches
//! further, guided by coverage.

use proptest::prelude::*;

#[path = "../../fuzz/checks/answer_json.rs"]
mod answer_json;
#[path = "../../fuzz/checks/quilt_decode.rs"]
mod quilt_decode;
#[path = "../../fuzz/checks/range_header.rs"]
mod range_header;

/// The seeds of a target.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = format!("{}/fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Random bytes, and seeds with a few bytes replaced, removed or inserted.
fn inputs(target: &str) -> impl Strategy<Value = Vec<u8>> {
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

#[test]
fn seeds_pass_their_checks() {
    seeds("answer_json").iter().for_each(|seed| answer_json::check(seed));
    seeds("quilt_decode").iter().for_each(|seed| quilt_decode::check(seed));
    seeds("range_header").iter().for_each(|seed| range_header::check(seed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn answer_json(data in inputs("answer_json")) {
        answer_json::check(&data);
    }

    #[test]
    fn quilt_decode(data in inputs("quilt_decode")) {
        quilt_decode::check(&data);
    }

    #[test]
    fn range_header(data in inputs("range_header")) {
        range_header::check(&data);
    }
}
