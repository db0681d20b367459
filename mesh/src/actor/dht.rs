//! The swarm task's part in the DHT: its own queries, and records that other members put here.

use std::{collections::HashMap, num::NonZeroUsize, sync::Arc, time::Duration};

use baton_limits::{Bucket, Buckets, Subnet};
use baton_proto::{SignedObject, ids::NodeId, node_record::NodeRecord};
use libp2p::{
    PeerId,
    kad::{
        self, GetClosestPeersError, GetProvidersOk, GetRecordError, GetRecordOk, InboundRequest, K_VALUE,
        QueryId, QueryResult, Quorum, Record, RecordKey, store::RecordStore as _,
    },
};
use tokio::{sync::oneshot, time::Instant};

use super::Actor;
use crate::{
    dht::{DhtError, LookupResult, Providers},
    ids::{node_id_of, peer_id_of},
    limits::{DHT_PUT_OWN, DHT_PUTS, DHT_PUTS_OF_SUBNET, MAX_ADDR_BYTES, MAX_DHT_ANSWERS, MAX_DHT_QUERIES},
    record_store::RecordIndex,
    records::{self, DhtKey},
};

/// Stands for every model: all nodes are its providers.
const ANY_MODEL: &str = "*";
/// Node records that a newly joined mesh fetches from the DHT; gossip brings the others within seconds.
const INTRODUCTIONS: usize = 16;
/// How often it queries while it knows fewer.
const INTRODUCE_INTERVAL: Duration = Duration::from_secs(20);

/// Addresses stored for one provider.
const MAX_PROVIDER_ADDRS: usize = 4;
/// Most providers of a model that are returned.
const MAX_PROVIDERS: usize = 64;

pub(crate) type GetReply = oneshot::Sender<Result<Option<LookupResult>, DhtError>>;
pub(crate) type PutReply = oneshot::Sender<Result<(), DhtError>>;
pub(crate) type ProvidersReply = oneshot::Sender<Result<Providers, DhtError>>;

/// A query of this mesh.
enum Query {
    Get {
        key: RecordKey,
        best: Option<LookupResult>,
        answers: usize,
        reply: GetReply,
    },
    /// Fetches the addresses of a node for a pending dial.
    Locate {
        peer: PeerId,
        key: RecordKey,
        best: Option<LookupResult>,
    },
    /// Finds the members near a key, to put a record to.
    Near {
        record: Record,
        reply: PutReply,
    },
    Put {
        reply: PutReply,
    },
    Providers {
        found: Providers,
        reply: ProvidersReply,
    },
    /// Puts a record of this mesh; no caller waits for it.
    Own,
    /// Finds nodes of any model, after joining.
    AnyModel {
        found: Providers,
    },
    /// Fetches the record of a node found so.
    Introduce {
        key: RecordKey,
        best: Option<LookupResult>,
    },
}

/// Quotas of puts here: by subnet, and in all.
struct PutQuotas {
    subnets: Buckets<Subnet>,
    all: Bucket,
}

impl Default for PutQuotas {
    fn default() -> Self {
        Self { subnets: Buckets::new(DHT_PUTS_OF_SUBNET), all: Bucket::default() }
    }
}

impl PutQuotas {
    /// Takes one put from the quotas. The operator's own network, which has no subnet, is not counted.
    fn take(&mut self, subnet: Option<Subnet>, now_ms: u64) -> bool {
        let Some(subnet) = subnet else { return true };
        self.subnets.take(subnet, now_ms).is_ok() && self.all.take(&DHT_PUTS, 1, now_ms).is_ok()
    }
}

/// The swarm task's state of the DHT.
pub(crate) struct Dht {
    queries: HashMap<QueryId, Query>,
    puts: PutQuotas,
    index: RecordIndex,
    own: Option<Arc<SignedObject<NodeRecord>>>,
    /// The time of the last put of the own record, and the number of members known then.
    own_put: Option<(Instant, usize)>,
    introduce_due: Instant,
}

impl Dht {
    pub(crate) fn new(local: PeerId, now: Instant) -> Self {
        Self {
            introduce_due: now,
            queries: HashMap::new(),
            puts: PutQuotas::default(),
            index: RecordIndex::new(local),
            own: None,
            own_put: None,
        }
    }
}

impl Actor {
    /// The DHT behaviour for a new query, or the error that prevents one.
    fn dht_for_query(&mut self) -> Result<&mut kad::Behaviour<kad::store::MemoryStore>, DhtError> {
        let busy = self.dht.queries.len() >= MAX_DHT_QUERIES;
        let Some(dht) = self.swarm.behaviour_mut().dht.as_mut() else { return Err(DhtError::Off) };
        self.counters.count(|stats| match busy {
            true => stats.dht.queries_refused += 1,
            false => stats.dht.queries += 1,
        });
        if busy { Err(DhtError::Busy) } else { Ok(dht) }
    }

    pub(crate) fn dht_get(&mut self, key: &DhtKey, reply: GetReply) {
        let key = key.to_record_key();
        match self.dht_for_query().map(|dht| dht.get_record(key.clone())) {
            Ok(id) => {
                self.dht.queries.insert(id, Query::Get { key, best: None, answers: 0, reply });
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    pub(crate) fn dht_put(&mut self, key: &DhtKey, value: Vec<u8>, expires_ms: u64, reply: PutReply) {
        let now_ms = self.clock.now_ms();
        let key = key.to_record_key();
        let expires = Instant::now() + Duration::from_millis(expires_ms.saturating_sub(now_ms));
        let record = Record { key: key.clone(), value, publisher: None, expires: Some(dht_instant(expires)) };
        match self.dht_for_query().map(|dht| dht.get_closest_peers(key.to_vec())) {
            Ok(id) => {
                self.dht.queries.insert(id, Query::Near { record, reply });
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    pub(crate) fn dht_providers(&mut self, model: String, reply: ProvidersReply) {
        let key = DhtKey::Model(model).to_record_key();
        match self.dht_for_query().map(|dht| dht.get_providers(key)) {
            Ok(id) => {
                self.dht.queries.insert(id, Query::Providers { found: Vec::new(), reply });
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Starts a search for a node's addresses, and returns whether it began. When it ends, the node is
    /// dialled.
    pub(super) fn locate(&mut self, peer: PeerId) -> bool {
        let Some(node) = node_id_of(&peer) else { return false };
        let key = DhtKey::Node(node).to_record_key();
        let Ok(id) = self.dht_for_query().map(|dht| dht.get_record(key.clone())) else { return false };
        self.dht.queries.insert(id, Query::Locate { peer, key, best: None });
        true
    }

    /// Announces this mesh's own record: by gossip now, and through the DHT from time to time.
    pub(super) fn announce(&mut self, record: Arc<SignedObject<NodeRecord>>) {
        if let Some(gossip) = self.swarm.behaviour_mut().gossip.as_mut() {
            // An error only means that there are no peers.
            let _ = gossip.publish(crate::gossip::topic(), record.encode());
        }
        let same_content = |old: &NodeRecord| {
            old.addresses == record.addresses && old.keys == record.keys && old.models == record.models
        };
        let changed = self.dht.own.as_ref().is_none_or(|old| !same_content(old));
        self.dht.own = Some(record);
        if changed {
            self.dht.own_put = None;
        }
    }

    /// Puts the own record if that is due and a member is known.
    ///
    /// It is due from time to time, and whenever the number of known members has doubled. The first known
    /// members are not those nearest to the key.
    pub(super) fn put_own(&mut self, now: Instant) {
        let members = self.dht_members().len();
        let due = self.dht.own_put.is_none_or(|(last, known)| {
            let more = known < K_VALUE.get() && members >= 2 * known;
            more || now.duration_since(last) >= DHT_PUT_OWN
        });
        let Some(own) = self.dht.own.clone().filter(|_| due && members > 0) else { return };
        let value = own.encode();
        let expires = now + Duration::from_millis(own.expires_ms.saturating_sub(self.clock.now_ms()));
        let key = DhtKey::Node(own.node).to_record_key();
        let record = Record { key: key.clone(), value, publisher: None, expires: Some(dht_instant(expires)) };
        let Ok(dht) = self.dht_for_query() else { return };
        let mut begun = vec![dht.put_record(record, Quorum::All).ok()];
        let names = own.models.iter().flat_map(|offer| [offer.name.clone(), offer.model.to_string()]);
        for name in names.chain([ANY_MODEL.to_owned()]) {
            begun.push(dht.start_providing(DhtKey::Model(name).to_record_key()).ok());
        }
        self.dht.queries.extend(begun.into_iter().flatten().map(|id| (id, Query::Own)));
        self.dht.own_put = Some((now, members));
    }

    /// Looks for some nodes while few are known. It also finds nodes behind relays, which no routing table
    /// holds.
    pub(super) fn introduce(&mut self, now: Instant) {
        if now < self.dht.introduce_due || self.dht_is_empty() {
            return;
        }
        self.dht.introduce_due = now + INTRODUCE_INTERVAL;
        if self.table().list().iter().filter(|peer| peer.record.is_some()).count() >= INTRODUCTIONS {
            return;
        }
        let key = DhtKey::Model(ANY_MODEL.to_owned()).to_record_key();
        if let Ok(id) = self.dht_for_query().map(|dht| dht.get_providers(key)) {
            self.dht.queries.insert(id, Query::AnyModel { found: Vec::new() });
        }
    }

    /// Fetches the records of nodes that are not known yet.
    fn introduced(&mut self, found: Providers) {
        let local = node_id_of(self.swarm.local_peer_id());
        let known: Vec<_> = self.table().list().into_iter().filter(|peer| peer.record.is_some()).collect();
        let new = found
            .into_iter()
            .filter(|node| Some(*node) != local && known.iter().all(|peer| peer.node != *node));
        for node in new.take(INTRODUCTIONS).collect::<Vec<_>>() {
            let key = DhtKey::Node(node).to_record_key();
            if let Ok(id) = self.dht_for_query().map(|dht| dht.get_record(key.clone())) {
                self.dht.queries.insert(id, Query::Introduce { key, best: None });
            }
        }
    }

    /// Whether no other member is known.
    pub(super) fn dht_is_empty(&mut self) -> bool {
        self.dht_members().is_empty()
    }

    /// The members in the routing table.
    pub(super) fn dht_members(&mut self) -> Vec<(PeerId, Vec<libp2p::Multiaddr>)> {
        let Some(dht) = self.swarm.behaviour_mut().dht.as_mut() else { return Vec::new() };
        let mut members = Vec::new();
        for bucket in dht.kbuckets() {
            for entry in bucket.iter() {
                let addrs = entry.node.value.iter().cloned().collect();
                members.push((*entry.node.key.preimage(), addrs));
            }
        }
        members
    }

    pub(super) fn on_dht_event(&mut self, event: kad::Event) {
        match event {
            kad::Event::InboundRequest { request } => self.on_dht_request(request),
            kad::Event::OutboundQueryProgressed { id, result, step, .. } => {
                self.on_dht_progress(id, result, step.last);
            }
            _ => {}
        }
    }

    fn on_dht_request(&mut self, request: InboundRequest) {
        self.counters.count(|stats| stats.dht.requests += 1);
        match request {
            InboundRequest::PutRecord { source, record: Some(record), .. } => {
                self.store_record(source, record)
            }
            InboundRequest::AddProvider { record: Some(provider) } => self.store_provider(provider),
            _ => {}
        }
    }

    /// Takes one put from the quotas of a peer's subnet.
    fn may_put(&mut self, source: PeerId, now_ms: u64) -> bool {
        let subnet = self.subnet_of(&source);
        let may = self.dht.puts.take(subnet, now_ms);
        if !may {
            self.counters.count(|stats| stats.dht.refused_rate += 1);
        }
        may
    }

    /// Stores a peer as a model's provider; libp2p has checked that the peer names itself.
    fn store_provider(&mut self, provider: kad::ProviderRecord) {
        let is_model = matches!(DhtKey::parse(provider.key.as_ref()), Some(DhtKey::Model(_)));
        if !is_model || !self.may_put(provider.provider, self.clock.now_ms()) {
            return;
        }
        let Some(dht) = self.swarm.behaviour_mut().dht.as_mut() else { return };
        // These addresses are never dialled, since signed records supply addresses. But a provider without
        // any is not passed on.
        let mut addresses = provider.addresses;
        addresses.retain(|address| address.len() <= MAX_ADDR_BYTES);
        addresses.truncate(MAX_PROVIDER_ADDRS);
        let _ = dht.store_mut().add_provider(kad::ProviderRecord { addresses, ..provider });
    }

    /// Stores a record for others if it is valid and newer than the stored one. The same record again extends
    /// its storage.
    fn store_record(&mut self, source: PeerId, mut record: Record) {
        let now_ms = self.clock.now_ms();
        if !self.may_put(source, now_ms) {
            return;
        }
        let summary = match records::check(record.key.as_ref(), &record.value, now_ms) {
            Ok(summary) => summary,
            Err(fault) => {
                self.counters.count(|stats| stats.dht.refused(&fault));
                tracing::debug!(%source, %fault, "a record for the DHT was refused");
                return;
            }
        };
        let key = record.key.clone();
        let known = self.dht.index.get(&key);
        let is_newer = known.is_none_or(|stored| stored.sequence < summary.sequence);
        if !(is_newer
            || known.is_some_and(|stored| stored.sequence == summary.sequence) && self.holds(&record))
        {
            self.counters.count(|stats| stats.dht.refused_old += 1);
            return;
        }
        let (evicted, fits) = match self.dht.index.insert(&key, summary, record.value.len(), now_ms) {
            Ok(evicted) => (evicted, true),
            Err(evicted) => (evicted, false),
        };
        evicted.iter().for_each(|key| self.forget(key));
        if !fits {
            self.counters.count(|stats| stats.dht.refused_full += 1);
            return;
        }
        record.publisher = None;
        let left = Duration::from_millis(summary.expires_ms.saturating_sub(now_ms));
        record.expires = Some(dht_instant(Instant::now() + left));
        if is_newer && let Some(DhtKey::Node(_)) = DhtKey::parse(key.as_ref()) {
            self.take_record(&record.value, now_ms);
        }
        // The store's limit covers these records and this mesh's own.
        let stored =
            self.swarm.behaviour_mut().dht.as_mut().is_some_and(|dht| dht.store_mut().put(record).is_ok());
        let records = self.dht.index.len() as u64;
        self.counters.count(|stats| {
            match is_newer {
                true => stats.dht.stored += u64::from(stored),
                false => stats.dht.refused_old += 1,
            }
            stats.dht.records = records;
        });
    }

    /// Whether the store holds exactly this record.
    fn holds(&mut self, record: &Record) -> bool {
        let dht = self.swarm.behaviour_mut().dht.as_mut();
        dht.is_some_and(|dht| dht.store_mut().get(&record.key).is_some_and(|held| held.value == record.value))
    }

    /// Drops expired records.
    pub(super) fn sweep_dht(&mut self, now_ms: u64) {
        let expired = self.dht.index.expire(now_ms);
        expired.iter().for_each(|key| self.forget(key));
        let records = self.dht.index.len() as u64;
        self.counters.count(|stats| stats.dht.records = records);
    }

    fn forget(&mut self, key: &RecordKey) {
        if let Some(dht) = self.swarm.behaviour_mut().dht.as_mut() {
            dht.store_mut().remove(key);
        }
    }

    fn on_dht_progress(&mut self, id: QueryId, result: QueryResult, last: bool) {
        let Some(query) = self.dht.queries.remove(&id) else {
            // The DHT's own refresh may have found members.
            if last && matches!(result, QueryResult::Bootstrap(_)) {
                self.explore(Instant::now());
            }
            return;
        };
        match (query, result) {
            (Query::Near { record, reply }, QueryResult::GetClosestPeers(result)) => {
                self.on_near(record, reply, result);
            }
            (Query::Put { reply }, QueryResult::PutRecord(result)) => {
                let took = match result {
                    Ok(_) => true,
                    Err(
                        kad::PutRecordError::QuorumFailed { success, .. }
                        | kad::PutRecordError::Timeout { success, .. },
                    ) => !success.is_empty(),
                };
                let _ = reply.send(if took { Ok(()) } else { Err(DhtError::Refused) });
            }
            (query, result) => {
                let query = self.progressed(query, result, last);
                if let Some(query) = query.filter(|_| !last) {
                    self.dht.queries.insert(id, query);
                }
            }
        }
    }

    fn on_near(&mut self, record: Record, reply: PutReply, result: kad::GetClosestPeersResult) {
        let peers: Vec<PeerId> = match result {
            Ok(near) => near.peers.into_iter().map(|peer| peer.peer_id).collect(),
            Err(GetClosestPeersError::Timeout { peers, .. }) => {
                peers.into_iter().map(|peer| peer.peer_id).collect()
            }
        };
        if peers.is_empty() {
            let _ = reply.send(Err(DhtError::NoMembers));
            return;
        }
        let quorum = NonZeroUsize::new(peers.len()).map_or(Quorum::One, Quorum::N);
        if let Ok(dht) = self.dht_for_query() {
            let id = dht.put_record_to(record, peers.into_iter(), quorum);
            self.dht.queries.insert(id, Query::Put { reply });
        }
    }

    /// Processes a reply. Returns the query if it goes on.
    fn progressed(&mut self, mut query: Query, result: QueryResult, last: bool) -> Option<Query> {
        let now_ms = self.clock.now_ms();
        let mut nobody = false;
        match (&mut query, result) {
            (
                Query::Get { key, best, answers, .. },
                QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))),
            ) => {
                *answers += 1;
                if *answers <= MAX_DHT_ANSWERS {
                    compare(key, best, found.record, now_ms);
                }
            }
            (
                Query::Locate { key, best, .. } | Query::Introduce { key, best },
                QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))),
            ) => compare(key, best, found.record, now_ms),
            (
                Query::Get { .. },
                QueryResult::GetRecord(Err(GetRecordError::NotFound { closest_peers, .. })),
            ) => {
                nobody = closest_peers.is_empty();
            }
            (
                Query::Providers { found, .. } | Query::AnyModel { found },
                QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })),
            ) => {
                let new = providers.iter().filter_map(node_id_of).filter(|node| !found.contains(node));
                let new: Vec<_> = new.take(MAX_PROVIDERS.saturating_sub(found.len())).collect();
                found.extend(new);
            }
            _ => {}
        }
        if !last {
            return Some(query);
        }
        match query {
            Query::Get { best, reply, .. } => {
                let _ =
                    reply.send(if best.is_none() && nobody { Err(DhtError::NoMembers) } else { Ok(best) });
            }
            Query::Locate { peer, best, .. } => self.located(peer, best.as_ref(), now_ms),
            Query::Providers { found, reply } => {
                let _ = reply.send(Ok(found));
            }
            Query::AnyModel { found } => self.introduced(found),
            Query::Introduce { best: Some(found), .. } => self.take_record(&found.value, now_ms),
            Query::Introduce { best: None, .. } | Query::Near { .. } | Query::Put { .. } | Query::Own => {}
        }
        None
    }

    /// Ends a search for a node's addresses, and dials the node.
    fn located(&mut self, peer: PeerId, best: Option<&LookupResult>, now_ms: u64) {
        if let Some(found) = best {
            self.take_record(&found.value, now_ms);
        }
        let known = node_id_of(&peer).map(|node| self.table().addrs(node)).unwrap_or_default();
        self.dial(peer, known);
    }

    /// Adds a node with its known addresses to the routing table, or removes it unless it `serves` the DHT.
    pub(super) fn dht_member(&mut self, node: NodeId, serves: bool) {
        let Some(peer) = peer_id_of(node) else { return };
        let addrs = self.table().addrs(node);
        let Some(dht) = self.swarm.behaviour_mut().dht.as_mut() else { return };
        if serves {
            for address in addrs {
                dht.add_address(&peer, address);
            }
        } else {
            dht.remove_peer(&peer);
        }
    }
}

/// Takes the better of two records, and ignores one that does not verify.
fn compare(key: &RecordKey, best: &mut Option<LookupResult>, record: Record, now_ms: u64) {
    if record.key != *key {
        return;
    }
    let Ok(summary) = records::check(record.key.as_ref(), &record.value, now_ms) else { return };
    match best {
        Some(found) if found.value == record.value => found.agreeing += 1,
        Some(found) if found.summary.sequence >= summary.sequence => found.behind += 1,
        _ => {
            let behind = best.take().map_or(0, |old| old.agreeing + old.behind);
            *best = Some(LookupResult { value: record.value, summary, agreeing: 1, behind });
        }
    }
}

/// A time on the clock of libp2p's records.
fn dht_instant(time: Instant) -> web_time::Instant {
    web_time::Instant::now() + time.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_are_counted_by_subnet_and_in_all() {
        let subnet = |last| Some(Subnet::V4([203, 0, last]));
        let mut puts = PutQuotas::default();
        // One put each hundredth of a second.
        let one = (0..3000).filter(|number| puts.take(subnet(1), 10 * number)).count();
        assert_eq!(one, 1200 + 599, "of one subnet in half a minute");
        let mut puts = PutQuotas::default();
        let all = (0..40).map(|last| (0..40).filter(|_| puts.take(subnet(last), 0)).count());
        assert_eq!(all.sum::<usize>(), 100, "of all in an instant");
        assert!((0..1000).all(|_| puts.take(None, 0)), "the own networks are not counted");
    }
}
