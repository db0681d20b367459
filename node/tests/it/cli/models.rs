//! `baton-node models add` and `models pull` on the command line: licences and local files.

use std::{fs, path::Path};

use baton_engine::gguf::DType;
use serde_json::Value;

use crate::{
    cli::harness::model_file::model,
    process::{baton_node, failure, json, output, text},
    small,
    support::synthetic::Shape,
};

fn listed(home: &Path) -> Value {
    json(home, &["models", "list", "--json"])
}

#[test]
fn a_licence_is_shown_and_nothing_is_fetched_before_it_is_accepted() {
    let home = tempfile::tempdir().unwrap();
    // There is no terminal. No setting names an index, and there is no pip to ask, so nothing can be fetched.
    let without = [("PATH", "/nowhere"), ("PIP_CONFIG_FILE", "/dev/null")];
    let pull = ["models", "pull", "gemma3-270m"];
    let (code, said) = failure(baton_node(home.path(), &pull).envs(without));
    assert_eq!(code, 2, "{said}");
    for part in ["Gemma Terms of Use", "https://ai.google.dev/gemma/terms", "--accept-licence"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let note = home.path().join(".cache/baton/models/gemma-3-270m-q4_k_m.gguf.accepted.json");
    assert!(!note.exists());
    let accepting = [&pull[..], &["--accept-licence"]].concat();
    let (code, said) = failure(baton_node(home.path(), &accepting).envs(without));
    assert!(code == 5 && said.contains("PIP_INDEX_URL"), "{said}");
    let noted: Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    assert_eq!(noted["licence"], "Gemma Terms of Use");
    // The second run does not request acceptance.
    let (code, said) = failure(baton_node(home.path(), &pull).envs(without));
    assert!(code == 5 && !said.contains("Full text"), "{said}");
}

#[test]
fn a_file_of_this_machine_is_added_and_checked() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("My model.gguf");
    fs::write(&file, model()).unwrap();
    let path = file.to_str().unwrap();
    let said = output(home.path(), &["models", "add", path]);
    assert!(text(&said.stdout).contains("baton-node run --model My-model"), "{said:?}");
    // It is here: `baton try --model` asks for it by its name.
    let pulled = output(home.path(), &["models", "pull", "My-model"]);
    assert!(text(&pulled.stdout).contains("My-model is in "), "{pulled:?}");
    let own = &listed(home.path())["own"][0];
    assert_eq!((own["name"].as_str(), own["source"].as_str()), (Some("My-model"), Some(path)));
    for (words, part) in [
        (&["models", "add", path, "--name", "smollm2-135m-instruct"][..], "of the catalogue"),
        (&["models", "add", path, "--name", "../x"], "letters, digits"),
        (&["models", "pull", "smollm2-135m-instruct", "--name", "x"], "files of the hub"),
        (&["models", "pull", "hf:x"], "hf:OWNER/REPO/FILE.gguf"),
    ] {
        let (code, said) = failure(&mut baton_node(home.path(), words));
        assert!(code == 2 && said.contains(part), "{words:?}: {said}");
    }
    assert!(file.exists());
}

#[test]
fn a_file_that_lies_is_refused_with_what_is_wrong() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("lie.gguf");
    let mut bytes = model();
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    // Neither can a node serve a sound file with a broken chat template, or with a tensor too few.
    let tiny = Shape { layers: 1, ..Shape::new("llama", &[DType::F32]) };
    let mut broken = tiny.writer();
    small::vocabulary(&mut broken);
    broken.string("tokenizer.chat_template", "{% for m in messages %}{{ m }");
    let mut short = Shape { layers: 2, ..tiny.clone() }.writer();
    small::vocabulary(&mut short);
    let short = short.finish();
    let name = short.windows(19).position(|part| part == b"blk.1.ffn_up.weight").unwrap();
    let short = [&short[..name], b"blk.1.ffn_xx.weight", &short[name + 19..]].concat();
    for (content, part) in [
        (&bytes[..], "tensor count"),
        (b"not a model", "not a GGUF file"),
        (b"", "GGUF"),
        (&broken.finish(), "template"),
        (&short, "blk.1.ffn_up.weight"),
    ] {
        fs::write(&file, content).unwrap();
        let (code, said) = failure(&mut baton_node(home.path(), &["models", "add", file.to_str().unwrap()]));
        assert!(code == 5 && said.contains("is no model that can be used") && said.contains(part), "{said}");
    }
    assert_eq!(listed(home.path())["own"], serde_json::json!([]));
}

#[test]
fn a_model_that_never_fits_and_one_that_is_named_twice_are_refused_at_the_start() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("tiny.gguf");
    fs::write(&file, model()).unwrap();
    assert!(output(home.path(), &["models", "add", file.to_str().unwrap()]).status.success());
    let run: Vec<_> =
        "run --admin none --listen /ip4/127.0.0.1/tcp/0 --mdns false --model tiny".split(' ').collect();
    // 1,024 megabytes of keys and values, and a file below one megabyte.
    let (code, said) =
        failure(&mut baton_node(home.path(), &[&run[..], &["--model-memory-mb", "100"]].concat()));
    assert!(
        code == 2 && said.contains("the model tiny takes about 1025 MB, and model_memory_mb is 100"),
        "{said}"
    );
    let (code, said) =
        failure(&mut baton_node(home.path(), &[&run[..], &["--more-models", "tiny"]].concat()));
    assert!(code == 2 && said.contains("named twice"), "{said}");
    // It fits the budget, but lacks a tensor since it was added.
    let mut changed = model();
    let name = b"blk.0.ffn_up.weight";
    let place = changed.windows(name.len()).position(|part| part == name).unwrap();
    changed[place + 8] = b'x';
    fs::write(home.path().join(".cache/baton/models/tiny.gguf"), changed).unwrap();
    let (code, said) =
        failure(&mut baton_node(home.path(), &[&run[..], &["--model-memory-mb", "2000"]].concat()));
    assert!(code == 5 && said.contains("cannot load the model tiny"), "{said}");
}
