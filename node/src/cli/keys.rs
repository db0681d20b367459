//! `baton-node keys`: the node's identity and its exchange keys. Shows no secret, except a backup's words.

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

use baton_keys::files;
use baton_kit::prompt;
use clap::{Args, Subcommand};
use serde_json::json;
use zeroize::Zeroizing;

use super::{
    Exit, Failure, Places, passphrase, say, say_result,
    time::{now_ms, utc},
};
use crate::{
    config::Settings,
    daemon::data_dir::DataDir,
    identity::{
        NODE_KEY_FILE, back_up, back_up_words, exchange_keys, load_node_key, peer_id, restore, restore_words,
        retired_keys, rotate_exchange_keys, rotate_node_key,
    },
};

/// The arguments.
#[derive(Args, Clone, Debug)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum KeysCommand {
    /// Show the node's name, and its exchange keys with their times
    Show(Places),
    /// Write a copy of the node key to a new file, under a passphrase, or show it as 24 words for paper
    #[command(
        after_help = "Keep the copy on another machine. Exchange keys need none: new ones are made every twelve hours.\n\n\
        Examples:\n  baton-node keys backup --out /media/usb/node.key\n  baton-node keys backup --words"
    )]
    Backup(BackupArgs),
    /// Restore the node key from a copy; never overwrites another key
    #[command(
        after_help = "Examples:\n  baton-node keys restore /media/usb/node.key\n  baton-node keys restore --words-file -"
    )]
    Restore(RestoreArgs),
    /// Replace the exchange keys at once, or the node key with --identity
    #[command(
        after_help = "The node must be stopped. Without --identity: the keys that turns are sealed to are erased, and new ones \
        made; clients\nlearn of them by themselves. Do so when somebody may have seen the data directory.\n\n\
        Examples:\n  baton-node keys rotate\n  baton-node keys rotate --identity"
    )]
    Rotate(RotateArgs),
}

#[derive(Args, Clone, Debug)]
struct BackupArgs {
    #[command(flatten)]
    places: Places,
    /// File to write; it must not exist
    #[arg(long, value_name = "FILE", required_unless_present = "words")]
    out: Option<PathBuf>,
    /// Back up as 24 words, on a terminal or in the --out file; anyone with the words can act as the node
    #[arg(long, conflicts_with_all = ["passphrase_file", "no_passphrase"])]
    words: bool,
    /// File with the passphrase in its first line, or - for standard input [default: ask]
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// Write the copy without a passphrase; anyone with the file can act as the node
    #[arg(long, conflicts_with = "passphrase_file")]
    no_passphrase: bool,
}

#[derive(Args, Clone, Debug)]
struct RestoreArgs {
    #[command(flatten)]
    places: Places,
    /// Copy to restore
    #[arg(required_unless_present = "words_file")]
    file: Option<PathBuf>,
    /// File with the 24 words in its first line, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "passphrase_file"])]
    words_file: Option<PathBuf>,
    /// File with the copy's passphrase in the first line, or - for standard input [default: ask]
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct RotateArgs {
    #[command(flatten)]
    places: Places,
    /// Replace the node key, which makes this another node; the old key is set aside
    #[arg(long)]
    identity: bool,
    /// Do not ask for confirmation
    #[arg(long, requires = "identity")]
    yes: bool,
}

pub(super) fn run(args: KeysArgs) -> Result<(), Failure> {
    match args.command {
        KeysCommand::Show(args) => show(args),
        KeysCommand::Backup(args) => backup(args),
        KeysCommand::Restore(args) => bring_back(args),
        KeysCommand::Rotate(args) if args.identity => rotate_identity(args),
        KeysCommand::Rotate(args) => rotate_exchange(args),
    }
}

fn storage(error: impl Into<anyhow::Error>) -> Failure {
    Failure::new(Exit::Storage, error)
}

fn data_dir(places: Places) -> Result<PathBuf, Failure> {
    Ok(Settings::load(places.flags())?.data_dir())
}

fn show(places: Places) -> Result<(), Failure> {
    let json = places.json;
    let folder = data_dir(places)?;
    let node = load_node_key(&folder)?.node_id();
    let windows = exchange_keys(&folder)?;
    let retired = retired_keys(&folder).map_err(storage)?;
    let now = now_ms();
    let current = windows.iter().rposition(|key| key.from_ms <= now && now <= key.until_ms);
    let state = |index: usize, from_ms: u64| match current {
        Some(current) if current == index => "current",
        _ if from_ms > now => "next",
        _ => "old",
    };
    if json {
        let keys = windows.iter().enumerate().map(|(index, key)| {
            json!({
                "key": key.key.id().to_string(), "state": state(index, key.from_ms),
                "from_ms": key.from_ms, "until_ms": key.until_ms,
            })
        });
        say(json!({
            "node": node.to_string(), "peer_id": peer_id(node).to_string(), "key_file": folder.join(NODE_KEY_FILE),
            "exchange_keys": keys.collect::<Vec<_>>(), "retired": retired,
        }));
        return Ok(());
    }
    say(format!("Node        {node}\nPeer        {}", peer_id(node)));
    say(format!("Node key    {}", folder.join(NODE_KEY_FILE).display()));
    for (index, key) in windows.iter().enumerate() {
        let (name, state) = (key.key.id().to_string(), state(index, key.from_ms));
        say(format!("Exchange    {state:7} {name:.16}... {} to {}", utc(key.from_ms), utc(key.until_ms)));
    }
    if windows.is_empty() {
        say("Exchange    none yet; the first start makes them");
    }
    for path in retired {
        say(format!("Set aside   {}", path.display()));
    }
    Ok(())
}

fn backup(args: BackupArgs) -> Result<(), Failure> {
    let json = args.places.json;
    let folder = data_dir(args.places)?;
    let out = match args.out {
        Some(out) if !args.words => out,
        out => return back_up_as_words(&folder, out.as_deref(), json),
    };
    let passphrase = match args.no_passphrase {
        true => None,
        false => Some(passphrase::new(args.passphrase_file.as_deref())?),
    };
    let passphrase = passphrase.as_ref().map(|text| text.as_str());
    let node = back_up(&folder, &out, passphrase)?;
    let words = format!(
        "The node key of {node} is in {}, read back and the same.\n\
         Keep it on another machine. To be this node again: baton-node keys restore FILE",
        out.display()
    );
    say_result(json, json!({ "node": node.to_string(), "place": out }), words);
    Ok(())
}

/// Shows the node key as words, or writes them to a new file.
fn back_up_as_words(folder: &Path, out: Option<&Path>, json: bool) -> Result<(), Failure> {
    let words = back_up_words(folder)?;
    match out {
        Some(out) => {
            let line = Zeroizing::new(format!("{}\n", *words));
            files::write_private(out, line.as_bytes())
                .map_err(|error| storage(anyhow::anyhow!("cannot write {}: {error}", out.display())))?;
        }
        None if io::stdout().is_terminal() && !json => {
            say("Whoever has these words is the node: write them down and clear the screen.");
            say(words.as_str());
        }
        // Words in a pipe end up in logs and shell histories.
        None => {
            return Err(Failure::text(Exit::Usage, "name the new file with --out, or run it at a terminal"));
        }
    }
    let words = "To be this node again: baton-node keys restore --words-file FILE";
    say_result(json, json!({ "place": out }), words);
    Ok(())
}

fn bring_back(args: RestoreArgs) -> Result<(), Failure> {
    let json = args.places.json;
    let folder = data_dir(args.places)?;
    let key = folder.join(NODE_KEY_FILE);
    if std::fs::exists(&key).map_err(storage)? {
        let text = format!(
            "there is a node key already: {}. Nothing was changed. To be the node of the copy instead, move that file away \
             first, or restore into another data directory (--data-dir)",
            key.display()
        );
        return Err(Failure::text(Exit::Storage, text));
    }
    let words = args.words_file.as_deref().map(passphrase::words).transpose()?;
    let file = args.file.unwrap_or_default();
    let passphrase = match words.is_none() && files::needs_passphrase(&file)? {
        true => Some(passphrase::existing(args.passphrase_file.as_deref())?),
        false => None,
    };
    files::create_private_folder(&folder).map_err(storage)?;
    let _lock = DataDir::lock(&folder)?;
    let passphrase = passphrase.as_ref().map(|text| text.as_str());
    let node = match words {
        Some(words) => restore_words(&folder, &words).map_err(storage)?,
        None => restore(&folder, &file, passphrase)?,
    };
    let words = format!(
        "The node key of {node} is in {}.\nRun one node with it at a time: two would answer for each other.",
        key.display()
    );
    let peer = peer_id(node).to_string();
    say_result(json, json!({ "node": node.to_string(), "peer_id": peer, "key_file": key }), words);
    Ok(())
}

/// The data directory of a stopped node.
fn lock(folder: &Path) -> Result<DataDir, Failure> {
    load_node_key(folder)?;
    DataDir::lock(folder)
}

fn rotate_exchange(args: RotateArgs) -> Result<(), Failure> {
    let json = args.places.json;
    let folder = data_dir(args.places)?;
    let _lock = lock(&folder)?;
    rotate_exchange_keys(&folder, now_ms())?;
    let keys = exchange_keys(&folder)?;
    let current = keys.first().map(|key| key.key.id().to_string()).unwrap_or_default();
    let words =
        format!("The node starts with new exchange keys, from {current:.16}...; the old ones are erased.");
    say_result(json, json!({ "exchange_key": current }), words);
    Ok(())
}

fn rotate_identity(args: RotateArgs) -> Result<(), Failure> {
    let json = args.places.json;
    let folder = data_dir(args.places)?;
    let _lock = lock(&folder)?;
    let old = load_node_key(&folder)?.node_id();
    if !args.yes {
        confirm(&format!(
            "This makes another node of it. Until now it is\n\n  {old}\n\n\
             - Whoever names it by that, or by its /p2p/ address, no longer finds it: bootstrap lists, clients' settings.\n\
             - What clients think of it, and what it was credited for, stays with the old name; the old key is kept to prove it.\n\
             - Turns that it signed stay valid. Retries of the last turns are no longer answered."
        ))?;
    }
    let rotated = rotate_node_key(&folder, now_ms())?;
    let (new, peer) = (rotated.new.to_string(), peer_id(rotated.new).to_string());
    let words = format!(
        "The node is now {new}\nPeer              {peer}\nThe old key is in {}\nNext: baton-node keys backup --out FILE",
        rotated.retired_key.display()
    );
    let (old, set_aside) = (rotated.old.to_string(), rotated.retired_key);
    say_result(json, json!({ "old": old, "node": new, "peer_id": peer, "set_aside": set_aside }), words);
    Ok(())
}

/// Continues only after a `yes`.
fn confirm(text: &str) -> Result<(), Failure> {
    let confirmed = prompt::confirm_at_terminal(&format!("{text}\n\nGo on?"));
    match confirmed? {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::text(Exit::Failure, "nothing was changed")),
        None => {
            let text = format!("{text}\n\nnobody can be asked here: repeat it with --yes");
            Err(Failure::text(Exit::Usage, text))
        }
    }
}
