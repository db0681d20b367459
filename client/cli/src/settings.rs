//! Merges flags, environment and settings file: the only module of this crate that reads the environment.

mod relayer;
mod stores;

use std::{
    collections::HashSet,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use baton_client::{ClientConfig, ClientError, NamedIndex, QuotaHolder, TurnInput, home_needs_passphrase};
use baton_kit::{
    config::{self, ConfigError, ConfigReport, OptionTable as _},
    folders::below,
    prompt,
    stores::{StoreOptions, token_file},
};
use baton_proto::turn::Sampling;
use baton_walrus_client::{HttpStore, ShardCount, TokenFile, http_store::RetryPolicy};
use zeroize::Zeroizing;

use crate::{
    args::{AnsweringArguments, Arguments, Command},
    failure::Failure,
};

use crate::options::ClientOptions;
use relayer::is_url;
pub(crate) use relayer::{ask_identity, named_relayer, relayer_name};

/// Lively, and still on the subject.
const DEFAULT_TEMPERATURE: f32 = 0.7;

/// Environment variables beside the flags' own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`.
    pub config: Option<PathBuf>,
    /// `XDG_DATA_HOME`.
    pub data: Option<PathBuf>,
    /// `BATON_LOG`: a filter for diagnostics on standard error.
    pub log: Option<String>,
    /// Standard input is a terminal, so a person can be asked for the passphrase.
    pub interactive: bool,
}

impl Environment {
    /// Reads it.
    pub(crate) fn read() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            home: path("HOME"),
            config: path("XDG_CONFIG_HOME"),
            data: path("XDG_DATA_HOME"),
            log: std::env::var("BATON_LOG").ok(),
            interactive: prompt::is_interactive(),
        }
    }
}

/// Settings of one call.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The table, with its defaults and those that depend on other settings.
    pub options: ClientOptions,
    home: PathBuf,
    publisher_token: Option<TokenFile>,
    /// The number that the store announced.
    announced: OnceLock<ShardCount>,
    /// Set once a store was silent when it was asked for that number.
    silence: OnceLock<()>,
    /// Seconds of a deliberate clock error.
    clock_offset: Option<i64>,
    passphrase: Option<Zeroizing<String>>,
    /// Whether a session that another process has open may be read.
    pub read_in_use: bool,
}

impl Settings {
    /// The input of every command's turns: with the requested model, or else the settings' one. Merges other
    /// devices' turns first.
    pub(crate) async fn turn(
        &self,
        answering: &AnsweringArguments,
        with_memory: bool,
    ) -> Result<TurnInput, Failure> {
        let mut turn = TurnInput::new(Vec::new());
        turn.route.model = answering.model.model.clone().or_else(|| self.options.model.clone());
        turn.route.allow_echo = answering.model.allow_echo;
        turn.route.reconcile = true;
        turn.route.relayer = named_relayer(self.relayer_of_turns(with_memory)).await?;
        let temperature = answering.temperature.unwrap_or(DEFAULT_TEMPERATURE);
        turn.sampling = Sampling { temperature, ..Sampling::default() };
        if turn.sampling.check().is_err() {
            return Err(Failure::wrong("--temperature is from 0 to 5"));
        }
        turn = turn.by_model();
        turn.max_output_tokens = answering.max_tokens.unwrap_or(turn.max_output_tokens);
        Ok(turn)
    }

    /// Merges the three sources.
    pub(crate) fn gather(arguments: &Arguments, environment: &Environment) -> Result<Self, Failure> {
        let hint = "see all problems of the file: baton config";
        let file = match read_file(arguments.config.as_deref(), environment)? {
            Some((_, report)) => {
                report.into_options().map_err(|error| Failure::usage(error.to_string(), hint))?
            }
            None => ClientOptions::default(),
        };
        let given = arguments.options.clone();
        if file.publisher_token_file.is_some() && file.publisher_secret_file.is_some() {
            return Err(Failure::wrong("publisher_token_file and publisher_secret_file exclude each other"));
        }
        let token = |options: &ClientOptions| {
            token_file(options.publisher_token_file.clone(), options.publisher_secret_file.clone())
        };
        // A flag for either of the two overrides the file's setting for the other.
        let publisher_token = token(&given).or_else(|| token(&file));
        let mut options = given.or(file).or(ClientOptions::defaults());
        let home = options
            .home
            .clone()
            .or_else(|| below(environment.data.clone(), environment.home.clone(), ".local/share", "baton"));
        let home = home.ok_or_else(|| Failure::usage("There is no home folder.", "name one: --home DIR"))?;
        options.discover = options.discover.or(options.mdns);
        // Without a named node, the client can search only the local network, unless that is refused.
        options.mdns = options.mdns.or(Some(options.node().is_empty()));
        options.aggregator = options.aggregator.or_else(|| options.publisher.clone());
        options.heads = Some(unique(options.heads()));
        options.account = options.account.or_else(|| Some(home.join("account.key")));
        // A URL names both of a relayer's addresses, whichever of the two settings has it.
        let url = options.relayer.clone().filter(|text| is_url(text));
        options.relayer_url = options.relayer_url.or(url);
        // A terminal that has diagnostics has no full-screen view.
        let has_log = environment.log.is_some() && io::stderr().is_terminal();
        options.plain = Some(options.plain() || has_log);
        Ok(Self {
            clock_offset: arguments.clock_offset,
            passphrase: passphrase(arguments.passphrase_file.as_deref(), &home, environment)?,
            home,
            publisher_token,
            announced: OnceLock::new(),
            silence: OnceLock::new(),
            read_in_use: !matches!(arguments.command, Some(Command::Chat(_) | Command::Serve(_))),
            options,
        })
    }

    /// The relayer of turns. One that is named for memories alone takes part only in turns with memory.
    pub(crate) fn relayer_of_turns(&self, with_memory: bool) -> Option<&String> {
        let options = &self.options;
        options.relayer.as_ref().or(options.relayer_url.as_ref().filter(|_| with_memory))
    }

    /// The home folder.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// The passphrase of the device key, if there is one.
    pub(crate) fn passphrase(&self) -> Option<&str> {
        self.passphrase.as_deref().map(String::as_str)
    }

    /// Whether the settings name head indexes.
    pub(crate) fn names_indexes(&self) -> bool {
        !self.heads().is_empty()
    }

    /// The URLs of the head indexes. Without the setting, servers of which the first with an index is the index.
    pub(crate) fn indexes(&self) -> Vec<String> {
        if self.names_indexes() { self.options.heads() } else { self.default_indexes() }
    }

    /// The named head indexes: beside or in place of the first publisher's.
    fn heads(&self) -> &[String] {
        self.options.heads.as_deref().unwrap_or_default()
    }

    /// The stores over HTTP, with the named head indexes.
    pub(crate) fn store_options(&self) -> StoreOptions {
        StoreOptions {
            publishers: self.options.publisher(),
            aggregators: self.options.aggregator(),
            heads: self.heads().to_vec(),
            shards: self.options.shards,
            token: self.publisher_token.clone(),
        }
    }

    /// A client of the stores.
    fn store(&self) -> Result<HttpStore, Failure> {
        self.store_options().open(RetryPolicy::default()).map_err(|error| Failure::wrong(error.to_string()))
    }

    /// The client's configuration; without the network it connects to no node.
    pub(crate) fn client(&self, network: bool) -> Result<ClientConfig, Failure> {
        let mut config = ClientConfig::with_store(Some(&self.home), self.store()?);
        config.shards = self.shards();
        match self.heads().first() {
            Some(url) => config.heads_name.clone_from(url),
            None => NamedIndex { name: config.heads_name, index: config.heads } = self.default_index()?,
        }
        for url in self.heads().iter().skip(1) {
            config.more_heads.push(self.index_at(url)?);
        }
        if self.silence.get().is_some() {
            config.timeouts.first_look = stores::LOOK_AFTER_SILENCE;
        }
        let options = &self.options;
        config.heads_in_dht = network && options.dht();
        config.passphrase.clone_from(&self.passphrase);
        config.quota = QuotaHolder::load(&self.home, self.passphrase())?.map(Arc::new);
        config.storage.open_epochs = options.open_epochs();
        config.storage.closed_epochs = options.closed_epochs();
        config.epoch = Duration::from_secs(u64::from(options.epoch_hours()) * 3600);
        config.max_price = options.max_price();
        config.read_in_use = self.read_in_use;
        if let Some(seconds) = self.clock_offset {
            config.shift_clocks(seconds);
        }
        // Commands without the network do not renew.
        config.renew = options.renew() && network;
        if network {
            config.bootstrap = options.node();
            config.mdns = options.mdns();
            config.discover = options.discover();
        }
        Ok(config)
    }
}

/// Each URL once, in their order.
fn unique(mut urls: Vec<String>) -> Vec<String> {
    let mut before = HashSet::new();
    urls.retain(|url| before.insert(url.clone()));
    urls
}

/// The settings file, and whether it is named and so must exist.
pub(crate) fn settings_file(named: Option<&Path>, environment: &Environment) -> Option<(PathBuf, bool)> {
    match named {
        Some(path) => Some((path.to_owned(), true)),
        None => {
            let (set, home) = (environment.config.clone(), environment.home.clone());
            let usual = below(set, home, ".config", "baton/config.toml");
            usual.map(|path| (path, false))
        }
    }
}

/// The settings file and its options, with all problems; none if there is no file.
pub(crate) fn read_file(
    named: Option<&Path>,
    environment: &Environment,
) -> Result<Option<(PathBuf, ConfigReport<ClientOptions>)>, Failure> {
    let Some((path, required)) = settings_file(named, environment) else { return Ok(None) };
    match config::read_text(&path, required) {
        Ok(text) => Ok(text.map(|text| {
            let report = config::examine(&path, &text);
            (path, report)
        })),
        Err(ConfigError::Read { path, source }) => {
            Err(ClientError::File { action: "read", path, source }.into())
        }
        Err(error) => Err(Failure::wrong(error.to_string())),
    }
}

fn passphrase(
    file: Option<&Path>,
    home: &Path,
    environment: &Environment,
) -> Result<Option<Zeroizing<String>>, Failure> {
    if let Some(path) = file {
        return passphrase_file(path).map(Some);
    }
    if environment.interactive && home_needs_passphrase(home)? {
        return Ok(prompt::secret("Passphrase of the device key: ")?);
    }
    Ok(None)
}

/// The passphrase in a file: its first line.
pub(crate) fn passphrase_file(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let read = prompt::secret_file(path);
    Ok(read.map_err(|source| ClientError::File { action: "read", path: path.to_owned(), source })?)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn gather(folder: &Path, file: &str, flags: &[&str]) -> Result<Settings, Failure> {
        let path = folder.join("config.toml");
        std::fs::write(&path, file).unwrap();
        let config = path.display().to_string();
        let given = [&["baton", "--config", &config], flags, &["nodes"]].concat();
        let arguments =
            Arguments::try_parse_from(given).map_err(|error| Failure::wrong(error.to_string()))?;
        let environment = Environment { home: Some(folder.to_owned()), ..Environment::default() };
        Settings::gather(&arguments, &environment)
    }

    type SettingsText = fn(&Settings, &ClientConfig) -> String;

    /// What a client with these settings has of them; an error of usage is empty.
    fn seen(file: &str, flags: &[&str], of: SettingsText) -> String {
        let folder = tempfile::tempdir().unwrap();
        let configured = gather(folder.path(), file, flags).and_then(|settings| {
            let config = settings.client(true)?;
            Ok(of(&settings, &config))
        });
        configured.unwrap_or_else(|error| {
            assert!(error.is_usage(), "{file} {flags:?}: {error:?}");
            String::new()
        })
    }

    fn stores(settings: &Settings, _: &ClientConfig) -> String {
        let (publishers, aggregators) = (settings.options.publisher(), settings.options.aggregator());
        format!("{} | {} | {}", publishers.join(" "), aggregators.join(" "), settings.shards().get())
    }

    fn indexes(_: &Settings, config: &ClientConfig) -> String {
        let more = config.more_heads.iter().map(|more| more.name.clone());
        std::iter::once(config.heads_name.clone()).chain(more).collect::<Vec<_>>().join(" ")
    }

    fn storage(_: &Settings, config: &ClientConfig) -> String {
        let (open, closed) = (config.storage.open_epochs, config.storage.closed_epochs);
        format!("{open} {closed} {} {}", config.epoch.as_secs() / 3600, config.renew)
    }

    fn plain_and_price(settings: &Settings, config: &ClientConfig) -> String {
        format!("{} {}", settings.options.plain(), config.max_price)
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let nine = (0..9).map(|number| format!("'http://{number}'")).collect::<Vec<_>>().join(",");
        let too_many = format!("heads = [{nine}]");
        let cases: [(&str, &[&str], SettingsText, &str); 25] = [
            ("", &[], stores, "http://127.0.0.1:31415 | http://127.0.0.1:31415 | 1000"),
            (
                "publisher = 'http://file'\nshards = 10",
                &["--shards", "20"],
                stores,
                "http://file | http://file | 20",
            ),
            (
                "publisher = ['http://a', 'http://b']\naggregator = 'http://c'",
                &["--publisher", "http://d", "--publisher", "http://e,http://f"],
                stores,
                "http://d http://e http://f | http://c | 1000",
            ),
            ("publisher = 'ftp://a'", &[], stores, ""),
            ("pubisher = 'x'", &[], stores, ""),
            ("", &["--node", "localhost:4001"], stores, ""),
            ("publisher_token_file = 'a'\npublisher_secret_file = 'b'", &[], stores, ""),
            ("publisher = 'http://a'", &[], indexes, "http://a"),
            // Another operator than the publisher's comes first, if one is named.
            (
                "publisher = ['http://a', 'http://a:2', 'http://b']",
                &[],
                indexes,
                "http://b, or else http://a",
            ),
            (
                "publisher = 'http://a'\naggregator = ['http://a/x', 'http://c']",
                &[],
                indexes,
                "http://c, or else http://a",
            ),
            ("heads = 'http://b'", &[], indexes, "http://b"),
            ("heads = ['http://b', 'http://c', 'http://b']", &[], indexes, "http://b http://c"),
            ("heads = 'http://b'", &["--heads", "http://d,http://e"], indexes, "http://d http://e"),
            (&too_many, &[], indexes, ""),
            ("", &["--heads", "http://a", "--heads", "ftp://b"], indexes, ""),
            ("", &[], storage, "5 53 336 true"),
            ("open_epochs = 2\nclosed_epochs = 3", &["--open-epochs", "7"], storage, "7 3 336 true"),
            ("renew = true", &["--renew=false", "--epoch-hours", "1"], storage, "5 53 1 false"),
            ("open_epochs = 0", &[], storage, ""),
            ("", &["--closed-epochs", "54"], storage, ""),
            ("epoch_hours = 0", &[], storage, ""),
            ("", &[], plain_and_price, "false 10000000"),
            ("plain = true\nmax_price = 7", &[], plain_and_price, "true 7"),
            ("max_price = 7", &["--max-price", "0"], plain_and_price, "false 0"),
            ("", &["--max-price", "much"], plain_and_price, ""),
        ];
        for (file, flags, of, expected) in cases {
            assert_eq!(seen(file, flags, of), expected, "{file} {flags:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let settings = gather(folder.path(), "", &[]).unwrap();
        assert_eq!(settings.home, folder.path().join(".local/share/baton"));
        assert!(!settings.client(false).unwrap().renew, "renewal needs the network");
    }

    #[test]
    fn a_token_file_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "abc\n").unwrap();
        let flags = ["--publisher-token-file", path.to_str().unwrap()];
        let client = || gather(folder.path(), "", &flags).unwrap().client(false);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(client().is_err_and(|error| error.message().unwrap().contains("chmod 600")));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(client().is_ok());
    }

    #[test]
    fn both_clocks_can_be_wrong_on_purpose() {
        let folder = tempfile::tempdir().unwrap();
        for (flags, ahead_ms) in [(&[][..], 0), (&["--clock-offset", "-86400"], -86_400_000)] {
            let config = gather(folder.path(), "", flags).unwrap().client(false).unwrap();
            let now_ms = baton_client::system_clock()();
            for read_ms in [(config.clock)(), config.mesh_clock.now_ms()] {
                let off_ms = read_ms.cast_signed() - now_ms.cast_signed() - ahead_ms;
                assert!(off_ms.abs() < 60_000, "{flags:?}: {off_ms} ms");
            }
        }
    }

    #[test]
    fn multicast_is_for_a_client_without_named_nodes_unless_it_is_set() {
        let mdns = |_: &Settings, config: &ClientConfig| config.mdns.to_string();
        let node = "node = ['/ip4/127.0.0.1/tcp/9']";
        // The environment of the tests may switch it off; flags go before it.
        let usual = std::env::var_os("BATON_MDNS").is_none_or(|value| value == "true");
        assert_eq!(seen("", &[], mdns), usual.to_string());
        for (file, flag, expected) in [
            (node, "--mdns", "true"),
            (node, "--mdns=false", "false"),
            ("mdns = true", "--mdns=false", "false"),
        ] {
            assert_eq!(seen(file, &[flag], mdns), expected, "{file} {flag}");
        }
    }
}
