//! Fair service beside greedy or dishonest peers: bans, slots before work, grants, and stored receipts.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use baton_keys::SecretSigningKey;
use baton_mesh::Networks;
use baton_node::{
    ledger,
    service::{QuotaPolicy, ServiceLimits},
};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    ids::{NodeId, RightId},
    right::{QuotaUse, Right, RightChain, RightScope, TurnQuota},
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame},
};
use tempfile::tempdir;

use crate::service::network::{
    World,
    client::{Changes, Client, PreparedTurn, Reply, Session, next_frame, read_reply, soon},
    node::{Setup, TestNode},
    now_ms, start, world,
};

/// A node that counts this machine's peers, as it does by default.
pub(super) fn counting(limits: ServiceLimits) -> Setup {
    Setup { limits: ServiceLimits { own_networks: Networks::default(), ..limits }, ..Setup::default() }
}

fn forged(session: &Session, node: &TestNode) -> PreparedTurn {
    let mut prepared = session.prepare(node, "hello", Changes::default());
    let other = SecretSigningKey::generate();
    prepared.request.auth = SignedObject::sign(TurnAuth::clone(&prepared.auth), &other).bytes().clone();
    prepared
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forging_peer_is_refused_unread_and_cut_off_while_its_neighbours_are_served() {
    let node = world(counting(Setup::default().limits)).await.node;
    let (forger, honest) = (Client::start().await, Client::start().await);
    let (session, mut other) = (Session::new(), Session::new());
    for _ in 0..4 {
        let reply = forger.run(&node, &forged(&session, &node)).await;
        assert_eq!(reply.code(), Some(ErrorCode::BadSignature));
    }
    // A good request is not even read.
    let good = session.prepare(&node, "hello", Changes::default());
    let (code, retry_after_ms) = forger.run(&node, &good).await.refused.unwrap();
    assert_eq!(code, ErrorCode::RateLimited);
    assert!((100_000..=120_000).contains(&retry_after_ms), "{retry_after_ms}");
    honest.turn(&node, &mut other, "hello from next door").await;
    // A peer that continues loses its connection, and gets no other.
    let cut_off = async {
        while let Ok(mut stream) = forger.mesh.open(node.node, &node.addresses, soon()).await {
            // The effects of a closing connection on its streams are irrelevant.
            let _ = stream.send_by(&codec::encode(&ClientFrame::NodeRecord), soon()).await;
            let _ = stream.recv_by(1 << 20, soon()).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), cut_off).await.expect("the forger is cut off");
    honest.turn(&node, &mut other, "still here").await;
    assert_eq!(node.jobs(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_replays_are_counted_and_one_of_each_bans_nobody() {
    let World { node, client, mut session, .. } = world(counting(Setup::default().limits)).await;
    let mut garbage = client.open_raw(&node, &[0xff; 9]).await;
    assert!(matches!(next_frame(&mut garbage).await, Some(NodeFrame::Refused { .. })));
    assert_eq!(client.run(&node, &forged(&session, &node)).await.code(), Some(ErrorCode::BadSignature));
    let stale = session.prepare(&node, "hello", Changes::auth(|auth| auth.issued_ms -= 30_000));
    assert_eq!(client.run(&node, &stale).await.code(), Some(ErrorCode::Replayed));
    client.turn(&node, &mut session, "a hiccup bans nobody").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_fetched_and_nothing_computed_before_a_turn_has_a_slot() {
    let World { node: author, client, mut session, store } = world(Setup::default()).await;
    let limits = ServiceLimits { slots: 1, ..Setup::default().limits };
    let busy = start(&store, Setup { seed: 2, limits, ..Setup::slow(30) }).await;
    client.turn(&author, &mut session, "a turn that the other node has to fetch").await;

    let long = Session::new();
    let first = long.prepare(&busy, &"word ".repeat(60), Changes::default());
    let mut running = client.begin(&busy, &first).await;
    let (gets, jobs) = (store.gets.load(SeqCst), busy.jobs());
    let second = session.prepare(&busy, "waits", Changes::default());
    let mut waiting = client.begin(&busy, &second).await;
    assert_eq!((store.gets.load(SeqCst), busy.jobs()), (gets, jobs), "it waits, and costs nothing");
    while next_frame(&mut running).await.is_some() {}
    while next_frame(&mut waiting).await.is_some() {}
    assert_eq!(busy.jobs(), jobs + 1);
    assert!(store.gets.load(SeqCst) > gets, "then it was fetched");
}

pub(super) struct GrantHolder {
    holder: SecretSigningKey,
    chain: RightChain,
}

const ISSUER: [u8; 32] = [0x11; 32];

/// A policy that trusts the issuer of [`granted`].
pub(super) fn trusting() -> QuotaPolicy {
    QuotaPolicy { issuers: vec![SecretSigningKey::from_seed(&ISSUER).public_key()], ..QuotaPolicy::default() }
}

pub(super) fn granted(turns_per_hour: u32, nodes: Vec<NodeId>) -> GrantHolder {
    granted_as(RightId([7; 16]), turns_per_hour, nodes)
}

fn granted_as(id: RightId, turns_per_hour: u32, nodes: Vec<NodeId>) -> GrantHolder {
    let (issuer, holder) = (SecretSigningKey::from_seed(&ISSUER), SecretSigningKey::generate());
    let quota = TurnQuota { models: Vec::new(), turns_per_hour, tokens_per_hour: 10_000, concurrent: 2 };
    let valid_ms = now_ms() - 1000..now_ms() + 60_000;
    let grant = Right {
        id,
        places: nodes.iter().map(NodeId::public_key).collect(),
        ..Right::new(issuer.public_key(), holder.public_key(), RightScope::Turns(quota), valid_ms)
    };
    GrantHolder { holder, chain: RightChain::issue(grant, &issuer).unwrap() }
}

impl GrantHolder {
    pub(super) fn used(&self, auth: &SignedObject<TurnAuth>) -> QuotaUse {
        self.chain.prove(&self.holder, auth.auth_hash())
    }
}

pub(super) async fn run_under(
    client: &Client,
    node: &TestNode,
    prepared: &PreparedTurn,
    used: QuotaUse,
) -> Reply {
    let turn = ClientFrame::Turn(prepared.request.clone());
    read_reply(client.open_with(node, &ClientFrame::Quota(used), &turn).await, prepared).await
}

#[tokio::test(flavor = "multi_thread")]
async fn free_identities_of_one_subnet_share_its_tokens_also_on_loopback() {
    for (own_networks, expected) in [(Networks::default(), 2), (Networks::loopback(), 4)] {
        let limits = ServiceLimits { own_networks, tokens_per_hour: 200, ..Setup::default().limits };
        let node = world(Setup { limits, ..Setup::default() }).await.node;
        let mut served = 0;
        for _ in 0..4 {
            let (client, session) = (Client::start().await, Session::new());
            // The echo of so many words costs nearly half of the subnet's tokens.
            let most = Changes::auth(|auth| auth.max_output_tokens = 100);
            let prepared = session.prepare(&node, &"word ".repeat(90), most);
            let reply = client.run(&node, &prepared).await;
            served += usize::from(reply.committed().is_some());
            assert!(
                reply.committed().is_some() || reply.code() == Some(ErrorCode::QuotaExceeded),
                "{reply:?}"
            );
        }
        assert_eq!(served, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_requires_grants_serves_their_holders_and_nobody_else() {
    let quotas = QuotaPolicy { required: true, revoked: vec![RightId([9; 16])], ..trusting() };
    let World { node, client, mut session, .. } =
        world(counting(ServiceLimits { quotas, ..Setup::default().limits })).await;
    let bare = session.prepare(&node, "hello", Changes::default());
    assert_eq!(client.run(&node, &bare).await.code(), Some(ErrorCode::GrantRequired));
    assert_eq!(node.jobs(), 0);

    let grant = granted(2, Vec::new());
    for _ in 0..2 {
        let prepared = session.prepare(&node, "hello", Changes::default());
        let reply = run_under(&client, &node, &prepared, grant.used(&prepared.auth)).await;
        let committed = reply.committed().unwrap_or_else(|| panic!("{reply:?}"));
        session.accept(&prepared, committed, &reply.text(), &[]).unwrap();
    }
    let third = session.prepare(&node, "hello", Changes::default());
    let (code, retry_after_ms) =
        run_under(&client, &node, &third, grant.used(&third.auth)).await.refused.unwrap();
    assert_eq!(code, ErrorCode::QuotaExceeded, "two turns an hour");
    assert!(retry_after_ms > 1_000_000, "{retry_after_ms}");

    // The proof of use for one turn is invalid for another turn and for another holder. A grant for another
    // node is invalid here.
    let other = granted(10, Vec::new());
    let prepared = session.prepare(&node, "hello", Changes::default());
    let replayed = run_under(&client, &node, &prepared, other.used(&third.auth)).await;
    assert_eq!(replayed.code(), Some(ErrorCode::BadSignature));
    let thief = GrantHolder { holder: SecretSigningKey::generate(), chain: other.chain.clone() };
    let stolen = run_under(&client, &node, &prepared, thief.used(&prepared.auth)).await;
    assert_eq!(stolen.code(), Some(ErrorCode::BadSignature));
    let elsewhere = granted(10, vec![NodeId([3; 32])]);
    let misplaced = run_under(&client, &node, &prepared, elsewhere.used(&prepared.auth)).await;
    assert_eq!(misplaced.code(), Some(ErrorCode::WrongAudience));
    let revoked = granted_as(RightId([9; 16]), 10, Vec::new());
    let refused = run_under(&client, &node, &prepared, revoked.used(&prepared.auth)).await;
    assert_eq!(refused.code(), Some(ErrorCode::QuotaExceeded));
    let quota = ClientFrame::Quota(other.used(&prepared.auth));
    let alone = next_frame(&mut client.open_with(&node, &quota, &ClientFrame::NodeRecord).await).await;
    assert!(matches!(alone, Some(NodeFrame::Refused { code: ErrorCode::NonCanonical, .. })), "{alone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receipts_of_acknowledged_turns_are_kept_and_of_no_others() {
    let kept = tempdir().unwrap();
    let ledger = kept.path().join("receipts");
    let World { node, client, mut session, .. } =
        world(Setup { ledger: Some(ledger.clone()), ..Setup::default() }).await;
    let (_, first) = client.turn(&node, &mut session, "one two three").await;
    let (_, _unacknowledged) = client.turn(&node, &mut session, "four five").await;
    let ack = ClientFrame::Note(session.sign(session.ack(&first)));
    for _ in 0..2 {
        let taken = client.ask(&node, &ack).await;
        assert!(matches!(taken, NodeFrame::Done), "{taken:?}");
    }
    let id = node.node;
    node.stop().await;
    let account = ledger::read(&ledger, &[id], None).unwrap();
    assert_eq!((account.total.turns, account.refused_count), (1, 0));
    assert_eq!(account.total.output_tokens, u64::from(first.receipt.tokens.output));
    let files: Vec<_> = std::fs::read_dir(&ledger).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 2, "the database and its mark: {files:?}");
    for file in files {
        let bytes = std::fs::read(file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("three"), "no word of the conversation");
    }
    assert_eq!(ledger::read(&ledger, &[NodeId([1; 32])], None).unwrap().total.turns, 0);
}
