//! `baton blob`: files at any Walrus, from the command line.
//!
//! A thin layer over `baton_walrus_client`: arguments in, lines or JSON out.

mod inspect;
mod ledger;
mod progress;
mod quilt;
mod transfer;

use std::{
    fs::File,
    io::{IsTerminal as _, Write as _},
    path::Path,
};

use baton_client::ClientError;
use baton_proto::{
    ids::{BlobId, SuiAddress},
    store::StoreError,
};
use baton_walrus_client::{
    BlobSourceError, FileSource, HttpStore, ShardCount, blob_id_of,
    http_store::{ObjectOwner, WriteOptions},
};

use tempfile::NamedTempFile;

use super::args::blob::{self as args, BlobCommand, StoreArguments};
use super::{Failure, out::Out, settings::Settings};
use progress::Bar;

const MIB: u64 = 1024 * 1024;

/// Runs one of the commands.
pub(crate) async fn run(settings: &Settings, command: BlobCommand, out: &Out) -> Result<(), Failure> {
    // A set number may be another network's, for an ID alone.
    if !settings.has_shards() {
        settings.ask_shards().await?;
    }
    match command {
        BlobCommand::Put { file, storing } => transfer::put(settings, &file, &storing, out).await,
        BlobCommand::Get { id, out: file, range, object, blake3, sha256, unverified, limit } => {
            let request = transfer::GetRequest {
                id,
                file,
                range,
                object,
                check: transfer::Trust::of(blake3.as_deref(), sha256.as_deref(), unverified)?,
                limit: limit.saturating_mul(MIB),
            };
            transfer::get(settings, request, out).await
        }
        BlobCommand::Id { files } => inspect::ids(settings, &files, out).await,
        BlobCommand::Verify { id, file: Some(file), .. } => {
            inspect::verify_file(settings, blob(&id)?, &file, out).await
        }
        BlobCommand::Verify { id, file: None, limit } => {
            inspect::verify(settings, blob(&id)?, limit.saturating_mul(MIB), out).await
        }
        BlobCommand::Show { ids } => inspect::show(settings, &ids, out).await,
        BlobCommand::Renew { ids, within_days, epochs, retry_uncertain } => {
            let request = ledger::RenewRequest { ids, within_days, epochs, retry_uncertain };
            ledger::renew(settings, request, out).await
        }
        BlobCommand::Quilt { command } => quilt::run(settings, command, out).await,
    }
}

/// A store without its own upload limits: the publisher sets the limit.
fn store(settings: &Settings) -> Result<HttpStore, Failure> {
    settings.store(|builder| builder.max_put_bytes(usize::MAX).max_quilt_bytes(usize::MAX))
}

/// A blob's ID from the command line.
fn blob(text: &str) -> Result<BlobId, Failure> {
    let text = args::without_prefix(text);
    text.parse().map_err(|_| {
        Failure::Usage(format!("{text} is no blob ID; one has 43 characters of URL-safe base64"))
    })
}

/// The write options from the command line.
fn write_options(storing: &StoreArguments) -> Result<WriteOptions, Failure> {
    let owner = match storing.send_to.as_deref() {
        None => ObjectOwner::Publisher,
        Some(text) => {
            let address = text.strip_prefix("0x").map(SuiAddress::parse_hex);
            let Some(Ok(address)) = address else {
                return Err(Failure::Usage(format!(
                    "--send-to {text}: an address is 0x and 64 hexadecimal characters"
                )));
            };
            ObjectOwner::Address(address)
        }
    };
    let options = WriteOptions::new(storing.epochs).owner(owner);
    Ok(if storing.permanent { options.permanent() } else { options })
}

/// The ID of a file, computed off the reactor.
async fn id_of_file(path: &Path, shards: ShardCount, bar: &Bar) -> Result<(BlobId, u64), Failure> {
    let opened = if is_stdin(path) { spool_stdin().await?.reopen()? } else { open(path)? };
    let source = FileSource::new(opened).map_err(|source| unreadable(path, source))?;
    let length = baton_walrus_client::BlobSource::len(&source);
    bar.working(&format!("computing the blob ID of {}", path.display()));
    let computed = tokio::task::spawn_blocking(move || blob_id_of(&source, shards)).await;
    match computed.map_err(|_| ClientError::TaskEnded)? {
        Ok(id) => Ok((id, length)),
        Err(BlobSourceError::Read(source)) => Err(unreadable(path, source)),
        Err(error @ BlobSourceError::TooLarge(_)) => Err(Failure::Usage(error.to_string())),
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    let is_file = file.metadata().map_err(|source| unreadable(path, source))?.is_file();
    if is_file {
        return Ok(file);
    }
    Err(Failure::Usage(format!("{} is not a file; pipe it in and name it -", path.display())))
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Standard input, in a file that only this user can read. Dropping the value deletes the file.
async fn spool_stdin() -> Result<NamedTempFile, Failure> {
    let spooled = tokio::task::spawn_blocking(|| {
        let mut file = NamedTempFile::new()?;
        std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
        file.flush()?;
        Ok::<_, std::io::Error>(file)
    });
    Ok(spooled.await.map_err(|_| ClientError::TaskEnded)??)
}

fn unreadable(path: &Path, source: std::io::Error) -> Failure {
    ClientError::File { action: "read", path: path.to_owned(), source }.into()
}

/// A store's failure, as the command's.
fn failed(error: StoreError) -> Failure {
    ClientError::from(error).into()
}

/// Writes bytes to a new file or to standard output. Refuses binary data on a terminal.
async fn deliver(bytes: Vec<u8>, file: Option<&Path>) -> Result<(), Failure> {
    match file {
        Some(path) if path != Path::new("-") => tokio::fs::write(path, bytes)
            .await
            .map_err(|source| ClientError::File { action: "write", path: path.to_owned(), source }.into()),
        _ => {
            let readable = std::str::from_utf8(&bytes).is_ok_and(|text| super::out::clean(text) == text);
            if std::io::stdout().is_terminal() && !readable {
                return Err(Failure::Usage(
                    "this is not plain text; write it to a file with --out, or pipe it on".to_owned(),
                ));
            }
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(&bytes)?;
            Ok(stdout.flush()?)
        }
    }
}

/// Bytes as a person reads them.
fn size(bytes: u64) -> String {
    baton_command::progress::size(bytes)
}
