use std::path::Path;

use clap::{Args as _, Command, FromArgMatches as _};

use super::*;
use crate::{daemon::service_limits, models::DEFAULT_MODEL, service::ServiceLimits};

const DEFAULT_STORE_URL: &str = "http://127.0.0.1:31415";
/// Options for tests only; neither the file nor the help has them.
const HIDDEN: &[&str] = &["pause_at", "clock_offset"];

fn parse(path: &Path, text: &str) -> Result<RunFlags, ConfigError> {
    config::examine(path, text).into_options()
}

fn flags(words: &[&str]) -> RunFlags {
    let command = RunFlags::augment_args(Command::new("run").no_binary_name(true));
    RunFlags::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
}

fn file(text: &str) -> RunFlags {
    parse(Path::new("config.toml"), text).unwrap()
}

fn set(key: &str, text: &str) -> Result<(), String> {
    RunFlags::default().set(RunFlags::entry(key).unwrap(), &[text.to_owned()])
}

#[test]
fn nothing_given_yields_the_documented_defaults() {
    let settings = Settings::resolve(RunFlags::default(), RunFlags::default(), None).unwrap();
    let listen: Vec<_> = settings.listen().iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1"]);
    assert_eq!(settings.engine(), EngineChoice::Native);
    assert_eq!(settings.admin(), AdminSetting::At("127.0.0.1:9464".parse().unwrap()));
    assert_eq!(settings.model_dir(), default_model_dir());
    assert_eq!(settings.heads(), HeadsSetting::At(DEFAULT_STORE_URL.to_owned()));
    assert!(settings.mdns() && !settings.json());
    assert_eq!(settings.model(), DEFAULT_MODEL);
    let shown = settings.shown().into_iter();
    let absent: Vec<_> = shown.filter(|option| option.value.is_none()).map(|option| option.key).collect();
    let allowed = [
        "publisher_token_file",
        "publisher_secret_file",
        "shards",
        "embedding_model",
        "proxied_url",
        "proxied_model",
        "proxied_key_file",
        "threads",
    ];
    assert_eq!(absent, allowed);
    // They are those of mesh, service and journal.
    assert_eq!(settings.mesh_limits(), MeshLimits::default());
    assert_eq!(settings.journal_limits().max_blob_bytes, JournalLimits::default().max_blob_bytes);
    let (ours, usual) = (service_limits(&settings), ServiceLimits::default());
    assert_eq!((ours.cache_bytes, ours.turns_per_minute), (usual.cache_bytes, usual.turns_per_minute));
    assert_eq!(
        (ours.tokens_per_hour, ours.storage_per_hour),
        (usual.tokens_per_hour, usual.storage_per_hour)
    );
}

#[test]
fn several_stores_keep_their_order_whether_from_flags_or_the_file() {
    let expected = ["http://a", "http://b", "https://c"];
    for (words, text) in [
        (&["--publisher", "http://a,http://b", "--publisher", "https://c"][..], ""),
        (&[], "publisher = [\"http://a\", \"http://b\", \"https://c\"]"),
    ] {
        let settings = Settings::resolve(flags(words), file(text), None).unwrap();
        assert_eq!(
            (settings.publisher(), settings.aggregator()),
            (expected.map(str::to_owned).to_vec(), expected.map(str::to_owned).to_vec())
        );
        assert_eq!(settings.heads(), HeadsSetting::At("http://a".into()));
    }
    let none = Settings::resolve(flags(&["--heads", "none"]), RunFlags::default(), None).unwrap();
    assert_eq!(none.heads(), HeadsSetting::Off);
    let one = Settings::resolve(flags(&[]), file("aggregator = \"http://d\""), None).unwrap();
    assert_eq!(
        (one.publisher(), one.aggregator()),
        (vec![DEFAULT_STORE_URL.to_owned()], vec!["http://d".to_owned()])
    );
}

#[test]
fn refuses_options_that_contradict_each_other() {
    for words in [
        &["--engine", "proxied"][..],
        &["--engine", "proxied", "--proxied-url", "http://h"],
        &["--proxied-url", "http://h"],
        &["--embedding-model", "gpt-4"],
        &["--engine", "echo", "--model-memory-mb", "100"],
        &["--engine", "echo", "--more-models", "mine"],
        &["--more-models", "mine,mine"],
        &["--more-models", DEFAULT_MODEL],
        &["--publisher-token-file", "t", "--publisher-secret-file", "s"],
        &["--grants-required", "true"],
        &["--context-tokens", "1024", "--max-output-tokens", "1024"],
    ] {
        let refused = Settings::resolve(flags(words), RunFlags::default(), None);
        assert!(matches!(refused, Err(ConfigError::Conflict(_))), "{words:?}");
    }
    let none = RunFlags { listen: Some(Vec::new()), ..RunFlags::default() };
    assert!(Settings::resolve(none, RunFlags::default(), None).is_err());
}

#[track_caller]
fn check(text: &str, line: usize, expected: &[&str]) {
    let error = parse(Path::new("/etc/baton.toml"), text).unwrap_err().to_string();
    assert!(error.starts_with(&format!("/etc/baton.toml:{line}: ")), "{text:?}: {error}");
    assert!(!error.contains(":secret"), "{error}");
    for part in expected {
        assert!(error.contains(part), "{text:?}: {error}");
    }
}

#[test]
fn refuses_broken_lines_with_line_key_and_what_is_allowed() {
    check("slots = 0x10", 1, &["`slots`", "expected a whole number from 1 to 256"]);
    check("listen = \"/ip4/0.0.0.0/tcp/1\"", 1, &["`listen`", "expected a list"]);
    check("listen = [\n  \"/ip4/0.0.0.0/tcp/1\",\n  7,\n]", 3, &["`listen`", "integer"]);
    check("listen = [\"0.0.0.0:4001\"]", 1, &["`listen`", "0.0.0.0:4001", "/ip4/0.0.0.0/tcp/4001"]);
    let urls = "or a list of at most 8 such";
    check("publisher = []", 1, &["`publisher`", urls, "array"]);
    check("aggregator = [\"http://a\", 1]", 1, &["`aggregator`", urls, "integer"]);
    check("publisher = \"http://user:secret@h\"", 1, &["`publisher`", "without user name"]);
    check("admin = \"0.0.0.0:9464\"", 1, &["`admin`", "loopback", "this machine only"]);
    check("model = \"\"", 1, &["`model`", "models list"]);
    check("pause_at = \"sealed\"", 1, &["no option `pause_at`"]);
    check("[network]\nlisten = []", 1, &["no option `network`"]);
    check("slots = 2\nslots = 3", 2, &["not valid TOML", "duplicate"]);
}

#[test]
fn flags_options_of_the_file_and_environment_variables_are_the_same() {
    let command = RunFlags::augment_args(Command::new("run"));
    let mut flags: Vec<_> = command.get_arguments().map(|arg| arg.get_id().to_string()).collect();
    flags.retain(|id| id != "config" && !HIDDEN.contains(&id.as_str()));
    flags.sort();
    let mut options: Vec<_> = RunFlags::ENTRIES.iter().map(|entry| entry.key.to_owned()).collect();
    options.sort();
    assert_eq!(flags, options);
    for arg in command.get_arguments() {
        let id = arg.get_id().to_string();
        let name = format!("BATON_NODE_{}", id.to_uppercase());
        assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(name.as_str()));
        assert_eq!(arg.get_long(), Some(id.replace('_', "-").as_str()));
        assert!(arg.get_help().is_some(), "{id}");
    }
}

#[test]
fn json_needs_no_value_and_takes_one() {
    for (word, expected) in [("--json", true), ("--json=true", true), ("--json=false", false)] {
        assert_eq!(flags(&[word]).json, Some(expected));
    }
}

#[test]
fn the_admin_port_is_loopback_or_nothing() {
    assert_eq!(flags(&["--admin", "none"]).admin, Some(AdminSetting::Off));
    for text in ["127.0.0.1:9464", "localhost:9464", ":9464"] {
        let address = AdminSetting::At("127.0.0.1:9464".parse().unwrap());
        assert_eq!(flags(&["--admin", text]).admin, Some(address), "{text}");
    }
    assert!(set("admin", "[::1]:1").is_ok());
    for text in ["0.0.0.0:9464", "192.168.0.1:1", "[::]:1", "9464", "example.org:1", ""] {
        assert!(set("admin", text).is_err(), "{text}");
    }
}

#[test]
fn urls_carry_no_secrets_and_name_a_host() {
    assert!(set("publisher", "http://127.0.0.1:31415").is_ok());
    for text in ["", "host:1", "ftp://h", "http://u:p@h", "http://u@h", "file:///x", "http://"] {
        let refused = set("publisher", text).unwrap_err();
        assert!(refused.contains("http://host:port") && !refused.contains("u:p"), "{refused}");
    }
}

#[test]
fn every_option_is_shown_and_what_is_shown_is_accepted_as_a_file() {
    let text = "publisher_token_file = \"/t\"\nengine = \"proxied\"\nproxied_url = \"http://h\"\n\
                proxied_model = \"m\"\nproxied_key_file = \"/k\"\nthreads = 3\n\
                shards = 10\nembedding_model = \"all-minilm-l6-v2\"";
    let settings = Settings::resolve(RunFlags::default(), file(text), None).unwrap();
    let mut written = String::new();
    for OptionValue { key, value } in settings.shown() {
        match value {
            Some(value) => written.push_str(&format!("{key} = {value}\n")),
            None => assert_eq!(key, "publisher_secret_file"),
        }
    }
    assert_eq!(Settings::resolve(RunFlags::default(), file(&written), None).unwrap(), settings);
}

#[test]
fn the_file_as_written_changes_nothing_and_its_defaults_are_the_defaults() {
    assert_eq!(file(&commented_file(None, &[])), RunFlags::default());
    let folder = Path::new("/a \"b\"");
    assert_eq!(file(&commented_file(Some(folder), &[])).data_dir.as_deref(), Some(folder));
    let uncommented: String = commented_file(None, &[])
        .lines()
        .filter(|line| line.starts_with('#') && !line.starts_with("# ") && !line.ends_with("\"\""))
        .map(|line| format!("{}\n", line.trim_start_matches('#')))
        // Numbers without a default have the minimum as an example.
        .filter(|line| !["threads", "shards"].iter().any(|key| line.starts_with(key)))
        .collect();
    let written = Settings::resolve(file(&uncommented), RunFlags::default(), None).unwrap();
    let bare = Settings::resolve(RunFlags::default(), RunFlags::default(), None).unwrap();
    assert_eq!(written, bare);
    assert!(uncommented.lines().count() > 15, "{uncommented}");
}
