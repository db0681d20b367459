//! Merges flags, environment and settings file: the only module of this crate that reads the environment.

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use baton_client::{
    ClientConfig, ClientError, DEFAULT_CLOSED_EPOCHS, DEFAULT_EPOCH, DEFAULT_MAX_PRICE, DEFAULT_OPEN_EPOCHS,
    MAX_EPOCHS, MAX_HEAD_INDEXES, Multiaddr, NamedIndex, QuotaHolder, Relayer, TurnInput,
    home_needs_passphrase,
};
use baton_walrus_client::{HttpStore, HttpStoreBuilder, ShardCount, TokenFile, TokenFileError};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{Failure, args::Arguments};

/// The embedded store's usual address.
const DEFAULT_STORE: &str = "http://127.0.0.1:31415";
/// Walrus's mainnet and testnet.
const DEFAULT_SHARDS: u16 = 1000;
/// Largest settings file that is read.
const MAX_CONFIG_BYTES: u64 = 64 * 1024;

/// Environment variables beside the flags' own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`.
    pub config: Option<PathBuf>,
    /// `XDG_DATA_HOME`.
    pub data: Option<PathBuf>,
    /// `NO_COLOR` is set and not empty.
    pub no_color: bool,
    /// `BATON_LOG`: a filter for diagnostics on standard error.
    pub log: Option<String>,
    /// `TERM` names a terminal that only prints.
    pub dumb: bool,
}

impl Environment {
    /// Reads it.
    pub(crate) fn read() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            home: path("HOME"),
            config: path("XDG_CONFIG_HOME"),
            data: path("XDG_DATA_HOME"),
            no_color: path("NO_COLOR").is_some(),
            log: std::env::var("BATON_LOG").ok(),
            dumb: std::env::var("TERM").is_ok_and(|term| term == "dumb"),
        }
    }

    fn config_file(&self) -> Option<PathBuf> {
        let folder = self.config.clone().or_else(|| Some(self.home.as_ref()?.join(".config")))?;
        Some(folder.join("baton/config.toml"))
    }

    fn data_folder(&self) -> Option<PathBuf> {
        let folder = self.data.clone().or_else(|| Some(self.home.as_ref()?.join(".local/share")))?;
        Some(folder.join("baton"))
    }
}

/// The settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    home: Option<PathBuf>,
    node: Vec<String>,
    publisher: Urls,
    aggregator: Urls,
    publisher_token_file: Option<PathBuf>,
    publisher_secret_file: Option<PathBuf>,
    heads: Urls,
    shards: Option<u16>,
    mdns: bool,
    open_epochs: Option<u32>,
    closed_epochs: Option<u32>,
    epoch_hours: Option<u32>,
    renew: Option<bool>,
    dht: Option<bool>,
    max_price: Option<u64>,
    model: Option<String>,
    system: Option<String>,
    plain: bool,
    relayer: Option<String>,
    relayer_url: Option<String>,
    account: Option<PathBuf>,
}

/// One URL, or a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Urls {
    One(String),
    Several(Vec<String>),
}

impl Default for Urls {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

/// The URLs of the flags, or else the file's, or else the default.
fn urls(flags: &[String], file: Urls, default: &[String]) -> Vec<String> {
    let file = match file {
        Urls::One(url) => vec![url],
        Urls::Several(urls) => urls,
    };
    let given = [flags, &file, default].into_iter().find(|urls| !urls.is_empty());
    given.unwrap_or_default().to_vec()
}

/// Settings of one call.
#[derive(Debug)]
pub(crate) struct Settings {
    home: PathBuf,
    nodes: Vec<Multiaddr>,
    publishers: Vec<String>,
    aggregators: Vec<String>,
    /// Head indexes beside or in place of the first publisher's.
    heads: Vec<String>,
    publisher_token: Option<TokenFile>,
    shards: ShardCount,
    mdns: bool,
    open_epochs: u32,
    closed_epochs: u32,
    epoch: Duration,
    renew: bool,
    dht: bool,
    max_price: u64,
    /// Seconds of a deliberate clock error.
    clock_offset: Option<i64>,
    passphrase: Option<Zeroizing<String>>,
    /// Default model.
    pub model: Option<String>,
    /// Default system text of new sessions.
    pub system: Option<String>,
    /// No full-screen view: not wanted, not possible, or in conflict with diagnostics on the same terminal.
    pub plain: bool,
    /// Default relayer.
    pub relayer: Option<String>,
    /// The URL of the relayer's HTTP endpoint.
    pub relayer_url: Option<String>,
    /// The account to act for, if not the key's own.
    pub owner: Option<String>,
    /// The named delegation file.
    pub delegation: Option<PathBuf>,
    account: PathBuf,
}

impl Settings {
    /// The input of every command's turns: with the requested model, or else the settings' one. Merges other
    /// devices' turns first.
    pub(crate) fn turn(&self, model: Option<String>, allow_echo: bool) -> TurnInput {
        let mut turn = TurnInput::new(Vec::new());
        turn.model = model.or_else(|| self.model.clone());
        turn.allow_echo = allow_echo;
        turn.reconcile = true;
        turn
    }

    /// Merges the three sources.
    pub(crate) fn gather(arguments: &Arguments, environment: &Environment) -> Result<Self, Failure> {
        let file = read_file(arguments.config.as_deref(), environment)?;
        let home = arguments.home.clone().or(file.home).or_else(|| environment.data_folder());
        let home =
            home.ok_or_else(|| Failure::Usage("there is no home folder; give one with --home".to_owned()))?;
        let nodes = if arguments.node.is_empty() { &file.node } else { &arguments.node };
        let nodes: Vec<Multiaddr> =
            nodes.iter().map(|text| address("--node", text)).collect::<Result<_, _>>()?;
        // Without a bootstrap node, the client can search only the local network.
        let mdns = arguments.mdns || file.mdns || nodes.is_empty();
        let publishers = urls(&arguments.publisher, file.publisher, &[DEFAULT_STORE.to_owned()]);
        let aggregators = urls(&arguments.aggregator, file.aggregator, &publishers);
        // A flag for either of the two overrides the file's setting for the other.
        let given = token_file(&arguments.publisher_token_file, &arguments.publisher_secret_file)?;
        let publisher_token = match given {
            Some(given) => Some(given),
            None => token_file(&file.publisher_token_file, &file.publisher_secret_file)?,
        };
        Ok(Self {
            open_epochs: epochs(
                "--open-epochs",
                arguments.open_epochs.or(file.open_epochs),
                DEFAULT_OPEN_EPOCHS,
            )?,
            closed_epochs: epochs(
                "--closed-epochs",
                arguments.closed_epochs.or(file.closed_epochs),
                DEFAULT_CLOSED_EPOCHS,
            )?,
            epoch: epoch(arguments.epoch_hours.or(file.epoch_hours))?,
            renew: !arguments.no_renew && file.renew.unwrap_or(true),
            dht: !arguments.no_dht && file.dht.unwrap_or(true),
            max_price: arguments.max_price.or(file.max_price).unwrap_or(DEFAULT_MAX_PRICE),
            clock_offset: arguments.clock_offset,
            passphrase: passphrase(arguments.passphrase_file.as_deref(), &home)?,
            account: arguments.account.clone().or(file.account).unwrap_or_else(|| home.join("account.key")),
            relayer_url: arguments.relayer_url.clone().or(file.relayer_url),
            owner: arguments.owner.clone(),
            delegation: arguments.delegation.clone(),
            home,
            nodes,
            mdns,
            publishers,
            aggregators,
            heads: heads(&arguments.heads, file.heads)?,
            publisher_token,
            shards: shards(arguments.shards.or(file.shards).unwrap_or(DEFAULT_SHARDS))?,
            model: file.model,
            system: file.system,
            plain: file.plain
                || environment.dumb
                || (environment.log.is_some() && std::io::stderr().is_terminal()),
            relayer: file.relayer,
        })
    }

    /// The file of the account key.
    pub(crate) fn account_file(&self) -> PathBuf {
        self.account.clone()
    }

    /// The home folder.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// The passphrase of the device key, if there is one.
    pub(crate) fn passphrase(&self) -> Option<&str> {
        self.passphrase.as_deref().map(String::as_str)
    }

    /// Shards of the store's network.
    pub(crate) fn shards(&self) -> ShardCount {
        self.shards
    }

    /// Length of the store's epochs.
    pub(crate) fn epoch(&self) -> Duration {
        self.epoch
    }

    /// The aggregators' URLs.
    pub(crate) fn aggregators(&self) -> &[String] {
        &self.aggregators
    }

    /// The stores over HTTP, with the changes of `tune`.
    pub(crate) fn store(
        &self,
        tune: impl FnOnce(HttpStoreBuilder) -> HttpStoreBuilder,
    ) -> Result<HttpStore, Failure> {
        let publishers: Vec<&str> = self.publishers.iter().map(String::as_str).collect();
        let aggregators: Vec<&str> = self.aggregators.iter().map(String::as_str).collect();
        let mut builder = HttpStore::endpoints(&publishers, &aggregators, self.shards);
        if let Some(heads) = self.heads.first() {
            builder = builder.heads(heads);
        }
        if let Some(file) = &self.publisher_token {
            let usage = |error: TokenFileError| Failure::Usage(error.to_string());
            builder = builder.token(file.read().map_err(usage)?);
        }
        tune(builder).build().map_err(|error| Failure::Usage(error.to_string()))
    }

    /// The client's configuration; without the network it connects to no node.
    pub(crate) fn client(&self, network: bool) -> Result<ClientConfig, Failure> {
        let mut config = ClientConfig::with_store(Some(&self.home), self.store(|builder| builder)?);
        config.heads_name = self.heads.first().or(self.publishers.first()).cloned().unwrap_or_default();
        for url in self.heads.iter().skip(1) {
            let index = HttpStore::builder(url, url, self.shards).heads(url).build();
            let index = index.map_err(|error| Failure::Usage(format!("--heads {url}: {error}")))?;
            config.more_heads.push(NamedIndex { name: url.clone(), index: Arc::new(index) });
        }
        config.heads_in_dht = network && self.dht;
        config.passphrase.clone_from(&self.passphrase);
        config.quota = QuotaHolder::load(&self.home, self.passphrase())?.map(Arc::new);
        config.storage.open_epochs = self.open_epochs;
        config.storage.closed_epochs = self.closed_epochs;
        config.epoch = self.epoch;
        config.max_price = self.max_price;
        if let Some(seconds) = self.clock_offset {
            config.shift_clocks(seconds);
        }
        // Commands without the network do not renew.
        config.renew = self.renew && network;
        if network {
            config.bootstrap.clone_from(&self.nodes);
            config.mdns = self.mdns;
        }
        Ok(config)
    }
}

/// The URLs of the head indexes, each once; empty for the first publisher's.
fn heads(flags: &[String], file: Urls) -> Result<Vec<String>, Failure> {
    let mut named: Vec<String> = Vec::new();
    for url in urls(flags, file, &[]) {
        if !named.contains(&url) {
            named.push(url);
        }
    }
    if named.len() > MAX_HEAD_INDEXES {
        let many = named.len();
        return Err(Failure::Usage(format!("--heads names {many} indexes; at most {MAX_HEAD_INDEXES}")));
    }
    Ok(named)
}

fn read_file(named: Option<&Path>, environment: &Environment) -> Result<File, Failure> {
    let path = named.map(Path::to_owned).or_else(|| environment.config_file());
    let Some(path) = path else { return Ok(File::default()) };
    let text = match read_bounded(&path, MAX_CONFIG_BYTES) {
        Ok(text) => text,
        // Only a named file must exist.
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(File::default());
        }
        Err(source) => return Err(ClientError::File { action: "read", path, source }.into()),
    };
    toml::from_str(&text)
        .map_err(|error| Failure::Usage(format!("the settings file {}: {}", path.display(), error.message())))
}

/// Reads a text file of at most `limit` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> std::io::Result<Zeroizing<String>> {
    use std::io::Read as _;
    let mut text = Zeroizing::new(String::new());
    let read = std::fs::File::open(path)?.take(limit + 1).read_to_string(&mut text)?;
    if read as u64 > limit {
        return Err(std::io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(text)
}

fn passphrase(file: Option<&Path>, home: &Path) -> Result<Option<Zeroizing<String>>, Failure> {
    if let Some(path) = file {
        return passphrase_file(path).map(Some);
    }
    if home_needs_passphrase(home)? && std::io::stdin().is_terminal() {
        return Ok(Some(Zeroizing::new(rpassword::prompt_password("Passphrase of the device key: ")?)));
    }
    Ok(None)
}

/// The passphrase in a file: its first line.
pub(crate) fn passphrase_file(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = read_bounded(path, 4096).map_err(|source| ClientError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(Failure::Usage(format!("the passphrase file {} is empty", path.display())));
    }
    Ok(Zeroizing::new(line.to_owned()))
}

fn epochs(flag: &str, given: Option<u32>, default: u32) -> Result<u32, Failure> {
    match given.unwrap_or(default) {
        epochs @ 1..=MAX_EPOCHS => Ok(epochs),
        epochs => Err(Failure::Usage(format!("{flag} {epochs}: it is from 1 to {MAX_EPOCHS}"))),
    }
}

/// The file of the publishers' token.
fn token_file(token: &Option<PathBuf>, secret: &Option<PathBuf>) -> Result<Option<TokenFile>, Failure> {
    match (token, secret) {
        (Some(_), Some(_)) => Err(Failure::Usage(
            "publisher_token_file and publisher_secret_file exclude each other".to_owned(),
        )),
        (Some(path), None) => Ok(Some(TokenFile::Bearer(path.clone()))),
        (None, Some(path)) => Ok(Some(TokenFile::Secret(path.clone()))),
        (None, None) => Ok(None),
    }
}

fn shards(count: u16) -> Result<ShardCount, Failure> {
    ShardCount::new(count).map_err(|error| Failure::Usage(error.to_string()))
}

fn epoch(hours: Option<u32>) -> Result<Duration, Failure> {
    match hours {
        None => Ok(DEFAULT_EPOCH),
        Some(0) => Err(Failure::Usage("--epoch-hours 0: it is at least 1".to_owned())),
        Some(hours) => Ok(Duration::from_secs(u64::from(hours) * 3600)),
    }
}

fn address(flag: &str, text: &str) -> Result<Multiaddr, Failure> {
    text.parse().map_err(|error| {
        Failure::Usage(format!(
            "{flag} {text}: {error}; an address looks like /ip4/192.0.2.1/tcp/4001/p2p/ID"
        ))
    })
}

/// A relayer from its address, which must contain its identity.
pub(crate) fn relayer(text: &str) -> Result<Relayer, Failure> {
    let mut addr = address("--relayer", text)?;
    let peer = addr.to_string().rsplit_once("/p2p/").map(|(_, id)| id.to_owned());
    let node = peer
        .and_then(|id| id.parse::<baton_mesh::PeerId>().ok())
        .and_then(|peer| baton_mesh::node_id_of(&peer))
        .ok_or_else(|| Failure::Usage("--relayer needs an address that ends with /p2p/ID".to_owned()))?;
    addr.pop();
    Ok(Relayer { node, addrs: vec![addr] })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn gather(folder: &Path, file: &str, flags: &[&str]) -> Result<Settings, Failure> {
        let path = folder.join("config.toml");
        std::fs::write(&path, file).unwrap();
        let config = path.display().to_string();
        let arguments = Arguments::parse_from([&["baton", "--config", &config], flags, &["nodes"]].concat());
        let environment = Environment { home: Some(folder.to_owned()), ..Environment::default() };
        Settings::gather(&arguments, &environment)
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            gather(folder.path(), "publisher = 'http://file'\nshards = 10", &["--shards", "20"]).unwrap();
        assert_eq!(
            (settings.publishers.as_slice(), settings.shards.get()),
            (&["http://file".to_owned()][..], 20)
        );
        assert_eq!(settings.aggregators, ["http://file"]);
        assert_eq!(settings.home, folder.path().join(".local/share/baton"));
        let defaults = gather(folder.path(), "", &[]).unwrap();
        assert_eq!((defaults.publishers[0].as_str(), defaults.shards.get()), (DEFAULT_STORE, 1000));
    }

    #[test]
    fn several_stores_come_from_a_list_or_repeated_flags() {
        let folder = tempfile::tempdir().unwrap();
        let file = "publisher = ['http://a', 'http://b']\naggregator = 'http://c'";
        let settings = gather(folder.path(), file, &[]).unwrap();
        assert_eq!((settings.publishers.len(), settings.aggregators), (2, vec!["http://c".to_owned()]));
        let flags = ["--publisher", "http://d", "--publisher", "http://e,http://f"];
        let settings = gather(folder.path(), file, &flags).unwrap();
        assert_eq!(settings.publishers, ["http://d", "http://e", "http://f"]);
        assert!(settings.client(false).is_ok());
        let refused = gather(folder.path(), "publisher = 'ftp://a'", &[]).unwrap().client(false);
        assert!(matches!(refused, Err(Failure::Usage(_))));
    }

    #[test]
    fn several_head_indexes_come_from_a_list_or_repeated_flags() {
        let folder = tempfile::tempdir().unwrap();
        let names = |file: &str, flags: &[&str]| {
            let config = gather(folder.path(), file, flags)?.client(false)?;
            let more = config.more_heads.into_iter().map(|more| more.name);
            Ok::<Vec<String>, Failure>(std::iter::once(config.heads_name).chain(more).collect())
        };
        assert_eq!(names("publisher = 'http://a'", &[]).unwrap(), ["http://a"]);
        assert_eq!(names("heads = 'http://b'", &[]).unwrap(), ["http://b"]);
        let file = "heads = ['http://b', 'http://c', 'http://b']";
        assert_eq!(names(file, &[]).unwrap(), ["http://b", "http://c"]);
        let flags = ["--heads", "http://d", "--heads", "http://e,http://f"];
        assert_eq!(names(file, &flags).unwrap(), ["http://d", "http://e", "http://f"]);
        let nine = (0..9).map(|number| format!("'http://{number}'")).collect::<Vec<_>>().join(",");
        assert!(matches!(names(&format!("heads = [{nine}]"), &[]), Err(Failure::Usage(_))));
        assert!(matches!(names("", &["--heads", "http://a", "--heads", "ftp://b"]), Err(Failure::Usage(_))));
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
        assert!(matches!(client(), Err(Failure::Usage(text)) if text.contains("chmod 600")));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(client().is_ok());
        let both = "publisher_token_file = 'a'\npublisher_secret_file = 'b'";
        assert!(matches!(gather(folder.path(), both, &[]), Err(Failure::Usage(_))));
    }

    #[test]
    fn renewal_is_for_those_who_use_the_network_and_can_be_switched_off() {
        let folder = tempfile::tempdir().unwrap();
        let of = |file: &str, flags: &[&str], network: bool| {
            let config = gather(folder.path(), file, flags).unwrap().client(network).unwrap();
            (config.renew, config.epoch.as_secs() / 3600)
        };
        assert_eq!(of("", &[], true), (true, 336));
        assert_eq!(of("", &[], false), (false, 336));
        assert_eq!(of("renew = false\nepoch_hours = 24", &[], true), (false, 24));
        assert_eq!(of("renew = true", &["--no-renew", "--epoch-hours", "1"], true), (false, 1));
        assert!(matches!(gather(folder.path(), "epoch_hours = 0", &[]), Err(Failure::Usage(_))));
    }

    #[test]
    fn epochs_come_from_flags_or_the_file_and_are_what_walrus_sells() {
        let folder = tempfile::tempdir().unwrap();
        let of = |file: &str, flags: &[&str]| {
            let storage = gather(folder.path(), file, flags)?.client(false)?.storage;
            Ok::<_, Failure>((storage.open_epochs, storage.closed_epochs))
        };
        assert_eq!(of("", &[]).unwrap(), (5, 53));
        let both = of("open_epochs = 2\nclosed_epochs = 3", &["--open-epochs", "7"]);
        assert_eq!(both.unwrap(), (7, 3));
        assert!(matches!(of("open_epochs = 0", &[]), Err(Failure::Usage(_))));
        assert!(matches!(of("", &["--closed-epochs", "54"]), Err(Failure::Usage(_))));
    }

    #[test]
    fn the_price_limit_comes_from_the_flag_or_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let of = |file: &str, flags: &[&str]| {
            gather(folder.path(), file, flags).unwrap().client(false).unwrap().max_price
        };
        assert_eq!(of("", &[]), DEFAULT_MAX_PRICE);
        assert_eq!(of("max_price = 7", &[]), 7);
        assert_eq!(of("max_price = 7", &["--max-price", "0"]), 0);
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
    fn the_full_screen_view_can_be_switched_off() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!gather(folder.path(), "", &[]).unwrap().plain);
        assert!(gather(folder.path(), "plain = true", &[]).unwrap().plain);
    }

    #[test]
    fn refuses_unknown_settings_and_bad_addresses() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(gather(folder.path(), "pubisher = 'x'", &[]), Err(Failure::Usage(_))));
        assert!(matches!(gather(folder.path(), "", &["--node", "localhost:4001"]), Err(Failure::Usage(_))));
        assert!(matches!(relayer("/ip4/127.0.0.1/tcp/1"), Err(Failure::Usage(_))));
    }

    #[test]
    fn a_relayer_is_named_by_its_address() {
        let node = baton_keys::SecretSigningKey::generate().node_id();
        let peer = baton_mesh::peer_id_of(node).unwrap();
        let parsed = relayer(&format!("/ip4/127.0.0.1/tcp/1/p2p/{peer}")).unwrap();
        assert_eq!(parsed.node, node);
        assert_eq!(parsed.addrs, ["/ip4/127.0.0.1/tcp/1".parse().unwrap()]);
    }
}
