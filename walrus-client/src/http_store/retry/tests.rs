use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn busy(reason: &str, retry_after: Option<Duration>) -> ReadFault {
    ReadFault::Busy { reason: reason.to_owned(), retry_after }
}

fn faults(list: impl IntoIterator<Item = ReadFault>) -> BTreeMap<usize, ReadFault> {
    list.into_iter().enumerate().collect()
}

fn situation() -> ReadSituation {
    ReadSituation {
        round: 0,
        failed_rounds: 0,
        budget: 3,
        missing_left: Duration::ZERO,
        left: 60 * SECOND,
        jitter: 0.0,
    }
}

#[test]
fn pauses_double_up_to_a_bound_and_are_spread() {
    assert_eq!(pause(0, 0.0), FIRST_PAUSE / 2);
    assert_eq!(pause(0, 1.0), FIRST_PAUSE);
    assert_eq!(pause(1, 1.0), FIRST_PAUSE * 2);
    assert_eq!(pause(4, 1.0), MAX_PAUSE);
    assert_eq!(pause(u32::MAX, 1.0), MAX_PAUSE);
}

#[test]
fn a_404_is_final_unless_the_blob_was_just_stored() {
    let missing = faults([ReadFault::Missing, ReadFault::Missing]);
    assert_eq!(after_reads(&missing, situation()), ReadStep::Fail(StoreError::NotFound));
    let recent = ReadSituation { missing_left: SECOND, round: 50, ..situation() };
    let step = after_reads(&missing, recent);
    assert_eq!(step, ReadStep::Again { wait: SECOND, sources: vec![0, 1] }, "the last look is at the end");
}

#[test]
fn refusals_and_wrong_content_are_never_asked_again() {
    for (fault, error) in [
        (ReadFault::Refused { reason: "R".to_owned() }, StoreError::Refused { reason: "R".to_owned() }),
        (ReadFault::Wrong, StoreError::WrongContent),
        (ReadFault::TooLarge { length: 2, limit: 1 }, StoreError::TooLarge { length: 2, limit: 1 }),
    ] {
        let recent = ReadSituation { missing_left: SECOND, ..situation() };
        assert_eq!(after_reads(&faults([fault.clone()]), recent), ReadStep::Fail(error.clone()));
        let mixed = faults([ReadFault::Missing, fault.clone()]);
        assert_eq!(read_error(&mixed), error, "not everybody says that it is not there");
        let step = after_reads(&faults([fault, busy("B", None)]), situation());
        assert!(matches!(step, ReadStep::Again { sources, .. } if sources == [1]));
    }
}

#[test]
fn failures_are_repeated_within_the_budget_and_the_deadline() {
    let failed = faults([busy("HTTP 503", None)]);
    assert!(matches!(after_reads(&failed, situation()), ReadStep::Again { .. }));
    let unavailable =
        ReadStep::Fail(StoreError::Unavailable { reason: "HTTP 503".to_owned(), retry_after: None });
    assert_eq!(
        after_reads(&failed, ReadSituation { round: 3, failed_rounds: 3, ..situation() }),
        unavailable
    );
    // Rounds that waited for a cache's 404 do not use the budget.
    let after_waiting = ReadSituation { round: 9, failed_rounds: 2, ..situation() };
    assert!(matches!(after_reads(&failed, after_waiting), ReadStep::Again { .. }));
    let late = ReadSituation { left: Duration::from_millis(10), ..situation() };
    assert_eq!(after_reads(&failed, late), unavailable);
}

#[test]
fn a_retry_after_is_waited_for_but_does_not_hold_up_the_others() {
    let one = faults([busy("B", Some(2 * SECOND))]);
    assert_eq!(after_reads(&one, situation()), ReadStep::Again { wait: 2 * SECOND, sources: vec![0] });
    let two = faults([busy("B", Some(2 * SECOND)), busy("C", None)]);
    assert_eq!(after_reads(&two, situation()), ReadStep::Again { wait: pause(0, 0.0), sources: vec![1] });
    let long = faults([busy("B", Some(90 * SECOND))]);
    let unavailable = StoreError::Unavailable { reason: "B".to_owned(), retry_after: Some(90 * SECOND) };
    assert_eq!(after_reads(&long, situation()), ReadStep::Fail(unavailable), "longer than there is time");
}

#[test]
fn an_error_that_time_may_heal_is_named_before_others() {
    let mixed = faults([ReadFault::Missing, ReadFault::Wrong, busy("HTTP 500", None)]);
    let StoreError::Unavailable { reason, .. } = read_error(&mixed) else { panic!("not unavailable") };
    assert_eq!(reason, "HTTP 500; another source had other content");
}

#[test]
fn a_source_that_is_gone_does_not_contradict_one_that_answers() {
    let gone = || ReadFault::Unreachable { reason: "could not connect".to_owned() };
    let step = |list: [ReadFault; 2]| after_reads(&faults(list), situation());
    assert_eq!(step([gone(), ReadFault::Missing]), ReadStep::Fail(StoreError::NotFound));
    assert!(matches!(step([gone(), gone()]), ReadStep::Again { sources, .. } if sources == [0, 1]));
    assert!(matches!(step([gone(), busy("HTTP 503", None)]), ReadStep::Again { .. }));
    for other in [ReadFault::Wrong, busy("HTTP 503", None), gone()] {
        assert!(matches!(read_error(&faults([gone(), other])), StoreError::Unavailable { .. }));
    }
}

#[test]
fn a_blob_counts_as_absent_only_when_all_say_so_at_the_end() {
    use ProbeAnswer::{Absent, Present, Unknown, Unreachable};
    let end = Duration::ZERO;
    for (seen, expected) in [
        (vec![Absent, Absent], ProbeOutcome::Absent),
        (vec![Absent, Unknown], ProbeOutcome::Undecided),
        (vec![Unknown, Present], ProbeOutcome::Found),
        (vec![Absent, Unreachable], ProbeOutcome::Absent),
        (vec![Unreachable, Unreachable], ProbeOutcome::Undecided),
        (vec![], ProbeOutcome::Undecided),
    ] {
        assert_eq!(after_probe_pass(&seen, 0, end, 0.0), ProbeStep::Done(expected), "{seen:?}");
    }
    assert_eq!(after_probe_pass(&[Absent], 0, SECOND, 1.0), ProbeStep::Again(FIRST_PAUSE));
    assert_eq!(
        after_probe_pass(&[Absent], 9, SECOND, 1.0),
        ProbeStep::Again(SECOND),
        "the last look is at the end"
    );
    assert_eq!(after_probe_pass(&[Absent, Present], 0, SECOND, 1.0), ProbeStep::Done(ProbeOutcome::Found));
}

const LEFT: Duration = Duration::from_secs(60);

fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable { reason: reason.to_owned(), retry_after: None }
}

fn put_busy(reason: &str) -> PutFault {
    PutFault::Busy { reason: reason.to_owned(), retry_after: None }
}

fn lost() -> PutFault {
    PutFault::Ambiguous { reason: "cut".to_owned() }
}

fn unknown() -> StoreError {
    StoreError::OutcomeUnknown { reason: "cut".to_owned() }
}

fn course(repeatable: bool) -> PutCourse {
    PutCourse::new(9, 1, repeatable)
}

#[test]
fn publishers_that_all_refuse_are_not_asked_again() {
    let refused = PutFault::Refused { reason: "R".to_owned() };
    let step = course(false).after_fault(refused, 0, LEFT, 0.0);
    assert_eq!(step, PutStep::Fail(StoreError::Refused { reason: "R".to_owned() }));
    let step = course(false).after_fault(PutFault::TooLarge, 0, LEFT, 0.0);
    assert_eq!(step, PutStep::Fail(StoreError::TooLarge { length: 9, limit: 8 }));
}

#[test]
fn without_time_a_lost_put_is_not_sent_again() {
    let mut course = course(false);
    course.after_fault(lost(), 0, LEFT, 0.0);
    let step = course.after_probe(ProbeOutcome::Absent, Duration::from_millis(1), 0.0);
    assert_eq!(step, Some(PutStep::Fail(unknown())));
}

#[test]
fn a_permanent_put_may_be_repeated_but_its_doubt_stays() {
    let mut course = course(true);
    course.after_fault(lost(), 0, LEFT, 0.0);
    assert!(matches!(course.after_probe(ProbeOutcome::Undecided, LEFT, 0.0), Some(PutStep::Round(_))));
    assert!(course.is_in_doubt(), "so it goes to the same publisher");
    let refused = PutFault::Refused { reason: "R".to_owned() };
    assert_eq!(course.after_fault(refused, 0, LEFT, 0.0), PutStep::Fail(unknown()));
}

#[test]
fn the_deadline_names_what_is_known() {
    assert_eq!(course(false).at_deadline(false), unavailable("timed out"));
    assert!(matches!(course(false).at_deadline(true), StoreError::OutcomeUnknown { .. }));
    let mut doubted = course(false);
    doubted.after_fault(lost(), 0, LEFT, 0.0);
    assert_eq!(doubted.at_deadline(false), unknown());
    let mut turned_away = course(false);
    turned_away.after_fault(put_busy("B"), 1, LEFT, 0.0);
    assert_eq!(turned_away.at_deadline(false), unavailable("B"));
}
