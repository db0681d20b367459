//! Two devices that write one session. In every order of publication, absence, length and kill, both end with
//! one chain and lose no message.

use std::{path::Path, sync::Arc, time::Duration};

use baton_client::{
    Client, ClientError, DeviceEvent, Fork, HeadStatus, InlinePolicy, RouteOptions, TurnEvent, TurnInput,
};
use baton_proto::{
    ErrorCode,
    ids::{LinkHash, SessionId},
    record::{Message, RecordKind, Role},
};

use baton_client::testkit::{
    GRACE, World,
    device::{Device, apart, device_events, input, open, options},
    events_of,
    fake::Act,
    gate::with_indexes,
    say, say_settled, session,
};

/// Both look until neither has anything to merge: at most once more each than turns can fork again.
async fn sync_until_equal(devices: [&Device; 2], id: SessionId) {
    for device in devices {
        device.gate.open();
    }
    for _ in 0..3 {
        for device in devices {
            device.sync(id).await;
        }
    }
    assert_eq!(devices[0].links(id).await, devices[1].links(id).await);
}

/// The winner and loser of turn 1: the lower authorisation wins.
async fn by_rule<'a>(one: &'a Device, other: &'a Device, id: SessionId) -> (&'a Device, &'a Device) {
    let (a, b) = (one.auth_hash(id, 1).await, other.auth_hash(id, 1).await);
    if a < b { (one, other) } else { (other, one) }
}

/// Checks that a session is whole on a device, in the store and in the index, and that the root alone finds
/// the same.
async fn is_whole(world: &World, device: &Device, id: SessionId) {
    assert!(device.client.session(id).wait_settled(GRACE).await.unwrap());
    assert!(device.client.session(id).verify(true).await.unwrap().is_good());
    assert_eq!(device.client.session(id).check_head().await.unwrap(), HeadStatus::Current);
    let third = Device::second(world, &device.client.session(id).backup().await.unwrap()).await;
    assert_eq!(third.links(id).await, device.links(id).await);
    third.client.shutdown(GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_chains_the_lower_authorisation_stays_and_the_other_is_a_branch() {
    // Which device publishes first, the turns that the loser wrote after the fork, and whether it wrote them after
    // the winner had seen the first.
    for (winner_first, more, grows) in
        [(true, 0, false), (false, 0, false), (true, 2, false), (false, 1, true)]
    {
        let world = World::new(1).await;
        let (first, second, id) = apart(&world).await;
        say(&first.client, id, "hello").await;
        say(&second.client, id, "hello").await;
        let (winner, loser) = by_rule(&first, &second, id).await;
        let mut lost = vec![("hello".to_owned(), loser.links(id).await[1])];
        if grows {
            loser.gate.open();
            assert!(loser.client.session(id).wait_settled(GRACE).await.unwrap());
            winner.gate.open();
            winner.sync(id).await;
            // The loser does not look, and goes on.
            loser.gate.away();
        }
        for turn in 0..more {
            let text = format!("more {turn}");
            say(&loser.client, id, &text).await;
            lost.push((text, *loser.links(id).await.last().unwrap()));
        }
        let kept = winner.links(id).await;
        sync_until_equal(if winner_first { [winner, loser] } else { [loser, winner] }, id).await;
        // A third device, with the words alone, has both too.
        let third = Device::second(&world, &winner.client.session(id).backup().await.unwrap()).await;
        for device in [&first, &second, &third] {
            assert_eq!(device.links(id).await, kept, "nothing is sent again");
            let handle = device.client.session(id);
            let branches = handle.branches().await.unwrap();
            let [branch] = &branches[..] else { panic!("{branches:?}") };
            let turns = branch.turns.iter().map(|turn| (turn.messages[0].text.clone(), turn.link_hash));
            assert_eq!(turns.collect::<Vec<_>>(), lost);
            assert_eq!((branch.turns[0].seq, branch.is_before_gap), (1, false));
            let whole = handle.branch_conversation(&branch.name).await.unwrap();
            let said: Vec<&str> = whole.turns.iter().map(|turn| &*turn.messages[0].text).collect();
            assert_eq!(said[..2], ["common", "hello"]);
            assert!(handle.branch_conversation("other").await.is_err());
            is_whole(&world, device, id).await;
            assert_eq!(handle.info().await.unwrap().trouble, None);
        }
        assert!(loser.client.session(id).branches().await.unwrap()[0].turns[0].receipt.is_some());
        for device in [&first, &second, &third] {
            device.client.shutdown(GRACE).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_a_device_that_is_gone_is_found_by_the_words_and_stored_again() {
    let world = World::new(1).await;
    let (first, second, id) = apart(&world).await;
    second.gate.open();
    say_settled(&second.client, id, "gone").await;
    second.client.shutdown(GRACE).await;
    say(&first.client, id, "here").await;
    first.gate.open();
    let report = first.sync(id).await;
    let fork = report.fork.unwrap();
    assert_eq!((report.status, fork.at, fork.turns), (HeadStatus::Current, 1, 1));
    first.client.session(id).wait_settled(GRACE).await.unwrap();
    // The store forgets: a renewal stores the branch too.
    world.store.forget_blobs();
    let handle = first.client.session(id);
    let lost = handle.verify(true).await.unwrap().not_stored;
    handle.put_back_blobs(&lost).await.unwrap();
    let renewed = handle.renew(None).await.unwrap();
    assert_eq!((renewed.put_back, renewed.failed.len()), (vec![1], 0));
    let root = handle.backup().await.unwrap();
    let third = Device::second(&world, &root).await;
    let mut said = third.user_messages(id).await;
    for branch in third.client.session(id).branches().await.unwrap() {
        assert_eq!(branch.name, fork.branch);
        said.extend(branch.turns.iter().map(|turn| turn.messages[0].text.clone()));
    }
    said.sort();
    assert_eq!(said, ["common", "gone", "here"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_no_index_took_before_the_process_died_is_named_after_the_next_start() {
    let world = World::new(1).await;
    let (mut first, mut second, id) = apart(&world).await;
    say(&first.client, id, "one").await;
    say(&second.client, id, "two").await;
    let first_wins = first.auth_hash(id, 1).await < second.auth_hash(id, 1).await;
    let (winner, loser) = if first_wins { (&mut first, &mut second) } else { (&mut second, &mut first) };
    winner.gate.open();
    winner.sync(id).await;
    winner.client.shutdown(GRACE).await;
    loser.gate.read_only();
    loser.sync(id).await;
    loser.restart(&world).await;
    loser.gate.open();
    loser.client.session(id).info().await.unwrap();
    assert!(loser.client.session(id).wait_published(GRACE).await.unwrap());
    let third = Device::second(&world, &loser.client.session(id).backup().await.unwrap()).await;
    assert_eq!(third.client.session(id).branches().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_first_merges_other_devices_turns_and_a_lone_device_asks_no_index() {
    let world = World::new(1).await;
    let first = Device::new(&world).await;
    let id = session(&first.client).await;
    let before = first.gate.resolves();
    let mut asked = 0;
    let gate = first.gate.clone();
    let count = |event| {
        if event == TurnEvent::Accepted {
            asked = gate.resolves() - before;
        }
    };
    first.client.session(id).turn(input("common"), count).await.unwrap();
    assert_eq!(asked, 0, "alone, a turn looks at no index");
    assert!(first.client.session(id).wait_settled(GRACE).await.unwrap());

    let second = Device::second(&world, &first.client.session(id).backup().await.unwrap()).await;
    assert!(second.client.session(id).wait_delivered(GRACE).await.unwrap());
    say_settled(&second.client, id, "second").await;
    // The first device learns of the other when it looks, and is behind.
    assert!(matches!(
        first.client.session(id).check_head().await,
        Err(ClientError::Behind { ours: 0, theirs: 1, own: false })
    ));
    let others = first.client.session(id).info().await.unwrap().others;
    assert_eq!(others.len(), 1);
    assert_eq!(others[0].device, second.client.session(id).info().await.unwrap().device);
    let (result, events) = events_of(&first.client, id, input("first")).await;
    assert_eq!(result.unwrap().text, "first (2)");
    assert_eq!(device_events(&events), [DeviceEvent::CaughtUp { turns: 1, own: 0 }]);
    assert!(first.client.session(id).wait_settled(GRACE).await.unwrap());
    // The second knows of the first from the beginning, without another report.
    let (result, events) = events_of(&second.client, id, input("second again")).await;
    assert_eq!(result.unwrap().text, "second again (3)");
    assert_eq!(device_events(&events), [DeviceEvent::CaughtUp { turns: 1, own: 0 }]);
    assert!(second.client.session(id).branches().await.unwrap().is_empty());
    is_whole(&world, &second, id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_seen_when_its_head_is_published_and_settled_before_the_next_turn() {
    let world = World::new(1).await;
    let (first, second, id) = apart(&world).await;
    say(&first.client, id, "one").await;
    say(&second.client, id, "two").await;
    let (winner, loser) = by_rule(&first, &second, id).await;
    winner.gate.open();
    assert_eq!(winner.sync(id).await.status, HeadStatus::Current);
    let published = world.store.heads();
    loser.gate.open();
    // The next round of publishing sees it.
    let seen = async {
        while !loser.client.session(id).info().await.unwrap().diverged {
            assert!(!loser.client.session(id).wait_settled(Duration::from_millis(100)).await.unwrap());
        }
    };
    tokio::time::timeout(GRACE, seen).await.unwrap();
    assert!(loser.client.session(id).wait_compared(GRACE).await.unwrap());
    let info = loser.client.session(id).info().await.unwrap();
    assert_eq!((info.trouble, info.diverged), (Some(ErrorCode::ForkDetected), true));
    assert_eq!(world.store.heads(), published, "a head that does not continue another is not published");
    let mine = loser.user_messages(id).await.pop().unwrap();
    let (result, events) = events_of(&loser.client, id, input("next")).await;
    assert_eq!(result.unwrap().text, "next (2)");
    let branches = loser.client.session(id).branches().await.unwrap();
    assert_eq!(branches[0].turns[0].messages[0].text, mine);
    let fork = Fork { at: 1, won: false, turns: 1, branch: branches[0].name.clone() };
    assert_eq!(device_events(&events), [DeviceEvent::Forked(fork)]);
    assert_eq!(loser.user_messages(id).await[2..], ["next"]);
    is_whole(&world, loser, id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_not_answered_follows_what_another_device_wrote() {
    let world = World::new(1).await;
    let (first, second, id) = apart(&world).await;
    second.gate.open();
    say_settled(&second.client, id, "second").await;
    // An edit of the turn that the other device has followed meanwhile.
    let edit = TurnInput {
        kind: RecordKind::Edit,
        supersedes_from: Some(0),
        route: RouteOptions { max_attempts: 1, reconcile: true, ..RouteOptions::default() },
        ..TurnInput::new(vec![Message::new(Role::User, "first")])
    };
    world.nodes[0].script([Act::Refuse(ErrorCode::ModelUnavailable)]);
    assert!(first.client.session(id).turn(edit, |_| {}).await.is_err());
    assert!(first.client.session(id).info().await.unwrap().pending);
    first.gate.open();
    first.sync(id).await;
    let waiting = first.client.session(id).pending_messages().await.unwrap().unwrap();
    assert_eq!(waiting[0].text, "first", "taken in without being said");
    assert_eq!(first.links(id).await.len(), 2);
    let outcome = first.client.session(id).resume(options(), |_| {}).await.unwrap().unwrap();
    assert_eq!((outcome.seq, outcome.text.as_str()), (2, "first (2)"), "it follows, and replaces nothing");
    assert!(!first.client.session(id).info().await.unwrap().pending);
    is_whole(&world, &first, id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_knows_a_newer_head_makes_the_client_look_and_go_on_from_there() {
    let world = World::new(1).await;
    let (first, second, id) = apart(&world).await;
    first.gate.open();
    second.gate.open();
    say_settled(&second.client, id, "second").await;
    // The first has not looked since, so it sends its old head without a locator.
    let stale = input("first").with_route(|route| route.with_locator = false);
    let (result, events) = events_of(&first.client, id, stale).await;
    assert_eq!(result.unwrap().text, "first (2)");
    assert!(device_events(&events).contains(&DeviceEvent::CaughtUp { turns: 1, own: 0 }), "{events:?}");
    assert!(first.client.session(id).branches().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_another_devices_turns_that_is_cut_off_anywhere_is_made_good() {
    let world = World::new(1).await;
    let (first, second, id) = apart(&world).await;
    for text in ["one", "two"] {
        say(&first.client, id, text).await;
        say(&second.client, id, text).await;
    }
    let (winner, loser) = by_rule(&first, &second, id).await;
    winner.gate.open();
    winner.sync(id).await;
    let kept = winner.links(id).await;
    loser.client.shutdown(GRACE).await;
    let journal = |home: &Path| {
        let files = std::fs::read_dir(home.join("sessions")).unwrap().map(|entry| entry.unwrap().path());
        files.into_iter().find(|path| path.extension().is_some_and(|end| end == "journal")).unwrap()
    };
    let before = std::fs::read(journal(loser.home.path())).unwrap();
    loser.gate.open();
    let client = open(&world, loser.home.path(), &loser.gate).await;
    client.session(id).reconcile(|_| {}).await.unwrap();
    client.shutdown(GRACE).await;
    let after = std::fs::read(journal(loser.home.path())).unwrap();
    assert_eq!(after[..before.len()], before[..]);

    let grown = after.len() - before.len();
    for step in 0..=8 {
        let cut = before.len() + grown * step / 8;
        std::fs::write(journal(loser.home.path()), &after[..cut]).unwrap();
        // Every cut begins with the same index.
        let heads = world.store.heads();
        let client = open(&world, loser.home.path(), &loser.gate).await;
        client.session(id).reconcile(|_| {}).await.unwrap();
        let history = client.session(id).history().await.unwrap();
        let links: Vec<LinkHash> = history.iter().map(|view| view.turn.link.link_hash()).collect();
        assert_eq!(links, kept, "cut {step}");
        let branches = client.session(id).branches().await.unwrap();
        let said = branches.iter().flat_map(|branch| &branch.turns);
        let said: Vec<&str> = said.map(|turn| &*turn.messages[0].text).collect();
        assert_eq!(said, ["one", "two"], "cut {step}");
        client.shutdown(GRACE).await;
        world.store.set_heads(heads);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_devices_that_are_silent_for_a_day_run_out() {
    let world = World::new(1).await;
    let (first, second, id) = apart(&world).await;
    second.gate.open();
    say_settled(&second.client, id, "second").await;
    first.gate.open();
    first.sync(id).await;
    assert_eq!(first.client.session(id).info().await.unwrap().others.len(), 1);
    first.client.shutdown(GRACE).await;
    let mut config = with_indexes(world.config(first.home.path()), std::slice::from_ref(&first.gate));
    let system = config.clock.clone();
    config.clock = Arc::new(move || system() + 25 * 3600 * 1000);
    let client = Client::open(config).await.unwrap();
    assert_eq!(client.session(id).check_head().await.unwrap(), HeadStatus::Current);
    assert!(client.session(id).info().await.unwrap().others.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_turns_of_another_device_block_neither_turns_nor_the_head_for_ever() {
    let world = World::new(2).await;
    let (first, second, id) = apart(&world).await;
    second.gate.open();
    let there = TurnInput::user("second").with_route(|route| route.node = Some(world.nodes[1].id()));
    second.client.session(id).turn(there, |_| {}).await.unwrap();
    assert!(second.client.session(id).wait_settled(GRACE).await.unwrap());
    let theirs = world.store.heads();
    second.client.shutdown(GRACE).await;
    world.nodes[1].stop().await;
    world.store.forget_blobs();

    first.gate.open();
    assert!(first.client.session(id).check_head().await.is_err_and(|error| error.is_divergence()));
    let mut here = input("first");
    (here.route.node, here.route.inline) = (Some(world.nodes[0].id()), InlinePolicy::Always);
    let (result, events) = events_of(&first.client, id, here).await;
    assert_eq!(result.unwrap().text, "first (1)");
    assert!(matches!(device_events(&events)[..], [DeviceEvent::NotCompared { .. }]), "{events:?}");
    assert!(first.client.session(id).wait_compared(GRACE).await.unwrap());
    assert_eq!(world.store.heads(), theirs, "nothing is published over it without being told to");
    assert!(first.client.session(id).reconcile(|_| {}).await.is_err());
    first.client.session(id).publish_over().await.unwrap();
    assert_eq!(first.client.session(id).check_head().await.unwrap(), HeadStatus::Current);

    // The other device comes back and sees both chains.
    let mut config = with_indexes(world.config(second.home.path()), std::slice::from_ref(&second.gate));
    config.bootstrap = world.nodes[0].addrs();
    let client = Client::open(config).await.unwrap();
    assert_eq!(client.session(id).check_head().await.unwrap_err().code(), Some(ErrorCode::ForkDetected));
    let done = client.session(id).reconcile(|_| {}).await.unwrap();
    assert_eq!(done.fork.map(|fork| fork.at), Some(1));
}
