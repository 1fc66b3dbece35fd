//! Compiling makes a bounded number of allocations for each node: counted, so that the machine's speed does not matter.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use olivine::internals::compile::{Options, compile};
use olivine::internals::cpu::{self, CpuEvaluator};
use olivine::ir::ValueId;
use olivine::ir::op::Binary;
use olivine::prelude::*;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all memory is the system allocator's; this only counts what is asked of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

type Build = fn(&mut Graph, ValueId, usize) -> Result<ValueId, olivine::ir::Error>;

/// Graphs of about `n` nodes, and the allocations that each node may cost.
const GRAPHS: &[(&str, usize, Build)] = &[
    ("a chain", MOST, |g, x, n| (0..n).try_fold(x, |y, _| g.add(y, x))),
    ("two kinds of operations", MOST, |g, x, n| {
        (0..n / 2).try_fold(x, |y, _| g.tanh(y).and_then(|bent| g.mul(bent, x)))
    }),
    ("many readers", MOST, |g, x, n| {
        let mut sum = x;
        for i in 0..n / 2 {
            let scaled = g.binary_scalar(Binary::Mul, x, i as f64)?;
            sum = g.add(sum, scaled)?;
        }
        Ok(sum)
    }),
    ("moving elements", MOST, |g, x, n| {
        let first = g.reshape(x, &[2, 2])?;
        (0..n / 2).try_fold(first, |y, _| {
            let turned = g.transpose(y, &[1, 0])?;
            g.reshape(turned, &[2, 2])
        })
    }),
];

const MOST: usize = 60;

/// Allocations of compiling a graph and lowering it for the CPU; building it is not counted.
fn allocations(build: Build, n: usize) -> usize {
    let mut g = Graph::new("many");
    let x = g.input("x", DType::F32, [4]).unwrap();
    let y = build(&mut g, x, n).unwrap();
    g.output("y", y).unwrap();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let compiled = compile(&g, &Options { evaluator: Some(&CpuEvaluator), ..Options::default() }).unwrap();
    cpu::Executable::new(&compiled, std::sync::Arc::default(), false).unwrap();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn a_node_costs_a_bounded_number_of_allocations() {
    for (name, most, build) in GRAPHS {
        // The first run fills caches that stay.
        allocations(*build, 100);
        let (few, many) = (allocations(*build, 2_000), allocations(*build, 8_000));
        let each = many / 8_000;
        println!("{name}: 2,000 nodes make {few} allocations, 8,000 make {many}: {each} for a node");
        assert!(many * 10 <= few * 42, "{name}: four times the nodes make more than four times as many");
        assert!(each <= *most, "{name}: a node makes {each} allocations");
    }
}
