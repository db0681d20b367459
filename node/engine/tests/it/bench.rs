//! Benchmarks: all planned cases are measured and reported.

use baton_engine::{
    LoadError, Model, Options,
    bench::{BenchError, Plan, Progress, measure},
    gguf::DType,
    kernels::Isa,
};

use crate::support::synthetic::{Shape, open};

/// Loads a model with this budget for keys and values.
fn load(kv_budget: usize) -> impl FnMut(usize) -> Result<Model, LoadError> {
    let file = open(&Shape::new("llama", &[DType::Q4_1]).writer().finish());
    move |threads| Model::from_file(&file, &Options { threads, isa: Isa::best(), kv_budget })
}

fn plan() -> Plan {
    Plan { threads: vec![1, 2], prompts: vec![5, 40], batches: vec![1, 3], generated: 4, runs: 2 }
}

#[test]
fn every_case_is_measured_and_reported_in_order() {
    let (mut reported, mut steps) = (Vec::new(), Vec::new());
    let cases = measure(&mut load(1 << 30), &plan(), &mut |progress| match progress {
        Progress::Case(case) => reported.push(*case),
        Progress::Tokens { done, total } => steps.push((done, total)),
    })
    .unwrap();
    assert_eq!(reported, cases);
    let of: Vec<_> = cases.iter().map(|case| (case.threads, case.prompt, case.batch)).collect();
    assert_eq!(
        of,
        [(1, 5, 1), (1, 5, 3), (1, 40, 1), (1, 40, 3), (2, 5, 1), (2, 5, 3), (2, 40, 1), (2, 40, 3)]
    );
    for case in &cases {
        for rate in [case.prefill, case.decode] {
            assert!(rate.median > 0.0 && rate.median.is_finite() && rate.best >= rate.median, "{case:?}");
        }
    }
    // Progress grows to the announced total.
    assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 == pair[1].1));
    let (done, total) = *steps.last().unwrap();
    assert_eq!(done, total);
}

#[test]
fn a_plan_that_the_model_cannot_do_is_refused() {
    let refused = |plan: &Plan, budget: usize| measure(&mut load(budget), plan, &mut |_| {}).unwrap_err();
    let beyond = Plan { prompts: vec![600], ..plan() };
    assert!(matches!(refused(&beyond, 1 << 30), BenchError::Range(text) if text.contains("600 is not")));
    for threads in [vec![], vec![0], vec![1, 65]] {
        let plan = Plan { threads, ..plan() };
        let found = measure(&mut |_| panic!("no model is loaded for that"), &plan, &mut |_| {});
        assert!(matches!(found, Err(BenchError::Range(_))));
    }
    let block = load(1)(1).unwrap().kv().shape().block_bytes();
    assert!(matches!(refused(&plan(), block), BenchError::Step(_)));
    // The room that a plan requests is enough.
    let budget = plan().positions() / 32 * block;
    assert_eq!(measure(&mut load(budget), &plan(), &mut |_| {}).unwrap().len(), 8);
}
