//! Forks that no rule may settle alone: a merge that takes more than a few turns of another device out of the
//! chain, or that makes many replays, waits for the owner's decision. Nothing is lost meanwhile.

use std::sync::Arc;

use baton_client::{
    ChainSide, Client, ClientError, DEFAULT_MAX_PRICE, DeviceEvent, HeadStatus, MAX_DISPLACED_UNASKED,
    MAX_REPLAYS_UNASKED, SessionRoot, TurnFate,
};
use baton_proto::ids::SessionId;

use baton_testkit::{
    GRACE, World,
    device::{Device, device_events, input, options},
    events_of,
    gate::with_indexes,
    say, session,
};

/// Longer than a lease.
const LATER_MS: u64 = 25 * 3600 * 1000;

/// A device with a session of one turn, and then so many more that no index has.
async fn ahead(world: &World, turns: u64) -> (Device, SessionId, SessionRoot) {
    let device = Device::new(world).await;
    let id = session(&device.client).await;
    say(&device.client, id, "common").await;
    assert!(device.client.session(id).wait_settled(GRACE).await.unwrap());
    let root = device.client.session(id).backup().await.unwrap();
    device.gate.away();
    for turn in 1..=turns {
        say(&device.client, id, &format!("turn {turn}")).await;
    }
    (device, id, root)
}

/// A second device with one turn of its own, "stale", which wins over the first one's, or loses.
async fn stale(world: &World, id: SessionId, root: &SessionRoot, first: &Device, wins: bool) -> Device {
    loop {
        let device = Device::second(world, root).await;
        assert!(device.client.session(id).wait_delivered(GRACE).await.unwrap());
        device.gate.away();
        say(&device.client, id, "stale").await;
        if (device.auth_hash(id, 1).await < first.auth_hash(id, 1).await) == wins {
            return device;
        }
        device.client.shutdown(GRACE).await;
    }
}

/// The device at a time when all leases are over.
async fn reopen_later(world: &World, device: &mut Device) {
    device.client.shutdown(GRACE).await;
    let mut config = with_indexes(world.config(device.home.path()), std::slice::from_ref(&device.gate));
    let system = config.clock.clone();
    config.clock = Arc::new(move || system() + LATER_MS);
    device.client = Client::open(config).await.unwrap();
    baton_testkit::free(&device.client).await;
}

fn said(turns: std::ops::RangeInclusive<u64>, others: [&[&str]; 2]) -> Vec<String> {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let turns = turns.map(|turn| format!("turn {turn}")).collect();
    [owned(others[0]), turns, owned(others[1])].concat()
}

async fn diverged(device: &Device, id: SessionId) -> baton_client::ChainConflict {
    match device.client.session(id).reconcile(&options(), |_| {}).await {
        Err(ClientError::Diverged(conflict)) => *conflict,
        other => panic!("it did not diverge: {other:?}"),
    }
}

async fn resolve(device: &Device, id: SessionId, side: ChainSide) -> baton_client::ReconcileReport {
    device.client.session(id).resolve(side, &options(), |_| {}).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stale_turn_displaces_no_six_turns_of_another_device_before_its_owner_says_so() {
    let world = World::new(1).await;
    let (laptop, id, root) = ahead(&world, 6).await;
    let mut tablet = stale(&world, id, &root, &laptop, true).await;
    laptop.gate.open();
    assert_eq!(laptop.sync(id).await.status, HeadStatus::Current);
    let (heads, kept) = (world.store.heads(), tablet.links(id).await);
    tablet.gate.open();

    let conflict = diverged(&tablet, id).await;
    assert_eq!((conflict.at, conflict.ours, conflict.theirs), (1, 1, 6));
    assert_eq!((conflict.displaced, conflict.replays), (6, 1));
    assert_eq!(conflict.highest_price, DEFAULT_MAX_PRICE);
    let text = conflict.to_string();
    assert_eq!(text, "diverged at turn 2: 6 turns of another device would leave the chain");
    assert_eq!(tablet.links(id).await, kept);
    // A message waits for the decision.
    let (result, events) = events_of(&tablet.client, id, input("next")).await;
    let error = result.unwrap_err();
    assert!(matches!(error, ClientError::Diverged(_)), "{error}");
    assert!(error.hint().unwrap().contains("baton session resolve"), "{error}");
    assert_eq!(device_events(&events), [DeviceEvent::Diverged(conflict.clone())]);
    assert!(tablet.client.session(id).info().await.unwrap().pending);
    // The state is in the journal, and is known without a look at any index.
    tablet.gate.away();
    tablet.restart(&world).await;
    assert_eq!(tablet.client.session(id).info().await.unwrap().conflict, Some(conflict));
    let refused = tablet.client.session(id).turn(input("another"), |_| {}).await;
    assert!(matches!(refused, Err(ClientError::PendingTurn)));
    assert_eq!(world.store.heads(), heads, "nothing is published over the other chain");

    tablet.gate.open();
    let done = resolve(&tablet, id, ChainSide::Theirs).await;
    assert_eq!((done.replays, done.replayed.len()), ((1, DEFAULT_MAX_PRICE), 1));
    tablet.client.session(id).resume(options(), |_| {}).await.unwrap().unwrap();
    assert_eq!(tablet.user_messages(id).await, said(1..=6, [&["common"], &["stale", "next"]]));
    assert_eq!(tablet.client.session(id).info().await.unwrap().conflict, None);
    assert!(tablet.client.session(id).wait_settled(GRACE).await.unwrap());
    laptop.sync(id).await;
    assert_eq!(laptop.links(id).await, tablet.links(id).await);
    laptop.client.shutdown(GRACE).await;
    tablet.client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_that_the_owner_takes_out_of_the_chain_are_replayed_by_their_own_device() {
    let world = World::new(1).await;
    let (laptop, id, root) = ahead(&world, MAX_DISPLACED_UNASKED + 1).await;
    let tablet = stale(&world, id, &root, &laptop, true).await;
    laptop.gate.open();
    laptop.sync(id).await;
    tablet.gate.open();
    diverged(&tablet, id).await;
    // The decision is about these chains: the laptop's has grown since.
    say(&laptop.client, id, "turn 5").await;
    assert!(laptop.client.session(id).wait_settled(GRACE).await.unwrap());
    let again = tablet.client.session(id).resolve(ChainSide::Ours, &options(), |_| {}).await;
    assert!(matches!(again, Err(ClientError::Diverged(conflict)) if conflict.theirs == 5));

    assert_eq!(resolve(&tablet, id, ChainSide::Ours).await.status, HeadStatus::Current);
    assert_eq!(tablet.user_messages(id).await, ["common", "stale"]);
    let displaced = tablet.client.session(id).displaced().await.unwrap();
    assert_eq!(displaced.len(), 5);
    assert!(displaced.iter().all(|turn| turn.fate == TurnFate::TakenOut), "{displaced:?}");
    laptop.sync(id).await;
    assert_eq!(laptop.user_messages(id).await, said(1..=5, [&["common", "stale"], &[]]));
    tablet.sync(id).await;
    assert_eq!(laptop.links(id).await, tablet.links(id).await);
    laptop.client.shutdown(GRACE).await;
    tablet.client.shutdown(GRACE).await;
}

/// A laptop that was restored from its words holds turns of a device that is gone. In the second case, its
/// lease is over, too.
#[tokio::test(flavor = "multi_thread")]
async fn turns_of_a_restored_device_come_back_into_the_chain() {
    for lease_is_over in [false, true] {
        let world = World::new(1).await;
        let (lost, id, root) = ahead(&world, 6).await;
        let mut tablet = stale(&world, id, &root, &lost, true).await;
        lost.gate.open();
        lost.sync(id).await;
        lost.client.shutdown(GRACE).await;
        let mut laptop = Device::second(&world, &root).await;
        assert!(laptop.client.session(id).wait_delivered(GRACE).await.unwrap());
        let later = i64::try_from(LATER_MS).unwrap();
        if lease_is_over {
            world.nodes[0].set_clock_ahead(later);
            reopen_later(&world, &mut laptop).await;
            reopen_later(&world, &mut tablet).await;
        }
        tablet.gate.open();
        assert_eq!(diverged(&tablet, id).await.displaced, 6);
        resolve(&tablet, id, ChainSide::Ours).await;

        // Nobody is there who would replay them, so the laptop asks before they leave its chain.
        let conflict = diverged(&laptop, id).await;
        assert_eq!((conflict.displaced, conflict.replays), (6, if lease_is_over { 6 } else { 0 }));
        resolve(&laptop, id, ChainSide::Theirs).await;
        if !lease_is_over {
            let displaced = laptop.client.session(id).displaced().await.unwrap();
            assert!(displaced.iter().all(|turn| turn.fate == TurnFate::Theirs), "{displaced:?}");
            assert_eq!(laptop.user_messages(id).await, ["common", "stale"]);
            world.nodes[0].set_clock_ahead(later);
            reopen_later(&world, &mut laptop).await;
            reopen_later(&world, &mut tablet).await;
            laptop.sync(id).await;
        }
        assert_eq!(laptop.user_messages(id).await, said(1..=6, [&["common", "stale"], &[]]));
        tablet.sync(id).await;
        assert_eq!(laptop.links(id).await, tablet.links(id).await);
        laptop.client.shutdown(GRACE).await;
        tablet.client.shutdown(GRACE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_another_device_replayed_is_not_replayed_again_by_its_own() {
    let world = World::new(1).await;
    let (mut gone, id, root) = ahead(&world, 1).await;
    let mut tablet = stale(&world, id, &root, &gone, true).await;
    gone.gate.open();
    assert_eq!(gone.sync(id).await.status, HeadStatus::Current);
    gone.client.shutdown(GRACE).await;
    tablet.gate.open();
    // One turn of a device with a lease may leave the chain: that device replays it.
    tablet.sync(id).await;
    assert_eq!(tablet.user_messages(id).await, ["common", "stale"]);

    world.nodes[0].set_clock_ahead(i64::try_from(LATER_MS).unwrap());
    reopen_later(&world, &mut tablet).await;
    tablet.sync(id).await;
    assert_eq!(tablet.user_messages(id).await, ["common", "stale", "turn 1"]);
    reopen_later(&world, &mut gone).await;
    gone.sync(id).await;
    assert_eq!(gone.links(id).await, tablet.links(id).await);
    let displaced = gone.client.session(id).displaced().await.unwrap();
    assert_eq!(displaced[0].fate, TurnFate::Replayed { to: 2 });
    gone.client.shutdown(GRACE).await;
    tablet.client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_replays_are_priced_and_paid_for_only_with_consent() {
    let world = World::new(1).await;
    let (laptop, id, root) = ahead(&world, MAX_REPLAYS_UNASKED + 1).await;
    let tablet = stale(&world, id, &root, &laptop, true).await;
    tablet.gate.open();
    tablet.sync(id).await;
    laptop.gate.open();
    let conflict = diverged(&laptop, id).await;
    assert_eq!((conflict.displaced, conflict.replays), (0, MAX_REPLAYS_UNASKED + 1));
    assert_eq!(conflict.highest_price, (MAX_REPLAYS_UNASKED + 1) * DEFAULT_MAX_PRICE);
    let text =
        "diverged at turn 2: 17 turns would be sent again, for at most 170000000 millionths of a node's unit";
    assert_eq!(conflict.to_string(), text);
    assert_eq!(laptop.links(id).await.len(), 18);
    let done = resolve(&laptop, id, ChainSide::Theirs).await;
    assert_eq!(done.replayed.len(), 17);
    assert_eq!(laptop.user_messages(id).await, said(1..=17, [&["common", "stale"], &[]]));
    laptop.client.shutdown(GRACE).await;
    tablet.client.shutdown(GRACE).await;
}
