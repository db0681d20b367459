//! Compares the models' vectors with those of another implementation (tests/reference.py, numpy).
//! `BATON_MODELS` names the folder of fetched models; without it, nothing is compared.

use std::path::PathBuf;

use baton_models::embed::{EmbedRole, Embedder as _, EmbedderConfig, MiniLm, open};

const TEXTS: [&str; 3] = [
    "The cat sleeps on the sofa.",
    "Caroline, 7 May 2023: I went to a support group yesterday.",
    "When did Melanie paint a sunrise?",
];

type ExpectedVectors = [([f32; 6], f32); 3];

const POTION: ExpectedVectors = [
    ([-0.04966, -0.02649, 0.00488, -0.03603, -0.20404, 0.08481], 0.00807),
    ([-0.01572, 0.07275, 0.06534, 0.13881, 0.10213, 0.3566], -0.07747),
    ([-0.08423, -0.02576, 0.0838, 0.11103, -0.15504, 0.25263], 0.02017),
];

const MINILM: ExpectedVectors = [
    ([0.16257, -0.0738, -0.02986, 0.04016, 0.01938, 0.05078], -0.01184),
    ([-0.10776, -0.0077, 0.06414, 0.0476, -0.0406, 0.04845], 0.04943),
    ([0.0031, 0.08922, 0.05956, 0.03464, 0.04125, 0.0719], 0.00682),
];

#[expect(clippy::unwrap_used, reason = "a test fails by it")]
async fn check(config: EmbedderConfig, id: &str, expected: &ExpectedVectors) {
    let Some(folder) = std::env::var_os("BATON_MODELS").map(PathBuf::from) else {
        eprintln!("skipped: BATON_MODELS does not name the folder of models");
        return;
    };
    let embedder = open(&config, &folder).await.unwrap();
    assert_eq!(embedder.id(), id);
    // Wordless texts in between must not disturb the batch.
    let texts = [TEXTS[0], "", TEXTS[1], TEXTS[2], " \n"];
    let vectors = embedder.embed(EmbedRole::Document, &texts).await.unwrap();
    for (at, (first, last)) in [0, 2, 3].into_iter().zip(expected) {
        let vector = &vectors[at];
        for (found, expected) in vector.iter().zip(first).chain([(vector.last().unwrap(), last)]) {
            assert!((found - expected).abs() < 2e-5, "{}: {found} is not {expected}", texts[at]);
        }
    }
    for nothing in [1, 4] {
        assert!(vectors[nothing].iter().all(|x| *x == 0.0));
    }
    // A single text gives the same vector as in a batch.
    let alone = embedder.embed(EmbedRole::Query, &TEXTS[2..]).await.unwrap();
    assert!(alone[0].iter().zip(&vectors[3]).all(|(a, b)| (a - b).abs() < 1e-5));
    // A text of any length.
    let long = "sunrise ".repeat(100_000);
    assert_eq!(embedder.embed(EmbedRole::Document, &[&long]).await.unwrap()[0].len(), embedder.dimensions());
}

#[tokio::test]
async fn the_table_is_the_reference_s() {
    check(EmbedderConfig::Potion {}, "potion-base-8m-256", &POTION).await;
}

#[tokio::test]
async fn the_transformer_is_the_reference_s() {
    check(EmbedderConfig::Minilm {}, "all-minilm-l6-v2-384", &MINILM).await;
}

#[tokio::test]
async fn the_transformer_counts_the_embedded_pieces() {
    let Some(folder) = std::env::var_os("BATON_MODELS").map(PathBuf::from) else {
        eprintln!("skipped: BATON_MODELS does not name the folder of models");
        return;
    };
    let embedder = MiniLm::open(&folder).unwrap();
    let long = "sunrise ".repeat(1000);
    // The counts include the begin and end markers.
    let counted = embedder.embed_counted(EmbedRole::Document, &["cat", "", &long]).await.unwrap();
    assert_eq!(counted.iter().map(|text| text.tokens).collect::<Vec<_>>(), [3, 2, MiniLm::MAX_TOKENS]);
    let plain = embedder.embed(EmbedRole::Document, &["cat", "", &long]).await.unwrap();
    assert_eq!(counted.into_iter().map(|text| text.vector).collect::<Vec<_>>(), plain);
}
