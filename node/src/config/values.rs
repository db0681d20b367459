//! The types of options that only a node has.

use baton_kit::{
    config::{ANY_URL, OptionEntry, OptionTable as _, OptionType, URL},
    endpoint::listen_address,
};
use baton_mesh::Multiaddr;
use clap::ValueEnum;

use super::{AdminSetting, HeadsSetting, RunFlags};

/// Engine that produces tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineChoice {
    /// This process, with a model's own weights.
    #[default]
    Native,
    /// An OpenAI-compatible server behind this node.
    Proxied,
    /// A test engine without a model; it repeats the message.
    Echo,
}

/// Log level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Failures.
    Error,
    /// Events that may need attention.
    Warn,
    /// The node's activity, in a few lines.
    #[default]
    Info,
    /// Every turn and connection.
    Debug,
    /// Everything.
    Trace,
}

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people, with the time.
    #[value(alias = "text")]
    #[default]
    Pretty,
    /// The same without the time, for logs that add it, such as systemd's journal.
    Compact,
    /// One JSON object a line.
    Json,
}

/// A libp2p address.
pub(super) const ADDRESS: OptionType<Multiaddr> =
    OptionType::new("MULTIADDR", address, |value| value.to_string().into());

/// A URL or `none`.
pub(super) const HEADS: OptionType<HeadsSetting> = OptionType::new("URL|none", heads, |value| match value {
    HeadsSetting::Off => "none".into(),
    HeadsSetting::At(url) => URL.show(url),
});

/// A loopback socket address or `none`.
pub(super) const ADMIN: OptionType<AdminSetting> = OptionType::new("ADDR|none", admin, |value| match value {
    AdminSetting::Off => "none".into(),
    AdminSetting::At(address) => address.to_string().into(),
});

/// The URL of a publisher or aggregator, from a flag of another command.
///
/// # Errors
/// The allowed values, in words.
pub(crate) fn parse_store_url(text: &str) -> Result<String, String> {
    let entry = RunFlags::entry("publisher").expect("it is an option, as a test shows");
    URL.parse(entry, text.trim()).map_err(|_| format!("expected {}", ANY_URL.replace('"', "")))
}

fn address(entry: &OptionEntry, text: &str) -> Result<Multiaddr, String> {
    text.parse::<Multiaddr>().map_err(|error| {
        let (text, allowed) = (text.escape_debug(), entry.allowed_words());
        format!("\"{text}\" is not a libp2p address ({error}); expected {allowed}")
    })
}

fn heads(entry: &OptionEntry, text: &str) -> Result<HeadsSetting, String> {
    if text == "none" { Ok(HeadsSetting::Off) } else { URL.parse(entry, text).map(HeadsSetting::At) }
}

fn admin(entry: &OptionEntry, text: &str) -> Result<AdminSetting, String> {
    if text == "none" {
        return Ok(AdminSetting::Off);
    }
    match listen_address(text) {
        Ok(address) if address.ip().is_loopback() => Ok(AdminSetting::At(address)),
        Ok(_) => Err(format!(
            "expected {}: status and metrics are for this machine only; put a reverse proxy in front to publish them",
            entry.allowed_words()
        )),
        Err(_) => entry.refuse(),
    }
}
