//! Option values with a name.

use std::{net::SocketAddr, str::FromStr};

use baton_kit::endpoint::listen_address;
use baton_memory::ids::OwnerId;
use baton_mesh::IpNetwork;
use baton_proto::ids::QuotaSerial;
use serde::{Deserialize, Serialize};

/// Address of the HTTP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum HttpSetting {
    /// No HTTP server.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl From<HttpSetting> for String {
    fn from(setting: HttpSetting) -> Self {
        match setting {
            HttpSetting::Off => "off".to_owned(),
            HttpSetting::At(address) => address.to_string(),
        }
    }
}

impl FromStr for HttpSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        listen_address(text).map(Self::At).map_err(|expected| format!("{expected}, or `off`"))
    }
}

impl TryFrom<String> for HttpSetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

macro_rules! named_setting {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub(crate) enum $name { $($(#[$vmeta])* $variant),* }

        impl From<$name> for String {
            fn from(setting: $name) -> Self {
                match setting {
                    $($name::$variant => $text.to_owned(),)*
                }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(format!("one of {}", [$($text),*].join(", "))),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    };
}

named_setting! {
    /// Storage of sealed records.
    StorageSetting {
        /// In the data folder, for one relayer.
        Embedded = "embedded",
        /// In a Postgres database with pgvector, for several relayers.
        Postgres = "postgres",
    }
}

named_setting! {
    /// How an embedding endpoint distinguishes queries from documents.
    RolesSetting {
        /// It does not.
        None = "none",
        /// By words before the text.
        Prefix = "prefix",
        /// By the field `input_type` of its requests.
        InputType = "input_type",
    }
}

named_setting! {
    /// The kind of embedder.
    EmbedderSetting {
        /// The best available one: `static` once its model was pulled, otherwise `hashing`.
        Auto = "auto",
        /// 384 dimensions, without a model.
        Hashing = "hashing",
        /// potion-base-8M, a static table.
        Static = "static",
        /// all-MiniLM-L6-v2.
        MiniLm = "minilm",
        /// Any OpenAI-compatible `/v1/embeddings`.
        Endpoint = "endpoint",
    }
}

macro_rules! id_setting {
    ($(#[$meta:meta])* $name:ident($id:ty), $form:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub(crate) struct $name(pub $id);

        impl From<$name> for String {
            fn from(setting: $name) -> Self {
                setting.0.to_string()
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                text.parse().map(Self).map_err(|_| $form.to_owned())
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    };
}

id_setting! {
    /// An account id of an owner.
    AccountSetting(OwnerId), "an account id: 0x and 64 hex characters"
}

id_setting! {
    /// The serial number of an invitation.
    SerialSetting(QuotaSerial), "a serial number: 32 hex characters"
}

id_setting! {
    /// Addresses of an operator's machines or proxies.
    NetworkSetting(IpNetwork), "a network such as 192.168.1.0/24, or an address"
}
