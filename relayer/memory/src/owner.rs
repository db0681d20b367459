//! An open owner: the vault, the fold of the log and the search index, kept in step. All writing goes through
//! [`Owner::commit`]: planned on the state, made durable, then folded in.

use std::{collections::BTreeSet, sync::Arc};

use baton_proto::codec;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    api::{MemoryError, Result},
    events::{Event, StoredItem},
    ids::{ItemId, OwnerId},
    keyring::OwnerKeys,
    limits::MAX_TEXT_BYTES,
    model::{Author, Item, Kind},
    rotation::rotate,
    scope::Class,
    search::{ASSISTANT_SPEAKER, Features, Index, Quantised, TermHasher, USER_SPEAKER, document_features},
    state::{State, class_of},
    storage::{IndexRow, Space},
    vault::{Changes, OwnerVault, Secret},
};

/// Format of snapshots; another one is not read, and the log is folded instead.
const SNAPSHOT_VERSION: u32 = 2;
/// Events after which a new snapshot is worth its bytes.
const SNAPSHOT_EVERY: u64 = 4_096;
/// Turns after which all turns are looked through again: fewer would make a long memory's every write slow.
const REVIEW_EVERY: usize = 8;
/// What an item, edge or turn takes beside its text, about.
const BYTES_PER_ITEM: usize = 600;
/// Largest encoded event: an item of the largest text, with room for what surrounds it.
const MAX_EVENT_BYTES: usize = MAX_TEXT_BYTES + 64 * 1024;
/// Largest snapshot.
const MAX_SNAPSHOT_BYTES: usize = 1 << 30;

/// What is kept of an item to find it by, with which embedder made the vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FeatureRecord {
    /// The embedder; empty without a vector.
    pub(crate) embedder: String,
    pub(crate) dimensions: u32,
    /// BLAKE3 of the vector's codes (C6).
    pub(crate) checksum: [u8; 32],
    pub(crate) features: Features,
}

impl FeatureRecord {
    fn new(features: Features, embedder: &str) -> Self {
        let (dimensions, checksum) = features.vector.as_ref().map_or((0, [0; 32]), |vector| {
            (u32::try_from(vector.codes.len()).unwrap_or(u32::MAX), checksum(vector))
        });
        let embedder = if dimensions == 0 { String::new() } else { embedder.to_owned() };
        Self { embedder, dimensions, checksum, features }
    }

    /// Whether its vector is one of this embedder, and whole.
    fn is_of(&self, embedder: &str, dimensions: usize) -> bool {
        let vector = self.features.vector.as_ref();
        self.embedder == embedder
            && vector
                .is_some_and(|vector| vector.codes.len() == dimensions && checksum(vector) == self.checksum)
    }
}

fn checksum(vector: &Quantised) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&vector.scale.to_le_bytes());
    for code in &vector.codes {
        hasher.update(&code.to_le_bytes());
    }
    hasher.finalize().into()
}

/// What vectors there are to be: of which embedder, and how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VectorKind {
    pub(crate) embedder: String,
    pub(crate) dimensions: usize,
}

/// What a commit is to do.
#[derive(Default)]
pub(crate) struct Plan {
    /// Events to append, in this order.
    pub(crate) events: Vec<Event>,
    /// Events to write anew in their place; their former bytes become unreadable.
    pub(crate) rewrites: Vec<(u64, Event)>,
    /// Vectors to set.
    pub(crate) vectors: Vec<(u64, Quantised)>,
    /// What becomes of the owner's job.
    pub(crate) job: Job,
}

/// What a commit does to the job of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Job {
    /// Due at once, if the plan has events: they may have made work.
    #[default]
    Wake,
    /// As it is.
    Leave,
    /// Due at a time.
    Due(u64),
    /// Done.
    Done,
}

impl Plan {
    pub(crate) fn of(events: Vec<Event>) -> Self {
        Self { events, ..Self::default() }
    }

    /// The same plan, by the job itself: it wakes nobody.
    pub(crate) fn quiet(self) -> Self {
        Self { job: Job::Leave, ..self }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let changes_job = matches!(self.job, Job::Due(_) | Job::Done);
        self.events.is_empty() && self.rewrites.is_empty() && self.vectors.is_empty() && !changes_job
    }
}

/// The number of the one job of an owner: do whatever is to do.
pub(crate) const JOB: u64 = 0;

/// An open owner.
pub(crate) struct Owner {
    pub(crate) id: OwnerId,
    vault: OwnerVault,
    keys: Arc<OwnerKeys>,
    pub(crate) state: State,
    pub(crate) index: Index,
    hasher: TermHasher,
    kind: VectorKind,
    /// Items without a vector of the present embedder.
    pub(crate) unembedded: BTreeSet<u64>,
    /// Whether the database searches, so that its index is written and the one in memory left empty.
    in_database: bool,
    snapshot_at: u64,
    /// Turns that there were when all of them were last looked through for what single turns do not show.
    reviewed: Option<usize>,
}

impl Owner {
    /// Folds what the vault holds of an owner.
    pub(crate) async fn open(vault: OwnerVault, kind: VectorKind, in_database: bool) -> Result<Self> {
        let keys = vault.keys();
        let hasher = TermHasher::new(*keys.term_key());
        let mut owner = Self {
            id: vault.owner(),
            keys,
            state: State::default(),
            index: Index::new(kind.dimensions),
            hasher,
            kind,
            unembedded: BTreeSet::new(),
            in_database,
            snapshot_at: 0,
            reviewed: None,
            vault,
        };
        owner.load().await?;
        Ok(owner)
    }

    async fn load(&mut self) -> Result<()> {
        if let Some(state) = self.read_snapshot().await? {
            self.snapshot_at = state.next;
            self.state = state;
        }
        self.read_log().await?;
        self.read_features(0).await
    }

    async fn read_snapshot(&mut self) -> Result<Option<State>> {
        let records = self.vault.read(Space::Snapshot, 0).await?;
        let Some((_, bytes)) = records.into_iter().next() else { return Ok(None) };
        let Ok((version, state)) = codec::decode::<(u32, State)>(&bytes, MAX_SNAPSHOT_BYTES) else {
            tracing::warn!("a snapshot cannot be read: the log is folded instead");
            return Ok(None);
        };
        Ok((version == SNAPSHOT_VERSION).then_some(state))
    }

    /// Folds events from the next number on; returns those that another writer appended meanwhile.
    async fn read_log(&mut self) -> Result<()> {
        loop {
            let from = self.state.next;
            let records = self.vault.read(Space::Log, from).await?;
            if records.is_empty() {
                return Ok(());
            }
            for (number, bytes) in records {
                // Numbers have no holes: what was deleted has left an empty event. A database that lost pages, and does not
                // say so, is noticed here.
                if number != self.state.next {
                    let lost = number - self.state.next;
                    tracing::error!(lost, "events are missing from an owner's log");
                    return Err(damaged(
                        "events are missing from its log; restore the database from a backup",
                    ));
                }
                let event = decode_event(&bytes)?;
                self.fold(number, &event)?;
                if let Event::Rewritten { numbers } = event {
                    self.read_again(&numbers).await?;
                }
            }
        }
    }

    /// Takes in events that were written anew by another writer after they were folded here.
    async fn read_again(&mut self, numbers: &[u64]) -> Result<()> {
        for number in numbers.iter().copied() {
            if !self.state.entries.contains_key(&number) {
                continue;
            }
            let Some(bytes) = self.vault.get(Space::Log, number).await? else { continue };
            if let Event::Added(stored) = decode_event(&bytes)? {
                self.rewrite(number, &stored)?;
            }
        }
        Ok(())
    }

    async fn read_features(&mut self, from: u64) -> Result<()> {
        let mut from = from;
        loop {
            let records = self.vault.read(Space::Features, from).await?;
            let Some((last, _)) = records.last() else { break };
            from = last + 1;
            for (number, bytes) in records {
                let Ok(record) = codec::decode::<FeatureRecord>(&bytes, MAX_EVENT_BYTES) else { continue };
                self.take_features(number, record);
            }
        }
        // What has no record (a crash of an older version, damage) is made again from its text.
        if !self.in_database {
            let missing: Vec<u64> =
                self.state.entries.keys().copied().filter(|number| !self.index.contains(*number)).collect();
            for number in missing {
                if let Some(entry) = self.state.entries.get(&number) {
                    self.index.insert(number, features_of(&entry.item, &self.hasher));
                    self.unembedded.insert(number);
                }
            }
        }
        Ok(())
    }

    fn take_features(&mut self, number: u64, record: FeatureRecord) {
        if !self.state.entries.contains_key(&number) {
            return;
        }
        let current = record.is_of(&self.kind.embedder, self.kind.dimensions);
        let mut features = record.features;
        if current {
            self.unembedded.remove(&number);
        } else {
            features.vector = None;
            self.unembedded.insert(number);
        }
        if !self.in_database {
            self.index.insert(number, features);
        }
    }

    /// Takes in what other relayers committed on the same database.
    pub(crate) async fn catch_up(&mut self) -> Result<()> {
        let from = self.state.next;
        let version = self.vault.version();
        if self.vault.refresh().await? == version {
            return Ok(());
        }
        // An owner that had nothing until now may have got its keys from another relayer.
        self.keys = self.vault.keys();
        self.hasher = TermHasher::new(*self.keys.term_key());
        self.read_log().await?;
        // What waited for its vector may have got it from another relayer.
        let from = self.unembedded.first().copied().unwrap_or(from).min(from);
        self.read_features(from).await
    }

    pub(crate) fn keys(&self) -> &OwnerKeys {
        &self.keys
    }

    pub(crate) fn vault(&self) -> &OwnerVault {
        &self.vault
    }

    /// About how many bytes it takes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let items = self.state.entries.len() + self.state.edges.len() + self.state.turns.len();
        2 * self.state.bytes + (items * BYTES_PER_ITEM) as u64 + self.index.bytes() as u64
    }

    pub(crate) fn hasher(&self) -> &TermHasher {
        &self.hasher
    }

    /// Keyed hash of a text in its canonical form, by who said it (C6).
    pub(crate) fn content_hash(&self, author: Author, kind: Kind, text: &str) -> [u8; 32] {
        let canonical = Zeroizing::new(match kind {
            // What was said is one only if it is the same to the letter; what was learned, if it says the same.
            Kind::Episode => text.to_owned(),
            _ => crate::writing::canonical(text),
        });
        let mut content = Zeroizing::new(vec![author as u8, kind as u8]);
        content.extend_from_slice(canonical.as_bytes());
        self.keys().content_hash(&content)
    }

    /// Makes a plan durable and folds it in. A conflict with another writer takes in what that one wrote and is told: the
    /// plan has to be made again.
    ///
    /// # Errors
    /// [`Committed::Conflict`] is no error; [`MemoryError`] is.
    pub(crate) async fn commit(&mut self, plan: Plan) -> Result<Committed> {
        if plan.is_empty() {
            return Ok(Committed::Done);
        }
        let (changes, destroys, rehomed) = self.changes(&plan);
        let committed =
            if destroys { self.vault.redact(changes).await } else { self.vault.commit(changes).await };
        match committed {
            Ok(_) => {}
            Err(error) if error.is_conflict() => {
                self.catch_up().await?;
                return Ok(Committed::Conflict);
            }
            Err(error) => return Err(error.into()),
        }
        for (number, event) in &plan.rewrites {
            if let Event::Added(stored) = event {
                self.rewrite(*number, stored)?;
            }
        }
        for event in &plan.events {
            let number = self.state.next;
            self.fold(number, event)?;
        }
        self.unembedded.extend(rehomed.into_iter().filter(|number| self.state.entries.contains_key(number)));
        for (number, vector) in plan.vectors {
            self.unembedded.remove(&number);
            if !self.in_database {
                self.index.set_vector(number, Some(vector));
            }
        }
        if destroys {
            self.snapshot_at = 0;
        }
        Ok(Committed::Done)
    }

    /// The records and rows that a plan changes, whether former bytes have to become unreadable, and the items that
    /// belong elsewhere afterwards.
    fn changes(&self, plan: &Plan) -> (Changes, bool, BTreeSet<u64>) {
        let mut changes = Changes::default();
        let mut rehomed: BTreeSet<u64> = BTreeSet::new();
        for (number, event) in (self.state.next..).zip(&plan.events) {
            changes.put.push((Space::Log, number, encode(event)));
            match event {
                Event::Added(stored) => self.put_features(&mut changes, number, stored),
                Event::Deleted { items } => {
                    for number in items.iter().filter_map(|id| self.state.number(*id)) {
                        changes.remove.push((Space::Features, number));
                        if self.in_database {
                            changes.unindex.push(number);
                        }
                    }
                }
                Event::SessionDeleted { id, .. } if self.in_database => {
                    rehomed.extend(self.state.entries_of(*id).map(|(number, _)| number));
                }
                _ => {}
            }
        }
        for (number, event) in &plan.rewrites {
            changes.put.push((Space::Log, *number, encode(event)));
            if let Event::Added(stored) = event {
                self.put_features(&mut changes, *number, stored);
            }
        }
        for (number, vector) in &plan.vectors {
            self.put_vector(&mut changes, *number, vector);
        }
        let destroys = !plan.rewrites.is_empty();
        self.rehome(&mut changes, plan, &rehomed);
        match plan.job {
            Job::Due(due_ms) => changes.jobs.push((JOB, due_ms)),
            Job::Done => changes.done.push(JOB),
            Job::Wake | Job::Leave => {}
        }
        (changes, destroys, rehomed)
    }

    /// New rows for items that now belong elsewhere.
    fn rehome(&self, changes: &mut Changes, plan: &Plan, numbers: &BTreeSet<u64>) {
        if numbers.is_empty() {
            return;
        }
        let mut after = self.state.clone();
        for (number, event) in (self.state.next..).zip(&plan.events) {
            // The events were made for this state, and unpack.
            let _ = after.apply(number, event);
        }
        for number in numbers {
            if let Some(entry) = after.entries.get(number) {
                // Its vector is not at hand: it is embedded again.
                let features = features_of(&entry.item, &self.hasher);
                changes.index.push(self.row(*number, entry.class(), &features));
                changes.put.push((Space::Features, *number, encode(&FeatureRecord::new(features, ""))));
            }
        }
    }

    fn put_features(&self, changes: &mut Changes, number: u64, stored: &StoredItem) {
        let Ok(item) = stored.unpack() else { return };
        let features = features_of(&item, &self.hasher);
        if self.in_database {
            changes.index.push(self.row(number, class_of(&item), &features));
        }
        changes.put.push((Space::Features, number, encode(&FeatureRecord::new(features, ""))));
    }

    fn put_vector(&self, changes: &mut Changes, number: u64, vector: &Quantised) {
        let Some(entry) = self.state.entries.get(&number) else { return };
        let mut features = features_of(&entry.item, &self.hasher);
        features.vector = Some(vector.clone());
        if self.in_database {
            changes.index.push(self.row(number, entry.class(), &features));
        }
        let record = FeatureRecord::new(features, &self.kind.embedder);
        changes.put.push((Space::Features, number, encode(&record)));
    }

    fn row(&self, number: u64, class: Class, features: &Features) -> IndexRow {
        let rotated = |vector: &Quantised| rotate(self.keys().rotation_seed(), &vector.to_unit());
        IndexRow {
            number,
            class: self.keys().class_tag(&class.bytes()),
            vector: features.vector.as_ref().map(rotated),
            length: features.length,
            terms: features.terms.clone(),
        }
    }

    fn fold(&mut self, number: u64, event: &Event) -> Result<()> {
        if let Event::Deleted { items } = event {
            for number in items.iter().filter_map(|id| self.state.number(*id)).collect::<Vec<_>>() {
                self.index.remove(number);
                self.unembedded.remove(&number);
            }
        }
        self.state.apply(number, event).map_err(|_| damaged("an item does not unpack"))?;
        if let (Event::Added(_), Some(entry)) = (event, self.state.entries.get(&number)) {
            if !self.in_database {
                self.index.insert(number, features_of(&entry.item, &self.hasher));
            }
            self.unembedded.insert(number);
        }
        Ok(())
    }

    fn rewrite(&mut self, number: u64, stored: &StoredItem) -> Result<()> {
        self.state.rewrite(number, stored).map_err(|_| damaged("an item does not unpack"))?;
        if let Some(entry) = self.state.entries.get(&number) {
            if !self.in_database {
                self.index.insert(number, features_of(&entry.item, &self.hasher));
            }
            self.unembedded.insert(number);
        }
        Ok(())
    }

    /// Whether enough turns came since the last review to look through all of them again.
    pub(crate) fn is_review_due(&self) -> bool {
        self.reviewed.is_none_or(|reviewed| self.state.turns.len() >= reviewed + REVIEW_EVERY)
    }

    /// Notes that all turns were looked through.
    pub(crate) fn note_review(&mut self) {
        if self.is_review_due() {
            self.reviewed = Some(self.state.turns.len());
        }
    }

    /// Writes a snapshot if the log has grown enough since the last one.
    pub(crate) async fn take_snapshot(&mut self) -> Result<()> {
        if self.state.next < self.snapshot_at + SNAPSHOT_EVERY {
            return Ok(());
        }
        self.write_snapshot().await
    }

    /// Writes a snapshot.
    pub(crate) async fn write_snapshot(&mut self) -> Result<()> {
        let mut changes = Changes::default();
        changes.put.push((Space::Snapshot, 0, encode(&(SNAPSHOT_VERSION, &self.state))));
        match self.vault.commit(changes).await {
            Ok(_) => self.snapshot_at = self.state.next,
            // Another writer was faster; the next one will do.
            Err(error) if error.is_conflict() => self.catch_up().await?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Sealed records that the doors keep for the owner.
    pub(crate) async fn named_record(&mut self, name: &str) -> Result<Option<Secret>> {
        let number = self.keys().record_number(name);
        Ok(self.vault.get(Space::Sessions, number).await?)
    }

    /// Writes such records together, or removes them so that their former bytes are unreadable. A conflict with another
    /// writer changes nothing: what was read before may be another by now.
    pub(crate) async fn set_named_records(
        &mut self,
        records: &[(String, Option<Vec<u8>>)],
    ) -> Result<Committed> {
        if records.is_empty() {
            return Ok(Committed::Done);
        }
        let mut changes = Changes::default();
        for (name, bytes) in records {
            let number = self.keys().record_number(name);
            match bytes {
                Some(bytes) => changes.put.push((Space::Sessions, number, Zeroizing::new(bytes.clone()))),
                None => changes.remove.push((Space::Sessions, number)),
            }
        }
        let removes = !changes.remove.is_empty();
        let committed =
            if removes { self.vault.redact(changes).await } else { self.vault.commit(changes).await };
        match committed {
            Ok(_) => Ok(Committed::Done),
            Err(error) if error.is_conflict() => {
                self.catch_up().await?;
                Ok(Committed::Conflict)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The plan that leaves nothing of these items: their events and the edges at them are unwritten.
    pub(crate) fn plan_delete(&self, ids: &[ItemId]) -> Plan {
        let ids: Vec<ItemId> = ids.iter().copied().filter(|id| self.state.number(*id).is_some()).collect();
        if ids.is_empty() {
            return Plan::default();
        }
        let rewrites =
            self.state.events_about(&ids).into_iter().map(|number| (number, Event::Redacted)).collect();
        Plan { events: vec![Event::Deleted { items: ids }], rewrites, ..Plan::default() }
    }

    /// Items with all that holds their words: what was made from them, and the messages that a fact was taken from. Deleting
    /// a fact and leaving the message that says it would delete nothing.
    pub(crate) fn with_their_words(&self, ids: &[ItemId]) -> Vec<ItemId> {
        let mut all: BTreeSet<ItemId> = ids.iter().copied().collect();
        for id in ids {
            let Some(entry) = self.state.entry(*id) else { continue };
            let sources = entry.item.provenance.sources.iter().filter_map(|source| self.state.entry(*source));
            let saying = sources.filter(|source| source.item.text.contains(&*entry.item.text));
            all.extend(saying.map(|source| source.item.id));
        }
        let derived = self.state.entries.values().filter(|entry| {
            entry.item.provenance.sources.iter().any(|source| all.contains(source))
                && (entry.item.kind == Kind::Summary
                    || ids.iter().any(|id| entry.item.provenance.sources.contains(id)))
        });
        let derived: Vec<ItemId> = derived.map(|entry| entry.item.id).collect();
        all.extend(derived);
        all.into_iter().collect()
    }
}

/// How often a plan that met another writer is made again.
pub(crate) const COMMIT_TRIES: usize = 8;

/// What became of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Committed {
    Done,
    /// Another writer was faster; what it wrote is folded in.
    Conflict,
}

pub(crate) fn busy() -> MemoryError {
    MemoryError::Unavailable("other relayers write to this owner all the time; try again".into())
}

fn damaged(what: &str) -> MemoryError {
    MemoryError::Damaged(what.to_owned())
}

fn decode_event(bytes: &[u8]) -> Result<Event> {
    codec::decode(bytes, MAX_EVENT_BYTES).map_err(|_| damaged("an event cannot be read"))
}

fn encode<T: Serialize>(value: &T) -> Secret {
    Zeroizing::new(codec::encode(value))
}

/// What an item is found by: its text, who said it and when.
pub(crate) fn features_of(item: &Item, hasher: &TermHasher) -> Features {
    document_features(&item.text, speaker(item.provenance.author), item.provenance.time_ms, hasher)
}

/// What the embedder is given of an item.
pub(crate) fn embedded_text(item: &Item) -> String {
    crate::search::indexed_text(&item.text, speaker(item.provenance.author), item.provenance.time_ms)
}

fn speaker(author: Author) -> &'static str {
    match author {
        Author::Assistant => ASSISTANT_SPEAKER,
        Author::User | Author::Owner | Author::Import => USER_SPEAKER,
    }
}
