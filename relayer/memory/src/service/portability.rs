//! Export and import as signed JSON lines, and the check of contents on Walrus.

mod export;
mod import;
mod lines;

use std::collections::BTreeMap;

use baton_keys::contexts::MEMORY_EXPORT;
use baton_proto::ids::BlobId;
use baton_walrus_client::quilt::QuiltPatchId;
use futures::{StreamExt as _, stream};

use self::{
    export::Exporter,
    import::Import,
    lines::{FORMAT, Line, digest, json, parse, wrong},
};
use super::Memory;
use crate::{
    api::{ImportReport, MemoryError, Place, RestoreReport, Result},
    content,
    events::{Event, StoredKey},
    ids::{ItemId, OwnerId},
    limits::{MAX_ITEMS, MAX_TEXT_BYTES, RESTORE_AT_ONCE},
    model::{MemoryScope, Text},
    owner::{CommitOutcome, Owner, Plan, busy},
    state::Entry,
    storage::JobChange,
};

/// Longest line of an import: an item of the largest text, every byte escaped.
const MAX_LINE_BYTES: usize = 6 * MAX_TEXT_BYTES + 64 * 1024;
/// Import lines of one commit.
const LINES_PER_COMMIT: usize = 500;
/// Most lines of an import for each item allowed, to include places, edges and turns.
const LINES_PER_ITEM: u64 = 8;

impl Memory {
    /// Exports everything of the owner, or everything visible from one place, as signed JSON lines (F1, C13).
    /// The lines are a header, the places and items, and a signature over all lines before it. Intimate items are
    /// included only if `intimate` is set.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] for a missing place, [`MemoryError::Conflict`] for a contradictory place,
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn export(&self, owner: OwnerId, place: Option<Place>, intimate: bool) -> Result<Vec<Text>> {
        let exported_ms = self.now_ms();
        self.read(owner, |open| {
            let key = open.keys().export_key();
            let header = Line::Header {
                format: FORMAT.into(),
                owner: owner.to_string(),
                exported_ms,
                public_key: key.public_key().to_string(),
            };
            let mut lines = vec![json(&header)];
            let places = &open.state.places;
            let view = place.as_ref().map(|place| places.resolve(place, MemoryScope::Full)).transpose()?;
            let visibility = |number: u64, entry: &Entry| {
                open.state.visibility(view.as_ref(), number, entry).filter(|how| intimate || !how.intimate)
            };
            lines.extend(Exporter::lines(open, view.as_ref(), &visibility).iter().map(json));
            let signature = hex::encode(key.sign(MEMORY_EXPORT, &digest(lines.iter())));
            lines.push(json(&Line::Signature { signature, lines: lines.len() as u64 }));
            Ok(lines)
        })
        .await
    }

    /// Imports an export. Existing items stay. An owner's own export comes back unchanged. Its proof is the
    /// signing key of the owner here, or the account's own signature, which stays valid after an erasure.
    /// Another owner's items are marked as imported, and are not trusted like the user's own words.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] for an invalid line or signature: nothing is imported then.
    /// [`MemoryError::Full`].
    pub async fn import(&self, owner: OwnerId, lines: Vec<Text>) -> Result<ImportReport> {
        if lines.len() as u64 > MAX_ITEMS * LINES_PER_ITEM
            || lines.iter().any(|line| line.len() > MAX_LINE_BYTES)
        {
            return Err(MemoryError::Invalid("the import is larger than an owner's memory may be".into()));
        }
        let parsed = parse(&lines)?;
        let items = parsed.lines.iter().filter(|(_, line)| matches!(line, Line::Item(_))).count();
        let own = self
            .read(owner, |open| {
                self.check_room(open, items)?;
                let made_here = parsed.public_key == open.keys().export_key().public_key();
                Ok(parsed.owner == owner && (made_here || parsed.endorsed_by == Some(owner)))
            })
            .await?;
        let mut import = Import::new(own);
        let mut lines = parsed.lines.into_iter().peekable();
        while lines.peek().is_some() {
            let part: Vec<(usize, Line)> = lines.by_ref().take(LINES_PER_COMMIT).collect();
            self.import_part(owner, part, &mut import).await?;
        }
        self.inner.work.notify_one();
        Ok(import.report)
    }

    /// Applies lines in order, each on the state of the lines before it; all become durable together.
    async fn import_part(&self, owner: OwnerId, part: Vec<(usize, Line)>, import: &mut Import) -> Result<()> {
        self.hold(owner, async |open| {
            let mut state = open.state.clone();
            let mut all = Vec::new();
            for (at, line) in part {
                for event in import.events(open, &state, line, at)? {
                    state.apply(state.next, &event).map_err(|_| wrong(at, "does not unpack"))?;
                    all.push(event);
                }
            }
            let plan = Plan { job: Some(JobChange::Due(self.now_ms())), ..Plan::of(all) };
            match open.commit(plan).await? {
                CommitOutcome::Done => Ok(()),
                CommitOutcome::Conflict => Err(busy()),
            }
        })
        .await
    }

    /// Reads a project's contents on Walrus again, newest first, and opens them with their keys. Unreadable
    /// or different contents are stored anew; matching ones are skipped.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] for the project, [`MemoryError::Unavailable`] without Walrus.
    pub async fn restore(
        &self,
        owner: OwnerId,
        project: Option<String>,
        limit: usize,
    ) -> Result<RestoreReport> {
        let Some(contents) = self.inner.parts.contents.clone() else {
            return Err(MemoryError::Unavailable("this relayer keeps no contents on Walrus".into()));
        };
        let (stored, total) = self.read(owner, |open| open.stored_in(project.as_deref(), limit)).await?;
        let checked = stored.len() as u64;
        let mut restored = RestoreReport { total, truncated: total > checked, ..RestoreReport::default() };
        let mut quilts: BTreeMap<BlobId, Vec<StoredContent>> = BTreeMap::new();
        for content in stored {
            quilts.entry(content.2.quilt).or_default().push(content);
        }
        let reads = quilts.into_iter().map(async |(quilt, mut missing)| {
            for verified in [false, true] {
                let Ok(read) = contents.get(quilt, verified).await else { break };
                missing.retain(|(id, key, patch, text)| {
                    let content = read.get(patch).and_then(|bytes| content::open(owner, *id, key, bytes));
                    content.is_none_or(|content| content.text != *text)
                });
                if missing.is_empty() {
                    break;
                }
            }
            missing.into_iter().map(|(id, ..)| id).collect()
        });
        let lost: Vec<Vec<ItemId>> = stream::iter(reads).buffer_unordered(RESTORE_AT_ONCE).collect().await;
        let lost = lost.concat();
        restored.skipped = checked - lost.len() as u64;
        if !lost.is_empty() {
            self.write(owner, |_| Ok((Plan::of(vec![Event::Unstored { items: lost.clone() }]), ()))).await?;
            // Stored at once, so that the answer reports the result.
            self.store_now(owner).await?;
            let again = self.read(owner, |open| {
                Ok(lost
                    .iter()
                    .filter(|id| open.state.entry(**id).is_some_and(|entry| !entry.waits_for_store()))
                    .count())
            });
            restored.restored = again.await? as u64;
            restored.failed = lost.len() as u64 - restored.restored;
        }
        Ok(restored)
    }
}

type StoredContent = (ItemId, StoredKey, QuiltPatchId, Text);

impl Owner {
    /// Items of a project with content on Walrus, newest first, at most `limit`; and their total.
    fn stored_in(&self, project: Option<&str>, limit: usize) -> Result<(Vec<StoredContent>, u64)> {
        let id = project.map(|name| self.project(name)).transpose()?;
        let inside = self.state.entries.values().rev().filter(|entry| self.project_of(entry) == id);
        let stored: Vec<StoredContent> = inside
            .filter_map(|entry| {
                let patch = entry.pointer.as_ref()?.into();
                Some((entry.item.id, entry.key.clone(), patch, entry.item.text.clone()))
            })
            .collect();
        let total = stored.len() as u64;
        Ok((stored.into_iter().take(limit).collect(), total))
    }
}
