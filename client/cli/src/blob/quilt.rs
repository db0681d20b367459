//! `baton blob quilt`.

use std::{collections::BTreeMap, path::Path};

use baton_client::ClientError;
use baton_proto::ids::BlobId;
use baton_walrus_client::{
    QuiltPatch, QuiltPatchId, blob_id,
    http_store::{ReadOptions, Verification},
    quilt,
};
use serde_json::json;

use super::{
    super::{Failure, interrupt::cancellable, out::Out, settings::Settings},
    Bar, MIB,
    args::{self, QuiltCommand},
    blob, deliver, is_stdin, ledger, size, store, transfer, unreadable, write_options,
};

/// Largest quilt that is read or built: it is held in memory, here and at the publisher.
const MAX_QUILT_BYTES: u64 = 1024 * MIB;

/// Runs one of the commands.
pub(super) async fn run(settings: &Settings, command: QuiltCommand, out: &Out) -> Result<(), Failure> {
    match command {
        QuiltCommand::Put { files, tag, storing } => {
            let sources = Sources::read(&files, &tag)?;
            let store = store(settings)?;
            let mut options = write_options(&storing)?;
            let stored = {
                let bar = Bar::new(out);
                options.progress = Some(bar.follow());
                let patches = sources.patches();
                let storing = store.store_quilt(&patches, &options);
                cancellable(async { storing.await.map_err(ClientError::from) }).await?
            };
            transfer::show_stored(settings, &stored.stored, out)?;
            for patch in &stored.patches {
                show_patch(&patch.identifier, patch.patch_id, None, out)?;
            }
            ledger::record(settings, &stored.stored, &options, out).await
        }
        QuiltCommand::Id { files, tag } => ids(settings, &Sources::read(&files, &tag)?, out).await,
        QuiltCommand::Get { id, name, out: file, unverified } => {
            get(settings, &id, name.as_deref(), file.as_deref(), unverified, out).await
        }
        QuiltCommand::List { id, unverified } => {
            let store = store(settings)?;
            let id = blob(&id)?;
            let patches = {
                let bar = Bar::new(out);
                let options = read_options(unverified, &bar);
                let listing = async { store.quilt_patches(id, &options).await.map_err(ClientError::from) };
                cancellable(listing).await?
            };
            for patch in &patches {
                show_patch(&patch.identifier, patch.patch_id, Some(&patch.tags), out)?;
            }
            Ok(())
        }
    }
}

fn read_options(unverified: bool, bar: &Bar) -> ReadOptions {
    let verification = if unverified { Verification::Off } else { Verification::BlobId };
    let mut options = ReadOptions::new(MAX_QUILT_BYTES).verify(verification);
    options.progress = Some(bar.follow());
    options
}

async fn get(
    settings: &Settings,
    id: &str,
    name: Option<&str>,
    file: Option<&Path>,
    unverified: bool,
    out: &Out,
) -> Result<(), Failure> {
    let store = store(settings)?;
    let patch = {
        let bar = Bar::new(out);
        let options = read_options(unverified, &bar);
        let reading = async {
            let read = match name {
                Some(name) => store.read_patch_named(blob(id)?, name, &options).await,
                None => store.read_patch(patch_id(id)?, &options).await,
            };
            Ok::<_, Failure>(read.map_err(ClientError::from)?)
        };
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Err(Failure::Interrupted),
            read = reading => read?,
        }
    };
    let length = patch.bytes.len() as u64;
    let to_file = file.filter(|path| !is_stdin(path));
    deliver(patch.bytes, to_file).await?;
    if to_file.is_some() {
        let name = patch.identifier.as_deref().or(name).unwrap_or_else(|| args::without_prefix(id));
        if out.json() {
            out.value(&json!({ "identifier": name, "size": length, "verified": !unverified }))?;
        } else {
            let checked = if unverified { "not verified" } else { "verified against the quilt's ID" };
            out.note(&format!("{name}, {}, {checked}", size(length)));
        }
    }
    Ok(())
}

fn patch_id(text: &str) -> Result<QuiltPatchId, Failure> {
    let text = args::without_prefix(text);
    text.parse().map_err(|_| {
        Failure::Usage(format!("{text} is no patch ID; with a quilt's ID, name the file in it as well"))
    })
}

/// Computes the IDs that the store would give.
async fn ids(settings: &Settings, sources: &Sources, out: &Out) -> Result<(), Failure> {
    let bar = Bar::new(out);
    bar.working("laying out the quilt");
    let (sources, shards) = (sources.clone(), settings.shards());
    let computed = tokio::task::spawn_blocking(move || {
        let encoded = quilt::encode(&sources.patches(), shards)?;
        let id = blob_id(&encoded.bytes, shards);
        Ok::<_, quilt::QuiltError>((id, encoded.index, encoded.bytes.len()))
    });
    let usage = |error: &dyn std::error::Error| Failure::Usage(error.to_string());
    let computed = computed.await.map_err(|_| ClientError::TaskEnded)?;
    let (id, index, length) = computed.map_err(|error| usage(&error))?;
    let id: BlobId = id.map_err(|error| usage(&error))?;
    drop(bar);
    if out.json() {
        out.value(&json!({ "blob_id": id.to_string(), "size": length, "shards": shards.get() }))?;
    } else {
        out.line(&id.to_string())?;
    }
    for entry in &index.entries {
        show_patch(&entry.identifier, entry.id(id), None, out)?;
    }
    Ok(())
}

fn show_patch(
    identifier: &str,
    id: QuiltPatchId,
    tags: Option<&BTreeMap<String, String>>,
    out: &Out,
) -> Result<(), Failure> {
    if out.json() {
        let value = json!({ "identifier": identifier, "patch_id": id.to_string(), "tags": tags });
        return Ok(out.value(&value)?);
    }
    let tags =
        tags.map(|tags| tags.iter().map(|(key, value)| format!("  {key}={value}")).collect::<String>());
    let line = format!("{id}  {identifier}{}", tags.unwrap_or_default());
    Ok(out.line(&super::super::out::clean(&line))?)
}

/// The files of a quilt.
#[derive(Debug, Clone)]
struct Sources(Vec<Source>);

#[derive(Debug, Clone)]
struct Source {
    identifier: String,
    tags: BTreeMap<String, String>,
    data: Vec<u8>,
}

impl Sources {
    /// Reads each `FILE` or `NAME=FILE`, and adds the tags (`NAME:KEY=VALUE`).
    fn read(files: &[String], tags: &[String]) -> Result<Self, Failure> {
        let mut sources = Vec::new();
        let mut left = MAX_QUILT_BYTES;
        for file in files {
            let (identifier, path) = name_and_path(file)?;
            let failed = |error| unreadable(path, error);
            let length = std::fs::metadata(path).map_err(failed)?.len();
            left = left.checked_sub(length).ok_or_else(|| {
                Failure::Usage(format!("a quilt of more than {} is too large", size(MAX_QUILT_BYTES)))
            })?;
            let data = std::fs::read(path).map_err(failed)?;
            sources.push(Source { identifier, tags: BTreeMap::new(), data });
        }
        for tag in tags {
            let parts = tag.split_once(':').and_then(|(name, rest)| Some((name, rest.split_once('=')?)));
            let Some((name, (key, value))) = parts else {
                return Err(Failure::Usage(format!("--tag {tag}: give it as NAME:KEY=VALUE")));
            };
            let named = sources.iter_mut().find(|source| source.identifier == name);
            let source =
                named.ok_or_else(|| Failure::Usage(format!("--tag {tag}: no file is named {name}")))?;
            source.tags.insert(key.to_owned(), value.to_owned());
        }
        Ok(Self(sources))
    }

    fn patches(&self) -> Vec<QuiltPatch<'_>> {
        let sources = self.0.iter();
        sources
            .map(|source| QuiltPatch {
                identifier: &source.identifier,
                tags: source.tags.clone(),
                data: &source.data,
            })
            .collect()
    }
}

/// A file's name in the quilt, and its path.
fn name_and_path(text: &str) -> Result<(String, &Path), Failure> {
    if let Some((name, path)) = text.split_once('=')
        && !name.is_empty()
        && !Path::new(text).exists()
    {
        return Ok((name.to_owned(), Path::new(path)));
    }
    let path = Path::new(text);
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::Usage(format!("{text}: give it a name, as NAME={text}")))?;
    Ok((name.to_owned(), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_their_last_part_or_as_asked() {
        assert_eq!(name_and_path("a/b.txt").unwrap(), ("b.txt".to_owned(), Path::new("a/b.txt")));
        assert_eq!(name_and_path("c=a/b.txt").unwrap(), ("c".to_owned(), Path::new("a/b.txt")));
        assert!(name_and_path("..").is_err());
    }

    #[test]
    fn tags_belong_to_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "data").unwrap();
        let file = format!("n={}", path.display());
        let read = |tags: &[&str]| {
            let tags: Vec<String> = tags.iter().map(ToString::to_string).collect();
            Sources::read(std::slice::from_ref(&file), &tags)
        };
        let sources = read(&["n:kind=note", "n:a=b=c"]).unwrap();
        let patches = sources.patches();
        assert_eq!((patches[0].identifier, patches[0].data), ("n", &b"data"[..]));
        assert_eq!(patches[0].tags["a"], "b=c");
        assert!(read(&["other:kind=note"]).is_err() && read(&["nokey"]).is_err());
    }
}
