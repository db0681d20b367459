//! The check of every file: its blob, its state and the necessary fix. Reads only.
//!
//! Files are the truth, and the index is checked against them. A file that the index does not name is found
//! by its own trailer. Only provably useless files are removed:
//! - an upload that never got its final name,
//! - an older file of a blob whose newer file is whole,
//! - the file of a blob that was removed after the file was written.

use std::{
    collections::{HashMap, HashSet},
    io,
};

use baton_proto::ids::BlobId;

use super::{
    Epochs,
    damage::{DamageKind, Damages},
    files::{FileKey, Folder, Name, Verdict, name_of, serial_of},
    load::Index,
    record::Record,
    trailer::Trailer,
};

/// The findings and the necessary fixes.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Unfinished uploads, to remove.
    pub(super) parts: Vec<u64>,
    /// Useless files, to remove.
    pub(super) leftovers: Vec<u128>,
    /// Files for the quarantine.
    pub(super) unusable: Vec<u128>,
    /// Files whose hashes must be rewritten.
    pub(super) hashes: Vec<(FileKey, Vec<u8>)>,
    /// Blobs whose trailers must be rewritten.
    pub(super) trailers: Vec<(BlobId, FileKey)>,
    /// Blobs that the index lacks or names differently: they are added.
    pub(super) found: HashMap<[u8; 32], Record>,
    /// Names that are not the store's. They stay.
    pub(super) foreign: u64,
    /// The shards and epochs in the newest trailer, in case the index is lost.
    pub(super) newest: Option<(u16, Epochs)>,
    /// A number above those of all files.
    pub(super) next: u64,
}

/// A running survey.
struct Surveyor<'a> {
    folder: &'a Folder,
    index: &'a Index,
    damages: &'a mut Damages,
    survey: Survey,
    /// Whole trailers of files that the index does not name.
    unnamed: HashMap<[u8; 32], Vec<Trailer>>,
    /// Files in the index with damaged trailers.
    bad_trailers: HashSet<u128>,
}

/// Checks every file in the folder.
pub(super) fn survey(folder: &Folder, index: &Index, damages: &mut Damages) -> io::Result<Survey> {
    let (unnamed, bad_trailers) = (HashMap::new(), HashSet::new());
    let mut surveyor = Surveyor { folder, index, damages, survey: Survey::default(), unnamed, bad_trailers };
    let blobs = &index.table.blobs;
    let named: HashMap<u128, [u8; 32]> = blobs.iter().map(|(id, slot)| (slot.file.number, *id)).collect();
    let mut newest = 0;
    for name in folder.names()? {
        match Name::parse(&name?) {
            Name::Foreign => surveyor.survey.foreign += 1,
            Name::Part(serial) => {
                surveyor.survey.next = surveyor.survey.next.max(serial.saturating_add(1));
                surveyor.survey.parts.push(serial);
            }
            Name::Blob(number) => {
                let serial = serial_of(number);
                surveyor.survey.next = surveyor.survey.next.max(serial.saturating_add(1));
                surveyor.inspect(number, named.get(&number), &mut newest);
            }
        }
    }
    let mut unnamed = std::mem::take(&mut surveyor.unnamed);
    for id in blobs.keys() {
        surveyor.choose(BlobId(*id), unnamed.remove(id).unwrap_or_default());
    }
    for (id, trailers) in unnamed {
        surveyor.choose(BlobId(id), trailers);
    }
    Ok(surveyor.survey)
}

/// The path of a file within the store's folder.
fn path_in_store(number: u128) -> String {
    format!("files/{}", name_of(number))
}

impl Surveyor<'_> {
    /// Checks one file by its trailer and by its blob in the index.
    fn inspect(&mut self, number: u128, named: Option<&[u8; 32]>, newest: &mut u64) {
        let trailer = match self.folder.trailer(number) {
            Ok(trailer) => trailer,
            // The index knows the file's blob: the bytes are read later.
            Err(_) if named.is_some() => return,
            Err(error) => {
                tracing::error!(%error, file = name_of(number), "a file cannot be read");
                return self.damages.add(DamageKind::BlobUnreadable, path_in_store(number), None);
            }
        };
        if let Some(trailer) = &trailer
            && *newest <= serial_of(number)
        {
            *newest = serial_of(number);
            self.survey.newest = Some((trailer.shards, trailer.epochs));
        }
        match (trailer, named) {
            (Some(trailer), Some(id)) if trailer.id.0 == *id => {}
            (_, Some(_)) => {
                self.bad_trailers.insert(number);
            }
            (Some(trailer), None) => {
                let objects = trailer.record.objects.iter().map(|object| object.number);
                let highest = objects.max().unwrap_or(0).saturating_add(1);
                self.survey.next = self.survey.next.max(highest);
                if self.index.removed.get(&trailer.id.0).is_some_and(|removed| *removed > serial_of(number)) {
                    self.survey.leftovers.push(number);
                } else {
                    self.unnamed.entry(trailer.id.0).or_default().push(trailer);
                }
            }
            (None, None) => {
                self.damages.add(DamageKind::BlobUnnamed, path_in_store(number), None);
                self.survey.unusable.push(number);
            }
        }
    }

    /// Of a blob's files, keeps the newest whole one.
    fn choose(&mut self, id: BlobId, trailers: Vec<Trailer>) {
        let indexed = self.index.table.blobs.get(&id.0).map(|slot| slot.file);
        let mut files: Vec<FileKey> =
            trailers.iter().map(|trailer| trailer.record.file).chain(indexed).collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.number));
        let Some(newest) = files.first().copied() else { return };
        let (mut whole, mut damage) = (None, None);
        for (place, file) in files.iter().enumerate() {
            let Some(kind) = self.damage(id, *file) else {
                whole = Some(place);
                break;
            };
            damage.get_or_insert(kind);
        }
        // Damaged files newer than a whole one go to the quarantine; older files are useless beside it.
        let chosen = whole.unwrap_or(0);
        for (place, file) in files.iter().enumerate().filter(|(place, _)| *place != chosen) {
            if whole.is_some() && place > chosen {
                self.survey.leftovers.push(file.number);
            } else if self.folder.path_of(file.number).exists() {
                self.survey.unusable.push(file.number);
            }
        }
        if let Some(kind) = damage {
            self.damages.add(kind, path_in_store(newest.number), Some(id.to_string()));
        }
        let Some(file) = files.get(chosen).copied() else { return };
        if whole.is_some() && self.bad_trailers.contains(&file.number) {
            self.damages.add(DamageKind::BlobTrailer, path_in_store(file.number), Some(id.to_string()));
            self.survey.trailers.push((id, file));
        }
        if indexed == Some(file) && newest == file {
            return;
        }
        // The newest file has the newest list of objects.
        let by_index = if indexed == Some(newest) { self.index.record(id) } else { None };
        let by_file =
            || trailers.into_iter().map(|trailer| trailer.record).max_by_key(|record| record.file.number);
        if let Some(record) = by_index.or_else(by_file) {
            self.survey.found.insert(id.0, Record { file, ..record });
        }
    }

    /// The damage of a blob's bytes in a file, if any. Notes damaged hashes.
    fn damage(&mut self, id: BlobId, file: FileKey) -> Option<DamageKind> {
        match self.folder.verify(file) {
            Ok(Verdict::Whole) => None,
            Ok(Verdict::HashesChanged(hashes)) => {
                self.damages.add(DamageKind::BlobHashes, path_in_store(file.number), Some(id.to_string()));
                self.survey.hashes.push((file, hashes));
                None
            }
            Ok(Verdict::Changed) => Some(DamageKind::BlobBytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(DamageKind::BlobMissing),
            Err(error) => {
                tracing::error!(%error, file = path_in_store(file.number), "a blob's file cannot be read");
                Some(DamageKind::BlobUnreadable)
            }
        }
    }
}
