use super::*;

fn plan() -> Plan {
    Plan { threads: vec![1, 2], prompts: vec![5, 40], batches: vec![1, 3], generated: 4, runs: 2 }
}

#[test]
fn a_plan_is_refused_by_the_number_that_is_wrong() {
    plan().check(44).unwrap();
    let refuses = |what: &str, context: usize, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        let error = plan.check(context).unwrap_err().to_string();
        assert!(error.contains(what), "{error} instead of {what}");
    };
    refuses("tokens of a prompt must be 1 to 39: 40 is not", 43, &|_| {});
    refuses("tokens to generate", 4, &|_| {});
    refuses("tokens to generate", 0, &|_| {});
    refuses("tokens to generate", 512, &|plan| plan.generated = 0);
    refuses("threads must be 1 to 64: 0", 512, &|plan| plan.threads.push(0));
    refuses("threads must be 1 to 64: 65", 512, &|plan| plan.threads.push(65));
    refuses("sequences at once must be 1 to 256: 257", 512, &|plan| plan.batches[0] = 257);
    refuses("runs must be 1 to 101: 0", 512, &|plan| plan.runs = 0);
    refuses("how many lengths of prompts", 512, &|plan| plan.prompts.clear());
    refuses("how many numbers of threads", 512, &|plan| plan.threads = vec![1; 65]);
    refuses("tokens of a prompt", 512, &|plan| plan.prompts = vec![usize::MAX]);
}

#[test]
fn a_plan_states_its_positions() {
    assert_eq!(plan().positions(), 3 * 64);
    let huge = Plan { generated: usize::MAX, ..plan() };
    assert_eq!(huge.positions(), usize::MAX);
}

#[test]
fn prompts_are_the_same_everywhere_and_begin_differently() {
    assert_eq!(prompt(0, 5, 1000), [0, 889, 563, 453, 126]);
    let (first, second) = (prompt(0, 100, 72), prompt(1, 100, 72));
    assert_eq!((first[0], second[0], prompt(75, 1, 72)[0]), (0, 1, 3));
    assert_eq!(first[1..], second[1..]);
    assert!(first.iter().all(|token| *token < 72));
}

#[test]
fn medians_and_rates() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    let rate = rate(10, vec![4.0, 1.0, 2.0], Some(0.5));
    assert_eq!(rate, Rate { median: 5.0, best: 10.0, own: Some(20.0) });
}

#[test]
fn the_largest_is_the_first_of_several() {
    assert_eq!(largest(&[1.0, 3.0, 2.0, 3.0]), 1);
    assert_eq!(largest(&[f32::NAN, -1.0]), 1);
    assert_eq!(largest(&[]), 0);
}

#[test]
#[cfg(target_os = "linux")]
fn memory_is_reported() {
    let memory = memory().expect("this system tells it");
    assert!(memory.resident > 0 && memory.peak >= memory.resident);
}
