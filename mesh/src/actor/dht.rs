//! The swarm task's part in the DHT: queries of its own, and what others ask it to keep.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use baton_proto::{Signed, ids::NodeId, node_record::NodeRecord};
use libp2p::{
    PeerId,
    kad::{
        self, GetClosestPeersError, GetProvidersOk, GetRecordError, GetRecordOk, InboundRequest, QueryId,
        QueryResult, Quorum, Record, RecordKey, store::RecordStore as _,
    },
};
use tokio::{sync::oneshot, time::Instant};

use super::Actor;
use crate::{
    dht::{DhtError, Found, Providers},
    ids::{node_id_of, peer_id_of},
    limits::{
        DHT_PUT_OWN, DHT_PUTS_PER_MINUTE, MAX_ADDR_BYTES, MAX_DHT_ANSWERS, MAX_DHT_QUERIES, MAX_DHT_RECORDS,
    },
    rate::Rates,
    records::{self, Checked, DhtKey},
};

/// Stands for every model: all nodes are providers of it.
const ANY_MODEL: &str = "*";
/// Nodes that a mesh which has just joined asks the DHT about; gossip tells of the others within seconds.
const INTRODUCTIONS: usize = 16;
/// How often it does, while it knows fewer.
const INTRODUCE_INTERVAL: Duration = Duration::from_secs(20);

/// Addresses kept of one provider.
const MAX_PROVIDER_ADDRS: usize = 4;
/// Most providers of a model that are returned.
const MAX_PROVIDERS: usize = 64;

pub(crate) type GetReply = oneshot::Sender<Result<Option<Found>, DhtError>>;
pub(crate) type PutReply = oneshot::Sender<Result<(), DhtError>>;
pub(crate) type ProvidersReply = oneshot::Sender<Result<Providers, DhtError>>;

/// A query of this mesh.
enum Query {
    Get {
        key: RecordKey,
        best: Option<Found>,
        answers: usize,
        reply: GetReply,
    },
    /// The address of a node that somebody wants to open a turn with.
    Locate {
        peer: PeerId,
        key: RecordKey,
        best: Option<Found>,
    },
    /// Members near a key, to put a record to.
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
    /// A record of this mesh's own; nobody waits for it.
    Own,
    /// Nodes of any model, for one that has just joined.
    Anybody {
        found: Providers,
    },
    /// The record of a node found so.
    Introduce {
        key: RecordKey,
        best: Option<Found>,
    },
}

/// What the swarm task remembers of the DHT.
pub(crate) struct Dht {
    queries: HashMap<QueryId, Query>,
    puts: Rates<NodeId>,
    /// Of each kept record what decides about it.
    kept: HashMap<RecordKey, Checked>,
    own: Option<Arc<Signed<NodeRecord>>>,
    own_put: Option<Instant>,
    introduce_due: Instant,
}

impl Dht {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            introduce_due: now,
            queries: HashMap::new(),
            puts: Rates::new(DHT_PUTS_PER_MINUTE),
            kept: HashMap::new(),
            own: None,
            own_put: None,
        }
    }
}

impl Actor {
    /// The DHT, for a query; the error says why there can be none.
    fn dht_for_query(&mut self) -> Result<&mut kad::Behaviour<kad::store::MemoryStore>, DhtError> {
        let busy = self.dht.queries.len() >= MAX_DHT_QUERIES;
        let Some(dht) = self.swarm.behaviour_mut().dht.as_mut() else { return Err(DhtError::Off) };
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
        let record = Record { key: key.clone(), value, publisher: None, expires: Some(expires.into_std()) };
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

    /// Looks for a node's addresses; when it has ended, whoever waits for a dial of the node is told. Whether it began.
    pub(super) fn locate(&mut self, peer: PeerId) -> bool {
        let Some(node) = node_id_of(&peer) else { return false };
        let key = DhtKey::Node(node).to_record_key();
        let Ok(id) = self.dht_for_query().map(|dht| dht.get_record(key.clone())) else { return false };
        self.dht.queries.insert(id, Query::Locate { peer, key, best: None });
        true
    }

    /// Tells others of this mesh's own record: by gossip now, and through the DHT from time to time.
    pub(super) fn announce(&mut self, record: Arc<Signed<NodeRecord>>) {
        if let Some(gossip) = self.swarm.behaviour_mut().gossip.as_mut() {
            // Without peers there is nobody to tell.
            let _ = gossip.publish(crate::gossip::topic(), record.encode());
        }
        let told = |old: &NodeRecord| {
            old.addresses == record.addresses && old.keys == record.keys && old.models == record.models
        };
        let changed = self.dht.own.as_ref().is_none_or(|old| !told(old));
        self.dht.own = Some(record);
        if changed {
            self.dht.own_put = None;
        }
    }

    /// Puts the own record where it is due and somebody is there to take it.
    pub(super) fn put_own(&mut self, now: Instant) {
        let due = self.dht.own_put.is_none_or(|last| now.duration_since(last) >= DHT_PUT_OWN);
        let Some(own) = self.dht.own.clone().filter(|_| due && !self.dht_is_empty()) else { return };
        let value = own.encode();
        let expires = now + Duration::from_millis(own.expires_ms.saturating_sub(self.clock.now_ms()));
        let key = DhtKey::Node(own.node).to_record_key();
        let record = Record { key: key.clone(), value, publisher: None, expires: Some(expires.into_std()) };
        let Ok(dht) = self.dht_for_query() else { return };
        let mut begun = vec![dht.put_record(record, Quorum::All).ok()];
        let names = own.models.iter().flat_map(|offer| [offer.name.clone(), offer.model.to_string()]);
        for name in names.chain([ANY_MODEL.to_owned()]) {
            begun.push(dht.start_providing(DhtKey::Model(name).to_record_key()).ok());
        }
        self.dht.queries.extend(begun.into_iter().flatten().map(|id| (id, Query::Own)));
        self.dht.own_put = Some(now);
    }

    /// Asks for some nodes, where few are known: also those that can be reached through relays only, whom no routing table
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
            self.dht.queries.insert(id, Query::Anybody { found: Vec::new() });
        }
    }

    /// Looks for the records of nodes that are not known yet.
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
        match request {
            InboundRequest::PutRecord { source, record: Some(record), .. } => self.keep(source, record),
            InboundRequest::AddProvider { record: Some(provider) } => {
                let model = matches!(DhtKey::parse(provider.key.as_ref()), Some(DhtKey::Model(_)));
                let Some(dht) = self.swarm.behaviour_mut().dht.as_mut().filter(|_| model) else { return };
                // Nobody dials these: addresses come from signed records. But a provider without any is not passed on.
                let mut addresses = provider.addresses;
                addresses.retain(|address| address.len() <= MAX_ADDR_BYTES);
                addresses.truncate(MAX_PROVIDER_ADDRS);
                let _ = dht.store_mut().add_provider(kad::ProviderRecord { addresses, ..provider });
            }
            _ => {}
        }
    }

    /// Keeps a record for others if it is valid and newer than the one kept.
    fn keep(&mut self, source: PeerId, mut record: Record) {
        let now_ms = self.clock.now_ms();
        let Some(node) = node_id_of(&source) else { return };
        if self.dht.puts.take(node, now_ms).is_err() {
            self.counters.dht_refused.fetch_add(1, Relaxed);
            return;
        }
        let checked = match records::check(record.key.as_ref(), &record.value, now_ms) {
            Ok(checked) => checked,
            Err(fault) => {
                self.counters.dht_refused.fetch_add(1, Relaxed);
                tracing::debug!(%source, %fault, "a record for the DHT was refused");
                return;
            }
        };
        if self.dht.kept.get(&record.key).is_some_and(|kept| kept.sequence >= checked.sequence) {
            return;
        }
        if !self.dht.kept.contains_key(&record.key) && !self.make_room(&record.key, now_ms) {
            return;
        }
        record.publisher = None;
        let left = Duration::from_millis(checked.expires_ms.saturating_sub(now_ms));
        record.expires = Some((Instant::now() + left).into_std());
        if let Some(DhtKey::Node(_)) = DhtKey::parse(record.key.as_ref()) {
            self.take_record(&record.value, now_ms);
        }
        let key = record.key.clone();
        let Some(dht) = self.swarm.behaviour_mut().dht.as_mut() else { return };
        if dht.store_mut().put(record).is_ok() {
            self.dht.kept.insert(key, checked);
            self.counters.dht_records.store(self.dht.kept.len() as u64, Relaxed);
        }
    }

    /// Room for a record under a new key: expired ones go, then the one farthest from this mesh, unless that is the new one.
    fn make_room(&mut self, key: &RecordKey, now_ms: u64) -> bool {
        if self.dht.kept.len() < MAX_DHT_RECORDS {
            return true;
        }
        self.sweep_dht(now_ms);
        if self.dht.kept.len() < MAX_DHT_RECORDS {
            return true;
        }
        let local = kad::KBucketKey::from(*self.swarm.local_peer_id());
        let distance = |key: &RecordKey| kad::KBucketKey::new(key.clone()).distance(&local);
        let farthest = self.dht.kept.keys().max_by_key(|kept| distance(kept)).cloned();
        let Some(farthest) = farthest.filter(|farthest| distance(farthest) > distance(key)) else {
            return false;
        };
        self.drop_record(&farthest);
        true
    }

    /// Drops records that are out of date.
    pub(super) fn sweep_dht(&mut self, now_ms: u64) {
        let old = self.dht.kept.iter().filter(|(_, kept)| kept.expires_ms <= now_ms);
        for key in old.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.drop_record(&key);
        }
    }

    fn drop_record(&mut self, key: &RecordKey) {
        self.dht.kept.remove(key);
        self.counters.dht_records.store(self.dht.kept.len() as u64, Relaxed);
        if let Some(dht) = self.swarm.behaviour_mut().dht.as_mut() {
            dht.store_mut().remove(key);
        }
    }

    fn on_dht_progress(&mut self, id: QueryId, result: QueryResult, last: bool) {
        let Some(query) = self.dht.queries.remove(&id) else {
            // The DHT's own refresh found members.
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

    /// Takes an answer in. Returns the query if it goes on.
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
                Query::Providers { found, .. } | Query::Anybody { found },
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
            Query::Anybody { found } => self.introduced(found),
            Query::Introduce { best: Some(found), .. } => self.take_record(&found.value, now_ms),
            Query::Introduce { best: None, .. } | Query::Near { .. } | Query::Put { .. } | Query::Own => {}
        }
        None
    }

    /// A search for a node's addresses has ended.
    fn located(&mut self, peer: PeerId, best: Option<&Found>, now_ms: u64) {
        if let Some(found) = best {
            self.take_record(&found.value, now_ms);
        }
        let known = node_id_of(&peer).map(|node| self.table().addrs(node)).unwrap_or_default();
        self.dial(peer, known);
    }

    /// A verified member of the DHT, at addresses that it may name.
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

/// Keeps the better of two records; one that does not verify is none.
fn compare(key: &RecordKey, best: &mut Option<Found>, record: Record, now_ms: u64) {
    if record.key != *key {
        return;
    }
    let Ok(checked) = records::check(record.key.as_ref(), &record.value, now_ms) else { return };
    match best {
        Some(found) if found.value == record.value => found.agreeing += 1,
        Some(found) if found.checked.sequence >= checked.sequence => found.behind += 1,
        _ => {
            let behind = best.take().map_or(0, |old| old.agreeing + old.behind);
            *best = Some(Found { value: record.value, checked, agreeing: 1, behind });
        }
    }
}
