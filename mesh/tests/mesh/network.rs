//! Discovery of unconfigured peers, and connections through relays.

use std::{sync::Arc, time::Duration};

use baton_keys::{session::SessionRoot, sign::SecretSigningKey};
use baton_mesh::{
    CircuitLimits, DhtHeads, Incoming, Mesh, MeshConfig, MeshHandle, OpenError, PeerEvent, Reach,
    Reachability, RelayLimits,
};
use baton_proto::{
    SignedObject,
    head::HeadRecord,
    ids::{ModelId, NodeId},
    node_record::{ModelOffer, NodeRecord},
    receipt::EngineKind,
    store::{HeadIndex as _, StoreError},
};
use libp2p::swarm::NetworkBehaviour;
use tokio::time::{Instant, interval};
use zeroize::Zeroizing;

use crate::{
    fixtures::{head, node_record},
    support::*,
};

/// A node with its key; it signs its record as the daemon does.
struct Member {
    key: SecretSigningKey,
    mesh: MeshHandle,
    incoming: Incoming,
}

impl Member {
    async fn start(bootstrap: &[&MeshHandle]) -> Self {
        let mut config = server_config(TCP);
        config.bootstrap = bootstrap.iter().flat_map(|mesh| mesh.bootstrap_addrs()).collect();
        Self::with(config).await
    }

    async fn with(config: MeshConfig) -> Self {
        let key = SecretSigningKey::generate();
        let (mesh, incoming) = Mesh::spawn(Zeroizing::new(*key.expose_seed()), config).await.unwrap();
        Self { key, mesh, incoming }
    }

    fn record(&self) -> Arc<SignedObject<NodeRecord>> {
        let now = now_ms();
        let addresses = self.mesh.network().external.into_iter().chain(self.mesh.listen_addrs());
        let addresses: Vec<_> = addresses.map(|address| address.to_string()).collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        let mut record = node_record(&self.key, now, &addresses);
        record.models.push(ModelOffer {
            model: ModelId([9; 32]),
            name: "a-model".to_owned(),
            engine: EngineKind::Echo,
            context_tokens: 1,
            input_price: 0,
            output_price: 0,
        });
        Arc::new(SignedObject::sign(record, &self.key))
    }

    async fn announce(&self) {
        self.mesh.announce(self.record()).await;
    }
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Repeats an attempt until it succeeds.
async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(40);
    let mut tick = interval(Duration::from_millis(100));
    loop {
        if let Some(done) = attempt().await {
            return done;
        }
        assert!(Instant::now() < deadline, "{what}");
        tick.tick().await;
    }
}

fn recorded(mesh: &MeshHandle, node: NodeId) -> Option<Arc<SignedObject<NodeRecord>>> {
    mesh.peers().into_iter().find(|peer| peer.node == node)?.record
}

/// The lifetime of heads.
const HOUR_MS: u64 = 3_600_000;

/// A chain of nodes, each configured with its predecessor only.
async fn line(length: usize) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    for _ in 0..length {
        let before: Vec<_> = members.last().map(|last| &last.mesh).into_iter().collect();
        let member = Member::start(&before).await;
        members.push(member);
    }
    members
}

async fn join(member: &Member) -> MeshHandle {
    start(MeshConfig { bootstrap: member.mesh.bootstrap_addrs(), ..dialer("client") }).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_told_of_one_node_hears_of_all_and_opens_turns_with_any() {
    let mut members = line(4).await;
    let client = join(&members[0]).await;
    eventually("the client has all records", async || {
        for member in &members {
            member.announce().await;
        }
        members.iter().all(|member| recorded(&client, member.mesh.node_id()).is_some()).then_some(())
    })
    .await;
    let far = members.last_mut().unwrap();
    let known = client.peers().into_iter().find(|peer| peer.node == far.mesh.node_id()).unwrap();
    assert!(known.serves_turns && !known.addrs.is_empty(), "{known:?}");
    connect(&client, &far.mesh, &mut far.incoming).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_found_by_its_identity_and_by_its_model_through_the_dht() {
    let mut members = line(3).await;
    let client = join(&members[0]).await;
    let far = members.pop().unwrap();
    let providers = eventually("somebody provides the model", async || {
        far.announce().await;
        client.providers("a-model").await.ok().filter(|found| !found.is_empty())
    })
    .await;
    assert_eq!(providers, vec![far.mesh.node_id()]);
    // No address is passed, and none need be known.
    eventually("the node is found", async || client.open(far.mesh.node_id(), &[], soon()).await.ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_joins_late_is_introduced_to_nodes_that_keep_silent() {
    let members = line(3).await;
    eventually("the record is in the DHT", async || {
        for member in &members {
            member.announce().await;
        }
        let kept: u64 = members.iter().map(|member| member.mesh.stats().dht.records).sum();
        (kept >= 6).then_some(())
    })
    .await;
    let client = join(&members[0]).await;
    let far = members[2].mesh.node_id();
    client
        .wait_for_peers(soon(), |peers| peers.iter().any(|peer| peer.node == far && peer.record.is_some()))
        .await
        .expect("the record, though nobody gossips");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_leaves_the_list_within_seconds() {
    let members = line(2).await;
    let client = join(&members[0]).await;
    let dead = &members[1];
    eventually("the client knows and meets both", async || {
        dead.announce().await;
        let peers = client.peers();
        peers.iter().any(|peer| peer.node == dead.mesh.node_id() && peer.connected).then_some(())
    })
    .await;
    let mut events = client.peer_events();
    let died = Instant::now();
    let (node, old) = (dead.mesh.node_id(), dead.record());
    dead.mesh.shutdown().await;
    while events.recv().await.unwrap() != PeerEvent::Expired(node) {}
    assert!(died.elapsed() < Duration::from_secs(10), "{:?}", died.elapsed());
    // Its old record does not bring it back.
    members[0].mesh.announce(old).await;
    assert!(recorded(&client, node).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_are_found_by_others_and_the_newest_one_stays() {
    let members = line(4).await;
    let mesh = join(&members[0]).await;
    let (first, second) = (DhtHeads::new(mesh.clone()), DhtHeads::new(join(&members[3]).await));
    let root = SessionRoot::generate();
    let now = now_ms();
    let (old, new) = (head(&root, now, HOUR_MS), head(&root, now + 1, HOUR_MS));
    let key = old.index_key();
    eventually("the DHT takes it", async || first.publish(old.encode()).await.ok()).await;
    eventually("another device finds it", async || {
        second.resolve(key).await.ok().flatten().filter(|found| *found == old.encode())
    })
    .await;
    second.publish(new.encode()).await.unwrap();
    assert!(matches!(first.publish(old.encode()).await, Err(StoreError::HeadSuperseded)));
    let found = first.resolve(key).await.unwrap();
    assert_eq!(found, Some(new.encode()));
    let absent = head(&SessionRoot::generate(), now, HOUR_MS).index_key();
    assert_eq!(first.resolve(absent).await, Ok(None));
    let dht: Vec<_> = members.iter().map(|member| member.mesh.stats().dht).collect();
    assert!(dht.iter().any(|dht| dht.records >= 1 && dht.stored >= 1), "some member keeps it: {dht:?}");
    let asked = mesh.stats().dht;
    assert!(asked.queries >= 3 && asked.queries_refused == 0, "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_withhold_or_show_an_old_head_do_not_win() {
    let members = line(3).await;
    let bootstrap: Vec<_> = members.iter().flat_map(|member| member.mesh.bootstrap_addrs()).collect();
    let root = SessionRoot::generate();
    let now = now_ms();
    let (old, new) = (head(&root, now, HOUR_MS), head(&root, now + 1, HOUR_MS));
    let liars = [byzantine_member(&bootstrap, None).await, byzantine_member(&bootstrap, Some(&old)).await];
    let mut config = dialer("client");
    config.bootstrap = [bootstrap, liars.concat()].concat();
    let client = start(config).await.0;
    client
        .wait_for_peers(soon(), |peers| peers.iter().filter(|peer| peer.agent.is_some()).count() == 5)
        .await
        .expect("all members are met");
    let heads = DhtHeads::new(client.clone());
    let key = old.index_key();
    eventually("the old one is shown", async || {
        heads.resolve(key).await.ok().flatten().filter(|found| *found == old.encode())
    })
    .await;
    heads.publish(new.encode()).await.unwrap();
    for _ in 0..5 {
        eventually("the newest one is found", async || {
            heads.resolve(key).await.ok().flatten().filter(|found| *found == new.encode())
        })
        .await;
    }
    assert!(matches!(heads.publish(old.encode()).await, Err(StoreError::HeadSuperseded)));
}

/// A DHT member that stores nothing, and returns one record of its choice. Returns its addresses.
async fn byzantine_member(
    bootstrap: &[baton_mesh::Multiaddr],
    shows: Option<&SignedObject<HeadRecord>>,
) -> Vec<baton_mesh::Multiaddr> {
    use futures::StreamExt as _;
    use libp2p::{
        StreamProtocol, SwarmBuilder, identify, kad,
        kad::store::{MemoryStore, RecordStore as _},
        multiaddr::Protocol,
        noise,
        swarm::{NetworkBehaviour, SwarmEvent},
        tcp, yamux,
    };
    #[derive(NetworkBehaviour)]
    struct Liar {
        identify: identify::Behaviour,
        dht: kad::Behaviour<MemoryStore>,
    }
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|keypair| {
            let local = keypair.public().to_peer_id();
            let mut config = kad::Config::new(StreamProtocol::new("/baton/kad/1"));
            config.set_record_filtering(kad::StoreInserts::FilterBoth);
            let mut store = MemoryStore::new(local);
            if let Some(record) = shows {
                let key = [b"/baton/head/".as_slice(), record.index_key().as_bytes()].concat();
                store.put(kad::Record::new(key, record.encode())).unwrap();
            }
            let mut dht = kad::Behaviour::with_config(local, store, config);
            dht.set_mode(Some(kad::Mode::Server));
            let identify = identify::Config::new("baton/1".to_owned(), keypair.public());
            Liar { identify: identify::Behaviour::new(identify.with_agent_version("liar".to_owned())), dht }
        })
        .unwrap()
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(60)))
        .build();
    swarm.listen_on(addr(TCP)).unwrap();
    let bound = loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            break address;
        }
    };
    for address in bootstrap {
        let Some(Protocol::P2p(peer)) = address.iter().last() else { panic!("an identity") };
        swarm.behaviour_mut().dht.add_address(&peer, address.clone());
        swarm.dial(address.clone()).unwrap();
    }
    let address = bound.with(Protocol::P2p(*swarm.local_peer_id()));
    tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    vec![address]
}

#[tokio::test]
async fn a_mesh_alone_says_that_nobody_was_reached() {
    let heads = DhtHeads::new(client().await);
    let key = head(&SessionRoot::generate(), 1, HOUR_MS).index_key();
    let result = heads.resolve(key).await;
    assert!(
        matches!(&result, Err(StoreError::Unavailable { reason, .. }) if reason.contains("no member")),
        "{result:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_go_through_a_relay_and_through_none_that_is_too_small() {
    let relay = Member::start(&[]).await;
    let hidden_behind = async |relay: &Member| {
        let mut config = MeshConfig::server("hidden", vec![]);
        config.reach = Some(Reach::Loopback);
        config.relays = relay.mesh.bootstrap_addrs();
        Member::with(config).await
    };
    let mut hidden = hidden_behind(&relay).await;
    let external = eventually("the relay grants a reservation", async || {
        hidden.mesh.network().external.first().cloned()
    })
    .await;
    let status = hidden.mesh.network();
    assert_eq!(status.reachability, Reachability::Unknown);
    assert!(status.relays[0].limits.is_some_and(|limits| limits.fit_a_turn()), "{status:?}");
    let client = client().await;
    let mut near = client.open(hidden.mesh.node_id(), std::slice::from_ref(&external), soon()).await.unwrap();
    let (_, mut far) = hidden.incoming.next().await.unwrap();
    let frame = vec![7; 8 << 20];
    let sent = frame.clone();
    tokio::spawn(async move {
        near.send(&sent).await.unwrap();
        near
    });
    assert_eq!(far.recv_by(LIMIT, soon()).await.unwrap(), Some(frame), "more than a relay's usual 128 KiB");
    assert!(client.peers().iter().any(|peer| peer.node == hidden.mesh.node_id() && peer.relayed));
    let carried = relay.mesh.stats().relay;
    assert_eq!((carried.reservations, carried.circuits), (1, 1), "{carried:?}");
    assert!(client.stats().transports.relayed == 1 && hidden.mesh.stats().transports.relayed == 1);

    let mut config = server_config(TCP);
    config.relay_limits = RelayLimits { circuit_bytes: 128 * 1024, circuit_time: Duration::from_secs(120) };
    let small = Member::with(config).await;
    let shy = hidden_behind(&small).await;
    // The node reserves it, sees the limits, and releases the reservation.
    eventually("the small relay is asked", async || {
        small.mesh.peers().iter().any(|peer| peer.node == shy.mesh.node_id()).then_some(())
    })
    .await;
    eventually("the small relay is given up", async || {
        let status = shy.mesh.network();
        (status.external.is_empty() && status.relays.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_too_small_for_a_turn_is_named_when_there_is_no_other_way() {
    let mut config = server_config(TCP);
    config.relay_limits = RelayLimits { circuit_bytes: 1024 * 1024, circuit_time: Duration::from_secs(120) };
    let small = Member::with(config).await;
    // A node of another implementation, which accepts any relay.
    let careless = careless_peer(&small.mesh).await;
    let client = client().await;
    let result = client.open(careless.0, &[careless.1], soon()).await;
    let Err(OpenError::Unreachable { reason }) = &result else { panic!("{result:?}") };
    assert!(reason.contains("1024 KiB and 120 s"), "{reason}");
    let limits = CircuitLimits { bytes: Some(1024 * 1024), time: Some(Duration::from_secs(120)) };
    assert!(!limits.fit_a_turn());
}

/// The least behaviour that stays connected and is reachable through a relay.
#[derive(NetworkBehaviour)]
struct Careless {
    circuits: libp2p::relay::client::Behaviour,
    ping: libp2p::ping::Behaviour,
}

/// A libp2p peer that listens on a relay, whatever the relay's limits. Returns its ID and address.
async fn careless_peer(relay: &MeshHandle) -> (NodeId, baton_mesh::Multiaddr) {
    use futures::StreamExt as _;
    use libp2p::{
        Transport as _, core::upgrade::Version, identity::Keypair, multiaddr::Protocol, noise,
        relay as circuit, swarm::SwarmEvent, tcp, yamux,
    };
    let keypair = Keypair::generate_ed25519();
    let (transport, circuits) = circuit::client::new(keypair.public().to_peer_id());
    let transport = transport
        .or_transport(tcp::tokio::Transport::default())
        .upgrade(Version::V1)
        .authenticate(noise::Config::new(&keypair).unwrap())
        .multiplex(yamux::Config::default())
        .boxed();
    let config =
        libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
    let behaviour = Careless { circuits, ping: libp2p::ping::Behaviour::default() };
    let mut swarm = libp2p::Swarm::new(transport, behaviour, keypair.public().to_peer_id(), config);
    let address = relay.bootstrap_addrs()[0].clone().with(Protocol::P2pCircuit);
    swarm.listen_on(address.clone()).unwrap();
    let granted = async {
        loop {
            let event = swarm.select_next_some().await;
            if let SwarmEvent::Behaviour(CarelessEvent::Circuits(event)) = event
                && matches!(event, circuit::client::Event::ReservationReqAccepted { .. })
            {
                break;
            }
        }
    };
    tokio::time::timeout_at(soon(), granted).await.expect("a reservation");
    tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    let node = baton_mesh::node_id_of(&keypair.public().to_peer_id()).unwrap();
    (node, address)
}

/// Forwards bytes to a node, until the token makes it stop forwarding without closing. Returns its address.
async fn line_to(node: &MeshHandle) -> (baton_mesh::Multiaddr, tokio_util::sync::CancellationToken) {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream, tcp},
    };
    async fn pass(
        mut from: tcp::OwnedReadHalf,
        mut to: tcp::OwnedWriteHalf,
        cut: tokio_util::sync::CancellationToken,
    ) {
        let mut bytes = vec![0; 16 * 1024];
        loop {
            let read = tokio::select! {
                biased;
                () = cut.cancelled() => std::future::pending().await,
                read = from.read(&mut bytes) => read.unwrap_or(0),
            };
            if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
                return;
            }
        }
    }
    let target = node.listen_addrs()[0].to_string();
    let port: u16 = target.rsplit('/').next().unwrap().parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().unwrap().port());
    let cut = tokio_util::sync::CancellationToken::new();
    let is_cut = cut.clone();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(pass(near_in, far_out, is_cut.clone()));
            tokio::spawn(pass(far_in, near_out, is_cut.clone()));
        }
    });
    (here.parse().unwrap(), cut)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_falls_silent_without_a_word_is_noticed_within_twenty_seconds() {
    let (node, mut incoming) = server(TCP).await;
    let client = client().await;
    let (line, cut) = line_to(&node).await;
    // An open turn, as during an answer.
    let _near = client.open(node.node_id(), &[line], soon()).await.unwrap();
    let _far = incoming.next().await.unwrap();
    eventually("a ping is answered", async || {
        client.peers().into_iter().find(|peer| peer.node == node.node_id())?.round_trip
    })
    .await;
    let mut events = client.peer_events();
    let silent = Instant::now();
    cut.cancel();
    while events.recv().await.unwrap() != PeerEvent::Disconnected(node.node_id()) {}
    // The seconds in behaviour.rs, and one tick of the upkeep.
    assert!(silent.elapsed() < Duration::from_secs(21), "{:?}", silent.elapsed());
}
