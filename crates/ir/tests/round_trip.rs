//! Every operation prints, parses back equal, and passes the verifier.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod generate;

use std::collections::BTreeSet;

use generate::Rng;
use olivine_ir::{Graph, Op};
use proptest::prelude::*;

fn round_trip(graph: &Graph) -> Result<(), String> {
    let text = graph.to_string();
    graph.verify().map_err(|e| format!("{e}\n{text}"))?;
    let parsed: Graph = text.parse().map_err(|e| format!("{e}\n{text}"))?;
    if &parsed != graph {
        return Err(format!("differs from\n{text}\nas\n{parsed}"));
    }
    parsed.verify().map_err(|e| format!("{e}\n{text}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_graph_prints_and_parses_back_equal(seed: u64) {
        let graph = generate::graph(&mut Rng::new(seed)).map_err(|e| TestCaseError::fail(e.to_string()))?;
        round_trip(&graph).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn every_operation_is_generated_and_round_trips() {
    let mut seen = BTreeSet::new();
    for (kind, maker) in generate::makers().iter().enumerate() {
        for seed in 0..600 {
            let mut rng = Rng::new(seed);
            let made = maker(&mut rng);
            seen.insert(made.0.name());
            let mut graph = Graph::new("one");
            let spelled = format!("{made:?}");
            let added = generate::add(&mut graph, &mut rng, made);
            if let Err(e) = added.map_err(|e| e.to_string()).and_then(|_| round_trip(&graph)) {
                panic!("kind {kind}, seed {seed}: {e}\n{spelled}");
            }
        }
    }
    // Custom operations are read with a registry; `control_and_custom.rs` has them.
    seen.insert("custom");
    assert_eq!(seen, BTreeSet::from_iter(Op::names()));
}

#[test]
fn operation_names_are_distinct() {
    let names = Op::names();
    assert_eq!(names.len(), BTreeSet::from_iter(&names).len());
}
