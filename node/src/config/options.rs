//! The one list of options (key, type, default, allowed values) and the parsers of single values.

use std::{net::SocketAddr, num::IntErrorKind};

use baton_mesh::Multiaddr;
use clap::Command;

use super::{AdminSetting, HeadsSetting};

/// Type of an option in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// A string.
    Text,
    /// A whole number in this range, both ends included.
    Number(u64, u64),
    /// `true` or `false`.
    Switch,
    /// An array of strings, with this maximum length.
    List(usize),
    /// A string, or an array of one to this many strings.
    OneOrMore(usize),
}

/// One option. The flag's help text explains it.
#[derive(Clone, Copy, Debug)]
pub struct OptionEntry {
    /// Key in the file. The flag has dashes for underscores; the environment variable has `BATON_NODE_` and
    /// capitals.
    pub key: &'static str,
    /// Type in the file.
    pub kind: OptionKind,
    /// Default as written in the file; empty without a default.
    pub default: &'static str,
    /// Default in words, if it depends on other things; else empty.
    pub default_words: &'static str,
    /// The allowed values, for texts and lists.
    pub allowed: &'static str,
}

/// Maximum addresses in a list; a node record carries no more.
const MAX_ADDRESSES: usize = 16;
/// Maximum bootstrap peers: more would flood the network at start, and the mesh refuses them.
const MAX_BOOTSTRAP: usize = 32;
/// Maximum configured relays: a record has room for a few addresses on each.
const MAX_RELAYS: usize = 4;
/// Maximum publishers, and maximum aggregators: a failing turn may wait for each.
const MAX_STORES: usize = 8;
/// Maximum further models. With the main and the embedding model, they take half of a node record's capacity.
const MAX_MODELS: usize = 14;
/// Maximum issuers of grants: a node has one, or shares a few with other nodes.
const MAX_ISSUERS: usize = 16;
/// Maximum revoked grants; expired ones need no entry.
const MAX_REVOKED: usize = 1024;
/// Longest text of an option: longer than all real paths and URLs.
const MAX_TEXT_BYTES: usize = 4096;

const fn entry(
    key: &'static str,
    kind: OptionKind,
    default: &'static str,
    default_words: &'static str,
    allowed: &'static str,
) -> OptionEntry {
    OptionEntry { key, kind, default, default_words, allowed }
}

const URL: &str = "a URL such as \"http://host:port\" or \"https://host\", without user name or password";
const LISTEN: &str = "addresses such as \"/ip4/0.0.0.0/tcp/4001\" or \"/ip4/0.0.0.0/udp/4001/quic-v1\"";

/// All options of `run` and of the file, in the order of the file. A slot holds a KV cache, and a waiting
/// turn holds up to eight megabytes of request. So the ranges bound both well below a machine's memory.
pub const OPTIONS: &[OptionEntry] = &[
    entry(
        "data_dir",
        OptionKind::Text,
        "",
        "$XDG_DATA_HOME/baton-node or ~/.local/share/baton-node",
        "a folder",
    ),
    entry(
        "listen",
        OptionKind::List(MAX_ADDRESSES),
        "[\"/ip4/0.0.0.0/tcp/4001\", \"/ip4/0.0.0.0/udp/4001/quic-v1\"]",
        "",
        LISTEN,
    ),
    entry(
        "external",
        OptionKind::List(MAX_ADDRESSES),
        "[]",
        "none",
        "addresses such as \"/ip4/203.0.113.7/tcp/4001\"",
    ),
    entry(
        "bootstrap",
        OptionKind::List(MAX_BOOTSTRAP),
        "[]",
        "none",
        "addresses such as \"/ip4/203.0.113.7/tcp/4001/p2p/12D3Koo...\"",
    ),
    entry("mdns", OptionKind::Switch, "true", "", ""),
    entry("discovery", OptionKind::Switch, "true", "", ""),
    entry("nat", OptionKind::Switch, "true", "", ""),
    entry("upnp", OptionKind::Switch, "true", "", ""),
    entry("relay", OptionKind::Switch, "true", "", ""),
    entry(
        "relays",
        OptionKind::List(MAX_RELAYS),
        "[]",
        "those found, where this node cannot be reached",
        "addresses such as \"/ip4/203.0.113.7/tcp/4001/p2p/12D3Koo...\"",
    ),
    entry("publisher", OptionKind::OneOrMore(MAX_STORES), "\"http://127.0.0.1:31415\"", "", URL),
    entry("aggregator", OptionKind::OneOrMore(MAX_STORES), "", "the publishers' URLs", URL),
    entry("publisher_token_file", OptionKind::Text, "", "", "a file"),
    entry("publisher_secret_file", OptionKind::Text, "", "", "a file"),
    entry("heads", OptionKind::Text, "", "the first publisher's URL", "a URL as for publisher, or \"none\""),
    entry("shards", OptionKind::Number(4, 2048), "1000", "", ""),
    entry("model", OptionKind::Text, "\"smollm2-135m-instruct\"", "", "a name from `baton-node models list`"),
    entry("more_models", OptionKind::List(MAX_MODELS), "[]", "none", "names from `baton-node models list`"),
    entry("model_memory_mb", OptionKind::Number(0, 16_777_216), "0", "0, which is no bound", ""),
    entry("model_idle_minutes", OptionKind::Number(0, 525_600), "0", "0, which is never", ""),
    entry("model_dir", OptionKind::Text, "", "baton/models in the user's cache folder", "a folder"),
    entry("embedding_model", OptionKind::Text, "", "none", "\"all-minilm-l6-v2\""),
    entry("engine", OptionKind::Text, "\"native\"", "", "\"native\", \"proxied\" or \"echo\""),
    entry("proxied_url", OptionKind::Text, "", "", URL),
    entry("proxied_model", OptionKind::Text, "", "", "a model's name"),
    entry("proxied_key_file", OptionKind::Text, "", "", "a file"),
    entry(
        "context_tokens",
        OptionKind::Number(256, 1_048_576),
        "4096",
        "4096, or the model's own if that is less",
        "",
    ),
    entry("max_output_tokens", OptionKind::Number(16, 32 * 1024), "2048", "", ""),
    entry("threads", OptionKind::Number(1, 1024), "", "one for each core", ""),
    entry("kv_mb", OptionKind::Number(16, 16_777_216), "1024", "", ""),
    entry("slots", OptionKind::Number(1, 256), "8", "", ""),
    entry("queue", OptionKind::Number(0, 1024), "16", "", ""),
    entry("turns_per_minute", OptionKind::Number(1, 1_000_000), "120", "", ""),
    entry("subnet_turns_per_minute", OptionKind::Number(1, 1_000_000), "600", "", ""),
    entry("tokens_per_hour", OptionKind::Number(0, 1_000_000_000_000), "200000", "", ""),
    entry("subnet_tokens_per_hour", OptionKind::Number(0, 1_000_000_000_000), "1000000", "", ""),
    entry("defence", OptionKind::Switch, "true", "", ""),
    entry("count_private", OptionKind::Switch, "false", "", ""),
    entry("audits", OptionKind::Switch, "false", "", ""),
    entry("grant_issuers", OptionKind::List(MAX_ISSUERS), "[]", "none", "public keys of issuers in hex"),
    entry("grants_required", OptionKind::Switch, "false", "", ""),
    entry("grants_revoked", OptionKind::List(MAX_REVOKED), "[]", "none", "serials of grants in hex"),
    entry("max_epochs", OptionKind::Number(0, 53), "53", "", ""),
    entry("input_price", OptionKind::Number(0, 1_000_000_000_000), "0", "", ""),
    entry("output_price", OptionKind::Number(0, 1_000_000_000_000), "0", "", ""),
    entry("max_memory_mb", OptionKind::Number(64, 16_777_216), "", "nine tenths of the machine's", ""),
    entry("max_connections", OptionKind::Number(8, 65_536), "512", "", ""),
    entry("new_connections_per_second", OptionKind::Number(4, 65_536), "100", "", ""),
    entry("max_connections_per_peer", OptionKind::Number(2, 256), "4", "", ""),
    entry("max_streams", OptionKind::Number(1, 65_536), "512", "", ""),
    entry("max_streams_per_peer", OptionKind::Number(1, 4096), "64", "", ""),
    entry("cache_mb", OptionKind::Number(0, 65_536), "64", "", ""),
    entry("journal_mb", OptionKind::Number(16, 1_048_576), "512", "", ""),
    entry(
        "admin",
        OptionKind::Text,
        "\"127.0.0.1:9464\"",
        "",
        "a loopback address such as \"127.0.0.1:9464\" or \"[::1]:9464\", or \"none\"",
    ),
    entry("log", OptionKind::Text, "\"info\"", "", "\"error\", \"warn\", \"info\", \"debug\" or \"trace\""),
    entry("log_format", OptionKind::Text, "\"pretty\"", "", "\"pretty\", \"compact\" or \"json\""),
    entry("otlp_endpoint", OptionKind::Text, "", "none", URL),
    entry("json", OptionKind::Switch, "false", "", ""),
    entry("drain_seconds", OptionKind::Number(0, 3600), "30", "", ""),
    entry("echo_delay_ms", OptionKind::Number(0, 60_000), "0", "", ""),
];

/// Options for tests only; neither the file nor the help has them.
#[cfg(test)]
pub(super) const HIDDEN: &[&str] = &["pause_at", "clock_offset"];

impl OptionEntry {
    /// The allowed values, in words.
    #[must_use]
    pub fn allowed_words(&self) -> String {
        match self.kind {
            OptionKind::Text => self.allowed.to_owned(),
            OptionKind::Number(least, most) => format!("a whole number from {least} to {most}"),
            OptionKind::Switch => "true or false".to_owned(),
            OptionKind::List(most) => format!("a list of at most {most} {}", self.allowed),
            OptionKind::OneOrMore(most) => format!("{}, or a list of at most {most} such", self.allowed),
        }
    }
}

/// The entry of a key.
#[must_use]
pub fn find(key: &str) -> Option<&'static OptionEntry> {
    OPTIONS.iter().find(|entry| entry.key == key)
}

/// Adds each default to its option's help, so that help and file cannot differ.
#[must_use]
pub fn describe_defaults(command: Command) -> Command {
    OPTIONS.iter().fold(command, |command, entry| {
        let words = if entry.default_words.is_empty() { entry.default } else { entry.default_words };
        command.mut_arg(entry.key, |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            if words.is_empty() {
                return arg;
            }
            arg.help(format!("{help} [default: {}]", words.replace(['"', '[', ']'], "")))
        })
    })
}

fn refused<T>(key: &str) -> Result<T, String> {
    let allowed = find(key).map(OptionEntry::allowed_words).unwrap_or_default();
    Err(format!("expected {allowed}"))
}

/// A whole number in the range of its option.
pub(super) fn number<T: TryFrom<u64>>(key: &str, text: &str) -> Result<T, String> {
    let Some(OptionEntry { kind: OptionKind::Number(least, most), .. }) = find(key) else {
        return refused(key);
    };
    let parsed = match text.parse::<u64>() {
        Ok(parsed) => parsed,
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => u64::MAX,
        Err(_) => return refused(key),
    };
    if !(*least..=*most).contains(&parsed) {
        return refused(key);
    }
    T::try_from(parsed).or_else(|_| refused(key))
}

/// A non-empty text.
pub(super) fn text(key: &str, text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
        return refused(key);
    }
    Ok(text.to_owned())
}

/// An HTTP URL. Refuses a user name or password, because URLs end up in logs.
pub(super) fn url(key: &str, text: &str) -> Result<String, String> {
    match reqwest::Url::parse(text) {
        Ok(url)
            if matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.username().is_empty()
                && url.password().is_none()
                && text.len() <= MAX_TEXT_BYTES =>
        {
            Ok(text.to_owned())
        }
        _ => refused(key),
    }
}

/// A URL or `none`.
pub(super) fn heads(text: &str) -> Result<HeadsSetting, String> {
    if text == "none" { Ok(HeadsSetting::Off) } else { url("heads", text).map(HeadsSetting::At) }
}

/// A loopback socket address or `none`.
///
/// # Errors
/// The allowed values, in words.
pub fn admin(text: &str) -> Result<AdminSetting, String> {
    if text == "none" {
        return Ok(AdminSetting::Off);
    }
    match text.replace("localhost:", "127.0.0.1:").parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(AdminSetting::At(address)),
        Ok(_) => Err(format!(
            "{}: status and metrics are for this machine only; put a reverse proxy in front to publish them",
            refused::<()>("admin").expect_err("always an error")
        )),
        Err(_) => refused("admin"),
    }
}

/// A key or a serial in hex.
pub(super) fn id<T: std::str::FromStr>(key: &str, text: &str) -> Result<T, String> {
    text.parse::<T>().or_else(|_| refused(key))
}

/// A libp2p address.
pub(super) fn address(key: &str, text: &str) -> Result<Multiaddr, String> {
    text.parse::<Multiaddr>().map_err(|error| {
        let allowed = find(key).map(OptionEntry::allowed_words).unwrap_or_default();
        format!("\"{}\" is not a libp2p address ({error}); expected {allowed}", text.escape_debug())
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{DEFAULT_ADMIN, DEFAULT_MODEL, DEFAULT_STORE_URL},
        *,
    };

    #[test]
    fn defaults_in_words_are_the_constants_in_code() {
        let quoted = |key: &str| find(key).unwrap().default.trim_matches('"').to_owned();
        assert_eq!(quoted("publisher"), DEFAULT_STORE_URL);
        assert_eq!(quoted("admin"), DEFAULT_ADMIN);
        assert_eq!(quoted("model"), DEFAULT_MODEL);
    }

    #[test]
    fn numbers_hold_their_range() {
        assert_eq!(number::<u32>("slots", "256"), Ok(256));
        for text in ["0", "257", "-1", "1.5", "", "four", "99999999999999999999999"] {
            assert_eq!(
                number::<u32>("slots", text).unwrap_err(),
                "expected a whole number from 1 to 256",
                "{text}"
            );
        }
    }

    #[test]
    fn the_admin_port_is_loopback_or_nothing() {
        assert_eq!(admin("none"), Ok(AdminSetting::Off));
        assert!(admin("127.0.0.1:0").is_ok() && admin("[::1]:1").is_ok() && admin("localhost:9464").is_ok());
        for text in ["0.0.0.0:9464", "192.168.0.1:1", "[::]:1", "9464", "example.org:1", ""] {
            assert!(admin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn urls_carry_no_secrets_and_name_a_host() {
        assert!(url("publisher", "http://127.0.0.1:31415").is_ok());
        for text in ["", "host:1", "ftp://h", "http://u:p@h", "http://u@h", "file:///x", "http://"] {
            let refused = url("publisher", text).unwrap_err();
            assert!(refused.contains("http://host:port") && !refused.contains("u:p"), "{refused}");
        }
    }
}
