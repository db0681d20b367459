//! The evaluation on a small built-in file, and on the real one if it is available.

use std::path::PathBuf;

use baton_models::embed::Hashing;

use super::*;
use crate::installed;

const SMALL: &str = r#"[{
    "conversation": {
        "speaker_a": "Ana", "speaker_b": "Ben",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ana", "dia_id": "D1:1", "text": "Which instrument did you choose?"},
            {"speaker": "Ben", "dia_id": "D1:2", "text": "I took the cello last week."}
        ],
        "session_2_date_time": "9:00 am on 1 January, 2024",
        "session_2": [{"speaker": "Ana", "dia_id": "D2:1", "text": "I moved to Porto and adopted a cat."}]
    },
    "qa": [
        {"question": "Which instrument did Ben choose?", "answer": "cello", "evidence": ["D1:2"], "category": 4},
        {"question": "What did Ana adopt?", "answer": "a cat", "evidence": ["D2:1; D9:9"], "category": 1},
        {"question": "Trick?", "answer": "", "evidence": ["D1:1"], "category": 5},
        {"question": "No evidence?", "answer": "", "evidence": [], "category": 2}
    ]
}]"#;

#[tokio::test]
async fn each_question_searches_its_own_dialogue_with_every_embedder_and_without() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("small.json");
    std::fs::write(&file, SMALL).unwrap();
    let report = locomo(&file, &[Arc::new(Hashing)]).await.unwrap();
    let names: Vec<&str> = report.configs.iter().map(|config| config.embedder.as_str()).collect();
    assert_eq!(names, ["bm25", Hashing::ID]);
    for config in &report.configs {
        assert_eq!((config.all.questions, config.all.r_at_5, config.all.mrr), (2, 1.0, 1.0), "{config:?}");
        assert_eq!(config.by_category.keys().collect::<Vec<_>>(), ["1", "4"]);
    }
}

#[tokio::test]
async fn what_is_no_data_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.json");
    for bad in [
        "",
        "[]",
        "{}",
        "[{}]",
        &SMALL.replace("8 May, 2023", "some day"),
        &SMALL.replace("\"text\"", "\"text\": 1, \"x\""),
    ] {
        std::fs::write(&file, bad).unwrap();
        assert!(locomo(&file, &[]).await.is_err(), "{bad}");
    }
    assert!(locomo(Path::new("/nonexistent"), &[]).await.is_err());
}

#[test]
fn knows_the_days_of_the_data() {
    for (text, time_ms) in [
        ("1:56 pm on 8 May, 2023", Some(1_683_504_000_000)),
        ("9:00 am on 29 february 2000", Some(951_782_400_000)),
        ("9:00 am on 1 January, 1970", Some(0)),
        ("9:00 am on 30 February, 2023", Some(0)),
        ("9:00 am on 32 May, 2023", None),
        ("9:00 am on 8 Mai, 2023", None),
        ("9:00 am on 8 May, 1969", None),
        ("8 May, 2023", None),
    ] {
        assert_eq!(day_ms(text), time_ms, "{text}");
    }
}

/// `BATON_LOCOMO` names the data file, `BATON_MODELS` the folder of the fetched models. The floor is that of
/// the development half.
#[tokio::test]
async fn recall_quality_is_above_the_floor() {
    let Some(file) = std::env::var_os("BATON_LOCOMO").map(PathBuf::from) else {
        eprintln!("skipped: BATON_LOCOMO does not name the data file");
        return;
    };
    let folder = std::env::var_os("BATON_MODELS").map(PathBuf::from).unwrap_or_default();
    let report = locomo(&file, &installed(&folder).await.unwrap()).await.unwrap();
    eprintln!("{}", serde_json::to_string(&report).unwrap());
    for config in &report.configs {
        assert!(config.all.r_at_10 >= 0.70 && config.all.mrr >= 0.53, "{config:?}");
    }
}
