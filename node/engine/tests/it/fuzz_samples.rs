//! The checks of the fuzz targets on their seeds, and on seeds with random changes. `scripts/fuzz.sh` searches
//! further, guided by coverage.

use proptest::prelude::*;

#[path = "../../fuzz/checks/chat_template.rs"]
mod chat_template;
#[path = "../../fuzz/checks/detokenise.rs"]
mod detokenise;
#[path = "../../fuzz/checks/gguf_header.rs"]
mod gguf_header;
#[path = "../../../../walrus-client/tests/it/samples.rs"]
mod samples;

use samples::{inputs, seeds};

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
