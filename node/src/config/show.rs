//! The effective configuration for people: each option with its value and origin. Possible secrets are
//! redacted.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, ValueEnum, parser::ValueSource};
use toml::Value;

use super::{AdminSetting, HeadsSetting, OPTIONS, Settings};

/// Replaces a redacted part.
const REDACTED: &str = "REDACTED";

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// The configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment,
    /// The command line.
    Flag,
}

impl Origin {
    /// `default`, `file`, `env` or `flag`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::Environment => "env",
            Self::Flag => "flag",
        }
    }

    /// The origin in words, for the option `key`.
    #[must_use]
    pub fn describe(&self, key: &str) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::File { path, line } => format!("file {}:{line}", path.display()),
            Self::Environment => format!("environment BATON_NODE_{}", key.to_uppercase()),
            Self::Flag => format!("flag --{}", key.replace('_', "-")),
        }
    }
}

/// Origins of values, by option; a missing option has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<&'static str, Origin>);

impl Origins {
    /// The origins of options on a command line and in its environment.
    #[must_use]
    pub fn of_matches(matches: &ArgMatches) -> Self {
        let source = |key: &str| match matches.try_contains_id(key) {
            Ok(true) => matches.value_source(key),
            _ => None,
        };
        let origin = |key| match source(key) {
            Some(ValueSource::CommandLine) => Some(Origin::Flag),
            Some(ValueSource::EnvVariable) => Some(Origin::Environment),
            _ => None,
        };
        Self(OPTIONS.iter().filter_map(|entry| Some((entry.key, origin(entry.key)?))).collect())
    }

    pub(super) fn of_file(&mut self, path: &Path, lines: &[(&'static str, usize)]) {
        let origin = |line| Origin::File { path: path.to_owned(), line };
        self.0.extend(lines.iter().map(|(key, line)| (*key, origin(*line))));
    }

    /// Overrides these origins with `first`.
    pub(super) fn over(&mut self, first: Self) {
        self.0.extend(first.0);
    }

    /// Sets or removes the origin of one option.
    pub fn set(&mut self, key: &'static str, origin: Option<Origin>) {
        match origin {
            Some(origin) => self.0.insert(key, origin),
            None => self.0.remove(key),
        };
    }

    /// The origin of an option's value.
    #[must_use]
    pub fn of(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or(Origin::Default)
    }
}

/// One option with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionValue {
    /// The option.
    pub key: &'static str,
    /// Its value as in the file; `None` if it is unset.
    pub value: Option<Value>,
}

impl Settings {
    /// Every option with its value, in the order of the file, without secrets.
    #[must_use]
    pub fn shown(&self) -> Vec<OptionValue> {
        OPTIONS.iter().map(|entry| OptionValue { key: entry.key, value: self.value_of(entry.key) }).collect()
    }

    fn value_of(&self, key: &str) -> Option<Value> {
        let resources = &self.resources;
        Some(match key {
            "data_dir" => path(&self.data_dir),
            "listen" => list(&self.listen),
            "external" => list(&self.external),
            "bootstrap" => list(&self.bootstrap),
            "mdns" => self.mdns.into(),
            "discovery" => self.discovery.into(),
            "nat" => self.nat.into(),
            "upnp" => self.upnp.into(),
            "relay" => self.relay.into(),
            "relays" => list(&self.relays),
            "publisher" => urls(&self.publishers),
            "aggregator" => urls(&self.aggregators),
            "publisher_token_file" => path(self.publisher_token_file.as_deref()?),
            "publisher_secret_file" => path(self.publisher_secret_file.as_deref()?),
            "heads" => match &self.heads {
                HeadsSetting::Off => "none".into(),
                HeadsSetting::At(url) => redacted(url).into(),
            },
            "shards" => u32::from(self.shards).into(),
            "model" => self.model.clone().into(),
            "more_models" => list(&self.more_models),
            "model_memory_mb" => self.model_memory_mb.into(),
            "model_idle_minutes" => self.model_idle_minutes.into(),
            "model_dir" => path(&self.model_dir),
            "embedding_model" => self.embedding_model.clone()?.into(),
            "engine" => choice(&self.engine),
            "proxied_url" => redacted(self.proxied_url.as_deref()?).into(),
            "proxied_model" => self.proxied_model.clone()?.into(),
            "proxied_key_file" => path(self.proxied_key_file.as_deref()?),
            "context_tokens" => self.context_tokens.into(),
            "max_output_tokens" => self.max_output_tokens.into(),
            "threads" => self.threads?.into(),
            "kv_mb" => self.kv_mb.into(),
            "slots" => self.slots.into(),
            "queue" => self.queue.into(),
            "turns_per_minute" => self.turns_per_minute.into(),
            "max_epochs" => self.max_epochs.into(),
            "input_price" => number(self.input_price),
            "output_price" => number(self.output_price),
            "max_memory_mb" => resources.max_memory_mb?.into(),
            "max_connections" => resources.max_connections.into(),
            "new_connections_per_second" => resources.new_connections_per_second.into(),
            "max_connections_per_peer" => resources.max_connections_per_peer.into(),
            "max_streams" => resources.max_streams.into(),
            "max_streams_per_peer" => resources.max_streams_per_peer.into(),
            "subnet_turns_per_minute" => self.subnet_turns_per_minute.into(),
            "tokens_per_hour" => number(self.tokens_per_hour),
            "subnet_tokens_per_hour" => number(self.subnet_tokens_per_hour),
            "defence" => self.defence.into(),
            "count_private" => self.count_private.into(),
            "audits" => self.audits.into(),
            "grant_issuers" => list(&self.grant_issuers),
            "grants_required" => self.grants_required.into(),
            "grants_revoked" => list(&self.grants_revoked),
            "cache_mb" => resources.cache_mb.into(),
            "journal_mb" => resources.journal_mb.into(),
            "admin" => match self.admin {
                AdminSetting::Off => "none".into(),
                AdminSetting::At(address) => address.to_string().into(),
            },
            "log" => choice(&self.log),
            "log_format" => choice(&self.log_format),
            "otlp_endpoint" => redacted(self.otlp_endpoint.as_deref()?).into(),
            "json" => self.json.into(),
            "drain_seconds" => self.drain_seconds.into(),
            "echo_delay_ms" => self.echo_delay_ms.into(),
            _ => return None,
        })
    }
}

fn number(value: u64) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn path(path: &Path) -> Value {
    path.display().to_string().into()
}

fn list(items: &[impl ToString]) -> Value {
    Value::Array(items.iter().map(|item| item.to_string().into()).collect())
}

fn urls(urls: &[String]) -> Value {
    Value::Array(urls.iter().map(|url| redacted(url).into()).collect())
}

fn choice(value: &impl ValueEnum) -> Value {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned()).into()
}

/// A URL without its query, in which some services carry a key. (Options refuse names and passwords.)
fn redacted(url: &str) -> String {
    match url.split_once('?') {
        Some((place, _)) => format!("{place}?{REDACTED}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::RunFlags, *};
    use crate::config::file;

    #[test]
    fn every_option_is_shown_and_what_is_shown_is_accepted_as_a_file() {
        let text = "publisher_token_file = \"/t\"\nengine = \"proxied\"\nproxied_url = \"http://h\"\n\
                    proxied_model = \"m\"\nproxied_key_file = \"/k\"\nthreads = 3\nmax_memory_mb = 900\n\
                    otlp_endpoint = \"http://t\"\nembedding_model = \"all-minilm-l6-v2\"";
        let given = file::parse(Path::new("c"), text).unwrap();
        let settings = Settings::resolve(RunFlags::default(), given, None).unwrap();
        let mut written = String::new();
        for OptionValue { key, value } in settings.shown() {
            match value {
                Some(value) => written.push_str(&format!("{key} = {value}\n")),
                None => assert_eq!(key, "publisher_secret_file"),
            }
        }
        let read = file::parse(Path::new("c"), &written).unwrap();
        assert_eq!(Settings::resolve(RunFlags::default(), read, None).unwrap(), settings);
    }

    #[test]
    fn the_query_of_a_url_is_not_shown() {
        let flags =
            RunFlags { publisher: Some(vec!["https://h/p?token=abc".to_owned()]), ..RunFlags::default() };
        let settings = Settings::resolve(flags, RunFlags::default(), None).unwrap();
        let shown = format!("{:?}", settings.shown());
        assert!(!shown.contains("abc") && shown.contains("https://h/p?REDACTED"), "{shown}");
    }
}
