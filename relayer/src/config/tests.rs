use std::path::Path;

use super::*;

fn parsed(text: &str) -> Result<Options, ConfigError> {
    config::examine(Path::new("c.toml"), text).into_options()
}

fn resolved(text: &str) -> Result<Settings, ConfigError> {
    Settings::resolve(Path::new("/d"), parsed(text)?)
}

#[test]
fn the_commented_file_says_the_defaults_and_changes_nothing() {
    let text = commented_file();
    assert_eq!(parsed(&text).unwrap(), Options::default());
    let uncommented: String = text
        .lines()
        .filter_map(|line| line.strip_prefix('#').filter(|line| !line.starts_with([' ', '#', '-'])))
        .filter(|line| {
            line.contains(" = ")
                && !line.contains("\"\"")
                && !["dimensions", "shards"].iter().any(|key| line.contains(key))
        })
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(uncommented.lines().count() > 12, "{uncommented}");
    let settings = |text: &str| Settings { given: Options::default(), ..resolved(text).unwrap() };
    assert_eq!(settings(&uncommented), settings(""));
}

#[test]
fn errors_name_the_line_and_the_allowed_values() {
    let check = |text: &str, parts: &[&str]| {
        let error = resolved(text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
    };
    check("\nhtpp = \"off\"", &[":2", "htpp", "http"]);
    check("http = \"here\"", &[":1", "localhost:8000 or :8000"]);
    assert_eq!(
        resolved("http = \":8001\"").unwrap().http,
        resolved("http = \"localhost:8001\"").unwrap().http
    );
    check("embedder = 3", &[":1", "minilm"]);
    check("embedder_roles = \"inputs\"", &["input_type"]);
    check("embedder = \"endpoint\"", &["embedder_url"]);
    check("embedder_url = \"http://x/v1\"", &["endpoint"]);
    let endpoint = "embedder = \"endpoint\"\nembedder_url = \"http://x/v1\"\nembedder_model = \"m\"\nembedder_dimensions = 8\n";
    assert!(resolved(endpoint).is_ok());
    check(&format!("{endpoint}embedder_roles = \"prefix\""), &["prefix:QUERY|DOCUMENT"]);
    let endpoint = resolved(&format!("{endpoint}embedder_roles = \"prefix:query: |passage: \""))
        .unwrap()
        .embedder_endpoint;
    let roles = Roles::Prefix { query: "query: ".to_owned(), document: "passage: ".to_owned() };
    assert_eq!(endpoint.unwrap().roles, roles);
    check("model_url = \"http://x/v1\"", &["go together"]);
    check("model_url = \"x\"\nmodel = \"m\"", &["http://"]);
    check("through_nodes = true", &["a model's name"]);
    check("publishers = [\"http://x\"]", &["aggregators"]);
    check("requests_per_minute = 0", &["from 2"]);
    check("owners = \"friends\"", &["\"open\", \"listed\", \"invited\""]);
    check("max_owners = 0", &["max_owners"]);
    check(
        "owners = \"open\"\nallowed_owners = [\"0x0101010101010101010101010101010101010101010101010101010101010101\"]",
        &["listed"],
    );
    check("allowed_owners = [\"me\"]", &[":1", "64 hex"]);
    check("trusted_proxies = [\"home\"]", &[":1", "192.168.1.0/24"]);
    check("own_networks = [\"home\"]", &[":1", "192.168.1.0/24"]);
    check("public_url = \"ftp://x\"", &["public_url"]);
}

#[test]
fn a_relayer_for_others_lists_its_owners_unless_it_is_told_otherwise() {
    use crate::owners::OwnerAdmission::{Invited, Listed, Open};
    for (text, expected) in [
        ("", Open),
        ("http = \"[::1]:8000\"", Open),
        ("http = \"0.0.0.0:8000\"", Listed),
        ("http = \"192.0.2.1:8000\"", Listed),
        ("http = \"192.0.2.1:8000\"\nowners = \"open\"", Open),
        ("public_url = \"https://relayer.example\"", Listed),
        ("trusted_proxies = [\"127.0.0.1\"]", Listed),
        ("owners = \"invited\"", Invited),
    ] {
        assert_eq!(resolved(text).unwrap().owners.owners, expected, "{text}");
    }
}

#[test]
fn flags_go_before_the_file() {
    let flags = Options {
        max_owners: Some(5),
        listen: Some(vec!["/ip4/127.0.0.1/tcp/1".parse().unwrap()]),
        ..Options::default()
    };
    let file = parsed("max_owners = 7\nshards = 10\nlisten = [\"/ip4/127.0.0.1/tcp/2\"]").unwrap();
    let both = flags.clone().or(file);
    assert_eq!((both.max_owners, both.shards, both.listen), (Some(5), Some(10), flags.listen));
}

#[test]
fn all_problems_are_found_with_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        "htpp = \"off\"\n\nembedder = 3\nlisten = [\n  \"nowhere\",\n]\nmax_owners = 5\nmodel = \"m\"\n";
    std::fs::write(folder.path().join(CONFIG_FILE), text).unwrap();
    let problems = Settings::examine(folder.path(), Options::default());
    let lines: Vec<_> = problems.iter().map(ConfigError::line).collect();
    assert_eq!(lines, [Some(1), Some(3), Some(4), None], "{problems:?}");
}
