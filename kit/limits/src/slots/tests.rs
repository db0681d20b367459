use futures::FutureExt as _;
use proptest::prelude::*;

use super::*;

fn unknown(subnet: u8) -> Key {
    Key::Subnet(Subnet::V4([203, 0, subnet]))
}

fn granted(number: u8) -> Key {
    Key::Grant([number; 32])
}

/// Slots that one key may have all of.
fn slots(units: usize, queue: usize) -> Slots {
    Slots::new(SlotLimits { units, per_key: units, reserved: 0, queue, queue_per_key: queue })
}

fn runs(ticket: &Ticket) -> bool {
    ticket.ahead() == Ok(0)
}

#[test]
fn runs_in_order_and_says_how_many_are_ahead() {
    let slots = slots(1, 3);
    let [first, second, third] = [1, 2, 3].map(|number| slots.enter(granted(number), 1).unwrap());
    assert_eq!((first.ahead(), second.ahead(), third.ahead()), (Ok(0), Ok(1), Ok(2)));
    assert_eq!(slots.load(), (1, 2));
    let mut moved = Box::pin(third.moved(2));
    assert_eq!(moved.as_mut().now_or_never(), None);
    drop(second);
    assert_eq!(moved.as_mut().now_or_never(), Some(Ok(1)));
    drop(moved);
    let mut ready = Box::pin(third.granted());
    assert_eq!(ready.as_mut().now_or_never(), None);
    drop(first);
    assert_eq!(ready.as_mut().now_or_never(), Some(Ok(())));
    drop(ready);
    drop(third);
    assert_eq!(slots.load(), (0, 0));
}

#[test]
fn waiters_are_woken_when_they_run_when_their_place_changes_and_when_they_are_displaced() {
    let slots = slots(1, 3);
    let running = slots.enter(Key::Own, 1).unwrap();
    let [first, second, third] = [1, 1, 1].map(|subnet| slots.enter(unknown(subnet), 1).unwrap());
    let waiting = async {
        let (moved, ran, displaced) = futures::join!(second.moved(2), first.granted(), third.granted());
        assert_eq!((moved, ran, displaced), (Ok(1), Ok(()), Err(DisplacedError)));
    };
    let changing = async {
        // The others wait when this begins.
        futures::future::ready(()).await;
        let other = slots.enter(unknown(2), 1).unwrap();
        drop(running);
        drop(other);
    };
    futures::executor::block_on(async { futures::join!(waiting, changing) });
}

#[test]
fn a_caller_that_yields_gives_its_slot_away_and_waits_for_one_again() {
    let slots = slots(1, 3);
    let [first, second] = [1, 2].map(|number| slots.enter(granted(number), 1).unwrap());
    let yielding = first.yield_slot();
    assert_eq!((second.ahead(), slots.load()), (Ok(0), (1, 1)));
    drop(yielding);
    assert_eq!((first.ahead(), second.ahead()), (Ok(1), Ok(0)));
    drop(second);
    assert!(runs(&first));
    // While it yields, the free slot stays free.
    let yielding = first.yield_slot();
    assert_eq!(slots.load(), (0, 1));
    drop(yielding);
    assert!(runs(&first) && slots.load() == (1, 0));
}

#[test]
fn a_subnet_with_many_gets_every_other_slot_and_not_all() {
    let slots = slots(1, 16);
    let mut crowd: Vec<_> = (0..8).map(|_| slots.enter(unknown(1), 1).unwrap()).collect();
    let honest: Vec<_> = (0..3).map(|_| slots.enter(unknown(2), 1).unwrap()).collect();
    assert_eq!(honest[0].ahead(), Ok(1), "seven came before it");
    drop(crowd.remove(0));
    assert!(runs(&honest[0]));
    drop(honest);
    assert_eq!(crowd.iter().filter(|ticket| runs(ticket)).count(), 1);
}

#[test]
fn a_full_queue_makes_room_for_keys_with_fewer_waiting() {
    let slots = slots(1, 4);
    let crowd: Vec<_> = (0..5).map(|_| slots.enter(unknown(1), 1).unwrap()).collect();
    assert_eq!(slots.enter(unknown(1), 1).unwrap_err(), Full, "not for its own kind");
    assert!(slots.has_room(&unknown(2)) && !slots.has_free_place(&unknown(2)));
    let honest = slots.enter(unknown(2), 1).unwrap();
    assert_eq!(crowd[4].ahead(), Err(DisplacedError), "the latest of the crowd");
    assert!(crowd[3].ahead().is_ok() && honest.ahead() == Ok(1));
    let second = slots.enter(unknown(2), 1).unwrap();
    assert_eq!(slots.enter(unknown(2), 1).unwrap_err(), Full, "two and two");
    drop((honest, second));
}

#[test]
fn unknown_callers_of_many_subnets_take_at_most_a_third_of_the_queue_from_the_others() {
    let slots = slots(1, 6);
    let known: Vec<_> = (1..8).map(|_| slots.enter(granted(1), 1).unwrap()).collect();
    let crowd: Vec<_> = (20..40).map(|subnet| slots.enter(unknown(subnet), 1)).collect();
    assert_eq!(crowd.iter().filter(|entered| entered.is_ok()).count(), 2);
    assert_eq!(known.iter().filter(|ticket| ticket.ahead().is_ok()).count(), 5);
    let again = slots.enter(granted(2), 1).unwrap();
    assert!(again.ahead().is_ok() && known.iter().filter(|ticket| ticket.ahead().is_ok()).count() == 5);
}

#[test]
fn unknown_callers_get_every_third_slot_while_others_wait() {
    let slots = slots(1, 40);
    let mut waiting: Vec<(char, Ticket)> = (0..12)
        .map(|subnet| ('u', slots.enter(unknown(subnet), 1).unwrap()))
        .chain((0..6).map(|_| ('g', slots.enter(granted(1), 1).unwrap())))
        .collect();
    let mut given = String::new();
    while let Some(at) = waiting.iter().position(|(_, ticket)| runs(ticket)) {
        given.push(waiting.remove(at).0);
    }
    assert_eq!(given, "uggugguggugguuuuuu".replacen("ugg", "", 1) + "uuu", "and all, once nobody else waits");
}

#[test]
fn unknown_callers_leave_the_reserved_slots_to_others() {
    let limits = SlotLimits { units: 2, per_key: 2, reserved: 1, queue: 2, queue_per_key: 2 };
    let slots = Slots::new(limits);
    let waiting: Vec<_> = (0..3).map(|subnet| slots.enter(unknown(subnet), 1).unwrap()).collect();
    assert_eq!(slots.load(), (1, 2), "one slot is left");
    assert_eq!(slots.enter(unknown(9), 1).unwrap_err(), Full);
    let known = slots.enter(granted(1), 1).unwrap();
    assert!(runs(&known) && waiting.iter().all(|ticket| ticket.ahead().is_ok()), "it displaces nobody");
    let alone = Slots::new(SlotLimits { units: 1, ..limits });
    assert!(runs(&alone.enter(unknown(1), 1).unwrap()), "an only slot is for all");
}

#[test]
fn a_key_has_its_share_of_units_and_of_the_queue_and_the_own_networks_all() {
    let slots = Slots::new(SlotLimits { units: 8, per_key: 2, reserved: 0, queue: 16, queue_per_key: 3 });
    let mine: Vec<_> = (0..8).map_while(|_| slots.enter(unknown(1), 1).ok()).collect();
    assert_eq!((mine.len(), slots.load()), (5, (2, 3)));
    let other = slots.enter(granted(1), 2).unwrap();
    assert!(runs(&other) && slots.enter(granted(2), 3).is_err(), "more than a share never comes");
    let own: Vec<_> = (0..4).map(|_| slots.enter(Key::Own, 1).unwrap()).collect();
    assert!(own.iter().all(runs));
    other.shrink_to(1);
    let large = slots.enter(Key::Own, 2).unwrap();
    let small = slots.enter(granted(3), 1).unwrap();
    assert!(runs(&small) && !runs(&large));
    drop(small);
    let mut many: Vec<_> = (0..20).map(|_| slots.enter_over_limit(granted(4))).collect();
    many.retain(runs);
    assert!(many.len() <= 1, "over the limit of the queue, and never of the capacity");
    drop((other, own));
    assert!(runs(&large));
}

proptest! {
    /// Whatever comes and goes: no limit is exceeded, nothing is lost, and no one waits while it could run.
    #[test]
    fn capacity_is_never_exceeded_lost_or_idle(
        steps in prop::collection::vec((0u8..8, 0u8..6, 1usize..4), 1..200),
        (per_key, reserved) in (3usize..8, 0usize..3),
    ) {
        let slots = Slots::new(SlotLimits { units: 8, per_key, reserved, queue: 6, queue_per_key: 4 });
        let mut tickets: Vec<Ticket> = Vec::new();
        for (step, who, units) in steps {
            let key = match who { 0 => Key::Own, 1 => granted(1), who => unknown(who) };
            match step {
                0..4 => tickets.extend(slots.enter(key, units)),
                4 if !tickets.is_empty() => drop(tickets[0].yield_slot()),
                5 if !tickets.is_empty() => tickets[0].shrink_to(units),
                _ if !tickets.is_empty() => drop(tickets.remove(usize::from(who) % tickets.len())),
                _ => {}
            }
            let queue = slots.lock();
            let used: usize = queue.entries.iter().filter(|entry| entry.runs).map(|entry| entry.units).sum();
            prop_assert!(used == queue.used && used <= 8 && queue.used_by_unknown <= 8 - reserved);
            prop_assert!(queue.waiting().count() <= 6 + 1 && queue.keys.len() <= queue.entries.len());
            for (key, of_key) in &queue.keys {
                let waiting = queue.waiting().filter(|entry| entry.key == *key).count();
                prop_assert!(of_key.waiting == waiting && (*key == Key::Own || of_key.units <= per_key));
            }
            let next = queue.waiting().filter(|entry| queue.may_run(entry)).min_by_key(|entry| queue.rank(entry));
            prop_assert!(next.is_none_or(|entry| used + entry.units > 8));
        }
        drop(tickets);
        let queue = slots.lock();
        prop_assert!(queue.used == 0 && queue.keys.is_empty() && queue.entries.is_empty());
    }
}
