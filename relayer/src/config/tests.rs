use std::path::Path;

use baton_kit::config::parse;
use clap::Args as _;

use super::*;

fn parsed(text: &str) -> Result<Options, ConfigError> {
    parse(Path::new("c.toml"), text)
}

fn resolved(text: &str) -> Result<Settings, ConfigError> {
    Settings::resolve(Path::new("/d"), parsed(text)?)
}

#[test]
fn the_commented_file_says_the_defaults_and_changes_nothing() {
    assert_eq!(parsed(TEMPLATE).unwrap(), Options::default());
    let uncommented: String = TEMPLATE
        .lines()
        .filter_map(|line| line.strip_prefix('#').filter(|line| !line.starts_with([' ', '#', '-'])))
        .filter(|line| line.contains(" = ") && !line.contains("\"\""))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(uncommented.lines().count() > 12, "{uncommented}");
    let settings = |text: &str| Settings { options: Options::default(), ..resolved(text).unwrap() };
    assert_eq!(settings(&uncommented), settings(""));
}

#[test]
fn every_key_stands_in_the_commented_file() {
    let command = Options::augment_args(clap::Command::new("run"));
    for argument in command.get_arguments() {
        let key = argument.get_id().as_str();
        assert!(TEMPLATE.contains(&format!("\n#{key} = ")), "{key}");
    }
}

#[test]
fn errors_name_the_line_and_the_allowed_values() {
    let check = |text: &str, parts: &[&str]| {
        let error = resolved(text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
    };
    check("\nhtpp = \"off\"", &["line 2", "htpp", "http"]);
    check("http = \"here\"", &["line 1", "localhost:8000 or :8000", "off"]);
    assert_eq!(
        resolved("http = \":8001\"").unwrap().http,
        resolved("http = \"localhost:8001\"").unwrap().http
    );
    check("storage = \"oracle\"", &["embedded, postgres"]);
    check("embedder = 3", &["line 1"]);
    check("storage = \"postgres\"", &["postgres_url_file"]);
    check("postgres_url_file = \"x\"", &["storage"]);
    check("embedder = \"endpoint\"", &["embedder_url"]);
    check("embedder_url = \"http://x/v1\"", &["endpoint"]);
    let endpoint = "embedder = \"endpoint\"\nembedder_url = \"http://x/v1\"\nembedder_model = \"m\"\nembedder_dimensions = 8\n";
    assert!(resolved(endpoint).is_ok());
    check(&format!("{endpoint}embedder_roles = \"prefix\""), &["embedder_query_role"]);
    check(&format!("{endpoint}embedder_query_role = \"q\""), &["embedder_roles"]);
    check("model_url = \"http://x/v1\"", &["go together"]);
    check("model_url = \"x\"\nmodel = \"m\"", &["http://"]);
    check("through_nodes = true", &["through_nodes_model", "baton nodes"]);
    check("through_nodes_model = \"m\"", &["through_nodes = true"]);
    check("publishers = [\"http://x\"]", &["aggregators"]);
    check("requests_per_minute = 0", &["at least 1"]);
    check("owners = \"friends\"", &["open, listed, invited"]);
    check("max_owners = 0", &["max_owners"]);
    check(
        "owners = \"open\"\nallowed_owners = [\"0x0101010101010101010101010101010101010101010101010101010101010101\"]",
        &["listed"],
    );
    check("allowed_owners = [\"me\"]", &["line 1"]);
    check("max_large_bodies = 300", &["max_large_bodies"]);
    check("trusted_proxies = [\"10.0.0.1\"]", &["client_address_header"]);
    check("client_address_header = \"x-real-ip\"", &["trusted_proxies", "127.0.0.1"]);
    check("client_address_header = \"Forwarded\"\ntrusted_proxies = [\"::1\"]", &["x-forwarded-for"]);
    check("client_address_header = \"a b\"\ntrusted_proxies = [\"::1\"]", &["x-real-ip"]);
    check("own_networks = [\"home\"]", &["line 1", "192.168.1.0/24"]);
    check("public_url = \"ftp://x\"", &["public_url"]);
}

#[test]
fn a_relayer_for_others_lists_its_owners_unless_it_is_told_otherwise() {
    use crate::owners::OwnerAdmission::{Invited, Listed, Open};
    for (text, expected) in [
        ("", Open),
        ("http = \"off\"", Open),
        ("http = \"[::1]:8000\"", Open),
        ("http = \"0.0.0.0:8000\"", Listed),
        ("http = \"192.0.2.1:8000\"", Listed),
        ("http = \"192.0.2.1:8000\"\nowners = \"open\"", Open),
        ("public_url = \"https://relayer.example\"", Listed),
        ("client_address_header = \"x-forwarded-for\"\ntrusted_proxies = [\"127.0.0.1\"]", Listed),
        ("owners = \"invited\"", Invited),
    ] {
        assert_eq!(resolved(text).unwrap().owners.owners, expected, "{text}");
    }
}

#[test]
fn flags_go_before_the_file() {
    let flags = Options {
        max_items: Some(5),
        listen: vec!["/ip4/127.0.0.1/tcp/1".parse().unwrap()],
        ..Options::default()
    };
    let file = parsed("max_items = 7\nshards = 10\nlisten = [\"/ip4/127.0.0.1/tcp/2\"]").unwrap();
    let both = flags.clone().or(file);
    assert_eq!((both.max_items, both.shards, both.listen), (Some(5), Some(10), flags.listen));
}

#[test]
fn a_named_file_must_be_there() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Settings::load(folder.path(), None, Options::default()).is_ok());
    let missing = folder.path().join("x.toml");
    assert!(Settings::load(folder.path(), Some(&missing), Options::default()).is_err());
}

#[test]
fn all_problems_are_found_with_their_lines() {
    let text = "htpp = \"off\"\n\nembedder = 3\nlisten = [\n  \"nowhere\",\n]\nmax_items = 5\nmodel = \"m\"\nthrough_nodes = true\n";
    let (options, problems) = examine::file(Path::new("c.toml"), text);
    let lines: Vec<_> = problems.iter().map(|problem| problem.line()).collect();
    assert_eq!(lines.len(), 3, "{problems:?}");
    assert!(lines.contains(&Some(1)) && lines.contains(&Some(3)), "{lines:?}");
    assert_eq!(options.max_items, Some(5), "the rest is read");
    let conflicts = Settings::conflicts(&options);
    assert_eq!(conflicts.len(), 2, "{conflicts:?}");
    assert!(examine::file(Path::new("c.toml"), TEMPLATE).1.is_empty());
}

#[test]
fn a_file_that_cannot_be_read_is_one_problem() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("x.toml");
    assert_eq!(Settings::examine(folder.path(), Some(&missing), Options::default()).len(), 1);
    assert!(Settings::examine(folder.path(), None, Options::default()).is_empty());
}
