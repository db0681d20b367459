//! The checks of the fuzz targets on their seeds, and on seeds with random changes. `scripts/fuzz.sh` searches
//! further, guided by coverage.

use proptest::prelude::*;

#[path = "../../fuzz/checks/answer_json.rs"]
mod answer_json;
#[path = "../../fuzz/checks/quilt_decode.rs"]
mod quilt_decode;
#[path = "../../fuzz/checks/range_header.rs"]
mod range_header;
#[path = "samples.rs"]
mod samples;

use samples::{inputs, seeds};

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
