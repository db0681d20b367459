//! The one list of settings: options of every command, environment variables and keys of the settings file.

use std::path::PathBuf;

use baton_client::{MAX_EPOCHS, MAX_HEAD_INDEXES, Multiaddr};
use baton_kit::{
    config::{OptionEntry, OptionType, SWITCH, number, one_or_more, path, range, switch, text, words},
    options,
};
use clap::{Args, builder::BoolishValueParser};

/// Most nodes, publishers or aggregators.
const MAX_ADDRESSES: usize = 16;
/// Longest system text, in bytes.
const MAX_SYSTEM_BYTES: usize = 64 * 1024;

const ANY_URL: &str = "a URL such as \"https://host\"";
const ANY_ADDRESS: &str = "an address such as \"/ip4/192.0.2.1/tcp/4001/p2p/12D3Koo...\"";

/// A libp2p address.
const ADDRESS: OptionType<Multiaddr> = OptionType::new(
    "MULTIADDR",
    // The parser takes an empty text for an address without parts.
    |entry, text| {
        if text.trim().is_empty() { entry.refuse() } else { text.parse().or_else(|_| entry.refuse()) }
    },
    |value| value.to_string().into(),
);

/// A text of several lines.
const LINES: OptionType<String> = OptionType::new("TEXT", lines, |value| value.clone().into());

fn lines(entry: &OptionEntry, text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.len() > MAX_SYSTEM_BYTES { entry.refuse() } else { Ok(text.to_owned()) }
}

/// Most epochs that Walrus sells at once.
const EPOCHS: u64 = MAX_EPOCHS as u64;

options! {
    /// The settings; a setting that is not given is `None`. The help of a command shows few of them, and
    /// `baton config` all.
    #[derive(Args, Clone, Debug, Default, PartialEq)]
    pub(crate) struct ClientOptions, "BATON_", table {
        "Settings of every command" {
            /// Folder of the device key and the sessions [default: ~/.local/share/baton]
            [global = true] home: Option<PathBuf> =
                path("DIR"), text("a folder").in_words("~/.local/share/baton");
            /// Address of a node, such as /ip4/192.0.2.1/tcp/4001/p2p/ID; may be repeated
            [global = true] node: Option<Vec<Multiaddr>> =
                ADDRESS, one_or_more(MAX_ADDRESSES, ANY_ADDRESS).in_words("nodes of the local network");
        }
        "Conversations" {
            /// Model to use, by name or id
            [global = false, hide = true] model: Option<String> =
                words("NAME"), text("a model's name or id").in_words("any; a node's own engine is preferred");
            /// System text of new sessions
            [global = false, hide = true] system: Option<String> = LINES, text("a text").in_words("none");
            /// Line-by-line prompt instead of the full-screen view
            [global = true, hide = true, num_args = 0..=1, require_equals = true,
             default_missing_value = "true", value_parser = BoolishValueParser::new()]
            plain: Option<bool> = SWITCH, switch("false");
        }
        "Network" {
            /// Find nodes on the local network by multicast, even if nodes are named
            [global = true, hide = true, num_args = 0..=1, require_equals = true,
             default_missing_value = "true", value_parser = BoolishValueParser::new()]
            mdns: Option<bool> = SWITCH, switch("").in_words("only if no node is named");
            /// Let nodes answer that the named nodes introduce, too
            [global = true, hide = true, num_args = 0..=1, require_equals = true,
             default_missing_value = "true", value_parser = BoolishValueParser::new()]
            discover: Option<bool> = SWITCH, switch("").in_words("only if no node is named, or with mdns");
            /// Keep session heads in the nodes' DHT, in addition to the head indexes
            [global = true, hide = true, num_args = 0..=1, require_equals = true,
             default_missing_value = "true", value_parser = BoolishValueParser::new()]
            dht: Option<bool> = SWITCH, switch("true");
            /// Maximum price of a turn, in millionths of the nodes' price unit
            [global = true, hide = true] max_price: Option<u64> = number(), range(0, i64::MAX as u64).default("10000000");
        }
        "Storage" {
            /// Base URL of a publisher, for writing blobs; may be repeated, preferred first
            [global = true, hide = true] publisher: Option<Vec<String>> =
                words("URL"), one_or_more(MAX_ADDRESSES, ANY_URL).default("\"http://127.0.0.1:31415\"");
            /// Base URL of an aggregator, for reading blobs; may be repeated, preferred first
            [global = true, hide = true] aggregator: Option<Vec<String>> =
                words("URL"), one_or_more(MAX_ADDRESSES, ANY_URL).in_words("the publishers");
            /// File with the publishers' bearer token
            [global = true, hide = true] publisher_token_file: Option<PathBuf> =
                path("FILE"), text("a file").in_words("none");
            /// File with the secret shared with the publishers, for signing a single-use token for each PUT
            [global = true, hide = true, conflicts_with = "publisher_token_file"] publisher_secret_file: Option<PathBuf> =
                path("FILE"), text("a file").in_words("none");
            /// Base URL of a head index; may be repeated, all written and read
            [global = true, hide = true] heads: Option<Vec<String>> =
                words("URL"), one_or_more(MAX_HEAD_INDEXES, ANY_URL).in_words("the first other host among publishers and aggregators that has one, or else the first publisher");
            /// Shards of the Walrus network, which determine blob IDs of new sessions
            [global = true, hide = true] shards: Option<u16> = number(), range(4, 2048).in_words("the store's number; 1000 if it announces none");
            /// Epochs to store a session's newest blob, so how long a session may rest
            [global = true, hide = true] open_epochs: Option<u32> = number(), range(1, EPOCHS).default("5");
            /// Epochs to store the blob of a full segment
            [global = true, hide = true] closed_epochs: Option<u32> = number(), range(1, EPOCHS).default("53");
            /// Hours in an epoch of the store: 336 on Walrus's mainnet, 24 on its testnet
            [global = true, hide = true] epoch_hours: Option<u32> = number(), range(1, 87_600).default("336");
            /// Renew blobs before they expire
            [global = true, hide = true, num_args = 0..=1, require_equals = true,
             default_missing_value = "true", value_parser = BoolishValueParser::new()]
            renew: Option<bool> = SWITCH, switch("true");
        }
        "Memory" {
            /// Relayer for memories and turns: its URL, or for turns alone its address with its identity
            [global = true, hide = true] relayer: Option<String> =
                words("ADDRESS"), text("a URL, or an address such as \"/ip4/192.0.2.1/tcp/4101/p2p/ID\"").in_words("none");
            /// Base URL of the relayer for memories, if it differs from the relayer for turns
            [global = true, hide = true] relayer_url: Option<String> = words("URL"), text(ANY_URL).in_words("the relayer");
            /// Permit plain http:// to a relayer on another machine: others on the way can read the memories
            [global = true, hide = true, num_args = 0..=1, require_equals = true,
             default_missing_value = "true", value_parser = BoolishValueParser::new()]
            insecure: Option<bool> = SWITCH, switch("false");
            /// File of the account key, which owns memories
            [global = true, hide = true] account: Option<PathBuf> =
                path("FILE"), text("a file").in_words("account.key in the home folder");
            /// File with a delegation to this key
            [global = true, hide = true] delegation: Option<PathBuf> =
                path("FILE"), text("a file").in_words("account.delegation beside the account key");
            /// Account to act for, as its delegate
            [global = true, hide = true] owner: Option<String> =
                words("ADDRESS"), text("an account's address").in_words("the key's own account");
        }
    }
}
