//! Ten thousand sizes of one encoder: memory stays what it was, and results are those of a compile for fixed sizes. A
//! process of its own, because it counts the memory of the process.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::ExecutableExt;
use olivine::internals::models::{Encoder, seeded_input, seeded_params};
use olivine::prelude::*;
use olivine_ir::Shape;
use olivine_ir::size::expression_count;

/// Bytes of memory that this process holds, where the system says.
fn resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/statm").ok()?;
    status.split_whitespace().nth(1)?.parse::<usize>().ok().map(|pages| pages * 4096)
}

fn encoder(batch: usize, sequence: usize) -> Encoder {
    Encoder { layers: 2, hidden: 48, heads: 4, feed_forward: 96, ..Encoder::bert_base(batch, sequence) }
}

fn compiled(session: &Session, graph: &Graph) -> Executable {
    let executable = session.compile(graph).unwrap();
    executable.set_params(seeded_params(graph, 3).unwrap()).unwrap();
    executable
}

/// The graph with sizes that are numbers.
fn fixed(graph: &Graph, shape: Shape) -> Graph {
    let text = graph.specialise(&[("x", shape)]).unwrap().to_string();
    let fixed = text.replace("f32[batch=", "f32[").replace(", sequence=", ", ");
    fixed.parse().unwrap()
}

#[test]
fn ten_thousand_sizes_take_no_more_memory_than_the_first_thousand() {
    let session = Session::new(Device::Cpu).unwrap();
    let graph = encoder(2, 5).graph().unwrap();
    let open = compiled(&session, &graph);
    let (mut random, mut before) = (17u64, None);
    let mut below = |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % n
    };
    for run in 0..10_000u64 {
        let shape = Shape::new(&[1 + below(8) as usize, 1 + below(64) as usize, 48]).unwrap();
        let x = seeded_input("x", shape, run).unwrap();
        let got = open.run([("x", &x)]).unwrap();
        if run % 20 == 0 {
            let want = compiled(&session, &fixed(&graph, shape)).run([("x", &x)]).unwrap();
            for (name, tensor) in want.iter() {
                assert_eq!(got[name].bytes(), tensor.bytes(), "{name} of {shape}");
            }
        }
        if run == 1_000 {
            before = resident_bytes().zip(Some(expression_count()));
        }
    }
    assert!(open.compiled() <= 3, "{:#?}", open.guards());
    if let (Some((before, expressions)), Some(after)) = (before, resident_bytes()) {
        assert_eq!(expression_count(), expressions, "expressions are made once");
        assert!(after < before + (16 << 20), "{before} bytes after 1,000 runs, {after} after 10,000");
    }
}
