//! The arguments of `baton blob`.

use std::{ffi::OsString, path::PathBuf};

use baton_proto::ids::BlobId;
use baton_walrus_client::QuiltPatchId;
use clap::{Args, Subcommand};

/// Prefixes that may precede an ID.
const ID_PREFIX: &str = "id:";

/// The command line with a prefix before every ID that begins with a dash. One ID in 64 does, and clap would
/// take it for flags.
pub fn with_ids_named(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.map(|argument| match argument.to_str() {
        Some(text) if text.starts_with('-') && is_id(text) => format!("{ID_PREFIX}{text}").into(),
        _ => argument,
    })
}

fn is_id(text: &str) -> bool {
    text.parse::<BlobId>().is_ok() || text.parse::<QuiltPatchId>().is_ok()
}

/// Removes the prefix of an ID.
pub fn unnamed(text: &str) -> &str {
    text.strip_prefix(ID_PREFIX).unwrap_or(text)
}

/// What to do with blobs.
#[derive(Debug, Subcommand)]
pub enum BlobCommand {
    /// Store a file; prints its blob ID.
    ///
    /// The ID is computed here and compared with the one that the publisher names. A PUT whose answer is lost is never
    /// simply sent again, since it may have been paid for: the aggregators are asked first.
    Put {
        /// The file; `-` is standard input.
        file: PathBuf,
        #[command(flatten)]
        storing: Storing,
    },
    /// Fetch a blob, verified against its ID.
    Get {
        /// The blob's ID, or with --object the ID of a blob object (0x...).
        id: String,
        /// Where to write it; `-` is standard output [default: standard output].
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Only these bytes, such as 0-99: the last one counts. They cannot be checked against the ID by themselves,
        /// so the whole blob is read, unless --unverified.
        #[arg(long, value_name = "FIRST-LAST")]
        range: Option<String>,
        /// The ID is that of a blob object.
        #[arg(long)]
        object: bool,
        /// Check against this BLAKE3 hash (hex) instead of the ID.
        #[arg(long, value_name = "HEX", conflicts_with_all = ["sha256", "unverified"])]
        blake3: Option<String>,
        /// Check against this SHA-256 hash (hex) instead of the ID.
        #[arg(long, value_name = "HEX", conflicts_with = "unverified")]
        sha256: Option<String>,
        /// Believe the aggregator.
        #[arg(long)]
        unverified: bool,
        /// Largest blob taken, in MiB.
        #[arg(long, value_name = "MIB", default_value_t = 1024)]
        limit: u64,
    },
    /// Compute the blob ID of a file, without any network.
    Id {
        /// The files; `-` is standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Check that what every aggregator gives for an ID has that ID, or that a file has it.
    Verify {
        /// The blob's ID.
        id: String,
        /// A file to check instead of the aggregators.
        file: Option<PathBuf>,
        /// Largest blob taken, in MiB.
        #[arg(long, value_name = "MIB", default_value_t = 1024)]
        limit: u64,
    },
    /// Show what is known of a blob: size, what it takes in the store, until when it is kept; without an ID, of all
    /// blobs stored with this command.
    Stat {
        /// The blobs' IDs.
        ids: Vec<String>,
    },
    /// Store again what was stored with this command and runs out soon.
    Renew {
        /// The blobs' IDs [default: all].
        ids: Vec<String>,
        /// Renew also what may run out within so many days [default: what has less than an epoch left].
        #[arg(long, value_name = "NUMBER")]
        within_days: Option<u32>,
        /// Epochs, 1 to 53, for which it is kept from now on.
        #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=53))]
        epochs: u32,
        /// Pay again where an answer was lost and the last renewal may have been paid.
        #[arg(long)]
        retry_uncertain: bool,
    },
    /// Many small files in one blob: stored for hundreds of times less.
    Quilt {
        /// What to do with quilts.
        #[command(subcommand)]
        command: QuiltCommand,
    },
}

/// How something is stored.
#[derive(Debug, Args)]
pub struct Storing {
    /// Epochs, 1 to 53, for which it is kept.
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=53))]
    pub epochs: u32,
    /// Nobody may delete it before it runs out, the publisher neither.
    #[arg(long)]
    pub permanent: bool,
    /// Sui address (0x...) that gets the blob object, instead of the publisher.
    #[arg(long, value_name = "ADDRESS")]
    pub send_to: Option<String>,
}

/// What to do with quilts.
#[derive(Debug, Subcommand)]
pub enum QuiltCommand {
    /// Store files as one quilt; prints its ID and those of its patches.
    Put {
        /// The files; each is named in the quilt by its file name, or as NAME=FILE.
        #[arg(required = true)]
        files: Vec<String>,
        /// A tag of a file, as NAME:KEY=VALUE; may be repeated.
        #[arg(long, value_name = "NAME:KEY=VALUE")]
        tag: Vec<String>,
        #[command(flatten)]
        storing: Storing,
    },
    /// Fetch one file of a quilt, verified: by the quilt's ID and the file's name, or by its patch ID.
    Get {
        /// The quilt's ID, or a patch ID.
        id: String,
        /// The file's name in the quilt; none with a patch ID.
        name: Option<String>,
        /// Where to write it; `-` is standard output [default: standard output].
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Believe the aggregator, and read the file alone instead of the whole quilt.
        #[arg(long)]
        unverified: bool,
    },
    /// List a quilt's files with their patch IDs and tags.
    List {
        /// The quilt's ID.
        id: String,
        /// Believe the aggregator's list, instead of reading the whole quilt.
        #[arg(long)]
        unverified: bool,
    },
    /// Compute the IDs that files would have as a quilt, without any network.
    Id {
        /// The files; each is named in the quilt by its file name, or as NAME=FILE.
        #[arg(required = true)]
        files: Vec<String>,
        /// A tag of a file, as NAME:KEY=VALUE; may be repeated.
        #[arg(long, value_name = "NAME:KEY=VALUE")]
        tag: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Command};

    #[test]
    fn an_id_that_begins_with_a_dash_is_no_flag() {
        for first in ["-BiY", "-oAA", "-hAA", "--AA", "AAAA"] {
            let id = format!("{first}{}", "A".repeat(39));
            let words = ["baton", "blob", "get", "-o", "file", &id, "--limit", "7"];
            let parsed = Arguments::parse_from(with_ids_named(words.into_iter().map(OsString::from)));
            let Command::Blob { command: BlobCommand::Get { id: found, out, limit, .. } } = parsed.command
            else {
                panic!("not blob get");
            };
            assert_eq!((unnamed(&found), out, limit), (id.as_str(), Some("file".into()), 7), "{first}");
        }
    }

    #[test]
    fn flags_stay_flags() {
        let words = ["baton", "-o", "--blake3", "-", "--", "-x"].map(OsString::from);
        assert!(with_ids_named(words.clone().into_iter()).eq(words));
    }
}
