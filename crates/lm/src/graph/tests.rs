//! How many dispatches stand between the logits of a step and its tokens.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

#[path = "../../tests/card/mod.rs"]
mod card;

use olivine::internals::compile::{Options, compile};
use olivine::internals::gpu::{Record, lower};

use super::*;

const VOCABULARY: usize = 128_256;

/// The kernels from one row of logits to its token, with lists of so many recent tokens, biases, masks and draws.
fn kernels([recent, biases, masks, draws]: [usize; 4]) -> Vec<String> {
    let mut g = Graph::new("head");
    let rows = vec![Some("rows".to_string()), None];
    let logits =
        g.input_with_dims("logits", DType::F32, Shape::new(&[1, VOCABULARY]).unwrap(), rows).unwrap();
    let next = head(&mut g, logits, VOCABULARY).unwrap();
    g.output("next", next).unwrap();
    let shapes = [
        ("logits", vec![1, VOCABULARY]),
        ("recent", vec![1, recent]),
        ("repetition", vec![1]),
        ("frequency", vec![1]),
        ("presence", vec![1]),
        ("bias_tokens", vec![1, biases]),
        ("biases", vec![1, biases]),
        ("temperature", vec![1]),
        ("top_k", vec![1]),
        ("top_p", vec![1]),
        ("min_p", vec![1]),
        ("draws", vec![draws, 4]),
        ("allowed", vec![masks, 1, VOCABULARY]),
    ];
    let shapes = shapes.map(|(name, dims)| (name, Shape::new(&dims).unwrap()));
    let graph = g.specialise(&shapes).unwrap();
    let compiled = compile(&graph, &Options::default()).unwrap();
    let program = lower(&compiled, &card::h200(), &Record::new(), &[]).unwrap();
    program.run.iter().map(|dispatch| program.kernel(dispatch).name.clone()).collect()
}

#[test]
fn what_no_row_asks_for_is_no_dispatch() {
    assert_eq!(kernels([0, 0, 0, 0]), ["argmax_rows"; 2]);
    assert!(kernels([0, 0, 0, 1]).iter().all(|name| name.starts_with("sample_")));
    let all = kernels([64, 64, 1, 1]);
    assert!(all.iter().any(|name| !name.starts_with("sample_")), "{all:?}");
}
