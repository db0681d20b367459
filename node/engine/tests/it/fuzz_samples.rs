//! The checks of the fuzz targets on their seeds, and on seeds with random changes. `scripts/fuzz.sh` searches
//! further, guided by coverage.

use proptest::prelude::*;

#[path = "../../fuzz/checks/chat_template.rs"]
mod chat_template;
#[path = "../../fuzz/checks/detokenise.rs"]
mod detokenise;
#[path = "../../fuzz/checks/gguf_header.rs"]
mod gguf_header;

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
    seeds("chat_template").iter().for_each(|seed| chat_template::check(seed));
    seeds("detokenise").iter().for_each(|seed| detokenise::check(seed));
    seeds("gguf_header").iter().for_each(|seed| gguf_header::check(seed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn chat_template(data in inputs("chat_template")) {
        chat_template::check(&data);
    }

    #[test]
    fn detokenise(data in inputs("detokenise")) {
        detokenise::check(&data);
    }

    #[test]
    fn gguf_header(data in inputs("gguf_header")) {
        gguf_header::check(&data);
    }
}
