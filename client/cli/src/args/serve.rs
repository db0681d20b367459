//! Arguments of `baton serve`.

use std::{net::SocketAddr, path::PathBuf};

use baton_kit::endpoint::listen_address;
use clap::{Args, Subcommand, builder::BoolishValueParser};
use time::{Date, format_description::well_known::Iso8601};

use super::{AnsweringArguments, MemoryArguments};

/// Longest term of a key in days: ten years.
const MAX_TERM_DAYS: u64 = 3_660;

/// Arguments of `baton serve`.
///
/// The endpoint recognises a program's conversation by its messages. The header x-baton-session, or the field
/// session, selects a session instead: an id, a prefix of one, `last`, or `new`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServeArguments {
    /// The command, instead of serving.
    #[command(subcommand)]
    pub command: Option<ServeCommand>,
    /// Print the link of the chat page with your key, and its QR code at a terminal, instead of serving.
    ///
    /// It is that of the last `baton serve` with this home, which may run elsewhere, such as under systemd.
    #[arg(long)]
    pub link: bool,
    /// Address to listen on; of localhost:PORT and :PORT, this machine alone.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "BATON_SERVE_LISTEN",
        default_value = "127.0.0.1:8788",
        value_parser = listen_address
    )]
    pub listen: SocketAddr,
    /// File with the bearer key that programs must send; created if missing [default: serve.key in the home
    /// folder].
    #[arg(long, value_name = "FILE", env = "BATON_SERVE_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// Serve all programs on this machine, without a key.
    #[arg(long, conflicts_with = "key_file")]
    pub no_key: bool,
    /// Serve HTTPS with this certificate: a PEM file with its chain. Renewed files are read within a minute.
    #[arg(long, value_name = "FILE", env = "BATON_SERVE_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key: a PEM file.
    #[arg(long, value_name = "FILE", env = "BATON_SERVE_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve HTTPS under this name, with a certificate that Let's Encrypt gives and renews; may be repeated. It must
    /// reach this endpoint at port 443 of the name. You agree to its terms of service.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        env = "BATON_SERVE_ACME",
        conflicts_with = "tls_cert"
    )]
    pub acme: Vec<String>,
    /// Another authority: the URL of its ACME directory.
    #[arg(long, value_name = "URL", requires = "acme", hide_short_help = true)]
    pub acme_directory: Option<String>,
    /// A PEM file with the certificate of that authority's own server, if this system does not trust it.
    #[arg(long, value_name = "FILE", requires = "acme", hide_short_help = true)]
    pub acme_root: Option<PathBuf>,
    /// Allow web pages of this origin, such as `https://chat.example`; may be repeated.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', env = "BATON_SERVE_ALLOW_ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Accept this host name in requests, in addition to localhost; may be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "BATON_SERVE_ALLOW_HOST")]
    pub allow_host: Vec<String>,
    /// Has no effect: nodes check answers, and no decoy is sent.
    #[arg(long, hide = true)]
    pub no_decoys: bool,
    #[command(flatten)]
    pub answering: AnsweringArguments,
    #[command(flatten)]
    pub memory: MemoryArguments,
}

/// The commands of `baton serve`.
#[derive(Debug, Subcommand)]
pub(crate) enum ServeCommand {
    /// List and manage keys with names: for the people and programs that share this endpoint.
    ///
    /// Each key sees the conversations of its project alone. A running endpoint learns changes within a second.
    #[command(after_help = KEYS_EXAMPLES)]
    Keys(KeysArguments),
}

/// Arguments of `baton serve keys`.
#[derive(Debug, Args)]
pub(crate) struct KeysArguments {
    /// The command for keys [default: list them with their usage of today].
    #[command(subcommand)]
    pub command: Option<KeysCommand>,
    /// Key to show, with its usage by day.
    pub name: Option<String>,
}

/// The commands of `baton serve keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Add a key, and show it once, with its link and QR code.
    Add {
        /// Its name: letters, digits, hyphens, dots and underscores.
        name: String,
        #[command(flatten)]
        options: KeyOptions,
    },
    /// Change a key; what no option names stays.
    Change {
        /// Its name.
        name: String,
        #[command(flatten)]
        options: KeyOptions,
    },
    /// Remove a key. Its conversations stay, and you see them.
    #[command(alias = "rm")]
    Remove {
        /// Its name.
        name: String,
    },
}

const KEYS_EXAMPLES: &str = "\
Examples:
  baton serve keys                                     all keys
  baton serve keys anna                                one key, by day
  baton serve keys add anna
  baton serve keys add ben --tokens-per-day 50000 --requests-per-hour 60 --expires 90d
  baton serve keys add robot --project house            shares conversations with other keys of the project house
  baton serve keys change ben --tokens-per-day none
  baton serve keys remove ben";

/// Options of a key.
#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct KeyOptions {
    /// Project whose conversations the key sees [default of a new key: its name].
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Recall the memories of its project alone, and remember its exchanges, as `--memory` and
    /// `--memory-write` of the endpoint say [default of a new key: off].
    #[arg(long, value_name = "on|off", value_parser = BoolishValueParser::new())]
    pub memory: Option<bool>,
    /// Most requests in an hour, or `none`.
    #[arg(long, value_name = "NUMBER|none", value_parser = quota)]
    pub requests_per_hour: Option<Quota>,
    /// Most tokens of questions and answers in a day (UTC), or `none`.
    #[arg(long, value_name = "NUMBER|none", value_parser = quota)]
    pub tokens_per_day: Option<Quota>,
    /// When the key ends: after some days (`90d`), at the beginning of a day in UTC (`2027-01-31`), or `never`.
    #[arg(long, value_name = "DAYS|DATE|never", value_parser = term)]
    pub expires: Option<Term>,
}

/// A quota; none is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota(pub Option<u64>);

/// The end of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Term {
    /// After this many days.
    Days(u64),
    /// At this time, in seconds since the Unix epoch.
    At(u64),
    Never,
}

fn quota(text: &str) -> Result<Quota, String> {
    if text == "none" {
        return Ok(Quota(None));
    }
    match text.replace('_', "").parse() {
        Ok(number) if number > 0 => Ok(Quota(Some(number))),
        _ => Err("a number of at least 1, or none for no limit".to_owned()),
    }
}

fn term(text: &str) -> Result<Term, String> {
    if text == "never" {
        return Ok(Term::Never);
    }
    if let Some(days) = text.strip_suffix('d').and_then(|days| days.parse().ok()) {
        return match days {
            1..=MAX_TERM_DAYS => Ok(Term::Days(days)),
            _ => Err(format!("a term is from 1 to {MAX_TERM_DAYS} days")),
        };
    }
    let date = Date::parse(text, &Iso8601::DATE).ok();
    let start = date.and_then(|date| u64::try_from(date.midnight().assume_utc().unix_timestamp()).ok());
    start
        .map(Term::At)
        .ok_or_else(|| "a number of days such as 90d, a date such as 2027-01-31, or never".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_and_terms_are_read_and_others_are_refused_with_the_form() {
        assert_eq!(quota("none"), Ok(Quota(None)));
        assert_eq!(quota("50_000"), Ok(Quota(Some(50_000))));
        for wrong in ["0", "-1", "many", ""] {
            assert!(quota(wrong).unwrap_err().contains("none"), "{wrong}");
        }
        assert_eq!(term("90d"), Ok(Term::Days(90)));
        assert_eq!(term("2026-01-17"), Ok(Term::At(1_768_608_000)));
        assert_eq!(term("never"), Ok(Term::Never));
        for wrong in ["0d", "4000d", "90", "2026-02-30", "1960-01-01", "d", ""] {
            assert!(term(wrong).is_err(), "{wrong}");
        }
    }
}
