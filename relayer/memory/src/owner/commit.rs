//! Writes to an owner: plans that are made durable and folded in, the dependants of deleted items, and
//! records beside the log.

use std::collections::{BTreeSet, HashSet};

use zeroize::Zeroizing;

use super::{CommitOutcome, Owner, encode};
use crate::{
    api::Result,
    events::Event,
    ids::ItemId,
    model::Kind,
    search::QuantisedVector,
    storage::{JobChange, Space},
    vault::{Changes, Secret},
};

/// The changes of one commit.
#[derive(Default)]
pub(crate) struct Plan {
    /// Events to append, in this order.
    pub(crate) events: Vec<Event>,
    /// Events to replace in place; their former bytes become unreadable.
    pub(crate) rewrites: Vec<(u64, Event)>,
    /// Vectors to set.
    pub(crate) vectors: Vec<(u64, QuantisedVector)>,
    /// The change of the owner's job.
    pub(crate) job: Option<JobChange>,
    /// Whether events leave the job as it is. Else it becomes due: they may have created work.
    pub(crate) is_quiet: bool,
}

impl Plan {
    pub(crate) fn of(events: Vec<Event>) -> Self {
        Self { events, ..Self::default() }
    }

    /// The same plan, from the job itself: it does not wake the job.
    pub(crate) fn quiet(self) -> Self {
        Self { is_quiet: true, ..self }
    }

    /// Replaces an event in place, unless the plan does so already.
    pub(crate) fn rewrite(&mut self, number: u64, event: Event) {
        if !self.rewrites.iter().any(|(known, _)| *known == number) {
            self.rewrites.push((number, event));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.rewrites.is_empty() && self.vectors.is_empty() && self.job.is_none()
    }
}

impl Owner {
    /// Makes a plan durable and folds it in. On a conflict, it folds in the other writer's changes; the
    /// caller must then plan again.
    ///
    /// # Errors
    /// [`MemoryError`](crate::api::MemoryError); [`CommitOutcome::Conflict`] is not an error.
    pub(crate) async fn commit(&mut self, plan: Plan) -> Result<CommitOutcome> {
        if plan.is_empty() {
            return Ok(CommitOutcome::Done);
        }
        let mut changes = self.changes(&plan);
        // Former bytes must become unreadable.
        let destroys = !plan.rewrites.is_empty();
        if destroys {
            self.unpack(&mut changes, &self.rewritten(&plan)).await?;
        }
        let single = |(space, number)| (space == Space::Features).then_some(number);
        let written: Vec<u64> =
            changes.put.iter().filter_map(|(space, number, _)| single((*space, *number))).collect();
        let removed: BTreeSet<u64> = changes.remove.iter().copied().filter_map(single).collect();
        if self.make_durable(changes, destroys).await? == CommitOutcome::Conflict {
            return Ok(CommitOutcome::Conflict);
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
        for (number, vector) in plan.vectors {
            self.unembedded.remove(&number);
            self.index.set_vector(number, vector);
        }
        self.loose.extend(written);
        self.loose.retain(|number| !removed.contains(number));
        if destroys {
            self.snapshot_at = 0;
        }
        Ok(CommitOutcome::Done)
    }

    /// Makes changes durable; `destroys` makes former bytes unreadable. On a conflict, it folds in the other writer's
    /// changes.
    pub(super) async fn make_durable(&mut self, changes: Changes, destroys: bool) -> Result<CommitOutcome> {
        let committed =
            if destroys { self.vault.redact(changes).await } else { self.vault.commit(changes).await };
        match committed {
            Ok(_) => Ok(CommitOutcome::Done),
            Err(error) if error.is_conflict() => {
                self.catch_up().await?;
                Ok(CommitOutcome::Conflict)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Items whose words a plan deletes or replaces.
    fn rewritten(&self, plan: &Plan) -> BTreeSet<u64> {
        let deleted = plan.events.iter().flat_map(|event| match event {
            Event::Deleted { items } => items.as_slice(),
            _ => &[],
        });
        let deleted = deleted.filter_map(|id| self.state.number(*id));
        deleted.chain(plan.rewrites.iter().map(|(number, _)| *number)).collect()
    }

    /// The records that a plan changes.
    fn changes(&self, plan: &Plan) -> Changes {
        let mut changes = Changes::default();
        for (number, event) in (self.state.next..).zip(&plan.events) {
            changes.put.push((Space::Log, number, encode(event)));
            match event {
                Event::Added(stored) => self.put_features(&mut changes, number, stored),
                Event::Deleted { items } => {
                    let numbers = items.iter().filter_map(|id| self.state.number(*id));
                    changes.remove.extend(numbers.map(|number| (Space::Features, number)));
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
        changes.job = plan.job;
        changes
    }

    /// Sealed records that handlers keep for the owner.
    pub(crate) async fn named_record(&mut self, name: &str) -> Result<Option<Secret>> {
        let number = self.keys().record_number(name);
        Ok(self.vault.get(Space::Sessions, number).await?)
    }

    /// Writes or removes such records together; removed bytes become unreadable. A conflict changes nothing,
    /// since the records read before may differ by now.
    pub(crate) async fn set_named_records(
        &mut self,
        records: &[(String, Option<Vec<u8>>)],
    ) -> Result<CommitOutcome> {
        if records.is_empty() {
            return Ok(CommitOutcome::Done);
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
        self.make_durable(changes, removes).await
    }

    /// The plan that deletes these items and the entities that only they name: it redacts their events and
    /// their edges.
    pub(crate) fn plan_delete(&self, ids: &[ItemId]) -> Plan {
        let mut going: BTreeSet<ItemId> =
            ids.iter().copied().filter(|id| self.state.number(*id).is_some()).collect();
        if going.is_empty() {
            return Plan::default();
        }
        going.extend(self.state.named_only_by(&going));
        let ids: Vec<ItemId> = going.into_iter().collect();
        let mut gone = self.state.events_about(&ids);
        let quoting = self.edges_quoting_only(&ids);
        gone.extend(&quoting);
        let rewrites = gone.into_iter().map(|number| (number, Event::Redacted)).collect();
        let mut events = vec![Event::Deleted { items: ids }];
        if !quoting.is_empty() {
            events.push(Event::EdgesEnded { edges: quoting });
        }
        Plan { events, rewrites, ..Plan::default() }
    }

    /// Edges between other items whose quotes only these items contain.
    pub(crate) fn edges_quoting_only(&self, ids: &[ItemId]) -> Vec<u64> {
        let going: HashSet<ItemId> = ids.iter().copied().collect();
        let texts: Vec<&str> = ids.iter().filter_map(|id| Some(&*self.state.entry(*id)?.item.text)).collect();
        let quoting = self.state.edges.iter().filter(|(_, edge)| {
            !edge.evidence.is_empty()
                && !going.contains(&edge.from)
                && !going.contains(&edge.to)
                && texts.iter().any(|text| text.contains(&*edge.evidence))
                && !self.says_somewhere(&edge.evidence, &going)
        });
        quoting.map(|(number, _)| *number).collect()
    }

    /// Whether a fact or message outside `except` contains these words.
    pub(crate) fn says_somewhere(&self, words: &str, except: &HashSet<ItemId>) -> bool {
        self.state.entries.values().map(|entry| &entry.item).any(|item| {
            matches!(item.kind, Kind::Fact | Kind::Episode)
                && !except.contains(&item.id)
                && item.text.contains(words)
        })
    }
}
